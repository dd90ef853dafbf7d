"""Transfer of batches to the agent's device; tests that need CUDA are skipped without it."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
import torch

from serl.agents.bc import BC
from serl.agents.config import FeedbackConfig, SACConfig, VICEConfig
from serl.agents.feedback import FeedbackReward
from serl.agents.hybrid import HybridSAC
from serl.agents.networks import choose_device, to_device
from serl.agents.sac import SAC
from serl.agents.vice import VICE
from serl.runs.config import resolve
from serl.specs import ArraySpec, ObservationSpec, Spec
from serl.testing import random_batch, random_observation
from serl.training.replay import Prefetch, Replay
from serl.training.successes import Successes
from serl.types import ActionSource, Batch

from ..runs.test_assembly import CONFIG, Training
from ..support.plans import GAMMA, fill, plan
from ..support.plans import SPEC as LOGGED
from .conftest import config

NEEDS_CUDA = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="no CUDA here: transfers to a GPU are NOT tested"
)
GPU = pytest.param("cuda", marks=[pytest.mark.gpu, NEEDS_CUDA])
DEVICES = pytest.mark.parametrize("device", ["cpu", GPU])

IMAGE = ArraySpec(shape=(16, 16, 3), dtype="uint8")
SPEC = Spec(
    task="test",
    observation=ObservationSpec(
        state={"a": ArraySpec(shape=(3,)), "gripper": ArraySpec(shape=(1,))},
        images={"front": IMAGE, "wrist": IMAGE},
    ),
    action=ArraySpec(shape=(3,), low=-1.0, high=1.0, unit="x y gripper"),
    rate_hz=10.0,
)
Metrics = list[dict[str, float]]
AGENTS: dict[str, type[SAC]] = {"sac": SAC, "hybrid": HybridSAC, "bc": BC}


def settings(device: str, **changes: Any) -> SACConfig:
    return config(encoder_channels=(4, 8), device=device, utd=1, batch_size=32, **changes)


def batch(seed: int = 0) -> Batch:
    return random_batch(SPEC, 32, np.random.default_rng(seed))


def spoil(used: Batch) -> None:
    """Overwrite a used batch, as the next batch may reuse its memory."""
    for field in fields(used):
        value = getattr(used, field.name)
        for array in value.values() if isinstance(value, dict) else [value]:
            if array is not None:
                array[...] = 1


def close(one: Metrics, other: Metrics) -> bool:
    """Compare metrics within rounding differences of a GPU; a wrong batch differs far more."""
    return all(
        mine.keys() == theirs.keys()
        and np.allclose([*mine.values()], [*theirs.values()], 0.02, 1e-3)
        for mine, theirs in zip(one, other, strict=True)
    )


def test_cpu_tensor_shares_memory_with_array() -> None:
    array = np.arange(6, dtype=np.uint8)
    assert np.shares_memory(to_device(array, torch.device("cpu")).numpy(), array)


@DEVICES
def test_arrays_reach_device_unchanged(device: str) -> None:
    rng = np.random.default_rng(0)
    for array in (
        rng.integers(0, 255, (5, 8, 8, 6), np.uint8),
        rng.integers(0, 255, (5, 8, 8, 6), np.uint8)[..., -3:],
        rng.standard_normal((4, 3)).astype(np.float16),
        np.zeros((0, 3), np.float32),
    ):
        there = to_device(array, choose_device(device))
        assert there.device.type == device
        assert np.array_equal(there.cpu().numpy(), array)


@pytest.mark.gpu
@NEEDS_CUDA
def test_pinned_buffers_are_not_overwritten_before_gpu_copies_them() -> None:
    """Keep the GPU busy so that every copy waits while the host overwrites its arrays."""
    there, array = [], np.empty((8, 128, 128, 3), np.uint8)
    busy = torch.rand(4096, 4096, device="cuda")
    for _ in range(30):
        busy = busy @ busy
    for value in range(100):
        array[...] = value
        there.append(to_device(array, torch.device("cuda")))
    array[...] = 255
    assert [int(each.max()) for each in there] == list(range(100))
    assert [int(each.min()) for each in there] == list(range(100))


@pytest.mark.gpu
@NEEDS_CUDA
def test_every_batch_array_uses_pinned_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    agent, plain, copied = SAC.create(SPEC, settings("cuda"), 0), torch.Tensor.to, []

    def to(tensor: torch.Tensor, *args: Any, **options: Any) -> torch.Tensor:
        there = plain(tensor, *args, **options)
        if there.is_cuda and not tensor.is_cuda:
            copied.append((tensor.is_pinned(), bool(options.get("non_blocking"))))
        return there

    monkeypatch.setattr(torch.Tensor, "to", to)
    agent._tensors(batch())
    assert copied == [(True, True)] * 10, "six arrays, and each camera's images before and after"


@DEVICES
@pytest.mark.parametrize("algorithm", list(AGENTS))
def test_device_updates_match_cpu_updates(algorithm: str, device: str) -> None:
    made = [
        AGENTS[algorithm].create(SPEC, settings(each, algorithm=algorithm), 0)
        for each in ("cpu", device)
    ]
    metric_rows: list[Metrics] = [[], []]
    for seed in range(6):
        for agent, rows in zip(made, metric_rows, strict=True):
            rows.append(agent.update(used := batch(seed)))
            spoil(used)
    assert close(*metric_rows)
    assert made[1].skipped == 0
    actor = AGENTS[algorithm].create(SPEC, settings("cpu", algorithm=algorithm), 5)
    actor.load_state_dict(made[1].state_dict())
    seen = random_observation(SPEC.observation, np.random.default_rng(1))
    there, here = (agent.act(seen, explore=False) for agent in (made[1], actor))
    assert np.allclose(there, here, atol=1e-3)


@DEVICES
def test_learned_rewards_on_device_match_cpu(device: str) -> None:
    rng = np.random.default_rng(9)
    pictures = {n: rng.integers(0, 255, (9, *IMAGE.shape), np.uint8) for n in ("front", "wrist")}
    metric_rows: list[Metrics] = []
    for each in ("cpu", device):
        agent = SAC.create(SPEC, settings(each), 0)
        successes = Successes(rng.random((9, 4), np.float32), pictures)
        quick = VICEConfig(binary=False, batch_size=8, channels=(4, 8), latent=8, hidden=8)
        vice = VICE(agent, quick, successes, 0)
        metric_rows.append([vice.update(batch(seed)) for seed in range(4)])
    assert close(*metric_rows)
    metric_rows.clear()
    given = np.tile(np.array([[0.0, 0.0], [0.1, 0.1], [0.2, -0.2], [0.3, 0.1]], np.float32), (8, 1))
    for each in ("cpu", device):
        judged = FeedbackConfig(weight=1.0, channels=(4, 8), latent=8, hidden=8)
        reward = FeedbackReward(SAC.create(SPEC, settings(each), 0), judged, 0)
        metric_rows.append([reward.update(replace(batch(n), feedback=given)) for n in range(4)])
    assert close(*metric_rows)


@DEVICES
def test_prefetched_batches_give_the_same_updates_on_device(device: str) -> None:
    """Check that prefetching, as a GPU learner does, learns the same as sequential sampling."""
    seeing = config(encoder_channels=(4, 8), device=device, utd=1, batch_size=16)
    agents = [SAC.create(LOGGED, seeing, 0) for _ in range(2)]
    replays = [
        fill(Replay(LOGGED, 60, GAMMA, crop_px=1), plan(*[ActionSource.POLICY] * 40))
        for _ in range(2)
    ]
    ahead = Prefetch(replays[0], 16, 0.5)
    metric_rows: list[Metrics] = [[], []]
    for _ in range(6):
        taken = ahead.take()
        ahead.begin()
        metric_rows[0].append(agents[0].update(taken))
        spoil(taken)
        metric_rows[1].append(agents[1].update(replays[1].sample(16, 0.5)))
    assert metric_rows[0] == metric_rows[1] if device == "cpu" else close(*metric_rows)


@DEVICES
def test_pixel_training_runs_on_device(device: str) -> None:
    small = {"width": 16, "height": 16}
    seen = {"observe": "pixels", "task_config": {"views": {"front": {"camera": "front", **small}}}}
    agent = {"device": device, "encoder_channels": [4, 8], "hidden": [16], "batch_size": 8}
    run = Training(resolve(CONFIG.model_dump(), seen, {"agent": agent})).run(20)
    assert run.learner.progress.steps == 20
    assert run.learner._config.prefetch is (device == "cuda"), "prefetch is on with a GPU"
    assert run.actor.policy.version > 1
    assert all(np.isfinite(array).all() for array in run.learner.agent.actor_weights().values())
