"""Watches every Python process of the tests: nobody unpickles, and our code unmarshals nothing.

Found by `PYTHONPATH`, which `tests/conftest.py` sets; the children of a test inherit it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

# The top of the repository; also right for an installed copy of it, which tests never run.
ROOT = str(Path(__file__).resolve().parents[2])
OURS = tuple(os.path.join(ROOT, folder) for folder in ("serl", "robots", "tasks", "sim"))


class Unpickled(Exception):
    """Something was about to execute what it read."""


def watch(event: str, arguments: tuple[object, ...]) -> None:
    """An audit hook: what it raises ends the operation that raised the event."""
    if event == "pickle.find_class":
        caller = sys._getframe(1)
        raise Unpickled(f"{caller.f_code.co_filename}:{caller.f_lineno} unpickles {arguments}")
    if event in ("marshal.loads", "marshal.load"):  # also each import, by Python itself
        caller = sys._getframe(1)
        if caller.f_code.co_filename.startswith(OURS):
            raise Unpickled(f"{caller.f_code.co_filename}:{caller.f_lineno} unmarshals")


sys.addaudithook(watch)
