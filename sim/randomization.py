"""Worlds sampled for each episode, from its seed and the ranges of `randomization_ranges`.

The changed fields of the model are read by both renderers and the physics, and can be restored
exactly.
"""

from __future__ import annotations

import colorsys
import math
import re
from collections.abc import Mapping
from typing import Any

import mujoco
import numpy as np

from serl.geometry import from_rotation_vector, multiply
from serl.motion import Motion
from serl.sim.disturbance import CameraNoise, Disturbance
from serl.sim.physics.controller import Impedance
from serl.sim.physics.kinematics import to_wxyz
from serl.sim.randomization_ranges import LEVELS, Range
from serl.sim.render.lighting import lamp_light
from serl.task import Scene, TaskConfig
from serl.types import Image

_ARM_ROOT = re.compile(r"(^|[^a-z])(link1|rotation_target)$")
_ARM_JOINT = re.compile(r"(^|[^a-z])joint\d$")
_PAD = re.compile(r"(^|[^a-z])pad_(left|right)$")
_FIELDS = (
    "cam_pos", "cam_quat", "cam_fovy", "light_dir", "light_ambient", "geom_rgba", "mat_rgba",
    "mat_texrepeat", "geom_pos", "geom_size", "geom_aabb", "geom_rbound", "bvh_aabb",
    "geom_friction", "body_mass", "body_inertia", "body_gravcomp", "dof_damping",
    "dof_frictionloss",
)  # fmt: skip
Array64 = np.ndarray[Any, np.dtype[np.float64]]


def distractors_mjcf(level: str) -> str:
    """Return the MJCF of distractors, which collide with nothing; a world makes them visible."""
    count = LEVELS[level].distractors if level in LEVELS else 0
    kinds = ("box", "sphere", "cylinder", "ellipsoid", "box", "capsule")
    looks = 'size="0.03 0.03 0.03" contype="0" conaffinity="0" rgba="0.5 0.5 0.5 0"'
    return "".join(
        f'<geom name="distractor{index}" type="{kinds[index % len(kinds)]}" {looks}/>'
        for index in range(count)
    )


class Randomizer:
    """Sampler of randomised worlds for a simulation.

    Args:
        model: model of the arms in their scene; `draw` changes it.
        config: settings of the task; the cameras of its views are randomised.
        impedances: controller gains of the arms, by the prefix of their names.

    Attributes:
        disturbances: disturbances of the last world, one for each arm, in the order of the arms; or
            one for a robot without arms.
    """

    def __init__(
        self,
        model: mujoco.MjModel,
        scene: Scene,
        config: TaskConfig,
        impedances: Mapping[str, Impedance],
    ) -> None:
        self._model, self._scene, self._impedances = model, scene, impedances
        self._ranges = LEVELS[config.randomize]
        self._scratch = mujoco.MjData(model)
        self._nominal = {name: getattr(model, name).copy() for name in _FIELDS}
        names = {view.camera for view in config.all_views.values()}
        self._cameras = [i for i in range(model.ncam) if model.camera(i).name in names]
        roots = [model.body(int(root)).name for root in model.body_rootid]
        arm = np.array([bool(_ARM_ROOT.search(name)) for name in roots])
        self._links = np.flatnonzero(arm & (model.body_gravcomp > 0.0))
        self._objects = np.flatnonzero(~arm & (np.arange(model.nbody) > 0))
        joints = [_ARM_JOINT.search(model.joint(i).name) is not None for i in range(model.njnt)]
        self._joints = model.jnt_dofadr[np.flatnonzero(joints)]
        placed = (name for name in scene.tracked if model.body(name).mocapid[0] >= 0)
        self._placed = tuple(placed)
        self._camera_noise: dict[str, CameraNoise] = {}
        self.draw(0)

    def draw(self, seed: int) -> None:
        """Sample the world of a seed; it depends on the seed alone, not on earlier worlds."""
        self.restore()
        self.seed = seed
        self.disturbances = [
            Disturbance(self._ranges, seed, () if number else self._placed, prefix, number)
            for number, prefix in enumerate(self._impedances or [""])
        ]
        groups = (
            self._draw_cameras, self._draw_light, self._draw_colors, self._draw_distractors,
            self._draw_arm, self._draw_objects, self._draw_camera_noise,
        )  # fmt: skip
        for number, group in enumerate(groups, 10):
            group(np.random.default_rng((seed, number)))
        if self._ranges.mass != (1.0, 1.0):
            mujoco.mj_setConst(self._model, self._scratch)

    def restore(self) -> None:
        """Restore the original model, bit by bit."""
        for name, values in self._nominal.items():
            getattr(self._model, name)[:] = values
        for impedance in self._impedances.values():
            impedance.scale(1.0, 1.0)
        mujoco.mj_setConst(self._model, self._scratch)

    def start(self, tcp: Array64, motion: Motion, number: int = 0) -> Array64:
        """Return the randomised start pose of the empty hand of arm `number`.  # (7,)."""
        if not self._ranges.start_m:
            return tcp
        rng = np.random.default_rng((self.seed, 5, number) if number else (self.seed, 5))
        moved = tcp[:3] + rng.uniform(-self._ranges.start_m, self._ranges.start_m, 3)
        turn = from_rotation_vector((0.0, 0.0, _aside(rng, self._ranges.start_rad)))
        x, y, z, w = tcp[3:].tolist()
        moved = moved.clip(motion.box_low_m, motion.box_high_m)
        return np.array((*moved, *multiply(turn, (x, y, z, w))))

    def picture(self, camera: str, picture: Image, time_s: float) -> Image:
        """Return a picture with the noise of its camera at `time_s`."""
        if camera not in self._camera_noise:
            return picture
        number = list(self._camera_noise).index(camera)
        tick = max(0, round(time_s / 0.002))
        return self._camera_noise[camera].picture(
            picture, np.random.default_rng((self.seed, 6, number, tick))
        )

    def _draw_cameras(self, rng: np.random.Generator) -> None:
        ranges, model = self._ranges, self._model
        for camera in self._cameras:
            model.cam_pos[camera] += rng.uniform(-ranges.camera_m, ranges.camera_m, 3)
            axis = rng.normal(size=3)
            turned = axis * (_aside(rng, ranges.camera_rad) / np.linalg.norm(axis))
            w, x, y, z = model.cam_quat[camera].tolist()
            rx, ry, rz = turned.tolist()
            turn = from_rotation_vector((rx, ry, rz))
            model.cam_quat[camera] = to_wxyz(multiply((x, y, z, w), turn))
            model.cam_fovy[camera] += math.degrees(_aside(rng, ranges.fovy_rad))

    def _draw_light(self, rng: np.random.Generator) -> None:
        ranges, model = self._ranges, self._model
        if ranges.lamp_m:
            shift = rng.uniform(-ranges.lamp_m, ranges.lamp_m, 3)
            model.light_dir[0] = lamp_light(shift)
        if ranges.ambient:
            model.light_ambient[0] = rng.uniform(*ranges.ambient)

    def _draw_colors(self, rng: np.random.Generator) -> None:
        """Tint the geoms and the floor; geoms of equal colour keep equal colours."""
        ranges, model = self._ranges, self._model
        colors, which = np.unique(self._nominal["geom_rgba"], axis=0, return_inverse=True)
        tinted = [_tinted(color, ranges.color, rng) for color in colors[:, :3].tolist()]
        plain = model.geom_matid < 0  # in OpenGL a geom's own colour overrides its material's
        model.geom_rgba[plain, :3] = np.array(tinted)[which.ravel()][plain]
        if model.nmat:
            floor = model.geom("table").matid[0]
            model.mat_rgba[floor, :3] = _tinted([0.9, 0.9, 0.9], ranges.color, rng)
            model.mat_rgba[floor, :3] /= 0.9
            model.mat_texrepeat[floor] *= _between(rng, ranges.tiles)

    def _draw_distractors(self, rng: np.random.Generator) -> None:
        """Show a random number of distractors on the table, around the field."""
        model, count = self._model, self._ranges.distractors
        shown = int(rng.integers(0, count, endpoint=True)) if count else 0
        for index in range(shown):
            geom = model.geom(f"distractor{index}").id
            size = rng.uniform(0.015, 0.045, 3)
            side = rng.choice((-1.0, 1.0))
            place = (rng.uniform(0.15, 0.95), side * rng.uniform(0.30, 0.60), size[2])
            hue = colorsys.hsv_to_rgb(rng.uniform(), rng.uniform(0.3, 0.9), rng.uniform(0.4, 0.95))
            model.geom_rgba[geom] = (*hue, 1.0)
            model.geom_pos[geom], model.geom_size[geom] = place, size
            reach = float(size.sum())
            model.geom_aabb[geom] = (0.0, 0.0, 0.0, reach, reach, reach)
            model.geom_rbound[geom] = math.sqrt(3.0) * reach

    def _draw_arm(self, rng: np.random.Generator) -> None:
        ranges, model, joints = self._ranges, self._model, self._joints
        for impedance in self._impedances.values():
            impedance.scale(_between(rng, ranges.stiffness), _between(rng, ranges.damping))
        low, high = np.log(ranges.joint_damping)
        model.dof_damping[joints] *= np.exp(rng.uniform(low, high, len(joints)))
        model.dof_frictionloss[joints] += rng.uniform(*ranges.joint_friction_nm, len(joints))
        wrong = rng.uniform(-ranges.gravity, ranges.gravity, len(self._links))
        model.body_gravcomp[self._links] *= 1.0 + wrong

    def _draw_objects(self, rng: np.random.Generator) -> None:
        ranges, model = self._ranges, self._model
        friction = _between(rng, ranges.friction)
        touching = np.isin(model.geom_bodyid, self._objects)
        touching |= [_PAD.search(model.geom(i).name) is not None for i in range(model.ngeom)]
        model.geom_friction[touching, 0] *= friction
        for body in self._objects.tolist():
            factor = _between(rng, ranges.mass)
            model.body_mass[body] *= factor
            model.body_inertia[body] *= factor
            size, clearance = _between(rng, ranges.size), rng.uniform()
            fit_m = self._scene.fits.get(model.body(body).name)
            if fit_m is not None and ranges.clearance_m:
                low, high = ranges.clearance_m
                self._thin(body, low + clearance * (high - low) - fit_m)
            elif fit_m is None and _is_free(model, body):
                self._grow(body, size)

    def _draw_camera_noise(self, rng: np.random.Generator) -> None:
        names = (self._model.camera(index).name for index in self._cameras)
        self._camera_noise = {name: CameraNoise(self._ranges, rng) for name in names}

    def _grow(self, body: int, factor: float) -> None:
        """Scale a body by a factor about its origin."""
        model = self._model
        geoms = model.geom_bodyid == body
        for values in (model.geom_pos, model.geom_size, model.geom_aabb, model.geom_rbound):
            values[geoms] *= factor
        first = model.body_bvhadr[body]
        model.bvh_aabb[first : first + model.body_bvhnum[body]] *= factor

    def _thin(self, body: int, by_m: float) -> None:
        """Make the boxes of a body thinner on each side, along x and y."""
        model = self._model
        geoms = model.geom_bodyid == body
        model.geom_size[geoms, :2] -= by_m
        model.geom_aabb[geoms, 3:5] -= by_m
        model.geom_rbound[geoms] = np.linalg.norm(model.geom_size[geoms], axis=1)
        first = model.body_bvhadr[body]
        model.bvh_aabb[first : first + model.body_bvhnum[body], 3:5] -= by_m


def _is_free(model: mujoco.MjModel, body: int) -> bool:
    joint = model.body_jntadr[body]
    return bool(joint >= 0 and model.jnt_type[joint] == mujoco.mjtJoint.mjJNT_FREE)


def _tinted(color: list[float], share: float, rng: np.random.Generator) -> tuple[float, ...]:
    hue, saturation, value = colorsys.rgb_to_hsv(*color)
    turned, pale, dark = rng.uniform(-share, share, 3).tolist()
    return colorsys.hsv_to_rgb(
        (hue + turned) % 1.0,
        min(1.0, saturation * (1.0 + pale)),
        min(1.0, value * (1.0 + dark)),
    )


def _between(rng: np.random.Generator, limits: Range) -> float:
    return float(rng.uniform(*limits))


def _aside(rng: np.random.Generator, most: float) -> float:
    return float(rng.uniform(-most, most))
