"""Faults of system calls by strace: failing calls and kills at exactly the N-th call."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

KILLED = -9
ROOT = Path(__file__).parents[2]

QUIET = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
"""Environment of a process whose system calls are counted."""


def inject(
    call: str, what: str, module: str, arguments: Sequence[object]
) -> subprocess.CompletedProcess[str]:
    """Run a module of `tests.faults` while a fault is injected into its system calls.

    Args:
        call: name of the system call.
        what: fault in strace's syntax: `signal=KILL:when=3`, `error=EIO:when=3+`.
        module: name of the module below `tests.faults`.
        arguments: arguments of the module.
    """
    return subprocess.run(
        ["strace", "-f", "-qq", "-o", "/dev/null", "-e", f"trace={call}"]
        + ["-e", f"inject={call}:{what}", sys.executable, "-m", f"tests.faults.{module}"]
        + [str(argument) for argument in arguments],
        cwd=ROOT,
        env=QUIET,
        capture_output=True,
        text=True,
        check=False,
    )
