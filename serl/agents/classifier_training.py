"""Training of image classifiers: episodes are split for training, calibration and testing."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from serl.agents.classifier import Card, Classifier
from serl.agents.config import ClassifierConfig, SupervisedConfig
from serl.agents.networks import Group, cosine, descend
from serl.agents.resnet import Trunk
from serl.agents.weights import imported_trunk
from serl.errors import BadInput
from serl.log.annotations import Samples
from serl.reward import ToolPlace, may_be_there
from serl.training.frames import random_brightness, random_shift
from serl.types import Image

Rows = np.ndarray[Any, np.dtype[np.int64]]

logger = logging.getLogger(__name__)

_SUREST = 1.0 - 1e-6
_LEAST = 5
"""Smallest number of samples of each class in each part; fewer give no reliable result."""


class TrainedClassifier(NamedTuple):
    """A trained classifier, and its predictions on samples unused in training and calibration."""

    classifier: Classifier
    held_out: Samples
    probabilities: np.ndarray[Any, np.dtype[np.float32]]  # (N, classes)


def train_classifier(
    samples: Samples,
    card: Card,
    config: ClassifierConfig,
    progress: Callable[[int, float], None] = lambda epoch, loss: None,
) -> TrainedClassifier:
    """Train on most episodes, choose temperature and threshold on others, measure on the rest.

    The measured accuracy is on episodes used for neither, so it holds for new episodes. Equal
    arguments give equal parameters. Classes are weighted equally, whatever their sample counts.

    Raises:
        BadInput: too few samples of a class, or too few episodes.
    """
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    shares = (config.calibration, config.held_out)
    training, calibration, held_out = parts = split_by_episode(samples, shares, config.seed)
    _check_sides(samples, card)
    for part in parts:
        _check(part, card)
    trained = _fit(training, card, config, progress)
    temperature = _temperature(_logits(trained, calibration), calibration.labels)
    sureness = _probabilities(trained, calibration, temperature, config)
    threshold = _threshold(sureness, calibration.labels, config.false_positives)
    probabilities = _probabilities(trained, held_out, temperature, config)
    predicted = np.where(probabilities.max(1) >= threshold, probabilities.argmax(1), 0)
    settled = trained.card.model_copy(
        update={
            "temperature": temperature,
            "threshold": threshold,
            "place": ToolPlace(tool_low_m=config.tool_low_m, tool_high_m=config.tool_high_m),
            "positives": int((training.labels > 0).sum()),
            "negatives": int((training.labels == 0).sum()),
            "accuracy": float((predicted == held_out.labels).mean()),
            "seed": config.seed,
        }
    )
    return TrainedClassifier(replace(trained, card=settled), held_out, probabilities)


def _fit(
    training: Samples,
    card: Card,
    config: ClassifierConfig,
    progress: Callable[[int, float], None],
) -> Classifier:
    """Train a fresh classifier; its temperature and threshold are the defaults."""
    generator = torch.Generator().manual_seed(config.seed)
    trunk = None
    if config.encoder == "resnet10":
        trunk, sha256 = imported_trunk("reward train: encoder resnet10")
        card = card.model_copy(update={"trunk": sha256})
    fresh = Classifier.create(card, generator, trunk)
    groups = [Group(flat, config.learning_rate) for flat in (fresh.encoder_flat, fresh.head_flat)]
    rng = np.random.default_rng(config.seed)
    augment: Callable[[Rows], dict[str, Tensor]] = partial(augmented, training.images, config, rng)
    if trunk:
        augment = trunk_features(training.images, config, config.copies, rng, trunk)
    for epoch in range(config.epochs):
        for group in groups:
            group.learning_rate = config.learning_rate * cosine(epoch / config.epochs)
        for rows in _batches(training, config, rng):
            labels = torch.from_numpy(training.labels[rows])
            loss = _loss(card, groups, augment(rows), labels, config, generator)
            descend(loss, *groups)
        progress(epoch + 1, loss.item())
    encoder_flat, head_flat = (group.flat.detach() for group in groups)
    return Classifier(card, encoder_flat, head_flat, trunk)


def split_by_episode(samples: Samples, shares: Sequence[float], seed: int) -> tuple[Samples, ...]:
    """Split samples into a part for training and one for each share; no episode is in two parts."""
    episodes = np.unique(samples.episodes)
    np.random.default_rng(seed).shuffle(episodes)
    counts = [max(1, round(share * len(episodes))) for share in shares]
    *kept_back, rest = np.split(episodes, np.cumsum(counts))
    return tuple(samples.where(np.isin(samples.episodes, part)) for part in (rest, *kept_back))


def _check_sides(samples: Samples, card: Card) -> None:
    """Raise `BadInput` if a class has no sample at all."""
    counts = np.bincount(samples.labels, minlength=len(card.classes)).tolist()
    if 0 in counts:
        lacking = counts.index(0)
        named = zip(counts, card.classes, strict=True)
        there = ", ".join(f"{count} of {name!r}" for count, name in named if count)
        raise BadInput(
            f"labels: none of {card.classes[lacking]!r}, only {there}: mark steps that show it "
            f"(serl reward label FOLDER --episode N --steps FIRST:LAST --label {lacking}), or "
            "collect some"
        )


def _check(samples: Samples, card: Card) -> None:
    for label, name in enumerate(card.classes):
        count = int((samples.labels == label).sum())
        if count < _LEAST:
            raise BadInput(
                f"labels: {count} of {name!r} in one of three parts, expected at least {_LEAST}: "
                "no episode is in two of them, so collect more of it, in more episodes"
            )


def _batches(
    samples: Samples, config: ClassifierConfig, rng: np.random.Generator
) -> Iterator[Rows]:
    """Yield the rows of one epoch's batches, in which all classes are equally frequent."""
    kinds = [np.flatnonzero(samples.labels == label) for label in np.unique(samples.labels)]
    each = max(1, config.batch_size // len(kinds))
    for _ in range(math.ceil(len(samples.labels) / config.batch_size)):
        yield np.concatenate([rng.choice(kind, each) for kind in kinds])


def augmented(
    images: Mapping[str, Image], config: SupervisedConfig, rng: np.random.Generator, rows: Rows
) -> dict[str, Tensor]:
    """Return copies of images, each with its own random shift and brightness."""
    return {
        name: torch.from_numpy(
            random_brightness(
                random_shift(frames, rows, config.crop_px, rng), config.brightness, rng
            )
        )
        for name, frames in images.items()
    }


def trunk_features(
    images: Mapping[str, Image],
    config: SupervisedConfig,
    copies: int,
    rng: np.random.Generator,
    trunk: Trunk,
) -> Callable[[Rows], dict[str, Tensor]]:
    """Precompute trunk features of some augmented copies of each image; return their sampler."""
    count = len(next(iter(images.values())))
    features: dict[str, list[Tensor]] = {name: [] for name in images}
    for start in range(0, copies * count, 64):
        rows = np.arange(start, min(start + 64, copies * count)) % count
        for name, seen in augmented(images, config, rng, rows).items():
            features[name].append(trunk(seen).half())
    kept = {name: torch.cat(parts) for name, parts in features.items()}

    def augment(rows: Rows) -> dict[str, Tensor]:
        picked = torch.from_numpy(rows + count * rng.integers(copies, size=len(rows)))
        return {name: seen[picked].float() for name, seen in kept.items()}

    return augment


def _loss(
    card: Card,
    groups: Sequence[Group],
    images: dict[str, Tensor],
    labels: Tensor,
    config: ClassifierConfig,
    generator: torch.Generator,
) -> Tensor:
    encoder, head = Classifier.networks(card)
    seen = encoder(groups[0].flat, torch.empty(0), images)
    kept = torch.rand(seen.shape, generator=generator) >= config.dropout
    logits = head(groups[1].flat, seen * kept / (1.0 - config.dropout))[0]
    return functional.cross_entropy(logits, labels, label_smoothing=config.smoothing)


@torch.inference_mode()
def _logits(classifier: Classifier, samples: Samples) -> np.ndarray[Any, np.dtype[np.float32]]:
    parts = []
    for start in range(0, len(samples.labels), 256):
        rows = slice(start, start + 256)
        images = {name: torch.from_numpy(frames[rows]) for name, frames in samples.images.items()}
        parts.append(classifier.logits(images).numpy())
    return np.concatenate(parts)


def _probabilities(
    classifier: Classifier, samples: Samples, temperature: float, config: ClassifierConfig
) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return the reward's probabilities: class 0 if the tool is out of place.  # (N, classes)."""
    scaled = torch.from_numpy(_logits(classifier, samples)) / temperature
    shares: np.ndarray[Any, np.dtype[np.float32]] = scaled.softmax(-1).numpy()
    there = may_be_there(samples.tools_m, config.tool_low_m, config.tool_high_m)
    shares[~there] = np.eye(shares.shape[1])[0]
    return shares


def _temperature(logits: np.ndarray[Any, Any], labels: np.ndarray[Any, Any]) -> float:
    """Return the temperature that maximises the likelihood of the labels (Guo et al. 2017, 4.2)."""
    candidates = np.geomspace(0.2, 10.0, 80)
    truth = torch.from_numpy(labels)
    scaled = [torch.from_numpy(logits) / float(value) for value in candidates]
    losses = [functional.cross_entropy(each, truth).item() for each in scaled]
    return float(candidates[int(np.argmin(losses))])


def _threshold(
    probabilities: np.ndarray[Any, Any], labels: np.ndarray[Any, Any], false_positives: float
) -> float:
    """Choose the threshold, at least 0.5, that limits the share of overestimated samples.

    Overestimated is a sample of nothing classified as a stage, or one of a stage classified as a
    later stage or the success: it would earn an undue reward. The share is taken over each label's
    samples, so that a rare stage counts as the others do. If no threshold satisfies the limit, a
    warning is logged.
    """
    predicted, sureness, highest = probabilities.argmax(1), probabilities.max(1), 0.0
    for label in range(probabilities.shape[1] - 1):
        mistaken = np.sort((sureness * (predicted > label))[labels == label])
        allowed = int(false_positives * len(mistaken))
        highest = max(highest, float(mistaken[len(mistaken) - 1 - allowed]))
        if (passing := int((mistaken >= _SUREST).sum())) > allowed:
            logger.warning(
                "reward train: %d of %d samples of label %d in calibration are taken for more with "
                "a probability of %.6f and above: no threshold holds false_positives %g; look for "
                "wrong labels (serl reward audit), or collect more that look like them",
                *(passing, len(mistaken), label, _SUREST, false_positives),
            )
    return min(_SUREST, 0.5 * (1.0 + highest)) if highest > 0.5 else 0.5
