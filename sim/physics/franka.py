"""A light Franka Emika Panda as MJCF: exact kinematics and inertias, capsules, no meshes.

Kinematics are the vendor's (modified DH), inertias the identified ones of Gaz et al. 2019.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

HOME_RAD = (0.0, -0.785398, 0.0, -2.356194, 0.0, 1.570796, 0.785398)
"""The vendor's ready pose: the tool points down at (0.3069, 0, 0.4869)."""

MAX_FINGER_M = 0.04
"""Travel of one finger; the gripper opens twice as wide."""

OWN_CLASSES = ("arm_looks", "arm_shell", "pad")
"""Default classes of the geoms that belong to the arm itself."""

_WHITE, _GREY, _DARK = "0.93 0.94 0.95 1", "0.60 0.63 0.67 1", "0.16 0.17 0.19 1"


class _Link(NamedTuple):
    position: tuple[float, float, float]
    quaternion: tuple[float, float, float, float]  # wxyz, MuJoCo normalises it
    range_rad: tuple[float, float]
    torque_nm: float
    mass_kg: float
    center: tuple[float, float, float]
    inertia: tuple[float, float, float, float, float, float]  # xx yy zz xy xz yz
    capsules: tuple[tuple[str, float, str], ...]  # from-to, radius, colour


_LINKS = (
    _Link(
        (0, 0, 0.333), (1, 0, 0, 0), (-2.8973, 2.8973), 87, 4.970684,
        (0.003875, 0.002081, -0.04762),
        (0.70337, 0.70661, 0.009117, -0.000139, 0.006772, 0.019169),
        (("0 0 -0.19 0 0 -0.03", 0.062, _WHITE),),
    ),
    _Link(
        (0, 0, 0), (1, -1, 0, 0), (-1.7628, 1.7628), 87, 0.646926,
        (-0.003141, -0.02872, 0.003495),
        (0.007962, 0.02811, 0.025995, -0.003925, 0.010254, 0.000704),
        (("0 0 -0.055 0 0 0.055", 0.062, _GREY), ("0 0 0 0 -0.12 0", 0.058, _WHITE)),
    ),
    _Link(
        (0, -0.316, 0), (1, 1, 0, 0), (-2.8973, 2.8973), 87, 3.228604,
        (0.027518, 0.039252, -0.066502),
        (0.037242, 0.036155, 0.01083, -0.004761, -0.011396, -0.012805),
        (("0 0 -0.17 0 0 -0.04", 0.058, _WHITE), ("0 0 -0.04 0.0825 0 0", 0.05, _WHITE)),
    ),
    _Link(
        (0.0825, 0, 0), (1, 1, 0, 0), (-3.0718, -0.0698), 87, 3.587895,
        (-0.05317, 0.104419, 0.027454),
        (0.025853, 0.019552, 0.028323, 0.007796, -0.001332, 0.008641),
        (("0 0 -0.05 0 0 0.05", 0.056, _GREY), ("0 0 0 -0.0825 0.10 0", 0.05, _WHITE)),
    ),
    _Link(
        (-0.0825, 0.384, 0), (1, -1, 0, 0), (-2.8973, 2.8973), 12, 1.225946,
        (-0.011953, 0.041065, -0.038437),
        (0.035549, 0.029474, 0.008627, -0.002117, -0.004037, 0.000229),
        (("0 0 -0.26 0 0.02 -0.15", 0.052, _WHITE), ("0 0.03 -0.16 0 0.07 -0.06", 0.036, _WHITE)),
    ),
    _Link(
        (0, 0, 0), (1, 1, 0, 0), (-0.0175, 3.7525), 12, 1.666555,
        (0.060149, -0.014117, -0.010517),
        (0.001964, 0.004354, 0.005433, 0.000109, -0.001158, 0.000341),
        (("0 0 -0.05 0 0 0.06", 0.05, _GREY), ("0 0 0 0.088 0.01 0", 0.046, _WHITE)),
    ),
    _Link(  # with the hand (0.73 kg) and its fingers (0.03 kg each)
        (0.088, 0, 0), (1, 1, 0, 0), (-2.8973, 2.8973), 12, 1.525522,
        (0.001687, 0.001334, 0.102745),
        (0.016923, 0.014500, 0.006750, 0.000368, -0.000701, -0.001047),
        (("0 0 0.01 0 0 0.075", 0.046, _GREY),),
    ),
)  # fmt: skip

DEFAULTS = f"""
<default class="joint7"><joint axis="0 0 1" armature="0.1" damping="1"/></default>
<default class="finger">
  <joint type="slide" axis="0 1 0" range="-0.001 0.041" armature="0.13" damping="150"/>
</default>
<default class="looks">
  <geom contype="0" conaffinity="0" mass="0" group="1"/>
  <default class="arm_looks"/>
</default>
<default class="shell">
  <geom contype="2" conaffinity="1" mass="0"/>
  <default class="arm_shell"/>
</default>
<default class="pad">
  <geom contype="2" conaffinity="1" condim="4" friction="1.2 0.01 0.001" priority="1" mass="0"
    solref="0.005 1" solimp="0.95 0.99 0.001" rgba="{_DARK}"/>
</default>
"""

# The mass of hand and fingers is counted in link 7 and in the fingers' armature: the same motion,
# three bodies fewer that need gravity compensation, and a wrist sensor that measures the external
# wrench, as a real arm's estimate does.
_HAND = f"""
<body name="{{prefix}}hand" pos="0 0 0.107" quat="0.92388 0 0 -0.382683">
  <site name="{{prefix}}ft"/>
  <geom class="arm_looks" type="cylinder" pos="0 0 -0.008" size="0.04 0.012" rgba="{_DARK}"/>
  <geom class="arm_shell"{{touch}} type="box" pos="0 0 0.033" size="0.028 0.1 0.031"
    rgba="{_WHITE}"/>
  <geom class="arm_looks" type="box" pos="0 0 0.061" size="0.02 0.085 0.006" rgba="{_GREY}"/>
  <camera name="{{prefix}}wrist" pos="0.075 0 0.02" xyaxes="0 1 0 0.966 0 0.259" fovy="64"/>
  <site name="{{prefix}}tcp" pos="0 0 0.1034"/>
  {{fingers}}
</body>
"""

_FINGER = f"""
<body name="{{prefix}}finger_{{side}}" pos="0 0 0.0584" quat="{{quaternion}}">
  <inertial mass="1e-4" pos="0 0.01 0.025" diaginertia="1e-8 1e-8 1e-8"/>
  <joint name="{{prefix}}finger_{{side}}" class="finger"/>
  <geom class="arm_shell"{{touch}} type="box" pos="0 0.014 0.018" size="0.0095 0.008 0.018"
    rgba="{_GREY}"/>
  <geom name="{{prefix}}pad_{{side}}" class="pad"{{touch}} type="box" pos="0 0.006 0.045"
    size="0.0105 0.006 0.0115"/>
</body>
"""

# An arm does not collide with itself; the second arm collides with the hand of the first.
_TOUCH = ("", ' contype="4" conaffinity="3"')


def arm_mjcf(tool: str = "", prefix: str = "", number: int = 0) -> str:
    """Return the MJCF of an arm with hand, wrist camera, sites `ft` and `tcp`, for `worldbody`.

    Args:
        tool: MJCF elements fixed to the hand, in its frame.
        prefix: prefix of all names of the arm.
        number: 0 for the only or the first arm of a model, 1 for the second.
    """
    touch = _TOUCH[number]
    fingers = "".join(
        _FINGER.format(side=side, quaternion=quaternion, prefix=prefix, touch=touch)
        for side, quaternion in (("left", "1 0 0 0"), ("right", "0 0 0 1"))
    )
    body = _HAND.format(fingers=fingers + tool, prefix=prefix, touch=touch)
    for joint in range(7, 0, -1):
        body = _link_mjcf(joint, _LINKS[joint - 1], body, prefix)
    return f"""
<geom class="arm_looks" type="cylinder" pos="0 0 0.012" size="0.11 0.012" rgba="{_DARK}"/>
<geom class="arm_looks" type="capsule" fromto="0 0 0.04 0 0 0.14" size="0.075" rgba="{_WHITE}"/>
{body}
"""


def tendons_mjcf(prefix: str = "") -> str:
    """Return the MJCF of the tendons that move and couple the fingers.

    A stiff spring couples the fingers. A constraint would do the same, but then the solver has to
    run even without contacts.
    """
    left, right = f"{prefix}finger_left", f"{prefix}finger_right"
    return f"""
<fixed name="{prefix}gripper">
  <joint joint="{left}" coef="0.5"/><joint joint="{right}" coef="0.5"/>
</fixed>
<fixed name="{prefix}coupling" stiffness="20000" damping="60" springlength="0">
  <joint joint="{left}" coef="1"/><joint joint="{right}" coef="-1"/>
</fixed>
"""


def gripper_mjcf(prefix: str = "") -> str:
    """Return the MJCF of the fingers' actuator; its 70 N are 35 N on each finger."""
    return f"""
<general name="{prefix}gripper" tendon="{prefix}gripper" ctrlrange="0 {MAX_FINGER_M}"
  forcerange="-70 70" gaintype="fixed" gainprm="8000" biastype="affine" biasprm="0 -8000 -100"/>
"""


def _link_mjcf(number: int, link: _Link, inner: str, prefix: str) -> str:
    low, high = link.range_rad
    weightless = int(number > 1)  # the first joint is vertical and does not feel gravity
    geoms = "".join(
        f'<geom class="arm_looks" type="capsule" fromto="{line}" size="{radius}" rgba="{colour}"/>'
        for line, radius, colour in link.capsules
    )
    return f"""
<body name="{prefix}link{number}" pos="{_text(link.position)}" quat="{_text(link.quaternion)}"
  gravcomp="{weightless}">
  <inertial mass="{link.mass_kg}" pos="{_text(link.center)}" fullinertia="{_text(link.inertia)}"/>
  <joint name="{prefix}joint{number}" class="joint7" range="{low} {high}"
    actuatorfrcrange="-{link.torque_nm} {link.torque_nm}"/>
  {geoms}
  {inner}
</body>
"""


def _text(numbers: Iterable[float]) -> str:
    return " ".join(f"{number:g}" for number in numbers)
