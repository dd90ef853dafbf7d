"""A closed belt as MJCF, and where it is: links with upright hinges, which would like to be round.

A belt bends about its width only: it stays flat, however it is held.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from serl.types import Array

LINKS = 20
LENGTH_M = 0.66
HALF_THICK_M, HALF_WIDE_M = 0.003, 0.010  # it stands on its edge

_OVAL_M = 0.147  # half the length of the ellipse around which it begins
_MASS_KG = 0.06
_STIFFNESS_NM, _DAMPING_NM_S = 0.05, 0.002  # of a hinge, per rad and per rad/s
_BENDS_RAD = (-0.9, 1.5)  # of a hinge, at most
_TURN_RAD = 2.0 * math.pi

Vector64 = np.ndarray[Any, np.dtype[np.float64]]


def _oval() -> Vector64:
    """Where links begin, from the middle, left around: an ellipse, long along y.  # (LINKS, 2).

    The first link lies across the end at +y, and the one in the middle of the list across -y.
    """
    turn = np.linspace(0.0, _TURN_RAD, 4001)
    low, high = 0.0, _OVAL_M  # of half of what it is along x
    for _ in range(40):
        half = 0.5 * (low + high)
        path = np.stack((-half * np.sin(turn), _OVAL_M * np.cos(turn)), axis=1)
        along = np.append(0.0, np.linalg.norm(np.diff(path, axis=0), axis=1).cumsum())
        low, high = (half, high) if along[-1] < LENGTH_M else (low, half)
    begins = (np.arange(LINKS) - 0.5) / LINKS % 1.0 * along[-1]
    return np.stack([np.interp(begins, along, path[:, axis]) for axis in (0, 1)], axis=1)


_BEGINS_M = _oval()
_SPANS_M = np.roll(_BEGINS_M, -1, axis=0) - _BEGINS_M
_LINK_M = np.linalg.norm(_SPANS_M, axis=1)
_HEADINGS_RAD = np.arctan2(_SPANS_M[:, 1], _SPANS_M[:, 0])

HELD_M = float(_BEGINS_M[0, 1])
"""From the belt's middle to either end, in the shape that `belt_mjcf` begins with."""

FIRST = (*_BEGINS_M[0].tolist(), float(_HEADINGS_RAD[0]))
"""x, y and yaw of the first link, `belt0`, from the belt's middle."""


def belt_mjcf() -> tuple[str, str]:
    """Bodies `belt0` to `belt19` for `worldbody`, and what closes them for the top level.

    The hinge that closes the belt is a constraint, a hard one: links are light, and with the usual
    one the belt gapes by 5 cm under 40 N. Its spring acts on the sum of all other bends, which is
    the same.
    """
    bends = (_HEADINGS_RAD - np.roll(_HEADINGS_RAD, 1)) % _TURN_RAD  # of the oval, all to the left
    rest = _TURN_RAD / LINKS - bends
    spring = f'stiffness="{_STIFFNESS_NM}" damping="{_DAMPING_NM_S}"'
    chain = ""
    for index in reversed(range(LINKS)):
        place, joint, half = "", "<freejoint/>", 0.5 * _LINK_M[index]
        if index:
            place = f'pos="{_LINK_M[index - 1]:.6f} 0 0" euler="0 0 {bends[index]:.6f}"'
            low, high = (limit - bends[index] for limit in _BENDS_RAD)
            joint = (
                f'<joint name="bend{index}" axis="0 0 1" {spring} armature="1e-5"'
                f' springref="{rest[index]:.6f}" range="{low:.6f} {high:.6f}"/>'
            )
        chain = (
            f'<body name="belt{index}" {place}>{joint}'
            f'<geom type="box" pos="{half:.6f} 0 0" size="{half:.6f} {HALF_THICK_M} {HALF_WIDE_M}"'
            f' mass="{_MASS_KG / LINKS}" condim="4" friction="0.6 0.005 0.0001"'
            f' contype="8" conaffinity="7" rgba="0.94 0.45 0.20 1"/>{chain}</body>'
        )  # which touches everything but itself
    hinges = "".join(f'<joint joint="bend{index}" coef="1"/>' for index in range(1, LINKS))
    return (
        chain,
        f"""
<equality>
  <connect body1="belt{LINKS - 1}" body2="belt0" anchor="{_LINK_M[-1]:.6f} 0 0"
    solref="0.004 1" solimp="0.98 0.995 0.001"/>
</equality>
<tendon><fixed {spring} springlength="{rest[1:].sum():.6f}">{hinges}</fixed></tendon>
""",
    )


def links(state: Mapping[str, Array]) -> Vector64:
    """Where the belt's links begin.  # (LINKS, 3)."""
    return np.stack([state[f"belt{index}_pose"][:3] for index in range(LINKS)]).astype(np.float64)


def end(begins: Vector64, outward: float) -> Vector64:
    """The middle of the link that is farthest along y, or with -1 against it.  # (3,)."""
    middles = 0.5 * (begins + np.roll(begins, -1, axis=0))
    place: Vector64 = middles[(outward * middles[:, 1]).argmax()]
    return place


def turns(begins: Vector64, axis: Vector64) -> int:
    """How often the belt goes around an upright axis, to the left; 0 if the axis is outside."""
    x, y, _ = (begins - axis).T
    angles = np.arctan2(y, x)
    steps = (np.roll(angles, -1) - angles + math.pi) % _TURN_RAD - math.pi
    return round(float(steps.sum()) / _TURN_RAD)
