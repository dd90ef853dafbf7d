"""How a person's recording is told: counts, what to do, and what lies where."""

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


def log(recorded: Recording, good: bool) -> None:
    """An episode of a person, sorted."""
    robot, task = FakeRobot(), FakeTask()
    epoch = recorded.next_epoch(0)
    policy = task.expert(robot.truth, 0) if good else ZeroPolicy(robot.action_spec)
    key = EpisodeKey("demos", ACTOR, epoch, 0)
    with EpisodeLog(recorded.incoming, make_spec(task), "demos", ACTOR, epoch) as to:
        for record in episode(robot, task, policy, 1, key):
            to.append(record)
    recorded.sort()


def test_a_recording_is_told_from_what_lies_where(tmp_path: Path) -> None:
    run = RunFolder.create_at(tmp_path / "demos", resolve({"task": "reach"}), datetime.now())
    assert isinstance(make_status(run, ACTOR), TrainingStatus)
    write_session(run.path, RecordingSession(purpose="demonstrations", wanted=WANTED))
    overview, recorded = make_status(run, ACTOR), Recording(run.path, run.episodes(ACTOR))
    assert isinstance(overview, RecordingStatus)
    assert overview.read({})["advice"] == "to go: 3 demonstrations"
    for good in (True, False, True, True):
        log(recorded, good)
    recorded.undo()
    told = overview.read({})
    assert told["counts"] == [["demonstrations", 2, 3], ["failures", 1, None], ["undone", 1, None]]
    assert told["recent"] == ["alone", "failed", "alone"]
    assert told["disk"][1].endswith("GB free")
    assert not overview.over
    log(recorded, True)
    assert overview.read({})["advice"] == "done: all requested samples are recorded"
    assert overview.over


@pytest.mark.parametrize(
    ("have", "recent", "advice"),
    [
        (0, [], "to go: 3 demonstrations"),
        (1, [True, *[False] * 4], "to go: 2 demonstrations"),
        (
            1,
            [True, *[False] * 5],
            "slow down: the last 5 failed; 2 demonstrations to go",
        ),
        (3, [False] * 9, "done: all requested samples are recorded"),
        (4, [], "done: all requested samples are recorded"),
    ],
)
def test_it_says_what_to_do_now(have: int, recent: list[bool], advice: str) -> None:
    assert advise_session({"demonstrations": have}, WANTED, recent) == advice
