"""How a training uses a classifier: as the run says, else as the task is tuned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from serl import plugins
from serl.runs.task_setup import make_task
from serl.runs.config import TrainConfig, resolve, stage_configs
from serl.system.settings_file import merge
from serl.runs.real_arm import tuned_settings
from serl.datasets.recording_session import read_session
from serl.reward import RewardConfig
from serl.runs.reward_data import run_of


def tuned_reward(folders: Sequence[Path], task: str) -> RewardConfig:
    """How a classifier would be used by a training of what was recorded; which one is left open.

    Of a training it is as that run says. What a person recorded, and a collection of a known task
    or of a stage of one, is used as a training of it would by default.

    Args:
        folders: of episodes; the first one counts.
        task: that they are of, as their records name it.

    Raises:
        BadInput: the file of the task that a person recorded is gone.
        CorruptData: what says that a person recorded it is damaged.
    """
    run = run_of(folders[0]) if folders else None
    if run is None:
        return _open(_of_name(task))
    if read_session(run.path) is None:
        return _open(run.config.reward)
    tuned = tuned_settings(run.config, make_task(run.config)).get("reward", {})
    own = run.config.reward.model_dump(exclude_defaults=True)
    return _open(RewardConfig.model_validate(merge(tuned, own)))


def _of_name(task: str) -> RewardConfig:
    """Of a known task, or of a stage of one such as a direction, which has a name of its own."""
    for name in plugins.names("task"):
        if task == name or task.startswith(f"{name}_"):
            for each in _trainings(name):
                if make_task(each).name == task:
                    return each.reward
    return RewardConfig()


def _trainings(name: str) -> Sequence[TrainConfig]:
    """What a known task is by default: one training, or one of each of its stages."""
    named: Mapping[str, Any] = {"task": name}
    config = resolve(make_task(resolve(named)).training_defaults(), named)
    return list(stage_configs(config).values()) or [config]


def _open(reward: RewardConfig) -> RewardConfig:
    return reward.model_copy(update={"kind": "task", "model": None, "sha256": None})
