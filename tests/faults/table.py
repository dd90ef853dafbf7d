"""The table in `docs/faults.md`, made from the registry."""

from __future__ import annotations

from pathlib import Path

from .catalogue import REGISTRY
from .registry import Fault, Level

PAGE = Path(__file__).parents[2] / "docs" / "faults.md"

_HEAD = """\
| # | fault | injected | required | level | runs in | needs |
|---|---|---|---|---|---|---|
"""


def page() -> str:
    """The page as it should be: its text, then the table."""
    text, _, _ = PAGE.read_text().partition("| # |")
    return text + _HEAD + "".join(f"{_row(fault)}\n" for fault in REGISTRY)


def _row(fault: Fault) -> str:
    runs_in = "`make soak`" if fault.level is Level.SOAK else "`make test`"
    needs = ", ".join(fault.needs)
    cells = (fault.number, fault.title, fault.injected, fault.required)
    return f"| {' | '.join(map(str, (*cells, fault.level, runs_in, needs)))} |"
