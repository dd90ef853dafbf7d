"""Status of a recording session: counts, advice, and episodes by folder."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest

from serl.console.status import RecordingStatus, TrainingStatus, advise_session, make_status
from serl.datasets.person import ACTOR
from serl.datasets.recording_session import Recording, RecordingSession, write_session
from serl.log.episode_log import EpisodeLog
from serl.loop import EpisodeKey
from serl.policy import ZeroPolicy
from serl.runs.config import resolve
from serl.runs.folder import RunFolder
from serl.runs.task_setup import make_spec
from serl.testing import FakeRobot, FakeTask, episode

WANTED = {"demonstrations": 3}


def record_episode(recorded: Recording, good: bool) -> None:
    """Record and sort one demonstration: successful if `good`, else without motion."""
    robot, task = FakeRobot(), FakeTask()
    epoch = recorded.next_epoch(0)
    policy = task.expert(robot.truth, 0) if good else ZeroPolicy(robot.action_spec)
    key = EpisodeKey("demos", ACTOR, epoch, 0)
    with EpisodeLog(recorded.incoming, make_spec(task), "demos", ACTOR, epoch) as to:
        for record in episode(robot, task, policy, 1, key):
            to.append(record)
    recorded.sort()


def test_recording_status_counts_episodes_by_folder(tmp_path: Path) -> None:
    run = RunFolder.create_at(tmp_path / "demos", resolve({"task": "reach"}), datetime.now())
    assert isinstance(make_status(run, ACTOR), TrainingStatus)
    write_session(run.path, RecordingSession(purpose="demonstrations", wanted=WANTED))
    overview, recorded = make_status(run, ACTOR), Recording(run.path, run.episodes(ACTOR))
    assert isinstance(overview, RecordingStatus)
    assert overview.read({})["advice"] == "to go: 3 demonstrations"
    for good in (True, False, True, True):
        record_episode(recorded, good)
    recorded.undo()
    status = overview.read({})
    assert status["counts"] == [
        ["demonstrations", 2, 3],
        ["failures", 1, None],
        ["undone", 1, None],
    ]
    assert status["recent"] == ["alone", "failed", "alone"]
    assert status["disk"][1].endswith("B free")
    assert not overview.over
    record_episode(recorded, True)
    assert overview.read({})["advice"] == "done: all requested samples are recorded"
    assert overview.over


@pytest.mark.parametrize(
    ("have", "recent", "advice"),
    [
        (0, [], "to go: 3 demonstrations"),
        (1, [True, *[False] * 4], "to go: 2 demonstrations"),
        (2, [], "to go: 1 demonstration"),
        (
            1,
            [True, *[False] * 5],
            "slow down: the last 5 failed; 2 demonstrations to go",
        ),
        (3, [False] * 9, "done: all requested samples are recorded"),
        (4, [], "done: all requested samples are recorded"),
    ],
)
def test_session_advice_follows_count_and_recent_failures(
    have: int, recent: list[bool], advice: str
) -> None:
    assert advise_session({"demonstrations": have}, WANTED, recent) == advice
