"""Messages from a console page: JSON frames, each fully validated."""

from __future__ import annotations

from enum import Enum
from typing import Any, NamedTuple

from serl.camera import Crop, check_crop
from serl.errors import CorruptData
from serl.system.json_fields import parse_object, short
from serl.teleop.mapping import AXES, Wish

MAX_BYTES = 64 << 10
COMMANDS = (
    *("success", "failure", "discard", "reset", "estop", "release", "pause", "resume"),
    *("reward", "penalty"),  # for the current step
    *("undo", "positive", "negative"),  # during a person's recording
)


class Confirmation(NamedTuple):
    """A confirmation of a question of the arm's guard."""

    question: str


class KeepOrder(NamedTuple):
    """The decision of the operator to keep a recorded demonstration, or to discard it."""

    episode: str
    keep: bool


class CropOrder(NamedTuple):
    """The part of a camera's picture that tasks use from the next start on."""

    camera: str
    crop: Crop


class Selection(NamedTuple):
    """The choice of the actor that the operator drives."""

    actor: str


class LeaseRequest(Enum):
    """A request for the operator lease, or its release."""

    TAKE = "take"
    RELEASE = "give"


HANDS_OFF = Wish((0.0,) * len(AXES), False, ())

Order = Confirmation | KeepOrder | CropOrder | Selection
"""An order with arguments."""

Frame = Wish | str | Order | LeaseRequest
"""A heartbeat with operator input, one of `COMMANDS`, an order, or a lease request."""


def read_entry(text: str) -> tuple[str, object]:
    """Return the kind of the first frame, "token" or "pair", and its word.

    Raises:
        CorruptData: the frame contains neither.
    """
    fields = parse_object(text.encode(), "frame")
    if fields.keys() not in ({"token"}, {"pair"}):
        raise CorruptData("frame: expected the token or a pairing code first")
    return next(iter(fields.items()))


def read_frame(text: str) -> Frame:
    """Parse a frame after the first.

    Raises:
        CorruptData: the text is not a valid frame.
    """
    fields = parse_object(text.encode(), "frame")
    match fields:
        case {"type": "drive", "motion": list(motion), "hands": bool(hands), **rest} if not rest:
            return Wish(_motion(motion), hands, ())
        case {"type": "say", "what": str(what), **rest} if not rest and what in COMMANDS:
            return what
        case {"type": "yes", "question": str(question), **rest} if not rest:
            return Confirmation(question)
        case {"type": "select", "actor": str(actor), **rest} if not rest:
            return Selection(actor)
        case {"type": "judge", "episode": str(name), "keep": bool(keep), **rest} if not rest:
            return KeepOrder(name, keep)
        case {"type": "crop", "camera": str(camera), "crop": list(crop), **rest} if not rest:
            return CropOrder(camera, _crop(crop))
        case {"type": "take" | "give" as request, **rest} if not rest:
            return LeaseRequest(request)
    raise CorruptData(f"frame: unknown: {short(fields)}")


def _crop(values: list[Any]) -> Crop:
    if len(values) != 4 or any(type(value) not in {int, float} for value in values):
        raise CorruptData(f"frame: crop: expected 4 numbers, got {short(values)}")
    try:
        return check_crop((values[0], values[1], values[2], values[3]))
    except ValueError as error:
        raise CorruptData(f"frame: {error}") from error


def _motion(values: list[Any]) -> tuple[float, ...]:
    one, two = len(AXES), 2 * len(AXES)
    if len(values) not in {one, two}:
        raise CorruptData(f"frame: motion: expected {one} or {two} numbers, got {len(values)}")
    for value in values:
        if type(value) not in {int, float} or not -1 <= value <= 1:
            raise CorruptData(f"frame: motion: expected numbers in [-1, 1], got {short(value)}")
    return tuple(map(float, values))
