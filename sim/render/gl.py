"""Rendering by OpenGL, for large pictures and for machines with a GPU."""

from __future__ import annotations

import math
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

_LAMP_M, _LAMP_AWAY_M = 0.22, 2.5  # radius of a lamp, and its distance


class GLRenderer:
    """Renderer of a simulation by `mujoco.Renderer`, with one context for each picture size.

    A context takes 100 MB; it belongs to the process that created it, and does not survive a fork.

    Args:
        data: live state of the model.
        supersampling: samples per pixel along each axis. With shadows, each sample is a picture of
            its own under a lamp in another place, which makes the shadows soft.
        shadows: draw shadows, at twice the cost of a sample.

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
        self._shadows, self._samples = shadows, supersampling
        self._option = mujoco.MjvOption()
        self._option.sitegroup[:] = 0  # ray casting does not draw sites either
        self._contexts: dict[tuple[int, int], Any] = {}
        self._tiles = b""
        one_pass = supersampling > 1 and not shadows
        model.vis.quality.offsamples = supersampling**2 if one_pass else 0
        self._context(8, 8)  # fails early where OpenGL cannot be used

    def frame(self, camera: str, width: int, height: int) -> Image:
        """Return the current view of `camera`.  # (H, W, 3) uint8.

        Raises:
            BadInput: the model has no such camera.
        """
        index = camera_index(self._model, camera)
        context = self._context(width, height)
        context.update_scene(self._data, camera=index, scene_option=self._option)
        if not self._shadows or self._samples == 1:
            return np.array(context.render())
        total = np.zeros((height, width, 3), np.uint32)
        for sample in range(self._samples**2):
            context.update_scene(self._data, camera=index, scene_option=self._option)
            self._shift(context.scene, sample, height)
            total += context.render()
        image: Image = (total // self._samples**2).astype(np.uint8)
        return image

    def _shift(self, scene: mujoco.MjvScene, sample: int, height: int) -> None:
        """Shift the picture by a part of a pixel, and the lamps within their size."""
        count = self._samples
        across, up = (sample % count + 0.5) / count - 0.5, (sample // count + 0.5) / count - 0.5
        for camera in scene.camera:
            pixel = (camera.frustum_top - camera.frustum_bottom) / height
            camera.frustum_center += across * pixel
            camera.frustum_bottom += up * pixel
            camera.frustum_top += up * pixel
        # Neighbouring samples of a pixel shall not have neighbouring lamps: turn and stretch.
        radius, turn = math.sqrt((sample + 0.5) / count**2), 2.4 * sample
        for light in list(scene.lights)[: scene.nlight]:
            if light.castshadow:
                side, top = _sides(light.dir)
                shift = radius * (math.cos(turn) * side + math.sin(turn) * top)
                away = _LAMP_M * shift / _LAMP_AWAY_M
                light.dir = (light.dir - away) / np.linalg.norm(light.dir - away)
                light.pos = light.pos + _LAMP_M * shift

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


def _sides(direction: Any) -> tuple[Any, Any]:
    """Return two unit vectors across a direction."""
    axis = (1.0, 0.0, 0.0) if abs(direction[0]) < 0.7 else (0.0, 1.0, 0.0)
    side = np.cross(direction, axis)
    side /= np.linalg.norm(side)
    return side, np.cross(direction, side)


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
