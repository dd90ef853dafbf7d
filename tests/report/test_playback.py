from __future__ import annotations

import itertools
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from serl.clock import VirtualClock
from serl.errors import BadInput
from serl.intervention import Event
from serl.log.episode_log import EpisodeLog
from serl.log.episode_reader import read_episode
from serl.loop import EpisodeKey, RecordCallback, Result, run
from serl.policy import RandomPolicy
from serl.report.playback import CUT, ReplayRobot, replay
from serl.specs import ArraySpec, ObservationSpec, Spec
from serl.testing import FakeRobot, FakeTask, FakeTaskConfig, RobotSuite
from serl.types import Action, ActionSource, End, Episode, Observation, Record, Step

STOPPED = VirtualClock(lambda dt_s: None, 10.0)
KEY = EpisodeKey("run", "actor", 7, 0)
LEFT = np.array([-1.0, 0.0], np.float32)


class CameraTask(FakeTask):
    """The fake task, watched by a camera."""

    observation_spec = ObservationSpec(
        state=FakeTask.observation_spec.state,
        images={"top": ArraySpec(shape=(4, 6, 3), dtype="uint8")},
    )

    def observation(self, reading: Observation) -> Observation:
        brightness = int(255 * (0.5 + reading.state["position"][0]))
        picture = np.full((4, 6, 3), brightness, np.uint8)
        return Observation(reading.state, {"top": picture}, {**reading.stamps, "top": 0.5})


@dataclass
class Person:
    """Drives left at the given ticks, and says something at one."""

    drives: Collection[int] = ()
    says: dict[int, Event] = field(default_factory=dict)
    tick: int = -1

    def begin(self) -> None:
        self.tick = -1

    def __call__(self) -> Action | None:
        self.tick += 1
        return LEFT if self.tick in self.drives else None

    def events(self) -> tuple[Event, ...]:
        return (self.says[self.tick],) if self.tick in self.says else ()


SPEC = Spec(
    task="fake",
    observation=CameraTask.observation_spec,
    action=FakeRobot.action_spec,
    rate_hz=10.0,
)


def record(
    person: Person | None = None,
    expert: bool = False,
    interrupted_at: int = -1,
    breaks_at: int = -1,
    chosen_by: ActionSource = ActionSource.POLICY,
) -> tuple[Result, Episode]:
    """An episode of one second, by a random policy of changing versions or by the expert."""
    robot = FakeRobot()
    task = CameraTask(FakeTaskConfig(time_limit_s=3.0 if expert else 1.0))
    robot.reset(1)
    records: list[Record] = []

    def advance(dt_s: float) -> None:
        robot.broken = len(records) == breaks_at
        robot.advance(dt_s)

    result = run(
        robot,
        task,
        task.expert(robot.truth, 0) if expert else RandomPolicy(robot.action_spec, 0),
        VirtualClock(advance, 10.0),
        KEY,
        [RecordCallback(records.append)],
        teleop=person,
        chosen_by=chosen_by,
        policy_version=itertools.count(3).__next__,
        interrupted=lambda: len(records) == interrupted_at,
    )
    return result, as_episode(records)


def as_episode(records: list[Record]) -> Episode:
    end = records[-1]
    assert isinstance(end, End)
    return Episode(tuple(step for step in records if isinstance(step, Step)), end)


def plain(item: Record) -> dict[str, object]:
    """A record without the times of the loop, arrays as lists with their types."""
    values: dict[str, object] = {}
    for name in set(item.__dataclass_fields__) - {"observation", "monotonic_s", "wall_s"}:
        value: Any = getattr(item, name)
        values[name] = (value.dtype, value.tolist()) if isinstance(value, np.ndarray) else value
    seen = item.observation
    arrays: dict[str, Any] = {**seen.state, **seen.images}
    for name, array in arrays.items():
        values[f"seen {name}"] = (array.dtype, array.tolist())
    return values | {"stamps": dict(seen.stamps)}


def records_of(episode: Episode) -> list[Record]:
    return [*episode.steps, *([episode.end] if episode.end else [])]


def assert_equal(made: list[Record], recorded: Episode) -> None:
    assert [plain(item) for item in made] == [plain(item) for item in records_of(recorded)]


CASES: dict[str, Callable[[], tuple[Result, Episode]]] = {
    "success": lambda: record(expert=True),
    "time limit": lambda: record(),
    "a human drives in between": lambda: record(Person(drives={0, 3, 4, 9})),
    "a human drives all the time": lambda: record(Person(drives=range(10))),
    "a human says success": lambda: record(Person({4}, {4: Event.SUCCESS})),
    "a human says failure": lambda: record(Person({}, {6: Event.FAILURE})),
    "a human stops it": lambda: record(Person({2}, {5: Event.STOP})),
    "a human stops it at the time limit": lambda: record(Person({}, {9: Event.RESET})),
    "interrupted": lambda: record(interrupted_at=4),
    "a broken sensor": lambda: record(breaks_at=3),
    "a broken sensor at once": lambda: record(breaks_at=0),
    "a script": lambda: record(expert=True, chosen_by=ActionSource.SCRIPT),
    "a script and a human": lambda: record(Person({1}), chosen_by=ActionSource.SCRIPT),
}


@pytest.mark.parametrize("case", CASES)
def test_the_loop_on_a_recording_makes_the_recorded_records(case: str) -> None:
    result, recorded = CASES[case]()
    again: list[Record] = []
    assert replay(recorded, SPEC, STOPPED, [RecordCallback(again.append)]) == result
    assert_equal(again, recorded)


def test_the_cases_cover_what_can_end_an_episode_and_who_can_act() -> None:
    episodes = [case()[1] for case in CASES.values()]
    reasons = {episode.end.text for episode in episodes if episode.end}
    assert {"success", "failure", "time limit", "operator", "interrupted"} < reasons
    assert any("not finite" in reason for reason in reasons)
    assert all(any(episode.count(source) for episode in episodes) for source in ActionSource)
    assert len({step.policy_version for step in episodes[1].steps}) == 10


def test_a_recording_from_the_disk_is_the_same(tmp_path: Path) -> None:
    _, recorded = record(Person(drives={2, 3}))
    with EpisodeLog(tmp_path, SPEC, KEY.run, KEY.actor, KEY.epoch) as log:
        for item in records_of(recorded):
            log.append(item)
    again: list[Record] = []
    replay(
        read_episode(tmp_path / "7-000000.mcap", SPEC),
        SPEC,
        STOPPED,
        [RecordCallback(again.append)],
    )
    assert_equal(again, recorded)


def test_a_recording_that_a_crash_cut_ends_as_truncated() -> None:
    _, recorded = record()
    again: list[Record] = []
    result = replay(
        Episode(recorded.steps[:6], None), SPEC, STOPPED, [RecordCallback(again.append)]
    )
    assert (result.steps, result.text) == (6, CUT)
    made = as_episode(again)
    assert made.steps[-1].truncated
    assert [plain(step) for step in made.steps[:5]] == [plain(step) for step in recorded.steps[:5]]


def test_the_place_in_the_recording_is_held_while_stopped() -> None:
    _, recorded = record()
    robot = ReplayRobot(recorded, SPEC)
    robot.stop("first")
    robot.stop("second")
    assert robot.stop_reason == "first"
    assert not robot.act(LEFT).any()
    assert robot.observe() is recorded.steps[0].observation
    robot.recover()
    assert np.array_equal(robot.act(LEFT), recorded.steps[0].action)
    assert robot.observe() is recorded.steps[1].observation


def test_at_the_end_nothing_more_is_executed() -> None:
    _, recorded = record()
    robot = ReplayRobot(recorded, SPEC)
    for _ in recorded.steps:
        robot.act(LEFT)
    assert recorded.end is not None
    assert not robot.act(LEFT).any()
    assert robot.observe() is recorded.end.observation


def test_a_recording_without_a_step_is_refused() -> None:
    with pytest.raises(BadInput, match="without a step"):
        ReplayRobot(replace(record()[1], steps=()), SPEC)


class TestReplayRobot(RobotSuite):
    """All of it but for freedom: whatever it is asked for, it executes what was recorded."""

    def make(self) -> ReplayRobot:
        return ReplayRobot(record(Person(drives={1}))[1], SPEC)
