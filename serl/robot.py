"""Contract of a robot, whether simulated, replayed or real."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import accumulate
from types import TracebackType
from typing import Protocol, Self, runtime_checkable

from serl.camera import View, image_specs
from serl.geometry import Quaternion
from serl.motion import Pose
from serl.specs import ArraySpec, ObservationSpec
from serl.types import Action, ActionSource, Array, Image, Observation

Truth = Mapping[str, Array]
"""The privileged state of a simulation: named float32 arrays, never passed directly to a policy.

Includes `tcp_pose` (base_T_tcp: x y z, quaternion xyzw) if the robot has a tool.
"""


@runtime_checkable
class Robot(Protocol):
    """An arm (or a car) with its sensors."""

    @property
    def observation_spec(self) -> ObservationSpec:
        """The names, shapes, types and units of a reading."""
        ...

    @property
    def action_spec(self) -> ArraySpec:
        """Shape and bounds of an action: float32 in [-1, 1]."""
        ...

    @property
    def stop_reason(self) -> str | None:
        """Reason of the first stop; None, or empty, while motion is allowed."""
        ...

    def observe(self) -> Observation:
        """Return the newest stamped reading; never blocks for a control period."""
        ...

    def act(self, action: Action) -> Action:
        """Send an action; return the action executed after limits, in the same scale.

        Raises:
            Silent: the robot does not answer; the episode ends as after a failed reading.
        """
        ...

    def stop(self, reason: str) -> None:
        """Hold still immediately; the first reason is kept until `recover`."""
        ...

    def recover(self) -> None:
        """Allow motion again after a stop; never clears a robot's error by itself."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


@runtime_checkable
class SimulatedRobot(Robot, Protocol):
    """A robot whose time stands still between calls of `advance`."""

    def advance(self, dt_s: float) -> None:
        """Advance simulated time by `dt_s` seconds."""
        ...

    def reset(self, seed: int) -> Observation:
        """Reset robot and scene and return the first reading; equal seeds give equal starts."""
        ...

    def truth(self) -> Truth:
        """Return the privileged state used by `is_success` and the scripted experts."""
        ...


@runtime_checkable
class RandomizedRobot(Protocol):
    """Additional method of a simulation whose worlds are random."""

    def vary(self, seed: int) -> None:
        """Draw another world, as `reset` does, and leave robot and scene where they are."""
        ...


@runtime_checkable
class Homing(Protocol):
    """Additional methods of a robot whose joints can be moved home, clear of any task."""

    def home(self) -> None:
        """Begin the move home; it proceeds as time passes, and ends at a stop."""
        ...

    @property
    def is_home(self) -> bool:
        """Whether the move is over and the arm is at home."""
        ...


@runtime_checkable
class GuardedRobot(Protocol):
    """Additional methods of a robot whose guard distinguishes operators, resets and policies."""

    def drive_as(self, source: ActionSource) -> None:
        """Set the source of the next actions."""
        ...


@runtime_checkable
class TurningRobot(Protocol):
    """Additional method of a robot: turns for resets, also about axes that its actions lack."""

    def turn_to(self, orientation: Quaternion) -> None:
        """Turn the target to an orientation during the next actions, until an action rotates it."""
        ...


@runtime_checkable
class AdjustableRobot(Protocol):
    """Additional methods of a robot whose controller has several sets of gains."""

    @property
    def modes(self) -> Collection[str]:
        """The names of the modes, each with its gains."""
        ...

    @property
    def gains(self) -> str | None:
        """The mode whose gains were set last; None for those of the start."""
        ...

    def switch(self, gains: str | None) -> None:
        """Set the gains of a mode, None for those of the start; may block for a second.

        Raises:
            SerlError: the gains could not be set; the robot is stopped.
        """
        ...


@runtime_checkable
class ServedRobot(SimulatedRobot, Protocol):
    """A simulated arm behind the topics of a driver: see `serl.ros.nodes.sim`."""

    @property
    def target(self) -> tuple[Pose, bool]:
        """The target pose in the base frame, and whether the gripper is to be closed."""
        ...

    def measure(self) -> Mapping[str, list[float]]:
        """Return the state of a reading by name, in full precision."""
        ...

    def pictures(self) -> Mapping[tuple[str, tuple[int, int]], Image]:
        """Return the current camera images, by camera name and (width, height)."""
        ...

    def aim(self, target: Pose, closed: bool) -> None:
        """Set the target, approached within the limits of speed, acceleration, jerk and lead."""
        ...

    def grip(self, closed: bool) -> None:
        """Close or open the gripper."""
        ...

    def slip(self, slips: bool) -> None:
        """Let the fingers lose their hold, or hold again."""
        ...

    def exert(self, wrench: Sequence[float]) -> None:
        """Exert a wrench with the tool until the next one, in its own frame: N and Nm."""
        ...

    def follow(self, setpoint: Pose) -> None:
        """Advance by 10 ms with the controller at a setpoint that the caller has limited."""
        ...

    def follow_joints(self, joints: Sequence[float]) -> None:
        """Advance by 10 ms with the controller at joint angles that the caller has limited."""
        ...


POSE = ArraySpec(shape=(7,), unit="m, quaternion xyzw, base frame")
"""Shape and unit of a pose in a reading."""


def reading_spec(
    joints: int,
    tracked: Iterable[str],
    views: Mapping[str, View],
    prefixes: Iterable[str] = ("",),
) -> ObservationSpec:
    """Return the spec of readings.

    Args:
        joints: number of joints of each arm.
        tracked: names of bodies whose pose a reading contains as `<name>_pose`.
        views: views of the task, by name; each gives an image.
        prefixes: prefix of the names of each arm.
    """
    arm = {
        "tcp_pose": POSE,
        "tcp_twist": ArraySpec(shape=(6,), unit="m/s rad/s, base frame"),
        "wrench": ArraySpec(shape=(6,), unit="N Nm, base frame"),
        "gripper": ArraySpec(shape=(1,), unit="opening, 0 to 1"),
        "q": ArraySpec(shape=(joints,), unit="rad"),
        "dq": ArraySpec(shape=(joints,), unit="rad/s"),
        "target_pose": POSE,
    }
    state = {f"{prefix}{name}": spec for prefix in prefixes for name, spec in arm.items()}
    state.update({f"{name}_pose": POSE for name in tracked})
    return ObservationSpec(state=state, images=image_specs(views))


def reading_parts(spec: ObservationSpec) -> dict[str, slice]:
    """Return the slice of each state array in the flat state vector."""
    ends = accumulate(array.shape[0] for array in spec.state.values())
    return {
        name: slice(end - array.shape[0], end)
        for (name, array), end in zip(spec.state.items(), ends, strict=True)
    }
