"""The version of the package, and the git commit if it runs from a checkout."""

from __future__ import annotations

import subprocess
from contextlib import suppress
from functools import cache
from pathlib import Path

__version__ = "0.1.0"

_TIMEOUT_S = 5.0


@cache
def commit() -> str:
    """Return the commit's short hash, with "-dirty" if files differ; empty if installed.

    A package inside another project's repository counts as installed.
    """
    folder = Path(__file__).resolve().parent
    if _git(folder, "rev-parse", "--show-prefix") != f"{folder.name}/":
        return ""
    return _git(folder, "describe", "--always", "--dirty", "--abbrev=7", "--exclude=*")


def _git(folder: Path, *words: str) -> str:
    with suppress(OSError, subprocess.SubprocessError):
        answer = subprocess.run(
            ["git", "-C", str(folder), *words],
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=True,
        )
        return answer.stdout.strip()
    return ""
