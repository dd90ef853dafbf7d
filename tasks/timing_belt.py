"""Two arms stretch a belt, lay it over two pulleys, and let go."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np
from pydantic import Field

from serl.bimanual import LEFT, RIGHT, PairConfig
from serl.camera import View
from serl.motion import Motion
from serl.policy import Policy
from serl.robot import Truth
from serl.specs import ArraySpec
from serl.task import Lengths, Placement, Scene, ViewName
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
from serl.tasks.parts.belt import (
    FIRST,
    HALF_THICK_M,
    HALF_WIDE_M,
    HELD_M,
    LINKS,
    belt_mjcf,
    end,
    links,
    turns,
)
from serl.tasks.parts.steering import CLOSE, DOWN, OPEN, about_z, scalar, steer, yaw
from serl.tasks.parts.training_defaults import from_pixels, from_state_at_length
from serl.types import Action, Array, Observation

_OUTWARD = {LEFT: 1.0, RIGHT: -1.0}  # along y of the pulleys

_GRIP_M = 0.012  # of the tool above the belt's middle: fingers stay above the pulleys
_LAID_M = 0.0135  # height of the belt's middle where it is let go

_AXIS_M = 0.10  # from the middle between the pulleys to the axis of each
_RADIUS_M, _RIM_M, _DOME_M = 0.030, 0.010, 0.006
# Of the tensioner, outwards: a belt that is laid 1.5 mm off goes on, one 3 mm off does not.
_REACH_M = 0.012
_TENSION_N, _TENSION_N_M = 5.0, 200.0  # of its spring: at its end, and for each metre inwards
_BELOW_M = 0.002  # least distance of the belt's lower edge below the rim

_FRONT = 'pos="0.95 -0.55 0.49" xyaxes="0.809 0.587 0 -0.321 0.442 0.837"'


class TimingBeltConfig(PairConfig):
    """Settings of the timing belt task.

    Attributes:
        spread_m: largest distance of the pulleys' middle from (0.55, 0), along x and y.
        turned_rad: largest rotation of the pulleys.
        aside_m: largest distance of the belt's start from the pulleys' middle, along x and y.
        height_m: lowest and highest start of the tools.
        up_m: height that both tools must exceed at the end.
        tensioner: the right pulley is 12 mm farther out, on a spring that keeps the belt tight and
            yields to it; the ends of the belt may then be 1.5 mm off their places, not 7.
        hold_steps: number of consecutive steps for which the belt must be around both pulleys, with
            both tools up.
    """

    time_limit_s: float = Field(10.0, gt=0, le=86_400)
    motion: Motion = gripper_motion((0.45, 0.06, 0.015), (0.65, 0.20, 0.22))
    right_motion: Motion = gripper_motion((0.45, -0.20, 0.015), (0.65, -0.06, 0.22))
    views: dict[ViewName, View] = PAIR_VIEWS
    spread_m: float = Field(0.02, ge=0, le=0.03)
    turned_rad: float = Field(0.08, ge=0, le=0.2)
    aside_m: float = Field(0.02, ge=0, le=0.03)
    height_m: Lengths = (0.09, 0.13)
    up_m: float = Field(0.07, gt=0, le=1)
    tensioner: bool = False
    hold_steps: int = Field(3, ge=1, le=1000)
    hard: ClassVar[Mapping[str, Any]] = {"tensioner": True}


class TimingBelt(ArmTask):
    """Two arms hold a belt: lay it around both pulleys, let go, and go up.

    The relaxed belt is round, and must be stretched to go around both pulleys. A belt on top of a
    pulley, or around only one, does not count.

    This is not HIL-SERL's belt assembly, and results of the two cannot be compared. The belt is a
    closed loop of rigid links. Both ends of the loop may be 7 mm off their places on the pulleys.
    There is no tensioner unless `tensioner` is set, as in the preset "hard".
    """

    name = "timing_belt"
    config: TimingBeltConfig

    def __init__(self, config: TimingBeltConfig | None = None) -> None:
        made = config or TimingBeltConfig()
        super().__init__(made, made.hold_steps)

    def _specs(self) -> tuple[Specs, Specs]:
        position = ArraySpec(shape=(3,), unit="m, frame of both")
        arms: Specs = {}
        belt = {}
        for side in SIDES:
            arms |= arm_spec(side, "pulley")
            belt[f"{side}end_from_tcp"] = position
            belt[f"{side}end_from_pulley"] = position
            belt[f"{side}around"] = ArraySpec(shape=(1,), unit="turns about the pulley's axis")
        return arms, belt

    @property
    def scene(self) -> Scene:
        """Two arms that hold a belt, and two pulleys; each link of the belt is tracked."""
        fixed = ("pulleys", "tensioner") if self.config.tensioner else ("pulleys",)
        return Scene(
            bodies=_bodies(self.config.tensioner),
            place=self._place,
            tracked=(*fixed, *(f"belt{index}" for index in range(LINKS))),
            extra=_CLOSED,
            front=_FRONT,
            robot="bimanual",
            bases=BASES,
        )

    def _arm_state(self, state: State) -> dict[str, Array]:
        arms: dict[str, Array] = {}
        for side in SIDES:
            arms |= arm_state(state, side, "pulley", pulley(state, side))
        return arms

    def _scene_state(self, state: State) -> dict[str, Array]:
        belt, begins = {}, links(state)
        for side in SIDES:
            tcp, axis = state[f"{side}tcp_pose"][:3], pulley(state, side)
            place = end(begins, _OUTWARD[side])
            belt[f"{side}end_from_tcp"] = (place - tcp).astype(np.float32)
            belt[f"{side}end_from_pulley"] = (place - axis).astype(np.float32)
            belt[f"{side}around"] = scalar(turns(begins, axis))
        return belt

    def is_success(self, truth: Truth) -> bool:
        """Return whether the belt is around both pulleys, and both hands are open and above."""
        return is_on(truth) and all(
            truth[f"{side}gripper"][0] > 0.9 and truth[f"{side}tcp_pose"][2] > self.config.up_m
            for side in SIDES
        )

    def progress(self, truth: Truth) -> float:
        """Return progress: each end gives 0.2 over its pulley, and 0.15 for lowering it.

        With the belt on both pulleys it is 0.8, and 0.1 more for each hand that goes up.
        """
        if is_on(truth):
            return 0.8 + sum(0.1 * self._gone(truth, side) for side in SIDES)
        done, begins = 0.0, links(truth)
        for side in SIDES:
            x, y, z = (end(begins, _OUTWARD[side]) - _goal(truth, side)).tolist()
            near = max(0.0, 1.0 - math.hypot(x, y) / 0.15)
            low = max(0.0, 1.0 - max(0.0, z) / 0.12) * max(0.0, 1.0 - math.hypot(x, y) / 0.03)
            done += 0.2 * near + 0.15 * low
        return done

    def expert(self, truth: Callable[[], Truth], seed: int) -> Policy:
        """Return a script for both arms, without memory."""
        motions = {LEFT: self.config.motion, RIGHT: self.config.right_motion}
        return _Expert(truth, motions, seed, loose=not self.config.tensioner)

    def training_defaults(self) -> Mapping[str, Any]:
        """Return tuned settings, with less exploration noise than usual.

        Both ends must be within 7 mm of their places, and the usual noise is 4 to 8 mm a step:
        with it none of 16 training episodes without a human succeeded, with less noise 60 of 83.
        """
        if self.config.observe == "pixels":
            return from_pixels(20_000)
        return from_state_at_length(5_000, temperature=0.001, target_entropy=-8.0)

    def _gone(self, truth: Truth, side: str) -> float:
        up = (float(truth[f"{side}tcp_pose"][2]) - 0.03) / (self.config.up_m - 0.03)
        return min(1.0, max(0.0, up)) * float(truth[f"{side}gripper"][0])

    def _place(self, rng: np.random.Generator) -> Placement:
        spread, aside = self.config.spread_m, self.config.aside_m
        middle = np.array((0.55, 0.0)) + rng.uniform(-spread, spread, 2)
        turned = rng.uniform(-self.config.turned_rad, self.config.turned_rad)
        x, y = middle + rng.uniform(-aside, aside, 2)
        z = rng.uniform(*self.config.height_m)
        first = (x + FIRST[0], y + FIRST[1], z - _GRIP_M)
        return Placement(
            tcp=np.array((x, y + HELD_M, z, *DOWN)),
            bodies={
                "pulleys": np.array((*middle, 0.0, *about_z(turned))),
                "belt0": np.array((*first, *about_z(FIRST[2]))),
            },
            held_m=2.0 * HALF_THICK_M,
            right_tcp=np.array((x, y - HELD_M, z, *TOWARDS_LEFT)),
            right_held_m=2.0 * HALF_THICK_M,
        )


def pulley(state: State, side: str) -> Vector64:
    """Return the middle of a pulley at its rim.  # (3,)."""
    if side == RIGHT and "tensioner_pose" in state:
        axis: Vector64 = state["tensioner_pose"][:3] + np.array((0.0, 0.0, _RIM_M))
        return axis
    return _beside(state, _OUTWARD[side] * _AXIS_M, _RIM_M)


def is_on(state: State) -> bool:
    """Return whether the belt is below the rims, around both pulleys in the same direction."""
    begins = links(state)
    if begins[:, 2].max() - HALF_WIDE_M > _RIM_M - _BELOW_M:
        return False
    left, right = (turns(begins, pulley(state, side)) for side in SIDES)
    return left == right and abs(left) == 1


def _beside(state: State, along_m: float, height_m: float) -> Vector64:
    """Return a place on the line through both pulleys' axes.  # (3,)."""
    pose = state["pulleys_pose"]
    turned = yaw(pose)
    aside = (-along_m * math.sin(turned), along_m * math.cos(turned), height_m)
    place: Vector64 = pose[:3].astype(np.float64) + np.array(aside)
    return place


def _goal(state: State, side: str) -> Vector64:
    """Return the place of the belt's end for its release.  # (3,)."""
    aside = -0.5 * _REACH_M if "tensioner_pose" in state else 0.0
    return _beside(state, _OUTWARD[side] * HELD_M + aside, _LAID_M)


class _Goal(NamedTuple):
    """Next motion of one arm: a shift of its target, and its gripper."""

    shift_m: Vector64
    gripper: float


class _Expert:
    """Script for both arms that acts on the truth alone; it can continue from most states.

    The arms stretch the belt above the pulleys, lower it together, open, and go up. An arm that has
    lost the belt grasps it again, at the point farthest out on its side; the other arm brings the
    belt there.
    """

    NOISE = 0.05
    LOW_M, TRAVEL_M, UP_M, HOVER_M, ASIDE_M = 0.026, 0.06, 0.12, 0.05, 0.02
    ROUND_M = 0.115  # from the middle to a hand that holds the belt alone

    def __init__(
        self, truth: Callable[[], Truth], motions: Mapping[str, Motion], seed: int, loose: bool
    ) -> None:
        self._truth, self._motions, self._loose = truth, motions, loose
        self._rng = np.random.default_rng(seed)

    def __call__(self, observation: Observation) -> Action:
        """Return the next action, from the truth alone."""
        truth = self._truth()
        actions = []
        for side, (shift, gripper) in self._goals(truth).items():
            motion, share = self._motions[side], 1.0 if self._loose else 0.2
            noise = self._rng.normal(0.0, share * self.NOISE, len(motion.axes))
            actions.append(steer(motion, shift, gripper=gripper, noise=noise))
        return np.concatenate(actions)

    def _goals(self, truth: Truth) -> dict[str, _Goal]:
        if is_on(truth):
            return {side: self._let_go(truth, side) for side in SIDES}
        held = {side: _holds(truth, side) for side in SIDES}
        if all(held.values()):
            return self._lay(truth)
        return {
            side: self._bring(truth, side) if held[side] else self._grasp(truth, side)
            for side in held
        }

    def _lay(self, truth: Truth) -> dict[str, _Goal]:
        """Move over the pulleys, down, and open; up again if the belt came down beside them."""
        begins = links(truth)
        shifts = {side: _goal(truth, side) - end(begins, _OUTWARD[side]) for side in SIDES}
        off = max(math.hypot(*shift[:2]) for shift in shifts.values())
        heights = [float(truth[f"{side}tcp_pose"][2]) for side in shifts]
        # Near the pulleys, the tolerance is larger: a descent that has begun is completed.
        begun = min(heights) < self.TRAVEL_M - 0.015
        ready = off < ((0.007 if begun else 0.004) if self._loose else (0.003 if begun else 0.0012))
        done = ready and max(heights) < self.LOW_M + 0.004
        for side, shift in shifts.items():
            if not self._loose and _is_slow(truth, side):  # tension holds it off its target
                shift *= 0.6
            else:
                shift -= target(truth, side) - truth[f"{side}tcp_pose"][:3]
            shift[2] = (self.LOW_M if ready else self.TRAVEL_M) - target(truth, side)[2]
        return {side: _Goal(shift, OPEN if done else CLOSE) for side, shift in shifts.items()}

    def _let_go(self, truth: Truth, side: str) -> _Goal:
        """Open, then go up."""
        opened = truth[f"{side}gripper"][0] > 0.9
        up = self.UP_M - float(target(truth, side)[2]) if opened else 0.0
        return _Goal(np.array((0.0, 0.0, up)), OPEN)

    def _bring(self, truth: Truth, side: str) -> _Goal:
        """Hold the belt, which is round now, with its other end within reach of the other hand."""
        goal = _beside(truth, _OUTWARD[side] * self.ROUND_M, self.TRAVEL_M)
        return _Goal(goal - target(truth, side), CLOSE)

    def _grasp(self, truth: Truth, side: str) -> _Goal:
        """Approach the end of the belt from outside, as hands are large; descend once aligned."""
        tcp, current = truth[f"{side}tcp_pose"][:3], target(truth, side)
        opening = float(truth[f"{side}gripper"][0])
        goal = end(links(truth), _OUTWARD[side])
        goal[2] = max(goal[2] + _GRIP_M, self._motions[side].box_low_m[2])
        above = float(tcp[2] - goal[2])
        goal[1] += _OUTWARD[side] * self.ASIDE_M * min(1.0, max(0.0, (above - 0.02) / 0.03))
        off = math.hypot(*(goal - tcp)[:2])
        if off < 0.010 and abs(above) < 0.008 and opening > 0.2:
            return _Goal(goal - current, CLOSE)
        clear = min(1.0, max(0.0, (off - 0.006) / 0.012)) if opening > 0.9 else 1.0
        goal[2] += self.HOVER_M * clear
        return _Goal(goal - current, OPEN)


def _is_slow(truth: Truth, side: str) -> bool:
    return float(np.abs(truth[f"{side}tcp_twist"][:3]).max()) < 0.006


def _holds(truth: Truth, side: str) -> bool:
    return any(truth[f"{side}belt{index}_grasped"][0] > 0.5 for index in range(LINKS))


def _pulley(y_m: float) -> str:
    """Return the MJCF of a pulley: a cylinder, and a dome that guides the belt outwards."""
    return f"""
<geom type="cylinder" pos="0 {y_m} {0.5 * _RIM_M}" size="{_RADIUS_M} {0.5 * _RIM_M}"
  friction="0.3 0.005 0.0001" rgba="0.36 0.52 0.68 1"/>
<geom type="ellipsoid" pos="0 {y_m} {_RIM_M}" size="{_RADIUS_M} {_RADIUS_M} {_DOME_M}"
  friction="0.3 0.005 0.0001" rgba="0.62 0.76 0.80 1"/>
"""


_BELT, _CLOSED = belt_mjcf()


def _bodies(tensioner: bool) -> str:
    """Return the MJCF of the camera, the pulleys and the belt."""
    right = _pulley(-_AXIS_M)
    if tensioner:
        reference = _TENSION_N / _TENSION_N_M  # the joint is at 0 at its end, and grows inwards
        right = f"""
<body name="tensioner" pos="0 {-_AXIS_M - _REACH_M} 0">
  <joint type="slide" axis="0 1 0" range="0 {_REACH_M}" stiffness="{_TENSION_N_M}"
    springref="{-reference}" damping="2" armature="0.1"/>
  {_pulley(0.0)}
</body>"""
    return f"""
<camera name="field" {_FRONT} fovy="34"/>
<body name="pulleys" mocap="true">{_pulley(_AXIS_M)}{right}</body>
{_BELT}
"""


task = TimingBelt
