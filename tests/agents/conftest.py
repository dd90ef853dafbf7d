"""Fixtures and factories for a small agent and its batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from serl.agents.config import SACConfig
from serl.agents.losses import Tensors
from serl.agents.networks import set_matmul
from serl.agents.sac import SAC
from serl.agents.trunk_weights import import_trunk
from serl.specs import ArraySpec, ObservationSpec, Spec
from serl.types import Batch, Observation

from ..support.pickled import pickled_parameters
from .resnet10_reference import stand_in

STATE, ACTION, ROWS = 6, 3, 8
SPEC = Spec(
    task="test",
    observation=ObservationSpec(
        state={"a": ArraySpec(shape=(STATE - 1,)), "b": ArraySpec(shape=(1,))}
    ),
    action=ArraySpec(shape=(ACTION,), low=-1.0, high=1.0),
    rate_hz=10.0,
)
SMALL = SACConfig(
    hidden=(16, 16),
    critics=4,
    batch_size=ROWS,
    utd=2,
    device="cpu",
    matmul="float32",
    metrics_every=1,
    threads=1,
)


@pytest.fixture(autouse=True, scope="module")
def _exact_before_fixtures() -> None:
    """Set exact matrix products before module fixtures run, whatever an earlier test set."""
    set_matmul("float32", torch.device("cpu"))


@pytest.fixture(autouse=True)
def _precisely() -> None:
    """Set exact matrix products before each test; an earlier agent may have lowered precision."""
    set_matmul("float32", torch.device("cpu"))


@pytest.fixture(scope="session")
def trunk_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return stand-in weights of SERL's trunk, imported from a pickle in SERL's format."""
    folder = tmp_path_factory.mktemp("trunk")
    source = folder / "resnet10_params.pkl"
    source.write_bytes(pickled_parameters(stand_in()))
    import_trunk(source, folder / "resnet10.safetensors")
    return folder / "resnet10.safetensors"


def config(**changes: Any) -> SACConfig:
    return SACConfig(**(SMALL.model_dump() | changes))


def make(seed: int = 0, **changes: Any) -> SAC:
    return SAC.create(SPEC, config(**changes), seed)


def make_batch(seed: int = 0, rows: int = 2 * ROWS) -> Batch:
    rng = np.random.default_rng(seed)

    def normal(*shape: int) -> np.ndarray[Any, np.dtype[np.float32]]:
        return rng.standard_normal(shape).astype(np.float32)

    return Batch(
        state=normal(rows, STATE),
        action=np.tanh(normal(rows, ACTION)),
        reward=normal(rows),
        discount=np.where(rng.random(rows) < 0.3, 0.0, 0.9).astype(np.float32),
        next_state=normal(rows, STATE),
        prior=rng.random(rows) < 0.5,
    )


def make_tensors(agent: SAC) -> Tensors:
    return agent._tensors(make_batch(rows=ROWS))


def observation(seed: int = 0) -> Observation:
    values = np.random.default_rng(seed).standard_normal(STATE).astype(np.float32)
    return Observation(state={"a": values[:-1], "b": values[-1:]})


def equal(left: Any, right: Any) -> bool:
    return left.keys() == right.keys() and all(np.array_equal(left[k], right[k]) for k in left)
