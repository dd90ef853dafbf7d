"""Rendering for people: the appearance of a simulation, by OpenGL where there is one."""

from __future__ import annotations

import logging
from typing import Any

from serl.errors import SerlError
from serl.sim.render import gl, ray
from serl.types import Image

_LARGE_PX = 400
_EDGE_PX, _EDGE = 3, 255

logger = logging.getLogger(__name__)


class PeopleRenderer:
    """Renderer of a simulation for people, which shows the present state with every frame.

    A robot without an `appearance` is drawn as its own model is. Without OpenGL, rays draw the
    scene without shadows, and for live views the simulation's own model, because meshes take eight
    times as long.

    Args:
        supersampling: samples per pixel along each axis.
        name: "gl", "ray", or "" for "gl" if it can be used.
        shadows: draw shadows; pictures without them are for live views.

    Raises:
        SerlError: "gl" was requested, or rays cannot draw the model, and there is no OpenGL.
    """

    def __init__(
        self, robot: Any, supersampling: int = 1, name: str = "", shadows: bool = True
    ) -> None:
        self._shown: Any = robot.appearance() if hasattr(robot, "appearance") else None
        arguments = supersampling, shadows
        if name != "ray":
            subject = self._shown or robot
            try:
                self._renderer: Any = gl.GLRenderer(subject.model, subject.data, *arguments)
                return
            except SerlError as error:
                if name or ray.not_drawn(subject.model):
                    raise
                logger.info("%s; drawing with rays", error)
            if not shadows:
                self._shown = None
            arguments = 1, False
        subject = self._shown or robot
        self._renderer = ray.RayRenderer(subject.model, subject.data, *arguments)

    @property
    def _has_detail(self) -> bool:
        return self._shown is not None and self._shown.has_detail

    def frame(self, camera: str, width: int, height: int) -> Image:
        """Return the current view of `camera`.  # (H, W, 3) uint8.

        A large picture from the camera `front` has an inset of the scene's detail.

        Raises:
            BadInput: the scene has no such camera.
        """
        if self._shown is not None:
            self._shown.update()
        image: Image = self._renderer.frame(camera, width, height)
        if camera == "front" and self._has_detail and width >= _LARGE_PX:
            inset = self._renderer.frame("detail", width * 3 // 8, width * 9 // 32)
            high, wide = inset.shape[:2]
            image[: high + _EDGE_PX, -wide - _EDGE_PX :] = _EDGE
            image[:high, -wide:] = inset
        return image

    def close(self) -> None:
        """Release the renderer."""
        self._renderer.close()
