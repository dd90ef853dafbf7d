"""Reward shaping by progress: the remaining time until success, learned from demonstrations.

A small network regresses the remaining time of successful demonstrations on a policy's observation,
its state and the features of a frozen ResNet-10. With the discount of a run, the progress is
discount ^ (remaining steps): what the reward of the demonstrator's success is worth now.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from serl.agents.classifier_training import Rows, trunk_features
from serl.agents.config import TimeToGoConfig
from serl.agents.encoders import Encoder
from serl.agents.networks import EnsembleMLP, Group, cosine, descend
from serl.agents.resnet import CHANNELS, GRID, Trunk
from serl.agents.weights import ModelCard, StoredModel, imported_trunk
from serl.errors import BadInput, SerlError, SpecMismatch
from serl.reward import RewardConfig
from serl.specs import ArraySpec, Spec
from serl.system.files import digest_of
from serl.types import Array, Image, Observation

LEAST = 5
"""Smallest number of demonstrations: four to learn from, and one to measure the error on."""

_SMALLEST_STD, _LARGEST = 1e-3, 10.0  # of a scaled entry of the state


class TimeCard(ModelCard):
    """Metadata of a time-to-go model; part of its file.

    Attributes:
        state: specs of the state arrays, in their order.
        images: height and width of the images by camera; {} where it sees the state alone.
        longest_s: longest remaining time of the demonstrations, which bounds the prediction.
        demonstrations: number of demonstrations, the held-out ones included.
        held_out: number of demonstrations on which the errors were measured.
        error_s: mean absolute error on these.
        constant_s: mean absolute error of the best constant on these.
    """

    state: dict[str, ArraySpec] = Field(max_length=64)
    images: dict[str, tuple[int, int]] = Field({}, max_length=16)
    longest_s: float = Field(1.0, gt=0)
    demonstrations: int = 0
    held_out: int = 0
    error_s: float = 0.0
    constant_s: float = 0.0


@dataclass(frozen=True)
class TimeToGo(StoredModel[TimeCard]):
    """A time-to-go model: its `TimeCard` and its parameters.

    Attributes:
        mean: mean of the state.  # (D,)
        std: standard deviation of the state.  # (D,)
    """

    mean: Tensor = field(kw_only=True)
    std: Tensor = field(kw_only=True)

    CARD = TimeCard
    FORMAT = "serl time to go 1"
    NAME = "progress model"
    MAX_BYTES = 64 << 20

    @staticmethod
    def networks(card: TimeCard) -> tuple[Encoder, EnsembleMLP]:
        """Return the encoder and the head of a time-to-go model, without parameters."""
        size = sum(int(np.prod(spec.shape)) for spec in card.state.values())
        grid = (GRID, GRID, CHANNELS)
        encoder = Encoder(card.images, size, (), card.latent, card.hidden, grid)
        return encoder, EnsembleMLP(1, (encoder.size, card.hidden, 1), layer_norm=True)

    @classmethod
    def create(cls, card: TimeCard, generator: torch.Generator, trunk: Trunk | None = None) -> Self:
        """Create a model with random weights and an unscaled state."""
        encoder, head = cls.networks(card)
        flats = encoder.init(generator), head.init(generator)
        zeros = torch.zeros(encoder.state_size)
        return cls(card, *flats, trunk, mean=zeros, std=zeros + 1.0)

    def logarithm(self, states: Tensor, seen: Mapping[str, Tensor]) -> Tensor:
        """Return log(1 + remaining seconds) of states, (B, D), and trunk features.  # (B,)."""
        encoder, head = self.networks(self.card)
        scaled = ((states - self.mean) / self.std).clamp(-_LARGEST, _LARGEST)
        return head(self.head_flat, encoder(self.encoder_flat, scaled, seen))[0, :, 0]

    @torch.inference_mode()
    def seconds(self, states: Array, images: Mapping[str, Image]) -> Array:
        """Return the remaining time of states, (N, D), and images by camera, s.  # (N,)."""
        parts = []
        for start in range(0, len(states), 256):
            rows = slice(start, start + 256)
            seen = {}
            if self.trunk is not None:
                seen = {
                    name: self.trunk(torch.from_numpy(images[name][rows]))
                    for name in self.card.images
                }
            parts.append(self.logarithm(torch.from_numpy(states[rows]), seen))
        left: Array = torch.cat(parts).expm1().clamp(0.0, self.card.longest_s).numpy()
        return left

    def tensors(self) -> dict[str, Tensor]:
        """Return the parameters by name, as views."""
        return {**super().tensors(), "mean": self.mean, "std": self.std}


class _Recorded(NamedTuple):
    """Observations of demonstrations, with the time until the success of each."""

    states: Array  # (N, D)
    images: Mapping[str, Image]  # (N, H, W, 3) each
    left_s: Array  # (N,)

    @classmethod
    def of(
        cls, episodes: Sequence[Sequence[Observation]], spec: Spec, cameras: Sequence[str]
    ) -> _Recorded:
        seen = [each for episode in episodes for each in episode]
        left = [range(len(episode) - 1, -1, -1) for episode in episodes]
        return cls(
            np.array([spec.observation.flatten(each) for each in seen], np.float32),
            {name: np.array([each.images[name] for each in seen]) for name in cameras},
            (np.concatenate(left) / spec.rate_hz).astype(np.float32),
        )


def train_time_to_go(
    episodes: Sequence[Sequence[Observation]],
    spec: Spec,
    config: TimeToGoConfig,
    progress: Callable[[int, float], None] = lambda epoch, loss: None,
) -> TimeToGo:
    """Train on most demonstrations; the errors in the card are measured on the others.

    Equal arguments give equal parameters.

    Args:
        episodes: all observations of each successful demonstration, the final one included.
        spec: spec of the observations.
        config: see `TimeToGoConfig`.
        progress: called with number and loss of each epoch.

    Raises:
        BadInput: too few demonstrations, or no images for the encoder.
    """
    if len(episodes) < LEAST:
        raise BadInput(f"{len(episodes)} successful demonstrations: expected at least {LEAST}")
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    cameras, trunk, sha256 = [*spec.observation.images], None, None
    if config.encoder == "none":
        cameras = []
    elif not cameras:
        raise BadInput("encoder: resnet10: these observations have no images (--observe pixels)")
    else:
        trunk, sha256 = imported_trunk("reward progress: encoder resnet10")
    rng = np.random.default_rng(config.seed)
    order = rng.permutation(len(episodes)).tolist()
    count = max(1, round(config.held_out * len(episodes)))
    tested, learned = (
        _Recorded.of([episodes[number] for number in part], spec, cameras)
        for part in (order[:count], order[count:])
    )
    shapes = {name: spec.observation.images[name].shape for name in cameras}
    card = TimeCard(
        task=spec.task,
        state=spec.observation.state,
        images={name: (shape[0], shape[1]) for name, shape in shapes.items()},
        latent=config.latent,
        hidden=config.hidden,
        trunk=sha256,
        longest_s=max(float(learned.left_s.max()), 1.0 / spec.rate_hz),
        demonstrations=len(episodes),
        held_out=count,
        seed=config.seed,
    )
    fresh = TimeToGo.create(card, torch.Generator().manual_seed(config.seed), trunk)
    model = _descend(fresh, learned, config, rng, progress)
    error_s = np.abs(model.seconds(tested.states, tested.images) - tested.left_s).mean()
    constant_s = np.abs(np.median(learned.left_s) - tested.left_s).mean()
    measured = {"error_s": float(error_s), "constant_s": float(constant_s)}
    return replace(model, card=card.model_copy(update=measured))


def _descend(
    fresh: TimeToGo,
    learned: _Recorded,
    config: TimeToGoConfig,
    rng: np.random.Generator,
    progress: Callable[[int, float], None],
) -> TimeToGo:
    """Return the model after training on `learned`."""
    states = torch.from_numpy(learned.states)
    std = states.std(0, correction=0).clamp(min=_SMALLEST_STD)
    model = replace(fresh, mean=states.mean(0), std=std)
    targets, count = torch.from_numpy(learned.left_s).log1p(), len(states)
    _, head = model.networks(model.card)
    head.views(model.head_flat)["1.bias"].fill_(targets.mean())  # begin as the best constant
    groups = [Group(flat, config.learning_rate) for flat in (model.encoder_flat, model.head_flat)]
    look: Callable[[Rows], Mapping[str, Tensor]] | None = None
    if model.trunk is not None:
        look = trunk_features(learned.images, config, config.copies, rng, model.trunk)
    for epoch in range(config.epochs):
        for group in groups:
            group.learning_rate = config.learning_rate * cosine(epoch / config.epochs)
        for rows in np.array_split(rng.permutation(count), -(-count // config.batch_size)):
            left = model.logarithm(states[rows], look(rows) if look else {})
            loss = (left - targets[rows]).square().mean()
            descend(loss, *groups)
        progress(epoch + 1, loss.item())
    encoder_flat, head_flat = (group.flat.detach() for group in groups)
    return replace(model, encoder_flat=encoder_flat, head_flat=head_flat)


class LearnedProgress:
    """The progress of a time-to-go model; see `serl.shaping.Progress`.

    Args:
        spec: spec of a policy's observations.
        discount: discount of the learner's returns.
        digest: hash of the model's file.
    """

    def __init__(self, model: TimeToGo, spec: Spec, discount: float, digest: str) -> None:
        self.provenance = f"model {digest[:12]}"
        self._model, self._spec = model, spec
        self._per_second = discount**spec.rate_hz

    def __call__(self, seen: Observation) -> float:
        """Return what a success after the predicted time is worth now."""
        states = self._spec.observation.flatten(seen)[None]
        images = {name: seen.images[name][None] for name in self._model.card.images}
        (left_s,) = self._model.seconds(states, images).tolist()
        if not np.isfinite(left_s):
            raise SerlError("progress model: not finite")
        return float(self._per_second**left_s)


def make_progress(config: RewardConfig, spec: Spec, discount: float) -> LearnedProgress:
    """Return the progress of the configured model.

    Raises:
        BadInput: the model's file does not exist.
        CorruptData: the file is damaged.
        SpecMismatch: the model is for another task or other observations, or was replaced.
    """
    path = config.progress.model
    assert path is not None  # the caller checked
    model, digest = TimeToGo.load(path), digest_of(path)
    subject = f"progress model {path}"
    if config.progress.sha256 not in (None, digest):
        raise SpecMismatch(
            f"{subject}: is another one than when the run was made; bring that one back, or make "
            "a new run"
        )
    if model.card.task != spec.task and not config.transfer:
        raise SpecMismatch(
            f"{subject}: trained for {model.card.task}, not for {spec.task}; where the same "
            "observations mean the same, allow it by --reward.transfer true"
        )
    if [*model.card.state.items()] != [*spec.observation.state.items()]:
        raise SpecMismatch(
            f"{subject}: trained on the state {_listed(model.card.state)}, here it is "
            f"{_listed(spec.observation.state)}"
        )
    sizes = {name: image.shape[:2] for name, image in spec.observation.images.items()}
    for name, size in model.card.images.items():
        if sizes.get(name) != size:
            here = f"is {sizes[name]}" if name in sizes else f"is not there, only {sorted(sizes)}"
            raise SpecMismatch(f"{subject}: trained on the view {name!r} of {size}, which {here}")
    return LearnedProgress(model, spec, discount, digest)


def _listed(state: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{name} {list(spec.shape)} {spec.unit}".strip() for name, spec in state.items()
    )


reward = make_progress
