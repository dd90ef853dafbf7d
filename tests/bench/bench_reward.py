"""Benchmark of a task's reward model: training time and rate of false successes.

    python tests/bench/bench_reward.py pick_cube [--data FOLDER] [--run RUN] [--episodes N]

Episodes are driven by random actions, and with --run by two exploring checkpoints of that run, the
first and a middle one. If the run's policy sees no images, they are rendered for the model alone.
The ground truth is only counted. The model is trained, and ends episodes, within the tool box of
the task's tuned settings; anywhere with --unchecked.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from serl import plugins
from serl.agents.classifier import Card, make_reward
from serl.agents.classifier_training import train_classifier
from serl.agents.config import ClassifierConfig
from serl.clock import VirtualClock
from serl.datasets.reward_audit import audit
from serl.datasets.reward_collection import LabelCounts, collect
from serl.geometry import Vector
from serl.loop import EpisodeKey, run
from serl.policy import Policy, RandomPolicy
from serl.reward import RewardConfig, RewardedTask
from serl.robot import SimulatedRobot
from serl.runs.assembly import make_acting_agent
from serl.runs.checkpoint import checkpoint_paths, load
from serl.runs.config import TrainConfig, resolve
from serl.runs.folder import RunFolder
from serl.runs.reward_data import read_samples
from serl.runs.task_setup import make_spec, make_task
from serl.task import SimulatedTask
from serl.training.evaluation import Purpose, start_seed, wilson

SEED = 7  # seed of the episodes; collections use others
_PIXELS = {"observe": "pixels"}


def main() -> None:
    """Train and evaluate the model, and print the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task")
    parser.add_argument("--data", type=Path, help="a collection, instead of a fresh one")
    parser.add_argument("--model", type=Path, help="a trained model, instead of a fresh one")
    parser.add_argument("--run", type=Path, help="whose checkpoints drive as well")
    parser.add_argument("--episodes", type=int, default=100, help="of each policy")
    parser.add_argument("--unchecked", action="store_true", help="without a check of the tool")
    parser.add_argument("--epochs", type=int, default=ClassifierConfig().epochs)
    parser.add_argument("--threads", type=int, help="of torch, for the training")
    options = parser.parse_args()
    place = {} if options.unchecked else tuned_place(options.task)
    with tempfile.TemporaryDirectory() as folder:
        model = options.model or Path(folder) / "model.safetensors"
        if options.model is None:
            data = options.data or collected(options.task, Path(folder) / "data")
            asked = {"epochs": options.epochs, "threads": options.threads}
            train(data, model, ClassifierConfig.model_validate(asked | place))
        count(options.task, model, options.run, options.episodes, place)


def tuned_place(task: str) -> dict[str, Vector]:
    """Return the task's tuned tool box, as used by `serl reward train` and by training."""
    tuned = make_task(resolve({"task": task})).training_defaults().get("reward", {})
    return {key: tuned[key] for key in ("tool_low_m", "tool_high_m") if key in tuned}


def collected(name: str, folder: Path) -> Path:
    """Return a collection with 200 successes and 1000 other images."""
    task, start_s = make_task(resolve({"task": name, "observe": "pixels"})), time.perf_counter()
    with plugins.make_simulation(task) as robot:
        counts = collect(robot, task, folder, LabelCounts(200, 1000), seed=0)
    print(f"collected {counts} in {time.perf_counter() - start_s:.0f} s", flush=True)
    return folder


def train(data: Path, model: Path, config: ClassifierConfig) -> None:
    """Train a model on a collection and print its held-out accuracy."""
    samples, views = read_samples([data])
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    trained = train_classifier(samples, Card(views=views), config)
    wall_s, cpu_s = time.perf_counter() - wall_s, time.process_time() - cpu_s
    trained.classifier.save(model)
    card = trained.classifier.card
    print(
        f"trained in {wall_s:.0f} s ({cpu_s:.0f} s of a core), believed from {card.threshold:.3f}"
    )
    found = audit(trained.held_out.labels, trained.probabilities, card.threshold)
    print("\n".join(found.lines()), flush=True)


def count(
    name: str, model: Path, path: Path | None, episodes: int, place: Mapping[str, Vector]
) -> None:
    """Print predicted and false successes by policy."""
    config = RunFolder.open(path).config if path else resolve({"task": name})
    reward = RewardConfig.model_validate({"kind": "classifier", "model": model, **place})
    print("| policy | episodes | told | wrongly | 95 % of episodes | least progress |")
    print("|---|---|---|---|---|---|")
    for policy, checkpoint in {"chance": None, **_checkpoints(path)}.items():
        told, wrong = _told(config, reward, checkpoint, episodes)
        low, high = wilson(len(wrong), episodes)
        cells = f"{episodes} | {told} | {len(wrong)} | {low:.1%} to {high:.1%}"
        print(f"| {policy} | {cells} | {f'{min(wrong):.2f}' if wrong else '-'} |", flush=True)


def _checkpoints(path: Path | None) -> dict[str, Path]:
    if path is None:
        return {}
    found = checkpoint_paths(RunFolder.open(path).checkpoints)
    return {f"step {each.name.lstrip('0')}": each for each in (found[0], found[len(found) // 2])}


def _told(
    config: TrainConfig, reward: RewardConfig, checkpoint: Path | None, episodes: int
) -> tuple[int, list[float]]:
    """Return the number of predicted successes and the progress at the false ones."""
    task, drawn = (make_task(config.model_copy(update=seen)) for seen in ({}, _PIXELS))
    judged = RewardedTask(task, make_reward(reward, drawn))
    told, wrong = 0, []
    with plugins.make_simulation(drawn) as robot:
        for episode in range(episodes):
            robot.reset(start_seed(Purpose.REWARD, SEED, "bench", episode))
            policy = _policy(config, robot, task, checkpoint, episode)
            key = EpisodeKey("bench", "bench", 1, episode)
            clock = VirtualClock(robot.advance, task.config.rate_hz)
            if run(robot, judged, policy, clock, key, []).success:
                told += 1
                if not task.is_success(robot.truth()):
                    wrong.append(task.progress(robot.truth()))
    return told, wrong


def _policy(
    config: TrainConfig,
    robot: SimulatedRobot,
    task: SimulatedTask,
    checkpoint: Path | None,
    episode: int,
) -> Policy:
    if checkpoint is None:
        return RandomPolicy(robot.action_spec, episode)
    agent = make_acting_agent(config, make_spec(task), episode)
    agent.load_actor_weights(load(checkpoint).arrays["actor"])
    return lambda observation: agent.act(observation, explore=True)


if __name__ == "__main__":
    main()
