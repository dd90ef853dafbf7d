"""All faults: importing this fills the registry, where ROS 2 is installed."""

from __future__ import annotations

from . import bombs, checkpoints, logs, network, processes, settings, stream
from .registry import REGISTRY

__all__ = ["REGISTRY"]
