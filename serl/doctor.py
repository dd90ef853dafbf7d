"""`serl doctor`: what an installation has, and what it lacks."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

from serl.errors import BadInput
from serl.ros.environment import SHARED_MEMORY, free_domain, ros_status

_PACKAGES = ("torch", "mujoco", "numpy", "gymnasium", "safetensors")
_FREE_BYTES = 2 << 30


class Finding(NamedTuple):
    """One line of the doctor's report.

    Attributes:
        sound: nothing to mend.
        subject: what was looked at.
        text: what was found, and what to do when it is not sound.
    """

    sound: bool
    subject: str
    text: str

    def __str__(self) -> str:
        return f"{'ok  ' if self.sound else 'BAD '} {self.subject:14} {self.text}"


def findings() -> Iterator[Finding]:
    """Look at everything that a training run needs."""
    yield Finding(True, "python", f"{platform.python_version()} on {platform.machine()}")
    for name in _PACKAGES:
        yield _package(name)
    yield _ros()
    yield _domain()
    yield _shared_memory()
    yield _disk(Path.cwd())
    yield Finding(True, "processors", f"{os.cpu_count()}")


def _package(name: str) -> Finding:
    try:
        return Finding(True, name, version(name))
    except PackageNotFoundError:
        return Finding(False, name, f"not installed: pip install {name}")


def _ros() -> Finding:
    status = ros_status()
    return Finding(not status.problem, "ROS 2", status.problem or status.version)


def _domain() -> Finding:
    try:
        with free_domain() as domain:
            return Finding(True, "ROS domain", f"{domain.id} is free")
    except BadInput as error:
        return Finding(False, "ROS domain", str(error))


def _shared_memory() -> Finding:
    if not os.access(SHARED_MEMORY, os.W_OK):
        return Finding(False, "shared memory", f"{SHARED_MEMORY} cannot be written")
    free = shutil.disk_usage(SHARED_MEMORY).free
    sound = free > 64 << 20
    return Finding(sound, "shared memory", f"{free >> 20} MB free in {SHARED_MEMORY}")


def _disk(folder: Path) -> Finding:
    free = shutil.disk_usage(folder).free
    return Finding(free > _FREE_BYTES, "disk", f"{free / 2**30:.1f} GB free in {folder}")
