"""Benchmark of images: rendering, sampling and updates; ratios within one run.

    python tests/bench/bench_pixels.py [--rounds N] [--compile]

The naive structure is that of SERL's agent written down in plain PyTorch: the trunk runs for the
policy, the target and the critic, in float32, and each parameter has its own Adam step.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from serl import plugins
from serl.agents.config import SACConfig
from serl.agents.networks import set_matmul
from serl.agents.resnet import CHANNELS, GRID, Trunk
from serl.agents.sac import SAC
from serl.agents.trunk_weights import SHAPES, TrunkWeights, encode_trunk
from serl.camera import View
from serl.sim.arm import SimArm
from serl.specs import ArraySpec, ObservationSpec, Spec
from serl.tasks.pick_cube import PickCube, PickCubeConfig
from serl.testing.samples import random_batch
from serl.training.replay import Replay
from serl.types import ActionSource, End, EndReason, Key, Observation, Step

BATCH, CRITICS, HIDDEN, PX = 128, 10, 256, 128
STATE, ACTION = 15, 5
FRAMES = 2000
TRUNK_GFLOP = 0.58  # of an image, two operations for a product and its sum
CAMERAS = ("front", "wrist")


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="updates per cell of the table")
    parser.add_argument("--compile", action="store_true", help="torch.compile as well (minutes)")
    options = parser.parse_args()
    drawing(84)
    sampling()
    small_updates(options.rounds)
    trunk_updates(options.rounds, options.compile)


def drawing(px: int, steps: int = 60) -> None:
    """Print environment steps per second without images and with two cameras."""
    views = {
        name: View(camera=camera, width=px, height=px)
        for name, camera in (("front", "field"), ("wrist", "wrist"))
    }
    print(f"| pick_cube, two cameras of {px} px, one core | env steps/s |\n|---|---|")
    for name, settings in (
        ("state only", {}),
        ("ray", {"observe": "pixels", "renderer": "ray"}),
        ("gl", {"observe": "pixels", "renderer": "gl"}),
    ):
        task = PickCube(PickCubeConfig.model_validate({"views": views, **settings}))
        arm: SimArm = plugins.make_simulation(task)  # type: ignore[assignment]
        with arm:
            task.begin(arm.reset(0))
            seconds = _best(partial(_step, arm, task), steps)
        print(f"| {name} | {1 / seconds:.0f} |", flush=True)


def _step(arm: SimArm, task: PickCube) -> None:
    arm.act(np.zeros(ACTION, np.float32))
    arm.advance(0.1)
    task.observation(arm.observe())


def sampling() -> None:
    """Print bytes per second of sampling transition images, compared with numpy indexing."""
    spec = _spec(PX)
    print(f"\n| replay of 2 x {PX} px, {FRAMES} frames, batches of {BATCH} | GB/s | of numpy |")
    print("|---|---|---|")
    frames = np.random.default_rng(0).integers(0, 256, (FRAMES, PX, PX, 3), np.uint8)
    size = 4 * BATCH * PX * PX * 3 / 1e9
    rng = np.random.default_rng(1)

    def fancy() -> object:
        return [frames[rng.integers(FRAMES, size=BATCH)] for _ in range(4)]

    contestants: dict[str, Callable[[], object]] = {"numpy, fancy index": fancy}
    for crop in (0, 4):
        tracemalloc.start()
        replay = Replay(spec, FRAMES + 100, 0.97, crop_px=crop)
        kept = tracemalloc.get_traced_memory()[0] / replay.capacity
        tracemalloc.stop()
        _fill(replay, frames)
        name = f"sample, shifted by up to {crop} px" if crop else "sample"
        contestants[name] = partial(replay.sample, BATCH)
    seconds = _medians(contestants, 40)
    for name, own_s in seconds.items():
        ratio = seconds["numpy, fancy index"] / own_s
        print(f"| {name} | {size / own_s:.1f} | {ratio:.2f} |", flush=True)
    print(f"a transition takes {kept / 1000:.1f} kB")


def small_updates(rounds: int) -> None:
    """Print the time of an update with a trained small encoder and with cached features.

    The last rows are updates of four batches of 256, as tasks use with cached features.
    """
    print("\n| small encoder, 2 critics, two cameras | ms | transitions/s |\n|---|---|---|")
    for px, kept, size, utd in (
        (64, False, BATCH, 1),
        (84, False, BATCH, 1),
        (64, True, BATCH, 1),
        (64, True, 256, 4),
    ):
        spec = _spec(px)
        batch = random_batch(spec, utd * size, np.random.default_rng(0))
        for threads in (1, 2):
            tuned = {"batch_size": size, "utd": utd, "cached_features": kept, "threads": threads}
            agent = SAC.create(spec, _config(critics=2, hidden=(128, 128), **tuned), 0)
            if kept:
                latent = agent.networks.encoder.latent
                features = dict.fromkeys(CAMERAS, np.ones((utd * size, latent), np.float16))
                batch = replace(batch, images=features, next_images=features)
            seconds = _best(partial(agent.update, batch), rounds + 1)
            name = f"{px} px, {threads} threads, {utd} x {size}" + (", features kept" * kept)
            print(f"| {name} | {1000 * seconds:.1f} | {utd * size / seconds:.0f} |", flush=True)


def trunk_updates(rounds: int, compiled: bool) -> None:
    """Print a critic update behind SERL's trunk: naive structure, serl's, and without a trunk."""
    torch.set_num_threads(2)
    spec = _spec(PX)
    batch = random_batch(spec, BATCH, np.random.default_rng(0))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trunk.safetensors"
        _write_trunk(path)
        config = _config(
            critics=CRITICS,
            hidden=(HIDDEN, HIDDEN),
            encoder="resnet10",
            trunk=path,
            threads=2,
        )
        agent = SAC.create(spec, config, 0)
        naive = Naive(Plain.load(path))
        exact = {"matmul": "float32"}
        contestants: dict[str, tuple[str, Callable[[], object]]] = {
            "naive: three encodes, float32, an Adam step a tensor": (
                "float32",
                lambda: naive.update(agent, batch),
            ),
            "serl: one encode of each image, float32": (
                "float32",
                partial(SAC.create(spec, config.model_copy(update=exact), 0).update, batch),
            ),
            "serl: as precise as the processor is fast": ("auto", lambda: agent.update(batch)),
        }
        cached = SAC.create(spec, config.model_copy(update={"cached_features": True}), 0)
        features = dict.fromkeys(CAMERAS, np.ones((BATCH, GRID, GRID, CHANNELS), np.float16))
        seen_before = replace(batch, images=features, next_images=features)
        contestants["serl, cached features"] = "auto", lambda: cached.update(seen_before)
        if compiled:
            faster = SAC.create(spec, config.model_copy(update={"compile": True}), 0)
            contestants["serl, compiled"] = "auto", lambda: faster.update(batch)
        title = f"ResNet-10, batch {BATCH}, two cameras of {PX} px, {CRITICS} critics"
        print(f"\n| {title} | ms | transitions/s | x naive |")
        print("|---|---|---|---|")
        baseline = 0.0
        for name, (matmul, update) in contestants.items():
            set_matmul(matmul, agent.device)  # holds for the whole process
            seconds = _best(update, rounds)
            baseline = baseline or seconds
            speed = f"{1000 * seconds:.0f} | {BATCH / seconds:.0f} | {baseline / seconds:.2f}"
            print(f"| {name} | {speed} |", flush=True)
        seen = _best(lambda: agent._encoder_inputs(batch.images), rounds)
        whole = _best(lambda: agent.update(batch), rounds)
        square = torch.rand(2048, 2048)
        most = 2 * len(square) ** 3 / _best(lambda: square @ square, rounds) / 1e9
        reached = len(CAMERAS) * BATCH * TRUNK_GFLOP / seen
        print(
            f"the trunk takes {2 * seen / whole:.0%} of serl's update; its sums, written out, "
            f"are {reached:.0f} GFLOP/s; a large product of matrices reaches {most:.0f}"
        )


class Plain(Trunk):
    """Trunk evaluated layer by layer for all images at once."""

    def forward(self, images: Tensor) -> Tensor:
        """Return features as `Trunk` does."""
        with torch.no_grad():
            x = torch.addcmul(self.shift, images.permute(0, 3, 1, 2).float(), self.scale)
            x = functional.relu(self.stem_norm(self.stem(x)), inplace=True)
            x = functional.max_pool2d(x, 3, stride=2, ceil_mode=True)
            for layers in self.blocks:
                block: Any = layers
                padded = functional.pad(x, (0, 1, 0, 1)) if block.halves else x
                y = functional.relu(block.norm0(block.conv0(padded)), inplace=True)
                rest = block.shortcut_norm(block.shortcut(x)) if block.halves else x
                x = functional.relu(block.norm1(block.conv1(y)).add_(rest), inplace=True)
            return x.permute(0, 2, 3, 1)


class Naive(nn.Module):
    """SERL's structure, in which policy, target and critic each run the encoder."""

    def __init__(self, trunk: Trunk) -> None:
        super().__init__()
        self.trunk = trunk
        self.heads = nn.ModuleDict({name: _Head() for name in CAMERAS})
        self.state = nn.Sequential(nn.Linear(STATE, 64), nn.LayerNorm(64), nn.Tanh())
        seen = 2 * 256 + 64
        self.critics = nn.ModuleList(_mlp(seen + ACTION, 1) for _ in range(CRITICS))
        self.policy = _mlp(seen, 2 * ACTION)
        self.targets = copy.deepcopy(self.critics)
        trained = [p for p in self.parameters() if p.requires_grad]
        self.adam = torch.optim.Adam(trained, 3e-4, foreach=False)

    def encode(self, state: Tensor, images: dict[str, Tensor]) -> Tensor:
        """Return the concatenated features of all cameras and the state."""
        seen = [self.heads[name](self.trunk(images[name])) for name in CAMERAS]
        return torch.cat([*seen, self.state(state)], -1)

    def update(self, agent: SAC, batch: Any) -> float:
        """Take one critic update."""
        state, next_state = torch.from_numpy(batch.state), torch.from_numpy(batch.next_state)
        images, next_images = (
            {name: torch.from_numpy(frames) for name, frames in pictures.items()}
            for pictures in (batch.images, batch.next_images)
        )
        with torch.no_grad():
            action = torch.tanh(self.policy(self.encode(next_state, next_images))[:, :ACTION])
            seen = torch.cat([self.encode(next_state, next_images), action], -1)
            target = torch.stack([critic(seen) for critic in self.targets])[:2].amin(0)
            target = torch.from_numpy(batch.reward)[:, None] + 0.97 * target
        seen = torch.cat([self.encode(state, images), torch.from_numpy(batch.action)], -1)
        values = torch.stack([critic(seen) for critic in self.critics])
        loss = (values - target).square().mean()
        self.adam.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.adam.step()
        with torch.no_grad():
            for mine, other in zip(
                self.targets.parameters(), self.critics.parameters(), strict=True
            ):
                mine.lerp_(other, 0.005)
        return float(loss.detach())


class _Head(nn.Module):
    """Spatial embeddings with the product written out, as SERL has it."""

    def __init__(self) -> None:
        super().__init__()
        self.kernel = nn.Parameter(torch.randn(GRID, GRID, CHANNELS, 8) * 0.25)
        self.rest = nn.Sequential(nn.Linear(CHANNELS * 8, 256), nn.LayerNorm(256), nn.Tanh())

    def forward(self, features: Tensor) -> Tensor:
        seen: Tensor = self.rest((features.unsqueeze(-1) * self.kernel).sum((1, 2)).flatten(1))
        return seen


def _mlp(fan_in: int, fan_out: int) -> nn.Sequential:
    sizes = (fan_in, HIDDEN, HIDDEN)
    layers: list[nn.Module] = []
    for a, b in pairwise(sizes):
        layers += [nn.Linear(a, b), nn.LayerNorm(b), nn.Tanh()]
    return nn.Sequential(*layers, nn.Linear(HIDDEN, fan_out))


def _spec(px: int) -> Spec:
    image = ArraySpec(shape=(px, px, 3), dtype="uint8")
    return Spec(
        task="bench",
        observation=ObservationSpec(
            state={"state": ArraySpec(shape=(STATE,))}, images=dict.fromkeys(CAMERAS, image)
        ),
        action=ArraySpec(shape=(ACTION,), low=-1.0, high=1.0),
        rate_hz=10.0,
    )


def _config(**settings: Any) -> SACConfig:
    fixed = {"batch_size": BATCH, "utd": 1, "device": "cpu", "metrics_every": 1000}
    return SACConfig.model_validate(fixed | settings)


def _fill(replay: Replay, frames: np.ndarray[Any, np.dtype[np.uint8]]) -> None:
    state, action = np.zeros(STATE, np.float32), np.zeros(ACTION, np.float32)
    for index, frame in enumerate(frames):
        seen = Observation({"state": state}, dict.fromkeys(CAMERAS, frame))
        key = Key("run", "actor", 1, 0, index)
        if index + 1 == len(frames):
            replay.add(End(key, seen, False, EndReason.TIME_LIMIT, 0.0, 0.0))
            return
        replay.add(
            Step(
                key,
                seen,
                action,
                action,
                0.0,
                "truth",
                False,
                False,
                ActionSource.POLICY,
                0,
                0.0,
                0.0,
            )
        )


def _write_trunk(path: Path) -> None:
    rng = np.random.default_rng(0)
    tensors = {
        name: (0.05 * rng.standard_normal(shape)).astype(np.float32)
        for name, shape in SHAPES.items()
    }
    path.write_bytes(encode_trunk(TrunkWeights(tensors, "", "")))


def _medians(functions: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Return the median thread CPU time per call of each function, called in turns, s."""
    times: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(rounds):
        for name, function in functions.items():
            start_s = time.thread_time()
            function()
            times[name].append(time.thread_time() - start_s)
    return {name: statistics.median(each) for name, each in times.items()}


def _best(function: Callable[[], object], rounds: int) -> float:
    """Return the minimum time of a call after a warm-up call, s."""
    function()
    times = []
    for _ in range(rounds):
        start_s = time.perf_counter()
        function()
        times.append(time.perf_counter() - start_s)
    return min(times)


if __name__ == "__main__":
    main()
