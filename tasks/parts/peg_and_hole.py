"""Pegs and holes: their shapes and clearances, and their MJCF."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from serl.geometry import Vector
from serl.task import Detail

_WALL_M = 0.020  # half the thickness
_LATCH_N_M = 500.0
_LINING_M = 0.00015

# Contacts stiffer than the default: with the default the peg sinks further into a wall than the
# clearance in the hole.
_FIT = 'condim="4" friction="0.3 0.005 0.0001" solref="0.004 1" solimp="0.95 0.99 0.0005"'


@dataclass(frozen=True, slots=True)
class Fit:
    """The shapes of peg and hole.

    Attributes:
        peg_m: half the peg's size along x, y and z; the fingers hold it along y.
        below_tcp_m: distance from the tool point down to the peg's centre.
        rim_m: height of the rim above the table: the depth of the hole, less that of a latch.
        symmetry_rad: angle of the peg's rotational symmetry.
        chamfer_m: height of the slopes beside the hole that lead into it; they stand on the rim.
        latch_n: force at which a latch at the bottom gives way; 0 for none.
        latch_m: travel of the latch.
    """

    peg_m: Vector
    below_tcp_m: float
    rim_m: float
    symmetry_rad: float
    chamfer_m: float = 0.0
    latch_n: float = 0.0
    latch_m: float = 0.003
    mass_kg: float = 0.05


PEG = Fit(
    peg_m=(0.010, 0.010, 0.025),
    below_tcp_m=0.020,
    rim_m=0.030,
    symmetry_rad=0.5 * math.pi,
)
"""A square peg, 20 mm wide."""

CONNECTOR = Fit(
    peg_m=(0.015, 0.003, 0.020),
    below_tcp_m=0.015,
    rim_m=0.020,
    symmetry_rad=math.pi,
    chamfer_m=0.002,
    latch_n=12.0,
    mass_kg=0.02,
)
"""A flat connector, 30 x 6 mm, whose socket has slopes that lead in, and a latch."""


def hole_mjcf(fit: Fit, clearance_m: float, more: str = "") -> str:
    """Return the MJCF of the body `hole`: the elements of `walls_mjcf`, and more."""
    return f'<body name="hole" mocap="true">{walls_mjcf(fit, clearance_m)}{more}</body>'


def walls_mjcf(fit: Fit, clearance_m: float) -> str:
    """Return the MJCF of a hole, open below: four walls, and the fit's slopes and latch."""
    inner = [half + clearance_m for half in fit.peg_m[:2]]
    outer = [half + 2.0 * _WALL_M for half in inner]
    middle = [half + _WALL_M for half in inner]
    half = 0.5 * fit.rim_m
    parts = [
        _box((x, y, half), (dx, dy, half))
        for x, y, dx, dy in (
            (middle[0], 0.0, _WALL_M, outer[1]),
            (-middle[0], 0.0, _WALL_M, outer[1]),
            (0.0, middle[1], inner[0], _WALL_M),
            (0.0, -middle[1], inner[0], _WALL_M),
        )
    ]
    if fit.chamfer_m:
        parts += [_slope(fit, inner, side) for side in (1.0, -1.0)]
    if fit.latch_n:
        parts.append(_latch(fit))
    return "".join(parts)


def stand_mjcf(fit: Fit, clearance_m: float, height_m: float) -> str:
    """Return the MJCF of a block below the walls of a hole, which is the hole's bottom."""
    x, y = (size + clearance_m + 2.0 * _WALL_M for size in fit.peg_m[:2])
    return _box((0.0, 0.0, -0.5 * height_m), (x, y, 0.5 * height_m))


def hole_detail(fit: Fit, clearance_m: float, body: str = "hole") -> Detail:
    """Return the rim of the hole of a body as people see it from near, with dark walls."""
    x, y = (half + clearance_m for half in fit.peg_m[:2])
    half = 0.5 * (fit.rim_m - _LINING_M)
    walls = [((side * x, 0.0, half), (_LINING_M, y, half)) for side in (1.0, -1.0)]
    walls += [((0.0, side * y, half), (x, _LINING_M, half)) for side in (1.0, -1.0)]
    rim = (0.0, 0.0, fit.rim_m + 0.004)
    return Detail(body, rim, (0.15, -0.14, fit.rim_m + 0.22), 0.062, tuple(walls))


def _slope(fit: Fit, inner: Sequence[float], side: float) -> str:
    """Return the MJCF of a plate at 45 degrees with its lower edge at a long wall's edge."""
    along, thickness = math.sqrt(0.5) * fit.chamfer_m, 0.001
    back = thickness * math.sqrt(0.5)
    y = side * (inner[1] + 0.5 * fit.chamfer_m + back)
    centre = (0.0, y, fit.rim_m + 0.5 * fit.chamfer_m - back)
    return _box(centre, (inner[0], along, thickness), f' euler="{side * 0.25 * math.pi} 0 0"')


def _latch(fit: Fit) -> str:
    """Return the MJCF of a latch: a plate on a spring, as thick as its travel.

    The armature keeps the plate from yielding at its end.
    """
    x, y, z = 0.8 * fit.peg_m[0], 0.8 * fit.peg_m[1], 0.5 * fit.latch_m
    joint = (
        f'<joint type="slide" axis="0 0 1" range="{-fit.latch_m} 0" solreflimit="0.004 1"'
        f' stiffness="{_LATCH_N_M}" springref="{fit.latch_n / _LATCH_N_M}" armature="1"/>'
    )
    plate = _box((0.0, 0.0, z), (x, y, z), ' mass="0.001"')
    return f'<body pos="0 0 {fit.latch_m}" gravcomp="1">{joint}{plate}</body>'


def _box(centre: Vector, half: Vector, more: str = "") -> str:
    place, size = (" ".join(map(str, vector)) for vector in (centre, half))
    return f'<geom type="box" pos="{place}" size="{size}" {_FIT}{more} rgba="0.36 0.52 0.68 1"/>'


def peg_mjcf(fit: Fit, name: str = "peg") -> str:
    """Return the MJCF of the peg, a free body of this name."""
    size = " ".join(map(str, fit.peg_m))
    return f"""
<body name="{name}">
  <freejoint/>
  <geom type="box" size="{size}" mass="{fit.mass_kg}" {_FIT} rgba="0.94 0.45 0.20 1"/>
</body>
"""
