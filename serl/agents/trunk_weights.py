"""Weights of SERL's frozen image trunk, a ResNet-10: import of SERL's file, and our file format.

SERL's is a pickled tree of Flax parameters, with kernels (H, W, I, O). Ours is a safetensors file
with kernels (O, I, H, W), and metadata with their source and their sha256.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Iterator, Mapping, Set
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import safetensors.numpy
from safetensors import SafetensorError, safe_open

from serl.agent import AgentConfig
from serl.errors import BadInput, CorruptData, SerlError, SpecMismatch
from serl.system.files import digest_of, make_folder, open_regular, read_bounded, write_atomic
from serl.system.json_fields import check_fields, short
from serl.system.pickles import decode_pickle

logger = logging.getLogger(__name__)

FORMAT = "serl resnet10 1"
WIDTHS = (64, 128, 256, 512)
"""Channels of the four blocks; all but the first halve the image."""
RELEASED_SHA256 = "175745d43d30233eb01b5369465d1c24c11b8ee71ccb734cc1c1bca13e07f57b"
"""The sha256 of `resnet10_params.pkl` in SERL's release "resnet10"."""

_MAX_BYTES = 64 << 20
_MAX_LEAVES = 1000
_WRAPPERS = ("params", "pretrained_encoder")
_CLASSIFIER = "output_head"  # the 1000 classes of ImageNet; SERL leaves it out as well
_FIELDS = dict.fromkeys(("format", "source", "sha256"), str)

Shape = tuple[int, ...]
Arrays = Mapping[str, np.ndarray[Any, Any]]


class TrunkWeights(NamedTuple):
    """Weights of the trunk, complete and finite.

    Attributes:
        tensors: float32 arrays by the names of `SHAPES`.
        source: sha256 of the file that was imported.
        sha256: sha256 of the names, shapes and values.
    """

    tensors: Arrays
    source: str
    sha256: str

    def summary(self) -> str:
        """Return a description of the weights in a few lines."""
        released = "as SERL released it" if self.source == RELEASED_SHA256 else "not SERL's release"
        return (
            f"parameters: {sum(array.size for array in self.tensors.values()):,}\n"
            f"sha256: {self.sha256}\n"
            f"source: {released}, sha256 {self.source}"
        )


def default_path() -> Path:
    """Return this user's trunk file: `serl/resnet10.safetensors` in the cache directory."""
    caches = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not caches.is_absolute():  # as the XDG specification requires
        caches = Path.home() / ".cache"
    return caches / "serl" / "resnet10.safetensors"


def import_trunk(source: Path, out: Path) -> TrunkWeights:
    """Convert SERL's file to our format, and write it unless it exists already.

    Args:
        source: `resnet10_params.pkl`; a tree wrapped in "params" is accepted, too.
        out: the safetensors file; its directory is created if missing.

    Raises:
        BadInput: `source` is not the trunk, or `out` holds other data; nothing was written.
        SerlError: writing failed.
    """
    weights = read_serl_trunk(source)
    if out.exists():
        if load_trunk(out).sha256 != weights.sha256:
            raise BadInput(f"{out}: holds another trunk; remove it, or give another --out")
        return weights
    try:
        make_folder(out.parent)
        write_atomic(out, encode_trunk(weights))
    except OSError as error:
        raise SerlError(f"{out}: cannot be written: {error.strerror}") from error
    return weights


def trunk_file(config: AgentConfig) -> Path | None:
    """Return the file of an agent's trunk weights; None for the small encoder.

    Falls back to the small encoder, with a warning, if no file is configured and none was imported.

    Raises:
        BadInput: the configured file does not exist.
    """
    if config.encoder != "resnet10":
        return None
    path = config.trunk or default_path()
    if path.exists():
        return path
    if config.trunk is not None:
        raise BadInput(
            f"agent.trunk {path}: no such file; expected weights of a ResNet-10 "
            "(serl encoder import FILE)"
        )
    logger.warning("%s: no weights of a ResNet-10 (serl encoder import FILE); small encoder", path)
    return None


def with_trunk(config: AgentConfig) -> AgentConfig:
    """Return a configuration with the trunk's absolute path and sha256 resolved.

    Raises:
        BadInput: as `trunk_file`, or a trunk is configured for the small encoder.
    """
    if config.encoder != "resnet10":
        if config.trunk is not None:
            raise BadInput("agent.trunk: the small encoder has none (--agent.encoder resnet10)")
        return config
    path = trunk_file(config)
    if path is None:
        return config.model_copy(update={"encoder": "small"})
    path = path.resolve()
    return config.model_copy(update={"trunk": path, "trunk_sha256": digest_of(path)})


def digest_of_trunk(config: AgentConfig) -> str:
    """Return the sha256 of the file of an agent's trunk; empty without one.

    Raises:
        BadInput: the file cannot be read.
    """
    if config.encoder != "resnet10":
        return ""
    path = config.trunk or default_path()
    return config.trunk_sha256 or (digest_of(path) if path.exists() else "")


def read_serl_trunk(path: Path) -> TrunkWeights:
    """Read the weights in SERL's pickled file without executing any of its code.

    Raises:
        BadInput: the file cannot be read.
        CorruptData: the file is damaged, or holds other objects than arrays in dicts.
        SpecMismatch: a layer is missing, unknown, or has another shape.
    """
    data = _read(path)
    tree = decode_pickle(data, str(path))
    for wrapper in _WRAPPERS:
        if isinstance(tree, dict) and wrapper in tree:
            tree = tree[wrapper]
    if not isinstance(tree, dict):
        raise SpecMismatch(f"{path}: expected a dict of layers, found {type(tree).__name__}")
    layers = {name: layer for name, layer in tree.items() if name != _CLASSIFIER}
    found = dict(islice(_leaves(layers, ""), _MAX_LEAVES))
    _check_names(found, {theirs for theirs, _, _ in _LAYOUT}, path)
    tensors = {}
    for theirs, ours, shape in _LAYOUT:
        kernel = len(shape) == 4
        height_first = (*shape[2:], shape[1], shape[0]) if kernel else shape
        array = _check_array(found[theirs], height_first, f"{path} {theirs}")
        tensors[ours] = np.ascontiguousarray(array.transpose(3, 2, 0, 1) if kernel else array)
    return TrunkWeights(tensors, hashlib.sha256(data).hexdigest(), digest_of_arrays(tensors))


def load_trunk(path: Path) -> TrunkWeights:
    """Read the weights in a file of our format.

    Raises:
        BadInput: the file cannot be read.
        CorruptData: the file is damaged, or of another format.
        SpecMismatch: a tensor is missing, unknown, or has another shape.
    """
    try:
        with open_regular(path, _MAX_BYTES), safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except OSError as error:
        raise BadInput(f"{path}: cannot be read: {error.strerror or error}") from error
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise CorruptData(f"{path}: {short(str(error))}") from error
    if metadata.get("format") != FORMAT:
        found = short(metadata.get("format"))
        raise CorruptData(f"{path}: format {found}, this version reads {FORMAT!r}")
    check_fields(metadata, _FIELDS, f"{path} metadata")
    _check_names(tensors, SHAPES.keys(), path)
    for name, shape in SHAPES.items():
        _check_array(tensors[name], shape, f"{path} {name}")
    if digest_of_arrays(tensors) != metadata["sha256"]:
        raise CorruptData(f"{path}: the sha256 does not match")
    return TrunkWeights(tensors, metadata["source"], metadata["sha256"])


def encode_trunk(weights: TrunkWeights) -> bytes:
    """Encode the weights in the format that `load_trunk` reads."""
    metadata = {
        "format": FORMAT,
        "source": weights.source,
        "sha256": digest_of_arrays(weights.tensors),
    }
    data: bytes = safetensors.numpy.save(dict(weights.tensors), metadata)
    return data


def _layout() -> Iterator[tuple[str, str, Shape]]:
    """Yield name in SERL's tree, our name and our shape of each tensor."""
    inputs = WIDTHS[0]
    yield "conv_init/kernel", "stem.weight", (inputs, 3, 7, 7)
    yield from _norm("norm_init", "stem_norm", inputs)
    for number, outputs in enumerate(WIDTHS):
        theirs, ours = f"ResNetBlock_{number}", f"blocks.{number}"
        yield f"{theirs}/Conv_0/kernel", f"{ours}.conv0.weight", (outputs, inputs, 3, 3)
        yield from _norm(f"{theirs}/MyGroupNorm_0", f"{ours}.norm0", outputs)
        yield f"{theirs}/Conv_1/kernel", f"{ours}.conv1.weight", (outputs, outputs, 3, 3)
        yield from _norm(f"{theirs}/MyGroupNorm_1", f"{ours}.norm1", outputs)
        if inputs != outputs:
            yield f"{theirs}/conv_proj/kernel", f"{ours}.shortcut.weight", (outputs, inputs, 1, 1)
            yield from _norm(f"{theirs}/norm_proj", f"{ours}.shortcut_norm", outputs)
        inputs = outputs


def _norm(theirs: str, ours: str, channels: int) -> Iterator[tuple[str, str, Shape]]:
    yield f"{theirs}/scale", f"{ours}.weight", (channels,)
    yield f"{theirs}/bias", f"{ours}.bias", (channels,)


def _leaves(tree: Mapping[Any, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{key}/")
        else:
            yield f"{prefix}{key}", value


def _check_names(found: Mapping[str, Any], expected: Set[str], path: Path) -> None:
    if found.keys() != expected:
        missing, unknown = sorted(expected - found.keys()), sorted(found.keys() - expected)
        raise SpecMismatch(f"{path}: missing {short(missing)}, unknown {short(unknown)}")


def _check_array(array: Any, shape: Shape, what: str) -> np.ndarray[Any, Any]:
    if not isinstance(array, np.ndarray) or array.dtype != np.float32 or array.shape != shape:
        is_array = isinstance(array, np.ndarray)
        found = f"{array.dtype}{list(array.shape)}" if is_array else type(array).__name__
        raise SpecMismatch(f"{what}: expected float32{list(shape)}, found {found}")
    if not np.isfinite(array).all():
        raise CorruptData(f"{what}: not finite")
    return array


def _read(path: Path) -> bytes:
    try:
        return read_bounded(path, _MAX_BYTES)
    except OSError as error:
        raise BadInput(f"{path}: cannot be read: {error.strerror}") from error


def digest_of_arrays(tensors: Arrays) -> str:
    """Return the sha256 of names, shapes and values, in hex digits."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        array = np.ascontiguousarray(tensors[name], dtype="<f4")
        digest.update(f"{name}\0{array.shape}\0".encode())
        digest.update(array.data)
    return digest.hexdigest()


_LAYOUT = tuple(_layout())

SHAPES: Mapping[str, Shape] = {ours: shape for _, ours, shape in _LAYOUT}
"""Shape of each tensor of the trunk, by its name in our file and in `serl.agents.resnet`."""
