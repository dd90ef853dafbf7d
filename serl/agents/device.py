"""Compute device and numerical precision of an agent."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from serl.errors import BadInput


def choose_device(name: str) -> torch.device:
    """Return the named device, "auto" for CUDA if available; raises `BadInput` if unusable."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:
        raise BadInput(f"device {name!r} cannot be used here: {error}") from None


def moved(array: np.ndarray[Any, Any], device: torch.device) -> Tensor:
    """Return an array as a tensor on the device; on a CPU it shares the array's memory.

    A GPU copies it asynchronously from pinned memory, and the array may be changed at once. The
    pinned memory belongs to torch, which does not reuse it before the GPU has read it.
    """
    tensor = torch.from_numpy(array)
    if device.type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def set_matmul(mode: str, device: torch.device) -> torch.dtype:
    """Set the precision of float32 products and convolutions, for the whole process.

    Returns:
        dtype of convolutions, and of networks that are never trained; trained weights stay
        float32, because bfloat16 loses small steps.
    """
    units = torch.cpu.get_capabilities()
    fast = device.type == "cuda" or units.get("avx512_bf16") or units.get("amx_bf16")
    low = mode == "bfloat16" or (mode == "auto" and fast)
    reduced = "high" if device.type == "cuda" else "medium"
    torch.set_float32_matmul_precision(reduced if low else "highest")
    convolutions: Any = torch.backends.mkldnn
    convolutions.conv.fp32_precision = "bf16" if low else "ieee"
    return torch.bfloat16 if low else torch.float32
