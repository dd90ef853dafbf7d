"""Test recording of demonstrations: storage, failures, sessions and undo."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest

from serl.clock import VirtualClock
from serl.datasets.person import RecordingStation, record_person
from serl.datasets.recording_session import (
    FAILURES,
    KEPT,
    UNDONE,
    Recording,
    RecordingCounts,
    RecordingSession,
    read_session,
    write_session,
)
from serl.errors import CorruptData, SerlError, Silent
from serl.intervention import Event
from serl.log.episode_reader import PART, episode_paths, read_episode
from serl.loop import Result
from serl.runs.config import TrainConfig
from serl.runs.folder import RunFolder
from serl.runs.task_setup import make_spec
from serl.runs.verify import verify
from serl.teleop.human_input import HumanInput, LastEnd
from serl.teleop.mux import TeleopMux
from serl.teleop.stop import StopLatch
from serl.testing import FakeRobot, FakeTask
from serl.types import ActionSource, Observation

from ..teleop.pad import Bench

LIMIT = 400


class RecordingBench:
    """Operator with a pad who records; `at` maps a tick of the clock to an action."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.bench = folder, Bench()
        self.recorded = Recording(folder, folder / "episodes" / "person")
        self.desk = HumanInput(
            TeleopMux([self.bench.person]),
            StopLatch(folder / "stopped"),
            folder,
            LastEnd(self.bench.pad.now_s),
        )
        self.robot, self.task = FakeRobot(), FakeTask()
        self.at: dict[int, Callable[[], object]] = {}
        self.ticks, self.ended = 0, False
        self.meanwhile: Callable[[], object] = lambda: None
        self.results: list[Result] = []
        self.starts: list[int] = []
        self.reset, self.robot.reset = self.robot.reset, self._reset  # type: ignore[method-assign]

    def _reset(self, seed: int) -> Observation:
        self.starts.append(seed)
        return self.reset(seed)

    def record(self, wanted: int) -> RecordingCounts:
        clock = VirtualClock(self.advance, self.task.config.rate_hz)
        stand = RecordingStation(self.robot, self.desk, clock, self.stopping)
        record_person(stand, self.task, self.recorded, wanted, 0, self.results.append)
        return self.recorded.counts

    def stopping(self) -> bool:
        self.meanwhile()
        return self.ended or self.ticks > LIMIT

    def advance(self, dt_s: float) -> None:
        self.robot.advance(dt_s)
        self.bench.pad.time_s += dt_s
        self.at.pop(self.ticks, lambda: None)()
        self.ticks += 1

    def send_event(self, event: Event) -> Callable[[], None]:
        """Return an action that sends the event and releases the pad."""

        def send() -> None:
            self.desk.add_event(event, "the operator")
            self.bench.pad.hold(False)

        return send

    def episode(self, event: Event) -> None:
        """Schedule one episode: take over after five ticks, send the event after ten."""
        self.at[self.ticks + 5] = self.bench.pad.hold
        self.at[self.ticks + 10] = self.send_event(event)


@pytest.fixture
def bench(tmp_path: Path) -> RecordingBench:
    return RecordingBench(tmp_path)


def test_recording_keeps_successes_and_stores_failures_separately(bench: RecordingBench) -> None:
    bench.episode(Event.SUCCESS)
    bench.at[20] = lambda: bench.episode(Event.FAILURE)
    bench.at[40] = lambda: bench.episode(Event.DISCARD)
    bench.at[60] = lambda: bench.episode(Event.SUCCESS)
    assert bench.record(2) == RecordingCounts(kept=2, failures=2, undone=0)
    assert [result.text for result in bench.results] == [
        "success",
        "failure",
        "discarded",
        "success",
    ]
    assert bench.recorded.recent == [True, False, False, True]
    assert not episode_paths(bench.recorded.incoming)


def test_verify_finds_sorted_episodes_and_their_damage(tmp_path: Path) -> None:
    run = RunFolder.create_at(tmp_path / "recording", TrainConfig(), datetime(2026, 11, 27))
    bench = RecordingBench(run.path)
    bench.episode(Event.SUCCESS)
    bench.at[20] = lambda: bench.episode(Event.FAILURE)
    bench.at[40] = lambda: bench.episode(Event.SUCCESS)
    bench.record(2)
    bench.recorded.undo()
    report = verify(run.path)
    assert (report.sound, report.lost, report.contents[0].episodes) == (True, 0, 3), str(report)
    (failure,) = episode_paths(run.path / FAILURES)
    failure.write_bytes(failure.read_bytes()[:-100])
    assert any(str(failure) in line for line in verify(run.path).findings)
    failure.unlink()
    assert verify(run.path).lost == bench.results[1].steps + 1


def test_recording_in_renamed_folder_is_continued_as_one_run(tmp_path: Path) -> None:
    run = RunFolder.create_at(tmp_path / "recording", TrainConfig(), datetime(2026, 11, 27))
    bench = RecordingBench(run.path)
    bench.episode(Event.FAILURE)
    bench.at[20] = lambda: bench.episode(Event.SUCCESS)
    bench.record(1)
    later = RecordingBench(run.path.rename(tmp_path / "renamed"))
    later.episode(Event.SUCCESS)
    assert later.record(2) == RecordingCounts(kept=2, failures=1, undone=0)
    report = verify(later.folder)
    assert (report.sound, report.contents[0].episodes) == (True, 3), str(report)


def test_recorded_episode_begins_at_takeover(bench: RecordingBench) -> None:
    bench.episode(Event.SUCCESS)
    bench.record(1)
    (path,) = episode_paths(bench.folder)
    episode = read_episode(path, make_spec(bench.task))
    assert [step.source for step in episode.steps[:3]] == [ActionSource.HUMAN] * 3
    assert len(episode.steps) <= 7


def test_held_deadman_does_not_begin_second_episode(bench: RecordingBench) -> None:
    bench.at[5] = bench.bench.pad.hold
    # The deadman stays pressed.
    bench.at[10] = lambda: bench.desk.add_event(Event.SUCCESS, "the operator")
    assert bench.record(2) == RecordingCounts(1, 0, 0)
    assert bench.ticks > LIMIT


def test_recording_waits_for_placement_and_for_silent_robot(bench: RecordingBench) -> None:
    """Record on a real arm: an operator places it, and each silence is reported and retried."""
    reported: list[str] = []
    silences = [Silent("the guard stopped the arm")]

    def place(seed: int) -> None:
        bench.episode(Event.SUCCESS)
        if silences:
            raise silences.pop()

    clock = VirtualClock(bench.advance, bench.task.config.rate_hz)
    stand = RecordingStation(
        bench.robot, bench.desk, clock, lambda: bench.ticks > LIMIT, place=place
    )
    with pytest.raises(Silent):
        record_person(stand, bench.task, bench.recorded, 1, 0)
    silences.append(Silent("the guard stopped the arm"))
    stand.on_silence = reported.append
    record_person(stand, bench.task, bench.recorded, 1, 0)
    assert reported == ["the guard stopped the arm"]
    assert bench.recorded.counts == RecordingCounts(1, 0, 0)
    assert not bench.starts, "only a simulation may be reset"


def test_next_session_continues_counts_with_new_start_seeds(bench: RecordingBench) -> None:
    bench.episode(Event.SUCCESS)
    bench.record(1)
    later = RecordingBench(bench.folder)
    later.episode(Event.FAILURE)
    later.at[20] = lambda: later.episode(Event.SUCCESS)
    assert later.record(2) == RecordingCounts(2, 1, 0)
    starts = bench.starts + later.starts
    assert len(set(starts)) == len(starts) == 3


def test_undo_moves_last_demonstration_aside(bench: RecordingBench) -> None:
    bench.episode(Event.SUCCESS)
    bench.at[20] = lambda: bench.episode(Event.SUCCESS)
    bench.record(2)
    first, second = episode_paths(bench.folder)
    assert bench.recorded.undo() == "demonstration 2 is undone, 1 are left"
    assert episode_paths(bench.folder) == [first]
    assert [path.name for path in episode_paths(bench.folder / UNDONE)] == [second.name]
    assert bench.recorded.recent == [True]
    assert bench.recorded.judge(second.stem, keep=True) == "kept: 2 demonstrations"
    assert bench.recorded.judge(second.stem, keep=False) == "discarded: 1 demonstration"
    assert [each.place for each in bench.recorded.episodes] == [KEPT, UNDONE]
    for name, keep, why in (
        (first.stem, True, "is kept already"),
        (second.stem, False, "is discarded already"),
        ("../7-000000", True, "is not here"),
    ):
        with pytest.raises(SerlError, match=why):
            bench.recorded.judge(name, keep)
    bench.recorded.undo()
    with pytest.raises(SerlError, match="nothing to undo"):
        bench.recorded.undo()
    assert bench.recorded.counts == RecordingCounts(0, 0, 2)


def test_interrupted_episode_counts_as_failure_in_next_session(bench: RecordingBench) -> None:
    bench.at[5] = bench.bench.pad.hold

    def crash() -> None:
        raise KeyboardInterrupt

    bench.at[10] = crash
    with pytest.raises(KeyboardInterrupt):
        bench.record(1)
    assert bench.recorded.counts == RecordingCounts(0, 0, 0)
    later = RecordingBench(bench.folder)
    later.ended = True
    assert later.record(1) == RecordingCounts(0, 1, 0)
    assert not [path for path in bench.folder.rglob("*") if path.name.endswith(PART)]


def test_stop_interrupts_recording_until_released_and_resumed(bench: RecordingBench) -> None:
    bench.at[5] = bench.bench.pad.hold
    bench.at[10] = bench.send_event(Event.STOP)
    waits: list[str] = []

    def release(is_ending: Callable[[], bool], period_s: float = 0.0) -> bool:
        """Stand in for an operator who releases the stop while the robot is held."""
        held = bench.desk.hold.reason
        if held:
            waits.append(held)
            bench.desk.hold.release()
            bench.desk.resume()
        return bool(held)

    bench.desk.hold.wait = release  # type: ignore[method-assign]
    bench.at[20] = lambda: bench.episode(Event.SUCCESS)
    assert bench.record(1) == RecordingCounts(1, 1, 0)
    assert waits == ["stopped by the operator"]
    assert not bench.robot.stop_reason


@pytest.mark.parametrize("device", [False, True], ids=["page", "pad"])
@pytest.mark.parametrize("presses", [(1,), (2, 1)], ids=str)
@pytest.mark.parametrize("driving", [False, True], ids=["ready", "driving"])
def test_repeated_stop_while_held_stops_recording_once(
    bench: RecordingBench, presses: tuple[int, ...], device: bool, driving: bool
) -> None:
    """Press stop before and while the robot is held, then release it and record on."""
    hold, moments = bench.desk.hold, iter(range(100))

    def press(count: int) -> None:
        for _ in range(count):
            if device:
                bench.bench.pad.hit("stop")
            else:
                bench.desk.add_event(Event.STOP, "the operator")

    def operator_acts() -> None:
        """Perform the operator's next action at each poll while the robot is held."""
        if not hold.reason:
            return
        match next(moments):
            case 1:
                press(sum(presses[1:]))
            case 3:
                hold.release()
            case 5:
                hold.resume()
                bench.bench.pad.hold(False)
                held.append(True)
                bench.episode(Event.SUCCESS)

    held: list[bool] = []
    bench.meanwhile = operator_acts
    if driving:
        bench.at[5] = bench.bench.pad.hold
    bench.at[10] = lambda: press(presses[0])
    assert bench.record(1).kept == 1
    assert held == [True]
    assert not hold.reason


def test_device_stop_during_pause_outlasts_pause(bench: RecordingBench) -> None:
    hold, moments = bench.desk.hold, iter(range(100))

    def operator_acts() -> None:
        match next(moments) if hold.reason else None:
            case 1:
                bench.bench.pad.hit("stop")
            case 3:
                assert hold.stopped == "stopped by pad"
                with pytest.raises(SerlError, match="release it first"):
                    hold.resume()
                bench.ended = True

    bench.meanwhile = operator_acts
    bench.at[5] = lambda: hold.pause("paused")
    bench.record(1)
    assert hold.stopped == "stopped by pad"


def test_new_epoch_exceeds_epochs_of_all_folders(bench: RecordingBench) -> None:
    """Epochs are unique over kept, failed and undone episodes, so no file name repeats."""
    bench.episode(Event.FAILURE)
    bench.at[20] = lambda: bench.episode(Event.SUCCESS)
    bench.record(1)
    newest = max(int(path.name.split("-")[0]) for path in bench.folder.rglob("*.mcap"))
    assert bench.recorded.next_epoch(0) == newest + 1
    assert (bench.folder / FAILURES).is_dir()


def test_session_file_round_trips_and_damaged_one_is_refused(tmp_path: Path) -> None:
    assert read_session(tmp_path) is None
    session = RecordingSession(purpose="demonstrations", wanted={"demonstrations": 20})
    write_session(tmp_path, session)
    assert read_session(tmp_path) == session
    (tmp_path / "session.json").write_text('{"purpose": "fun", "wanted": {}}')
    with pytest.raises(CorruptData, match=r"session\.json"):
        read_session(tmp_path)
