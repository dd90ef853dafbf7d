"""URDF of a simulated arm, for the topic `robot_description` of RViz, Foxglove and others."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any
from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

import mujoco
import numpy as np

JOINTS = 7
BASE, TOOL = "base", "tcp"
"""Names of the first and the last link, which are the frames of the arm's messages."""

_VERTICAL = 1.0 - 1e-12
_FASTEST_RAD_S = 2.175  # of a Panda's slower joints
_SHAPES = {
    int(mujoco.mjtGeom.mjGEOM_CAPSULE): "cylinder",
    int(mujoco.mjtGeom.mjGEOM_CYLINDER): "cylinder",
    int(mujoco.mjtGeom.mjGEOM_BOX): "box",
}

_Place = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]
"""A position, and a quaternion wxyz."""

_OPTICAL: _Place = np.zeros(3), np.array((0.0, 1.0, 0.0, 0.0))
"""Pose of REP 103's camera frame (y down, z forward) in MuJoCo's (y up, z backward)."""


def arm_urdf(
    model: mujoco.MjModel,
    prefix: str = "",
    base: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0),
) -> str:
    """Return the links, joints and shapes of an arm, with the frames of base, tool and cameras.

    Joints have the names of the joint states. Fingers are fixed, as their joint states have a topic
    of their own; a capsule is drawn as a cylinder. There are no masses. The cameras are those of
    the hand and those fixed to the world; the link of one is its optical frame, with its name.

    Args:
        model: model of the arm.
        prefix: prefix of the arm's names, which the URDF leaves out, except in names of cameras.
        base: x y z and yaw in the model of the frame of the link `base`.
    """
    robot = Element("robot", name=f"{prefix}serl_arm")
    SubElement(robot, "link", name=BASE)
    turn = np.array((math.cos(0.5 * base[3]), 0.0, 0.0, math.sin(0.5 * base[3])))
    world = np.zeros(3), np.zeros(4)  # in the frame of the base
    mujoco.mju_negPose(*world, np.array(base[:3]), turn)
    before = BASE
    for number in range(1, JOINTS + 1):
        body = model.body(f"{prefix}link{number}")
        place = body.pos, body.quat
        if before == BASE:
            place = _product(world, place)
        _add_link(robot, model, prefix, before, f"link{number}", place, f"joint{number}")
        before = f"link{number}"
    for name, parent in (("hand", before), ("finger_left", "hand"), ("finger_right", "hand")):
        body = model.body(f"{prefix}{name}")
        _add_link(robot, model, prefix, parent, name, (body.pos, body.quat))
    site = model.site(f"{prefix}{TOOL}")
    _add_frame(robot, "hand", TOOL, (site.pos, site.quat))
    hand = model.body(f"{prefix}hand").id
    for camera in filter(lambda each: each.name, map(model.camera, range(model.ncam))):
        place = _product((camera.pos, camera.quat), _OPTICAL)
        if camera.bodyid[0] == 0:
            _add_frame(robot, BASE, camera.name, _product(world, place))
        elif camera.bodyid[0] == hand:
            _add_frame(robot, "hand", camera.name, place)
    ElementTree.indent(robot)
    return ElementTree.tostring(robot, encoding="unicode")


def _product(first: _Place, second: _Place) -> _Place:
    """Return the product of two poses: `second` is in the frame of `first`."""
    position, turn = np.zeros(3), np.zeros(4)
    mujoco.mju_mulPose(position, turn, *first, *second)
    return position, turn


def _add_frame(robot: Element, before: str, name: str, place: _Place) -> None:
    """Add a link without a shape, fixed to another link."""
    SubElement(robot, "link", name=name)
    _add_joint(robot, f"{name}_joint", "fixed", before, name, place)


def _add_link(
    robot: Element,
    model: mujoco.MjModel,
    prefix: str,
    before: str,
    name: str,
    place: _Place,
    joint: str = "",
) -> None:
    """Add the link of a body with its shapes, and its joint, at a place, to the link before it."""
    body = model.body(f"{prefix}{name}")
    link = SubElement(robot, "link", name=name)
    first = int(body.geomadr[0])
    for geom in range(first, first + int(body.geomnum[0])):
        if int(model.geom_type[geom]) in _SHAPES and model.geom_rgba[geom][3] > 0.0:
            _add_shape(link, model, geom)
    if not joint:
        _add_joint(robot, f"{name}_joint", "fixed", before, name, place)
        return
    turned = model.joint(f"{prefix}{joint}")
    added = _add_joint(robot, joint, "revolute", before, name, place)
    SubElement(added, "axis", xyz=_text(turned.axis))
    low, high = turned.range
    most_nm = model.jnt_actfrcrange[turned.id][1]
    SubElement(
        added, "limit", lower=f"{low:g}", upper=f"{high:g}", effort=f"{most_nm:g}",
        velocity=f"{_FASTEST_RAD_S:g}",
    )  # fmt: skip


def _add_joint(
    robot: Element, name: str, kind: str, before: str, after: str, place: _Place
) -> Element:
    joint = SubElement(robot, "joint", name=name, type=kind)
    SubElement(joint, "parent", link=before)
    SubElement(joint, "child", link=after)
    _add_origin(joint, place)
    return joint


def _add_shape(link: Element, model: mujoco.MjModel, geom: int) -> None:
    visual = SubElement(link, "visual")
    _add_origin(visual, (model.geom_pos[geom], model.geom_quat[geom]))
    shape, size = SubElement(visual, "geometry"), model.geom_size[geom]
    if _SHAPES[int(model.geom_type[geom])] == "box":
        SubElement(shape, "box", size=_text(2.0 * size))
    else:
        SubElement(shape, "cylinder", radius=f"{size[0]:g}", length=f"{2.0 * size[1]:g}")
    material = SubElement(visual, "material", name=f"colour{geom}")
    SubElement(material, "color", rgba=_text(model.geom_rgba[geom]))


def _add_origin(parent: Element, place: _Place) -> None:
    position, (w, x, y, z) = place
    roll = math.atan2(2.0 * (w * x + y * z), 1.0 - 2.0 * (x * x + y * y))
    sine = max(-1.0, min(1.0, 2.0 * (w * y - z * x)))
    pitch, yaw = math.asin(sine), math.atan2(2.0 * (w * z + x * y), 1.0 - 2.0 * (y * y + z * z))
    if abs(sine) > _VERTICAL:  # roll and yaw turn about one axis
        roll, yaw = 0.0, math.copysign(2.0, -sine) * math.atan2(x, w)
    SubElement(parent, "origin", xyz=_text(position), rpy=_text((roll, pitch, yaw)))


def _text(numbers: Iterable[float]) -> str:
    return " ".join(f"{number:.9g}" for number in numbers)
