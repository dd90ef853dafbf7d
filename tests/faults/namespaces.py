"""Linux namespaces for a process with its own small disks and networks, without root."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from .strace import QUIET, ROOT


def inside(module: str, *arguments: object, limit_s: float = 300.0) -> str:
    """Run a module of `tests.faults` in new user, mount and network namespaces; return its output.

    Its mounts are invisible outside.

    Raises:
        AssertionError: The module failed; the message holds its output.
    """
    done = subprocess.run(
        ["unshare", "-rmn", sys.executable, "-m", f"tests.faults.{module}", *map(str, arguments)],
        cwd=ROOT,
        env=QUIET,
        capture_output=True,
        text=True,
        timeout=limit_s,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def mount(folder: Path, *options: str) -> None:
    """Mount a tmpfs on a new folder; call only within `inside`."""
    folder.mkdir(exist_ok=True)
    _run("mount", "-t", "tmpfs", "-o", ",".join(options), "tmpfs", str(folder))


def make_read_only(folder: Path) -> None:
    """Make a folder read-only, even for root; call only within `inside`."""
    _run("mount", "--bind", str(folder), str(folder))
    _run("mount", "-o", "remount,bind,ro", str(folder))


def _run(*command: str) -> None:
    arguments: Sequence[str] = command
    subprocess.run(arguments, check=True)
