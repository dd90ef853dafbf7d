"""A closed belt as MJCF, and its geometry: links with upright hinges; its rest shape is round.

The belt bends about its width only, and stays in its plane however it is held.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from serl.types import Array

LINKS = 20
LENGTH_M = 0.66
HALF_THICK_M, HALF_WIDE_M = 0.003, 0.010  # the belt stands on its edge

_OVAL_M = 0.147  # half the length of the ellipse that is its first shape
_MASS_KG = 0.06
_STIFFNESS_NM, _DAMPING_NM_S = 0.05, 0.002  # of a hinge, per rad and per rad/s
_BENDS_RAD = (-0.9, 1.5)  # of a hinge, at most
_TURN_RAD = 2.0 * math.pi

Vector64 = np.ndarray[Any, np.dtype[np.float64]]


def _oval() -> Vector64:
    """Return the starts of the links, to the left around an ellipse along y.  # (LINKS, 2).

    Positions are relative to its middle. The first link lies across the end at +y, and the one in
    the middle of the list across -y.
    """
    turn = np.linspace(0.0, _TURN_RAD, 4001)
    low, high = 0.0, _OVAL_M  # of half the width along x
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
"""Distance from the belt's middle to either end, in the first shape of `belt_mjcf`, m."""

FIRST = (*_BEGINS_M[0].tolist(), float(_HEADINGS_RAD[0]))
"""x, y and yaw of the first link, `belt0`, from the belt's middle."""


def belt_mjcf() -> tuple[str, str]:
    """Return bodies `belt0` to `belt19` for `worldbody`, and the closure for the top level.

    The hinge that closes the belt is a hard constraint: links are light, and with the default
    softness the belt gapes by 5 cm under 40 N. The closing hinge's spring acts on the sum of all
    other bends, which is equivalent.
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
        )  # collides with everything but itself
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
    """Return the start of each link of the belt.  # (LINKS, 3)."""
    return np.stack([state[f"belt{index}_pose"][:3] for index in range(LINKS)]).astype(np.float64)


def end(begins: Vector64, outward: float) -> Vector64:
    """Return the middle of the link farthest along y, or along -y for `outward` -1.  # (3,)."""
    middles = 0.5 * (begins + np.roll(begins, -1, axis=0))
    place: Vector64 = middles[(outward * middles[:, 1]).argmax()]
    return place


def turns(begins: Vector64, axis: Vector64) -> int:
    """Return the turns of the belt to the left around an upright axis; 0 if it is outside."""
    x, y, _ = (begins - axis).T
    angles = np.arctan2(y, x)
    steps = (np.roll(angles, -1) - angles + math.pi) % _TURN_RAD - math.pi
    return round(float(steps.sum()) / _TURN_RAD)
