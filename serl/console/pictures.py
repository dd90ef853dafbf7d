"""What the console shows of the scene: an actor's cameras, or its simulation drawn once more."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
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

PERIOD_S = 1 / 15
SHARE, OPERATED_SHARE = 0.25, 0.5
"""Of one core that pictures may take, and while somebody operates; dear ones come less often."""

_SIZE = (240, 180)
_NO_VIEWS: Mapping[str, View] = {}
_WATCHED_S = 2.0
_RECORDS_AT_ONCE = 200

Placement = np.ndarray[Any, np.dtype[np.float64]]


class PictureSource(Protocol):
    """Where pictures come from."""

    def look(self) -> Mapping[str, Image] | None:
        """The newest picture of each camera; None when there is no newer one."""
        ...


class LoggedCameras:
    """The cameras of an actor, from the log that it writes: the control loop pays nothing.

    Args:
        folder: of the actor's episodes; need not exist yet.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file: EpisodeFile | None = None

    def look(self) -> Mapping[str, Image] | None:
        """The images of the newest record that is whole."""
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
        except (SerlError, OSError):  # an actor that died in the middle; the next one begins anew
            self._leave()
        return None

    def _follow(self) -> None:
        """Be at the newest file; the end of a sealed one is of no interest any more."""
        paths = episode_paths(self._folder)
        if paths and (
            self._file is None or paths[-1].name.split(".")[0] not in self._file.path.name
        ):
            self._leave()
            if paths[-1].name.endswith(PART):
                with suppress(FileNotFoundError):  # sealed since
                    self._file = EpisodeFile(paths[-1])

    def _leave(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file = None


class DrawnScene:
    """The scene of a simulated actor, drawn here from where it says that everything is.

    Args:
        task: whose scene it is.
        placement: where everything is; None while it is not known.
        views: what is drawn; the whole scene from the front if there are none.
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
        """The views, or that from the front, if anything has moved."""
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


class Pictures:
    """Draws and compresses in a thread of its own, while somebody watches.

    Args:
        source: where pictures come from.
        operated: somebody operates.
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
        """The newest picture of each camera; asking keeps them coming."""
        self._watched_s = time.monotonic()
        return self._newest

    def close(self) -> None:
        """End the thread."""
        self._closing.set()
        self._thread.join(2.0)

    def _run(self) -> None:
        pause_s = PERIOD_S
        while not self._closing.wait(pause_s):
            began_s = time.thread_time()
            if time.monotonic() - self._watched_s < _WATCHED_S:
                self._look()
            taken_s = time.thread_time() - began_s
            share = OPERATED_SHARE if self._operated() else SHARE
            pause_s = max(PERIOD_S - taken_s, taken_s * (1 - share) / share)

    def _look(self) -> None:
        images = self._source.look()
        if images:
            self._serial += 1
            self._newest = [
                Picture(name, self._serial, encode_image(image, ".jpg"))
                for name, image in images.items()
            ]
