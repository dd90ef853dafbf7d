"""Test runs whose reward is shaped by the progress of the scene."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from serl.agents.progress import TimeCard, TimeToGo
from serl.errors import BadInput, SpecMismatch
from serl.log.episode_log import EpisodeLog, LogConfig
from serl.reward import RewardedTask
from serl.runs.assembly import make_agent
from serl.runs.config import TrainConfig, resolve
from serl.runs.demonstrations import shape_for
from serl.runs.settings import run_settings
from serl.runs.task_setup import make_rewarded_task, make_spec, make_task, make_unshaped_task
from serl.shaping import ShapedTask, is_shaped
from serl.types import End, Episode, Record, Step

from .test_assembly import CONFIG, Training, demonstrations

REACH = make_spec(make_task(CONFIG))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create an untrained progress model, which suffices for shaping."""
    path = tmp_path_factory.mktemp("progress") / "model.safetensors"
    card = TimeCard(task="reach", state=REACH.observation.state, hidden=16, longest_s=4.0)
    TimeToGo.create(card, torch.Generator().manual_seed(0)).save(path)
    return path


@pytest.fixture(scope="module")
def shaped(model: Path) -> TrainConfig:
    reward = {"kind": "progress", "progress": {"model": model}}
    return resolve(CONFIG.model_dump(), {"reward": reward})


def episodes(records: list[Record]) -> list[Episode]:
    made: list[Episode] = []
    steps: list[Step] = []
    for record in records:
        if isinstance(record, End):
            made.append(Episode(tuple(steps), record))
            steps.clear()
        else:
            steps.append(record)
    return made


def write(folder: Path, config: TrainConfig, episodes: list[Episode]) -> None:
    with EpisodeLog(folder, make_spec(make_task(config)), "run", "expert", 1, LogConfig()) as log:
        for episode in episodes:
            for record in (*episode.steps, episode.end):
                assert record is not None
                log.append(record)


def test_replay_holds_shaped_rewards_of_demonstrations_and_actor(shaped: TrainConfig) -> None:
    shape, recorded = shape_for(shaped), episodes(demonstrations(shaped))
    shaper = make_rewarded_task(shaped).shaper  # type: ignore[attr-defined]
    training = Training(shaped).run(10)
    assert all(is_shaped(episode, shaper.provenance) for episode in episodes(training.log))
    dense = shape(recorded[0], "demos")
    assert is_shaped(dense, shaper.provenance)
    assert shape(dense, "demos") is dense, "a shaped episode must not be shaped again"
    assert [step.terminated for step in dense.steps] == [s.terminated for s in recorded[0].steps]
    last = shaper.potential(dense.steps[-1].observation)
    assert dense.steps[-1].reward == pytest.approx(1.0 - last)
    assert training.learner.agent.config.return_bounds is None  # type: ignore[attr-defined]
    bounded = resolve(shaped.model_dump(), {"agent": {"return_bounds": [0, 1]}})
    agent: Any = make_agent(bounded, REACH, 0)
    assert agent.config.return_bounds == (-1.0, 1.0), "the potential lowers the lower bound"


def test_recordings_with_mismatching_rewards_are_refused(
    shaped: TrainConfig, tmp_path: Path, model: Path
) -> None:
    recorded = episodes(demonstrations(CONFIG))
    write(tmp_path / "sparse", CONFIG, recorded)
    write(tmp_path / "dense", shaped, [shape_for(shaped)(recorded[0], "demos")])

    def settings(folder: str, **reward: Any) -> TrainConfig:
        own = {"demo_paths": [tmp_path / folder], "reward": reward} if reward else {}
        discount = {"agent": {"discount": shaped.agent.discount}}
        return run_settings("reach", {}, {"demo_paths": [tmp_path / folder], **own, **discount})

    learned = {"kind": "progress", "progress": {"model": model}}
    pinned = settings("sparse", **learned).reward.progress
    assert pinned.model == model
    assert pinned.sha256
    settings("dense", **learned)
    with pytest.raises(SpecMismatch, match=r"dense: its rewards are shaped by .*, here not at all"):
        settings("dense")
    with pytest.raises(SpecMismatch, match=r"weight 1, .*, here by that of model \w+, weight 2,"):
        settings("dense", kind="progress", progress={"model": model, "weight": 2})
    of_topic = {"kind": "progress", "topic": "/cell/near"}
    with pytest.raises(SpecMismatch, match=r"sparse: holds no progress of /cell/near"):
        settings("sparse", **of_topic)
    with pytest.raises(BadInput, match=r"demos: 20: no script publishes /cell/near"):
        run_settings("reach", {}, {"reward": of_topic, "demos": 20})
    run_settings("reach", {}, {"reward": of_topic, "demos": 0})


def test_progress_reward_takes_success_from_configured_source(shaped: TrainConfig) -> None:
    def deciding(**own: Any) -> TrainConfig:
        progress = {"progress": {"success": own.pop("success"), "model": own.pop("model", None)}}
        reward = {"kind": "progress", "topic": "/cell/near", **progress, **own}
        return resolve(CONFIG.model_dump(), {"reward": reward})

    assert not isinstance(make_unshaped_task(shaped), RewardedTask)
    for config, name in (
        (deciding(success="human"), "human"),
        (deciding(success="pose", pose=[0.5, 0, 0.2, 1, 0, 0, 0]), "pose"),
    ):
        task = make_rewarded_task(config)
        assert isinstance(task, ShapedTask)
        assert task.reward.provenance == name
        assert config.reward.success_kind == name
    for own, line in (
        ({"success": "pose"}, "pose: expected x y z"),
        ({"success": "classifier"}, "a classifier needs the file"),
        ({"success": "task", "model": "m"}, "expected either topic, or progress.model, not both"),
        ({"success": "task", "topic": None}, "expected either topic, or progress.model, not both"),
        ({"success": "vice"}, "success"),
    ):
        with pytest.raises(BadInput, match=line):
            deciding(**own)
