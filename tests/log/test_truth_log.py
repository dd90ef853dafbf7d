from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pytest

from serl import plugins
from serl.clock import VirtualClock
from serl.log.annotations import TRUTH_FILE, StepKey, TruthLog, read_label_entries, read_labels
from serl.loop import EpisodeKey, RecordCallback, run
from serl.policy import Policy, ZeroPolicy
from serl.reward import NoReward, RewardedTask
from serl.runs.config import resolve
from serl.runs.task_setup import make_task
from serl.task import Task
from serl.testing import FakeRobot, FakeTask
from serl.testing.samples import deliver, episode
from serl.training.resets import ResetTask, SceneReset
from serl.types import ActionSource, Record

RECORDS = episode(FakeRobot(), FakeTask(), ZeroPolicy(FakeRobot().action_spec))


def write_log(folder: Path, solved: set[int]) -> None:
    """Log an episode that is solved at the given observations."""
    records = iter(RECORDS)
    now: list[Record] = []
    log = TruthLog(folder, lambda: now[0].key.index + 1 in solved)
    for record in records:
        now[:] = [record]
        deliver(record, log)


def test_truth_is_written_at_each_change_and_at_end(tmp_path: Path) -> None:
    count = len(RECORDS) - 1
    assert count > 8
    write_log(tmp_path, {4, 5, 6})
    labels = {place.step: label for place, label in read_labels(tmp_path, TRUTH_FILE).items()}
    assert labels == {1: 0, 3: 0, 4: 1, 6: 1, 7: 0, count: 0}
    assert {word.by for word in read_label_entries(tmp_path, TRUTH_FILE)} == {"simulation"}
    assert not read_labels(tmp_path), "the truth is not a label"


def test_episode_without_change_has_two_truth_entries(tmp_path: Path) -> None:
    write_log(tmp_path, set())
    epoch, number = RECORDS[0].key.epoch, RECORDS[0].key.episode
    last = RECORDS[-1].key.index
    assert read_labels(tmp_path, TRUTH_FILE) == {
        StepKey(epoch, number, 1): 0,
        StepKey(epoch, number, last): 0,
    }


def test_no_truth_is_written_during_reset(tmp_path: Path) -> None:
    """The arm pulls the peg out again without evaluation of the truth."""
    settings = {"auto_reset": True, "time_limit_s": 12.0}
    task = make_task(resolve({"task": "peg_insertion", "task_config": settings}))
    judged = RewardedTask(task, NoReward("classifier"))
    log, solved = TruthLog(tmp_path, lambda: judged.solved), list[Record]()

    def take(record: Record) -> None:
        if task.is_success(robot.truth()):
            solved.append(record)

    def play(task: Task, policy: Policy, episode: int, chosen_by: ActionSource) -> None:
        clock, key = VirtualClock(robot.advance, task.config.rate_hz), EpisodeKey("r", "a", 1, 0)
        run(
            robot,
            task,
            policy,
            clock,
            replace(key, episode=episode),
            [log, RecordCallback(take)],
            chosen_by=chosen_by,
        )

    with plugins.make_simulation(task) as robot:
        robot.reset(3)
        play(judged, judged.expert(robot.truth, 0), 0, ActionSource.POLICY)
        reset, script = ResetTask(judged, SceneReset(judged), 20.0), judged.reset(robot.observe())
        assert script is not None
        play(reset, lambda seen: script(reset.reading), 1, ActionSource.SCRIPT)
    assert {record.key.episode for record in solved} == {0, 1}, (
        "the reset must begin in a solved state"
    )
    labels = read_labels(tmp_path, TRUTH_FILE)
    assert {place.episode for place in labels} == {0}
    assert set(labels.values()) == {0, 1}


def test_truth_log_survives_disk_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / TRUTH_FILE).mkdir()
    with caplog.at_level(logging.WARNING):
        write_log(tmp_path, {2})
    assert TRUTH_FILE in caplog.text
