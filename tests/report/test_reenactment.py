from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest

from serl import plugins
from serl.clock import VirtualClock
from serl.datasets.person import ACTOR as PERSON
from serl.errors import BadInput
from serl.intervention import NoOperator
from serl.log.episode_log import EpisodeLog, LogConfig
from serl.loop import EpisodeKey, RecordCallback, run
from serl.policy import RandomPolicy, ZeroPolicy
from serl.report.film import ReplayDiverged, reenact, write_film
from serl.report.review import pick, recordings, replayed
from serl.runs.assembly import make_human
from serl.runs.config import resolve
from serl.runs.demonstrations import record_expert
from serl.runs.folder import RunFolder
from serl.runs.task_setup import make_spec, make_task
from serl.training.evaluation import Purpose, start_seed
from serl.types import Action, ActionSource, Episode, Record

from .test_playback import as_episode

LONG = {"task": "pick_cube", "seed": 3, "task_config": {"time_limit_s": 4.0}}
CONFIG = resolve(
    LONG | {"task_config": {"time_limit_s": 1.5}},
    {"human": {"share": 1.0, "patience_steps": 5, "reaction_steps": 1}},
)
TASK = make_task(CONFIG)
SPEC = make_spec(TASK)
SIZE = (32, 24)


def train_episode(number: int, purpose: Purpose = Purpose.TRAINING, of: str = "actor0") -> Episode:
    """Record an episode as an actor does, with a random policy and a simulated human."""
    robot, task = plugins.make_simulation(TASK), TASK
    robot.reset(start_seed(purpose, CONFIG.seed, of, number))
    records: list[Record] = []
    run(
        robot,
        task,
        RandomPolicy(robot.action_spec, 0),
        VirtualClock(robot.advance, 10.0),
        EpisodeKey("run", "actor0", 1, number),
        [RecordCallback(records.append)],
        teleop=make_human(CONFIG, task, robot, "actor0"),
    )
    return as_episode(records)


@pytest.fixture(scope="module")
def episode() -> Episode:
    """Return the first episode of the run."""
    return train_episode(0)


def test_episode_with_human_is_reenacted() -> None:
    episode = train_episode(7)
    assert 0 < episode.count(ActionSource.HUMAN) < len(episode.steps)
    texts = list[str]()
    pictures = reenact(episode, SPEC, CONFIG, 7, SIZE, texts.append)
    assert texts[-1].endswith(f"image {len(pictures)} of {len(pictures)}")
    assert len(pictures) == len(episode.steps) + 1
    assert {picture.shape for picture in pictures} == {(24, 32, 3)}
    moved = [np.abs(picture.astype(int) - pictures[0]).max() for picture in pictures]
    assert moved[0] == 0
    assert min(moved[5:]) > 20


@pytest.mark.usefixtures("undrawn")
def test_demonstration_after_failed_attempts_is_reenacted() -> None:
    records: list[Record] = []
    config = resolve(LONG)
    task = make_task(config)
    with plugins.make_simulation(task) as robot:
        key = EpisodeKey("run", "expert", 1, 0)
        record_expert(robot, task, records.append, 2, config.seed, key)
    episode = as_episode([item for item in records if item.key.episode == 1])
    assert len(reenact(episode, SPEC, config, 0, SIZE)) == len(episode.steps) + 1


@pytest.mark.usefixtures("undrawn")
def test_episode_of_trained_policy_is_reenacted() -> None:
    """`serl run` begins its episodes from the starts of the final trials."""
    episode = train_episode(1, Purpose.FINAL, "evaluation")
    assert len(reenact(episode, SPEC, CONFIG, 1, SIZE)) == len(episode.steps) + 1


class Hand(NoOperator):
    """A person who moves the arm in every step."""

    def __call__(self) -> Action | None:
        return np.full(SPEC.action.shape, 0.3, np.float32)


@pytest.mark.usefixtures("undrawn")
def test_demonstration_of_person_is_filmed_from_its_start(tmp_path: Path) -> None:
    folder = RunFolder.create_at(tmp_path / "recording", CONFIG, datetime.now()).path
    records: list[Record] = []
    with plugins.make_simulation(TASK) as robot:
        robot.reset(start_seed(Purpose.DEMONSTRATION, CONFIG.seed, PERSON, 2))
        robot.advance(1.0)  # until the person takes over
        run(
            robot,
            TASK,
            ZeroPolicy(robot.action_spec),
            VirtualClock(robot.advance, 10.0),
            EpisodeKey("recording", PERSON, 1, 0),
            [RecordCallback(records.append)],
            teleop=Hand(),
            chosen_by=ActionSource.SCRIPT,
        )
    with EpisodeLog(folder, SPEC, "recording", PERSON, 1, LogConfig(min_free_bytes=0)) as log:
        for record in records:
            log.append(record)
    shown = replayed(pick(recordings(folder), 0))
    assert shown is not None
    assert shown.episode.count(ActionSource.HUMAN) == len(shown.episode.steps)
    assert write_film(shown, tmp_path / "film.mp4") == "simulated again for its pictures"


def test_recording_of_another_run_is_refused(episode: Episode) -> None:
    with pytest.raises(ReplayDiverged, match="no start of its run gives"):
        reenact(episode, SPEC, CONFIG.model_copy(update={"seed": 4}), 0, SIZE)


@pytest.mark.usefixtures("undrawn")
def test_diverging_simulation_is_detected(episode: Episode) -> None:
    still = np.zeros_like(episode.steps[0].action)
    changed = [replace(step, requested=still, action=still) for step in episode.steps]
    with pytest.raises(ReplayDiverged, match=r"departs from the recording at step \d+"):
        reenact(replace(episode, steps=tuple(changed)), SPEC, CONFIG, 0, SIZE)


@pytest.mark.usefixtures("undrawn")
def test_simulation_that_ends_early_is_detected(episode: Episode) -> None:
    longer = replace(episode, steps=(*episode.steps, episode.steps[-1]))
    with pytest.raises(ReplayDiverged, match=f"ends at step {len(episode.steps)}"):
        reenact(longer, SPEC, CONFIG, 0, SIZE)


def test_recording_of_another_task_is_refused(episode: Episode) -> None:
    with pytest.raises(ReplayDiverged, match='the task has changed: task: "reach"'):
        reenact(episode, SPEC, resolve({"task": "reach"}), 0, SIZE)
    with pytest.raises(BadInput, match="unknown task 'unicorn'"):
        reenact(episode, SPEC, resolve({"task": "unicorn"}), 0, SIZE)
