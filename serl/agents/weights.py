"""Conversion of tensors to named arrays and back, whole or not at all, and files of such arrays."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Generic, Self, TypeVar, cast

import numpy as np
import safetensors.numpy
import torch
from pydantic import Field, ValidationError
from safetensors import SafetensorError
from torch import Tensor

from serl.agent import State
from serl.agents.config import Width
from serl.agents.encoders import Encoder
from serl.agents.networks import EnsembleMLP, named_views
from serl.agents.resnet import Trunk
from serl.agents.trunk_weights import default_path, load_trunk
from serl.errors import BadInput, CorruptData, SpecMismatch
from serl.system.files import read_bounded, write_atomic
from serl.system.json_fields import MAX_JSON_BYTES, parse_object, short
from serl.types import FrozenModel


class ModelCard(FrozenModel):
    """Metadata of a model; part of its file.

    Attributes:
        task: task it was trained for; empty in files that do not specify it.
        latent: features of each camera.
        hidden: width of the hidden layer, and of the layer of the state, if any.
        trunk: sha256 of the weights of the frozen ResNet-10 in front of it; None without one.
        seed: seed of its training.
    """

    task: str = Field("", max_length=256)
    latent: Width = 64
    hidden: Width = 128
    trunk: str | None = None
    seed: int = 0


CardT = TypeVar("CardT", bound=ModelCard)


@dataclass(frozen=True)
class StoredModel(ABC, Generic[CardT]):
    """A model with a file of its own: a card, and the parameters of an encoder and a head.

    Attributes:
        card: see `ModelCard`.
        encoder_flat: flat parameters of the encoder.  # (1, P)
        head_flat: flat parameters of the head.  # (1, P)
        trunk: the ResNet-10 of the card.
    """

    card: CardT
    encoder_flat: Tensor
    head_flat: Tensor
    trunk: Trunk | None = None

    CARD: ClassVar[type[ModelCard]]
    FORMAT: ClassVar[str]
    NAME: ClassVar[str]
    MAX_BYTES: ClassVar[int]

    @staticmethod
    @abstractmethod
    def networks(card: CardT) -> tuple[Encoder, EnsembleMLP]:
        """Return the encoder and the head of such a card, without parameters."""

    @classmethod
    def create(cls, card: CardT, generator: torch.Generator, trunk: Trunk | None = None) -> Self:
        """Create a model with random weights."""
        encoder, head = cls.networks(card)
        return cls(card, encoder.init(generator), head.init(generator), trunk)

    def save(self, path: Path) -> None:
        """Write the model to a safetensors file; raises `BadInput` when writing fails."""
        metadata = {"format": self.FORMAT, "card": self.card.model_dump_json()}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(path, safetensors.numpy.save(dict(to_arrays(self.tensors())), metadata))
        except OSError as error:
            raise BadInput(f"{path}: {error.strerror}") from error

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a model from a file.

        Raises:
            BadInput: the file does not exist, or the ResNet-10 of its training is not available.
            CorruptData: the file is damaged, foreign, or of another version.
            SpecMismatch: another ResNet-10 than that of its training was imported.
        """
        subject = f"{cls.NAME} {path}"
        try:
            data = read_bounded(path, cls.MAX_BYTES)
        except OSError as error:
            raise BadInput(f"{subject}: {error.strerror}") from error
        try:
            made = cls._parse(data)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise CorruptData(f"{subject}: card: {where}: {first['msg']}") from error
        except (SafetensorError, CorruptData, SpecMismatch, ValueError, KeyError) as error:
            raise CorruptData(f"{subject}: {' '.join(str(error).split())[:200]}") from error
        if made.card.trunk is None:
            return made
        trunk, found = imported_trunk(subject)
        if found != made.card.trunk:
            raise SpecMismatch(
                f"{subject}: trained behind the ResNet-10 {made.card.trunk[:12]}, "
                f"{default_path()} holds {found[:12]}"
            )
        return replace(made, trunk=trunk)

    @classmethod
    def _parse(cls, data: bytes) -> Self:
        text = metadata_of(data, cls.FORMAT)["card"]
        card = cast(CardT, cls.CARD.model_validate_json(text))
        arrays = safetensors.numpy.load(data)
        for part, network in zip(("encoder", "head"), cls.networks(card), strict=True):
            for name, shape in network.shapes.items():  # before allocating memory
                found = arrays.get(f"{part}.{name}")
                if found is None or found.shape != (1, *shape):
                    got = "nothing" if found is None else list(found.shape)
                    raise SpecMismatch(f"{part}.{name}: expected {[1, *shape]}, got {got}")
        made = cls.create(card, torch.Generator())
        copy_into(made.tensors(), arrays)
        return made

    def tensors(self) -> dict[str, Tensor]:
        """Return the parameters by name, as views."""
        encoder, head = self.networks(self.card)
        return {
            **named_views("encoder", encoder, self.encoder_flat),
            **named_views("head", head, self.head_flat),
        }


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


def to_arrays(tensors: Mapping[str, Tensor]) -> State:
    """Return copies of tensors as arrays on the host."""
    return {name: np.array(tensor.numpy(force=True)) for name, tensor in tensors.items()}


def metadata_of(data: bytes, format_name: str) -> dict[str, str]:
    """Return the metadata of a safetensors file's bytes in the given format.

    Raises:
        CorruptData: the data are damaged, or of another format.
    """
    length = int.from_bytes(data[:8], "little")
    if not 2 <= length <= min(len(data) - 8, MAX_JSON_BYTES):
        raise CorruptData("not a safetensors file")
    metadata = parse_object(data[8 : 8 + length], "header").get("__metadata__")
    if not isinstance(metadata, dict) or metadata.get("format") != format_name:
        found = short(metadata.get("format") if isinstance(metadata, dict) else metadata)
        raise CorruptData(f"expected format {format_name!r}, found {found}")
    return {name: text for name, text in metadata.items() if isinstance(text, str)}


def copy_into(tensors: Mapping[str, Tensor], state: State) -> None:
    """Copy arrays into the tensors of the same names, after all of them have been checked.

    Names that end in "std" must hold positive values, and those that start with "generator" the
    state of a CPU generator.

    Raises:
        SpecMismatch: a name, shape or type differs or a value is not allowed; nothing was copied.
    """
    if tensors.keys() != state.keys():
        missing, unknown = tensors.keys() - state.keys(), state.keys() - tensors.keys()
        raise SpecMismatch(f"weights: missing {sorted(missing)}, unknown {sorted(unknown)}")
    fresh = {name: _check_array(name, tensor, state) for name, tensor in tensors.items()}
    for name, tensor in tensors.items():
        tensor.copy_(fresh[name])


def _check_array(name: str, tensor: Tensor, state: State) -> Tensor:
    array, dtype = state[name], str(tensor.dtype).removeprefix("torch.")
    if array.shape != tensor.shape or array.dtype != dtype:
        raise SpecMismatch(
            f"{name}: expected {dtype}{list(tensor.shape)}, got {array.dtype}{list(array.shape)}"
        )
    if not np.isfinite(array).all():
        raise SpecMismatch(f"{name}: not finite")
    if name.endswith("std") and not (array > 0).all():
        raise SpecMismatch(f"{name}: not positive")
    fresh = torch.from_numpy(np.array(array))
    if name.startswith("generator"):
        try:
            torch.Generator().set_state(fresh)
        except RuntimeError:
            raise SpecMismatch(f"{name}: not the state of a generator") from None
    return fresh
