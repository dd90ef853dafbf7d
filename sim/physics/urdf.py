"""URDF of a simulated arm, for the topic `robot_description` of RViz, Foxglove and others."""

from __future__ import annotations

import math
from collections.abc import Iterable
from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

import mujoco

JOINTS = 7
BASE, TOOL = "base", "tcp"
"""Names of the first and the last link, which are the frames of the arm's messages."""

_FASTEST_RAD_S = 2.175  # of a Panda's slower joints
_SHAPES = {
    int(mujoco.mjtGeom.mjGEOM_CAPSULE): "cylinder",
    int(mujoco.mjtGeom.mjGEOM_CYLINDER): "cylinder",
    int(mujoco.mjtGeom.mjGEOM_BOX): "box",
}


def arm_urdf(model: mujoco.MjModel, prefix: str = "") -> str:
    """Return the links, joints and shapes of an arm, with the frames of the arm's base and tool.

    Joints have the names of the joint states. Fingers are fixed, as their joint states have a topic
    of their own; a capsule is drawn as a cylinder. There are no masses.

    Args:
        model: model of the arm.
        prefix: prefix of the arm's names, which the URDF leaves out.
    """
    robot = Element("robot", name=f"{prefix}serl_arm")
    SubElement(robot, "link", name=BASE)
    before = BASE
    for number in range(1, JOINTS + 1):
        _add_link(robot, model, prefix, before, f"link{number}", f"joint{number}")
        before = f"link{number}"
    _add_link(robot, model, prefix, before, "hand")
    for side in ("left", "right"):
        _add_link(robot, model, prefix, "hand", f"finger_{side}")
    site = model.site(f"{prefix}{TOOL}")
    SubElement(robot, "link", name=TOOL)
    _add_joint(robot, f"{TOOL}_joint", "fixed", "hand", TOOL, (site.pos, site.quat))
    ElementTree.indent(robot)
    return ElementTree.tostring(robot, encoding="unicode")


_Place = tuple[Iterable[float], Iterable[float]]
"""A position, and a quaternion wxyz."""


def _add_link(
    robot: Element, model: mujoco.MjModel, prefix: str, before: str, name: str, joint: str = ""
) -> None:
    """Add the link of a body with its shapes, and its joint to the link before it."""
    body = model.body(f"{prefix}{name}")
    link = SubElement(robot, "link", name=name)
    first = int(body.geomadr[0])
    for geom in range(first, first + int(body.geomnum[0])):
        if int(model.geom_type[geom]) in _SHAPES and model.geom_rgba[geom][3] > 0.0:
            _add_shape(link, model, geom)
    place = body.pos, body.quat
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
    pitch = math.asin(max(-1.0, min(1.0, 2.0 * (w * y - z * x))))
    yaw = math.atan2(2.0 * (w * z + x * y), 1.0 - 2.0 * (y * y + z * z))
    SubElement(parent, "origin", xyz=_text(position), rpy=_text((roll, pitch, yaw)))


def _text(numbers: Iterable[float]) -> str:
    return " ".join(f"{number:.9g}" for number in numbers)
