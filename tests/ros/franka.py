"""A fake Franka in a process of its own, in a namespace that begins at the root."""

from __future__ import annotations

from pathlib import Path

from serl.ros.node import namespace

from .conftest import Run


def start_franka(driver: Run) -> str:
    """Start it; its namespace."""
    place = f"{namespace(driver.folder)}/left"
    driver.start(str(Path(__file__).with_name("fake_arm.py")), "crisp_controllers", place)
    return place
