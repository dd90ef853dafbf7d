"""Stop and pause of a robot: a stop is undone by an operator only.

A robot also holds while its process is inactive, which only the process's lifecycle manager undoes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from serl.errors import SerlError
from serl.system.files import read_bounded, write_atomic

STOP_FILE, PAUSE_FILE = "stopped", "paused"
"""Names of the files in which an actor stores a stop and a pause, in its link directory."""
RELEASED = "released: resume to continue"

_MAX_BYTES = 1024


class StopLatch:
    """Stop and pause state of one robot; every method may be called from any thread.

    A stop is persisted before `stop` returns, so that it holds after any crash; the first reason is
    kept. Releasing it leads to a pause, never to motion.

    Args:
        path: the file that stores a stop; its directory exists. A damaged file counts as a stop.

    Attributes:
        path: the file that stores a stop.
        stopped: reason of the stop; empty when there is none.
        inactive: reason why the process is inactive; empty while it is active. Set by the lifecycle
            manager only; neither `release` nor `resume` changes it.
        paused: reason of the pause; empty when there is none.
        look: called together with `beat`, and before each episode: reads the devices, for a stop.
        beat: called every 20 ms by methods that block in a pause. An arm sends its guard heartbeats
            meanwhile: the guard takes their end for the loss of the operator. In a stop, and while
            the process is inactive, there are none, and the guard disarms after a minute.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.beat: Callable[[], object] = lambda: None
        self.look: Callable[[], object] = lambda: None
        self.paused = self.inactive = ""
        self.stopped = read_stop(path)
        self._pauses: Path | None = None
        self._lock = threading.Lock()  # a stop during a release must not be lost

    def keep_pauses(self, is_real: bool) -> None:
        """Store pauses from now on, for this arm and for the terminal of its training.

        Args:
            is_real: continue the pause of an earlier process: a person may be at work beside a real
                arm when its process is started again.
        """
        if self._pauses is not None:
            return
        self._pauses = self.path.with_name(PAUSE_FILE)
        if is_real:
            self.paused = self.paused or read_stop(self._pauses)
        else:
            self._pauses.unlink(missing_ok=True)

    @property
    def reason(self) -> str:
        """The reason why the robot holds; empty while it may move."""
        return self.stopped or self.inactive or self.paused

    def stop(self, reason: str) -> None:
        """Hold until `release`, even when the stop cannot be written to the disk.

        Raises:
            OSError: writing failed; the stop holds as long as this process lives.
        """
        with self._lock:
            self.stopped = self.stopped or reason
            if not self.path.exists():  # also after an earlier write failed
                write_atomic(self.path, self.stopped.encode()[:_MAX_BYTES])

    def release(self) -> None:
        """Release a stop; the robot is then paused, keeping the reason of an earlier pause.

        Raises:
            SerlError: the file of the stop cannot be removed, so that the stop remains.
        """
        with self._lock:
            if self.stopped:
                self.pause(RELEASED)
                try:
                    self.path.unlink(missing_ok=True)
                except OSError as error:
                    raise SerlError(f"{self.stopped}: not released: {error}") from None
                self.stopped = ""

    def pause(self, reason: str) -> None:
        """Hold until `resume`, even if the pause cannot be stored; the first reason is kept."""
        if not self.paused:
            self.paused = reason
            if self._pauses is not None:
                with suppress(OSError):
                    write_atomic(self._pauses, reason.encode()[:_MAX_BYTES])

    def resume(self) -> None:
        """Resume motion.

        Raises:
            SerlError: the robot is stopped, which has to be released first, or not active.
        """
        if self.stopped:
            raise SerlError(f"{self.stopped}: release it first")
        if self.inactive:
            raise SerlError(f"{self.inactive}: activate it")
        self.paused = ""
        if self._pauses is not None:
            with suppress(OSError):  # it is then paused after a restart
                self._pauses.unlink(missing_ok=True)

    def wait_paused(self, is_ending: Callable[[], bool], period_s: float = 0.02) -> bool:
        """Block until active and not paused, or stopped, or ending; return whether it is ending.

        For use between two steps: an episode that is stopped has to end first.
        """
        while (self.inactive or self.paused) and not self.stopped and not is_ending():
            self._rest(period_s)
        return is_ending()

    def wait(self, is_ending: Callable[[], bool], period_s: float = 0.02) -> bool:
        """Block until nothing holds the robot, or until ending; return whether anything held it.

        For use between two episodes, in which nothing else reads the devices.
        """
        if not (self.stopped or self.inactive):
            self.look()
        held = bool(self.reason)
        while self.reason and not is_ending():
            self._rest(period_s)
        return held

    def _rest(self, period_s: float) -> None:
        if not (self.stopped or self.inactive):
            self.beat()
            self.look()
        time.sleep(period_s)


def read_stop(path: Path) -> str:
    """Return the reason of a stop stored by an earlier process; empty when there is none."""
    try:
        return read_bounded(path, _MAX_BYTES).decode() or "stopped"
    except FileNotFoundError:
        return ""
    except (OSError, SerlError, UnicodeDecodeError) as error:
        return f"stopped: {path}: {error}"
