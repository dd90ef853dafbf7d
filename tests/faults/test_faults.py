"""One test for each fault of the registry; those of level K are run by `make soak`."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("rclpy", reason="faults need ROS 2")

from .catalogue import REGISTRY
from .registry import Fault, Level

FAULTS = list(REGISTRY)


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(
            fault, id=fault.name, marks=[pytest.mark.slow] if fault.level is Level.SOAK else []
        )
        for fault in FAULTS
    ],
)
def test_fault(fault: Fault, tmp_path: Path) -> None:
    if fault.missing:
        pytest.skip(f"NOT TESTED on this machine: {fault.title}: {fault.missing}")
    fault.trial(tmp_path)
