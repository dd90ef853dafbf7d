"""Encoder of images and the arm's own state, as a pure function of flat parameters.

Actor and critics share it; only the critic's loss trains it, and it has no target network, as in
DrQ-v2 (Yarats et al. 2021, section 3.1).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import functional

from serl.agents.networks import FlatParameters

_KERNEL = 3
_EMBEDDINGS = 8
EPSILON = 1e-6
_OF_FEATURES = 2  # dimensions, where images have four


@dataclass(frozen=True)
class Encoder(FlatParameters):
    """An encoder with a small network for each camera, and a layer for the state.

    Each camera: convolutions with relu, then the spatial softmax of each channel of the last one
    (Levine et al. 2016, section 5.2: from few examples, positions are learned far better so); or a
    learned weighting of the positions in the features of a frozen trunk (SERL's spatial
    embeddings). Then linear, LayerNorm, tanh, as for the state. The outputs are concatenated.

    Attributes:
        cameras: height and width of each camera's images, by name.
        state_size: length of the state vector; 0 for none.
        channels: channels of the convolutions, all of stride 2 but the last.
        latent: features of each camera.
        trunk: shape of a frozen trunk's features of an image, (H', W', C); None without one.
        frames: number of stacked images of each camera.
        dtype: dtype of the convolutions' computation; their parameters keep theirs.
    """

    cameras: Mapping[str, tuple[int, int]]
    state_size: int
    channels: tuple[int, ...]
    latent: int
    state_latent: int
    trunk: tuple[int, int, int] | None = None
    frames: int = 1
    dtype: torch.dtype = torch.float32

    members = 1

    @property
    def size(self) -> int:
        """The number of features of an observation, Z."""
        return self.latent * len(self.cameras) + (self.state_latent if self.state_size else 0)

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Names and shapes of the parameters, in their order."""
        shapes: dict[str, tuple[int, ...]] = {}
        for name in self.cameras:
            if self.trunk:
                height, width, channels = self.trunk
                channels *= self.frames
                shapes[f"{name}.places.weight"] = (height, width, channels, _EMBEDDINGS)
                shapes |= _layer(f"{name}.head", channels * _EMBEDDINGS, self.latent)
                continue
            for layer, (fan_in, fan_out) in enumerate(pairwise((3 * self.frames, *self.channels))):
                shapes[f"{name}.{layer}.weight"] = (fan_out, fan_in, _KERNEL, _KERNEL)
                shapes[f"{name}.{layer}.bias"] = (fan_out,)
            shapes |= _layer(f"{name}.head", 2 * self.channels[-1], self.latent)
        if self.state_size:
            shapes |= _layer("state.head", self.state_size, self.state_latent)
        return shapes

    def init(self, generator: torch.Generator) -> Tensor:
        """Create flat parameters: He-normal convolutions, Glorot-uniform layers, zero biases."""
        flat = torch.zeros(1, self.length)
        for name, part in self.views(flat).items():
            shape = part.shape[1:]
            if name.endswith("scale"):
                part.fill_(1.0)
            elif name.endswith("places.weight"):  # as LeCun et al. 1998, over the positions
                part.normal_(0.0, 1.0 / math.sqrt(shape[0] * shape[1]), generator=generator)
            elif name.endswith("weight") and len(shape) == 4:
                part.normal_(0.0, math.sqrt(2.0 / math.prod(shape[1:])), generator=generator)
            elif name.endswith("weight"):
                bound = math.sqrt(6.0 / sum(shape))
                part.uniform_(-bound, bound, generator=generator)
        return flat

    def __call__(self, flat: Tensor, state: Tensor, images: Mapping[str, Tensor]) -> Tensor:
        """Compute features of observations.

        Args:
            flat: parameters.  # (1, P)
            state: normalised state vectors.  # (B, D)
            images: by camera: uint8 images, (B, H, W, 3 * frames), the trunk's features of them, or
                results of `camera_features`. A subset of the cameras gives only its features.

        Returns:
            Features in [-1, 1].  # (B, Z)
        """
        features = [
            self.camera_features(flat, name, images[name])
            for name in self.cameras
            if name in images
        ]
        if self.state_size:
            features.append(_head(self._parts(flat), "state.head", state))
        return torch.cat(features, -1)

    def camera_features(self, flat: Tensor, name: str, images: Tensor) -> Tensor:
        """Return the features of one camera's images; features pass unchanged.  # (B, latent)."""
        if not self.trunk and images.ndim == _OF_FEATURES:
            return images
        parts = self._parts(flat)
        if self.trunk:
            weights = parts[f"{name}.places.weight"]
            weighted = torch.einsum("bhwc,hwcf->bcf", images, weights)
            return _head(parts, f"{name}.head", weighted.flatten(1))
        # Memory is channels last throughout. Half a grey level is exact in bfloat16.
        x = images.permute(0, 3, 1, 2).to(self.dtype).sub_(127.5).div_(255.0)
        last = len(self.channels) - 1
        for layer in range(last + 1):
            weight, bias = (
                parts[f"{name}.{layer}.{part}"].to(self.dtype) for part in ("weight", "bias")
            )
            stride = 2 if layer < last else 1
            x = functional.conv2d(x, weight, bias, stride=stride, padding=1)
            if layer < last:
                x = x.relu_()
        return _head(parts, f"{name}.head", _centres(x.float()))

    def _parts(self, flat: Tensor) -> dict[str, Tensor]:
        return {name: part[0] for name, part in self.views(flat).items()}


def _centres(x: Tensor) -> Tensor:
    """Return mean column and row of each channel's softmax, (B, C, H, W) -> (B, 2 C)."""
    height, width = x.shape[2:]
    share = x.permute(0, 2, 3, 1).flatten(1, 2).softmax(1).reshape(len(x), height, width, -1)
    places = (
        (share.sum(across) * torch.linspace(-1.0, 1.0, size, device=x.device)[:, None]).sum(1)
        for across, size in ((1, width), (2, height))
    )  # sums, because a matrix product may be rounded
    return torch.cat([*places], -1)


def _layer(name: str, fan_in: int, fan_out: int) -> dict[str, tuple[int, ...]]:
    norm = {f"{name}.norm.{part}": (fan_out,) for part in ("scale", "shift")}
    return {f"{name}.weight": (fan_in, fan_out), **norm}


def _head(parts: Mapping[str, Tensor], name: str, x: Tensor) -> Tensor:
    """Apply linear, LayerNorm and tanh."""
    weight = parts[f"{name}.weight"]
    scale, shift = parts[f"{name}.norm.scale"], parts[f"{name}.norm.shift"]
    return functional.layer_norm(x @ weight, weight.shape[1:], scale, shift, eps=EPSILON).tanh()
