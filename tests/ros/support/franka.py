"""A fake Franka in a process of its own."""

from __future__ import annotations

from pathlib import Path

from serl.ros.node import namespace

from ..conftest import Run


def start_franka(driver: Run, place: str | None = None) -> str:
    """Start it; its namespace: below that of its run, or as given, empty for the root itself."""
    found = f"{namespace(driver.folder)}/left" if place is None else place
    driver.start(str(Path(__file__).with_name("fake_arm.py")), "crisp_controllers", found)
    return found
