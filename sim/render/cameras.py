"""Cameras of a simulation: each is drawn once per instant, and cropped to its views."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import mujoco

from serl.camera import View
from serl.errors import BadInput, SerlError
from serl.sim.render import gl, ray
from serl.sim.render.projection import camera_index
from serl.types import Image

logger = logging.getLogger(__name__)

_RAY_PX = 128
"""Largest side of a picture for which ray casting is faster than OpenGL without a GPU."""


class Cameras:
    """Source of the camera images of readings.

    Args:
        data: live state of the model.
        views: views by name.
        renderer: "ray", "gl", or "auto" for the faster one on this machine.
        add_noise: function of a camera's name and picture that returns the noisy picture.

    Raises:
        BadInput: a view of a camera that the scene does not have, or "ray" for a scene with
            textures or partial transparency.
        SerlError: "gl" was requested and cannot be used on this machine.
    """

    def __init__(
        self,
        model: mujoco.MjModel,
        data: mujoco.MjData,
        views: Mapping[str, View],
        renderer: str,
        add_noise: Callable[[str, Image], Image] = lambda camera, picture: picture,
    ) -> None:
        for name, view in views.items():
            try:
                camera_index(model, view.camera)
            except BadInput as error:
                raise BadInput(f"view {name}: {error}") from None
        self._views, self._add_noise = views, add_noise
        self._renderer: Any = _renderer(model, data, views, renderer) if views else None

    def pictures(self) -> dict[tuple[str, tuple[int, int]], Image]:
        """Return the current picture of each camera, at each capture size of its views.

        Pictures are uint8 (H, W, 3).
        """
        sources = dict.fromkeys((view.camera, view.capture_size) for view in self._views.values())
        return {
            (camera, size): self._add_noise(camera, self._renderer.frame(camera, *size))
            for camera, size in sources
        }

    def images(self) -> dict[str, Image]:
        """Return the current image of each view, uint8 (H, W, 3)."""
        pictures = self.pictures()
        return {
            name: view.cut(pictures[view.camera, view.capture_size])
            for name, view in self._views.items()
        }

    def close(self) -> None:
        """Release the renderer."""
        if self._renderer is not None:
            self._renderer.close()


def _renderer(
    model: mujoco.MjModel, data: mujoco.MjData, views: Mapping[str, View], name: str
) -> Any:
    not_drawn = ray.not_drawn(model)
    largest = max(max(view.capture_size) for view in views.values())
    small = largest <= _RAY_PX and not _has_gpu()
    if name == "ray" or (name == "auto" and small and not not_drawn):
        if not_drawn:
            raise BadInput(not_drawn)
        return ray.RayRenderer(model, data, shadows=False)
    try:
        return gl.GLRenderer(model, data, shadows=False)
    except SerlError as error:
        if name == "gl" or not_drawn:
            raise
        logger.warning("%s; drawing with rays", error)
        return ray.RayRenderer(model, data, shadows=False)


def _has_gpu() -> bool:
    return Path("/proc/driver/nvidia").exists() or Path("/dev/kfd").exists()
