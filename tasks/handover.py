"""One arm picks up a bar and hands it to another one, in the air."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from pydantic import Field, model_validator

from serl.bimanual import LEFT, RIGHT, PairConfig
from serl.camera import View
from serl.geometry import conjugate, rotate, wrap_angle
from serl.motion import Motion
from serl.policy import Policy
from serl.robot import Truth
from serl.specs import ArraySpec
from serl.task import Placement, Scene, ViewName
from serl.tasks.parts.arm_task import (
    BASES,
    PAIR_VIEWS,
    SIDES,
    TOWARDS_LEFT,
    ArmTask,
    Specs,
    State,
    Vector64,
    arm_spec,
    arm_state,
    gripper_motion,
    target,
)
from serl.tasks.parts.steering import CLOSE, DOWN, OPEN, about_z, quaternion_of, scalar, steer, yaw
from serl.tasks.parts.training_defaults import from_pixels, from_state_at_length
from serl.types import Action, Array, Observation, Outcome

_HALF_M = (0.10, 0.02, 0.02)  # of the bar
_GRIP_M = 0.065  # from its middle to the grasp of each hand
_MAX_FINGERS_M = 0.08
_MEETING_M = {LEFT: (0.55 - _GRIP_M, 0.0, 0.18), RIGHT: (0.55 + _GRIP_M, 0.0, 0.18)}

_BODIES = f"""
<camera name="field" pos="0.55 -0.80 0.50" xyaxes="1 0 0 0 0.40 0.916" fovy="44"/>
<geom type="box" pos="0.425 0 0" size="0.135 0.15 0.0005" rgba="0.62 0.76 0.80 1"
  contype="0" conaffinity="0"/>
<body name="bar">
  <freejoint/>
  <geom type="box" size="{_HALF_M[0]} {_HALF_M[1]} {_HALF_M[2]}" mass="0.08" condim="4"
    rgba="0.94 0.45 0.20 1"/>
</body>
"""
_FRONT = 'pos="0.55 -1.55 0.84" xyaxes="1 0 0 0 0.371 0.928"'


class HandoverConfig(PairConfig):
    """Settings of the handover task.

    Attributes:
        field_low_m: lowest x and y of the bar's middle at the start; the right arm cannot reach any
            part of the bar there.
        field_high_m: highest x and y.
        max_yaw_rad: largest yaw of the bar at the start, to either side.
        lift_m: height above its place on the table that the bar must exceed.
        clear_m: distance from the bar that the left tool must exceed.
        grip_m: largest distance of the right hand's grasp from its place, along the bar.
        level_rad: tilt that the bar must stay below.
        hold_steps: number of consecutive steps for which all of this must hold.
    """

    time_limit_s: float = Field(15.0, gt=0, le=86_400)
    motion: Motion = gripper_motion((0.30, -0.20, 0.015), (0.56, 0.20, 0.35), 0.8)
    right_motion: Motion = gripper_motion((0.58, -0.20, 0.015), (0.80, 0.20, 0.35), 0.8)
    views: dict[ViewName, View] = PAIR_VIEWS
    field_low_m: tuple[float, float] = (0.40, -0.08)
    field_high_m: tuple[float, float] = (0.45, 0.08)
    max_yaw_rad: float = Field(0.3, ge=0, le=math.pi)
    lift_m: float = Field(0.08, gt=0, le=1)
    clear_m: float = Field(0.07, gt=0, le=1)
    grip_m: float = Field(0.1, gt=0, le=0.1)
    level_rad: float = Field(math.pi, gt=0, le=math.pi)
    hold_steps: int = Field(5, ge=1, le=1000)
    hard: ClassVar[Mapping[str, Any]] = {"grip_m": 0.003, "level_rad": 0.03}

    @model_validator(mode="after")
    def _check_field(self) -> Self:
        if not all(a <= b for a, b in zip(self.field_low_m, self.field_high_m, strict=True)):
            raise ValueError(
                f"field_low_m {self.field_low_m} must not be above field_high_m {self.field_high_m}"
            )
        return self


class Handover(ArmTask):
    """Pick up a bar with the left arm, pass it to the right one, and let go.

    Both arms face each other. The right one cannot reach the bar at its start. The bar counts as
    handed over only if it was in both hands at once, in the air, not if it was dropped or pushed
    along the table.
    """

    name = "handover"
    config: HandoverConfig

    def __init__(self, config: HandoverConfig | None = None) -> None:
        made = config or HandoverConfig()
        super().__init__(made, made.hold_steps)
        self._passed = False

    def _specs(self) -> tuple[Specs, Specs]:
        position = ArraySpec(shape=(3,), unit="m, frame of both")
        arms: Specs = {}
        bar = {"passed": ArraySpec(shape=(1,), unit="1 once both have held the bar")}
        for side in SIDES:
            arms |= arm_spec(side, "meeting")
            bar[f"{side}to_bar"] = position
            bar[f"{side}bar_yaw"] = ArraySpec(shape=(1,), unit="rad from the tool's, modulo pi")
        return arms, bar

    @property
    def scene(self) -> Scene:
        """Two arms and a bar on the table."""
        return Scene(
            bodies=_BODIES,
            place=self._place,
            tracked=("bar",),
            front=_FRONT,
            robot="bimanual",
            bases=BASES,
        )

    def begin(self, reading: Observation) -> None:
        """Begin an episode: the bar has not been handed over."""
        super().begin(reading)
        self._passed = False

    def _arm_state(self, state: State) -> dict[str, Array]:
        arms: dict[str, Array] = {}
        for side in SIDES:
            arms |= arm_state(state, side, "meeting", np.array(_MEETING_M[side]))
        return arms

    def _scene_state(self, state: State) -> dict[str, Array]:
        bar = {"passed": scalar(float(self._passed))}
        for side in SIDES:
            tcp = state[f"{side}tcp_pose"][:3]
            bar[f"{side}to_bar"] = (_end(state["bar_pose"], side) - tcp).astype(np.float32)
            bar[f"{side}bar_yaw"] = scalar(_turn(state, side))
        return bar

    def outcome(self, reading: Observation, index: int) -> Outcome:
        """Return reward 1 and the end once the right arm alone holds the bar.

        The episode is truncated at the time limit.
        """
        state = reading.state
        both = _holds(state, RIGHT) and _holds(state, LEFT)
        self._passed |= both and self._is_up(state)
        return self._outcome(self._is_over(state), index)

    def is_success(self, truth: Truth) -> bool:
        """Return whether the bar was handed over and is up, in the right hand alone.

        The contacts must confirm the last condition.
        """
        alone = truth["right_bar_grasped"][0] > 0.5 and truth["left_bar_touched"][0] < 0.5
        return bool(alone) and self._is_over(truth)

    def progress(self, truth: Truth) -> float:
        """Return progress: 0.5 bringing the bar, 0.3 the right hand's grasp, 0.2 the release."""
        bar = truth["bar_pose"]
        left, right = (_away_m(truth, side) for side in SIDES)
        lifted = min(1.0, max(0.0, _height(bar) / self.config.lift_m))
        if truth["right_bar_grasped"][0] > 0.5 and lifted > 0.5:
            gone = min(1.0, _gap_m(truth) / self.config.clear_m)
            return 0.8 + 0.2 * gone * float(truth["left_gripper"][0])
        meeting = np.array(_MEETING_M[LEFT])
        carried = max(0.0, 1.0 - float(np.linalg.norm(_end(bar, LEFT) - meeting)) / 0.25)
        taken = float(truth["left_bar_grasped"][0])
        begun = 0.15 * max(0.0, 1.0 - left / 0.4) + 0.1 * taken
        brought = 0.25 * carried * (0.2 + 0.8 * lifted)
        return begun + brought + 0.2 * taken * lifted * max(0.0, 1.0 - right / 0.2)

    def expert(self, truth: Callable[[], Truth], seed: int) -> Policy:
        """Return a script for both arms, without memory."""
        return _Expert(truth, {LEFT: self.config.motion, RIGHT: self.config.right_motion}, seed)

    def training_defaults(self) -> Mapping[str, Any]:
        """Return tuned settings.

        They do not use `hybrid`, which does not clone gripper actions: none of 30 trials succeeded
        at any of five checkpoints.
        """
        if self.config.observe == "pixels":
            return from_pixels(20_000)
        return from_state_at_length(7_000)

    def _is_over(self, state: State) -> bool:
        """Return whether the bar was in both hands before, and is now up and in the right one."""
        right = _holds(state, RIGHT) and self._is_up(state) and self._is_clear(state)
        return self._passed and right and self._is_precise(state)

    def _is_precise(self, state: State) -> bool:
        """Return whether the right hand holds the bar where it should, and level."""
        off = abs(abs(_in_bar(state, RIGHT)[0]) - _GRIP_M)
        steep = rotate(quaternion_of(state["bar_pose"]), (1.0, 0.0, 0.0))[2]
        tilt_rad = math.asin(min(1.0, abs(steep)))  # of a bar that stands it may round to over 1
        return off < self.config.grip_m and tilt_rad < self.config.level_rad

    def _is_up(self, state: State) -> bool:
        return _height(state["bar_pose"]) > self.config.lift_m

    def _is_clear(self, state: State) -> bool:
        return _gap_m(state) > self.config.clear_m

    def _place(self, rng: np.random.Generator) -> Placement:
        x, y = rng.uniform(self.config.field_low_m, self.config.field_high_m)
        turned = rng.uniform(-self.config.max_yaw_rad, self.config.max_yaw_rad)
        bar = np.array((x, y, _HALF_M[2], *about_z(turned)))
        left = rng.uniform((0.34, -0.08), (0.44, 0.08))
        right = rng.uniform((0.66, -0.08), (0.74, 0.08))
        return Placement(
            tcp=np.array((*left, 0.20, *DOWN)),
            bodies={"bar": bar},
            right_tcp=np.array((*right, 0.28, *TOWARDS_LEFT)),
        )


class _Goal(NamedTuple):
    """Next motion of one arm: a shift and a turn of its target, and its gripper."""

    shift_m: Vector64
    turn_rad: float
    gripper: float


class _Expert:
    """Script for both arms that acts on the truth alone; it can continue from most states.

    The left arm picks the bar up and carries it to the meeting place; the right one waits above,
    comes down once the bar is there, and closes; the left one opens and goes up and back.
    """

    NOISE = 0.05
    HOVER_M = 0.065
    NEAR_M = 0.02
    AWAY_M = 0.10

    def __init__(
        self, truth: Callable[[], Truth], motions: Mapping[str, Motion], seed: int
    ) -> None:
        self._truth, self._motions = truth, motions
        self._rng = np.random.default_rng(seed)

    def __call__(self, observation: Observation) -> Action:
        """Return the next action, from the truth alone."""
        truth = self._truth()
        goals = {LEFT: self._left(truth), RIGHT: self._right(truth)}
        actions = []
        for side, goal in goals.items():
            motion = self._motions[side]
            noise = self._rng.normal(0.0, self.NOISE, len(motion.axes))
            actions.append(steer(motion, *goal, noise=noise))
        return np.concatenate(actions)

    def _left(self, truth: Truth) -> _Goal:
        if truth["right_bar_grasped"][0] > 0.5 and _holds(truth, RIGHT):
            return self._let_go(truth)
        if truth["left_bar_grasped"][0] > 0.5:
            goal = np.array(_MEETING_M[LEFT])
            straight = -wrap_angle(yaw(truth["left_target_pose"]), math.pi)
            return _Goal(goal - target(truth, LEFT), straight, CLOSE)
        return self._grasp(truth, LEFT)

    def _let_go(self, truth: Truth) -> _Goal:
        """Open, then go up and back, and wait there."""
        if truth["left_gripper"][0] < 0.9 or _gap_m(truth) > self.AWAY_M:
            return _Goal(np.zeros(3), 0.0, OPEN)
        return _Goal(np.array((-0.03, 0.0, 0.03)), 0.0, OPEN)

    def _right(self, truth: Truth) -> _Goal:
        if truth["right_bar_grasped"][0] > 0.5:
            return _Goal(np.zeros(3), 0.0, CLOSE)
        left = truth["left_tcp_pose"][:3] - np.array(_MEETING_M[LEFT])
        there = np.linalg.norm(left) < self.NEAR_M and truth["left_bar_grasped"][0] > 0.5
        if there:
            return self._grasp(truth, RIGHT)
        above = np.add(_MEETING_M[RIGHT], (0.04, 0.0, self.HOVER_M))
        return _Goal(above - target(truth, RIGHT), 0.0, OPEN)

    def _grasp(self, truth: Truth, side: str) -> _Goal:
        """Move over the end of the bar, turn, descend as the tool gets aligned, and close.

        If the gripper has closed on nothing, open it and start again.
        """
        tcp, current = truth[f"{side}tcp_pose"], target(truth, side)
        opening = float(truth[f"{side}gripper"][0])
        goal = _end(truth["bar_pose"], side)
        goal[2] = max(goal[2], self._motions[side].box_low_m[2])
        offset, turn = goal - tcp[:3], _turn(truth, side)
        off = math.hypot(offset[0], offset[1]) + 0.05 * abs(turn)
        turned = wrap_angle(yaw(truth["bar_pose"]) - yaw(truth[f"{side}target_pose"]), math.pi)
        if off < 0.010 and abs(offset[2]) < 0.010 and opening > 0.4:
            return _Goal(goal - current, turned, CLOSE)
        clear = min(1.0, max(0.0, (off - 0.006) / 0.012)) if opening > 0.9 else 1.0
        goal[2] += self.HOVER_M * clear
        return _Goal(goal - current, turned, OPEN)


def _end(pose: Array, side: str) -> Vector64:
    """Return the grasp point of the arm on this side.  # (3,)."""
    along = np.array(rotate(quaternion_of(pose), (_GRIP_M, 0.0, 0.0)))
    outward = math.copysign(1.0, along[0]) * (-1.0 if side == LEFT else 1.0)
    place: Vector64 = pose[:3] + outward * along
    return place


def _turn(state: State, side: str) -> float:
    """Return the angle from the tool's yaw to that of the bar, rad."""
    return wrap_angle(yaw(state["bar_pose"]) - yaw(state[f"{side}tcp_pose"]), math.pi)


def _away_m(state: State, side: str) -> float:
    """Return the distance from a tool to its grasp point on the bar, m."""
    return float(np.linalg.norm(_end(state["bar_pose"], side) - state[f"{side}tcp_pose"][:3]))


def _in_bar(state: State, side: str) -> tuple[float, float, float]:
    """Return the position of a tool in the bar's frame: along the bar, across it, and up."""
    bar = state["bar_pose"]
    x, y, z = (state[f"{side}tcp_pose"][:3] - bar[:3]).tolist()
    return rotate(conjugate(quaternion_of(bar)), (x, y, z))


def _gap_m(state: State) -> float:
    """Return the distance from the left tool to the axis of the bar, m."""
    along, across, up = _in_bar(state, LEFT)
    return math.hypot(max(0.0, abs(along) - _HALF_M[0]), across, up)


def _holds(state: State, side: str) -> bool:
    """Return whether the bar is between the fingers, and they are as far apart as it is wide."""
    along, across, up = _in_bar(state, side)
    width = float(state[f"{side}gripper"][0]) * _MAX_FINGERS_M
    between = abs(along) < _HALF_M[0] and max(abs(across), abs(up)) < _HALF_M[1]
    return between and abs(width - 2.0 * _HALF_M[1]) < 0.006


def _height(pose: Array) -> float:
    """Return the height of the bar above its place on the table, m."""
    return float(pose[2]) - _HALF_M[2]


task = Handover
