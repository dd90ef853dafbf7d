from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from serl import plugins
from serl.cli import main as cli
from serl.errors import BadInput, SerlError, SpecMismatch
from serl.log.episode_log import EpisodeLog
from serl.log.episode_reader import episode_paths
from serl.loop import EpisodeKey
from serl.policy import Policy, ZeroPolicy
from serl.robot import Truth
from serl.runs.config import resolve
from serl.runs.demonstrations import check_recordings, mean_duration_s, record_expert
from serl.runs.task_setup import make_demonstrated_task, make_spec
from serl.testing import FakeRobot, FakeTask
from serl.testing.samples import episode
from serl.training.evaluation import Purpose, start_seed
from serl.types import ActionSource, End, Record, Step

KEY = EpisodeKey("run", "expert", 5, 0)


class UnreliableTask(FakeTask):
    """Task whose expert alternates between success and doing nothing, as listed in `good`."""

    def __init__(self, good: tuple[bool, ...]) -> None:
        super().__init__()
        self.good, self.made = good, 0

    def expert(self, truth: Callable[[], Truth], seed: int) -> Policy:
        self.made += 1
        if self.good[(self.made - 1) % len(self.good)]:
            return super().expert(truth, seed)
        return ZeroPolicy(FakeRobot.action_spec)


def test_scripted_demonstrations_are_all_successful() -> None:
    records: list[Record] = []
    assert record_expert(FakeRobot(), FakeTask(), records.append, 3, 7, KEY) == 0
    ends = [record for record in records if isinstance(record, End)]
    assert [(end.key.episode, end.success) for end in ends] == [(0, True), (1, True), (2, True)]
    assert {r.source for r in records if isinstance(r, Step)} == {ActionSource.SCRIPT}
    assert {record.key.epoch for record in records} == {5}


def test_simulated_human_takes_longer_within_longer_time_limit() -> None:
    assert make_demonstrated_task(resolve({"task": "reach"})).config.time_limit_s == 5.0
    task = make_demonstrated_task(resolve({"task": "reach", "demonstrator": "human"}))
    assert task.config.time_limit_s == 15.0
    lengths = []
    with plugins.make_simulation(task) as robot:
        for by_hand in (False, True):
            records: list[Record] = []
            record_expert(robot, task, records.append, 5, 7, KEY, by_hand=by_hand)
            lengths.append(len(records))
    assert lengths[1] > 1.5 * lengths[0]


@pytest.mark.parametrize("setting", ["--demonstrator=human", "--intervention=novice"])
def test_human_demonstrator_is_refused_for_task_without_tool(
    setting: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train", "object_flip", setting, "--runs", str(tmp_path / "runs")]
    assert cli.main(words) == 2
    assert "a simulated hand moves tools only" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_demonstrations_use_seeds_of_their_purpose() -> None:
    records: list[Record] = []
    record_expert(FakeRobot(), FakeTask(), records.append, 2, 7, KEY)
    firsts = [r for r in records if isinstance(r, Step) and r.key.index == 0]
    for number, first in enumerate(firsts):
        seed = start_seed(Purpose.DEMONSTRATION, 7, "expert", number)
        start = FakeRobot().reset(seed)
        np.testing.assert_array_equal(first.observation.state["position"], start.state["position"])


def test_failed_demonstrations_are_counted_and_not_recorded() -> None:
    records: list[Record] = []
    progress: list[tuple[int, int]] = []
    failed = record_expert(
        FakeRobot(),
        UnreliableTask((True, False)),
        records.append,
        3,
        7,
        KEY,
        lambda kept, failed: progress.append((kept, failed)),
    )
    assert failed == 2
    assert progress == [(1, 0), (1, 1), (2, 1), (2, 2), (3, 2)]
    ends = [record for record in records if isinstance(record, End)]
    assert [end.key.episode for end in ends] == [0, 1, 2]
    assert all(end.success for end in ends)


def test_expert_that_always_fails_raises() -> None:
    with pytest.raises(SerlError, match="fake: the expert failed 11 of 11 times"):
        record_expert(FakeRobot(), UnreliableTask((False,)), lambda record: None, 3, 7, KEY)


def record_success(folder: Path, task: FakeTask | None = None, actor: str = "expert") -> Path:
    """Record one success into the folder."""
    key = EpisodeKey(folder.name, actor, 5, 0)
    task = task or FakeTask()
    with EpisodeLog(folder, make_spec(task), key.run, key.actor, key.epoch) as log:
        record_expert(FakeRobot(), FakeTask(), log.append, 1, 7, key)
    return folder


def test_mean_duration_is_that_of_successful_demonstrations(tmp_path: Path) -> None:
    folder, spec = record_success(tmp_path / "demos"), make_spec(FakeTask())
    length_s = mean_duration_s([folder])
    assert 0 < length_s < 3
    failure = EpisodeKey(folder.name, "expert", 6, 0)
    with EpisodeLog(folder, spec, failure.run, failure.actor, failure.epoch) as log:
        for record in episode(
            FakeRobot(), FakeTask(), ZeroPolicy(FakeRobot.action_spec), 0, failure
        ):
            log.append(record)
    reset = EpisodeKey(folder.name, "arm", 7, 0)
    with EpisodeLog(folder, spec, reset.run, reset.actor, reset.epoch) as log:
        record_expert(FakeRobot(), FakeTask(), log.append, 1, 8, reset)
    assert len(episode_paths(folder)) == 3
    assert mean_duration_s([folder]) == length_s


def test_recordings_must_match_spec(tmp_path: Path) -> None:
    spec = make_spec(FakeTask())
    one, two = record_success(tmp_path / "one"), record_success(tmp_path / "two")
    check_recordings((one, two), spec)
    faster = spec.model_copy(update={"rate_hz": 20.0})
    with pytest.raises(SpecMismatch) as caught:
        check_recordings((one, two), faster)
    assert f"{one}: demonstrates something else: rate_hz: 10.0 != 20.0" in str(caught.value)
    other = spec.model_copy(update={"task": "other"})
    with pytest.raises(SpecMismatch, match='task: "fake" != "other"'):
        check_recordings((one,), other)
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadInput, match="found no episode files"):
        check_recordings((one, tmp_path / "empty"), spec)
    record_success(tmp_path / "empty/failures")
    with pytest.raises(BadInput, match="found only failures"):
        check_recordings((one, tmp_path / "empty"), spec)


def test_recording_of_scripted_resets_alone_is_refused_before_run(tmp_path: Path) -> None:
    resets = record_success(tmp_path / "resets", actor="actor0")
    with pytest.raises(BadInput, match="resets: none of its 1 episodes is a success"):
        check_recordings((resets,), make_spec(FakeTask()))


@pytest.mark.parametrize("given", ["a", ["a"], ["a", "b"]])
def test_demos_option_accepts_recordings(given: str | list[str]) -> None:
    config = resolve({"demos": 7}, {"demos": given})
    assert config.demo_paths == tuple(map(Path, given))
    assert resolve({"demos": 7}).demo_paths == ()


def test_train_with_mismatching_recordings_writes_no_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, runs = record_success(tmp_path / "fake"), tmp_path / "runs"
    words = ["train", "reach", f"--demos=[{folder}]", "--runs", str(runs)]
    assert cli.main(words) == 2
    assert 'task: "fake" != "reach"' in capsys.readouterr().err
    assert not runs.exists()
