"""The smallest robot and task that there are: a point in a plane, to be brought to the origin."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self

import numpy as np

from serl.geometry import between, from_rotation_vector, multiply
from serl.motion import Motion, Pose, check_action
from serl.policy import Policy
from serl.robot import Truth
from serl.specs import ArraySpec, ObservationSpec, Spec
from serl.task import Placement, Scene, TaskConfig
from serl.types import Action, Array, Observation, Outcome

_BOX_M = 0.2
_MOTION = Motion(
    axes=("x", "y"),
    translation_m=0.015,
    box_low_m=(-_BOX_M, -_BOX_M, -0.01),
    box_high_m=(_BOX_M, _BOX_M, 0.01),
)
_SPEC = ObservationSpec(
    state={
        "position": ArraySpec(shape=(2,), unit="m"),
        "velocity": ArraySpec(shape=(2,), unit="m/s"),
    }
)


def arm_spec(arms: int = 1, gripper: bool = True) -> Spec:
    """Of one arm, or of a left and a right one, whose grippers an action moves or not."""
    motion = _MOTION.model_copy(update={"gripper": gripper})
    prefixes = ("",) if arms == 1 else ("left_", "right_")
    words = motion.action_spec.unit.split()
    names = [f"{prefix}{word}" for prefix in prefixes for word in words]
    state = {
        f"{prefix}{name}": array
        for prefix in prefixes
        for name, array in {**_SPEC.state, "gripper": ArraySpec(shape=(1,))}.items()
    }
    return Spec(
        task="fake",
        observation=ObservationSpec(state=state),
        action=ArraySpec(shape=(len(names),), low=-1.0, high=1.0, unit=" ".join(names)),
        rate_hz=10.0,
    )


class FakeRobot:
    """A point that goes where its target is, at limited speed; a `SimulatedRobot` without physics.

    Attributes:
        stop_reason: the first reason for a stop; empty while motion is allowed.
        broken: readings are not finite while this is True.
    """

    observation_spec = _SPEC
    action_spec = _MOTION.action_spec

    def __init__(self) -> None:
        self.broken = False
        self.reset(0)

    def reset(self, seed: int) -> Observation:
        """Place the point anywhere in the box but near the origin, at rest."""
        self.place(*_draw(np.random.default_rng(seed)))
        self._time_s = 0.0
        self.stop_reason = ""
        return self.observe()

    def place(self, x: float, y: float) -> None:
        """Put the point there (m), at rest."""
        self._position: np.ndarray[Any, np.dtype[np.float64]] = np.array([x, y])
        self._target = self._position.copy()
        self._velocity = np.zeros(2)

    def observe(self) -> Observation:
        """Position and velocity, stamped with simulated time."""
        position = np.full(2, np.nan) if self.broken else self._position
        state = {
            "position": position.astype(np.float32),
            "velocity": self._velocity.astype(np.float32),
        }
        return Observation(state=state, stamps={"robot": self._time_s})

    def act(self, action: Action) -> Action:
        """Move the target by an action, within the box; zeros while stopped."""
        check_action(action, self.action_spec)
        if self.stop_reason:
            return np.zeros_like(action)
        before = self._target
        moved = before + _MOTION.translation_m * action
        self._target = np.clip(moved, -_BOX_M, _BOX_M)
        executed = (self._target - before) / _MOTION.translation_m
        return np.clip(executed, -1.0, 1.0).astype(np.float32)

    def advance(self, dt_s: float) -> None:
        """Go towards the target, at the speed limit at most."""
        reach_m = _MOTION.limits.speed_m_s * dt_s
        step = np.clip(self._target - self._position, -reach_m, reach_m)
        self._position = self._position + step
        self._velocity = step / dt_s
        self._time_s += dt_s

    def stop(self, reason: str) -> None:
        """Stay here; the first reason is kept."""
        self.stop_reason = self.stop_reason or reason
        self._target = self._position.copy()

    def recover(self) -> None:
        """Allow motion again."""
        self.stop_reason = ""

    def truth(self) -> Truth:
        """Where the point is."""
        x, y = self._position
        pose = np.array([x, y, 0.0, 0.0, 0.0, 0.0, 1.0], np.float32)
        return {"position": pose[:2], "tcp_pose": pose}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Nothing to release."""


class FakeTaskConfig(TaskConfig):
    """Two-dimensional motion, three seconds.

    Attributes:
        tolerance_m: this near to the origin is a success.
        ready_m: this far from the origin an episode may start.
    """

    time_limit_s: float = 3.0
    motion: Motion = _MOTION
    tolerance_m: float = 0.02
    ready_m: float = 0.1


class FakeTask:
    """Bring the point to the origin. A reset drives it away again."""

    name = "fake"
    observation_spec = _SPEC

    def __init__(self, config: FakeTaskConfig | None = None) -> None:
        self.config = config or FakeTaskConfig()

    @property
    def scene(self) -> Scene:
        """Starts of the point; there are no bodies."""

        def place(rng: np.random.Generator) -> Placement:
            return Placement(tcp=np.array([*_draw(rng), 0.0, 0.0, 0.0, 0.0, 1.0]))

        return Scene(bodies="", place=place)

    def begin(self, reading: Observation) -> None:
        """Nothing to remember."""

    def observation(self, reading: Observation) -> Observation:
        """The whole reading."""
        return reading

    def outcome(self, reading: Observation, index: int) -> Outcome:
        """1 at the origin, else 0."""
        if self._near(reading.state["position"]):
            return Outcome(reward=1.0, terminated=True, success=True)
        return Outcome(truncated=index + 1 >= self.config.max_steps)

    def reset(self, reading: Observation) -> Policy | None:
        """Drive straight away from the origin, until far enough."""
        if np.linalg.norm(reading.state["position"]) >= self.config.ready_m:
            return None
        return lambda observation: _toward(2 * _BOX_M * _direction(observation.state["position"]))

    def is_success(self, truth: Truth) -> bool:
        """The point is at the origin."""
        return self._near(truth["position"])

    def progress(self, truth: Truth) -> float:
        """1 at the origin, 0 in the corners."""
        distance_m = float(np.linalg.norm(truth["position"]))
        return max(0.0, 1.0 - distance_m / (math.sqrt(2.0) * _BOX_M))

    def expert(self, truth: Callable[[], Truth], seed: int) -> Policy:
        """Goes straight to the origin."""
        return lambda observation: _toward(-truth()["position"])

    def training_defaults(self) -> Mapping[str, Any]:
        """None."""
        return {}

    def _near(self, position: Array) -> bool:
        return float(np.linalg.norm(position)) < self.config.tolerance_m


def _draw(rng: np.random.Generator) -> np.ndarray[Any, np.dtype[np.float64]]:
    """A position between a half and the whole of the way to the box, per axis."""
    sign = rng.choice((-1.0, 1.0), 2)
    return np.asarray(sign * rng.uniform(0.5 * _BOX_M, _BOX_M, 2))


def _direction(position: Array) -> Array:
    distance_m = np.linalg.norm(position)
    return position / distance_m if distance_m > 0 else np.array([1.0, 0.0], np.float32)


def _toward(offset_m: Array) -> Action:
    return np.asarray(np.clip(offset_m / _MOTION.translation_m, -1.0, 1.0), np.float32)


TIMEOUT_S = 0.1
"""Silence after which a controller holds by itself."""


class FakeArm:
    """A tool without mass, a share of the way behind its setpoint.

    Attributes:
        pose: of the tool in the base frame.
        holding: no setpoint came for too long.
    """

    def __init__(self, pose: Pose, lag: float = 0.5) -> None:
        self.pose = pose
        self.holding = True
        self._target = pose
        self._part = 1.0 - lag  # of the way, in 10 ms
        self._heard_s = -math.inf

    def follow(self, setpoint: Pose, now_s: float) -> None:
        """Take a setpoint."""
        self._target, self._heard_s = setpoint, now_s

    def tick(self, now_s: float) -> Pose:
        """Let 10 ms pass; where the tool is then."""
        self.holding = now_s - self._heard_s > TIMEOUT_S
        if not self.holding:
            place, quaternion = self.pose
            x, y, z = (
                a + self._part * (b - a) for a, b in zip(place, self._target.position, strict=True)
            )
            turn = between(quaternion, self._target.quaternion)
            part = from_rotation_vector(
                (self._part * turn[0], self._part * turn[1], self._part * turn[2])
            )
            self.pose = Pose((x, y, z), multiply(part, quaternion))
        return self.pose
