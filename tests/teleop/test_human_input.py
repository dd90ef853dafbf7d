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
from serl.topic_reward import TimedNumber
from serl.types import ActionSource, End, Record, Step

from .pad import Bench


class HumanInputBench:
    """Human input of an actor with an operator at a pad, and episodes of the fake task."""

    def __init__(self, folder: Path) -> None:
        self.bench, self.folder = Bench(), folder
        self.latch = StopLatch(folder / "stopped")
        self.human_input = HumanInput(
            TeleopMux([self.bench.person]), self.latch, folder, LastEnd(self.bench.pad.now_s)
        )
        self.robot = FakeRobot()
        self.task: FakeTask | ShapedTask = FakeTask()
        self.records: list[Record] = []
        self.callbacks: dict[int, Callable[[], object]] = {}
        self.episode = 0
        self.chosen_by = ActionSource.POLICY

    def run(self) -> Result:
        """Run one episode; call `callbacks` at their steps."""
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
            [RecordCallback(self.records.append), self.human_input],
            teleop=self.human_input,
            chosen_by=self.chosen_by,
        )

    def advance(self, dt_s: float) -> None:
        self.robot.advance(dt_s)
        self.bench.pad.time_s += dt_s
        self.callbacks.pop(len(self.records), lambda: None)()

    def send_event(self, event: Event) -> Callable[[], str]:
        return lambda: self.human_input.add_event(event, "the operator")

    def lines(self) -> list[dict[str, object]]:
        path = self.folder / LABELS_FILE
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture
def input_bench(tmp_path: Path) -> HumanInputBench:
    return HumanInputBench(tmp_path)


class TestHumanInput(TeleopSuite):
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.folder = tmp_path

    def make(self) -> tuple[Teleop, ArraySpec]:
        input_bench = HumanInputBench(self.folder)
        input_bench.bench.pad.hold()
        return input_bench.human_input, FakeRobot.action_spec


@pytest.mark.parametrize(("event", "label"), [(Event.SUCCESS, 1), (Event.FAILURE, 0)])
@pytest.mark.parametrize("shaped", [False, True])
def test_operator_event_is_stored_as_label_with_its_origin(
    input_bench: HumanInputBench, event: Event, label: int, shaped: bool
) -> None:
    if shaped:  # shaping must not affect the label
        progress = TopicProgress(RewardConfig(kind="progress", topic="/near"))
        progress.newest = lambda: TimedNumber(0.9, 0.0)
        input_bench.task = ShapedTask(FakeTask(), Shaper(progress, 2.0, 0.9))
    input_bench.callbacks[4] = input_bench.send_event(event)
    assert input_bench.run().success == bool(label)
    assert read_labels(input_bench.folder) == {StepKey(7, 0, 5): label}
    assert [line["by"] for line in input_bench.lines()] == ["the operator"]


def test_device_button_is_stored_as_label_of_that_device(input_bench: HumanInputBench) -> None:
    input_bench.callbacks[4] = lambda: input_bench.bench.pad.hit("yes")
    assert input_bench.run().success
    assert [line["by"] for line in input_bench.lines()] == ["pad"]


def test_labels_are_appended_and_other_endings_add_none(input_bench: HumanInputBench) -> None:
    input_bench.callbacks[2] = input_bench.send_event(Event.SUCCESS)
    input_bench.run()
    input_bench.run()  # runs to its time limit
    input_bench.callbacks[9] = input_bench.send_event(Event.DISCARD)
    assert input_bench.run().reason == "discarded"
    input_bench.callbacks[9] = input_bench.send_event(Event.FAILURE)
    input_bench.run()
    assert read_labels(input_bench.folder) == {StepKey(7, 0, 3): 1, StepKey(7, 3, 10): 0}


def test_event_between_episodes_is_ignored(input_bench: HumanInputBench) -> None:
    assert (
        input_bench.human_input.add_event(Event.SUCCESS, "the operator")
        == "ignored: no episode runs"
    )
    assert input_bench.run().reason == "time limit"
    assert (
        input_bench.human_input.add_event(Event.SUCCESS, "the operator")
        == "ignored: no episode runs"
    )
    input_bench.human_input.rest()
    input_bench.bench.pad.hit("yes")
    assert input_bench.bench.tick() is None
    assert input_bench.human_input.events() == ()


@pytest.mark.parametrize("at_a_device", [False, True])
def test_repeated_event_does_not_end_next_episode(
    input_bench: HumanInputBench, at_a_device: bool
) -> None:
    answers: list[str] = []

    def repeat_event() -> None:
        if at_a_device:
            input_bench.bench.pad.hit("yes")
        else:
            answers.append(input_bench.human_input.add_event(Event.FAILURE, "the operator"))

    input_bench.callbacks[4] = input_bench.send_event(Event.SUCCESS)
    assert input_bench.run().success
    input_bench.callbacks = {0: repeat_event, 4: repeat_event}
    assert input_bench.run().reason == "time limit"
    assert set(answers) <= {"ignored: the last episode has just ended"}
    input_bench.callbacks = {9: repeat_event}
    assert input_bench.run().reason == ("success" if at_a_device else "failure"), (
        "a later press was ignored"
    )


@pytest.mark.parametrize("event", [Event.SUCCESS, Event.DISCARD, Event.REWARD])
def test_late_event_for_an_episode_that_ended_by_itself_does_not_count_in_the_next(
    input_bench: HumanInputBench, event: Event
) -> None:
    assert input_bench.run().reason == "time limit"
    input_bench.callbacks = {3: input_bench.send_event(event)}
    result = input_bench.run()
    assert (result.reason, result.reward) == ("time limit", 0.0)
    assert not input_bench.lines()


def test_repeated_event_is_ignored_by_every_input_of_actor(tmp_path: Path) -> None:
    last = LastEnd(lambda: 10.0)
    empty_mux = TeleopMux([])
    first, second = (
        HumanInput(empty_mux, StopLatch(tmp_path / "stopped"), tmp_path, last) for _ in range(2)
    )
    last.set()
    for human_input in (first, second):
        human_input.begin()
        assert "just ended" in human_input.add_event(Event.SUCCESS, "the operator")
        assert human_input.events() == ()


def test_scene_reset_accepts_no_label(input_bench: HumanInputBench) -> None:
    input_bench.chosen_by = ActionSource.SCRIPT
    answers: list[str] = []
    input_bench.callbacks[3] = lambda: answers.append(
        input_bench.human_input.add_event(Event.SUCCESS, "the operator")
    )
    input_bench.callbacks[4] = lambda: input_bench.bench.pad.hit("yes")
    input_bench.callbacks[6] = input_bench.send_event(Event.RESET)
    assert input_bench.run().reason == "operator", "the event does not end the reset"
    assert answers == ["ignored: the scene is being reset"]
    assert input_bench.lines() == []
    input_bench.chosen_by = ActionSource.POLICY
    input_bench.callbacks[9] = input_bench.send_event(Event.SUCCESS)
    assert input_bench.run().success
    assert [line["label"] for line in input_bench.lines()] == [1]


def test_stop_between_episodes_ends_next_episode_after_one_step(
    input_bench: HumanInputBench,
) -> None:
    input_bench.human_input.add_event(Event.STOP, "the operator")
    result = input_bench.run()
    assert (result.steps, result.reason) == (1, "stopped")
    assert input_bench.latch.stopped == "stopped by the operator"


def test_stop_from_device_is_persisted(input_bench: HumanInputBench) -> None:
    input_bench.callbacks[3] = lambda: input_bench.bench.pad.hit("stop")
    assert input_bench.run().reason == "stopped"
    assert StopLatch(input_bench.folder / "stopped").stopped == "stopped by pad"
    assert input_bench.robot.stop_reason


def test_stop_from_device_is_obeyed_in_pause_and_label_is_kept(
    input_bench: HumanInputBench,
) -> None:
    human_input, latch, pad = input_bench.human_input, input_bench.latch, input_bench.bench.pad
    latch.look = lambda: human_input.obey_stops(read=True)  # as an actor does
    human_input.begin()
    human_input()
    latch.pause("paused")
    pad.hit("yes")
    assert latch.wait_paused(iter((False, True, True)).__next__, 0.0), "it only ended"
    latch.resume()
    assert human_input.events() == (Event.SUCCESS,)
    latch.pause("paused")
    pad.hit("stop")
    assert not latch.wait_paused(iter((False, False)).__next__, 0.0)
    assert latch.stopped == "stopped by pad"


def test_presses_between_episodes_take_effect_before_the_next_or_never(
    input_bench: HumanInputBench,
) -> None:
    human_input, latch, pad = input_bench.human_input, input_bench.latch, input_bench.bench.pad
    latch.look = lambda: human_input.obey_stops(read=True)  # as an actor does
    pad.hit("yes")
    assert not latch.wait(lambda: False)
    assert input_bench.run().reason == "time limit", "the label counted in the next episode"
    pad.hit("stop")
    assert latch.wait(lambda: bool(latch.reason)), "the next episode would begin with a step"
    assert latch.stopped == "stopped by pad"


@pytest.mark.parametrize("stop", ["guard", "button", "service"])
def test_controls_held_in_a_stop_have_to_be_released_first(
    input_bench: HumanInputBench, stop: str
) -> None:
    pad, latch = input_bench.bench.pad, input_bench.latch
    pad.axes["x"] = 1.0
    stops = {
        "guard": lambda: input_bench.robot.stop("the guard stopped the arm"),
        "button": lambda: pad.hit("stop"),
        "service": input_bench.send_event(Event.STOP),
    }
    input_bench.callbacks = {2: pad.hold, 5: stops[stop]}
    assert input_bench.run().human_steps
    latch.release()
    input_bench.human_input.resume()
    input_bench.callbacks = {9: lambda: pad.hold(False), 12: pad.hold}
    input_bench.run()
    steps = [record for record in input_bench.records if isinstance(record, Step)]
    assert next(s.key.index for s in steps if s.source is ActionSource.HUMAN) == 13


@pytest.mark.parametrize("reason", ["success", "discarded", "fault"])
def test_stop_from_device_is_persisted_whatever_else_ends_its_step(
    input_bench: HumanInputBench, reason: str
) -> None:
    pad, others = input_bench.bench.pad, {"discarded": Event.DISCARD, "success": Event.SUCCESS}
    input_bench.callbacks[2] = lambda: pad.hit("stop")  # read at the next step
    input_bench.callbacks[3] = (
        input_bench.send_event(others[reason])
        if reason in others
        else lambda: input_bench.robot.stop("the guard stopped the arm")
    )
    assert input_bench.run().reason == reason
    assert StopLatch(input_bench.folder / "stopped").stopped == "stopped by pad"


def test_episode_runs_after_release_and_resume(input_bench: HumanInputBench) -> None:
    input_bench.callbacks[3] = input_bench.send_event(Event.STOP)
    input_bench.run()
    input_bench.latch.release()
    input_bench.human_input.resume()
    assert input_bench.run().reason == "time limit"


def test_silent_device_pauses_actor_until_resume(input_bench: HumanInputBench) -> None:
    pad = input_bench.bench.pad
    input_bench.callbacks[2] = lambda: pad.hold()
    input_bench.callbacks[4] = lambda: setattr(pad, "alive", False)
    assert input_bench.run().reason == "device lost"
    assert input_bench.latch.reason == "pad fell silent"
    assert input_bench.human_input.mux.silent == "pad"
    input_bench.human_input.resume()
    assert input_bench.run().human_steps == 0


def test_log_records_which_steps_operator_drove(input_bench: HumanInputBench) -> None:
    pad = input_bench.bench.pad
    input_bench.callbacks[2] = lambda: pad.hold()
    input_bench.callbacks[6] = lambda: pad.hold(False)
    input_bench.run()
    steps = [record for record in input_bench.records if isinstance(record, Step)]
    human = [step.key.index for step in steps if step.source is ActionSource.HUMAN]
    assert human == [3, 4, 5, 6, 7, 8]  # including the hold-over
    assert isinstance(input_bench.records[-1], End)


def test_real_time_pacing_waits_only_while_wanted() -> None:
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
    now = 7.3  # a late request: missed time is not caught up
    wanted = True
    pace()
    wanted = False
    pace()
    wanted = True
    pace()
    pace()
    assert sum(slept) == pytest.approx(0.2)
    assert len(order) == 9


def test_label_during_the_end_of_an_episode_is_refused_not_lost(
    input_bench: HumanInputBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: list[str] = []
    on_end = input_bench.human_input.on_end

    def label_meanwhile(end: End) -> None:  # the log takes the end first
        answers.append(input_bench.human_input.add_event(Event.SUCCESS, "the operator"))
        on_end(end)

    monkeypatch.setattr(input_bench.human_input, "on_end", label_meanwhile)
    assert input_bench.run().reason == "time limit"
    assert answers == ["ignored: no episode runs"]


@pytest.mark.parametrize("between", [False, True])
def test_stop_from_device_holds_even_if_it_cannot_be_stored(
    input_bench: HumanInputBench, between: bool
) -> None:
    pad, latch = input_bench.bench.pad, input_bench.latch
    latch.path = input_bench.folder / "missing" / "stopped"
    if between:
        pad.hit("stop")
        input_bench.human_input.obey_stops(read=True)
    else:
        input_bench.callbacks[3] = lambda: pad.hit("stop")
        assert input_bench.run().reason == "stopped"
    assert latch.stopped == "stopped by pad"
