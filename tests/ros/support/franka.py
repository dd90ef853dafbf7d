"""A fake Franka driver in its own process."""

from __future__ import annotations

from serl.ros.node import namespace
from serl.ros.testing.bench import SPAWN

from ...support.upstream import file_of
from ..conftest import Run


def start_franka(driver: Run, place: str | None = None) -> str:
    """Start a fake Franka in a namespace, by default below its run's; return the namespace."""
    found = f"{namespace(driver.folder)}/left" if place is None else place
    driver.start(*SPAWN, str(file_of("franka")), found)
    return found
