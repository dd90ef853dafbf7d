"""A person demonstrates: what is kept, what lies apart, how it goes on, and how it is undone."""

from __future__ import annotations

from collections.abc import Callable
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
from serl.runs.task_setup import make_spec
from serl.teleop.human_input import HumanInput, LastEnd
from serl.teleop.mux import TeleopMux
from serl.teleop.stop import StopLatch
from serl.testing import FakeRobot, FakeTask
from serl.types import ActionSource, Observation

from ..teleop.pad import Bench

LIMIT = 400


class Studio:
    """A person at a pad who records; `at` a tick of the clock things happen."""

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

    def says(self, event: Event) -> Callable[[], None]:
        """... and lets go."""

        def say() -> None:
            self.desk.add_event(event, "the operator")
            self.bench.pad.hold(False)

        return say

    def episode(self, event: Event) -> None:
        """Within twenty ticks: hands on after five, a word after ten."""
        self.at[self.ticks + 5] = self.bench.pad.hold
        self.at[self.ticks + 10] = self.says(event)


@pytest.fixture
def studio(tmp_path: Path) -> Studio:
    return Studio(tmp_path)


def test_successes_are_kept_and_failures_lie_apart(studio: Studio) -> None:
    studio.episode(Event.SUCCESS)
    studio.at[20] = lambda: studio.episode(Event.FAILURE)
    studio.at[40] = lambda: studio.episode(Event.DISCARD)
    studio.at[60] = lambda: studio.episode(Event.SUCCESS)
    assert studio.record(2) == RecordingCounts(kept=2, failures=2, undone=0)
    assert [result.text for result in studio.results] == [
        "success",
        "failure",
        "discarded",
        "success",
    ]
    assert studio.recorded.recent == [True, False, False, True]
    assert not episode_paths(studio.recorded.incoming)


def test_the_episode_begins_when_hands_are_on(studio: Studio) -> None:
    studio.episode(Event.SUCCESS)
    studio.record(1)
    (path,) = episode_paths(studio.folder)
    episode = read_episode(path, make_spec(studio.task))
    assert [step.source for step in episode.steps[:3]] == [ActionSource.HUMAN] * 3
    assert len(episode.steps) <= 7


def test_a_key_that_is_still_down_begins_nothing(studio: Studio) -> None:
    studio.at[5] = studio.bench.pad.hold
    studio.at[10] = lambda: studio.desk.add_event(Event.SUCCESS, "the operator")  # and holds on
    assert studio.record(2) == RecordingCounts(1, 0, 0)
    assert studio.ticks > LIMIT


def test_a_robot_that_nobody_places_and_that_falls_silent_is_waited_for(studio: Studio) -> None:
    """A real arm: a person brings it to a start, and what keeps it silent is told and over."""
    told: list[str] = []
    silences = [Silent("the guard stopped the arm")]

    def place(seed: int) -> None:
        studio.episode(Event.SUCCESS)
        if silences:
            raise silences.pop()

    clock = VirtualClock(studio.advance, studio.task.config.rate_hz)
    stand = RecordingStation(
        studio.robot, studio.desk, clock, lambda: studio.ticks > LIMIT, place=place
    )
    with pytest.raises(Silent):
        record_person(stand, studio.task, studio.recorded, 1, 0)
    silences.append(Silent("the guard stopped the arm"))
    stand.on_silence = told.append
    record_person(stand, studio.task, studio.recorded, 1, 0)
    assert told == ["the guard stopped the arm"]
    assert studio.recorded.counts == RecordingCounts(1, 0, 0)
    assert not studio.starts, "only a simulation is reset"


def test_another_session_goes_on_counting_with_other_starts(studio: Studio) -> None:
    studio.episode(Event.SUCCESS)
    studio.record(1)
    later = Studio(studio.folder)
    later.episode(Event.FAILURE)
    later.at[20] = lambda: later.episode(Event.SUCCESS)
    assert later.record(2) == RecordingCounts(2, 1, 0)
    starts = studio.starts + later.starts
    assert len(set(starts)) == len(starts) == 3


def test_undo_puts_the_last_one_aside_and_loses_nothing(studio: Studio) -> None:
    studio.episode(Event.SUCCESS)
    studio.at[20] = lambda: studio.episode(Event.SUCCESS)
    studio.record(2)
    first, second = episode_paths(studio.folder)
    assert studio.recorded.undo() == "demonstration 2 is undone, 1 are left"
    assert episode_paths(studio.folder) == [first]
    assert [path.name for path in episode_paths(studio.folder / UNDONE)] == [second.name]
    assert studio.recorded.recent == [True]
    assert studio.recorded.judge(second.stem, keep=True) == "kept: 2 demonstrations"
    assert studio.recorded.judge(second.stem, keep=False) == "discarded: 1 demonstrations"
    assert [each.place for each in studio.recorded.episodes] == [KEPT, UNDONE]
    for name, keep, why in (
        (first.stem, True, "is kept already"),
        (second.stem, False, "is discarded already"),
        ("../7-000000", True, "is not here"),
    ):
        with pytest.raises(SerlError, match=why):
            studio.recorded.judge(name, keep)
    studio.recorded.undo()
    with pytest.raises(SerlError, match="nothing to undo"):
        studio.recorded.undo()
    assert studio.recorded.counts == RecordingCounts(0, 0, 2)


def test_what_a_crash_left_behind_lies_apart(studio: Studio) -> None:
    studio.at[5] = studio.bench.pad.hold

    def crash() -> None:
        raise KeyboardInterrupt

    studio.at[10] = crash
    with pytest.raises(KeyboardInterrupt):
        studio.record(1)
    assert studio.recorded.counts == RecordingCounts(0, 0, 0)
    later = Studio(studio.folder)
    later.ended = True
    assert later.record(1) == RecordingCounts(0, 1, 0)
    assert not [path for path in studio.folder.rglob("*") if path.name.endswith(PART)]


def test_a_stop_holds_until_it_is_released_and_resumed(studio: Studio) -> None:
    studio.at[5] = studio.bench.pad.hold
    studio.at[10] = studio.says(Event.STOP)
    waits: list[str] = []

    def release(is_ending: Callable[[], bool], period_s: float = 0.0) -> bool:
        """Stands for a person who comes while the robot is held."""
        held = studio.desk.hold.reason
        if held:
            waits.append(held)
            studio.desk.hold.release()
            studio.desk.resume()
        return bool(held)

    studio.desk.hold.wait = release  # type: ignore[method-assign]
    studio.at[20] = lambda: studio.episode(Event.SUCCESS)
    assert studio.record(1) == RecordingCounts(1, 1, 0)
    assert waits == ["stopped by the operator"]
    assert not studio.robot.stop_reason


@pytest.mark.parametrize("device", [False, True], ids=["page", "pad"])
@pytest.mark.parametrize("presses", [(1,), (2,), (1, 1), (2, 1)], ids=str)
@pytest.mark.parametrize("driving", [False, True], ids=["ready", "driving"])
def test_a_stop_that_is_said_again_while_it_holds_stops_once(
    studio: Studio, presses: tuple[int, ...], device: bool, driving: bool
) -> None:
    """Pressed before the robot is held, and while it is; then it is released, and goes on."""
    hold, moments = studio.desk.hold, iter(range(100))

    def press(count: int) -> None:
        for _ in range(count):
            if device:
                studio.bench.pad.hit("stop")
            else:
                studio.desk.add_event(Event.STOP, "the operator")

    def happens() -> None:
        """What a person does while the robot is held, one thing each time it looks."""
        if not hold.reason:
            return
        match next(moments):
            case 1:
                press(sum(presses[1:]))
            case 3:
                hold.release()
            case 5:
                hold.resume()
                studio.bench.pad.hold(False)
                held.append(True)
                studio.episode(Event.SUCCESS)

    held: list[bool] = []
    studio.meanwhile = happens
    if driving:
        studio.at[5] = studio.bench.pad.hold
    studio.at[10] = lambda: press(presses[0])
    assert studio.record(1).kept == 1
    assert held == [True]
    assert not hold.reason


def test_a_stop_of_a_device_while_paused_holds_after_the_pause_too(studio: Studio) -> None:
    hold, moments = studio.desk.hold, iter(range(100))

    def happens() -> None:
        match next(moments) if hold.reason else None:
            case 1:
                studio.bench.pad.hit("stop")
            case 3:
                assert hold.stopped == "stopped by pad"
                with pytest.raises(SerlError, match="release it first"):
                    hold.resume()
                studio.ended = True

    studio.meanwhile = happens
    studio.at[5] = lambda: hold.pause("paused")
    studio.record(1)
    assert hold.stopped == "stopped by pad"


def test_no_episode_takes_the_name_of_another(studio: Studio) -> None:
    """Epochs grow over all places, so that no episode takes the name of another."""
    studio.episode(Event.FAILURE)
    studio.at[20] = lambda: studio.episode(Event.SUCCESS)
    studio.record(1)
    newest = max(int(path.name.split("-")[0]) for path in studio.folder.rglob("*.mcap"))
    assert studio.recorded.next_epoch(0) == newest + 1
    assert (studio.folder / FAILURES).is_dir()


def test_the_session_is_kept_and_a_damaged_one_refused(tmp_path: Path) -> None:
    assert read_session(tmp_path) is None
    session = RecordingSession(purpose="demonstrations", wanted={"demonstrations": 20})
    write_session(tmp_path, session)
    assert read_session(tmp_path) == session
    (tmp_path / "session.json").write_text('{"purpose": "fun", "wanted": {}}')
    with pytest.raises(CorruptData, match=r"session\.json"):
        read_session(tmp_path)
