"""A minimal robot and task: a point in a plane that is to be moved to the origin."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Self

import numpy as np

from serl.geometry import from_rotation_vector, multiply, rotation_between
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
    """Return a spec of one arm, or of a left and a right one, with or without gripper actions."""
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
    """A point that follows its target at limited speed; a `SimulatedRobot` without physics.

    Attributes:
        stop_reason: reason of the first stop; empty while motion is allowed.
        broken: readings contain NaN while this is True.
    """

    observation_spec = _SPEC
    action_spec = _MOTION.action_spec

    def __init__(self) -> None:
        self.broken = False
        self.reset(0)

    def reset(self, seed: int) -> Observation:
        """Place the point at rest at a random position in the box, not near the origin."""
        self.place(*_draw(np.random.default_rng(seed)))
        self._time_s = 0.0
        self.stop_reason = ""
        return self.observe()

    def place(self, x: float, y: float) -> None:
        """Place the point at rest at a position (m)."""
        self._position: np.ndarray[Any, np.dtype[np.float64]] = np.array([x, y])
        self._target = self._position.copy()
        self._velocity = np.zeros(2)

    def observe(self) -> Observation:
        """Return position and velocity, stamped with simulated time."""
        position = np.full(2, np.nan) if self.broken else self._position
        state = {
            "position": position.astype(np.float32),
            "velocity": self._velocity.astype(np.float32),
        }
        return Observation(state=state, stamps={"robot": self._time_s})

    def act(self, action: Action) -> Action:
        """Move the target within the box; return the executed action, zeros if stopped."""
        check_action(action, self.action_spec)
        if self.stop_reason:
            return np.zeros_like(action)
        before = self._target
        moved = before + _MOTION.translation_m * action
        self._target = np.clip(moved, -_BOX_M, _BOX_M)
        executed = (self._target - before) / _MOTION.translation_m
        return np.clip(executed, -1.0, 1.0).astype(np.float32)

    def advance(self, dt_s: float) -> None:
        """Move the point towards its target, at most at the speed limit."""
        reach_m = _MOTION.limits.speed_m_s * dt_s
        step = np.clip(self._target - self._position, -reach_m, reach_m)
        self._position = self._position + step
        self._velocity = step / dt_s
        self._time_s += dt_s

    def stop(self, reason: str) -> None:
        """Hold the current position; the first reason is kept."""
        self.stop_reason = self.stop_reason or reason
        self._target = self._position.copy()

    def recover(self) -> None:
        """Allow motion again."""
        self.stop_reason = ""

    def truth(self) -> Truth:
        """Return the position of the point, also as `tcp_pose`."""
        x, y = self._position
        pose = np.array([x, y, 0.0, 0.0, 0.0, 0.0, 1.0], np.float32)
        return {"position": pose[:2], "tcp_pose": pose}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Do nothing: there are no resources to release."""


class FakeTaskConfig(TaskConfig):
    """Settings of the fake task: two-dimensional motion, three seconds.

    Attributes:
        tolerance_m: distance from the origin that counts as a success.
        ready_m: minimum distance from the origin at the start of an episode.
    """

    time_limit_s: float = 3.0
    motion: Motion = _MOTION
    tolerance_m: float = 0.02
    ready_m: float = 0.1


class FakeTask:
    """A task to move the point to the origin; its reset moves the point away again."""

    name = "fake"
    observation_spec = _SPEC

    def __init__(self, config: FakeTaskConfig | None = None) -> None:
        self.config = config or FakeTaskConfig()

    @property
    def scene(self) -> Scene:
        """The scene: starts of the point, without bodies."""

        def place(rng: np.random.Generator) -> Placement:
            return Placement(tcp=np.array([*_draw(rng), 0.0, 0.0, 0.0, 0.0, 1.0]))

        return Scene(bodies="", place=place)

    def begin(self, reading: Observation) -> None:
        """Do nothing: there is no state."""

    def observation(self, reading: Observation) -> Observation:
        """Return the whole reading."""
        return reading

    def outcome(self, reading: Observation, index: int) -> Outcome:
        """Return reward 1 and success at the origin, else 0."""
        if self._near(reading.state["position"]):
            return Outcome(reward=1.0, terminated=True, success=True)
        return Outcome(truncated=index + 1 >= self.config.max_steps)

    def reset(self, reading: Observation) -> Policy | None:
        """Return a policy that moves straight away from the origin; None when far enough."""
        if np.linalg.norm(reading.state["position"]) >= self.config.ready_m:
            return None
        return lambda observation: _toward(2 * _BOX_M * _direction(observation.state["position"]))

    def is_success(self, truth: Truth) -> bool:
        """Return whether the point is at the origin."""
        return self._near(truth["position"])

    def progress(self, truth: Truth) -> float:
        """Return the progress: 1 at the origin, 0 in the corners."""
        distance_m = float(np.linalg.norm(truth["position"]))
        return max(0.0, 1.0 - distance_m / (math.sqrt(2.0) * _BOX_M))

    def expert(self, truth: Callable[[], Truth], seed: int) -> Policy:
        """Return a policy that moves straight to the origin."""
        return lambda observation: _toward(-truth()["position"])

    def training_defaults(self) -> Mapping[str, Any]:
        """Return no overrides."""
        return {}

    def _near(self, position: Array) -> bool:
        return float(np.linalg.norm(position)) < self.config.tolerance_m


def _draw(rng: np.random.Generator) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return a random position, on each axis between half and all of the box's extent."""
    sign = rng.choice((-1.0, 1.0), 2)
    return np.asarray(sign * rng.uniform(0.5 * _BOX_M, _BOX_M, 2))


def _direction(position: Array) -> Array:
    distance_m = np.linalg.norm(position)
    return position / distance_m if distance_m > 0 else np.array([1.0, 0.0], np.float32)


def _toward(offset_m: Array) -> Action:
    return np.asarray(np.clip(offset_m / _MOTION.translation_m, -1.0, 1.0), np.float32)


TIMEOUT_S = 0.1
"""Time without a setpoint after which a controller holds by itself, seconds."""


class FakeArm:
    """A tool without mass that covers a fixed fraction of the way to its setpoint per 10 ms.

    Attributes:
        pose: pose of the tool in the base frame.
        holding: no setpoint was received for longer than `TIMEOUT_S`.
    """

    def __init__(self, pose: Pose, lag: float = 0.5) -> None:
        self.pose = pose
        self.holding = True
        self._target = pose
        self._part = 1.0 - lag  # fraction of the way covered in 10 ms
        self._received_s = -math.inf

    def follow(self, setpoint: Pose, now_s: float) -> None:
        """Set the setpoint, received at `now_s`."""
        self._target, self._received_s = setpoint, now_s

    def tick(self, now_s: float) -> Pose:
        """Advance by 10 ms and return the new pose of the tool."""
        self.holding = now_s - self._received_s > TIMEOUT_S
        if not self.holding:
            place, quaternion = self.pose
            x, y, z = (
                a + self._part * (b - a) for a, b in zip(place, self._target.position, strict=True)
            )
            turn = rotation_between(quaternion, self._target.quaternion)
            part = from_rotation_vector(
                (self._part * turn[0], self._part * turn[1], self._part * turn[2])
            )
            self.pose = Pose((x, y, z), multiply(part, quaternion))
        return self.pose
