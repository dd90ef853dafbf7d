"""Pictures of a simulation in two layers: what stands still, and what moves before it.

Rays are cast only where something may be that moves, and only at what may be there. Behind it,
planes and boxes need no rays, and nothing is drawn anew while the camera stands still as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import mujoco
import numpy as np

from serl.sim.render.projection import cast, for_rays
from serl.sim.render.flats import Flats, is_flat
from serl.sim.render.lighting import floor_of, looks_fields, looks_of
from serl.sim.render.outlines import Geoms, Outline, pixels_inside
from serl.sim.render.pinhole import Eye, Pinhole, Values, eye_of, pixel_directions
from serl.sim.render.shading import (
    SKY,
    Colors,
    brightness,
    fading,
    floor_tiles,
    to_bytes,
)  # fmt: skip
from serl.types import Image


class _Layer(NamedTuple):
    """What has been drawn, and how far ahead of the camera, along its axis, it is."""

    image: Image  # (H * W, 3)
    depths_m: Values  # (H * W,)


class Layers:
    """Draws a simulation without shadows.

    Geoms stand still that no joint moves: of the world, or of bodies that are only placed. The
    model may change its light, and how geoms look, how large and where they are.
    """

    def __init__(self, model: mujoco.MjModel, data: mujoco.MjData) -> None:
        self._model, self._data = model, data
        self._floor = floor_of(model)
        self._watched = (
            model.geom_rgba, model.geom_size, model.geom_aabb, model.geom_matid,
            *looks_fields(model),
        )  # fmt: skip
        self._known: list[bytes] = []
        self._stills: dict[tuple[int, Pinhole], tuple[bytes, _Layer]] = {}

    def picture(self, index: int, pinhole: Pinhole) -> Image:
        """The view of camera number `index` now.  # (H * W, 3) uint8."""
        self._notice_changes()
        eye = eye_of(self._data, index, pinhole)
        places = self._still.places(self._data) + eye.origin.tobytes() + eye.rotation.tobytes()
        before, still = self._stills.get((index, pinhole), (b"", None))
        moved = still is None or before != places
        outlines = (self._all if moved else self._moving).outlines(self._data, eye)
        moving = {geom: outlines.pop(geom) for geom in self._movers & outlines.keys()}
        if still is None or moved:
            still = self._draw_still(eye, outlines)
            self._stills[index, pinhole] = places, still
        picture = _Layer(still.image.copy(), still.depths_m.copy())
        self._cast(picture, eye, moving)
        return picture.image

    def _notice_changes(self) -> None:
        """Begin anew if things look otherwise than last time."""
        known = [array.tobytes() for array in self._watched]
        if known == self._known:
            return
        self._known = known
        self._stills.clear()
        model = self._model
        self._looks = looks_of(model)
        self._shown = for_rays(model)
        colors = self._shown.geom_rgba.copy()
        self._colors: Colors = colors[:, :3]
        moves = model.body_dofnum[model.body_weldid[model.geom_bodyid]] > 0
        shown = colors[:, 3] != 0.0
        self._all, self._still, self._moving = (
            Geoms(model, np.flatnonzero(some)) for some in (shown, shown & ~moves, shown & moves)
        )
        self._movers = set(self._moving.ids.tolist())

    def _draw_still(self, eye: Eye, outlines: Mapping[int, Outline]) -> _Layer:
        """What stands still, before the sky."""
        kinds = self._model.geom_type
        flat = {geom: outline for geom, outline in outlines.items() if is_flat(kinds[geom])}
        layer = self._draw_flat(eye, flat)
        self._cast(layer, eye, {g: outline for g, outline in outlines.items() if g not in flat})
        return layer

    def _draw_flat(self, eye: Eye, outlines: Mapping[int, Outline]) -> _Layer:
        flats = Flats(eye)
        flats.add(self._model, self._data, outlines)
        geoms = [face.geom for face in flats.faces]
        normals = np.array([face.normal for face in flats.faces]).reshape(-1, 3)
        bright = brightness(normals, self._looks)
        colors = np.concatenate([SKY[None], self._colors[geoms] * bright])
        image = to_bytes(colors).take(flats.numbers.ravel(), axis=0)
        if self._floor in geoms:
            number = geoms.index(self._floor)
            self._draw_floor(image, flats, number + 1, bright[number])
        return _Layer(image, flats.depths_m.ravel())

    def _draw_floor(self, image: Image, flats: Flats, number: int, bright: Colors) -> None:
        """Its tiles, and the background where it fades."""
        pixels = np.flatnonzero(flats.numbers == number)
        x_m, y_m = flats.places(pixels)
        tiles, share = floor_tiles(x_m, y_m, self._looks.tiles_m), fading(x_m, y_m)
        colors = self._looks.floor * bright
        image[pixels] = to_bytes(colors.copy()).take(tiles, axis=0)
        far = np.flatnonzero(share)
        if len(far):
            near = colors[tiles[far]]
            image[pixels[far]] = to_bytes(near + share[far] * (SKY - near))

    def _cast(self, layer: _Layer, eye: Eye, outlines: Mapping[int, Outline]) -> None:
        """Draw geoms by rays within their outlines, where nothing is nearer."""
        if not outlines:
            return
        pixels = pixels_inside(outlines.values(), eye.pinhole)
        directions = pixel_directions(eye.pinhole).take(pixels, axis=0)
        self._shown.geom_rgba[:, 3] = 0.0
        self._shown.geom_rgba[list(outlines), 3] = 1.0
        hits = cast(self._shown, self._data, eye.origin, eye.rays(directions))
        depths_m = hits.distances * -directions[:, 2]
        nearer = np.flatnonzero((hits.geoms >= 0) & (depths_m < layer.depths_m.take(pixels)))
        pixels = pixels[nearer]
        layer.depths_m[pixels] = depths_m[nearer]
        colors = self._colors.take(hits.geoms[nearer], axis=0)
        colors *= brightness(hits.normals.take(nearer, axis=0), self._looks)
        layer.image[pixels] = to_bytes(colors)
