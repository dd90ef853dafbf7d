"""Catalogue of all faults: importing this module fills the registry. Needs ROS 2."""

from __future__ import annotations

from . import (  # noqa: F401 (each import fills the registry)
    arms,
    bombs,
    cameras,
    checkpoints,
    clocks,
    delays,
    endings,
    guard,
    logs,
    motion,
    network,
    people,
    power,
    processes,
    resets,
    settings,
    stream,
    values,
    wall,
    weights,
)
from .registry import REGISTRY

__all__ = ["REGISTRY"]
