from __future__ import annotations

from typing import Any

import pytest

from serl.errors import BadInput
from serl.system.settings_file import checked
from serl.workspace import CellCamera, Workspace

GOOD: dict[str, Any] = {
    "low_m": (0.3, -0.2, 0.05),
    "high_m": (0.6, 0.2, 0.4),
    "home_m": (0.45, 0.0, 0.2),
    "reference": (1.0, 0.0, 0.0, 0.0),
}

POST = {"low_m": (0.5, 0.1, 0.0), "high_m": (0.55, 0.15, 0.4)}


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"low_m": (0.7, -0.2, 0.05)}, "the box is inverted along x"),
        ({"high_m": (0.6, 0.2, 0.06)}, "the box is 0.010 m along z: expected 0.04 to 1.5 m"),
        ({"low_m": (0.3, -1.9, 0.05)}, "the box is 2.100 m along y"),
        ({"home_m": (0.45, 0.0, 0.5)}, "home is outside the box along z: 0.500 m"),
        ({"reference": (0.0, 0.0, 0.0, 0.0)}, "reference"),
        ({"low_m": (float("nan"), -0.2, 0.05)}, "low_m"),
        ({"corner": 1}, "unknown setting"),
        ({"keep_out": [POST, {**POST, "low_m": (0.5, 0.2, 0.0)}]}, r"keep_out.1.*must be below"),
        ({"keep_out": [{"low_m": (0.4, -0.1, 0.1), "high_m": (0.5, 0.1, 0.3)}]}, "home is in keep"),
        ({"keep_out": [{"low_m": (0.4, -0.1, 0.1)}]}, r"keep_out.0.high_m: missing, but required"),
        ({"keep_out": [POST] * 65}, "keep_out"),
    ],
)
def test_invalid_workspace_is_refused_in_one_line(change: dict[str, Any], line: str) -> None:
    assert checked(Workspace, GOOD).keep_out == ()
    assert len(checked(Workspace, {**GOOD, "keep_out": [POST]}).keep_out) == 1
    with pytest.raises(BadInput, match=line) as caught:
        checked(Workspace, {**GOOD, **change})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "change", [{"topic": "front"}, {"rate_hz": 0.0}, {"crop": (0.5, 0.0, 0.5, 1.0)}]
)
def test_invalid_cell_camera_is_refused(change: dict[str, Any]) -> None:
    good = {"topic": "/cell/front", "rate_hz": 30.0}
    checked(CellCamera, good)
    with pytest.raises(BadInput):
        checked(CellCamera, {**good, **change})
