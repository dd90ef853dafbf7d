"""A classifier behind SERL's frozen ResNet-10."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from serl.agents.classifier import Card, Classifier
from serl.agents.classifier_training import TrainedClassifier, train_classifier
from serl.agents.config import ClassifierConfig
from serl.agents.trunk_weights import default_path, load_trunk
from serl.errors import BadInput, SpecMismatch

from .test_classifier import VIEWS, make_samples

CARD = Card(views=VIEWS, latent=8, hidden=16)
QUICK = ClassifierConfig(
    epochs=60,
    batch_size=32,
    learning_rate=3e-3,
    crop_px=0,
    brightness=0.0,
    threads=1,
    encoder="resnet10",
    copies=1,
)
SAMPLES = make_samples(60)


@pytest.fixture(scope="module")
def cache(trunk_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a cache folder that holds a ResNet-10."""
    folder = tmp_path_factory.mktemp("cache")
    (folder / "serl").symlink_to(trunk_file.parent)
    return folder


@pytest.fixture(autouse=True)
def _home(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))


@pytest.fixture(scope="module")
def trained(cache: Path) -> TrainedClassifier:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(cache))
        return train_classifier(SAMPLES, CARD, QUICK)


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
    trained: TrainedClassifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.safetensors"
    other = trained.classifier.card.model_copy(update={"trunk": "0" * 64})
    replace(trained.classifier, card=other).save(path)
    with pytest.raises(SpecMismatch, match=r"trained behind the ResNet-10 0{12}, .* holds \w{12}"):
        Classifier.load(path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for use in (lambda: Classifier.load(path), lambda: train_classifier(SAMPLES, CARD, QUICK)):
        with pytest.raises(BadInput, match="needs a ResNet-10: serl encoder import FILE"):
            use()
