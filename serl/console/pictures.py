"""Pictures for the console: a redrawn simulation, and the thread that compresses pictures."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from itertools import count
from typing import Any, Protocol

import numpy as np

from serl import plugins
from serl.console.backend import Picture
from serl.errors import SerlError
from serl.system.video import encode_image
from serl.task import SimulatedTask
from serl.types import Image

logger = logging.getLogger(__name__)

_SERIALS = count(1)  # of all sources, whose pictures may have the same names

PERIOD_S = 1 / 30
SLOWEST_S = 0.2
"""Longest period between pictures while an operator drives, s."""
SHARE, OPERATED_SHARE = 0.25, 0.5
"""Share of one core for pictures, and the share while operated; slow ones are drawn less often."""

LOOK_S = 0.1
"""Longest time for all views of a scene, s; where they take more, the view from the front leads."""
SECONDARY_S, SECONDARY_SHARE = 0.5, 0.05
"""Shortest period, s, and share of one core for pictures of an actor that is not driven."""

SCENE_SIZE = (480, 360)
FRONT = "front"
_SMALL = 0.3  # rad or m, of any joint
_WATCHED_S = 2.0

Placement = np.ndarray[Any, np.dtype[np.float64]]


class PictureSource(Protocol):
    """A source of pictures."""

    def look(self) -> Mapping[str, Image | bytes] | None:
        """Return pictures newer than the last ones, RGB or JPEG, by camera; None without any."""
        ...

    def close(self) -> None:
        """Release files and renderers; called by the thread that calls `look`."""
        ...


class DrawnScene:
    """The scene of a simulated actor, redrawn in this process from its published placement.

    It is seen from the front and from the first camera on each moving body, such as the wrist. A
    small motion is drawn in two pictures: a scene with 10 placements a second gives 20 pictures.
    Where drawing is slow, the other views take turns, in a third of the time.

    Args:
        task: task with the scene.
        placement: returns the poses of the scene; None while unknown.
        is_small: returns whether the view from the front suffices, at half the size.
        clock: monotonic clock, in s.
    """

    def __init__(
        self,
        task: SimulatedTask,
        placement: Callable[[], Placement | None],
        is_small: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._task, self._placement, self._is_small = task, placement, is_small
        self._clock = clock
        self._was_small = False
        self._goal: Placement | None = None
        self._shown: Placement | None = None
        self._arm: Any = None
        self._renderer: Any = None
        self._cameras: list[str] = []  # other than the front, the longest not drawn first
        self._outdated = 0  # how many of them do not show the placement
        self._overdrawn_s = 0.0  # drawn beyond LOOK_S, less half of the time for the front since

    def look(self) -> Mapping[str, Image] | None:
        """Draw the scene; return None when nothing has moved."""
        newest, small = self._placement(), self._is_small()
        if newest is None:
            return None
        if _equal(newest, self._shown) and small == self._was_small:
            return self._draw([]) if self._outdated else None
        self._was_small = small
        self._shown = newest if _equal(newest, self._goal) else _between(self._shown, newest)
        self._goal = newest
        if self._arm is None:
            self._arm = plugins.make_simulation(self._task)
            self._renderer = plugins.make_renderer(self._arm, shadows=False)
            self._cameras = _cameras(getattr(self._arm, "model", None))
        self._arm.show(self._shown)
        self._outdated = 0 if small else len(self._cameras)
        width, height = SCENE_SIZE
        if small:
            return {FRONT: self._renderer.frame(FRONT, width // 2, height // 2)}
        return self._draw([FRONT])

    def _draw(self, names: list[str]) -> dict[str, Image]:
        """Draw the cameras of `names`, and as many outdated ones as time allows."""
        began_s = self._clock()
        images = {name: self._renderer.frame(name, *SCENE_SIZE) for name in names}
        now_s = self._clock()
        view_s = now_s - began_s
        self._overdrawn_s = max(self._overdrawn_s - view_s / 2, 0.0)
        while self._outdated:
            fits = now_s - began_s + view_s <= LOOK_S
            if images and not fits and self._overdrawn_s > 0.0:
                break
            name = self._cameras.pop(0)
            self._cameras.append(name)
            images[name] = self._renderer.frame(name, *SCENE_SIZE)
            self._outdated -= 1
            view_s, now_s = self._clock() - now_s, self._clock()
            self._overdrawn_s += 0.0 if fits else view_s
        return images

    def close(self) -> None:
        """Release the renderer."""
        if self._renderer is not None:
            self._renderer.close()
            self._renderer = self._arm = None


def _equal(one: Placement, other: Placement | None) -> bool:
    return other is not None and np.array_equal(one, other)


def _between(shown: Placement | None, newest: Placement) -> Placement:
    """Return the middle of a small motion, and the newest placement after a large one."""
    if shown is None or shown.shape != newest.shape or np.abs(newest - shown).max() > _SMALL:
        return newest
    middle: Placement = (shown + newest) / 2
    return middle


def _cameras(model: Any) -> list[str]:
    """Return the names of the first camera on each moving body."""
    first: dict[int, str] = {}
    if model is None:  # a robot that draws itself
        return []
    for index, body in enumerate(model.cam_bodyid.tolist()):
        first.setdefault(body, model.camera(index).name)
    first.pop(0, None)
    return list(first.values())


class Pictures:
    """Thread that draws and compresses pictures while `newest` is called.

    Args:
        operated: returns whether an operator is driving.
        is_secondary: returns whether the operator drives another robot; pictures are then rarer.
    """

    def __init__(
        self,
        source: PictureSource,
        operated: Callable[[], bool] = lambda: False,
        is_secondary: Callable[[], bool] = lambda: False,
    ) -> None:
        self._source, self._operated, self._is_secondary = source, operated, is_secondary
        self._newest: dict[str, Picture] = {}
        self._watched_s = -_WATCHED_S
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pictures", daemon=True)
        self._thread.start()

    def newest(self) -> list[Picture]:
        """Return the newest picture of each camera; drawing stops 2 s after the last call."""
        self._watched_s = time.monotonic()
        return list(self._newest.values())

    def close(self) -> None:
        """Stop the thread; waits at most 2 s."""
        self._closing.set()
        self._thread.join(2.0)

    def _run(self) -> None:
        pause_s = PERIOD_S
        with closing(self._source):
            while not self._closing.wait(pause_s):
                began_s, cpu_s = time.monotonic(), time.thread_time()
                try:
                    self._look()
                except SerlError as error:
                    logger.warning("the console shows no more pictures: %s", error)
                    return
                taken_s, cpu_s = time.monotonic() - began_s, time.thread_time() - cpu_s
                pause_s = self._pause_s(taken_s, cpu_s)

    def _pause_s(self, taken_s: float, cpu_s: float) -> float:
        """Return the time until the next picture, from the time that the last one took."""
        secondary, operated = self._is_secondary(), self._operated()
        share = SECONDARY_SHARE if secondary else OPERATED_SHARE if operated else SHARE
        least_s = SECONDARY_S if secondary else PERIOD_S
        pause_s = max(least_s - taken_s, cpu_s * (1 - share) / share)
        if operated and not secondary:
            pause_s = min(pause_s, max(SLOWEST_S - taken_s, 0.0))
        return pause_s

    def _look(self) -> None:
        watched = time.monotonic() - self._watched_s < _WATCHED_S
        images = self._source.look() if watched else None
        if images:
            serial = next(_SERIALS)
            made = {
                name: Picture(name, serial, each if isinstance(each, bytes) else _jpeg(each))
                for name, each in images.items()
            }
            self._newest = {**self._newest, **made}


def _jpeg(image: Image) -> bytes:
    return encode_image(image, ".jpg")
