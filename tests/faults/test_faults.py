"""One test for each fault of the registry; those of level K are run by `make soak`.

Faults of a scene come one after the other and share its processes.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("rclpy", reason="faults need ROS 2")

from .catalogue import REGISTRY
from .registry import Fault, Level, Stage
from .table import PAGE, page

FAULTS = sorted(REGISTRY, key=lambda fault: fault.scene.__name__ if fault.scene else "")
PROMISED = {*range(1, 38), 42, 43, 44, 45, 46, 47, 48, 49, 52, 54, 55, 56, 57, 58, 59, 60}


def _marked(fault: Fault) -> Any:
    marks = [pytest.mark.slow] if fault.level is Level.SOAK else []
    if fault.scene is not None:
        marks.append(pytest.mark.xdist_group(f"scene_{fault.scene.__name__}"))
    return pytest.param(fault, id=fault.name, marks=marks)


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    stage = Stage(tmp_path_factory.mktemp("scenes"))
    yield stage
    stage.close()


@pytest.mark.parametrize("fault", [_marked(fault) for fault in FAULTS])
def test_fault(fault: Fault, stage: Stage, tmp_path: Path) -> None:
    if fault.missing:
        pytest.skip(f"NOT TESTED on this machine: {fault.title}: {fault.missing}")
    stage.run(fault, tmp_path)


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text() == page(), "run python -m tests.faults"


def test_every_promised_fault_is_in_the_registry_under_a_name_of_its_own() -> None:
    assert {fault.number for fault in REGISTRY} >= PROMISED
    names = [fault.name for fault in REGISTRY]
    assert len(set(names)) == len(names)
