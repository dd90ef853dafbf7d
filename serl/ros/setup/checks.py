"""Questions and checks of an arm's commissioning, without ROS and without a screen."""

from __future__ import annotations

import math
from typing import Protocol

from serl.camera import WHOLE, Crop, check_crop
from serl.errors import SerlError
from serl.geometry import Quaternion, Vector, rotation_between, subtract
from serl.workspace import Workspace

DIRECTIONS = ("forward", "back", "left", "right", "up", "down")
EXPECTED = {"x": "forward", "y": "left", "z": "up"}
"""Direction of each axis by REP-103, seen from the base."""

LEAST_HZ = 28.0
"""Lowest rate of an arm's measurements: an age of 100 ms stops it, and a message may be late. It
is below the usual rate of joint_state_publisher, 30 Hz, of which measurements differ."""

GRIPPER_HZ = 5.0
"""Lowest rate of the gripper's state, whose age does not stop the arm."""

END_GUIDING = (
    "Before hand guiding ends, restart the arm's controller (ros2 control switch_controllers "
    "--deactivate NAME, then --activate NAME): it may keep its last target, and move the arm there"
)
"""Request to a person who guides an arm whose controller has had no target since.

The controllers of serl's profiles keep their target without a timeout, and begin at the arm's pose
when activated. Inactive, those of an xArm7 and a Gen3 publish no pose.
"""

_ASTRAY_M = 0.003
"""Distance that counts as the wrong direction. A driver that inverts an axis settles 5 mm behind
its start: half of the guard's limit for a setpoint's lead over the tool."""


class StepFailed(SerlError):
    """A step's check failed; the message is one line with the problem and its remedy."""


class SessionLeft(SerlError):
    """The person ended the session, to continue it another time."""


class Asker(Protocol):
    """The interface to the person, at a terminal or elsewhere."""

    def show(self, text: str) -> None:
        """Show a text to the person."""
        ...

    def ask(self, key: str, question: str) -> str:
        """Wait for an answer and return it without surrounding blanks; `key` names the question.

        Input typed before the question is discarded.

        Raises:
            SessionLeft: the person answered `q`, or is gone.
        """
        ...

    def pressed(self, key: str) -> bool:
        """Check whether Enter was pressed since the first call for this key; never waits.

        Raises:
            SessionLeft: the person answered `q`, or is gone.
        """
        ...


def ask_yes_no(asker: Asker, key: str, question: str) -> bool:
    """Ask a question of yes or no until it is answered; returns True for yes."""
    while True:
        answer = asker.ask(key, f"{question} [y/n]").lower()
        if answer in ("y", "yes", "n", "no"):
            return answer.startswith("y")
        asker.show(f"{answer!r}: expected y or n")


def ask_to_begin(asker: Asker, key: str, question: str) -> None:
    """Ask before the arm moves; raises `StepFailed` unless the answer is empty."""
    if answer := asker.ask(key, question):
        raise StepFailed(f"{answer!r}: not begun: Enter alone begins")


def ask_direction(asker: Asker, key: str, question: str) -> str:
    """Ask for the direction that the person saw, one of `DIRECTIONS` or its first letter."""
    while True:
        answer = asker.ask(key, f"{question} [{' '.join(DIRECTIONS)}]").lower()
        found = [direction for direction in DIRECTIONS if answer in (direction, direction[0])]
        if found:
            return found[0]
        asker.show(f"{answer!r}: expected one of {', '.join(DIRECTIONS)}")


def check_way(axis: str, start: Vector, place: Vector) -> None:
    """Raise `StepFailed` if a tool that is commanded along an axis moves in another direction.

    Args:
        axis: "x", "y" or "z".
        start: position of the tool at the start, m.
        place: position of the tool now, m.
    """
    moved = subtract(place, start)
    along = moved["xyz".index(axis)]
    aside = math.sqrt(max(0.0, math.hypot(*moved) ** 2 - along**2))
    if along < -_ASTRAY_M:
        raise StepFailed(
            f"{axis}: commanded along +{axis}, the tool went {-100 * along:.1f} cm along "
            f"-{axis}: do targets and poses of the driver have the same frame?"
        )
    if aside > _ASTRAY_M and aside > along:
        other = max((abs(moved[i]), name) for i, name in enumerate("xyz") if name != axis)[1]
        raise StepFailed(
            f"{axis}: commanded along +{axis}, the tool went {100 * aside:.1f} cm along {other}: "
            "do targets and poses of the driver have the same frame?"
        )


def check_direction(axis: str, observed: str, frame: str) -> None:
    """Raise `StepFailed` unless the person saw the axis point in the expected direction."""
    if observed != EXPECTED[axis]:
        raise StepFailed(
            f"{axis}: the tool went {observed}, expected {EXPECTED[axis]}: the frame {frame!r} "
            "points elsewhere; correct it in the driver's description of the arm"
        )


def check_turn(name: str, orientation: Quaternion, place: Workspace) -> float:
    """Return the rotation from the reference; raise `StepFailed` if the guard forbids it."""
    turned_rad = math.hypot(*rotation_between(place.reference, orientation))
    if turned_rad > place.max_rotation_rad:
        raise StepFailed(
            f"{name}: it is turned by {turned_rad:.2f} rad from the orientation at home, and the "
            f"arm's workspace allows {place.max_rotation_rad:.2f} rad"
        )
    return turned_rad


def check_rate(name: str, rate_hz: float, least_hz: float = LEAST_HZ) -> None:
    """Raise `StepFailed` when the rate of a topic is too low."""
    if rate_hz < least_hz:
        raise StepFailed(f"{name}: {rate_hz:.1f} Hz, expected at least {least_hz:g} Hz")


def rate_of(times_s: list[float]) -> float:
    """Return messages per second, from their arrival times; 0 for fewer than two."""
    if len(times_s) < 2 or times_s[-1] <= times_s[0]:
        return 0.0
    return (len(times_s) - 1) / (times_s[-1] - times_s[0])


def parse_crop(text: str) -> Crop:
    """Parse a crop: left, top, right and bottom; an empty text means the whole picture.

    Raises:
        StepFailed: the text is not a crop.
    """
    if not text:
        return WHOLE
    try:
        left, top, right, bottom = (float(share) for share in text.split(","))
    except ValueError:
        raise StepFailed(f"crop {text!r}: expected four shares, such as 0.2,0,0.8,1") from None
    try:
        return check_crop((left, top, right, bottom))
    except ValueError as error:
        raise StepFailed(str(error)) from None


def parse_place(text: str) -> Vector:
    """Parse a position in the base frame, in m.

    Raises:
        StepFailed: the text is not a position.
    """
    try:
        x, y, z = (float(number) for number in text.split(","))
    except ValueError:
        raise StepFailed(f"place {text!r}: expected x,y,z in m, such as 0.3,-0.2,0.05") from None
    if not all(map(math.isfinite, (x, y, z))):
        raise StepFailed(f"place {text!r}: expected three finite numbers, in m")
    return x, y, z


def format_position(place: Vector) -> str:
    """Format a position for people, to the millimetre."""
    return ",".join(f"{number:.3f}" for number in place) + " m"
