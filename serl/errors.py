"""Errors that a person can mend: one line that names what is wrong and what is allowed."""

from __future__ import annotations


class SerlError(Exception):
    """Something went wrong at run time; the command ends with exit code 1."""


class Silent(SerlError):
    """A robot or a sensor says nothing, or nothing new; it may come back."""


class BadInput(SerlError):
    """The user gave something that cannot be used; the command ends with exit code 2."""


class SpecMismatch(BadInput):
    """Data does not have the shapes, types or names that were agreed on."""


class CorruptData(BadInput):
    """Bytes (a file, a message) that are damaged, foreign, or beyond the allowed bounds."""


NEEDS_PERSON = "a person is needed"


class NeedsPerson(SerlError):
    """Only a person can restore the scene; the robot holds until one has.

    Args:
        why: in words; what is said, and logged, begins with `NEEDS_PERSON`.
    """

    def __init__(self, why: str) -> None:
        super().__init__(f"{NEEDS_PERSON}: {why}")
