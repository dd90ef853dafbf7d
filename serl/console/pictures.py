"""Pictures of the scene for the console: an actor's cameras, or a redrawn simulation."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from serl import plugins
from serl.camera import View
from serl.console.backend import Picture
from serl.errors import SerlError
from serl.log.episode_reader import PART, EpisodeFile, episode_paths
from serl.system.video import encode_image
from serl.task import SimulatedTask
from serl.types import Image

logger = logging.getLogger(__name__)

PERIOD_S = 1 / 15
SHARE, OPERATED_SHARE = 0.25, 0.5
"""Share of one core for pictures, and the share while operated; slow ones are drawn less often."""

_SIZE = (240, 180)
_NO_VIEWS: Mapping[str, View] = {}
_WATCHED_S = 2.0
_RECORDS_AT_ONCE = 200

Placement = np.ndarray[Any, np.dtype[np.float64]]


class PictureSource(Protocol):
    """A source of pictures."""

    def look(self) -> Mapping[str, Image] | None:
        """Return the newest picture of each camera; None when there is no newer one."""
        ...

    def close(self) -> None:
        """Release files and renderers; called by the thread that calls `look`."""
        ...


class LoggedCameras:
    """The cameras of an actor, read from its log, at no cost for the control loop.

    Args:
        folder: folder of the actor's episodes; need not exist yet.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file: EpisodeFile | None = None

    def look(self) -> Mapping[str, Image] | None:
        """Return the images of the newest complete record; None when there is no newer one."""
        newest = None
        try:
            self._follow()
            for _ in range(_RECORDS_AT_ONCE):
                message = self._file.next_message() if self._file else None
                if message is None:
                    break
                newest = message
            if newest is not None and self._file is not None:
                return self._file.record(newest).observation.images
        except (SerlError, OSError):  # the actor died during a write; the next file starts afresh
            self.close()
        return None

    def _follow(self) -> None:
        """Open the newest file unless it is open; the rest of a sealed file is skipped."""
        paths = episode_paths(self._folder)
        if paths and (
            self._file is None or paths[-1].name.split(".")[0] not in self._file.path.name
        ):
            self.close()
            if paths[-1].name.endswith(PART):
                with suppress(FileNotFoundError):  # sealed in the meantime
                    self._file = EpisodeFile(paths[-1])

    def close(self) -> None:
        """Close the open file; the next `look` opens the newest one."""
        if self._file is not None:
            self._file.close()
        self._file = None


class DrawnScene:
    """The scene of a simulated actor, redrawn in this process from its published placement.

    Args:
        task: task with the scene.
        placement: returns the poses of the scene; None while unknown.
        views: views to draw; if empty, the whole scene from the front.
    """

    def __init__(
        self,
        task: SimulatedTask,
        placement: Callable[[], Placement | None],
        views: Mapping[str, View] = _NO_VIEWS,
    ) -> None:
        self._task, self._placement, self._views = task, placement, views
        self._shown: Placement | None = None
        self._arm: Any = None
        self._renderer: Any = None

    def look(self) -> Mapping[str, Image] | None:
        """Draw the views, or the front view; return None when nothing has moved."""
        placement = self._placement()
        if placement is None or placement is self._shown:
            return None
        self._shown = placement
        if self._arm is None:
            self._arm = plugins.make_simulation(self._task)
            self._renderer = plugins.make_renderer(self._arm)
        self._arm.show(placement)
        if not self._views:
            return {"front": self._renderer.frame("front", *_SIZE)}
        return {
            name: view.cut(self._renderer.frame(view.camera, *view.capture_size))
            for name, view in self._views.items()
        }

    def close(self) -> None:
        """Release the renderer."""
        if self._renderer is not None:
            self._renderer.close()
            self._renderer = self._arm = None


class Pictures:
    """Thread that draws and compresses pictures while `newest` is called.

    Args:
        source: source of the pictures.
        operated: returns whether an operator is driving.
    """

    def __init__(self, source: PictureSource, operated: Callable[[], bool] = lambda: False) -> None:
        self._source, self._operated = source, operated
        self._newest: list[Picture] = []
        self._serial = 0
        self._watched_s = -_WATCHED_S
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pictures", daemon=True)
        self._thread.start()

    def newest(self) -> list[Picture]:
        """Return the newest picture of each camera; drawing stops 2 s after the last call."""
        self._watched_s = time.monotonic()
        return self._newest

    def close(self) -> None:
        """Stop the thread; waits at most 2 s."""
        self._closing.set()
        self._thread.join(2.0)

    def _run(self) -> None:
        pause_s = PERIOD_S
        with closing(self._source):
            while not self._closing.wait(pause_s):
                began_s = time.thread_time()
                try:
                    self._look()
                except SerlError as error:
                    logger.warning("the console shows no more pictures: %s", error)
                    return
                taken_s = time.thread_time() - began_s
                share = OPERATED_SHARE if self._operated() else SHARE
                pause_s = max(PERIOD_S - taken_s, taken_s * (1 - share) / share)

    def _look(self) -> None:
        watched = time.monotonic() - self._watched_s < _WATCHED_S
        images = self._source.look() if watched else None
        if images:
            self._serial += 1
            self._newest = [
                Picture(name, self._serial, encode_image(image, ".jpg"))
                for name, image in images.items()
            ]
