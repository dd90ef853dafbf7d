"""A UR10e, as its maker's UR5e but for the name."""

from __future__ import annotations

from serl import plugins

robot = plugins.load("robot", "ur5e").model_copy(update={"summary": "UR10e from outside"})
