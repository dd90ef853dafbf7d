"""Processes of a guarded arm in a test, and the operator's view of the guard."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from diagnostic_msgs.srv import AddDiagnostics
from std_srvs.srv import Trigger

from serl.guard.config import GuardConfig
from serl.ros.arm.guard_topics import GUARD_STATE, NOT_NOW
from serl.ros.environment import environment
from serl.ros.node import RosNode, namespace
from serl.ros.ports import read_ports, removed_ports
from serl.ros.topics import Topic
from serl.system.signed_order import key_path, load_order_key, sign_order

ROBOT = "arm"
"""Namespace of the arm within the run."""

LIMIT_S = 120.0
SIGNED = ("ack", "reset", "arm")
_MOVE_S = 0.5  # in which the readers of a port that was replaced move to the new one


def eventually(
    condition: Callable[[], object],
    limit_s: float = LIMIT_S,
    found: Callable[[], str] = lambda: "",
) -> None:
    """Return once the condition holds; fail with `found()` when it does not within the limit.

    It is polled every 10 ms, a costly one for at most half of the time.
    """
    deadline_s, used_s = time.monotonic() + limit_s, time.thread_time()
    while not condition():
        assert time.monotonic() < deadline_s, f"did not happen within {limit_s} s: {found()}"
        before_s, used_s = used_s, time.thread_time()
        time.sleep(max(0.01, used_s - before_s))


class Lateness:
    """Measures how late this machine wakes up a sleeping thread.

    Attributes:
        worst_s: the largest delay since it was last set to zero.
    """

    def __init__(self) -> None:
        self.worst_s = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._measure, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    def _measure(self) -> None:
        while not self._over.is_set():
            begin_s = time.monotonic()
            time.sleep(0.005)
            self.worst_s = max(self.worst_s, time.monotonic() - begin_s - 0.005)


class GuardProcesses(contextlib.ExitStack):
    """A guard and further processes of one run, which end with this context.

    Args:
        config: the guard's configuration.

    Attributes:
        processes: the newest process of each name.
        states: the guard's reports, with their monotonic times.
        counts: the numbers of the last report.
        not_now: why the guard would refuse an order, from the last report.
        lateness: delays of this machine.
    """

    def __init__(self, folder: Path, config: GuardConfig) -> None:
        super().__init__()
        self.folder = folder
        self.latch = folder / f"{ROBOT}.latch"
        self.latch.write_text("serl latch: disarmed\n")
        (folder / "guard.yaml").write_text(config.model_dump_json())
        self.processes: dict[str, subprocess.Popen[str]] = {}
        self._started: list[subprocess.Popen[str]] = []
        self.environment = environment(int(os.environ["ROS_DOMAIN_ID"]), folder)
        self.operator = RosNode("operator", folder, local=True)
        self.lateness = Lateness()
        self._clients: dict[str, Any] = {}
        self._guard_arguments: tuple[str, ...] = ()
        self.states: list[tuple[float, str]] = []
        self.counts: dict[str, float] = {}
        self.not_now = ""

    def __enter__(self) -> Self:
        self.callback(self._kill_all)  # last of all: Fast DDS may crash as a node leaves after it
        self.enter_context(self.operator)
        self.enter_context(self.lateness)
        name = f"{self.prefix}/{GUARD_STATE.name}"
        self.operator.subscribe(GUARD_STATE._replace(name=name), self._on_state)
        return self

    @property
    def prefix(self) -> str:
        """Namespace of the arm, from the root."""
        return f"{namespace(self.folder)}/{ROBOT}"

    @property
    def state(self) -> str:
        """The guard's last report, as "hold: armed"; empty before the first."""
        return self.states[-1][1] if self.states else ""

    def start(self, name: str, *arguments: str) -> subprocess.Popen[str]:
        """Start a process of Python."""
        process = subprocess.Popen(
            [sys.executable, *arguments],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.processes[name] = process
        self._started.append(process)
        return process

    def start_guard(self, *arguments: str) -> subprocess.Popen[str]:
        """Start the guard."""
        settings, latch = str(self.folder / "guard.yaml"), str(self.latch)
        self._guard_arguments = arguments
        return self.start(
            *("guard", "-m", "serl.ros.nodes.guard", "--run", str(self.folder), "--robot", ROBOT),
            *("--config", settings, "--latch", latch, *arguments),
        )

    def signal(self, name: str, number: signal.Signals) -> float:
        """Send a signal to a process; return the monotonic time of that."""
        now_s = time.monotonic()
        self.processes[name].send_signal(number)
        if number is signal.SIGKILL:
            self.processes[name].wait()
        return now_s

    def call(self, service: str, limit_s: float = LIMIT_S) -> tuple[bool, str]:
        """Call a service of the guard, signed where needed; return its success and its answer."""
        request, signed = Trigger.Request(), service in SIGNED
        client = self.client("order" if signed else service, limit_s)
        if signed:
            name = f"{self.prefix}/guard/{service}"
            key = load_order_key(key_path(self.latch))
            text = sign_order(key, name, time.monotonic_ns())
            request = AddDiagnostics.Request(load_namespace=text)
        future, guard = client.call_async(request), self.processes.get("guard")

        def is_over() -> bool:
            return future.done() or (guard is not None and guard.poll() is not None)

        eventually(is_over, limit_s, lambda: f"{service} was not answered: {self.state}")
        assert future.done(), f"the guard ended: {guard.communicate()[1] if guard else ''}"
        return future.result().success, future.result().message

    def wake_guard(self) -> bool:
        """Let a stopped guard continue; return False if another one had to be started.

        Fast DDS takes a process that stands still for a second for dead, and removes its shared
        memory. The guard then hears nothing new, and ends within 10 s, with one line.
        """
        guard = self.processes["guard"]
        self.signal("guard", signal.SIGCONT)
        time.sleep(_MOVE_S)
        locks = read_ports(guard.pid).values()
        if not removed_ports(int(os.environ["ROS_DOMAIN_ID"]), locks, guard.pid):
            self.call("ack")
            return True
        self.signal("guard", signal.SIGKILL)
        self.states.clear()
        self.start_guard(*self._guard_arguments)
        return False

    def client(self, service: str, limit_s: float = LIMIT_S) -> Any:
        """Return a client of a service of the guard that is available."""
        if service not in self._clients:
            name = f"{self.prefix}/guard/{service}"
            kind = AddDiagnostics if service == "order" else Trigger
            self._clients[service] = self.operator.handle.create_client(kind, name)
        assert self._clients[service].wait_for_service(limit_s), f"no service {service}"
        return self._clients[service]

    def publisher(self, topic: Topic) -> Any:
        """Return the operator's publisher on a topic of the arm."""
        return self.operator.publisher(topic._replace(name=f"{self.prefix}/{topic.name}"))

    def until(self, state: str, limit_s: float = LIMIT_S) -> None:
        """Block until the guard's report begins with `state`."""
        eventually(lambda: self.state.startswith(state), limit_s, lambda: self.state)

    def _on_state(self, message: Any) -> None:
        self.states.append((time.monotonic(), message.message))
        self.not_now = next(pair.value for pair in message.values if pair.key == NOT_NOW)
        self.counts = {
            pair.key: float(pair.value)
            for pair in message.values
            if pair.key not in ("limits", NOT_NOW)
        }

    def _kill_all(self) -> None:
        for process in reversed(self._started):
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGCONT)
                process.kill()
        for process in self._started:
            process.communicate()
