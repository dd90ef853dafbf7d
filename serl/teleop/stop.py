"""Why a robot holds: a person stopped it, which nothing but a person undoes, or paused it.

Or its process is not active, which whoever manages that alone undoes.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from serl.errors import SerlError
from serl.system.files import read_bounded, write_atomic

STOP_FILE = "stopped"
"""Name of the file that an actor keeps a stop in, in the folder of its link."""
RELEASED = "released: it goes on when told to"

_MAX_BYTES = 1024


class StopLatch:
    """Stop and pause of one robot; every method may be called from any thread.

    A stop is on the disk before `stop` returns, so that it holds after any crash, and its first
    reason is kept. Releasing it leads to a pause, never to motion.

    Args:
        path: the file that a stop is kept in; its folder exists. One that is damaged is a stop.

    Attributes:
        path: of that file.
        stopped: why it was stopped; empty when it is not.
        inactive: why its process does not do its work; empty when it does. Whoever manages it
            sets this, and neither `release` nor `resume` touches it.
        paused: why it is paused; empty when it is not.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.paused = self.inactive = ""
        self.stopped = kept_stop(path)

    @property
    def reason(self) -> str:
        """Why the robot holds; empty while it may move."""
        return self.stopped or self.inactive or self.paused

    def stop(self, reason: str) -> None:
        """Hold until `release`, also when the disk refuses to remember it.

        Raises:
            OSError: it does; the stop holds as long as this process lives.
        """
        if not self.stopped:
            self.stopped = reason
            write_atomic(self.path, reason.encode()[:_MAX_BYTES])

    def release(self) -> None:
        """Undo a stop: from here on the robot is paused, for the reason that it was, if any."""
        if self.stopped:
            self.pause(RELEASED)
            self.path.unlink(missing_ok=True)
            self.stopped = ""

    def pause(self, reason: str) -> None:
        """Hold until `resume`; the first reason is kept."""
        self.paused = self.paused or reason

    def resume(self) -> None:
        """Go on.

        Raises:
            SerlError: it was stopped, which has to be released first, or is not active.
        """
        if self.stopped:
            raise SerlError(f"{self.stopped}: release it first")
        if self.inactive:
            raise SerlError(f"{self.inactive}: activate it")
        self.paused = ""

    def wait_paused(self, ending: Callable[[], bool], period_s: float = 0.02) -> bool:
        """Return once active and not paused, or stopped, or ending; says whether it is ending.

        For between two steps: an episode that is stopped has to end first.
        """
        while (self.inactive or self.paused) and not self.stopped and not ending():
            time.sleep(period_s)
        return ending()

    def wait(self, ending: Callable[[], bool], period_s: float = 0.02) -> bool:
        """Return once nothing holds the robot, or ending; says whether anything did.

        For between two episodes.
        """
        held = bool(self.reason)
        while self.reason and not ending():
            time.sleep(period_s)
        return held


def kept_stop(path: Path) -> str:
    """The stop that a process left there, in words; empty when it left none."""
    try:
        return read_bounded(path, _MAX_BYTES).decode() or "stopped"
    except FileNotFoundError:
        return ""
    except (OSError, SerlError, UnicodeDecodeError) as error:
        return f"stopped: {path}: {error}"
