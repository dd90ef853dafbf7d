"""One test per fault of the registry; faults of level K run in `make soak`.

Faults of one scene run in sequence and share its processes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("rclpy", reason="faults need ROS 2")

from .arms import franka
from .books import lost_or_doubled
from .catalogue import REGISTRY
from .motion import moving
from .registry import Fault, Level, Scene, Stage
from .table import PAGE, page

FAULTS = sorted(REGISTRY, key=lambda fault: fault.scene.name if fault.scene else "")
PROMISED = set(range(1, 63))


def _marked(fault: Fault) -> Any:
    marks = [pytest.mark.slow] if fault.level is Level.SOAK else []
    if fault.scene in (franka, moving):
        marks.append(pytest.mark.xdist_group("moving_arm"))  # not beside other arms
    elif fault.scene is not None:
        marks.append(pytest.mark.xdist_group(f"scene_{fault.scene.name}"))
    return pytest.param(fault, id=fault.name, marks=marks)


@pytest.mark.parametrize("fault", [_marked(fault) for fault in FAULTS])
def test_fault(fault: Fault, stage: Stage, tmp_path: Path) -> None:
    if fault.missing:
        pytest.skip(f"NOT TESTED on this machine: {fault.title}: {fault.missing}")
    stage.run(fault, tmp_path)


def test_fault_page_is_up_to_date() -> None:
    assert PAGE.read_text() == page(), "run python -m tests.faults"


def test_registry_holds_every_promised_fault_with_unique_name() -> None:
    assert {fault.number for fault in REGISTRY} == PROMISED
    names = [fault.name for fault in REGISTRY]
    assert len(set(names)) == len(names)


def test_lost_record_fails_its_fault_and_restarts_the_scene(
    tmp_path: Path,
) -> None:
    @contextmanager
    def start(folder: Path) -> Iterator[list[str]]:
        yield []

    def check(losses: list[str]) -> None:
        assert not losses

    stage, scene = Stage(tmp_path), Scene(start, check)
    sound, loses = (
        Fault(number, "", "", "", Level.UNIT, trial, scene=scene)
        for number, trial in enumerate((lambda losses: None, lambda losses: losses.append("one")))
    )
    stage.run(sound, tmp_path)
    with pytest.raises(AssertionError):
        stage.run(loses, tmp_path)
    stage.run(sound, tmp_path)
    stage.close()
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize(
    ("accepted", "wrong"),
    [
        (["a 1", "a 2", "a 3", "a 4"], ""),  # more than the actor could note down
        (["a 1", "a 3"], "1 lost, from a 2 on"),
        (["a 1", "a 2", "a 2", "a 3"], "duplicated, or out of order: a 2"),
        (["a 2", "a 1", "a 3"], "duplicated, or out of order: a 1"),
    ],
)
def test_lost_or_doubled_reports_lost_and_duplicated_records(
    accepted: list[str], wrong: str
) -> None:
    assert lost_or_doubled(["a 1", "a 2", "a 3"], accepted) == wrong
