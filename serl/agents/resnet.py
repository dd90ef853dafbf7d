"""SERL's frozen image trunk: a ResNet-10 that maps an image to a 4 x 4 grid of features.

As in Flax, "SAME" padding of an even size at stride 2 comes after the last row and column alone,
and group norm adds 1e-5 to the variance.

On a CPU, the wide first layers process a few images at a time, so that their data stay in the cache
and memory is reused.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from serl.agent import AgentConfig
from serl.agents.trunk_weights import WIDTHS, load_trunk, trunk_file
from serl.errors import BadInput, SpecMismatch
from serl.system.files import digest_of

IMAGE = 128
"""Side of the input in pixels; images of another size are resized."""
GRID, CHANNELS = 4, WIDTHS[-1]

_GROUPS, _EPSILON = 4, 1e-5
_AT_ONCE = 16  # images per pass of the first layers

_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet, RGB in [0, 1]


class Trunk(nn.Module):
    """Computes features of images before pooling; never trained, and never part of a gradient.

    Args:
        tensors: float32 arrays with the names and shapes of `serl.agents.trunk_weights.SHAPES`.
        dtype: dtype of the computation, float32 or bfloat16; the latter is faster where the
            processor supports it (AVX512-BF16, a GPU), slower elsewhere, and off by some 0.01.
    """

    scale: Tensor
    shift: Tensor

    def __init__(
        self,
        tensors: Mapping[str, np.ndarray[Any, Any]],
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__()
        with torch.device("meta"):  # draws no random numbers
            self.stem = nn.Conv2d(3, WIDTHS[0], 7, stride=2, padding=3, bias=False)
            self.stem_norm = _norm(WIDTHS[0])
            self.blocks = nn.Sequential(*map(_Block, (WIDTHS[0], *WIDTHS), WIDTHS))
        state = {
            name: _channels_last(torch.tensor(array, dtype=dtype, device=device))
            for name, array in tensors.items()
        }
        self.load_state_dict(state, assign=True)
        self.requires_grad_(False)
        mean, std = (torch.tensor(each, device=device).view(3, 1, 1) for each in (_MEAN, _STD))
        self.register_buffer("scale", 1 / (255 * std), persistent=False)
        self.register_buffer("shift", -mean / std, persistent=False)

    @classmethod
    def load(
        cls,
        path: Path,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> Self:
        """Load the trunk from a file written by `serl encoder import`.

        Raises:
            BadInput: see `serl.agents.trunk_weights.load_trunk`.
        """
        return cls(load_trunk(path).tensors, dtype, device)

    @classmethod
    def configured(
        cls, config: AgentConfig, dtype: torch.dtype, device: torch.device
    ) -> Self | None:
        """Load the trunk of an agent's configuration; None for the small encoder."""
        path = trunk_file(config)
        if path is None:
            return None
        if config.trunk_sha256 is not None and digest_of(path) != config.trunk_sha256:
            raise BadInput(f"{path}: holds another trunk than when the run was made")
        return cls.load(path, dtype, device)

    @torch.no_grad()
    def forward(self, images: Tensor) -> Tensor:
        """Compute features of uint8 RGB images: (B, H, W, 3) -> float32 (B, 4, 4, 512).

        Raises:
            SpecMismatch: the images have another type or shape.
        """
        if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[-1] != 3:
            found = f"{str(images.dtype).removeprefix('torch.')}{list(images.shape)}"
            raise SpecMismatch(f"images: expected uint8[B, H, W, 3], found {found}")
        few = _AT_ONCE if images.device.type == "cpu" else max(len(images), 1)
        x = torch.cat([self._begin(part) for part in torch.split(images, few)])
        features: Tensor = self.blocks[2:](x).permute(0, 2, 3, 1).float()  # (B, 4, 4, 512)
        return features

    def _begin(self, images: Tensor) -> Tensor:
        """Run the first layers up to the second block.  # (B, 128, 16, 16)."""
        x = images.permute(0, 3, 1, 2).float()  # (B, 3, H, W), in memory still channels last
        if x.shape[2:] != (IMAGE, IMAGE):
            x = functional.interpolate(x, (IMAGE, IMAGE), mode="bilinear", antialias=True)
        x = self.stem(torch.addcmul(self.shift, x, self.scale).to(self.stem.weight.dtype))
        # "SAME": the last window reaches beyond the image, where no value is a maximum.
        x = functional.max_pool2d(self.stem_norm(x), 3, stride=2, ceil_mode=True)
        begun: Tensor = self.blocks[:2](x.relu_())  # the block's input is the maximum, or 0
        return begun


class _Block(nn.Module):
    """A residual block of two convolutions; halves the image when the channels change."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.halves = inputs != outputs
        stride = 2 if self.halves else 1
        self.conv0 = nn.Conv2d(inputs, outputs, 3, stride, padding=2 - stride, bias=False)
        self.norm0 = _norm(outputs)
        self.conv1 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm1 = _norm(outputs)
        if self.halves:
            self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.shortcut_norm = _norm(outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, C, H, W) to (B, C', H', W')."""
        padded = functional.pad(x, (0, 1, 0, 1)) if self.halves else x
        y = functional.relu(self.norm0(self.conv0(padded)), inplace=True)
        y = self.norm1(self.conv1(y))
        rest = self.shortcut_norm(self.shortcut(x)) if self.halves else x
        return functional.relu(y.add_(rest), inplace=True)


def _norm(channels: int) -> nn.GroupNorm:
    return nn.GroupNorm(_GROUPS, channels, eps=_EPSILON)


def _channels_last(tensor: Tensor) -> Tensor:
    return tensor.contiguous(memory_format=torch.channels_last) if tensor.ndim == 4 else tensor
