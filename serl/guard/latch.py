"""A file that remembers a stop over restarts of the guard, and over power cuts.

The latch belongs to an arm, not to a run: an arm stopped in one run stays stopped in the next.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from serl.errors import CorruptData
from serl.guard.config import LATCHED, GuardState
from serl.system.files import read_bounded, write_atomic

_HEAD = "serl latch: "
_MAX_BYTES = 4096


class Latch(NamedTuple):
    """The state and the cause with which a guard starts.

    Attributes:
        state: disarmed: no stop; hold: a guard is armed, or ended while it was armed.
        cause: cause of a stop, in one line.
    """

    state: GuardState = GuardState.DISARMED
    cause: str = ""


class GuardedArm(NamedTuple):
    """The namespace of an arm with a guard, and the file of the guard's latch.

    Attributes:
        namespace: namespace of the arm, within the run unless it begins at the root.
        latch: latch file; the key that ends the arm's stops lies beside it.
    """

    namespace: str
    latch: Path


class LatchFile:
    """The latch file on disk."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> Latch:
        """Return the stored latch: disarmed only if the file is valid and clean, else a stop."""
        try:
            owner = self._path.stat().st_uid
            if owner not in (0, os.geteuid()):  # who can write here could replace a stop
                return Latch(GuardState.ESTOP, f"latch file {self._path} is of the user {owner}")
            text = read_bounded(self._path, _MAX_BYTES).decode()
        except FileNotFoundError:
            cause = f"no latch file {self._path}: normal only at the first start"
            return Latch(GuardState.ESTOP, cause)
        except (OSError, CorruptData, UnicodeDecodeError):
            return Latch(GuardState.ESTOP, f"latch file {self._path} cannot be read")
        for state in (GuardState.DISARMED, GuardState.HOLD, *LATCHED):
            head = f"{_HEAD}{state}\n"
            if text.startswith(head) and text.endswith("\n"):
                cause = text[len(head) :].removesuffix("\n")
                if state in LATCHED and cause:
                    return Latch(state, cause)
                if state is GuardState.HOLD and text == head:
                    return Latch(GuardState.PROTECTIVE_STOP, "the guard ended while it was armed")
                if state is GuardState.DISARMED and text == head:
                    return Latch()
        return Latch(GuardState.ESTOP, f"latch file {self._path} is damaged")

    def write(self, latch: Latch) -> None:
        """Replace the file; the new content is on disk when this returns.

        Raises:
            OSError: the file could not be written.
        """
        cause = " ".join(latch.cause.split())[:1000]
        text = f"{_HEAD}{latch.state}\n" + (f"{cause}\n" if cause else "")
        write_atomic(self._path, text.encode(errors="replace"))
