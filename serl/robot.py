"""The contract of everything that can be driven: simulated, replayed or real."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import accumulate
from types import TracebackType
from typing import Protocol, Self, runtime_checkable

from serl.camera import View, image_specs
from serl.motion import Pose
from serl.specs import ArraySpec, ObservationSpec
from serl.types import Action, ActionSource, Array, Image, Observation

Truth = Mapping[str, Array]
"""The privileged state of a simulation: named float32 arrays, never shown to a policy as such.

`tcp_pose` (base_T_tcp: x y z, quaternion xyzw) is among them where the robot has a tool.
"""


@runtime_checkable
class Robot(Protocol):
    """An arm (or a car) with its sensors."""

    @property
    def observation_spec(self) -> ObservationSpec:
        """Names, shapes, types and units of a reading."""
        ...

    @property
    def action_spec(self) -> ArraySpec:
        """Shape and bounds of an action: float32 in [-1, 1]."""
        ...

    @property
    def stop_reason(self) -> str | None:
        """Why it was stopped first; None, or empty, while motion is allowed."""
        ...

    def observe(self) -> Observation:
        """Newest stamped reading; never blocks for a control period."""
        ...

    def act(self, action: Action) -> Action:
        """Send an action and return what was really sent after limits, in the same scale."""
        ...

    def stop(self, reason: str) -> None:
        """Hold still now; the first reason is kept until `recover`."""
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
        """Let simulated time pass."""
        ...

    def reset(self, seed: int) -> Observation:
        """Place robot and scene anew; the same seed gives the same start."""
        ...

    def truth(self) -> Truth:
        """The privileged state behind `is_success` and the scripted experts."""
        ...


@runtime_checkable
class Homing(Protocol):
    """What a robot has besides whose joints can be moved home, out of the way of any task."""

    def home(self) -> None:
        """Begin the move; it goes on as time passes, and ends at a stop."""
        ...

    @property
    def is_home(self) -> bool:
        """It is over, and the arm is there."""
        ...


@runtime_checkable
class Guarded(Protocol):
    """What a robot has besides whose guard treats persons and resets otherwise than policies."""

    def drive_as(self, source: ActionSource) -> None:
        """Say in whose name the next actions are."""
        ...


@runtime_checkable
class ServedRobot(SimulatedRobot, Protocol):
    """A simulated arm behind the topics of a driver: see `serl.ros.nodes.sim`."""

    @property
    def target(self) -> tuple[Pose, bool]:
        """Where it is to go in the base frame, and whether its gripper is to be closed."""
        ...

    def measure(self) -> Mapping[str, list[float]]:
        """The state of a reading by name, in full precision."""
        ...

    def pictures(self) -> Mapping[tuple[str, tuple[int, int]], Image]:
        """What the cameras see now, by camera and by width and height."""
        ...

    def aim(self, target: Pose, closed: bool) -> None:
        """Go to a target within the limits of speed, acceleration, jerk and lead."""
        ...

    def grip(self, closed: bool) -> None:
        """Close or open the gripper."""
        ...

    def follow(self, setpoint: Pose) -> None:
        """Let 10 ms pass with the controller at a setpoint that somebody else has limited."""
        ...


POSE = ArraySpec(shape=(7,), unit="m, quaternion xyzw, base frame")


def reading_spec(joints: int, tracked: Iterable[str], views: Mapping[str, View]) -> ObservationSpec:
    """The spec of an arm's readings.

    Args:
        joints: how many the arm has.
        tracked: names of bodies whose pose a reading carries as `<name>_pose`.
        views: of the task, by name; each gives an image.
    """
    state = state_spec(joints)
    state.update({f"{name}_pose": POSE for name in tracked})
    return ObservationSpec(state=state, images=image_specs(views))


def state_spec(joints: int) -> dict[str, ArraySpec]:
    """What a reading tells of an arm of so many joints."""
    return {
        "tcp_pose": POSE,
        "tcp_twist": ArraySpec(shape=(6,), unit="m/s rad/s, base frame"),
        "wrench": ArraySpec(shape=(6,), unit="N Nm, base frame"),
        "gripper": ArraySpec(shape=(1,), unit="opening, 0 to 1"),
        "q": ArraySpec(shape=(joints,), unit="rad"),
        "dq": ArraySpec(shape=(joints,), unit="rad/s"),
        "target_pose": POSE,
    }


def reading_parts(spec: ObservationSpec) -> dict[str, slice]:
    """Where each array of the state is in one vector of all."""
    ends = accumulate(array.shape[0] for array in spec.state.values())
    return {
        name: slice(end - array.shape[0], end)
        for (name, array), end in zip(spec.state.items(), ends, strict=True)
    }
