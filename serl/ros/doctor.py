"""`serl doctor`: a report of installed and missing parts, and of the sockets that a run opens."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from threading import Timer
from typing import NamedTuple

from serl.errors import BadInput
from serl.ros.environment import (
    choose_transport,
    environment,
    free_domain,
    is_in_use,
    network_of,
    ros_status,
    shared_memory_problem,
)
from serl.ros.ports import SHARED_MEMORY
from serl.system.files import size_text
from serl.system.sockets import Socket, open_sockets

_PACKAGES = ("torch", "mujoco", "numpy", "gymnasium", "safetensors")
_FREE_BYTES = 2 << 30
_START_LIMIT_S = 30.0


class Finding(NamedTuple):
    """A line of the doctor's report.

    Attributes:
        sound: True when nothing has to be fixed.
        subject: the part that was checked.
        text: the result, with the remedy when it is not sound.
    """

    sound: bool
    subject: str
    text: str

    def __str__(self) -> str:
        return f"{'ok  ' if self.sound else 'BAD '} {self.subject:14} {self.text}"


def findings() -> Iterator[Finding]:
    """Check every part of the installation that a training run needs."""
    yield Finding(True, "python", f"{platform.python_version()} on {platform.machine()}")
    for name in _PACKAGES:
        yield _package(name)
    yield _ros()
    yield _domain()
    yield _shared_memory()
    yield _disk(Path.cwd())
    yield Finding(True, "processors", f"{len(os.sched_getaffinity(0))}")


def network_findings(run_folder: Path | None) -> Iterator[Finding]:
    """Start a node as a run does, and list the sockets at which others can reach it.

    Args:
        run_folder: the run whose settings are used; None for a run with the defaults.
    """
    if problem := ros_status().problem:
        yield Finding(False, "ROS 2", problem)
        return
    with tempfile.TemporaryDirectory() as scratch:
        folder = run_folder or Path(scratch)
        network = network_of(folder)
        if run_folder is None:
            choose_transport(folder)
        with free_domain(network=network) as domain:
            sockets = _sockets_of_a_node(folder, environment(domain.id, folder, network))
    if isinstance(sockets, str):
        yield Finding(False, "node", sockets)
        return
    for found in sockets:
        expected = found.address.is_loopback or found.address in network.hosts
        yield Finding(expected, "socket", str(found))
    if not sockets:
        yield Finding(True, "sockets", "none: processes talk through shared memory alone")


def _sockets_of_a_node(run_folder: Path, environ: dict[str, str]) -> list[Socket] | str:
    """Return the sockets of a process of the run, or the reason why it does not start."""
    node = subprocess.Popen(
        [sys.executable, "-m", "serl.ros.nodes.idle", "--run", str(run_folder)],
        env=environ,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    limit = Timer(_START_LIMIT_S, node.kill)
    limit.start()
    try:
        assert node.stdout is not None
        sockets = open_sockets(node.pid) if node.stdout.readline() == "ready\n" else None
        lines = node.communicate()[1].splitlines()
    finally:
        limit.cancel()
    if sockets is None:
        return lines[-1] if lines else "did not start"
    return sockets


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
            use = "used by other processes" if is_in_use(domain.id) else "unused"
            given = ", from ROS_DOMAIN_ID" if os.environ.get("ROS_DOMAIN_ID") else ""
            next_run = "runs share it by namespace" if given else "the next run takes it"
            return Finding(True, "ROS domain", f"{domain.id}{given}: {use}; {next_run}")
    except BadInput as error:
        return Finding(False, "ROS domain", str(error))


def _shared_memory() -> Finding:
    if problem := shared_memory_problem():
        return Finding(False, "shared memory", f"{problem}; processes talk over 127.0.0.1 instead")
    free = shutil.disk_usage(SHARED_MEMORY).free
    return Finding(True, "shared memory", f"{free >> 20} MB free in {SHARED_MEMORY}")


def _disk(folder: Path) -> Finding:
    free = shutil.disk_usage(folder).free
    needed = "" if free > _FREE_BYTES else f"; expected {size_text(_FREE_BYTES)} or more"
    return Finding(not needed, "disk", f"{size_text(free)} free in {folder}{needed}")
