"""Two arms stretch a belt, lay it over two pulleys, and let go."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from pydantic import Field

from serl.camera import View, image_specs
from serl.pair import LEFT, RIGHT, PairConfig
from serl.policy import Policy
from serl.robot import Truth
from serl.rotations import Quaternion, from_rotation_vector
from serl.safety import Limits, Motion
from serl.specs import ArraySpec, ObservationSpec
from serl.task import Placement, Scene, ViewName
from serl.tasks.steering import CLOSE, DOWN, OPEN, scalar, steer, yaw
from serl.tasks.tuning import from_pixels, from_state
from serl.types import Action, Array, Observation, Outcome

_APART_M = 1.10
_TOWARDS_LEFT: Quaternion = (0.0, 1.0, 0.0, 0.0)  # as DOWN, of an arm that faces the base
_OUTWARD = {LEFT: 1.0, RIGHT: -1.0}  # along y of the pulleys

_LINKS = 24
_LENGTH_M = 0.66
_BELT_M = (0.003, 0.010)  # half its thickness and half its width, which is upright
_HELD_M = 0.142  # from the belt's middle to where each hand holds it
_GRIP_M = 0.012  # the tool is so far above the belt's middle: fingers stay above the pulleys
_STIFFNESS_NM, _DAMPING_NM_S = 0.05, 0.002  # of a joint, per rad and per rad/s

_AXIS_M = 0.10  # from the middle between the pulleys to the axis of each
_RADIUS_M, _RIM_M, _DOME_M = 0.030, 0.010, 0.006

State = Mapping[str, Array]
Vector64 = np.ndarray[Any, np.dtype[np.float64]]

_VIEWS = {
    "front": View(camera="field", width=64, height=64),
    "left_wrist": View(camera="left_wrist", width=64, height=64),
    "right_wrist": View(camera="right_wrist", width=64, height=64),
}
_FRONT = 'pos="0.55 -1.55 0.84" xyaxes="1 0 0 0 0.371 0.928"'


def _oval() -> Vector64:
    """Where links of the belt begin while both hands hold it, from its middle.  # (_LINKS, 2).

    An ellipse as long as the belt; the first link is across its end on the left, and so is the one
    in the middle of the list on the right.
    """
    turn = np.linspace(0.0, 2.0 * math.pi, 4001)
    low, high = 0.0, _HELD_M
    for _ in range(40):
        short = 0.5 * (low + high)
        path = np.stack((-short * np.sin(turn), _HELD_M * np.cos(turn)), axis=1)
        along = np.append(0.0, np.linalg.norm(np.diff(path, axis=0), axis=1).cumsum())
        low, high = (short, high) if along[-1] < _LENGTH_M else (low, short)
    begins = (np.arange(_LINKS) - 0.5) / _LINKS % 1.0 * along[-1]
    return np.stack([np.interp(begins, along, path[:, axis]) for axis in (0, 1)], axis=1)


_BEGINS_M = _oval()
_SPANS = np.roll(_BEGINS_M, -1, axis=0) - _BEGINS_M
_LINK_M = np.linalg.norm(_SPANS, axis=1)
_HEADINGS_RAD = np.arctan2(_SPANS[:, 1], _SPANS[:, 0])


def _motion(y_low_m: float, y_high_m: float) -> Motion:
    return Motion(
        axes=("x", "y", "z"),
        translation_m=0.015,
        box_low_m=(0.45, y_low_m, 0.015),
        box_high_m=(0.65, y_high_m, 0.22),
        gripper=True,
        gripper_interval_s=0.3,
        limits=Limits(lead_m=0.020),
    )


class TimingBeltConfig(PairConfig):
    """The task's numbers.

    Attributes:
        spread_m: the middle of the pulleys is up to this far from (0.55, 0), along x and y ...
        turned_rad: ... and they are turned by up to this.
        aside_m: the belt starts up to this far aside of it, along x and y.
        height_m: lowest and highest start of the tools.
        up_m: both tools must be higher than this at the end ...
        hold_steps: ... with the belt around both pulleys, for so many steps in a row.
    """

    time_limit_s: float = Field(12.0, gt=0)
    motion: Motion = _motion(0.06, 0.20)
    right_motion: Motion = _motion(-0.20, -0.06)
    views: dict[ViewName, View] = _VIEWS
    spread_m: float = Field(0.02, ge=0, le=0.03)
    turned_rad: float = Field(0.08, ge=0, le=0.2)
    aside_m: float = Field(0.02, ge=0, le=0.03)
    height_m: tuple[float, float] = (0.09, 0.13)
    up_m: float = Field(0.07, gt=0)
    hold_steps: int = Field(3, ge=1)


class TimingBelt:
    """Two arms hold a belt: lay it around both pulleys, let go, and go up.

    Left to itself the belt is round, and shorter than both pulleys together: one arm alone cannot
    lay it over them.
    """

    name = "timing_belt"

    def __init__(self, config: TimingBeltConfig | None = None) -> None:
        self.config = config or TimingBeltConfig()
        self._held = 0

    @cached_property
    def observation_spec(self) -> ObservationSpec:
        """Ten numbers of each arm, and seven a side of the belt or images."""
        position = ArraySpec(shape=(3,), unit="m, frame of both")
        arms, belt = {}, {}
        for side in (LEFT, RIGHT):
            arms[f"{side}from_pulley"] = position
            arms[f"{side}velocity"] = ArraySpec(shape=(3,), unit="m/s, frame of both")
            arms[f"{side}gripper"] = ArraySpec(shape=(1,), unit="opening, 0 to 1")
            arms[f"{side}lead"] = position
            belt[f"{side}end_from_tcp"] = position
            belt[f"{side}end_from_pulley"] = position
            belt[f"{side}around"] = ArraySpec(shape=(1,), unit="turns about the pulley's axis")
        if self.config.observe == "pixels":
            return ObservationSpec(state=arms, images=image_specs(self.config.policy_views))
        return ObservationSpec(state=arms | belt)

    @property
    def scene(self) -> Scene:
        """Two arms, a belt that both hold, and two pulleys; each link of the belt is tracked."""
        bases = {LEFT: (0.0, 0.0, 0.0, 0.0), RIGHT: (_APART_M, 0.0, 0.0, math.pi)}
        return Scene(
            bodies=_BODIES,
            place=self._place,
            tracked=("pulleys", *(f"belt{index}" for index in range(_LINKS))),
            extra=_CLOSED,
            front=_FRONT,
            robot="pair",
            bases=bases,
        )

    def begin(self, reading: Observation) -> None:
        """The belt is not on the pulleys yet."""
        self._held = 0

    def observation(self, reading: Observation) -> Observation:
        """What the policy sees of a reading."""
        state = reading.state
        arms, belt = {}, {}
        for side in (LEFT, RIGHT):
            tcp, axis = state[f"{side}tcp_pose"][:3], pulley(state, side)
            arms[f"{side}from_pulley"] = (tcp - axis).astype(np.float32)
            arms[f"{side}velocity"] = state[f"{side}tcp_twist"][:3]
            arms[f"{side}gripper"] = state[f"{side}gripper"]
            arms[f"{side}lead"] = state[f"{side}target_pose"][:3] - tcp
            end = _end(state, side)
            belt[f"{side}end_from_tcp"] = (end - tcp).astype(np.float32)
            belt[f"{side}end_from_pulley"] = (end - axis).astype(np.float32)
            belt[f"{side}around"] = scalar(turns(state, side))
        if self.config.observe == "pixels":
            return Observation(arms, self.config.policy_images(reading), reading.stamps)
        return Observation(arms | belt, stamps=reading.stamps)

    def outcome(self, reading: Observation, index: int) -> Outcome:
        """Reward 1 and the end once the belt stays around both pulleys by itself."""
        self._held = self._held + 1 if self.is_success(reading.state) else 0
        return self.config.outcome(self._held >= self.config.hold_steps, index)

    def reset(self, reading: Observation) -> Policy | None:
        """None: the simulation places everything."""
        return None

    def is_success(self, truth: Truth) -> bool:
        """The belt is around both pulleys, below their rims; both hands are open and above."""
        return is_on(truth) and all(
            truth[f"{side}gripper"][0] > 0.9 and truth[f"{side}tcp_pose"][2] > self.config.up_m
            for side in (LEFT, RIGHT)
        )

    def progress(self, truth: Truth) -> float:
        """0.3 for the belt over each pulley, 0.3 for lowering it, 0.1 for each hand that is up."""
        if is_on(truth):
            return 0.8 + sum(0.1 * self._gone(truth, side) for side in (LEFT, RIGHT))
        done = 0.0
        for side in (LEFT, RIGHT):
            x, y, z = (_end(truth, side) - _goal(truth, side)).tolist()
            near = max(0.0, 1.0 - math.hypot(x, y) / 0.15)
            low = max(0.0, 1.0 - max(0.0, z) / 0.12) * max(0.0, 1.0 - math.hypot(x, y) / 0.03)
            done += 0.2 * near + 0.15 * low
        return done

    def expert(self, truth: Callable[[], Truth], seed: int) -> Policy:
        """A script for both arms, without memory."""
        return _Expert(truth, {LEFT: self.config.motion, RIGHT: self.config.right_motion}, seed)

    def training_defaults(self) -> Mapping[str, Any]:
        """As for `handover`; not tuned further yet."""
        if self.config.observe == "pixels":
            return from_pixels(20_000)
        cloned = {"bc_warm_start": 1000, "bc_weight": 1.0, "bc_final_weight": 1.0}
        return from_state(7_000, required=None, **cloned) | {"learner": {"warm_up": 1000}}

    def _gone(self, truth: Truth, side: str) -> float:
        up = (float(truth[f"{side}tcp_pose"][2]) - 0.03) / (self.config.up_m - 0.03)
        return min(1.0, max(0.0, up)) * float(truth[f"{side}gripper"][0])

    def _place(self, rng: np.random.Generator) -> Placement:
        spread, aside = self.config.spread_m, self.config.aside_m
        middle = np.array((0.55, 0.0)) + rng.uniform(-spread, spread, 2)
        turned = rng.uniform(-self.config.turned_rad, self.config.turned_rad)
        x, y = middle + rng.uniform(-aside, aside, 2)
        z = rng.uniform(*self.config.height_m)
        first = (x + _BEGINS_M[0, 0], y + _BEGINS_M[0, 1], z - _GRIP_M)
        heading = from_rotation_vector((0.0, 0.0, float(_HEADINGS_RAD[0])))
        return Placement(
            tcp=np.array((x, y + _HELD_M, z, *DOWN)),
            bodies={
                "pulleys": np.array((*middle, 0.0, *from_rotation_vector((0.0, 0.0, turned)))),
                "belt0": np.array((*first, *heading)),
            },
            held_m=2.0 * _BELT_M[0],
            right_tcp=np.array((x, y - _HELD_M, z, *_TOWARDS_LEFT)),
            right_held_m=2.0 * _BELT_M[0],
        )


def links(state: State) -> Vector64:
    """Where the belt's links begin.  # (_LINKS, 3)."""
    return np.stack([state[f"belt{index}_pose"][:3] for index in range(_LINKS)]).astype(np.float64)


def pulley(state: State, side: str) -> Vector64:
    """The middle of a pulley at its rim.  # (3,)."""
    return _beside(state, _OUTWARD[side] * _AXIS_M, _RIM_M)


def turns(state: State, side: str) -> int:
    """How often the belt goes around the axis of a pulley; 0 beside it."""
    x, y, _ = (links(state) - pulley(state, side)).T
    angles = np.arctan2(y, x)
    steps = np.diff(np.append(angles, angles[0]))
    return abs(round(float(((steps + math.pi) % (2.0 * math.pi) - math.pi).sum() / (2 * math.pi))))


def is_on(state: State) -> bool:
    """The belt is around both pulleys, and all of its lower edge below their rims."""
    below = bool(links(state)[:, 2].max() - _BELT_M[1] < _RIM_M - 0.002)
    return below and turns(state, LEFT) == turns(state, RIGHT) == 1


def _beside(state: State, along_m: float, height_m: float) -> Vector64:
    """A place on the line through both axes.  # (3,)."""
    pose = state["pulleys_pose"]
    turned = yaw(pose)
    aside = (-along_m * math.sin(turned), along_m * math.cos(turned), height_m)
    place: Vector64 = pose[:3].astype(np.float64) + np.array(aside)
    return place


def _goal(state: State, side: str) -> Vector64:
    """Where the end of the belt has to be before it is let go.  # (3,)."""
    return _beside(state, _OUTWARD[side] * _HELD_M, 0.0135)


def _end(state: State, side: str) -> Vector64:
    """The middle of the link that is farthest out on a side.  # (3,)."""
    begins = links(state)
    middles = 0.5 * (begins + np.roll(begins, -1, axis=0))
    place: Vector64 = middles[(_OUTWARD[side] * middles[:, 1]).argmax()]
    return place


class _Goal(NamedTuple):
    """What one arm is to do next: a shift of its target, and its gripper."""

    shift_m: Vector64
    gripper: float


class _Expert:
    """Decides from the truth alone what both arms do next, so it can go on from most states.

    They stretch the belt above the pulleys, lower it together, open, and go up. Who has lost the
    belt takes it again, where it is farthest out on his side.
    """

    NOISE = 0.05
    LOW_M, TRAVEL_M, UP_M, HOVER_M = 0.026, 0.06, 0.12, 0.05

    def __init__(
        self, truth: Callable[[], Truth], motions: Mapping[str, Motion], seed: int
    ) -> None:
        self._truth, self._motions = truth, motions
        self._rng = np.random.default_rng(seed)

    def __call__(self, observation: Observation) -> Action:
        """The next action; needs only the truth."""
        truth = self._truth()
        goals = self._goals(truth)
        return np.concatenate(
            [
                steer(
                    self._motions[side],
                    *(goal.shift_m, 0.0, goal.gripper),
                    noise=self._rng.normal(0.0, self.NOISE, 3),
                )
                for side, goal in goals.items()
            ]
        )

    def _goals(self, truth: Truth) -> dict[str, _Goal]:
        if is_on(truth):
            return {side: self._let_go(truth, side) for side in (LEFT, RIGHT)}
        held = {side: _holds(truth, side) for side in (LEFT, RIGHT)}
        if all(held.values()):
            return self._lay(truth)
        return {
            side: self._wait(truth, side) if held[side] else self._grasp(truth, side)
            for side in held
        }

    def _lay(self, truth: Truth) -> dict[str, _Goal]:
        tools = {side: truth[f"{side}tcp_pose"][:3].astype(np.float64) for side in (LEFT, RIGHT)}
        goals = {side: _goal(truth, side) for side in (LEFT, RIGHT)}
        off = max(math.hypot(*(goals[side] - tools[side])[:2]) for side in goals)
        high = max(tool[2] for tool in tools.values())
        # The lower it is, the more it may be aside: what has begun is brought to its end.
        ready = off < 0.004 + 0.1 * max(0.0, self.TRAVEL_M - high)
        for goal in goals.values():
            goal[2] = self.LOW_M if ready else self.TRAVEL_M
        return {side: _Goal(goal - _target(truth, side), CLOSE) for side, goal in goals.items()}

    def _let_go(self, truth: Truth, side: str) -> _Goal:
        tcp = truth[f"{side}tcp_pose"][2]
        opened = truth[f"{side}gripper"][0] > 0.9
        up = self.UP_M - float(truth[f"{side}target_pose"][2]) if opened else 0.0
        del tcp
        return _Goal(np.array((0.0, 0.0, up)), OPEN)

    def _wait(self, truth: Truth, side: str) -> _Goal:
        return _Goal(np.zeros(3), CLOSE)

    def _grasp(self, truth: Truth, side: str) -> _Goal:
        """Over the end of the belt, descend as it gets aligned, close."""
        tcp, target = truth[f"{side}tcp_pose"][:3], _target(truth, side)
        opening = float(truth[f"{side}gripper"][0])
        goal = _end(truth, side)
        goal[2] = max(goal[2] + _GRIP_M, self._motions[side].box_low_m[2])
        offset = goal - tcp
        off = math.hypot(offset[0], offset[1])
        if off < 0.010 and abs(offset[2]) < 0.008 and opening > 0.2:
            return _Goal(goal - target, CLOSE)
        clear = min(1.0, max(0.0, (off - 0.006) / 0.012)) if opening > 0.9 else 1.0
        goal[2] += self.HOVER_M * clear
        return _Goal(goal - target, OPEN)


def _target(state: State, side: str) -> Vector64:
    return state[f"{side}target_pose"][:3].astype(np.float64)


def _holds(truth: Truth, side: str) -> bool:
    return any(truth[f"{side}belt{index}_grasped"][0] > 0.5 for index in range(_LINKS))


def _belt() -> tuple[str, str]:
    """Links with upright hinges, whose springs would make them a circle, and what closes them.

    A belt bends about its width only. The hinge that closes it is a constraint; its spring acts on
    the sum of all the others, which is as good.
    """
    bends = (np.roll(np.diff(np.append(_HEADINGS_RAD, _HEADINGS_RAD[0])), 1) + math.pi) % (
        2.0 * math.pi
    ) - math.pi
    rest = 2.0 * math.pi / _LINKS - bends
    inner = ""
    thick, wide = _BELT_M
    for index in reversed(range(_LINKS)):
        half = 0.5 * float(_LINK_M[index])
        bend = float(bends[index])
        place, joint = "", "<freejoint/>"
        if index:
            place = f'pos="{_LINK_M[index - 1]:.6f} 0 0" euler="0 0 {bend:.6f}"'
            joint = (
                f'<joint name="bend{index}" axis="0 0 1" stiffness="{_STIFFNESS_NM}"'
                f' damping="{_DAMPING_NM_S}" armature="1e-5" springref="{rest[index]:.6f}"'
                f' range="{-0.9 - bend:.6f} {1.5 - bend:.6f}"/>'
            )
        inner = (
            f'<body name="belt{index}" {place}>{joint}<geom type="box" pos="{half:.6f} 0 0"'
            f' size="{half:.6f} {thick} {wide}" mass="0.0025" condim="4" contype="8"'
            f' conaffinity="7" friction="0.6 0.005 0.0001" rgba="0.16 0.17 0.19 1"/>{inner}</body>'
        )
    joints = "".join(f'<joint joint="bend{i}" coef="1"/>' for i in range(1, _LINKS))
    closed = f"""
<equality>
  <connect body1="belt{_LINKS - 1}" body2="belt0" anchor="{_LINK_M[-1]:.6f} 0 0"/>
</equality>
<tendon><fixed name="closing" stiffness="{_STIFFNESS_NM}" damping="{_DAMPING_NM_S}"
  springlength="{rest[1:].sum():.6f}">{joints}</fixed></tendon>
"""
    return inner, closed


def _pulley(y_m: float) -> str:
    return f"""
<geom type="cylinder" pos="0 {y_m} {0.5 * _RIM_M}" size="{_RADIUS_M} {0.5 * _RIM_M}"
  friction="0.3 0.005 0.0001" rgba="0.36 0.52 0.68 1"/>
<geom type="ellipsoid" pos="0 {y_m} {_RIM_M}" size="{_RADIUS_M} {_RADIUS_M} {_DOME_M}"
  friction="0.3 0.005 0.0001" rgba="0.62 0.76 0.80 1"/>
"""


_CHAIN, _CLOSED = _belt()
_BODIES = f"""
<camera name="field" pos="0.55 -0.80 0.50" xyaxes="1 0 0 0 0.40 0.916" fovy="44"/>
<body name="pulleys" mocap="true">{_pulley(_AXIS_M)}{_pulley(-_AXIS_M)}</body>
{_CHAIN}
"""

task = TimingBelt
