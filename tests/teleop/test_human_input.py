from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from serl.clock import RealTime, VirtualClock, WallClock
from serl.intervention import Event, Teleop
from serl.log.annotations import LABELS_FILE, StepKey, read_labels
from serl.loop import EpisodeKey, RecordCallback, Result, run
from serl.policy import ZeroPolicy
from serl.reward import RewardConfig
from serl.shaping import ShapedTask, Shaper, TopicProgress
from serl.specs import ArraySpec
from serl.teleop.human_input import HumanInput, LastEnd
from serl.teleop.mux import TeleopMux
from serl.teleop.stop import StopLatch
from serl.testing import FakeRobot, FakeTask, TeleopSuite
from serl.types import ActionSource, End, Record, Step

from .pad import Bench


class Office:
    """An actor's desk, with a person at a pad, and episodes of the fake task."""

    def __init__(self, folder: Path) -> None:
        self.bench, self.folder = Bench(), folder
        self.hold = StopLatch(folder / "stopped")
        self.desk = HumanInput(
            TeleopMux([self.bench.person]), self.hold, folder, LastEnd(self.bench.pad.now_s)
        )
        self.robot = FakeRobot()
        self.task: FakeTask | ShapedTask = FakeTask()
        self.records: list[Record] = []
        self.at: dict[int, Callable[[], object]] = {}
        self.episode = 0
        self.chosen_by = ActionSource.POLICY

    def run(self) -> Result:
        """One episode; `at` a step things happen."""
        self.robot.reset(1)
        self.records.clear()
        key = EpisodeKey("run", "actor", 7, self.episode)
        self.episode += 1
        clock = VirtualClock(self.advance, self.task.config.rate_hz)
        still = ZeroPolicy(self.robot.action_spec)
        return run(
            self.robot,
            self.task,
            still,
            clock,
            key,
            [RecordCallback(self.records.append), self.desk],
            teleop=self.desk,
            chosen_by=self.chosen_by,
        )

    def advance(self, dt_s: float) -> None:
        self.robot.advance(dt_s)
        self.bench.pad.time_s += dt_s
        self.at.pop(len(self.records), lambda: None)()

    def say(self, event: Event) -> Callable[[], str]:
        return lambda: self.desk.add_event(event, "the operator")

    def lines(self) -> list[dict[str, object]]:
        path = self.folder / LABELS_FILE
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture
def office(tmp_path: Path) -> Office:
    return Office(tmp_path)


class TestDesk(TeleopSuite):
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.folder = tmp_path

    def make(self) -> tuple[Teleop, ArraySpec]:
        office = Office(self.folder)
        office.bench.pad.hold()
        return office.desk, FakeRobot.action_spec


@pytest.mark.parametrize(("event", "label"), [(Event.SUCCESS, 1), (Event.FAILURE, 0)])
@pytest.mark.parametrize("shaped", [False, True])
def test_what_a_person_says_is_a_label_with_its_origin(
    office: Office, event: Event, label: int, shaped: bool
) -> None:
    if shaped:  # whatever shaping makes of the reward
        progress = TopicProgress(RewardConfig(kind="progress", topic="/near"))
        progress.newest = lambda: 0.9
        office.task = ShapedTask(FakeTask(), Shaper(progress, 2.0, 0.9))
    office.at[4] = office.say(event)
    assert office.run().success == bool(label)
    assert read_labels(office.folder) == {StepKey(7, 0, 5): label}
    assert [line["by"] for line in office.lines()] == ["the operator"]


def test_a_button_at_a_device_is_a_label_of_that_device(office: Office) -> None:
    office.at[4] = lambda: office.bench.pad.hit("yes")
    assert office.run().success
    assert [line["by"] for line in office.lines()] == ["pad"]


def test_labels_are_appended_and_other_endings_say_nothing(office: Office) -> None:
    office.at[2] = office.say(Event.SUCCESS)
    office.run()
    office.run()  # to its time limit
    office.at[3] = office.say(Event.DISCARD)
    assert office.run().reason == "discarded"
    office.at[9] = office.say(Event.FAILURE)
    office.run()
    assert read_labels(office.folder) == {StepKey(7, 0, 3): 1, StepKey(7, 3, 10): 0}


def test_what_is_said_between_two_episodes_is_not_heard(office: Office) -> None:
    assert office.desk.add_event(Event.SUCCESS, "the operator") == "ignored: no episode runs"
    assert office.run().reason == "time limit"
    assert office.desk.add_event(Event.SUCCESS, "the operator") == "ignored: no episode runs"
    office.desk.rest()
    office.bench.pad.hit("yes")
    assert office.bench.tick() is None
    assert office.desk.events() == ()


@pytest.mark.parametrize("at_a_device", [False, True])
def test_a_word_that_is_said_twice_is_not_one_of_the_next_episode(
    office: Office, at_a_device: bool
) -> None:
    answers: list[str] = []

    def again() -> None:
        if at_a_device:
            office.bench.pad.hit("yes")
        else:
            answers.append(office.desk.add_event(Event.FAILURE, "the operator"))

    office.at[4] = office.say(Event.SUCCESS)
    assert office.run().success
    office.at = {0: again, 4: again}
    assert office.run().reason == "time limit"
    assert set(answers) <= {"ignored: the last episode has just ended on an operator's event"}
    office.at = {9: again}
    assert office.run().reason == ("success" if at_a_device else "failure"), "later it is another"


def test_a_word_that_is_said_twice_is_not_one_of_the_next_stage(tmp_path: Path) -> None:
    last = LastEnd(lambda: 10.0)
    nobody = TeleopMux([])
    first, second = (
        HumanInput(nobody, StopLatch(tmp_path / "stopped"), tmp_path, last) for _ in range(2)
    )
    last.set()
    for desk in (first, second):
        desk.begin()
        assert "just ended on an operator's event" in desk.add_event(Event.SUCCESS, "the operator")
        assert desk.events() == ()


def test_a_label_that_is_said_twice_in_a_step_is_one(office: Office) -> None:
    office.at[4] = lambda: (office.say(Event.SUCCESS)(), office.say(Event.SUCCESS)())
    assert office.run().success
    assert [line["label"] for line in office.lines()] == [1], "twice is once"


def test_a_reset_is_neither_success_nor_failure(office: Office) -> None:
    office.chosen_by = ActionSource.SCRIPT
    answers: list[str] = []
    office.at[3] = lambda: answers.append(office.desk.add_event(Event.SUCCESS, "the operator"))
    office.at[4] = lambda: office.bench.pad.hit("yes")
    office.at[6] = office.say(Event.RESET)
    assert office.run().reason == "operator", "which ends this attempt"
    assert answers == ["ignored: the scene is being reset"]
    assert office.lines() == []
    office.chosen_by = ActionSource.POLICY
    office.at[9] = office.say(Event.SUCCESS)
    assert office.run().success
    assert [line["label"] for line in office.lines()] == [1]


def test_a_stop_is_heard_also_between_two_episodes(office: Office) -> None:
    office.desk.add_event(Event.STOP, "the operator")
    result = office.run()
    assert (result.steps, result.reason) == (1, "stopped")
    assert office.hold.stopped == "stopped by the operator"


def test_a_stop_at_a_device_is_kept_as_well(office: Office) -> None:
    office.at[3] = lambda: office.bench.pad.hit("stop")
    assert office.run().reason == "stopped"
    assert StopLatch(office.folder / "stopped").stopped == "stopped by pad"
    assert office.robot.stop_reason


def test_after_release_and_resume_the_next_episode_runs(office: Office) -> None:
    office.at[3] = office.say(Event.STOP)
    office.run()
    office.hold.release()
    office.desk.resume()
    assert office.run().reason == "time limit"


def test_a_device_that_fell_silent_pauses_the_actor_and_a_person_goes_on(office: Office) -> None:
    pad = office.bench.pad
    office.at[2] = lambda: pad.hold()
    office.at[4] = lambda: setattr(pad, "alive", False)
    assert office.run().reason == "device lost"
    assert office.hold.reason == "pad fell silent"
    assert office.desk.mux.silent == "pad"
    office.desk.resume()
    assert office.run().human_steps == 0


def test_the_log_says_who_drove(office: Office) -> None:
    pad = office.bench.pad
    office.at[2] = lambda: pad.hold()
    office.at[6] = lambda: pad.hold(False)
    office.run()
    steps = [record for record in office.records if isinstance(record, Step)]
    human = [step.key.index for step in steps if step.source is ActionSource.HUMAN]
    assert human == [3, 4, 5, 6, 7, 8]  # and the hold-over
    assert isinstance(office.records[-1], End)


def test_real_time_passes_only_while_it_is_asked_for() -> None:
    slept: list[float] = []
    wanted, now = False, 0.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds
        slept.append(seconds)

    clock = WallClock(10.0, now=lambda: now, sleep=sleep)
    order: list[str] = []
    pace = RealTime(clock, lambda: wanted, lambda: order.append("before"))
    for _ in range(5):
        pace()
    assert slept == []
    now = 7.3  # it asks late: nothing is caught up
    wanted = True
    pace()
    wanted = False
    pace()
    wanted = True
    pace()
    pace()
    assert sum(slept) == pytest.approx(0.2)
    assert len(order) == 9
