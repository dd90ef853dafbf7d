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

from ..support.guard_bench import GuardBench

pytestmark = pytest.mark.ros


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[GuardBench]:
    with GuardBench(tmp_path) as made:
        yield made


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path / "runs", resolve({"task": "reach"}), datetime.now())


def assert_answered(attendant: Attendant, question: str, reply: str) -> None:
    """Answer a question until it is accepted: a guard refuses while it hears nothing of its arm.

    On a busy machine that may begin between question and answer.
    """
    refused = ""

    def is_accepted() -> bool:
        nonlocal refused
        if question not in attendant.question():
            return False
        try:
            return attendant.answer() == reply
        except SerlError as error:
            refused = str(error)
            return False

    eventually(is_accepted, found=lambda: f"{refused}; {attendant.hindrance()}")


def test_a_person_is_asked_when_an_answer_helps_and_told_why_not_until_then(
    bench: GuardBench, run: RunFolder
) -> None:
    bench.latch.unlink()
    bench.start_arm(silent=True)
    bench.start_guard()
    with Attendant(run, {"actor0": GuardedArm(bench.prefix, bench.latch)}) as attendant:
        stale = f"the guard waits: pose is stale ({bench.prefix}/current_pose)"
        eventually(lambda: attendant.hindrance() == stale, found=attendant.hindrance)
        bench.until("estop: no latch file")
        assert not attendant.question()
        bench.set_arm_faults()
        eventually(lambda: "is this the first start?" in attendant.question())
        key, guard = f"--key {bench.latch}.key", f"{bench.prefix}/guard"
        assert attendant.means() == f"serl order {guard}/ack {guard}/reset {key}"
        assert_answered(attendant, "this the first start?", "noted; next: end the guard's stop")
        assert bench.state.startswith("estop"), "what was seen is ended by another answer"
        eventually(lambda: attendant.question().endswith("Enter ends the guard's stop"))
        assert attendant.means() == f"serl order {guard}/reset {key}"
        assert_answered(attendant, "Enter ends the guard's stop", "disarmed")
        assert_answered(attendant, "Enter arms it", "armed")
        assert not attendant.question(), "an armed guard asks nothing"
        bench.until("hold")


def test_an_arm_that_is_outside_of_its_box_is_no_question(
    bench: GuardBench, run: RunFolder
) -> None:
    bench.start_arm(away_m=0.5)
    bench.start_guard()
    with Attendant(run, {"actor0": GuardedArm(bench.prefix, bench.latch)}) as attendant:
        eventually(lambda: "outside" in attendant.hindrance(), found=attendant.hindrance)
        assert not attendant.question()
        bench.set_arm_faults()
        eventually(lambda: "Enter arms it" in attendant.question(), found=attendant.hindrance)


def test_an_answer_is_to_what_was_asked(bench: GuardBench, run: RunFolder) -> None:
    """A person who says yes to one thing has not said it to another."""
    bench.start_arm()
    bench.start_guard()
    with Attendant(run, {"actor0": GuardedArm(bench.prefix, bench.latch)}) as attendant:
        eventually(lambda: "Enter arms it" in attendant.question(), found=attendant.hindrance)
        assert bench.call("estop")[0]
        bench.until("estop")
        eventually(lambda: attendant._arm.question().startswith("estop"))
        with pytest.raises(SerlError, match="the question has changed"):
            attendant.answer()
        assert bench.state.startswith("estop")


def test_a_guard_that_has_not_heard_of_it_is_acknowledged_again(
    bench: GuardBench, run: RunFolder
) -> None:
    bench.latch.unlink()
    bench.start_arm()
    bench.start_guard()
    with Attendant(run, {"actor0": GuardedArm(bench.prefix, bench.latch)}) as attendant:
        assert_answered(attendant, "dealt with it", "noted; next: end the guard's stop")
        assert bench.call("estop")[0], "pressed once more"
        eventually(lambda: attendant.question().endswith("Enter ends the guard's stop"))
        with pytest.raises(SerlError, match="nothing to reset"):
            attendant.answer()
        eventually(
            lambda: attendant.question().endswith("dealt with it"), found=attendant.hindrance
        )
        assert bench.state.startswith("estop")


def test_of_two_arms_that_is_asked_about_which_an_answer_helps(
    bench: GuardBench, run: RunFolder
) -> None:
    bench.start_arm()
    bench.start_guard()
    here = GuardedArm(bench.prefix, bench.latch)
    arms = {"absent": here._replace(namespace="/nowhere"), "actor0": here}
    with Attendant(run, arms) as attendant:
        assert_answered(attendant, "actor0: the guard is disarmed", "armed")


def test_a_guard_that_starts_after_the_attendant_went_deaf_is_heard(
    bench: GuardBench, run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process took the attendant's shared-memory ports for those of a dead one."""
    monkeypatch.setattr(attendant_module, "_UNHEARD_S", 2.0)
    bench.start_arm()
    before = read_ports()
    with Attendant(run, {"actor0": GuardedArm(bench.prefix, bench.latch)}) as attendant:
        locks = [lock for number, lock in read_ports().items() if before.get(number) != lock]
        for lock in locks:
            if lock.endswith("_el"):
                Path(lock.removesuffix("_el")).unlink()
        bench.start_guard()
        bench.until("disarmed")
        eventually(lambda: "Enter arms it" in attendant.question(), found=attendant.hindrance)
        assert not attendant.is_interrupted
