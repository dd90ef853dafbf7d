"""Image classifier of success, or of the stages of a task; stored in a file, used as a reward."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from serl.agents.config import Width
from serl.agents.encoders import Encoder
from serl.agents.networks import EnsembleMLP
from serl.agents.resnet import CHANNELS, GRID
from serl.agents.weights import ModelCard, StoredModel
from serl.camera import View
from serl.errors import SpecMismatch
from serl.reward import RewardConfig, StageReward, ToolPlace
from serl.system.files import digest_of
from serl.task import Task, ViewName
from serl.types import Image, Observation

logger = logging.getLogger(__name__)


class Card(ModelCard):
    """Metadata of a classifier; part of its file.

    Attributes:
        renderers: renderers of its training images; `serl.camera.REAL` for real ones.
        views: input views of the cameras, by name.
        classes: names of the classes; the first is "nothing", the last is the success.
        temperature: divisor of the logits that calibrates the probabilities.
        threshold: probability from which a class is predicted.
        place: tool positions for which the threshold was chosen; None in files that do not specify
            it.
        positives: training samples of all classes but the first.
        negatives: training samples of the first class.
        accuracy: accuracy at that threshold, on held-out episodes.
    """

    renderers: tuple[str, ...] = Field((), max_length=16)
    views: dict[ViewName, View] = Field(min_length=1, max_length=16)
    classes: tuple[str, ...] = Field(("nothing", "success"), min_length=2, max_length=64)
    channels: tuple[Width, ...] = Field((16, 32, 32), min_length=1, max_length=8)
    temperature: float = Field(1.0, gt=0)
    threshold: float = Field(0.5, gt=0, lt=1)
    place: ToolPlace | None = None
    positives: int = 0
    negatives: int = 0
    accuracy: float = 0.0


@dataclass(frozen=True)
class Classifier(StoredModel[Card]):
    """An image classifier: its `Card` and its parameters."""

    CARD = Card
    FORMAT = "serl reward classifier 1"
    NAME = "reward model"
    MAX_BYTES = 256 << 20

    @staticmethod
    def networks(card: Card) -> tuple[Encoder, EnsembleMLP]:
        """Return the encoder and the head of a classifier, without parameters."""
        cameras = {name: (view.height, view.width) for name, view in card.views.items()}
        grid = (GRID, GRID, CHANNELS) if card.trunk else None
        encoder = Encoder(cameras, 0, card.channels, card.latent, 0, grid)
        sizes = encoder.size, card.hidden, len(card.classes)
        return encoder, EnsembleMLP(1, sizes, layer_norm=True)

    def logits(self, images: Mapping[str, Tensor]) -> Tensor:
        """Return the logits of uint8 images by view, (B, H, W, 3).  # (B, classes)."""
        encoder, head = self.networks(self.card)
        if self.trunk is not None:
            images = {name: self.trunk(image) for name, image in images.items()}
        seen = encoder(self.encoder_flat, torch.empty(0), images)
        return head(self.head_flat, seen)[0]

    @torch.inference_mode()
    def probabilities(self, images: Mapping[str, Image]) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Return the class probabilities of images by view, (B, H, W, 3).  # (B, classes)."""
        tensors = {name: torch.from_numpy(images[name]) for name in self.card.views}
        scaled = self.logits(tensors) / self.card.temperature
        shares: np.ndarray[Any, np.dtype[np.float32]] = scaled.softmax(-1).numpy()
        return shares


def check_origin(
    path: Path, card: Card, task: str, renderers: Collection[str], transfer: bool
) -> None:
    """Check a classifier's task; warn if its training images had other renderers.

    Raises:
        SpecMismatch: it was trained for another task, and `transfer` is not set.
    """
    if card.task and task and card.task != task and not transfer:
        raise SpecMismatch(
            f"reward model {path}: trained for {card.task}, not for {task}; where their successes "
            "look alike, allow it by --reward.transfer true"
        )
    other = sorted(set(filter(None, renderers)) - set(card.renderers))
    if card.renderers and other:
        logger.warning(
            "reward model %s: trained on images by %s, here they are by %s: audit it on some first",
            path,
            ", ".join(card.renderers),
            ", ".join(other),
        )


def unproven(card: Card, config: RewardConfig) -> str:
    """Return why the threshold is not validated for these tool positions; empty if it is.

    The threshold and all measurements apply to images with the tool in its place: images with the
    tool elsewhere may be classified as success.
    """
    here = config.place
    if card.place is None:
        return f"does not record the tool's box for which its threshold was chosen; here: {here}"
    if card.place.holds(here):
        return ""
    where = str(here) if here == ToolPlace() else f"where it is {here}"
    return f"its threshold was chosen where the tool is {card.place}, here it is queried {where}"


def check_place(path: Path, card: Card, config: RewardConfig) -> None:
    """Check that the threshold was chosen for these tool positions; else raise `SpecMismatch`.

    If the file does not specify its positions, a warning is logged instead.
    """
    if card.place is None:
        logger.warning("reward model %s: %s: audit it first", path, unproven(card, config))
    elif why := unproven(card, config):
        raise SpecMismatch(
            f"reward model {path}: {why}: query it where it was trained by --reward.tool_low_m and "
            "--reward.tool_high_m, or train one for here (serl reward train ... --tool_low_m)"
        )


def make_reward(config: RewardConfig, task: Task, renderer: str | None = None) -> StageReward:
    """Create the configured reward for a task, with checks of its task, cameras and positions.

    Args:
        config: configuration that names the classifier's file.
        task: the task to reward.
        renderer: renderer of its images, if it differs from the task's.

    Raises:
        BadInput: the model's file does not exist.
        CorruptData: the file is damaged.
        SpecMismatch: the model was trained for another task, on other cameras, or with the tool in
            a narrower place; the message gives the trained and the present values.
    """
    assert config.model is not None  # the configuration was checked
    model = Classifier.load(config.model)
    if config.sha256 is not None and digest_of(config.model) != config.sha256:
        raise SpecMismatch(
            f"reward model {config.model}: is another one than when the run was made; bring that "
            "one back, or make a new run"
        )
    renderers = [renderer or task.config.renderer]
    check_origin(config.model, model.card, task.name, renderers, config.transfer)
    for name, view in model.card.views.items():
        views = task.config.all_views
        found = views.get(name)
        if found != view:
            here = f"is {found}" if found else f"is not there, only {sorted(views)}"
            raise SpecMismatch(
                f"reward model {config.model}: trained on the view {name!r} ({view}), which {here}"
            )
    check_place(config.model, model.card, config)

    def probabilities(reading: Observation) -> np.ndarray[Any, np.dtype[np.float32]]:
        images = {name: reading.images[name][None] for name in model.card.views}
        shares: np.ndarray[Any, np.dtype[np.float32]] = model.probabilities(images)[0]
        return shares

    threshold = config.threshold or model.card.threshold
    return StageReward(probabilities, len(model.card.classes) - 1, config, threshold)


reward = make_reward
