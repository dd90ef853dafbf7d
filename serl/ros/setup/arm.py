"""An arm on its first day: looked at, moved slowly through a guard of its own, and let go."""

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
from types import TracebackType
from typing import Any, Self

import numpy as np
from std_msgs.msg import Bool

from serl.arm_profile import ArmProfile
from serl.clock import WallClock
from serl.errors import SerlError, Silent
from serl.geometry import Vector, add, subtract
from serl.guard.config import LATCHED, GuardConfig, GuardState
from serl.motion import Limits, Motion, Pose, Target
from serl.ros.arm.guard_client import GuardClient, GuardReport
from serl.ros.arm.guard_topics import ESTOP
from serl.ros.arm.robot import Mode, RosArm
from serl.ros.arm.topics import of_robot
from serl.ros.environment import environment
from serl.ros.node import RosNode
from serl.ros.setup.checks import Asker, StepFailed, agreed
from serl.runs.guard_setup import ArmNamespace, guard_arguments, guard_of
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
    """A context manager; its guard's process ends with it.

    Args:
        node: the process's node.
        place: the arm's namespace.
        profile: as far as it is known.
        folder: of the node, for what the guard reads and says.
        latch: file of the arm's latch.
        asker: who is asked before a stop is ended.

    Attributes:
        driver: commands the guard.
        guard: hears it.
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
        self._button = node.publisher(of_robot(ESTOP, place.robot))
        self._process: subprocess.Popen[bytes] | None = None
        self._config: GuardConfig | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.let_go()

    def measured(self) -> Pose:
        """Where the tool is, in a fresh reading."""
        return self.pose_in(self.reading())

    def reading(self, unless_stopped: bool = False) -> Observation:
        """A fresh reading; late ones are waited for, and spoil nothing that follows.

        Raises:
            Silent: there is none for long, or when asked so, as soon as the guard has stopped an
                arm that is silent.
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
        """The guard says that it has stopped the arm."""
        standing = self.guard.standing
        return standing is not None and standing.state in LATCHED

    def guarded(self, limits: GuardConfig | None = None) -> None:
        """Have a guard hold the arm, ready to be moved slowly.

        Args:
            limits: of the guard; by default those of the taught workspace, or of a small box
                about the tool before there is one.

        Raises:
            SerlError: the guard refuses, or the person does not end a stop.
        """
        config = limits or self.limits()
        if self._process is None or self._process.poll() is not None or config != self._config:
            self.let_go()
            self._start(config)
        self.take()

    def limits(self) -> GuardConfig:
        """Those of the workspace, slow; before it was taught those of a small box here."""
        if self.profile.workspace is not None:
            return guard_of(self.profile, _SLOW)
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
        return guard_of(self.profile.model_copy(update={"workspace": small}), _SLOW)

    def take(self) -> None:
        """Have the guard take the arm; a stop is ended by the person alone.

        Raises:
            StepFailed: the person does not end it, or the guard refuses for long.
        """
        deadline_s, problem = time.monotonic() + _TAKE_S, ""
        while True:
            state, cause, _ = self.standing()
            if state in LATCHED and not problem:
                question = f"the guard holds the arm ({state}: {cause}). Is it safe to go on?"
                if not agreed(self._asker, "guard.release", question):
                    raise StepFailed(f"the arm stays stopped: {state}: {cause}")
                deadline_s = time.monotonic() + _TAKE_S
            elif state not in LATCHED and state is not GuardState.DISARMED:
                return
            problem = self._end(state)
            if time.monotonic() > deadline_s:
                raise StepFailed(f"the guard does not take the arm: {problem or state}")
            self._await_change(state, _RETRY_S if problem else _CHANGE_S)

    def _await_change(self, state: GuardState, limit_s: float) -> None:
        self.driver.remote.wait(lambda: self.standing()[0] is not state, limit_s)

    def _end(self, state: GuardState) -> str:
        """Call what ends a state; why it was refused, empty if it was not."""
        words = {GuardState.DISARMED: ("arm",), GuardState.ESTOP: ("ack", "reset")}
        try:
            for word in words.get(state, ("ack",)):
                self.call(word)
        except SerlError as error:
            return str(error)
        return ""

    def call(self, service: str) -> str:
        """Give the guard an order; raises `SerlError` when it refuses."""
        name = f"{self.place.robot}/guard/{service}"
        return self.driver.remote.order(name, key_path(self._latch))

    def standing(self) -> GuardReport:
        """What the guard says."""
        said: list[GuardReport] = []

        def hears() -> bool:
            said.extend(filter(None, [self.guard.standing]))
            return bool(said)

        if not self.driver.remote.wait(hears, _GUARD_S):
            raise StepFailed(f"the guard says nothing: {self._last_words()}")
        return said[-1]

    def press(self) -> None:
        """Stop the arm by the topic `estop`, again and again until the guard says so.

        Raises:
            StepFailed: it does not.
        """

        def stopped() -> bool:
            self._button.publish(Bool(data=True))
            standing = self.guard.standing
            return standing is not None and standing.state is GuardState.ESTOP

        if not self.driver.remote.wait(stopped, _PRESS_S):
            raise StepFailed("the guard does not hear the stop: use the arm's own")

    def drive(
        self, mode: Mode, moved: Callable[[Pose], Action | None], stops: bool = False
    ) -> None:
        """Act at 20 Hz with what `moved` says of the measured pose, until it says None.

        Args:
            mode: in whose name.
            moved: called in each period; it may change the driver's mode.
            stops: a stop of the guard is what is waited for, and ends this.

        Raises:
            StepFailed: the guard stopped the arm.
        """
        driver, clock = self.driver, WallClock(RATE_HZ, self.driver.beat)
        self._begin()
        driver.mode = mode
        try:
            while not self.node.stopping:
                state, cause, _ = self.standing()
                if state in LATCHED and stops:
                    return
                if state in LATCHED:
                    raise StepFailed(f"the guard stopped the arm: {state}: {cause}")
                try:
                    here = self.pose_in(self.reading(unless_stopped=True))
                except Silent:
                    if self.is_stopped:
                        continue
                    raise
                action = moved(here)
                if action is None:
                    return
                driver.act(action)
                clock.wait()
        finally:
            driver.mode = "hold"
            driver.beat()

    def move_to(
        self,
        goal: Vector,
        watch: Callable[[Vector], None] = lambda place: None,
        there_m: float = THERE_M,
    ) -> None:
        """Bring the tool to a place, at 5 cm/s; `watch` may raise on the way.

        Raises:
            StepFailed: it does not get nearer for 8 s.
        """
        nearest_m, since_s = math.inf, time.monotonic()

        def next_action(here: Pose) -> Action | None:
            nonlocal nearest_m, since_s
            watch(here.position)
            left_m = math.dist(goal, here.position)
            if left_m <= there_m:
                return None
            if left_m < nearest_m - _PROGRESS_M:
                nearest_m, since_s = left_m, time.monotonic()
            if time.monotonic() - since_s > _STUCK_S:
                state, cause, _ = self.standing()
                raise StepFailed(
                    f"the tool does not get nearer than {100 * nearest_m:.1f} cm to where it was "
                    f"sent; the guard says {state}{': ' if cause else ''}{cause}"
                )
            return self.towards(goal)

        self.drive("reset", next_action)

    def towards(self, goal: Vector) -> Action:
        """The action that brings the target nearer to a place."""
        way = np.array(subtract(goal, self.driver.aim.target.position)) / _STEP_M
        return np.clip(way, -1.0, 1.0).astype(np.float32)

    def is_still(self, over_s: float = 0.3) -> bool:
        """Whether the tool stands, as measured over some time."""
        first, until_s = self.measured().position, time.monotonic() + over_s
        while time.monotonic() < until_s:
            self.driver.remote.wait(lambda: False, 0.05)
            if math.dist(first, self.measured().position) > _STILL_M:
                return False
        return True

    def rest(self) -> Pose:
        """Where the tool stands, once it does.

        Raises:
            StepFailed: it does not.
        """
        if not self.driver.remote.wait(self.is_still, _STUCK_S):
            raise StepFailed("the tool does not come to rest")
        return self.measured()

    def restart_guard(self) -> None:
        """End the guard's process, and start it again with the same limits."""
        assert self._config is not None
        self.let_go()
        self._start(self._config)

    def let_go(self) -> None:
        """End the guard: it brakes, disarms and leaves; the arm holds by itself."""
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
        """Actions count from where the tool is."""
        reading = self.reading()
        assert self._config is not None
        motion = self._config.motion
        self.driver.aim = Target(_task(motion.box_low_m, motion.box_high_m).motion)
        self.driver.begin(self.pose_in(reading), bool(reading.state["gripper"][0] < 0.5))

    def pose_in(self, reading: Observation) -> Pose:
        """Where the tool is in a reading."""
        x, y, z, *quaternion = map(float, reading.state["tcp_pose"])
        qx, qy, qz, qw = quaternion
        return Pose((x, y, z), (qx, qy, qz, qw))

    def _start(self, config: GuardConfig) -> None:
        self._config = config
        self.guard.feed.forget()
        words = guard_arguments(self._folder, self.place, self.profile, config, self._latch)
        domain = int(os.environ["ROS_DOMAIN_ID"])
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "serl.ros.nodes.guard", *words],
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
            raise StepFailed(f"the guard does not start: {self._last_words()}")

    @property
    def _log(self) -> Path:
        return self._folder / "guard.log"

    def _last_words(self) -> str:
        lines = self._log.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"


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
