"""Pictures drawn by OpenGL: for large ones, and where there is a GPU."""

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
    """Pictures of a simulation by `mujoco.Renderer`, one for each size, in one process.

    A context costs 100 MB; it belongs to the process that made it, and is not for a fork.

    Args:
        model: of the scene.
        data: its state, as it changes.
        supersampling: samples per pixel along each axis.
        shadows: cast them, at four times the cost.

    Raises:
        SerlError: OpenGL cannot be used here; the line says what would help.
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
        self._option.sitegroup[:] = 0  # rays do not meet them either
        self._contexts: dict[tuple[int, int], Any] = {}
        self._tiles = b""
        model.vis.quality.offsamples = supersampling**2 if supersampling > 1 else 0
        self._context(8, 8)  # what cannot work is said at once

    def frame(self, camera: str, width: int, height: int) -> Image:
        """The view of `camera` now.  # (H, W, 3) uint8.

        Raises:
            BadInput: the model has no such camera.
        """
        index = camera_index(self._model, camera)
        context = self._context(width, height)
        context.update_scene(self._data, camera=index, scene_option=self._option)
        image: Image = np.array(context.render())
        return image

    def close(self) -> None:
        """Let go of the contexts; without it, the end of the process is noisy."""
        for context in self._contexts.values():
            context.close()
        self._contexts.clear()

    def _context(self, width: int, height: int) -> Any:
        key = (width, height)
        tiles = self._model.mat_texrepeat.tobytes()
        if tiles != self._tiles:  # a context keeps how often a texture is repeated
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
        """The off-screen buffer of a context is as large as the model says when it is made."""
        space = self._model.vis.global_
        space.offwidth, space.offheight = max(space.offwidth, width), max(space.offheight, height)


def explain(error: Exception) -> str:
    """What is missing for OpenGL, in one line."""
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
