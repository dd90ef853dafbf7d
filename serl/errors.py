"""Errors that a user can fix; each message names the fault and the allowed values in one line."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class SerlError(Exception):
    """A failure at run time; the command ends with exit code 1."""


class Silent(SerlError):
    """A robot or sensor that sends no data, or no new data; it may resume."""


class BadInput(SerlError):
    """Unusable input from the user; the command ends with exit code 2."""


class SpecMismatch(BadInput):
    """Data whose shapes, types or names differ from the spec."""


class CorruptData(BadInput):
    """A file or message that is damaged, of a foreign format, or beyond the allowed bounds."""


STUCK = "the arm does not move"
"""Cause that a guard reports for an arm that does not follow its setpoint."""


class ArmStuck(Silent):
    """An arm that does not follow its setpoint: its transitions are unusable for learning."""

    def __init__(self) -> None:
        super().__init__(f"the guard holds the arm: {STUCK}")


NEEDS_PERSON = "a person is needed"
"""First words of the message of `NeedsPerson`."""


class NeedsPerson(SerlError):
    """A scene that only a person can restore; the robot holds until then.

    Args:
        why: the reason as text; the error's message is `NEEDS_PERSON` followed by it.
    """

    def __init__(self, why: str) -> None:
        super().__init__(f"{NEEDS_PERSON}: {why}")


def did_you_mean(name: str, names: Iterable[str], least: float = 0.6) -> str:
    """Return the end of an error message that suggests the most similar name, or "".

    Upper case, hyphens and a namespace, as in "serl/PickCube-v0", make no difference.

    Args:
        name: unknown name.
        names: known names.
        least: least similarity, from 0 to 1.
    """
    known = {_plain(each): each for each in names}
    similar = difflib.get_close_matches(_plain(name), known, 1, least)
    return f"; did you mean {known[similar[0]]!r}?" if similar else ""


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, which gets an s unless the number is 1."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


_LONGEST = 300
"""Number of characters of a foreign error's description."""


def described(error: BaseException) -> str:
    """Return an error of foreign code as one line: its type and its message, shortened."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:_LONGEST]


def _plain(name: str) -> str:
    return name.rpartition("/")[2].lower().replace("-", "_").strip("_")
