"""A scene as people see it: smooth arms on a table in a room, at the poses of a simulation.

Physics and the views of policies use the simulation's own model, which does not depend on this one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import mujoco
import numpy as np

from serl.sim.physics.franka import OWN_CLASSES
from serl.sim.render.franka_skin import COLOURS, shells
from serl.sim.render.surfaces import Surface, block
from serl.task import Detail

_PART = re.compile(r"(link\d|hand|finger)(_left|_right)?$")
_SHOULDER_M = 0.333  # height of the first link above the base
_MOVED = ("geom_rgba", "geom_size", "geom_pos", "geom_aabb", "geom_rbound")
_SEEN = ("cam_pos", "cam_quat", "cam_fovy")
_POSED = ("qpos", "mocap_pos", "mocap_quat")

_ROOM = {  # colour, specular reflection, shininess
    **{name: (rgba, 0.3, 0.4) for name, rgba in COLOURS.items()},
    "table_top": ((0.94, 0.91, 0.86, 1.0), 0.0, 0.0),
    "table_frame": ((0.30, 0.31, 0.33, 1.0), 0.1, 0.2),
}
_KEY, _AMBIENT = (0.46, 0.455, 0.44), (0.44, 0.445, 0.455)
_LAMP_AWAY_M, _SHADOW_PX = 2.5, 1024
_SKY, _HORIZON, _FLOOR = (0.93, 0.94, 0.95), (0.87, 0.88, 0.89), (0.91, 0.92, 0.93)
_HEIGHT_SHARE = 0.75  # of the width of a picture
_BEHIND_M, _AHEAD_M, _BESIDE_M = 0.36, 0.98, 0.66  # from the bases to the ends of the table
_TOP_M, _HEIGHT_M, _LEG_M = 0.028, 0.74, 0.03


class Appearance:
    """The drawn model of a simulation.

    Args:
        data: live state of the simulation.
        detail: place of the scene that a camera `detail` shows from near.

    Attributes:
        model: the drawn model: the simulation's bodies and cameras, with other geoms for its arms.
        data: the drawn poses.
        has_detail: whether there is a camera `detail`.
    """

    def __init__(
        self, mjcf: str, model: mujoco.MjModel, data: mujoco.MjData, detail: Detail | None = None
    ) -> None:
        self._simulated, self.has_detail = (model, data), detail is not None
        spec = mujoco.MjSpec.from_string(mjcf)
        spec.compile()  # numbers the geoms as in the simulation
        floor = spec.geom("table")
        kept = {
            geom.id: geom
            for geom in spec.geoms
            if geom != floor and geom.classname.name not in OWN_CLASSES
        }
        cameras = {camera.id: camera for camera in spec.cameras}
        _dress(spec)
        bases = [model.body(index) for index in range(model.nbody)]
        _furnish(spec, floor, [body for body in bases if body.name.endswith("link1")])
        if detail is not None:
            _add_detail(spec, detail)
        spec.option.enableflags &= ~int(mujoco.mjtEnableBit.mjENBL_SLEEP)  # still bodies are moved
        self.model = spec.compile()
        self._from, self._to = np.array([(own, geom.id) for own, geom in kept.items()]).T
        self._cameras = [cameras[own].id for own in range(model.ncam)]
        self.data = mujoco.MjData(self.model)
        self.update()

    def update(self) -> None:
        """Copy poses, cameras, and the looks that a randomised world has changed."""
        model, data = self._simulated
        for name in _MOVED:
            getattr(self.model, name)[self._to] = getattr(model, name)[self._from]
        for name in _SEEN:
            getattr(self.model, name)[self._cameras] = getattr(model, name)
        for name in _POSED:
            getattr(self.data, name)[:] = getattr(data, name)
        mujoco.mj_kinematics(self.model, self.data)
        mujoco.mj_camlight(self.model, self.data)


def _dress(spec: Any) -> None:
    """Replace the arms' simple geoms by shells."""
    for name, (rgba, specular, shininess) in _ROOM.items():
        spec.add_material(name=name, rgba=rgba, specular=specular, shininess=shininess)
    for name, parts in shells().items():
        for number, shell in enumerate(parts):
            _add_mesh(spec, f"{name}{number}", shell.surface)
    for body in spec.bodies:
        own = [geom for geom in body.geoms if geom.classname.name in OWN_CLASSES]
        for geom in own:
            spec.delete(geom)
        part = _PART.search(body.name)
        if own and part:
            _add_shells(body, part[1])


def _furnish(spec: Any, floor: Any, bases: Sequence[Any]) -> None:
    """Put the arms onto a table, and the table onto the floor of a room that ends in fog."""
    sky = next(each for each in spec.textures if each.type == mujoco.mjtTexture.mjTEXTURE_SKYBOX)
    sky.builtin, sky.rgb1, sky.rgb2 = mujoco.mjtBuiltin.mjBUILTIN_GRADIENT, _SKY, _HORIZON
    spec.visual.quality.shadowsize = _SHADOW_PX
    key, sky_light = (spec.light(name) for name in ("serl_key", "serl_sky"))
    key.diffuse, key.pos = _KEY, -_LAMP_AWAY_M * np.array(key.dir)
    # OpenGL takes the ambient light of a lamp out of its shadow.
    sky_light.ambient, key.ambient = _AMBIENT, (0.0, 0.0, 0.0)
    if not bases:
        return
    corners = []
    for base in bases:
        place, (w, x, y, z) = base.pos, base.quat
        _add_shells(spec.worldbody, "base", (*place[:2], place[2] - _SHOULDER_M), base.quat)
        cos, sin = 1.0 - 2.0 * (y * y + z * z), 2.0 * (x * y + w * z)
        corners += [
            (place[0] + cos * ahead - sin * beside, place[1] + sin * ahead + cos * beside)
            for ahead in (-_BEHIND_M, _AHEAD_M)
            for beside in (-_BESIDE_M, _BESIDE_M)
        ]
    low, high = np.min(corners, axis=0), np.max(corners, axis=0)
    _add_table(spec, low, high)
    floor.pos = (0.0, 0.0, -_HEIGHT_M)
    floor.size = (0.0, 0.0, 0.1)  # without ends
    spec.texture("tiles").rgb1 = spec.texture("tiles").rgb2 = _FLOOR
    spec.material("tiles").emission = 0.13
    middle = np.array((*0.5 * (low + high), 0.2))
    key.pos = key.pos + middle
    spec.stat.center, spec.stat.extent = middle, 1.1


def _add_table(spec: Any, low: Any, high: Any) -> None:
    """Add a table whose top, at height 0, reaches from `low` to `high` (x, y)."""
    (left, near), (right, far) = low.tolist(), high.tolist()
    _add_mesh(spec, "table_top", block((left, right), (near, far), (-_TOP_M, 0.0), 0.006))
    _add_geom(spec.worldbody, "table_top", "table_top")
    inset = 0.06
    for x in (low[0] + inset, high[0] - inset):
        for y in (low[1] + inset, high[1] - inset):
            leg = 0.5 * (_HEIGHT_M - _TOP_M)
            place, size = (x, y, -_TOP_M - leg), (_LEG_M, _LEG_M, leg)
            _add_box(spec.worldbody, place, size, "table_frame")


def _add_detail(spec: Any, detail: Detail) -> None:
    """Add the camera `detail`, and what is dark in its place."""
    body = spec.body(detail.body)
    away = np.subtract(detail.from_m, detail.place_m)
    distance_m = float(np.linalg.norm(away))
    back = away / distance_m
    right = np.array((-back[1], back[0], 0.0)) / np.hypot(back[0], back[1])
    turn = np.stack([right, np.cross(back, right), back], axis=1)
    quaternion = np.zeros(4)
    mujoco.mju_mat2Quat(quaternion, turn.ravel())
    half_m = 0.5 * _HEIGHT_SHARE * detail.width_m
    fovy = math.degrees(2.0 * math.atan(half_m / distance_m))
    body.add_camera(name="detail", pos=detail.from_m, quat=quaternion, fovy=fovy)
    for centre, half_size in detail.dark:
        _add_box(body, centre, half_size, "dark")


def _add_mesh(spec: Any, name: str, surface: Surface) -> None:
    spec.add_mesh(
        name=name,
        uservert=surface.vertices.ravel(),
        usernormal=surface.normals.ravel(),
        userface=surface.faces.ravel(),
        inertia=mujoco.mjtMeshInertia.mjMESH_INERTIA_SHELL,
    )


def _add_shells(
    body: Any, part: str, place: Sequence[float] = (0.0, 0.0, 0.0), turn: Any = (1, 0, 0, 0)
) -> None:
    for number, shell in enumerate(shells()[part]):
        _add_geom(body, f"{part}{number}", shell.colour, place, turn)


def _add_geom(
    body: Any, mesh: str, material: str, place: Any = (0.0, 0.0, 0.0), turn: Any = (1, 0, 0, 0)
) -> None:
    body.add_geom(
        type=mujoco.mjtGeom.mjGEOM_MESH, meshname=mesh, material=material, pos=place, quat=turn,
        **_NO_CONTACT,
    )  # fmt: skip


def _add_box(body: Any, centre: Any, half_size: Any, material: str) -> None:
    body.add_geom(
        type=mujoco.mjtGeom.mjGEOM_BOX, pos=centre, size=half_size, material=material,
        **_NO_CONTACT,
    )  # fmt: skip


_NO_CONTACT = {"contype": 0, "conaffinity": 0, "mass": 0.0}
