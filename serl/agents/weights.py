"""Conversion of tensors to named arrays and back, whole or not at all."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from serl.agent import State
from serl.errors import CorruptData, SpecMismatch
from serl.system.json_fields import MAX_JSON_BYTES, parse_object, short


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
