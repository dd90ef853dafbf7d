"""The only process that commands an arm: a ROS 2 node around `serl.guard.guard`.

    python -m serl.ros.nodes.guard --run RUN --robot panda --arm franka --config guard.yaml \
        --latch panda.latch

It uses the topics and types of the arm's profile. It refuses to start while another node publishes
setpoints to the arm, when the arm's messages have another frame, when a message package is not
installed, or when a limit is missing or wrong. Its main thread ticks 100 times a second;
callbacks, in the executor's thread, only pass messages on. Software only: it does not replace a
hardware e-stop, vendor limits and a risk assessment.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from diagnostic_msgs.msg import DiagnosticStatus, KeyValue
from rclpy.time_source import USE_SIM_TIME_NAME

from serl.arm_profile import ArmProfile, load_robot
from serl.clock import WallClock
from serl.compliance import WrenchRamp
from serl.errors import BadInput, SerlError
from serl.guard.config import check_fits
from serl.guard.guard import LATCHED, MOVING, Guard, GuardConfig, GuardState
from serl.guard.latch import LatchFile
from serl.ros.arm.commander import ArmCommander
from serl.ros.arm.competitors import CommandPublishers, OtherPublishers
from serl.ros.arm.controller import Compliance, ControllerWatch
from serl.ros.arm.guard_inbox import GuardInbox
from serl.ros.arm.guard_topics import (
    COMMAND_GRIPPER,
    COMMAND_POSE,
    GUARD_STATE,
    HEARTBEAT,
    NOT_NOW,
)
from serl.ros.arm.topics import check_types, command_topics, name_of, of_robot
from serl.ros.environment import guard_name
from serl.ros.node import RosNode, namespace, own_arguments, run_node
from serl.ros.parameters import DescribedParameter
from serl.ros.services import serve, serve_signed
from serl.ros.telemetry import Health, Stats
from serl.setpoint import PROFILE_PERIOD_S
from serl.system.files import FileLock, make_folder
from serl.system.settings_file import checked, read_yaml
from serl.system.signed_order import OrderCheck, key_path
from serl.system.supervisor import is_orphaned

logger = logging.getLogger(__name__)

NOTICE = "software only: it does not replace a hardware e-stop, vendor limits, a risk assessment"
_DISCOVERY_S = 1.0
_ROUND_S = 0.004  # between two rounds of the node's executor
_LOOK_S = 0.5
_FILE_S = 0.02
_PUBLISH_TICKS = 10
_LOOK_TICKS = 50
_LEAVE_S = 1.0


class GuardNode:
    """A guard with its topics and services.

    Args:
        prefix: namespace of the arm, from the root.
        profile: profile of the arm's family.
        config: settings of the guard.
        file: file of the latch, which persists stops.
        orders: checks the signatures of orders that end a stop or arm.

    Raises:
        BadInput: another node commands the arm, another guard is in its namespace, its messages
            have another frame, or its profile does not fit the configuration or needs a message
            package that is not installed.
        OSError: the latch cannot be written.
    """

    def __init__(
        self,
        node: RosNode,
        prefix: str,
        profile: ArmProfile,
        config: GuardConfig,
        file: LatchFile,
        orders: OrderCheck,
    ) -> None:
        check_types(profile)
        check_fits(config, profile)
        self._node, self._prefix, self._profile = node, prefix, profile
        self._config, self._file, self._orders = config, file, orders
        self._guard = Guard(config, file.read())
        self._filed, self._unfiled = self._guard.latch, ""
        file.write(self._filed)
        self._lock, self._filing = threading.Lock(), threading.Lock()
        self._ticking = WallClock(1.0 / PROFILE_PERIOD_S)
        self._ticks = 0
        self._published: tuple[GuardState, str] | None = None
        self._opening: float | None = None
        self._was_armed = self._sends = False
        names = config.joint_names
        self._inbox = GuardInbox(node, prefix, profile, names, self._guard, self._lock)
        state = of_robot(GUARD_STATE, prefix)  # of another guard, which would follow the same actor
        alone = [*command_topics(profile, prefix), state.name]
        self._others = OtherPublishers(node, alone)
        topics = (COMMAND_POSE, COMMAND_GRIPPER, HEARTBEAT)
        self._commanders = CommandPublishers(
            node, [of_robot(topic, prefix).name for topic in topics]
        )
        time.sleep(_DISCOVERY_S)
        self._check_surroundings()
        compliance, limits = config.compliance, config.motion.limits
        self._ramp = WrenchRamp(compliance.target_wrench)
        self._commander = ArmCommander(node, prefix, profile, limits, bool(compliance.wrench))
        self._others.own = 1
        self._controller = ControllerWatch(node, prefix, profile)
        Compliance(node, prefix, profile, lambda: self._guard.yields)
        self._state = node.publisher(state)
        self._serve()
        node.every(_FILE_S, self._keep_filed)
        node.every(_LOOK_S, self._look_about)
        Stats(node, f"guard {prefix or '/'}", self._numbers, self._health)
        node.handle.manage(deactivate=self._deactivate)

    def run(self, stopping: Callable[[], bool]) -> None:
        """Tick until `stopping` returns True; then brake, disarm and return.

        Raises:
            BadInput: as for the constructor: discovery of other nodes takes time.
        """
        self._node.begin_real_time(_ROUND_S)
        self._ticking.start()
        while not stopping():
            self._tick()
            if not self._was_armed and self._ticks % _LOOK_TICKS == 0:
                self._check_surroundings()
        with self._lock:
            self._guard.disarm()
        deadline_s = time.monotonic() + _LEAVE_S
        while self._guard.state is not GuardState.DISARMED and time.monotonic() < deadline_s:
            self._tick()
        self._keep_filed()

    def _tick(self) -> None:
        guard, now_s = self._guard, time.monotonic()
        with self._lock:
            setpoint, measured = guard.tick(now_s), guard.measured.fresh_pose(now_s)
            state, cause, opening, pace = guard.state, guard.cause, guard.opening, guard.pace
            exerts, trajectory = guard.exerts, guard.joint_move.trajectory
        wrench = self._ramp.advance(exerts and self._controller.has_start_gains)
        due, moving = self._ticks % _PUBLISH_TICKS == 0, state in MOVING
        if setpoint is not None:
            self._commander.send(setpoint, measured, pace)
            self._commander.exert(wrench, due)
            if opening is not None and moving and (due or opening != self._opening):
                self._commander.grip(opening)
        elif self._sends:
            self._commander.end()
        if trajectory is not None:
            self._commander.move_joints(trajectory, self._config.joint_names)
        self._opening, self._sends = opening, setpoint is not None
        if due or (state, cause) != self._published:
            self._published = state, cause
            self._publish_state(state, cause)
        if due and setpoint is not None and (problem := self._commander.overdue_goal):
            with self._lock:
                guard.stop(problem)
        self._ticks += 1
        self._ticking.wait()

    def _publish_state(self, state: GuardState, cause: str) -> None:
        numbers = {"limits": self._config.digest, NOT_NOW: self._refusal(), **self._numbers()}
        self._state.publish(
            DiagnosticStatus(
                level=_level(state),
                name="guard",
                message=f"{state}: {cause}" if cause else str(state),
                values=[KeyValue(key=key, value=str(value)) for key, value in numbers.items()],
            )
        )

    def _health(self) -> Health:
        with self._lock:
            state, cause = self._guard.state, self._guard.cause
        return _level(state), f"{state}: {cause}" if cause else str(state)

    def _deactivate(self) -> None:
        """Brake and release the arm; it cannot be armed before the node is active again."""
        with self._lock:
            self._guard.disarm()

    def _numbers(self) -> dict[str, float]:
        with self._lock:
            counts = dict(self._guard.counts)
        late = float(self._ticking.overruns)
        unsigned = float(self._orders.refused)
        kept = {name: float(count) for name, count in counts.items()}
        return {"late ticks": late, "orders: not signed": unsigned, **kept}

    def _serve(self) -> None:
        guard = self._guard

        def estop() -> str:
            guard.estop("the service estop")
            return str(guard.state)

        def arm() -> str:
            if trouble := self._trouble_around():
                raise BadInput(f"not now: {trouble}")
            self._commander.begin()
            armed = guard.arm(time.monotonic())
            self._was_armed = True
            return armed

        place = f"{self._prefix}/guard"
        for name, act in {"estop": estop, "disarm": guard.disarm}.items():
            serve(self._node, f"{place}/{name}", self._filed_act(act))
        signed: dict[str, Callable[[], str]] = {
            "ack": lambda: guard.ack(time.monotonic()),
            "reset": lambda: guard.reset(time.monotonic()),
            "arm": arm,
        }
        filed = {name: self._filed_act(act) for name, act in signed.items()}
        serve_signed(self._node, place, filed, self._orders)

    def _trouble_around(self) -> str:
        """Return why the arm must not be taken, apart from its measurements; empty for none."""
        if not self._node.handle.active:
            return "the guard's node is not active"
        if self._node.timeless:
            return self._node.timeless
        left = "" if self._was_armed else self._controller.left_soft
        return (
            self._others.report
            or self._controller.trouble
            or left
            or self._commander.missing_subscriber
        )

    def _refusal(self) -> str:
        """Return why `ack`, `reset` or `arm` would be refused now; empty if accepted."""
        with self._lock:
            state, trouble = self._guard.state, self._guard.refusal(time.monotonic())
        if state is GuardState.DISARMED:
            trouble = trouble or self._trouble_around()
        return self._with_topic(trouble)

    def _filed_act(self, act: Callable[[], str]) -> Callable[[], str]:
        """Return a service's action that answers once its effect on the latch is on the disk."""

        def answer() -> str:
            try:
                with self._lock:
                    text = act()
            except SerlError as error:
                raise SerlError(self._with_topic(str(error))) from None
            if problem := self._file_latch():
                raise SerlError(f"{text}; {problem}")
            return text

        return answer

    def _keep_filed(self) -> None:
        self._file_latch()

    def _file_latch(self) -> str:
        """Write a changed latch to the disk; on an error stop the arm and return the reason.

        Called again until the write succeeds: a stop must not be lost in a restart.
        """
        with self._filing:
            with self._lock:
                latch = self._guard.latch
            if latch == self._filed:
                return ""
            try:
                self._file.write(latch)
                self._filed, self._unfiled = latch, ""
                return ""
            except OSError as error:
                problem = f"the latch cannot be written: {error.strerror}"
            if problem != self._unfiled:
                logger.error(problem)
            self._unfiled = problem
            with self._lock:
                if latch.state is not GuardState.ESTOP:
                    self._guard.estop(problem)
            return problem

    def _check_surroundings(self) -> None:
        """Raise `BadInput` for competing publishers or a wrong frame, until the arm is armed."""
        trouble = self._others.named_report(lambda: self._was_armed)
        with self._lock:
            if self._guard.counts["pose: frame"]:
                trouble = self._guard.measured.trouble(time.monotonic())
            refused = bool(trouble) and not self._was_armed
        if refused:  # an arm that is armed meanwhile is stopped instead
            raise BadInput(self._with_topic(f"the guard does not start: {trouble}"))

    def _with_topic(self, text: str) -> str:
        """Return a message about a measurement with the name of its topic added."""
        profile = self._profile
        topics = {"pose": profile.pose, "joints": profile.joint_states, "wrench": profile.wrench}
        firsts = (part.partition(" ")[0] for part in text.split(": "))
        channel = next((topics[first] for first in firsts if first in topics), None)
        return f"{text} ({name_of(channel, self._prefix)})" if channel else text

    def _look_about(self) -> None:
        """Stop when other nodes command the arm, or when its controller's parameters changed.

        Hold when several nodes send commands to the guard.
        """
        self._inbox.check()
        guard, others = self._guard, self._others.report
        commanders = self._commanders.check(guard.lease.since_s)
        trouble = others or self._controller.changed
        with self._lock:
            if guard.measured.fresh_pose(time.monotonic()) is None:
                self._controller.forget()  # it may be another one afterwards
            guard.lease.others = commanders
            guard.joint_move.unheard = self._commander.unheard_trajectory
            if guard.state is GuardState.DISARMED or not trouble:
                return
            guard.stop(trouble)
            if guard.state is GuardState.PROTECTIVE_STOP and others.startswith(guard.cause):
                guard.cause = others  # their names may be known only now


def _level(state: GuardState) -> bytes:
    if state in LATCHED:
        return bytes(DiagnosticStatus.ERROR)
    moves = state in MOVING or state is GuardState.JOINTS
    return bytes(DiagnosticStatus.OK if moves else DiagnosticStatus.WARN)


def describe(config: GuardConfig) -> dict[str, DescribedParameter]:
    """Return the node's parameters that show the guard's limits, as set in its file."""
    limits, motion = config.motion.limits, config.motion
    return {
        USE_SIM_TIME_NAME: DescribedParameter(False, "take the time from /clock"),
        "limits": DescribedParameter(config.digest, "digest of all limits"),
        "frame": DescribedParameter(config.frame, "frame of all poses"),
        "speed_m_s": DescribedParameter(limits.speed_m_s, "top speed of the tool in m/s"),
        "angular_speed_rad_s": DescribedParameter(
            limits.angular_speed_rad_s, "top angular speed of the tool in rad/s"
        ),
        "lead_m": DescribedParameter(
            limits.lead_m, "largest distance of a target from the tool, in m"
        ),
        "box_low_m": DescribedParameter(
            list(motion.box_low_m), "lower corner of the tool's box, in m"
        ),
        "box_high_m": DescribedParameter(
            list(motion.box_high_m), "upper corner of the tool's box, in m"
        ),
    }


def run(folder: Path, robot: str, arm: str, settings: Path, latch: Path) -> None:
    """Guard an arm until asked to stop."""
    profile = load_robot(arm)
    config = checked(GuardConfig, read_yaml(settings))
    profile = profile.with_compliance(config.compliance)
    make_folder(latch.parent)
    own = robot.startswith("/")  # a namespace from the root, "/" for the root itself
    prefix = robot.rstrip("/") if own else "/".join(filter(None, (namespace(folder), robot)))
    with (
        FileLock(latch.with_name(f"{latch.name}.lock"), "the arm of this latch"),
        RosNode(
            guard_name(robot), folder, local=True, parameters=describe(config), managed=True
        ) as node,
    ):
        sys.setswitchinterval(1e-3)  # longest delay of a tick by a callback
        orders = OrderCheck(key_path(latch))
        guard = GuardNode(node, prefix, profile, config, LatchFile(latch), orders)
        print(f"serl guard of {prefix or '/'}, {profile.summary}: {NOTICE}")  # noqa: T201
        travel = f"a fault moves the arm by at most {100 * config.worst_travel_m:.1f} cm"
        print(f"limits {config.digest}; {travel} at full speed")  # noqa: T201
        print(f"after a contact: {profile.after_contact}", flush=True)  # noqa: T201
        guard.run(lambda: node.stopping or is_orphaned())


def schedule(priority: int) -> None:
    """Give this thread real-time priority, ahead of the host's other threads without one."""
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(priority))
    except OSError as error:
        raise BadInput(f"--fifo {priority}: {error.strerror}") from None


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the process; the exit code is 2 on bad input, with the reason in one line."""
    parser = argparse.ArgumentParser(prog="python -m serl.ros.nodes.guard", description=__doc__)
    parser.add_argument("--run", type=Path, required=True, help="folder of the run")
    parser.add_argument("--robot", default="", help="the arm's namespace, within the run")
    parser.add_argument(
        "--arm", default="sim", help="profile: a known name, or a .py or .yaml file"
    )
    parser.add_argument("--config", type=Path, required=True, help="YAML of a GuardConfig")
    parser.add_argument("--latch", type=Path, required=True, help="file of the arm's latch")
    parser.add_argument("--fifo", type=int, help="real-time priority, 1 to 99")
    options = parser.parse_args(own_arguments(arguments))

    def guard() -> None:
        if options.fifo is not None:
            schedule(options.fifo)
        run(options.run, options.robot, options.arm, options.config, options.latch)

    return run_node(guard)


if __name__ == "__main__":
    sys.exit(main())
