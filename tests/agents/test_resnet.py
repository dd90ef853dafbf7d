"""Comparison of the trunk with SERL's; the expected features were computed with JAX."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import torch

from serl.agents.config import SACConfig
from serl.agents.resnet import Trunk
from serl.agents.sac import SAC
from serl.errors import BadInput, SpecMismatch
from serl.specs import ArraySpec, ObservationSpec, Spec

from .resnet10_reference import FEATURES, SIZES, stand_in_image

EXPECTED = safetensors.numpy.load_file(FEATURES)


@pytest.fixture(scope="module")
def trunk(trunk_file: Path) -> Trunk:
    return Trunk.load(trunk_file)


def stand_in_images(name: str) -> torch.Tensor:
    return torch.from_numpy(stand_in_image(*SIZES[name]))


@pytest.mark.parametrize("name", SIZES)
def test_trunk_features_match_jax(trunk: Trunk, name: str) -> None:
    features = trunk(stand_in_images(name))
    assert features.shape == (1, 4, 4, 512)
    assert features.dtype == torch.float32
    assert np.abs(EXPECTED[name]).max() > 1.0
    np.testing.assert_allclose(features, EXPECTED[name], rtol=0, atol=1e-4)


def test_trunk_features_of_a_large_batch_match_jax(
    trunk: Trunk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Use a batch whose size is not a multiple of the trunk's chunk size."""
    monkeypatch.setattr("serl.agents.resnet._AT_ONCE", 2)
    features = trunk(stand_in_images("as it is").expand(3, -1, -1, -1))
    assert features.shape == (3, 4, 4, 512)
    expected = np.broadcast_to(EXPECTED["as it is"], features.shape)
    np.testing.assert_allclose(features, expected, rtol=0, atol=1e-4)


def test_trunk_returns_no_features_for_no_images(trunk: Trunk) -> None:
    assert trunk(torch.zeros(0, 128, 128, 3, dtype=torch.uint8)).shape == (0, 4, 4, 512)


def test_bfloat16_trunk_features_are_close_to_float32(trunk_file: Path) -> None:
    features = Trunk.load(trunk_file, torch.bfloat16)(stand_in_images("as it is"))
    assert features.dtype == torch.float32
    error = features.numpy() - EXPECTED["as it is"]
    assert 0 < np.sqrt(np.square(error).mean()) < 0.02


def test_trunk_has_serl_parameter_count_and_is_frozen(trunk: Trunk) -> None:
    assert sum(each.numel() for each in trunk.parameters()) == 4_905_792
    assert not any(each.requires_grad for each in trunk.parameters())
    assert not trunk(stand_in_images("as it is")).requires_grad


def test_images_of_a_batch_do_not_mix(trunk: Trunk) -> None:
    first, second = (stand_in_images("as it is"), stand_in_images("as it is").flip(1))
    together = trunk(torch.cat([first, second]))
    torch.testing.assert_close(together, torch.cat([trunk(first), trunk(second)]))
    assert not torch.allclose(together[0], together[1], atol=0.1)


def test_loading_draws_no_random_numbers(trunk_file: Path) -> None:
    before = torch.get_rng_state()
    Trunk.load(trunk_file)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("images", "found"),
    [
        (torch.zeros(1, 128, 128, 3), r"float32\[1, 128, 128, 3\]"),
        (torch.zeros(1, 3, 128, 128, dtype=torch.uint8), r"uint8\[1, 3, 128, 128\]"),
        (torch.zeros(128, 128, 3, dtype=torch.uint8), r"uint8\[128, 128, 3\]"),
    ],
)
def test_trunk_refuses_images_of_wrong_shape_or_dtype(
    trunk: Trunk, images: torch.Tensor, found: str
) -> None:
    with pytest.raises(SpecMismatch, match=r"expected uint8\[B, H, W, 3\], found " + found):
        trunk(images)


def test_missing_trunk_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="cannot be read: No such file"):
        Trunk.load(tmp_path / "resnet10.safetensors")


@pytest.mark.parametrize("matmul", ["float32", "bfloat16"])
def test_agent_trunk_uses_configured_precision(trunk_file: Path, matmul: str) -> None:
    image = ArraySpec(shape=(128, 128, 3), dtype="uint8")
    observation = ObservationSpec(state={"q": ArraySpec(shape=(3,))}, images={"front": image})
    action = ArraySpec(shape=(2,), low=-1.0, high=1.0)
    spec = Spec(task="t", observation=observation, action=action, rate_hz=10.0)
    agent = SAC.create(spec, SACConfig(encoder="resnet10", trunk=trunk_file, matmul=matmul), 0)
    assert agent.trunk is not None
    assert agent.trunk.stem.weight.dtype is getattr(torch, matmul)
