"""Drive laps between walls, and get faster by practice, with automatic recovery."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np
from pydantic import Field, model_validator

from serl.camera import View, image_specs
from serl.errors import BadInput
from serl.geometry import rotate, wrap_angle
from serl.motion import Motion
from serl.policy import Policy
from serl.robot import Truth
from serl.specs import ArraySpec, ObservationSpec
from serl.task import Placement, Scene, TaskConfig, ViewName
from serl.tasks.parts.track import Checkpoint, Course, Points, checkpoints_of, forwards
from serl.types import Action, Array, Episode, Observation, Outcome

_HALF_WIDTH_M, _WALLS, _WHEELBASE_M, _SLOW_M_S = 0.5, 72, 0.32, 0.9
_VIEWS = {"driver": View(camera="driver", width=64, height=64)}
_AHEAD_M = (0.5, 1.0, 1.6, 2.4, 3.4)
_WAY_M = np.linspace(0.0, 2.0 * math.pi, 400, endpoint=False)


def _middle(angle: Any, offset_m: float = 0.0) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return points of the track's middle line, shifted by `offset_m` to the side.  # (N, 2).

    The points are in the direction of driving.
    """
    radius = 2.3 + 0.45 * np.cos(2.0 * angle) + 0.22 * np.sin(3.0 * angle)
    slope = -0.9 * np.sin(2.0 * angle) + 0.66 * np.cos(3.0 * angle)
    cos, sin = np.cos(angle), np.sin(angle)
    along = np.stack([slope * cos - radius * sin, slope * sin + radius * cos], axis=-1)
    along /= np.linalg.norm(along, axis=-1, keepdims=True)
    outwards = np.stack([along[..., 1], -along[..., 0]], axis=-1)
    return np.stack([radius * cos, radius * sin], axis=-1) + offset_m * outwards


class RacingCarConfig(TaskConfig):
    """Settings of the racing car task.

    Attributes:
        checkpoints: x and y in metres of one recorded lap; see `checkpoints_of`. The default is a
            lap of the scripted driver.
        record_pose: observations include the pose of the car, as those of recordings do.
        pace: speed of the scripted driver, as a share of the speed that the track allows.
        metre_reward: reward for each metre forwards on the course.
        touch_penalty: amount subtracted from the last reward after a collision.
    """

    can_reset: ClassVar[bool] = True
    time_limit_s: float = Field(30.0, gt=0, le=86_400)
    motion: Motion = Motion(
        axes=("x", "yaw"),
        frame="tool",
        translation_m=0.3,
        rotation_rad=0.5,
        box_low_m=(-4.0, -4.0, 0.0),
        box_high_m=(4.0, 4.0, 0.5),
    )
    auto_reset: bool = True
    views: dict[ViewName, View] = _VIEWS
    checkpoints: tuple[Checkpoint, ...] = ()
    record_pose: bool = False
    pace: float = Field(0.65, gt=0, le=1.0)
    metre_reward: float = Field(0.15, gt=0, le=1000)
    touch_penalty: float = Field(0.25, ge=0, le=1000)

    @model_validator(mode="after")
    def _check_course(self) -> RacingCarConfig:
        if 0 < len(self.checkpoints) < 4:
            raise ValueError("checkpoints: expected at least 4, or none for the track's own")
        if self.motion.axes != ("x", "yaw") or self.motion.gripper:
            raise ValueError("motion: a car has the axes x and yaw, and no gripper")
        return self


class RacingCar:
    """Drive laps as fast as possible, without touching a wall."""

    name = "racing_car"
    is_divisible = False  # a lap begins where the episode does

    def __init__(self, config: RacingCarConfig | None = None) -> None:
        self.config = config or RacingCarConfig()
        self.course = Course(self.config.checkpoints or _LAP)
        self._track = Course([(float(x), float(y)) for x, y in _middle(_WAY_M)])
        self._place_m, self._driven_m, self._judged_s = 0.0, 0.0, -1.0

    @cached_property
    def observation_spec(self) -> ObservationSpec:
        """Six numbers of the car and the course ahead; with cameras, also the driver's view."""
        state = {
            "velocity": ArraySpec(shape=(2,), unit="m/s, ahead and to the left"),
            "yaw_rate": ArraySpec(shape=(1,), unit="rad/s"),
            "steering": ArraySpec(shape=(1,), unit="rad"),
            "command": ArraySpec(shape=(2,), unit="the last action"),
            "course": ArraySpec(shape=(2 * len(_AHEAD_M),), unit="m, points ahead, car's frame"),
        }
        if self.config.record_pose:
            state["car_pose"] = ArraySpec(shape=(7,), unit="m, quaternion xyzw")
        if self.config.observe == "pixels":
            return ObservationSpec(state=state, images=image_specs(self.config.policy_views))
        return ObservationSpec(state=state)

    @property
    def scene(self) -> Scene:
        """Two walls along the track."""
        return Scene(bodies=_walls(), place=self._place, front=_FRONT_CAMERA, robot="car")

    def begin(self, reading: Observation) -> None:
        """Begin an episode: start a lap at the current position of the car."""
        self._place_m = self.course.nearest(_position(reading.state))
        self._driven_m, self._judged_s = 0.0, reading.stamps["robot"]

    def observation(self, reading: Observation) -> Observation:
        """Return the observation for a reading: the course ahead, like the goals of FastRLAP."""
        state = reading.state
        place = self.course.nearest(_position(state), self._place_m)
        seen = {
            "velocity": state["car_twist"][:2],
            "yaw_rate": state["car_twist"][5:],
            "steering": state["steering"],
            "command": state["command"],
            "course": self._course_seen(state, place),
        }
        if self.config.record_pose:
            seen["car_pose"] = state["car_pose"]
        images = self.config.policy_images(reading) if self.config.observe == "pixels" else {}
        return Observation(seen, images, reading.stamps)

    def outcome(self, reading: Observation, index: int) -> Outcome:
        """Return a reward per metre forwards, and the end at a collision or after a clean lap.

        Only distance along the course counts; distance backwards is subtracted.
        """
        place = self.course.nearest(_position(reading.state), self._place_m)
        ahead_m = float(self.course.ahead(self._place_m, place))
        self._place_m, self._driven_m = place, self._driven_m + ahead_m
        self._judged_s = reading.stamps["robot"]
        touched = bool(reading.state["bumper"][0] > 0.5)
        success = self._is_lap(reading.state)
        return Outcome(
            reward=self.config.metre_reward * ahead_m - self.config.touch_penalty * touched,
            terminated=success or touched,
            truncated=not (success or touched) and index + 1 >= self.config.max_steps,
            success=success,
        )

    def reset(self, reading: Observation) -> Policy | None:
        """Return a policy that drives from the wall back to the course; None once the car is free.

        The tolerances are larger for a car in motion, which needs no help nearer to the edge.
        """
        view, state = self._view(reading.state), reading.state
        slow = abs(float(state["car_twist"][0])) < _SLOW_M_S
        off_m, turn_rad = (0.25, 0.35) if slow else (0.40, 0.8)
        free = state["bumper"][0] < 0.5
        if free and abs(view.off_m) < off_m and abs(view.turn_rad) < turn_rad:
            return None
        return _Recovery(self._view)

    def is_success(self, truth: Truth) -> bool:
        """Return whether a lap was completed since the episode began, without a contact now."""
        return self._is_judged(truth) and self._is_lap(truth)

    def progress(self, truth: Truth) -> float:
        """Return the share of the lap driven, at the instant of the last outcome; otherwise 0."""
        if not self._is_judged(truth):
            return 0.0
        return min(1.0, max(0.0, self._driven_m / self.course.length_m))

    def expert(self, truth: Callable[[], Truth], seed: int) -> Policy:
        """Return a pure pursuit of the track's middle, at `pace` of the speed it allows."""
        return _Pursuit(truth, self._track, self.config, seed)

    @property
    def defined(self) -> Mapping[str, Any]:
        """The checkpoints of the course."""
        return {"checkpoints": self.config.checkpoints or _LAP}

    def recording_defaults(self) -> Mapping[str, Any]:
        """Return settings of recordings, which include the pose of the car."""
        return {"record_pose": True}

    def defined_by(self, demonstration: Episode) -> Mapping[str, Any]:
        """Return checkpoints of the demonstrated lap; nothing if checkpoints are configured."""
        driven = _driven(demonstration)
        if self.config.checkpoints:
            return {}
        lap = forwards(driven, self._track, _HALF_WIDTH_M)
        return {"checkpoints": [list(point) for point in checkpoints_of(lap)]}

    def relabel(self, demonstration: Episode) -> Episode:
        """Return the demonstration with observations and rewards recomputed for this course."""
        assert demonstration.end is not None, "a success has an end"
        places = self.course.along(_driven(demonstration))
        observations = [
            self._relabel(seen, place)
            for seen, place in zip(_observations(demonstration), places, strict=True)
        ]
        metres = self.course.ahead(places[:-1], places[1:])
        rewards = (self.config.metre_reward * metres).tolist()
        *before, last = observations
        steps = tuple(
            replace(
                step,
                observation=seen,
                reward=reward if step.reward_provenance == "truth" else step.reward,
            )
            for step, seen, reward in zip(demonstration.steps, before, rewards, strict=True)
        )
        return Episode(steps, replace(demonstration.end, observation=last))

    def training_defaults(self) -> Mapping[str, Any]:
        """Return settings for learning from one demonstrated lap, without interventions.

        With the usual entropy the policy learns to drive slowly, as its noise would hit a wall.
        """
        return {
            "steps": 12_000,
            "demos": 1,
            "intervention": "none",
            "required_success_rate": 0.8,
            "agent": {
                "hidden": (128, 128),
                "layer_norm": True,
                "return_bounds": (-1.0, 2.0),
                "target_entropy": -3.0,
                "utd": 2,
                "bc_warm_start": 400,
            },
            "learner": {"warm_up": 400},
        }

    def _relabel(self, seen: Observation, place_m: float) -> Observation:
        """Return an observation with the course ahead recomputed from the car's place."""
        state = {**seen.state, "course": self._course_seen(seen.state, place_m)}
        return replace(seen, state={name: state[name] for name in self.observation_spec.state})

    def _course_seen(self, state: Mapping[str, Array], place_m: float) -> Array:
        """Return points of the course ahead of a place, in the frame of the car, m.  # (10,)."""
        points = [_seen(state, self.course.at(place_m + ahead)) for ahead in _AHEAD_M]
        return np.array(points, np.float32).ravel()

    def _view(self, state: Mapping[str, Array]) -> _View:
        position = _position(state)
        place = self.course.nearest(position)
        heading = self.course.heading(place)
        aside = position - self.course.at(place)
        off = math.cos(heading) * aside[1] - math.sin(heading) * aside[0]
        return _View(off, wrap_angle(heading - _heading(state), 2.0 * math.pi))

    def _is_lap(self, state: Mapping[str, Array]) -> bool:
        return self._driven_m >= self.course.length_m and bool(state["bumper"][0] < 0.5)

    def _is_judged(self, truth: Truth) -> bool:
        """Return whether the truth belongs to the reading of the last outcome."""
        return abs(float(truth["time_s"][0]) - self._judged_s) < 1e-3

    def _place(self, rng: np.random.Generator) -> Placement:
        angle = rng.uniform(0.0, 2.0 * math.pi)
        x, y = _middle(angle, rng.uniform(-0.15, 0.15)).tolist()
        (x1, y1), (x2, y2) = _middle(np.array([angle - 0.01, angle + 0.01])).tolist()
        half = 0.5 * (math.atan2(y2 - y1, x2 - x1) + rng.uniform(-0.2, 0.2))
        return Placement(tcp=np.array((x, y, 0.056, 0.0, 0.0, math.sin(half), math.cos(half))))


class _View(NamedTuple):
    """Car relative to the course: offset to the left, and left turn needed to align with it."""

    off_m: float
    turn_rad: float


class _Recovery:
    """Recovery: back off, turn, go on; reverse the direction whenever the car is stuck."""

    PATIENCE = 8

    def __init__(self, view: Callable[[Mapping[str, Array]], _View]) -> None:
        self._view, self._forwards, self._steps = view, False, 0

    def __call__(self, observation: Observation) -> Action:
        """Return the next action for a reading."""
        state = observation.state
        self._steps += 1
        stuck = self._steps > 4 and abs(float(state["car_twist"][0])) < 0.05
        view = self._view(state)
        wanted = wrap_angle(view.turn_rad - math.atan(2.0 * view.off_m), 2.0 * math.pi)
        eager = not self._forwards and self._steps > self.PATIENCE and abs(wanted) < 1.2
        if stuck or eager or self._steps > 3 * self.PATIENCE:
            self._forwards, self._steps = not self._forwards, 0
        steer = max(-1.0, min(1.0, 2.0 * wanted))
        way = (0.25, steer) if self._forwards else (-0.6, -steer)
        return np.array(way, np.float32)


class _Pursuit:
    """Pure pursuit of a point ahead on the middle of the track, slower in bends."""

    NOISE, GRIP_M_S2, LOOK_M, LOOK_S = 0.03, 4.5, 0.45, 0.15

    def __init__(
        self, truth: Callable[[], Truth], track: Course, config: RacingCarConfig, seed: int
    ) -> None:
        self._truth, self._track, self._pace = truth, track, config.pace
        self._top_m_s = config.motion.translation_m * config.rate_hz
        self._widest_rad = config.motion.rotation_rad
        self._rng = np.random.default_rng(seed)

    def __call__(self, observation: Observation) -> Action:
        """Return the next action, from the truth alone."""
        truth = self._truth()
        speed = max(0.0, float(truth["car_twist"][0]))
        place = self._track.nearest(_position(truth))
        x, y = _seen(truth, self._track.at(place + self.LOOK_M + self.LOOK_S * speed))
        steering = math.atan(2.0 * _WHEELBASE_M * y / (x * x + y * y))
        bend = max(self._bend(place + ahead) for ahead in (0.0, 0.4, 0.8, 1.2))
        goal = self._pace * min(self._top_m_s, math.sqrt(self.GRIP_M_S2 / max(bend, 1e-3)))
        action = np.array((goal / self._top_m_s, steering / self._widest_rad))
        noisy: Action = (action + self._rng.normal(0.0, self.NOISE, 2)).clip(-1.0, 1.0)
        return noisy.astype(np.float32)

    def _bend(self, place_m: float) -> float:
        """Return the curvature of the track at a place, 1/m, over half a metre."""
        turn = self._track.heading(place_m + 0.25) - self._track.heading(place_m - 0.25)
        return abs(wrap_angle(turn, 2.0 * math.pi)) / 0.5


def _observations(demonstration: Episode) -> list[Observation]:
    """Return all observations of a successful episode, including the final one."""
    assert demonstration.end is not None, "a success has an end"
    return [*(step.observation for step in demonstration.steps), demonstration.end.observation]


def _driven(demonstration: Episode) -> Points:
    """Return the position of the car at each observation, m.  # (N, 2).

    Raises:
        BadInput: the observations do not include the pose of the car.
    """
    seen = _observations(demonstration)
    if "car_pose" not in seen[0].state:
        raise BadInput(
            "has no poses of the car, so it cannot be used on another course: "
            "record another one (serl record)"
        )
    return np.array([_position(each.state) for each in seen])


def _position(state: Mapping[str, Array]) -> np.ndarray[Any, np.dtype[np.float64]]:
    return state["car_pose"][:2].astype(np.float64)


def _heading(state: Mapping[str, Array]) -> float:
    x, y, z, w = state["car_pose"][3:].tolist()
    ahead = rotate((x, y, z, w), (1.0, 0.0, 0.0))
    return math.atan2(ahead[1], ahead[0])


def _seen(
    state: Mapping[str, Array], point_m: np.ndarray[Any, np.dtype[np.float64]]
) -> tuple[float, float]:
    """Return a point of the floor in the frame of the car: ahead and to the left, m."""
    dx, dy = (point_m - _position(state)).tolist()
    heading = _heading(state)
    cos, sin = math.cos(heading), math.sin(heading)
    return cos * dx + sin * dy, cos * dy - sin * dx


def _walls() -> str:
    """Return the MJCF of low walls in two colours, too smooth for wheels to climb."""
    smooth = 'priority="1" condim="3" friction="0.1 0.005 0.0001"'
    colours = ("0.86 0.30 0.22 1", "0.93 0.94 0.95 1")
    parts = []
    angles = np.linspace(0.0, 2.0 * math.pi, _WALLS, endpoint=False)
    for offset in (-_HALF_WIDTH_M - 0.03, _HALF_WIDTH_M + 0.03):
        corners = _middle(angles, offset)
        for index, (a, b) in enumerate(zip(corners, np.roll(corners, -1, axis=0), strict=True)):
            (x, y), (dx, dy) = 0.5 * (a + b), b - a
            half = 0.5 * math.hypot(dx, dy) + 0.01
            parts.append(
                f'<geom type="box" pos="{x:.4f} {y:.4f} 0.08" size="{half:.4f} 0.03 0.08"'
                f' euler="0 0 {math.atan2(dy, dx):.4f}" rgba="{colours[index // 2 % 2]}"'
                f" {smooth}/>"
            )
    return "".join(parts)


_FRONT_CAMERA = 'pos="0 -5.2 5.6" xyaxes="1 0 0 0 0.733 0.680"'
# Result of `checkpoints_of` for the scripted driver's lap from the start 0.
_LAP: tuple[Checkpoint, ...] = (
    (-1.32, -1.566), (-0.9, -1.842), (-0.424, -2.006), (0.077, -2.05), (0.572, -1.955),
    (1.04, -1.768), (1.479, -1.519), (1.886, -1.221), (2.248, -0.869), (2.539, -0.458),
    (2.722, 0.01), (2.763, 0.511), (2.625, 0.994), (2.319, 1.39), (1.889, 1.651),
    (1.399, 1.762), (0.895, 1.75), (0.395, 1.68), (-0.108, 1.652), (-0.608, 1.723),
    (-1.107, 1.793), (-1.609, 1.753), (-2.074, 1.565), (-2.45, 1.232), (-2.691, 0.791),
    (-2.763, 0.294), (-2.673, -0.201), (-2.438, -0.646), (-2.108, -1.027), (-1.719, -1.349),
)  # fmt: skip

task = RacingCar
