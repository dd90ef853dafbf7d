"""A UR10e, as its maker's UR5e but for the name."""

from __future__ import annotations

from dataclasses import replace

from serl import plugins

robot = replace(plugins.load("robot", "ur5e"), summary="UR10e from outside")
