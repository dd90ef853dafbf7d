from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
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
from serl.types import ActionSource, End, Episode, Observation, Record, Step

from ..test_loop import LEFT, FakeOperator

STOPPED = VirtualClock(lambda dt_s: None, 10.0)
KEY = EpisodeKey("run", "actor", 7, 0)


class CameraTask(FakeTask):
    """Fake task observed by a camera."""

    observation_spec = ObservationSpec(
        state=FakeTask.observation_spec.state,
        images={"top": ArraySpec(shape=(4, 6, 3), dtype="uint8")},
    )

    def observation(self, reading: Observation) -> Observation:
        brightness = int(255 * (0.5 + reading.state["position"][0]))
        picture = np.full((4, 6, 3), brightness, np.uint8)
        return Observation(reading.state, {"top": picture}, {**reading.stamps, "top": 0.5})


SPEC = Spec(
    task="fake",
    observation=CameraTask.observation_spec,
    action=FakeRobot.action_spec,
    rate_hz=10.0,
)


def record(
    person: FakeOperator | None = None,
    expert: bool = False,
    interrupted_at: int = -1,
    breaks_at: int = -1,
    chosen_by: ActionSource = ActionSource.POLICY,
) -> tuple[Result, Episode]:
    """Record an episode with a random policy of changing versions, or with the expert."""
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


def comparable(item: Record) -> dict[str, object]:
    """Return a record's fields without loop times; arrays become lists with their dtypes."""
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
    assert [comparable(item) for item in made] == [
        comparable(item) for item in records_of(recorded)
    ]


CASES: dict[str, Callable[[], tuple[Result, Episode]]] = {
    "success": lambda: record(expert=True),
    "time limit": lambda: record(),
    "a human drives in between": lambda: record(FakeOperator(drives={0, 3, 4, 9})),
    "a human drives all the time": lambda: record(FakeOperator(drives=range(10))),
    "a human sends success": lambda: record(FakeOperator({4}, {4: Event.SUCCESS})),
    "a human sends failure": lambda: record(FakeOperator({}, {6: Event.FAILURE})),
    "a human stops it": lambda: record(FakeOperator({2}, {5: Event.STOP})),
    "a human stops it at the time limit": lambda: record(FakeOperator({}, {9: Event.RESET})),
    "interrupted": lambda: record(interrupted_at=4),
    "a broken sensor": lambda: record(breaks_at=3),
    "a broken sensor at once": lambda: record(breaks_at=0),
    "a script": lambda: record(expert=True, chosen_by=ActionSource.SCRIPT),
    "a script and a human": lambda: record(FakeOperator({1}), chosen_by=ActionSource.SCRIPT),
}


@pytest.mark.parametrize("case", CASES)
def test_replayed_loop_reproduces_records(case: str) -> None:
    result, recorded = CASES[case]()
    again: list[Record] = []
    assert replay(recorded, SPEC, STOPPED, [RecordCallback(again.append)]) == result
    assert_equal(again, recorded)


def test_replay_cases_cover_all_end_reasons_and_action_sources() -> None:
    episodes = [case()[1] for case in CASES.values()]
    reasons = {episode.end.text for episode in episodes if episode.end}
    assert {"success", "failure", "time limit", "operator", "interrupted"} < reasons
    assert any("not finite" in reason for reason in reasons)
    assert all(any(episode.count(source) for episode in episodes) for source in ActionSource)
    assert len({step.policy_version for step in episodes[1].steps}) == 10


def test_recording_read_from_disk_replays_equally(tmp_path: Path) -> None:
    _, recorded = record(FakeOperator(drives={2, 3}))
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


def test_replay_of_cut_recording_ends_truncated() -> None:
    _, recorded = record()
    again: list[Record] = []
    result = replay(
        Episode(recorded.steps[:6], None), SPEC, STOPPED, [RecordCallback(again.append)]
    )
    assert (result.steps, result.text) == (6, CUT)
    made = as_episode(again)
    assert made.steps[-1].truncated
    assert [comparable(step) for step in made.steps[:5]] == [
        comparable(step) for step in recorded.steps[:5]
    ]


def test_stopped_replay_robot_keeps_its_position_in_recording() -> None:
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


def test_replay_robot_executes_nothing_after_end() -> None:
    _, recorded = record()
    robot = ReplayRobot(recorded, SPEC)
    for _ in recorded.steps:
        robot.act(LEFT)
    assert recorded.end is not None
    assert not robot.act(LEFT).any()
    assert robot.observe() is recorded.end.observation


def test_recording_without_steps_is_refused() -> None:
    with pytest.raises(BadInput, match="without a step"):
        ReplayRobot(replace(record()[1], steps=()), SPEC)


class TestReplayRobot(RobotSuite):
    """Robot suite for a replay, which executes recorded actions instead of requested ones."""

    def make(self) -> ReplayRobot:
        return ReplayRobot(record(FakeOperator(drives={1}))[1], SPEC)
