"""Rendering by OpenGL, for large pictures and for machines with a GPU."""

from __future__ import annotations

import os
from typing import Any

import mujoco
import numpy as np

from serl.errors import SerlError
from serl.sim.render.projection import camera_index
from serl.types import Image

_PLATFORMS = {
    "egl": "libegl1 libopengl0 libgl1-mesa-dri",
    "osmesa": "libosmesa6",
    "glfw": "libgl1 and a display",
}


class GLRenderer:
    """Renderer of a simulation by `mujoco.Renderer`, with one context for each picture size.

    A context takes 100 MB; it belongs to the process that created it, and does not survive a fork.

    Args:
        model: model of the scene.
        data: live state of the model.
        supersampling: samples per pixel along each axis.
        shadows: draw shadows, at four times the cost.

    Raises:
        SerlError: OpenGL cannot be used on this machine; the message names the remedy.
    """

    def __init__(
        self,
        model: mujoco.MjModel,
        data: mujoco.MjData,
        supersampling: int = 1,
        shadows: bool = True,
    ) -> None:
        self._model, self._data = model, data
        self._shadows = shadows
        self._option = mujoco.MjvOption()
        self._option.sitegroup[:] = 0  # ray casting does not draw sites either
        self._contexts: dict[tuple[int, int], Any] = {}
        self._tiles = b""
        model.vis.quality.offsamples = supersampling**2 if supersampling > 1 else 0
        self._context(8, 8)  # fails early where OpenGL cannot be used

    def frame(self, camera: str, width: int, height: int) -> Image:
        """Return the current view of `camera`.  # (H, W, 3) uint8.

        Raises:
            BadInput: the model has no such camera.
        """
        index = camera_index(self._model, camera)
        context = self._context(width, height)
        context.update_scene(self._data, camera=index, scene_option=self._option)
        image: Image = np.array(context.render())
        return image

    def close(self) -> None:
        """Release the contexts; without it, MuJoCo prints errors when the process ends."""
        for context in self._contexts.values():
            context.close()
        self._contexts.clear()

    def _context(self, width: int, height: int) -> Any:
        key = (width, height)
        tiles = self._model.mat_texrepeat.tobytes()
        if tiles != self._tiles:  # a context caches the repetitions of a texture
            self.close()
            self._tiles = tiles
        if key not in self._contexts:
            self._fit_buffer(width, height)
            try:
                context = mujoco.Renderer(self._model, height, width)
            except Exception as error:  # each platform fails in its own way
                raise SerlError(explain(error)) from error
            if not self._shadows:
                for flag in (mujoco.mjtRndFlag.mjRND_SHADOW, mujoco.mjtRndFlag.mjRND_REFLECTION):
                    context.scene.flags[flag] = False
            self._contexts[key] = context
        return self._contexts[key]

    def _fit_buffer(self, width: int, height: int) -> None:
        """Enlarge the model's off-screen buffer, whose size a context takes over when created."""
        space = self._model.vis.global_
        space.offwidth, space.offheight = max(space.offwidth, width), max(space.offheight, height)


def explain(error: Exception) -> str:
    """Explain in one line the missing requirement of OpenGL."""
    platform = os.environ.get("MUJOCO_GL", "glfw")
    if platform in ("disable", "disabled", "off", "false", "0"):
        return (
            f"renderer gl: switched off by MUJOCO_GL={platform}; unset it, or choose renderer ray"
        )
    needed = _PLATFORMS.get(platform, "one of egl, osmesa, glfw in MUJOCO_GL")
    cause = " ".join(str(error).split())[:160]
    return (
        f"renderer gl: MUJOCO_GL={platform} does not work here, it needs {needed}; "
        f"renderer ray needs nothing ({type(error).__name__}: {cause})"
    )


renderer = GLRenderer
