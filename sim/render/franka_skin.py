"""The looks of a Franka for people: lofted and lathed shells in the arm's proportions.

Each shell is in the frame of its body in `serl.sim.physics.franka`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from typing import NamedTuple

from serl.sim.render.surfaces import Section, Surface, block, joined, lathe, loft, moved, rounded

COLOURS = {
    "white": (0.93, 0.935, 0.94, 1.0),
    "grey": (0.62, 0.64, 0.67, 1.0),
    "dark": (0.115, 0.12, 0.13, 1.0),
    "steel": (0.70, 0.71, 0.73, 1.0),
}

_X, _Y, _Z = (1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)
_LEFT, _DOWN = (0.0, -1.0, 0.0), (0.0, 0.0, -1.0)
_TUBE_M = 0.056
_DRUM_M, _WIDE_M = 0.061, 0.108  # radius and half the width of the drums of joints 2 and 4
_SEAM_M = 0.002
_OFFSET_M = 0.0825  # between the axes of joints 3 and 4


class Shell(NamedTuple):
    """A mesh of one colour."""

    colour: str
    surface: Surface


@cache
def shells() -> Mapping[str, Sequence[Shell]]:
    """Return the shells of an arm by body: `base`, `link1` to `link7`, `hand` and `finger`."""
    shoulder = [Shell("white", _elbow(0.186)), *_cap()]
    elbow = [Shell("white", _elbow(0.118, -_OFFSET_M)), *_cap()]
    return {
        "base": _base(),
        "link1": [*shoulder, Shell("dark", joined(_ring(-0.193), _seam()))],
        "link2": _turned(shoulder, (_X, _DOWN, _Y)),
        "link3": _turned(
            [*elbow, Shell("dark", joined(_ring(-0.128, -_OFFSET_M), _seam()))],
            (_X, _Y, _Z),
            (_OFFSET_M, 0.0, 0.0),
        ),
        "link4": _turned(elbow, (_X, _Z, _LEFT)),
        "link5": _forearm(),
        "link6": _wrist(),
        "link7": _flange(),
        "hand": _hand(),
        "finger": _finger(),
    }


def _turned(
    parts: Sequence[Shell],
    axes: Sequence[Sequence[float]],
    origin: Sequence[float] = (0.0, 0.0, 0.0),
) -> list[Shell]:
    return [Shell(part.colour, moved(part.surface, axes, origin)) for part in parts]


def _elbow(length_m: float, shift_m: float = 0.0) -> Surface:
    """Return a tube along -z that becomes one half of a drum along y, on the side of -y.

    Args:
        length_m: distance from the end of the tube to the axis of the drum.
        shift_m: place of the tube along x, from the axis of the drum.
    """
    inner, outer, edge = -_SEAM_M, -_WIDE_M, 0.016
    straight = min(0.12, 0.80 * length_m)
    stations = [
        Section(-height, (shift_m - _TUBE_M, shift_m + _TUBE_M), (-_TUBE_M, _TUBE_M))
        for height in (length_m, straight)
    ]
    for part, power in ((0.3, 2.2), (0.6, 2.8), (0.85, 3.6)):
        share = part * part * (3.0 - 2.0 * part)
        middle = shift_m * (1.0 - share)
        half = _TUBE_M + (_DRUM_M - _TUBE_M) * share
        ends = -_TUBE_M + (outer + _TUBE_M) * share, _TUBE_M + (inner - _TUBE_M) * share
        stations.append(
            Section(-straight * (1.0 - part), (middle - half, middle + half), ends, power)
        )
    for angle in (0.0, 0.2, 0.4, 0.6, 0.75, 0.87, 0.95, 1.0):
        height = _DRUM_M * math.sin(0.5 * math.pi * angle)
        half = max(0.004, _DRUM_M * math.cos(0.5 * math.pi * angle))
        inset = edge - math.sqrt(max(0.0, edge**2 - max(0.0, height - _DRUM_M + edge) ** 2))
        stations.append(Section(height, (-half, half), (outer + inset, inner), 4.5))
    return loft(stations, 28)


def _cap() -> list[Shell]:
    """Return the cap at the end of a drum, on the side of -y."""
    groove = _along_y(rounded(0.047, 0.0, 0.004, 0.001), -_WIDE_M + 0.002)
    cap = _along_y(rounded(0.042, 0.0, 0.006, 0.002), -_WIDE_M + 0.002)
    return [Shell("dark", groove), Shell("grey", cap)]


def _along_y(surface: Surface, at_m: float) -> Surface:
    """Return a surface about z as one about -y, which begins at `at_m`."""
    return moved(surface, (_X, _Z, _LEFT), (0.0, at_m, 0.0))


def _seam() -> Surface:
    return _along_y(rounded(_DRUM_M - 0.003, -_SEAM_M, _SEAM_M, 0.0005), 0.0)


def _ring(at_m: float, x_m: float = 0.0) -> Surface:
    """Return the ring of a joint about z."""
    ring = rounded(_TUBE_M - 0.001, 0.0, 0.012, 0.001)
    return moved(ring, (_X, _Y, _Z), (x_m, 0.0, at_m))


def _base() -> list[Shell]:
    """Return the foot with its connectors behind, and the column."""
    foot = [
        Section(0.004, (-0.142, 0.088), (-0.090, 0.090), 3.2),
        Section(0.012, (-0.145, 0.091), (-0.093, 0.093), 3.2),
        Section(0.034, (-0.141, 0.086), (-0.089, 0.089), 3.0),
        Section(0.056, (-0.120, 0.074), (-0.077, 0.077), 2.6),
        Section(0.076, (-0.085, 0.064), (-0.066, 0.066), 2.2),
        Section(0.098, (-0.063, 0.059), (-0.060, 0.060), 2.0),
        Section(0.140, (-0.057, 0.057), (-0.057, 0.057), 2.0),
    ]
    plate = [
        Section(0.0, (-0.147, 0.093), (-0.095, 0.095), 3.2),
        Section(0.006, (-0.147, 0.093), (-0.095, 0.095), 3.2),
    ]
    socket = block((-0.152, -0.130), (-0.045, 0.045), (0.014, 0.046), 0.003)
    return [Shell("white", loft(foot)), Shell("dark", joined(loft(plate, 2), socket))]


def _forearm() -> list[Shell]:
    """Return the tube of joint 5, and the arch on the side of +y that carries joint 6."""
    stations = [
        Section(-0.262, (-0.055, 0.055), (-0.055, 0.055)),
        Section(-0.215, (-0.055, 0.055), (-0.055, 0.056)),
        Section(-0.170, (-0.051, 0.051), (-0.042, 0.068), 2.2),
        Section(-0.125, (-0.046, 0.046), (-0.006, 0.084), 2.5),
        Section(-0.085, (-0.045, 0.045), (0.024, 0.094), 2.9),
        Section(-0.045, (-0.047, 0.047), (0.036, 0.098), 3.4),
    ]
    for angle in (0.0, 0.25, 0.5, 0.7, 0.85, 0.95, 1.0):
        height = 0.051 * math.sin(0.5 * math.pi * angle)
        half = max(0.004, 0.051 * math.cos(0.5 * math.pi * angle))
        inset = 0.012 * max(0.0, angle - 0.5) ** 3 * 8.0
        stations.append(Section(height, (-half, half), (0.040, 0.100 - inset), 4.0))
    ring = moved(rounded(_TUBE_M - 0.002, 0.0, 0.010, 0.001), (_X, _Y, _Z), (0.0, 0.0, -0.268))
    cap = moved(rounded(0.036, 0.098, 0.103, 0.002), (_X, _DOWN, _Y))
    groove = moved(rounded(0.040, 0.097, 0.1015, 0.001), (_X, _DOWN, _Y))
    return [
        Shell("white", loft(stations, 32)),
        Shell("dark", joined(ring, groove)),
        Shell("grey", cap),
    ]


def _wrist() -> list[Shell]:
    """Return the drum of joint 6, along z, and the upright housing of joint 7 ahead of it."""
    stations = []
    for angle in (1.0, 0.95, 0.85, 0.65, 0.4, 0.15):
        place = -0.051 * math.sin(0.5 * math.pi * angle)
        half = max(0.004, 0.051 * math.cos(0.5 * math.pi * angle))
        stations.append(Section(place, (-half, half), (-0.036, 0.052), 4.0))
    stations += [
        Section(0.030, (-0.048, 0.049), (-0.042, 0.051), 3.4),
        Section(0.060, (-0.052, 0.046), (-0.047, 0.049), 3.0),
    ]
    for angle in (0.0, 0.25, 0.5, 0.7, 0.85, 0.95, 1.0):
        place = 0.088 + 0.049 * math.sin(0.5 * math.pi * angle)
        half = max(0.004, 0.049 * math.cos(0.5 * math.pi * angle))
        stations.append(Section(place, (-0.058, 0.046 - 0.01 * angle**4), (-half, half), 4.2))
    body = moved(loft(stations, 34), (_Y, _Z, _X))
    cap = rounded(0.040, 0.050, 0.054, 0.0015)
    ring = moved(rounded(0.046, -0.068, -0.054, 0.001), (_X, _DOWN, _Y), (0.088, 0.0, 0.0))
    hub = rounded(0.044, -0.040, -0.034, 0.001)
    return [Shell("white", body), Shell("dark", joined(ring, hub)), Shell("grey", cap)]


def _flange() -> list[Shell]:
    """Return the last link, about z, with its pilot ring."""
    neck = [(0.0455, 0.066), (0.047, 0.070), (0.047, 0.086), (0.044, 0.092), (0.0, 0.092)]
    lug = block((0.030, 0.062), (-0.016, 0.016), (0.068, 0.090), 0.006)
    plate = [(0.0, 0.090), (0.0415, 0.0905), (0.0415, 0.1065), (0.0, 0.107)]
    turn = (math.sqrt(0.5), math.sqrt(0.5), 0.0), (-math.sqrt(0.5), math.sqrt(0.5), 0.0), _Z
    return [
        Shell("white", joined(lathe([(0.0, 0.066), *neck]), moved(lug, turn))),
        Shell("dark", lathe(plate)),
    ]


def _hand() -> list[Shell]:
    """Return the hand's housing, wide along y, and the rail of its fingers."""
    housing = [
        Section(0.0, (-0.0315, 0.0315), (-0.044, 0.044), 2.4),
        Section(0.008, (-0.0315, 0.0315), (-0.050, 0.050), 2.6),
        Section(0.020, (-0.0315, 0.0315), (-0.078, 0.078), 3.0),
        Section(0.030, (-0.0316, 0.0316), (-0.095, 0.095), 3.6),
        Section(0.040, (-0.0316, 0.0316), (-0.1015, 0.1015), 4.2),
        Section(0.056, (-0.0316, 0.0316), (-0.1020, 0.1020), 4.6),
        Section(0.0605, (-0.0305, 0.0305), (-0.1010, 0.1010), 4.6),
    ]
    neck = lathe([(0.0, -0.004), (0.0405, -0.0035), (0.0405, 0.004), (0.0, 0.0045)])
    rail = block((-0.0165, 0.0165), (-0.093, 0.093), (0.055, 0.0655), 0.002)
    return [Shell("white", loft(housing, 22)), Shell("dark", joined(neck, rail))]


def _finger() -> list[Shell]:
    """Return a finger whose pad faces -y and touches at y = 0."""
    foot = block((-0.0105, 0.0105), (0.003, 0.025), (0.004, 0.020), 0.0025)
    blade = [
        Section(0.016, (-0.0100, 0.0100), (0.0050, 0.0225), 5.0),
        Section(0.026, (-0.0098, 0.0098), (0.0045, 0.0195), 5.0),
        Section(0.036, (-0.0096, 0.0096), (0.0030, 0.0140), 5.0),
        Section(0.046, (-0.0095, 0.0095), (0.0030, 0.0120), 5.0),
        Section(0.0565, (-0.0092, 0.0092), (0.0030, 0.0105), 5.0),
    ]
    pad = block((-0.0100, 0.0100), (0.0, 0.0048), (0.0345, 0.0562), 0.001)
    return [Shell("steel", joined(foot, loft(blade, 10, 28))), Shell("dark", pad)]
