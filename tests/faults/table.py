"""Generation of the tables in `docs/faults.md` from the registry."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from .catalogue import REGISTRY
from .registry import Fault, Level

PAGE = Path(__file__).parents[2] / "docs" / "faults.md"

_BEGIN = "## Processes\n"
_SECTIONS = {
    1: "Processes",
    9: "Log, network and weights",
    20: "Disk and checkpoints",
    26: "Invalid values and motion",
    37: "Measurements and cameras",
    42: "Operators, clocks and load",
    50: "Rewards and resets",
    54: "Attacks and emergency stops",
    60: "Endings and resets",
}
"""Headings of the page, keyed by the first fault number below each."""

_HEAD = """\
| # | fault | injected | required | test |
|---|---|---|---|---|
"""


def page() -> str:
    """Return the expected page: its text followed by the tables."""
    text, _, _ = PAGE.read_text().partition(_BEGIN)
    tables = groupby(_rows(), lambda row: max(n for n in _SECTIONS if n <= row[0]))
    parts = (
        f"## {_SECTIONS[first]}\n\n{_HEAD}{''.join(text for _, text in rows)}"
        for first, rows in tables
    )
    return text + "\n".join(parts)


def _rows() -> Iterator[tuple[int, str]]:
    """Yield number and row of each fault; longer trials of the same behaviour have no row."""
    faults = list(REGISTRY)
    longer = {_behaviour(fault): fault for fault in faults if fault.level is Level.SOAK}
    shorter = {_behaviour(fault) for fault in faults if fault.level is not Level.SOAK}
    for fault in faults:
        key = _behaviour(fault)
        if fault.level is Level.SOAK and key in shorter:
            continue
        test, injected = ", ".join((fault.level, *fault.needs)), fault.injected
        if fault.level is not Level.SOAK and key in longer:
            test, injected = f"{test}; K", f"{injected}; K: {longer[key].injected}"
        cells = fault.number, fault.title, injected, fault.required, test
        yield fault.number, f"| {' | '.join(map(str, cells))} |\n"


def _behaviour(fault: Fault) -> tuple[int, str, str]:
    return fault.number, fault.title, fault.required
