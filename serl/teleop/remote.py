"""What `serl teleop` and the console send to an actor: a wish, as a joystick's axes and buttons."""

from __future__ import annotations

from serl.intervention import Event
from serl.teleop.mapping import AXES, MappingConfig, Wish

BUTTONS = ("hands", "success", "failure", "discard", "reset", "stop", "reward", "penalty")

MAPPING = MappingConfig(
    axes={name: (name, 1.0) for name in ("x", "y", "z", "roll", "pitch", "yaw", "gripper")},
    dead_zone=0.0,
    deadman="hands",
    events={name: Event(name) for name in BUTTONS[1:]},
)


def to_joystick(wish: Wish) -> tuple[list[float], list[int]]:
    """Positions along `AXES`, and which of `BUTTONS` are down."""
    said = {event.value for event in wish.events}
    held = [int(name in said) for name in BUTTONS[1:]]
    return list(wish.motion[: len(AXES)]), [int(wish.hands), *held]
