"""Benchmark of the learner's update against Stable-Baselines3; ratios of one interleaved run.

    python tests/bench/bench_update.py [--eager] [--rounds N]
    python tests/bench/bench_update.py --before COMMIT [--rounds N]

The second compares the learner with that of an earlier commit, in a process each, update by update.
One update is UTD 4: four batches of 256, sampling included. Stable-Baselines3 and the naive
formulation have no LayerNorm; ours has. Needs a quiet machine: two threads stall on a busy one.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import ctypes
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor, nn

from serl.agents.config import SACConfig
from serl.agents.sac import SAC
from serl.specs import ArraySpec, ObservationSpec, Spec
from serl.training.replay import Replay
from serl.types import ActionSource, End, EndReason, Key, Observation, Step

BATCH, UTD, HIDDEN = 256, 4, 256
TRANSITIONS, EPISODE = 4000, 50
THREADS = (1, 2)
CRITICS = (2, 10)
ROOT = Path(__file__).resolve().parents[2]


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=8, help="updates per cell of the table")
    parser.add_argument("--eager", action="store_true", help="leave out torch.compile (a minute)")
    parser.add_argument("--before", metavar="COMMIT", help="compare with this commit, and no more")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        return serve()
    if options.before:
        return before_and_after(options.before, options.rounds)
    against_others(options.rounds, not options.eager)


def against_others(rounds: int, compiled: bool) -> None:
    """Compare serl, a naive version and Stable-Baselines3: 10 critics, 30 states, 7 actions."""
    spec, critics = make_spec(30, 7), 10
    updates = {
        "serl": serl_update(spec, critics=critics, matmul="float32"),
        "serl, matmul bfloat16": serl_update(spec, critics=critics, matmul="bfloat16"),
    }
    if compiled:
        updates["serl, compiled"] = serl_update(
            spec, critics=critics, matmul="float32", compile=True
        )
    updates["naive, an actor step per update"] = naive_update(spec, critics, actor_every=UTD)
    updates["naive, an actor step per critic step"] = naive_update(spec, critics, actor_every=1)
    updates["Stable-Baselines3"] = sb3_update(spec, critics)
    measured = interleaved(updates, rounds)
    best = {name: min(times.values()) for name, times in measured.items()}
    base = best["Stable-Baselines3"]
    print(f"{critics} critics, batch {BATCH}, UTD {UTD}; best of {rounds}")
    print(f"{'':38}{'1 thread':>12}{'2 threads':>12}{'updates/s':>12}{'x SB3':>8}")
    for name, times in measured.items():
        cells = "".join(f"{1e3 * times[threads]:>9.1f} ms" for threads in THREADS)
        print(f"{name:38}{cells}{1 / best[name]:>12.1f}{base / best[name]:>8.2f}")


def before_and_after(commit: str, rounds: int) -> None:
    """Print CPU time of updates of 2 and 10 critics in float32, by that commit and by this tree."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        archive = subprocess.run(
            ["git", "archive", commit, "serl"], cwd=ROOT, check=True, capture_output=True
        ).stdout
        subprocess.run(["tar", "-x", "-C", folder], input=archive, check=True)
        processes = {
            name: stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-P", __file__, "--serve"],
                    env={**os.environ, "PYTHONPATH": str(root)},
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            for name, root in ((commit, folder), ("this tree", ROOT))
        }
        print(
            f"batch {BATCH}, UTD {UTD}, float32, 1 thread; ms of CPU, medians of {rounds} (least)"
        )
        for critics in CRITICS:
            times_s: dict[str, list[float]] = {name: [] for name in processes}
            for _ in range(rounds + 3):
                for name, process in processes.items():
                    times_s[name].append(ask(process, critics))
            medians = {name: statistics.median(times[3:]) for name, times in times_s.items()}
            cells = "".join(
                f"{name:>12} {1e3 * medians[name]:.1f} ({1e3 * min(times):.1f})"
                for name, times in times_s.items()
            )
            ratio = medians[commit] / medians["this tree"]
            print(f"{critics:2} critics{cells}{ratio:>8.2f} times as many updates/s")
        for process in processes.values():
            process.communicate()


def ask(process: subprocess.Popen[str], critics: int) -> float:
    """Request one update from a `serve` process; return its CPU seconds."""
    assert process.stdin is not None
    assert process.stdout is not None
    print(critics, file=process.stdin, flush=True)
    return float(process.stdout.readline())


def serve() -> None:
    """Take an update per line of standard input and print its CPU seconds."""
    keep_freed_memory()
    updates = {
        critics: serl_update(make_spec(30, 7), critics=critics, matmul="float32")
        for critics in CRITICS
    }
    torch.set_num_threads(1)
    for line in sys.stdin:
        start_s = time.process_time()
        updates[int(line)]()
        print(time.process_time() - start_s, flush=True)


def keep_freed_memory() -> None:
    """Let the C library keep freed memory, as every process of a training does."""
    with contextlib.suppress(AttributeError):  # another C library than glibc
        library = ctypes.CDLL(None)
        library.mallopt(-1, 64 << 20)
        library.mallopt(-3, 32 << 20)


def interleaved(
    updates: dict[str, Callable[[], object]], rounds: int
) -> dict[str, dict[int, float]]:
    """Return the minimum seconds by name and threads; each round measures all cases once."""
    times: dict[str, dict[int, list[float]]] = {name: {n: [] for n in THREADS} for name in updates}
    for update in updates.values():
        update()
    for _ in range(rounds):
        for threads in THREADS:
            torch.set_num_threads(threads)
            for name, update in updates.items():
                times[name][threads].append(timed(update, 1))
    return {
        name: {n: min(values) for n, values in by_threads.items()}
        for name, by_threads in times.items()
    }


def timed(function: Callable[[], object], repeats: int) -> float:
    """Return the median seconds of one call."""
    times = []
    for _ in range(repeats):
        start_s = time.perf_counter()
        function()
        times.append(time.perf_counter() - start_s)
    return statistics.median(times)


def make_spec(states: int, actions: int) -> Spec:
    return Spec(
        task="bench",
        observation=ObservationSpec(state={"state": ArraySpec(shape=(states,))}),
        action=ArraySpec(shape=(actions,), low=-1.0, high=1.0),
        rate_hz=10.0,
    )


def observe(rng: np.random.Generator, spec: Spec) -> Observation:
    return Observation({"state": rng.standard_normal(spec.observation.state_size, np.float32)})


def fill(spec: Spec) -> Replay:
    """Return a replay of random episodes, every fourth one by a human."""
    replay, rng = Replay(spec, 2 * TRANSITIONS, 0.97), np.random.default_rng(0)
    for episode in range(TRANSITIONS // EPISODE):
        source = ActionSource.POLICY if episode % 4 else ActionSource.HUMAN
        for index in range(EPISODE):
            action = rng.uniform(-1, 1, spec.action.shape).astype(np.float32)
            key = Key("bench", "actor", 0, episode, index)
            observation, reward = observe(rng, spec), float(rng.random())
            replay.add(
                Step(
                    *(key, observation, action, action, reward, "truth"),
                    *(False, False, source, 0, 0.0, 0.0),
                )
            )
        key = Key("bench", "actor", 0, episode, EPISODE)
        replay.add(End(key, observe(rng, spec), False, EndReason.TIME_LIMIT, 0.0, 0.0))
    return replay


def serl_update(spec: Spec, **config: Any) -> Callable[[], object]:
    """Return serl's update; it sets the process-wide matmul precision on each call."""
    settings = SACConfig(**{"device": "cpu", "batch_size": BATCH, "utd": UTD, **config})
    agent, replay = SAC.create(spec, settings, 0), fill(spec)
    agent.fit_normaliser(replay.prior_states())
    precision = torch.get_float32_matmul_precision()

    def update() -> None:
        torch.set_float32_matmul_precision(precision)
        agent.update(replay.sample(UTD * BATCH))
        torch.set_float32_matmul_precision("highest")

    return update


def perceptron(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(inputs, HIDDEN),
        nn.ReLU(),
        nn.Linear(HIDDEN, HIDDEN),
        nn.ReLU(),
        nn.Linear(HIDDEN, outputs),
    )


class Naive:
    """SAC as commonly written: a list of critics and one Adam over their tensors."""

    def __init__(self, states: int, actions: int, critics: int) -> None:
        self.actor = perceptron(states, 2 * actions)
        self.critics = nn.ModuleList(perceptron(states + actions, 1) for _ in range(critics))
        self.targets = copy.deepcopy(self.critics)
        self.log_temperature = torch.zeros(1, requires_grad=True)
        self.actor_adam = torch.optim.Adam(self.actor.parameters(), 3e-4)
        self.critic_adam = torch.optim.Adam(self.critics.parameters(), 3e-4)
        self.temperature_adam = torch.optim.Adam([self.log_temperature], 3e-4)
        self.target_entropy = -float(actions)

    def sample(self, state: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = self.actor(state).chunk(2, -1)
        log_std = log_std.clamp(-20, 2)
        noise = torch.randn_like(mean)
        action = torch.tanh(mean + log_std.exp() * noise)
        log_normal = -0.5 * noise.square() - log_std - 0.5 * math.log(2 * math.pi)
        log_probability = log_normal - torch.log(1 - action.square() + 1e-6)
        return action, log_probability.sum(-1, keepdim=True)

    @staticmethod
    def values(critics: nn.ModuleList, state: Tensor, action: Tensor) -> list[Tensor]:
        joined = torch.cat([state, action], -1)
        return [critic(joined) for critic in critics]

    def critic_step(self, rows: tuple[Tensor, ...]) -> None:
        state, action, reward, discount, next_state = rows
        with torch.no_grad():
            next_action, log_probability = self.sample(next_state)
            values = torch.cat(self.values(self.targets, next_state, next_action), -1)
            lowest = values.min(-1, keepdim=True).values
            bonus = self.log_temperature.exp() * log_probability
            target = reward + discount * (lowest - bonus)
        losses = [
            nn.functional.mse_loss(value, target)
            for value in self.values(self.critics, state, action)
        ]
        self.critic_adam.zero_grad()
        torch.autograd.backward(torch.stack(losses).sum())
        self.critic_adam.step()
        with torch.no_grad():
            pairs = zip(self.critics.parameters(), self.targets.parameters(), strict=True)
            for parameter, target in pairs:
                target.mul_(0.995).add_(parameter, alpha=0.005)

    def actor_step(self, state: Tensor) -> None:
        action, log_probability = self.sample(state)
        entropy_gap = (log_probability + self.target_entropy).detach()
        self.temperature_adam.zero_grad()
        torch.autograd.backward((-self.log_temperature * entropy_gap).mean())
        self.temperature_adam.step()
        value = torch.cat(self.values(self.critics, state, action), -1).min(-1, keepdim=True).values
        loss = (self.log_temperature.exp().detach() * log_probability - value).mean()
        self.actor_adam.zero_grad()
        torch.autograd.backward(loss)
        self.actor_adam.step()


def naive_update(spec: Spec, critics: int, actor_every: int) -> Callable[[], object]:
    agent, replay = Naive(spec.observation.state_size, spec.action.shape[0], critics), fill(spec)

    def update() -> None:
        for step in range(1, UTD + 1):
            batch = replay.sample(BATCH)
            column = batch.reward[:, None], batch.discount[:, None]
            arrays = batch.state, batch.action, *column, batch.next_state
            rows = tuple(torch.from_numpy(array) for array in arrays)
            agent.critic_step(rows)
            if step % actor_every == 0:
                agent.actor_step(rows[0])

    return update


class _Spaces(gymnasium.Env[Any, Any]):
    """Minimal environment that Stable-Baselines3 accepts."""

    def __init__(self, spec: Spec) -> None:
        size = spec.observation.state_size
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (size,), np.float32)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, spec.action.shape, np.float32)


def sb3_update(spec: Spec, critics: int) -> Callable[[], object]:
    """Return Stable-Baselines3's `train` with four gradient steps of critics and actor."""
    try:
        from stable_baselines3 import SAC as SB3
        from stable_baselines3.common.logger import Logger
    except ImportError:
        raise SystemExit("bench needs stable-baselines3: pip install 'serl[bench]'") from None
    model = SB3(
        "MlpPolicy",
        _Spaces(spec),
        batch_size=BATCH,
        policy_kwargs={"net_arch": [HIDDEN, HIDDEN], "n_critics": critics},
        device="cpu",
    )
    model.set_logger(Logger(None, []))
    rng = np.random.default_rng(0)
    for _ in range(TRANSITIONS):
        states = rng.standard_normal((2, 1, spec.observation.state_size), np.float32)
        action = rng.uniform(-1, 1, (1, *spec.action.shape)).astype(np.float32)
        model.replay_buffer.add(*states, action, rng.random(1), np.zeros(1), [{}])
    return lambda: model.train(gradient_steps=UTD, batch_size=BATCH)


if __name__ == "__main__":
    main()
