"""Rendering of a simulation in two layers: still geoms, and moving geoms in front of them.

Rays are cast only in the outlines of moving geoms, and only at these geoms. In the still layer,
planes and boxes need no rays, and the layer is redrawn only when a camera or a geom of it moves.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import mujoco
import numpy as np

from serl.sim.render.lighting import (
    SKY,
    Colors,
    brightness,
    fading,
    floor_of,
    floor_tiles,
    looks_fields,
    looks_of,
    to_bytes,
)  # fmt: skip
from serl.sim.render.projection import (
    Eye,
    Geoms,
    Integers,
    Outline,
    Pinhole,
    Values,
    eye_of,
    for_rays,
    pixel_directions,
    pixel_slopes,
    pixels_inside,
    ray_cast,
)
from serl.types import Image

_PLANE, _BOX = int(mujoco.mjtGeom.mjGEOM_PLANE), int(mujoco.mjtGeom.mjGEOM_BOX)
_OTHERS = ((1, 2), (2, 0), (0, 1))


def is_planar(kind: int) -> bool:
    """Return whether the surface of a kind of geom consists of flat faces."""
    return kind in (_PLANE, _BOX)


class Face(NamedTuple):
    """A rectangle of a geom's surface, and its normal in the base frame."""

    geom: int
    normal: Values  # (3,)


class PlanarFaces:
    """The flat faces seen from an eye, by pixel.

    Attributes:
        faces: the faces that may be visible.
        numbers: number of the face at each pixel, from 1; 0 where there is none.  # (H, W)
        depths_m: depth of that face along the axis of the eye.  # (H, W)
    """

    def __init__(self, eye: Eye) -> None:
        self._eye = eye
        self._right, self._up = pixel_slopes(eye.pinhole)
        size = eye.pinhole.height, eye.pinhole.width
        self._known_rays: dict[tuple[float, ...], Values] = {}
        self.faces: list[Face] = []
        self.numbers = np.zeros(size, np.int64)
        self.depths_m = np.full(size, np.inf)

    def add(
        self, model: mujoco.MjModel, data: mujoco.MjData, outlines: Mapping[int, Outline]
    ) -> None:
        """Add the faces of geoms, each within the outline of its geom."""
        geoms = list(outlines)
        turns = data.geom_xmat[geoms].reshape(-1, 3, 3)
        away = self._eye.origin - data.geom_xpos[geoms]
        places = (turns * away[:, :, None]).sum(axis=1).tolist()
        views = (turns[..., None] * self._eye.rotation[:, None]).sum(axis=1).tolist()
        sizes = model.geom_size[geoms].tolist()
        kinds = model.geom_type[geoms].tolist()
        with np.errstate(divide="ignore", invalid="ignore"):
            for index, geom in enumerate(geoms):
                place, size, plane = places[index], sizes[index], kinds[index] == _PLANE
                if plane:
                    size = [size[0] or math.inf, size[1] or math.inf, 0.0]
                left, top, right, bottom = outlines[geom]
                area = slice(top, bottom), slice(left, right)
                rays = [self._rays(row)[area] for row in views[index]]
                for axis, side in _facing(place, size, plane):
                    self.faces.append(Face(geom, side * turns[index, :, axis]))
                    self._see(axis, side * size[axis], place, rays, size, area)

    def places(self, pixels: Integers) -> tuple[Values, Values]:
        """Return x and y of the points seen at pixels, in the base frame, m.  # (N,) each."""
        depths_m = self.depths_m.take(pixels)
        x, y = (self._rays(row).take(pixels) for row in self._eye.rotation[:2].tolist())
        return self._eye.origin[0] + x * depths_m, self._eye.origin[1] + y * depths_m

    def _rays(self, row: list[float]) -> Values:
        """Return the component of rays along an axis, for 1 m of depth.  # (H, W)."""
        known = self._known_rays.get(key := tuple(row))  # many geoms have aligned axes
        if known is None:
            x, y, z = row
            known = self._known_rays[key] = x * self._right + (y * self._up - z)
        return known

    def _see(
        self, axis: int, at_m: float, place: list[float], rays: list[Values], size: list[float],
        area: Any,
    ) -> None:  # fmt: skip
        """Mark the pixels that see the last face, which is normal to `axis` of its geom."""
        depths_m = (at_m - place[axis]) / rays[axis]
        before_m = self.depths_m[area]
        sees = depths_m >= 0.0
        sees &= depths_m < before_m
        for other in _OTHERS[axis]:
            if size[other] < math.inf:
                points = rays[other] * depths_m
                points += place[other]
                sees &= np.abs(points, out=points) <= size[other]
        np.copyto(before_m, depths_m, where=sees)
        np.copyto(self.numbers[area], len(self.faces), where=sees)


def _facing(place: list[float], size: list[float], plane: bool) -> list[tuple[int, int]]:
    """Return axis and side of the faces visible from a place in the geom's frame."""
    if plane:
        return [(2, 1)] if place[2] >= 0.0 else []
    outside = [axis for axis in range(3) if abs(place[axis]) > size[axis]]
    if not outside:  # from inside, each face is visible
        return [(axis, side) for axis in range(3) for side in (1, -1)]
    return [(axis, 1 if place[axis] > 0.0 else -1) for axis in outside]


class _Layer(NamedTuple):
    """A drawn picture, with the depth of each pixel along the axis of the camera."""

    image: Image  # (H * W, 3)
    depths_m: Values  # (H * W,)


class Layers:
    """Renderer of a simulation without shadows, in two layers.

    Still geoms are those that no joint moves: geoms of the world and of mocap bodies. The light of
    the model may change, and the looks, sizes and places of geoms.
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
        """Return the current view of camera number `index`.  # (H * W, 3) uint8."""
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
        """Discard the still layers if the looks of the model have changed."""
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
        """Draw the still geoms in front of the sky."""
        kinds = self._model.geom_type
        flat = {geom: outline for geom, outline in outlines.items() if is_planar(kinds[geom])}
        layer = self._draw_planar(eye, flat)
        self._cast(layer, eye, {g: outline for g, outline in outlines.items() if g not in flat})
        return layer

    def _draw_planar(self, eye: Eye, outlines: Mapping[int, Outline]) -> _Layer:
        planar = PlanarFaces(eye)
        planar.add(self._model, self._data, outlines)
        geoms = [face.geom for face in planar.faces]
        normals = np.array([face.normal for face in planar.faces]).reshape(-1, 3)
        bright = brightness(normals, self._looks)
        colors = np.concatenate([SKY[None], self._colors[geoms] * bright])
        image = to_bytes(colors).take(planar.numbers.ravel(), axis=0)
        if self._floor in geoms:
            number = geoms.index(self._floor)
            self._draw_floor(image, planar, number + 1, bright[number])
        return _Layer(image, planar.depths_m.ravel())

    def _draw_floor(self, image: Image, planar: PlanarFaces, number: int, bright: Colors) -> None:
        """Draw the tiles of the floor, and its fading into the background."""
        pixels = np.flatnonzero(planar.numbers == number)
        x_m, y_m = planar.places(pixels)
        tiles, share = floor_tiles(x_m, y_m, self._looks.tiles_m), fading(x_m, y_m)
        colors = self._looks.floor * bright
        image[pixels] = to_bytes(colors.copy()).take(tiles, axis=0)
        far = np.flatnonzero(share)
        if len(far):
            near = colors[tiles[far]]
            image[pixels[far]] = to_bytes(near + share[far] * (SKY - near))

    def _cast(self, layer: _Layer, eye: Eye, outlines: Mapping[int, Outline]) -> None:
        """Draw geoms by rays within their outlines, except behind nearer pixels."""
        if not outlines:
            return
        pixels = pixels_inside(outlines.values(), eye.pinhole)
        directions = pixel_directions(eye.pinhole).take(pixels, axis=0)
        self._shown.geom_rgba[:, 3] = 0.0
        self._shown.geom_rgba[list(outlines), 3] = 1.0
        hits = ray_cast(self._shown, self._data, eye.origin, eye.rays(directions))
        depths_m = hits.distances * -directions[:, 2]
        nearer = np.flatnonzero((hits.geoms >= 0) & (depths_m < layer.depths_m.take(pixels)))
        pixels = pixels[nearer]
        layer.depths_m[pixels] = depths_m[nearer]
        colors = self._colors.take(hits.geoms[nearer], axis=0)
        colors *= brightness(hits.normals.take(nearer, axis=0), self._looks)
        layer.image[pixels] = to_bytes(colors)
