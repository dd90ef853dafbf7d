"""A classifier behind SERL's frozen ResNet-10."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from serl.agents.classifier import Card, Classifier
from serl.agents.classifier_training import TrainedClassifier, train_classifier
from serl.agents.config import ClassifierConfig
from serl.agents.trunk_weights import default_path, import_trunk, load_trunk
from serl.errors import BadInput, SpecMismatch

from ..support.pickled import pickled_parameters
from .resnet10_reference import stand_in
from .test_classifier import VIEWS, make_samples

CARD = Card(views=VIEWS, latent=8, hidden=16)
QUICK = ClassifierConfig(epochs=8, learning_rate=3e-3, threads=1, encoder="resnet10", copies=1)


@pytest.fixture(scope="module")
def caches(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a cache folder that holds one ResNet-10 and a second, different one."""
    folder = tmp_path_factory.mktemp("caches")
    for seed, name in ((3, "serl"), (4, "other")):
        pickle = folder / f"{name}.pkl"
        pickle.write_bytes(pickled_parameters(stand_in(seed=seed)))
        import_trunk(pickle, folder / name / "resnet10.safetensors")
    return folder


@pytest.fixture(autouse=True)
def _home(caches: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(caches))


@pytest.fixture(scope="module")
def trained(caches: Path) -> TrainedClassifier:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(caches))
        return train_classifier(make_samples(), CARD, QUICK)


def test_classifier_learns_with_frozen_trunk(trained: TrainedClassifier) -> None:
    card = trained.classifier.card
    assert card.accuracy >= 0.95
    assert card.trunk == load_trunk(default_path()).sha256
    assert trained.classifier.trunk is not None
    assert not any(part.requires_grad for part in trained.classifier.trunk.parameters())
    assert trained.classifier.encoder_flat.shape[1] < 512 * 8 * (8 + 16) + 100, "no convolutions"


def test_classifier_file_reloads_with_the_same_trunk(
    trained: TrainedClassifier, tmp_path: Path
) -> None:
    path = tmp_path / "model.safetensors"
    trained.classifier.save(path)
    assert path.stat().st_size < 1 << 20, "without the trunk"
    images = {name: frames[:5] for name, frames in make_samples(seed=7).images.items()}
    reloaded = Classifier.load(path).probabilities(images)
    assert torch.equal(
        torch.from_numpy(reloaded), torch.from_numpy(trained.classifier.probabilities(images))
    )


def test_classifier_without_its_trunk_is_refused(
    trained: TrainedClassifier, tmp_path: Path, caches: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.safetensors"
    trained.classifier.save(path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for use in (
        lambda: Classifier.load(path),
        lambda: train_classifier(make_samples(), CARD, QUICK),
    ):
        with pytest.raises(BadInput, match="needs a ResNet-10: serl encoder import FILE"):
            use()
    (tmp_path / "serl").symlink_to(caches / "other")
    with pytest.raises(SpecMismatch, match=r"trained behind the ResNet-10 \w{12}, .* holds \w{12}"):
        Classifier.load(path)


def test_equal_seeds_give_equal_parameters(trained: TrainedClassifier) -> None:
    again = train_classifier(make_samples(), CARD, QUICK)
    assert torch.equal(again.classifier.head_flat, trained.classifier.head_flat)
