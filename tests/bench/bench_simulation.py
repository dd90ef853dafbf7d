"""Benchmark of the simulation: experts, control steps, physics and images, by task.

    python tests/bench/bench_simulation.py [--short]

Actions are uniform, starts seeded; resets and drawing actions are not timed. The yardstick is
plain `mj_step` of the same model from the same starts. Kinds of episode alternate and times are
thread CPU times, so ratios also hold on a busy machine; speeds do not.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest import mock

import mujoco
import numpy as np

from serl import plugins
from serl.policy import RandomPolicy
from serl.sim.arm import SimArm
from serl.sim.scene import PHYSICS_DT_S
from serl.task import SimulatedTask
from serl.training.evaluation import wilson
from serl.types import Action
from tests.bench.task_bench import expert_episode, play, thread_s

TASKS = ("reach", "pick_cube", "peg_insertion", "connector_insertion")
SIZES_PX = (84, 256)
# Targets (state, 10 Hz, one core), set on a machine with this physics rate for the prototype's
# model. The current model takes little more than half of its time.
BAR_STEPS_S, BAR_PHYSICS_STEPS_S = 1500, 105_000


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", action="store_true", help="fewer episodes")
    short = parser.parse_args().short
    scenes = {name: _scene(name) for name in TASKS}
    experts(scenes, episodes=1 if short else 100)
    speed(scenes, rounds=1 if short else 40)
    pictures(scenes, frames=1 if short else 40)


Scenes = dict[str, tuple[SimulatedTask, SimArm]]


def _scene(name: str) -> tuple[SimulatedTask, SimArm]:
    task: SimulatedTask = plugins.load("task", name)()
    return task, SimArm(task.scene, task.config)


def experts(scenes: Scenes, episodes: int) -> None:
    """Print success and length of the scripted experts' episodes."""
    print("| expert | success | 95 % interval | mean steps |")
    print("|---|---|---|---|")
    for name, (task, arm) in scenes.items():
        results = [expert_episode(task, arm, seed) for seed in range(episodes)]
        successes = sum(result.success for result in results)
        low, high = wilson(successes, episodes)
        steps = statistics.mean(result.steps for result in results)
        print(
            f"| {name} | {successes} of {episodes} | {low:.1%} to {high:.1%} | {steps:.1f} |",
            flush=True,
        )


def speed(scenes: Scenes, rounds: int) -> None:
    """Print environment steps per second, compared with plain physics and the targets."""
    print(
        "\n| env steps/s, one core | bare mj_step | robot | robot and task | of bare | of the bar |"
    )
    print("|---|---|---|---|---|---|")
    inside = {}
    for name, (task, arm) in scenes.items():
        physics = _Stopwatch(mujoco.mj_step)
        kinds: dict[str, Callable[[SimulatedTask, SimArm, list[Action]], None]] = {
            "bare": _bare_episode,
            "robot": _robot_episode,
            "task": play,
            "watched": partial(_watched_episode, physics=physics),
        }
        seconds: dict[str, list[float]] = {kind: [] for kind in kinds}
        for seed in range(rounds):
            choose = RandomPolicy(arm.action_spec, seed)
            for kind, episode in kinds.items():
                reading = arm.reset(seed)
                task.begin(reading)
                actions = [choose(reading) for _ in range(task.config.max_steps)]
                seconds[kind].append(thread_s(partial(episode, task, arm, actions)))
        median_s = {kind: statistics.median(times) for kind, times in seconds.items()}
        rate = {kind: task.config.max_steps / value for kind, value in median_s.items()}
        inside[name] = physics.total_s / sum(seconds["watched"])
        print(
            f"| {name}, {task.config.rate_hz:g} Hz | {rate['bare']:.0f} | {rate['robot']:.0f} "
            f"| {rate['task']:.0f} | {rate['task'] / rate['bare']:.0%} "
            f"| {rate['task'] / BAR_STEPS_S:.0%} |",
            flush=True,
        )
    shares = ", ".join(f"{share:.0%} in {name}" for name, share in inside.items())
    print(
        f"\nThe bar is {BAR_STEPS_S} where the prototype's model makes {BAR_PHYSICS_STEPS_S:,} "
        f"physics steps/s. Time spent inside mj_step: {shares}."
    )


def _bare_episode(task: SimulatedTask, arm: SimArm, actions: list[Action]) -> None:
    steps = round(1.0 / task.config.rate_hz / PHYSICS_DT_S)
    for _ in actions:
        mujoco.mj_step(arm.model, arm.data, nstep=steps)


def _robot_episode(task: SimulatedTask, arm: SimArm, actions: list[Action]) -> None:
    dt_s = 1.0 / task.config.rate_hz
    for action in actions:
        arm.act(action)
        arm.advance(dt_s)
        arm.observe()


def _watched_episode(
    task: SimulatedTask, arm: SimArm, actions: list[Action], physics: _Stopwatch
) -> None:
    with mock.patch.object(mujoco, "mj_step", physics):
        play(task, arm, actions)


class _Stopwatch:
    """Wrapper of a function that sums the seconds spent in it."""

    def __init__(self, function: Callable[..., None]) -> None:
        self._function = function
        self.total_s = 0.0

    def __call__(self, *arguments: Any, **named: Any) -> None:
        start_s = time.thread_time()
        self._function(*arguments, **named)
        self.total_s += time.thread_time() - start_s


def pictures(scenes: Scenes, frames: int) -> None:
    """Print the renderer's frames per second and the share spent casting one ray per pixel."""
    print("\n| renderer, one core | frames/s | of it mj_multiRay |\n|---|---|---|")
    for name, (_, arm) in scenes.items():
        arm.reset(0)
        camera = plugins.make_renderer(arm)
        for size in SIZES_PX:
            draw = partial(camera.frame, "front", size, size)
            cast = partial(_cast, arm, _rays(arm, size))
            pairs = [(thread_s(draw), thread_s(cast)) for _ in range(frames)]
            frame_s, cast_s = (statistics.median(times) for times in zip(*pairs, strict=True))
            print(f"| {name}, {size} px | {1 / frame_s:.1f} | {cast_s / frame_s:.0%} |", flush=True)


def _rays(arm: SimArm, size: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return one ray direction per pixel of the front camera, shape (3 * size * size,)."""
    camera = arm.model.camera("front").id
    scale = 2.0 * np.tan(0.5 * np.radians(arm.model.cam_fovy[camera])) / size
    y, x = (np.mgrid[0:size, 0:size] + 0.5 - 0.5 * size) * scale
    rays = np.stack([x, -y, np.full_like(x, -1.0)], -1).reshape(-1, 3)
    turned = rays @ arm.data.cam_xmat[camera].reshape(3, 3).T
    return np.ascontiguousarray(turned.ravel())


def _cast(arm: SimArm, rays: np.ndarray[Any, np.dtype[np.float64]]) -> None:
    count = len(rays) // 3
    geoms, distances, normals = np.empty(count, np.int32), np.empty(count), np.empty(3 * count)
    origin = arm.data.cam_xpos[arm.model.camera("front").id]
    mujoco.mj_multiRay(
        arm.model, arm.data, origin, rays, None, 1, -1, geoms, distances, normals, count, 20.0
    )


if __name__ == "__main__":
    main()
