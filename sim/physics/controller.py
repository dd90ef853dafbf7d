"""Gains and clips of the simulated arm's controller, set by parameters as on a real one.

Names and meaning are those of SERL's impedance controller: forces are stiffness times the error,
which is clipped for each axis and sign.
"""

from __future__ import annotations

from collections.abc import Mapping

import mujoco

from serl.compliance import AXES, ParameterNames
from serl.errors import BadInput

_KINDS = ("translational", "rotational")
_AXES = "xyz"
_ROWS = (
    *((_KINDS[0], axis) for axis in AXES[:3]),
    *((_KINDS[1], axis) for axis in AXES[3:]),
)
_HIGHEST = {"stiffness": (4000.0, 400.0), "damping": (400.0, 40.0), "clip": (0.02, 0.1)}
"""Upper bounds for translations (N/m, N s/m, m) and rotations (Nm/rad, Nm s/rad, rad)."""

TABLE_PARAMETERS: ParameterNames = {
    "stiffness": {axis: f"{kind}_stiffness" for kind, axis in _ROWS},
    "damping": {axis: f"{kind}_damping" for kind, axis in _ROWS},
    "clip": {axis: f"{kind}_clip_{axis[-1]}" for kind, axis in _ROWS},
    "clip_neg": {axis: f"{kind}_clip_neg_{axis[-1]}" for kind, axis in _ROWS},
}
"""Names of the parameters that a task's compliance tables set."""


class Impedance:
    """The springs and dampers of an arm, by the names of their parameters.

    Args:
        model: model of the arm; its actuators are changed.
        prefix: prefix of the arm's names.
    """

    def __init__(self, model: mujoco.MjModel, prefix: str = "") -> None:
        self._model = model
        self._first = model.actuator(f"{prefix}spring0").id
        self._values, self._scales = self._read(), (1.0, 1.0)

    def parameters(self) -> dict[str, float]:
        """Return every nominal gain and clip, without the factors of `scale`."""
        return dict(self._values)

    def scale(self, stiffness: float, damping: float) -> None:
        """Multiply the actual gains, not the nominal ones; clips of forces do not change."""
        self._scales = stiffness, damping
        self._write_gains()

    def _read(self) -> dict[str, float]:
        found = {}
        for number, kind in enumerate(_KINDS):
            spring = self._first + 3 * number
            stiffness = -float(self._model.actuator_biasprm[spring, 1])
            found[f"{kind}_stiffness"] = stiffness
            found[f"{kind}_damping"] = -float(self._model.actuator_biasprm[spring + 6, 2])
            for axis, name in enumerate(_AXES):
                low, high = self._model.actuator_forcerange[spring + axis] / stiffness
                found[f"{kind}_clip_{name}"] = float(high)
                found[f"{kind}_clip_neg_{name}"] = -float(low)
        return found

    def set(self, changes: Mapping[str, float]) -> None:
        """Change the given parameters; none is changed on an error.

        Raises:
            BadInput: an unknown name, or a value that is not above 0 or is too high.
        """
        values = self.parameters()
        for name, value in changes.items():
            if name not in values:
                raise BadInput(f"unknown parameter {name}: expected one of {', '.join(values)}")
            highest = _highest(name)
            if not 0.0 < value <= highest:
                raise BadInput(f"{name}: expected above 0, at most {highest:g}, got {value:g}")
        self._values = values | dict(changes)
        self._write_gains()
        self._write_clips()

    def _write_gains(self) -> None:
        for number, kind in enumerate(_KINDS):
            stiffness = self._scales[0] * self._values[f"{kind}_stiffness"]
            damping = self._scales[1] * self._values[f"{kind}_damping"]
            for axis in range(len(_AXES)):
                spring = self._first + 3 * number + axis
                if kind == "translational":  # its control is a position
                    self._model.actuator_gainprm[spring, 0] = stiffness
                self._model.actuator_biasprm[spring, 1] = -stiffness
                self._model.actuator_biasprm[spring + 6, 2] = -damping

    def _write_clips(self) -> None:
        values = self._values
        for number, kind in enumerate(_KINDS):
            for axis, name in enumerate(_AXES):
                clips = -values[f"{kind}_clip_neg_{name}"], values[f"{kind}_clip_{name}"]
                forces = [values[f"{kind}_stiffness"] * clip for clip in clips]
                self._model.actuator_forcerange[self._first + 3 * number + axis] = forces


def _highest(name: str) -> float:
    kind, what = name.split("_")[:2]
    return _HIGHEST[what][_KINDS.index(kind)]
