"""All faults: importing this fills the registry. Needs ROS 2."""

from __future__ import annotations

from . import (
    bombs,
    cameras,
    checkpoints,
    endings,
    guard,
    logs,
    motion,
    network,
    power,
    processes,
    resets,
    settings,
    stream,
    values,
    weights,
)
from .registry import REGISTRY

__all__ = [
    "REGISTRY",
    "bombs",
    "cameras",
    "checkpoints",
    "endings",
    "guard",
    "logs",
    "motion",
    "network",
    "power",
    "processes",
    "resets",
    "settings",
    "stream",
    "values",
    "weights",
]
