"""No process of the tests executes what it reads: see `tests/audit/sitecustomize.py`."""

from __future__ import annotations

import os
import runpy
from pathlib import Path

import serl.sim  # noqa: F401 (says by which library to draw; before any test imports MuJoCo)

_AUDIT = Path(__file__).with_name("audit")

runpy.run_path(str(_AUDIT / "sitecustomize.py"))
os.environ["PYTHONPATH"] = os.pathsep.join(
    filter(None, [str(_AUDIT), os.environ.get("PYTHONPATH")])
)
