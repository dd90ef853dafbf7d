"""What a reading of an arm carries, simulated or real: the same names, shapes and units."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import accumulate

from serl.camera import View, image_specs
from serl.specs import ArraySpec, ObservationSpec

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
