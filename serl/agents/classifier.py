"""Image classifier of success, or of the stages of a task; stored in a file, used as a reward."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors import SafetensorError
from torch import Tensor

from serl.agents.config import Width
from serl.agents.encoders import Encoder
from serl.agents.networks import EnsembleMLP
from serl.agents.resnet import CHANNELS, GRID, Trunk
from serl.agents.trunk_weights import default_path, load_trunk
from serl.agents.weights import copy_into, metadata_of, to_arrays
from serl.camera import View
from serl.errors import BadInput, CorruptData, SpecMismatch
from serl.reward import RewardConfig, StageReward, ToolPlace
from serl.system.files import digest_of, read_bounded, write_atomic
from serl.task import Task, ViewName
from serl.types import Image, Observation

logger = logging.getLogger(__name__)

FORMAT = "serl reward classifier 1"
MAX_BYTES = 256 << 20


class Card(BaseModel):
    """Metadata of a classifier; part of its file.

    Attributes:
        task: task it was trained for; empty in files that do not specify it.
        renderers: renderers of its training images; `serl.camera.REAL` for real ones.
        views: input views of the cameras, by name.
        classes: names of the classes; the first is "nothing", the last is the success.
        channels: channels of the convolutions.
        latent: features of each camera.
        trunk: sha256 of the weights of the frozen ResNet-10 in front of it; None without one.
        hidden: width of the hidden layer.
        temperature: divisor of the logits that calibrates the probabilities.
        threshold: probability from which a class is predicted.
        place: tool positions for which the threshold was chosen; None in files that do not specify
            it.
        positives: training samples of all classes but the first.
        negatives: training samples of the first class.
        accuracy: accuracy at that threshold, on held-out episodes.
        seed: seed of its training.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True)

    task: str = Field("", max_length=256)
    renderers: tuple[str, ...] = Field((), max_length=16)
    views: dict[ViewName, View] = Field(min_length=1, max_length=16)
    classes: tuple[str, ...] = Field(("nothing", "success"), min_length=2, max_length=64)
    channels: tuple[Width, ...] = Field((16, 32, 32), min_length=1, max_length=8)
    latent: int = Field(64, ge=1, le=4096)
    trunk: str | None = None
    hidden: int = Field(128, ge=1, le=4096)
    temperature: float = Field(1.0, gt=0)
    threshold: float = Field(0.5, gt=0, lt=1)
    place: ToolPlace | None = None
    positives: int = 0
    negatives: int = 0
    accuracy: float = 0.0
    seed: int = 0


@dataclass(frozen=True)
class Classifier:
    """An image classifier: its card and its parameters.

    Attributes:
        card: see `Card`.
        encoder_flat: flat parameters of the encoder.  # (1, P)
        head_flat: flat parameters of the head.  # (1, P)
        trunk: the ResNet-10 of the card.
    """

    card: Card
    encoder_flat: Tensor
    head_flat: Tensor
    trunk: Trunk | None = None

    @classmethod
    def create(
        cls, card: Card, generator: torch.Generator, trunk: Trunk | None = None
    ) -> Classifier:
        """Create a classifier with random weights."""
        encoder, head = networks(card)
        return cls(card, encoder.init(generator), head.init(generator), trunk)

    def logits(self, images: Mapping[str, Tensor]) -> Tensor:
        """Return the logits of uint8 images by view, (B, H, W, 3).  # (B, classes)."""
        encoder, head = networks(self.card)
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

    def save(self, path: Path) -> None:
        """Write the classifier to a safetensors file; raises `BadInput` when writing fails."""
        metadata = {"format": FORMAT, "card": self.card.model_dump_json()}
        arrays = {name: np.asarray(array) for name, array in to_arrays(self._tensors()).items()}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(path, safetensors.numpy.save(arrays, metadata))
        except OSError as error:
            raise BadInput(f"{path}: {error.strerror}") from error

    @classmethod
    def load(cls, path: Path) -> Classifier:
        """Read a classifier from a file.

        Raises:
            BadInput: the file does not exist, or the ResNet-10 of its training is not available.
            CorruptData: the file is damaged, foreign, or of another version.
        """
        try:
            data = read_bounded(path, MAX_BYTES)
        except OSError as error:
            raise BadInput(f"reward model {path}: {error.strerror}") from error
        try:
            card, arrays = _card(data), safetensors.numpy.load(data)
            check_sizes(networks(card), arrays)
            made = cls.create(card, torch.Generator())
            copy_into(made._tensors(), arrays)
        except (SafetensorError, CorruptData, SpecMismatch, ValueError, KeyError) as error:
            cause = " ".join(str(error).split())[:200]
            raise CorruptData(f"reward model {path}: {cause}") from error
        if card.trunk is None:
            return made
        trunk, found = imported_trunk(f"reward model {path}")
        if found != card.trunk:
            raise SpecMismatch(
                f"reward model {path}: trained behind the ResNet-10 {card.trunk[:12]}, "
                f"{default_path()} holds {found[:12]}"
            )
        return replace(made, trunk=trunk)

    def _tensors(self) -> dict[str, Tensor]:
        encoder, head = networks(self.card)
        return {
            **{f"encoder.{name}": part for name, part in encoder.views(self.encoder_flat).items()},
            **{f"head.{name}": part for name, part in head.views(self.head_flat).items()},
        }


def networks(card: Card) -> tuple[Encoder, EnsembleMLP]:
    """Return the encoder and the head of a classifier, without parameters."""
    cameras = {name: (view.height, view.width) for name, view in card.views.items()}
    grid = (GRID, GRID, CHANNELS) if card.trunk else None
    encoder = Encoder(cameras, 0, card.channels, card.latent, 0, grid)
    return encoder, EnsembleMLP(1, (encoder.size, card.hidden, len(card.classes)), layer_norm=True)


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


def imported_trunk(user: str) -> tuple[Trunk, str]:
    """Return the imported ResNet-10 and the sha256 of its weights; `user` begins an error.

    Raises:
        BadInput: no trunk was imported.
        CorruptData: its file is damaged.
    """
    if not default_path().exists():
        raise BadInput(f"{user}: needs a ResNet-10: serl encoder import FILE ({default_path()})")
    weights = load_trunk(default_path())
    return Trunk(weights.tensors), weights.sha256


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


def _card(data: bytes) -> Card:
    """Parse the card in a safetensors file's bytes."""
    try:
        return Card.model_validate_json(metadata_of(data, FORMAT)["card"])
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ValueError(f"card: {where}: {first['msg']}") from error


def check_sizes(
    parts: tuple[Encoder, EnsembleMLP], arrays: Mapping[str, np.ndarray[Any, Any]]
) -> None:
    """Check that a file holds the parameters of encoder and head, before allocating memory."""
    for part, network in zip(("encoder", "head"), parts, strict=True):
        for name, shape in network.shapes.items():
            found = arrays.get(f"{part}.{name}")
            if found is None or found.shape != (1, *shape):
                what = "nothing" if found is None else list(found.shape)
                raise SpecMismatch(f"{part}.{name}: expected {[1, *shape]}, got {what}")


reward = make_reward
