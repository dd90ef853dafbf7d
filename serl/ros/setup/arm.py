"""Access to an arm during commissioning: readings, and slow motion through a separate guard."""

from __future__ import annotations

import logging
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import numpy as np
from std_msgs.msg import Bool

from serl.arm_profile import ArmProfile
from serl.clock import WallClock
from serl.errors import SerlError, Silent
from serl.geometry import Vector, add, subtract
from serl.guard.config import LATCHED, GuardConfig, GuardState
from serl.motion import Limits, Motion, Pose, Target, pose_from
from serl.ros.arm.guard_client import GuardClient, GuardReport
from serl.ros.arm.guard_topics import ESTOP
from serl.ros.arm.robot import Mode, RosArm
from serl.ros.arm.topics import of_robot
from serl.ros.environment import environment
from serl.ros.node import RosNode
from serl.ros.setup.checks import Asker, StepFailed, ask_yes_no
from serl.runs.guard_setup import ArmNamespace, guard_arguments, workspace_guard
from serl.system.signed_order import key_path
from serl.task import TaskConfig
from serl.types import Action, Observation
from serl.workspace import Workspace

logger = logging.getLogger(__name__)

RATE_HZ = 20.0
SPEED_M_S = 0.05
AROUND_M = 0.06
THERE_M, _STEP_M = 0.004, SPEED_M_S / RATE_HZ
_SLOW = Limits(speed_m_s=SPEED_M_S, angular_speed_rad_s=0.25)
_FRESH_S, _GUARD_S, _TAKE_S, _LEAVE_S = 15.0, 30.0, 20.0, 5.0
_RETRY_S, _CHANGE_S, _PRESS_S = 0.2, 5.0, 5.0
_PROGRESS_M, _STUCK_S, _STILL_M = 0.0005, 8.0, 0.0015


class SetupArm:
    """A context manager for an arm under commissioning; leaving it ends its guard's process.

    Args:
        place: the arm's namespace.
        profile: the profile as far as it is known.
        folder: folder of the node, for the guard's settings and log.
        latch: file of the arm's latch.
        asker: asks the person before a stop is ended.

    Attributes:
        driver: commands the guard.
        guard: receives the guard's state.
        is_stop_requested: returns whether a person requests a stop at a device; called in each
            period of a motion, which ends with an emergency stop then.
    """

    def __init__(
        self,
        node: RosNode,
        place: ArmNamespace,
        profile: ArmProfile,
        folder: Path,
        latch: Path,
        asker: Asker,
    ) -> None:
        self.node, self.place, self.profile = node, place, profile
        self._folder, self._latch, self._asker = folder, latch, asker
        self.driver = RosArm(
            node, place.robot, profile, _task((-9.0,) * 3, (9.0,) * 3), lease="setup"
        )
        self.guard = GuardClient(node, place.robot, self.driver.remote)
        self.is_stop_requested: Callable[[], bool] = lambda: False
        self._button = node.publisher(of_robot(ESTOP, place.robot))
        self._process: subprocess.Popen[bytes] | None = None
        self._config: GuardConfig | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.end_guard()

    def measured(self) -> Pose:
        """Return the tool's pose in a fresh reading."""
        return pose_from(self.reading().state["tcp_pose"])

    def reading(self, unless_stopped: bool = False) -> Observation:
        """Return a fresh reading; wait for a late one.

        Args:
            unless_stopped: stop waiting as soon as the guard has stopped a silent arm.

        Raises:
            Silent: there is none within the limit, or the guard has stopped the arm.
        """
        found: list[Observation] = []

        def is_fresh() -> bool:
            try:
                self.driver.recover()
                found.append(self.driver.observe())
            except Silent:
                return False
            return True

        self.driver.remote.wait(
            lambda: is_fresh() or (unless_stopped and self.is_stopped), _FRESH_S
        )
        return found[-1] if found else self.driver.observe()

    @property
    def is_stopped(self) -> bool:
        """Whether the guard reports that it has stopped the arm."""
        report = self.guard.report
        return report is not None and report.state in LATCHED

    def guarded(self) -> None:
        """Have a guard hold the arm, ready for slow motion; start it if necessary.

        Raises:
            SerlError: the guard refuses, or the person does not end a stop.
        """
        config = self.limits()
        if self._process is None or self._process.poll() is not None or config != self._config:
            self.end_guard()
            self._start(config)
        self.take()

    def limits(self) -> GuardConfig:
        """Return slow limits with the taught workspace, or else a small box about the tool."""
        if self.profile.workspace is not None:
            return workspace_guard(self.profile, _SLOW)
        here = self.measured()
        if (
            self._config is not None
            and math.dist(here.position, _middle(self._config)) < 0.5 * AROUND_M
        ):
            return self._config
        room: Vector = (AROUND_M, AROUND_M, AROUND_M)
        small = Workspace(
            low_m=subtract(here.position, room),
            high_m=add(here.position, room),
            home_m=here.position,
            reference=here.quaternion,
        )
        return workspace_guard(self.profile.model_copy(update={"workspace": small}), _SLOW)

    def take(self) -> None:
        """Have the guard take the arm; only the person ends a stop.

        Raises:
            StepFailed: the person does not end the stop, or the guard refuses for long.
        """
        deadline_s, answered = time.monotonic() + _TAKE_S, ""
        while True:
            state, cause, _ = self.report()
            stop = f"{state}: {cause}" if state in LATCHED else ""
            if stop and stop != answered:
                question = f"the guard holds the arm ({state}: {cause}). Is it safe to continue?"
                if not ask_yes_no(self._asker, "guard.release", question):
                    raise StepFailed(f"the arm stays stopped: {state}: {cause}")
                deadline_s = time.monotonic() + _TAKE_S
            elif not stop and state is not GuardState.DISARMED:
                return
            answered, problem = stop, self._end(state)
            if time.monotonic() > deadline_s:
                raise StepFailed(f"the guard does not take the arm: {problem or state}")
            self._await_change(state, _RETRY_S if problem else _CHANGE_S)

    def _await_change(self, state: GuardState, limit_s: float) -> None:
        self.driver.remote.wait(lambda: self.report()[0] is not state, limit_s)

    def _end(self, state: GuardState) -> str:
        """Send the orders that end a state; returns the reason of a refusal, empty without one."""
        orders = {GuardState.DISARMED: ("arm",), GuardState.ESTOP: ("ack", "reset")}
        try:
            for order in orders.get(state, ("ack",)):
                self.call(order)
        except SerlError as error:
            return str(error)
        return ""

    def call(self, service: str) -> str:
        """Send the guard an order; raises `SerlError` when it refuses."""
        name = f"{self.place.robot}/guard/{service}"
        return self.driver.remote.order(name, key_path(self._latch))

    def report(self) -> GuardReport:
        """Return the guard's last report; raises `StepFailed` when none arrives."""
        reports: list[GuardReport] = []

        def reported() -> bool:
            reports.extend(filter(None, [self.guard.report]))
            return bool(reports)

        if not self.driver.remote.wait(reported, _GUARD_S):
            raise StepFailed(f"the guard is silent: {self._last_line()}")
        return reports[-1]

    def press(self) -> None:
        """Publish on the topic `estop` until the guard reports the emergency stop.

        Raises:
            StepFailed: the guard does not report it in time.
        """

        def stopped() -> bool:
            self._button.publish(Bool(data=True))
            report = self.guard.report
            return report is not None and report.state is GuardState.ESTOP

        if not self.driver.remote.wait(stopped, _PRESS_S):
            raise StepFailed("the guard does not receive the stop: use the arm's own")

    def drive(
        self, mode: Mode, next_action: Callable[[Pose], Action | None], stops: bool = False
    ) -> None:
        """Send actions at 20 Hz until `next_action` returns None; blocks.

        Args:
            mode: the driver's mode: the source of the actions.
            next_action: returns the action for the measured pose, once per period; it may change
                the driver's mode.
            stops: a stop of the guard is expected, and ends the motion without an error.

        Raises:
            StepFailed: the guard stopped the arm.
        """
        driver, clock = self.driver, WallClock(RATE_HZ, self.driver.beat)
        self._begin()
        driver.mode = mode
        try:
            while not self.node.stopping:
                state, cause, _ = self.report()
                if state in LATCHED and stops:
                    return
                if state in LATCHED:
                    raise StepFailed(f"the guard stopped the arm: {state}: {cause}")
                if self.is_stop_requested():
                    self.press()
                    continue
                try:
                    here = pose_from(self.reading(unless_stopped=True).state["tcp_pose"])
                except Silent:
                    if self.is_stopped:
                        continue
                    raise
                action = next_action(here)
                if action is None:
                    return
                driver.act(action)
                clock.wait()
        finally:
            driver.mode = "hold"
            driver.beat()

    def move_to(self, goal: Vector, watch: Callable[[Vector], None] = lambda place: None) -> None:
        """Move the tool to a position at 5 cm/s; `watch` is called with each measured position.

        `watch` ends the motion by an exception.

        Raises:
            StepFailed: the tool does not get nearer for 8 s.
        """
        nearest_m, since_s = math.inf, time.monotonic()

        def next_action(here: Pose) -> Action | None:
            nonlocal nearest_m, since_s
            watch(here.position)
            left_m = math.dist(goal, here.position)
            if left_m <= THERE_M:
                return None
            if left_m < nearest_m - _PROGRESS_M:
                nearest_m, since_s = left_m, time.monotonic()
            if time.monotonic() - since_s > _STUCK_S:
                state, cause, _ = self.report()
                raise StepFailed(
                    f"the tool does not get nearer than {100 * nearest_m:.1f} cm to its goal; "
                    f"the guard is in {state}{': ' if cause else ''}{cause}"
                )
            return self.towards(goal)

        self.drive("reset", next_action)

    def towards(self, goal: Vector) -> Action:
        """Return the action that brings the target nearer to a position."""
        way = np.array(subtract(goal, self.driver.aim.target.position)) / _STEP_M
        return np.clip(way, -1.0, 1.0).astype(np.float32)

    def is_still(self, over_s: float = 0.3) -> bool:
        """Check whether the tool stands still, measured over some time."""
        first, until_s = self.measured().position, time.monotonic() + over_s
        while time.monotonic() < until_s:
            self.driver.remote.wait(lambda: False, 0.05)
            if math.dist(first, self.measured().position) > _STILL_M:
                return False
        return True

    def rest(self) -> Pose:
        """Wait until the tool stands still, and return its pose.

        Raises:
            StepFailed: the tool does not come to rest.
        """
        if not self.driver.remote.wait(self.is_still, _STUCK_S):
            raise StepFailed("the tool does not come to rest")
        return self.measured()

    def restart_guard(self) -> None:
        """End the guard's process, and start it again with the same limits."""
        assert self._config is not None
        self.end_guard()
        self._start(self._config)

    def end_guard(self) -> None:
        """End the guard's process: it brakes and disarms first; the arm then holds by itself."""
        if self._process is None:
            return
        self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(_LEAVE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def _begin(self) -> None:
        """Make the measured pose the start of the actions' target."""
        reading = self.reading()
        assert self._config is not None
        motion = self._config.motion
        self.driver.aim = Target(_task(motion.box_low_m, motion.box_high_m).motion)
        self.driver.begin_from(reading)

    def _start(self, config: GuardConfig) -> None:
        self._config = config
        self.guard.feed.forget()
        arguments = guard_arguments(self._folder, self.place, self.profile, config, self._latch)
        domain = int(os.environ["ROS_DOMAIN_ID"])
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "serl.ros.nodes.guard", *arguments],
                env={**environment(domain, self._folder), "SERL_PARENT": str(os.getpid())},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        process = self._process
        self.driver.remote.wait(
            lambda: self.guard.feed.is_fresh or process.poll() is not None, _GUARD_S
        )
        if process.poll() is not None or not self.guard.feed.is_fresh:
            raise StepFailed(f"the guard does not start: {self._last_line()}")

    @property
    def _log(self) -> Path:
        return self._folder / "guard.log"

    def _last_line(self) -> str:
        lines = self._log.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it reports nothing"


def _task(low_m: Any, high_m: Any) -> TaskConfig:
    motion = Motion(
        axes=("x", "y", "z"),
        translation_m=_STEP_M,
        box_low_m=low_m,
        box_high_m=high_m,
        limits=_SLOW,
    )
    return TaskConfig(rate_hz=RATE_HZ, motion=motion)


def _middle(config: GuardConfig) -> Vector:
    both = add(config.motion.box_low_m, config.motion.box_high_m)
    return both[0] / 2, both[1] / 2, both[2] / 2
