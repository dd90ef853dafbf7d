"""Who asks a person before real arms: a guard in a process of its own, and an arm that is late."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from serl.errors import SerlError
from serl.guard.latch import GuardedArm
from serl.ros.people import attendant as attendant_module
from serl.ros.people.attendant import Attendant
from serl.ros.ports import read_ports
from serl.ros.testing.processes import eventually
from serl.runs.config import resolve
from serl.runs.folder import RunFolder

from ..support.cell import Cell

pytestmark = pytest.mark.ros


@pytest.fixture
def cell(tmp_path: Path) -> Iterator[Cell]:
    with Cell(tmp_path) as made:
        yield made


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path / "runs", resolve({"task": "reach"}), datetime.now())


def test_a_person_is_asked_when_an_answer_helps_and_told_why_not_until_then(
    cell: Cell, run: RunFolder
) -> None:
    cell.latch.unlink()
    cell.start_arm(silent=True)
    cell.start_guard()
    with Attendant(run, {"actor0": GuardedArm(cell.prefix, cell.latch)}) as attendant:
        stale = f"the guard waits: pose is stale ({cell.prefix}/current_pose)"
        eventually(lambda: attendant.hindrance() == stale, found=attendant.hindrance)
        cell.until("estop: no latch file")
        assert not attendant.question()
        cell.break_arm()
        eventually(lambda: "is this the first start?" in attendant.question())
        key, guard = f"--key {cell.latch}.key", f"{cell.prefix}/guard"
        assert attendant.means() == f"serl order {guard}/ack {guard}/reset {key}"
        assert attendant.answer() == "noted; next: end the guard's stop"
        assert cell.state.startswith("estop"), "what was seen is ended by another answer"
        eventually(lambda: attendant.question().endswith("Enter ends the guard's stop"))
        assert attendant.means() == f"serl order {guard}/reset {key}"
        assert attendant.answer() == "disarmed"
        eventually(lambda: "Enter arms it" in attendant.question(), found=attendant.hindrance)
        assert not attendant.hindrance()
        assert attendant.answer() == "armed"
        assert not attendant.question(), "an armed guard asks nothing"
        cell.until("hold")


def test_an_arm_that_is_outside_of_its_box_is_no_question(cell: Cell, run: RunFolder) -> None:
    cell.start_arm(away_m=0.5)
    cell.start_guard()
    with Attendant(run, {"actor0": GuardedArm(cell.prefix, cell.latch)}) as attendant:
        eventually(lambda: "outside" in attendant.hindrance(), found=attendant.hindrance)
        assert not attendant.question()
        cell.break_arm()
        eventually(lambda: "Enter arms it" in attendant.question(), found=attendant.hindrance)


def test_an_answer_is_to_what_was_asked(cell: Cell, run: RunFolder) -> None:
    """A person who says yes to one thing has not said it to another."""
    cell.start_arm()
    cell.start_guard()
    with Attendant(run, {"actor0": GuardedArm(cell.prefix, cell.latch)}) as attendant:
        eventually(lambda: "Enter arms it" in attendant.question(), found=attendant.hindrance)
        assert cell.call("estop")[0]
        cell.until("estop")
        eventually(lambda: attendant._asked.question().startswith("estop"))
        with pytest.raises(SerlError, match="something else is asked by now"):
            attendant.answer()
        assert cell.state.startswith("estop")


def test_a_guard_that_has_not_heard_of_it_is_acknowledged_again(cell: Cell, run: RunFolder) -> None:
    cell.latch.unlink()
    cell.start_arm()
    cell.start_guard()
    with Attendant(run, {"actor0": GuardedArm(cell.prefix, cell.latch)}) as attendant:
        eventually(
            lambda: attendant.question().endswith("dealt with it"), found=attendant.hindrance
        )
        attendant.answer()
        assert cell.call("estop")[0], "pressed once more"
        eventually(lambda: attendant.question().endswith("Enter ends the guard's stop"))
        with pytest.raises(SerlError, match="nothing to reset"):
            attendant.answer()
        eventually(
            lambda: attendant.question().endswith("dealt with it"), found=attendant.hindrance
        )
        assert cell.state.startswith("estop")


def test_of_two_arms_that_is_asked_about_which_an_answer_helps(cell: Cell, run: RunFolder) -> None:
    cell.start_arm()
    cell.start_guard()
    here = GuardedArm(cell.prefix, cell.latch)
    arms = {"absent": here._replace(namespace="/nowhere"), "actor0": here}
    with Attendant(run, arms) as attendant:
        eventually(lambda: attendant.question().startswith("actor0: the guard is disarmed"))
        assert attendant.answer() == "armed"


def test_a_guard_that_starts_after_the_attendant_went_deaf_is_heard(
    cell: Cell, run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process took the attendant's shared-memory ports for those of a dead one."""
    monkeypatch.setattr(attendant_module, "_UNHEARD_S", 2.0)
    cell.start_arm()
    before = read_ports()
    with Attendant(run, {"actor0": GuardedArm(cell.prefix, cell.latch)}) as attendant:
        locks = [lock for number, lock in read_ports().items() if before.get(number) != lock]
        for lock in locks:
            if lock.endswith("_el"):
                Path(lock.removesuffix("_el")).unlink()
        cell.start_guard()
        cell.until("disarmed")
        eventually(lambda: "Enter arms it" in attendant.question(), found=attendant.hindrance)
        assert not attendant.asked_to_end
