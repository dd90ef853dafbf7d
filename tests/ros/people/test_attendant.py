"""`Attendant`, which asks the operator of a real arm, with a guard in its own process."""

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
    """Answer a question until it is accepted; a guard refuses while its arm's messages are late.

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


def test_attendant_asks_when_answer_helps_and_reports_hindrance_before(
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
        eventually(lambda: "normal only at the first start" in attendant.question())
        key, guard = f"--key {bench.latch}.key", f"{bench.prefix}/guard"
        assert attendant.means() == f"serl order {guard}/ack {guard}/reset {key}"
        assert_answered(attendant, "at the first start", "noted; next: end the guard's stop")
        assert bench.state.startswith("estop"), "ending the stop needs a second answer"
        eventually(lambda: attendant.question().endswith("Enter ends the guard's stop"))
        assert attendant.means() == f"serl order {guard}/reset {key}"
        assert_answered(attendant, "Enter ends the guard's stop", "disarmed")
        bench.set_arm_faults(away_m=0.5)
        eventually(lambda: "outside" in attendant.hindrance(), found=attendant.hindrance)
        assert not attendant.question(), "the guard would refuse an arm outside its box"
        bench.set_arm_faults()
        assert_answered(attendant, "Enter arms it", "armed")
        assert not attendant.question(), "an armed guard has no question"
        bench.until("hold")


def test_attendant_rejects_answer_to_outdated_question_about_the_running_guard(
    bench: GuardBench, run: RunFolder
) -> None:
    """Stop the guard between question and answer; the answer must not apply to the stop."""
    bench.start_arm()
    bench.start_guard()
    here = GuardedArm(bench.prefix, bench.latch)
    arms = {"absent": here._replace(namespace="/nowhere"), "actor0": here}
    with Attendant(run, arms) as attendant:
        eventually(lambda: "Enter arms it" in attendant.question(), found=attendant.hindrance)
        assert attendant.question().startswith("actor0: the guard is disarmed")
        assert bench.call("estop")[0]
        bench.until("estop")
        eventually(lambda: attendant._arm.question().startswith("estop"))
        with pytest.raises(SerlError, match="the question has changed"):
            attendant.answer()
        assert bench.state.startswith("estop")


def test_attendant_asks_for_acknowledgement_of_new_stop_again(
    bench: GuardBench, run: RunFolder
) -> None:
    bench.latch.unlink()
    bench.start_arm()
    bench.start_guard()
    with Attendant(run, {"actor0": GuardedArm(bench.prefix, bench.latch)}) as attendant:
        assert_answered(attendant, "safe to continue", "noted; next: end the guard's stop")
        assert bench.call("estop")[0], "a second stop before the reset"
        eventually(lambda: attendant.question().endswith("Enter ends the guard's stop"))
        with pytest.raises(SerlError, match="nothing to reset"):
            attendant.answer()
        eventually(
            lambda: attendant.question().endswith("safe to continue"), found=attendant.hindrance
        )
        assert bench.state.startswith("estop")


def test_attendant_receives_late_guard_after_losing_shared_memory_ports(
    bench: GuardBench, run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Remove the attendant's shared-memory ports, as a process does that takes it for dead."""
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
