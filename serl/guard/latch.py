"""A file that remembers a stop over restarts of the guard, and over power cuts.

It belongs to an arm, not to a run: what was stopped in one run stays stopped in the next.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from serl.errors import CorruptData
from serl.guard.config import LATCHED, GuardState
from serl.system.files import read_bounded, write_atomic

_HEAD = "serl latch: "
_MAX_BYTES = 4096


class Latch(NamedTuple):
    """What a guard starts with.

    Attributes:
        state: disarmed means clean; hold, that a guard is armed, or ended while it was.
        cause: of a stop, in one line.
    """

    state: GuardState = GuardState.DISARMED
    cause: str = ""


class GuardedArm(NamedTuple):
    """Where the guard of an arm is found, and the file of its latch.

    Attributes:
        namespace: of the arm, within the run unless it begins at the root.
        latch: beside which the key lies that ends its stops.
    """

    namespace: str
    latch: Path


class LatchFile:
    """The latch on the disk."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> Latch:
        """Disarmed only if the file says that it is clean; anything else is a stop."""
        try:
            text = read_bounded(self._path, _MAX_BYTES).decode()
        except FileNotFoundError:
            return Latch(GuardState.ESTOP, f"no latch file {self._path}: is this the first start?")
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
        """Replace the file; it is on the disk when this returns.

        Raises:
            OSError: it is not.
        """
        cause = " ".join(latch.cause.split())[:1000]
        text = f"{_HEAD}{latch.state}\n" + (f"{cause}\n" if cause else "")
        write_atomic(self._path, text.encode(errors="replace"))
