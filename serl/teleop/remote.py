"""What `serl teleop` and the console send to an actor: a wish, as a joystick's axes and buttons."""

from __future__ import annotations

from collections.abc import Mapping

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


def who_drives(said: Mapping[str, str], records: bool = False) -> str:
    """What an actor says of its control, in words, as for somebody at a device without a page.

    Args:
        said: by the actor.
        records: it is a person who records, for whom the robot holds while hands are off.
    """
    if reason := said.get("stopped") or said.get("paused") or said.get("silent"):
        return f"it holds: {reason}"
    off = "it holds: hands are off"
    words = {
        "human": f"{said['owner']} drives" if said.get("owner") else off,
        "policy": "the policy drives",
        "script": off if records else "the scene is being reset",
    }
    return words.get(said.get("driver", ""), "it rests between two episodes")
