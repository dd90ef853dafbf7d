"""A process's ROS 2 node: one participant, one executor in a daemon thread."""

from __future__ import annotations

import logging
import math
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from ipaddress import IPv4Address
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Self

import rclpy
from rclpy.clock import Clock, ClockType
from rclpy.context import Context
from rclpy.exceptions import ParameterException
from rclpy.executors import ExternalShutdownException
from rclpy.impl.implementation_singleton import rclpy_implementation
from rclpy.parameter import Parameter
from rclpy.time_source import USE_SIM_TIME_NAME
from rclpy.utilities import remove_ros_args

from serl.errors import BadInput, SerlError
from serl.ros.environment import LOCAL, domain_id_of, network_of, ros_name, settle, wait_until_up
from serl.ros.executor import PacedExecutor, Taker, keep_freed_memory, keep_objects
from serl.ros.lifecycle import AUTOSTART, AUTOSTARTS, INACTIVE, ManagedNode
from serl.ros.parameters import DescribedParameter, declare
from serl.ros.ports import (
    full_port,
    hold_ports,
    read_ports,
    reads_domain,
    release_ports,
    removed_ports,
    replace_port,
)
from serl.ros.rosout import DRAIN_S, ROSOUT, RosoutHandler
from serl.ros.tags import Signer, opened
from serl.ros.topics import Topic
from serl.system.authentication import load_key, run_key, topic_key
from serl.system.sockets import check_reach, close_inherited_sockets
from serl.system.supervisor import is_supervised

logger = logging.getLogger(__name__)

_TIMELESS = "use_sim_time is true, and /clock has no publisher"
_LOOK_S = 5.0
_JOIN_S, _AGAIN_S, _UNFINISHED_S = 20.0, 0.1, 2.0
_ECHO_S = 1.0
"""Time in which a second Ctrl-C is an echo: both the terminal and `ros2 launch` send it."""
_STEADY = Clock(clock_type=ClockType.STEADY_TIME)
"""Clock of timers: in ROS time they pause for an hour when the host's clock is set back by one."""
_TAKEN_AWAY = (AttributeError, rclpy_implementation.InvalidHandle)
_STAGES = "stages"  # `serl.runs.folder.STAGES`, whose module takes long to import


class RosNode:
    """A context manager: the process's ROS 2 node, spinning while it is open.

    SIGTERM and SIGINT set `stopping`, which main loops check; another signal after a second has
    its usual effect. The executor is single-threaded on purpose: the others lose messages or
    starve threads (measured, rclpy 7.1.6). Callbacks only fill queues.

    Messages on `authentic` topics, in a run of several hosts on all topics, carry a tag under the
    run's key; others are dropped and counted. Services cannot be signed, so that a run of several
    hosts has none: its nodes activate themselves.

    Args:
        name: name of the node, made valid if it is not.
        run_folder: the run; its name gives the namespace, its `log` folder takes ROS's logs.
        local: stay on this host, and trust it, even in a run of several hosts.
        robot: sub-namespace of the run for the node's own services; topics stay outside of it.
        parameters: the node's, besides `use_sim_time`; without services in a run of several hosts.
        managed: the handle is a `serl.ros.lifecycle.ManagedNode`; call its `manage`.

    Attributes:
        stopping: the process was asked to end, a callback failed, or the node is deaf.
        deaf: the reason why the node receives no messages any more; empty while it can.
        handle: the rclpy node.
        signed: all messages carry a tag: the run has several hosts.

    Raises:
        BadInput: this host is not one of the run's, its key is missing, or ROS 2 opened a socket
            that others can reach.
        SerlError: the network went down meanwhile, or another process keeps the domain's port.
    """

    def __init__(
        self,
        name: str,
        run_folder: Path,
        *,
        local: bool = False,
        robot: str = "",
        parameters: Mapping[str, DescribedParameter] | None = None,
        managed: bool = False,
    ) -> None:
        network = LOCAL if local else network_of(run_folder)
        self._key = None if network.local else load_key(network.key_file)
        self.signed = self._key is not None
        self.stopping, self.deaf, self._removed = False, "", set[str]()
        self._full_port: int | None = None
        self._strangers: Counter[str] = Counter()
        self._failure: Exception | None = None
        self._leaving = self._warned_of_time = False
        self._arrived = threading.Event()
        self._folder, self._namespace = run_folder, namespace(run_folder, robot)
        self._robot, self._parameters = robot, parameters or {}
        self._managed = managed
        if managed:
            self._parameters = {**self._parameters, AUTOSTART: AUTOSTARTS}
        settle(os.environ, domain_id_of(network=network), run_folder, network)
        keep_freed_memory()
        self._join(ros_name(name), set() if network.local else set(network.own_addresses()))
        self._executor = PacedExecutor(context=self._context)
        self._executor.add_node(self.handle)
        self.every(_LOOK_S, self._look)
        self._rosout: RosoutHandler | None = None
        if not self.signed:  # only the run itself could read messages with a tag
            logger_name = self.handle.get_logger().name
            self._rosout = RosoutHandler(logger_name, self.publisher(ROSOUT))
            self.every(DRAIN_S, self._rosout.drain)
        self._thread = threading.Thread(target=self._spin, name="ros", daemon=True)
        self._previous: dict[int, Any] = {}
        self._requested_s = math.inf  # time of the first request to end

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._previous[number] = signal.signal(number, self._stop)
        if self._rosout is not None:
            self._rosout.attach()
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._leaving = True
        self._executor.shutdown()
        self._thread.join()
        if self._rosout is not None:
            self._rosout.detach()
            if self._context.ok():
                self._rosout.drain()
        self._leave()
        self._restore_signals()
        if self._failure is not None and error is None:
            raise self._failure

    def begin_real_time(self, round_s: float = 0.0) -> None:
        """Prepare this process for a loop with deadlines; call it once all modules are loaded.

        Args:
            round_s: least time between two rounds of the executor, by which a message may be late.
        """
        keep_objects()
        self._executor.round_s = round_s

    def publisher(self, topic: Topic) -> Any:
        """Create a publisher on a topic of the run; it takes messages, or CDR bytes unchanged."""
        publisher = self.handle.create_publisher(topic.kind, self.absolute(topic.name), topic.qos)
        key = self._key_of(topic)
        return publisher if key is None else Signer(publisher, key)

    def subscribe(
        self,
        topic: Topic,
        callback: Callable[[Any], None],
        *,
        raw: bool = False,
        drain: bool = False,
    ) -> Any:
        """Call back in the executor's thread with each message, or its CDR bytes when `raw`.

        With `drain` or `raw`, all waiting messages are taken in one round of the executor. Returns
        the subscription.
        """

        def deliver(message: Any) -> None:
            callback(message)
            self._arrived.set()

        key = self._key_of(topic)
        raw_too = raw or key is not None
        receive = deliver if key is None else self._verified(topic, key, deliver, raw)
        taker = Taker(topic.kind, receive, raw_too) if raw_too or drain else receive
        subscription = self.handle.create_subscription(
            topic.kind, self.absolute(topic.name), taker, topic.qos, raw=raw_too
        )
        if isinstance(taker, Taker):
            taker.subscription = subscription
        return subscription

    def absolute(self, name: str) -> str:
        """Return a name in the run's namespace; absolute names stay unchanged."""
        return name if name.startswith("/") else f"{self._namespace}/{name}"

    @property
    def hindrance(self) -> str:
        """The reason why the node does not do its work; empty when nothing hinders it."""
        return INACTIVE if self._managed and not self.handle.active else self.timeless

    @property
    def timeless(self) -> str:
        """The reason why the node does not know the time; empty when it does."""
        by_clock = self.handle.get_parameter(USE_SIM_TIME_NAME).value
        return "" if not by_clock or self.handle.get_clock().now().nanoseconds else _TIMELESS

    @property
    def counts(self) -> Mapping[str, float]:
        """Number of messages dropped because they did not carry the run's tag."""
        return {"unauthenticated": float(self._strangers.total())} if self._strangers else {}

    def wait(self, timeout_s: float) -> None:
        """Sleep until a message arrives; return at once if one arrived since the last call."""
        self._arrived.wait(timeout_s)
        self._arrived.clear()

    def every(self, period_s: float, callback: Callable[[], None]) -> None:
        """Call back periodically in the executor's thread, by a clock that is never set back."""
        self.handle.create_timer(period_s, callback, clock=_STEADY)

    def soon(self, callback: Callable[[], object]) -> None:
        """Call back once, in the executor's thread.

        A publisher, a subscription or a client may be destroyed only there: in another thread the
        executor may be about to wait for it, and breaks (seen, rclpy 7.1.6).
        """
        self._executor.create_task(callback)

    def _join(self, name: str, addresses: set[IPv4Address]) -> None:
        """Create the node, once its addresses are up, and check the sockets that it opened."""
        wait_until_up(addresses)
        deadline_s = time.monotonic() + _JOIN_S
        while not self._create(name):  # another process held its port for a moment
            if time.monotonic() > deadline_s:
                raise SerlError(f"{name}: another process keeps the port of its ROS domain locked")
            time.sleep(_AGAIN_S)
        try:
            self._declare(name)
            check_reach(name, addresses)
        except SerlError:
            self._leave()
            raise

    def _create(self, name: str) -> bool:
        """Create the node; return False, without a node, where it could not discover its domain."""
        _release_ports(_UNFINISHED_S)
        before = read_ports()
        self._context = Context()
        rclpy.init(context=self._context)
        own = "/".join(filter(None, (self._namespace, self._robot)))
        managed = partial(ManagedNode, enable_communication_interface=not self.signed)
        make = managed if self._managed else rclpy.create_node
        self.handle: Any = make(
            name,
            context=self._context,
            cli_args=["--ros-args", "-r", f"__ns:={own}"],  # before that of the command line
            namespace=own,
            enable_rosout=False,  # of rcl's own log; `RosoutHandler` publishes Python's
            start_parameter_services=bool(self._parameters) and not self.signed,
            parameter_overrides=[Parameter("start_type_description_service", value=False)],
        )
        new = {fd: lock for fd, lock in read_ports().items() if before.get(fd) != lock}
        self._locks = set(new.values())
        self._domain = self._context.get_domain_id()
        if deaf := new and not reads_domain(new, self._domain):
            self._leave()
        return not deaf

    def _declare(self, name: str) -> None:
        handle, alone = self.handle, self._managed and self.signed
        try:
            declare(handle, self._parameters)
            if alone and not handle.get_parameter(AUTOSTART).value:
                raise BadInput(f"{AUTOSTART}: expected true: no manager reaches it over a network")
        except (ParameterException, BadInput) as error:
            raise BadInput(f"{name}: {error}") from None

    def _look(self) -> None:
        """Warn of an unknown time; look after the ports of the node and of its domain.

        Two checks in a row count: the node ends when it is deaf, and a domain's port in which
        nothing has moved since it was full is replaced.
        """
        if self.timeless and not self._warned_of_time:
            self._warned_of_time = True
            logger.warning("%s: %s", self.handle.get_fully_qualified_name(), _TIMELESS)
        _release_ports()
        before, domain = self._removed, self._domain
        self._removed = removed_ports(domain, self._locks)
        full_before, self._full_port = self._full_port, full_port(domain)
        if self._full_port is not None and self._full_port == full_before:
            logger.warning("ROS domain %d: a dead process left its port full: replaced", domain)
            replace_port(domain)
        if lasting := sorted(before & self._removed):
            self.deaf = f"{self.handle.get_name()}: deaf: another process removed {lasting[0]}"
            self._failure, self.stopping = SerlError(self.deaf), True

    def _leave(self) -> None:
        hold_ports(self._domain, self._locks)
        self.handle.destroy_node()
        self._context.try_shutdown()

    def _key_of(self, topic: Topic) -> bytes | None:
        """Return the key for the tags of a topic; None for a topic whose messages carry none."""
        key = self._key or (run_key(self._folder) if topic.authentic else None)
        return topic_key(key, self.absolute(topic.name)) if key else None

    def _verified(
        self, topic: Topic, key: bytes, deliver: Callable[[Any], None], raw: bool
    ) -> Callable[[bytes], None]:
        """Return a callback that delivers only messages with a valid tag, and counts the others."""
        self._strangers[topic.name] += 0  # counted from now on

        def receive(signed: bytes) -> None:
            message = opened(key, signed, None if raw else topic.kind)
            if message is not None:
                deliver(message)
                return
            if not self._strangers[topic.name]:
                logger.warning("%s: dropped a message without this run's tag", topic.name)
            self._strangers[topic.name] += 1

        return receive

    def _spin(self) -> None:
        try:
            self._executor.spin()
            if not self._leaving:
                raise ExternalShutdownException("the node's ROS 2 context was shut down")
        except Exception as error:  # a defect: better to end than to go on deaf
            # rclpy 7.1.6 may still read its guard conditions while they are being destroyed.
            if not (self._leaving and isinstance(error, _TAKEN_AWAY)):
                self._failure = error
                self.stopping = True

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self.stopping, now_s = True, time.monotonic()
        self._requested_s = min(self._requested_s, now_s)
        if now_s - self._requested_s > _ECHO_S:
            self._restore_signals()
            signal.raise_signal(number)

    def _restore_signals(self) -> None:
        while self._previous:
            signal.signal(*self._previous.popitem())


def _release_ports(limit_s: float = 0.0) -> None:
    for name in release_ports(limit_s):
        logger.warning("shared memory %s: a process died while it created it: removed", name)


def run_node(run: Callable[[], None]) -> int:
    """Run the body of a process; returns its exit code, after a line on stderr for an error.

    A supervised process whose body is done exits with 0, even if a signal asks it to end then.
    """
    try:
        if is_supervised():
            close_inherited_sockets()
        run()
        if is_supervised():
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.SIG_IGN)
    except BadInput as error:
        print(error, file=sys.stderr)  # noqa: T201
        return 2
    except (SerlError, OSError) as error:
        print(error, file=sys.stderr)  # noqa: T201
        return 1
    return 0


def own_arguments(arguments: Sequence[str] | None) -> list[str]:
    """Return a process's arguments without rclpy's, as in `--ros-args -r __ns:=/left`."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    return list(remove_ros_args(["", *given])[1:])


def namespace(run_folder: Path, robot: str = "") -> str:
    """Return the ROS namespace of a run: its folder's name, made valid; a stage is below its run.

    A process that was started with `--ros-args -r __ns:=/cell` has the run in `/cell`. If its node
    is in the namespace of a robot, `__ns:=/cell/left` gives `/cell` as well.
    """
    given = _namespace_argument(sys.argv)
    run = given.removesuffix(f"/{robot}") if robot else given
    path = run_folder.resolve()
    parts = (path.parent.parent, path) if path.parent.name == _STAGES else (path,)
    return run or "".join(f"/{ros_name(part.name)}" for part in parts)


def _namespace_argument(arguments: Sequence[str]) -> str:
    """Return the namespace given by rclpy's arguments; empty without one."""
    of_ros = arguments[arguments.index("--ros-args") :] if "--ros-args" in arguments else ()
    found = [word.removeprefix("__ns:=") for word in of_ros if word.startswith("__ns:=")]
    return f"/{found[-1].strip('/')}" if found else ""
