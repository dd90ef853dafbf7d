"""Films of a person's demonstrations, made of the pictures that the page shows meanwhile.

A film is the file `films/EPISODE.film` in the folder of the recording: ten JPEG pictures for each
second, each after its length in 4 bytes (big-endian).
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from serl.console.backend import Picture
from serl.datasets.recording_session import RecordedEpisode
from serl.system.files import make_folder, read_bounded

PERIOD_S = 0.1
MAX_PICTURES = 1200
MAX_BYTES = 64 << 20
FOLDER, _SUFFIX = "films", ".film"
_NAME = re.compile(r"\d{1,20}-\d{6,9}")

logger = logging.getLogger(__name__)


class EpisodeFilms:
    """Films of the episodes of one recording.

    An episode gets the first film that began after its own start. Episodes that were recorded while
    no page was open have none.

    Args:
        now_ns: clock of the episodes' epochs, ns since 1970.
    """

    def __init__(self, folder: Path, now_ns: Callable[[], int] = time.time_ns) -> None:
        self._folder, self._now_ns = folder / FOLDER, now_ns
        self._known: set[str] | None = None
        self._lock = threading.Lock()  # `watch` and the rest run in two threads
        self._films: list[tuple[int, list[bytes]]] = []  # start and pictures, not assigned yet
        self._runs, self._step, self._serial, self._due_ns = False, -1, -1, 0

    def watch(self, pictures: Sequence[Picture], runs: bool, step: int) -> None:
        """Take the newest picture of the first camera, ten times a second, while an episode runs.

        Args:
            pictures: the newest picture of each camera.
            runs: whether an episode runs.
            step: number of the step in it.
        """
        now_ns = self._now_ns()
        with self._lock:
            if runs and (not (self._runs and self._films) or step < self._step):
                self._films = [*self._films[-1:], (now_ns, [])]
            self._runs, self._step = runs, step
            if not (runs and pictures) or len(self._films[-1][1]) >= MAX_PICTURES:
                return
            first = pictures[0]
            if first.serial != self._serial and now_ns >= self._due_ns:
                self._serial, self._due_ns = first.serial, now_ns + round(1e9 * PERIOD_S)
                film = self._films[-1][1]
                if sum(4 + len(each) for each in (*film, first.jpeg)) <= MAX_BYTES:
                    film.append(first.jpeg)

    def assign(self, episodes: Sequence[RecordedEpisode]) -> None:
        """Write the films of episodes that are new in the recording."""
        names = [each.name for each in episodes]
        known = names if self._known is None else self._known
        for name in names:
            if name not in known:
                self._write(name, self._take(int(name.partition("-")[0])))
        self._known = set(names)

    def _take(self, began_ns: int) -> list[bytes]:
        """Return the pictures of the first film since a time; forget it and those before it."""
        with self._lock:
            later = [film for film in self._films if film[0] >= began_ns]
            self._films = later[1:]
        return later[0][1] if later else []

    def _write(self, name: str, pictures: Sequence[bytes]) -> None:
        if not pictures:
            return
        try:
            make_folder(self._folder)
            film = b"".join(len(each).to_bytes(4, "big") + each for each in pictures)
            self._path(name).write_bytes(film)
        except OSError as error:  # the recording goes on without a film
            logger.warning("no film of episode %s: %s", name, error)

    def read(self, name: str) -> bytes | None:
        """Return the film of an episode; None without one."""
        if _NAME.fullmatch(name) is None:
            return None
        with suppress(OSError):
            return read_bounded(self._path(name), MAX_BYTES)
        return None

    def listed(self, episodes: Sequence[RecordedEpisode]) -> list[dict[str, Any]]:
        """Return the fields of each episode, and whether it has a film, for the page."""
        return [{**each._asdict(), "film": self._path(each.name).exists()} for each in episodes]

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}{_SUFFIX}"


def last_picture(film: bytes) -> bytes:
    """Return the last picture of a film; empty for a damaged one."""
    place, picture = 0, b""
    while place + 4 <= len(film):
        length = int.from_bytes(film[place : place + 4], "big")
        picture = film[place + 4 : place + 4 + length]
        place += 4 + length
    return picture
