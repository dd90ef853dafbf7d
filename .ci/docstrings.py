"""Lint of docstrings: words that stand where a noun is missing, and openings that name no subject.

    python .ci/docstrings.py [FOLDER_OR_FILE ...]     # of the whole package by default

Prints each docstring with such a word or opening, and per group how often it occurs in 1,000 words.
Exit code 1 when a group occurs more than once in 1,000 words, or an opening names no subject.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

FOLDERS = ("serl", "robots", "tasks", "sim", "launch", "docs")
LIMIT = 1.0
"""Occurrences of a group in 1,000 words of docstrings."""

GROUPS = {
    "what": re.compile(r"\bwhat\b", re.IGNORECASE),
    "say": re.compile(r"\b(say|says|said)\b", re.IGNORECASE),
    "who": re.compile(r"\b(who|whom|whoever)\b", re.IGNORECASE),
    "tell": re.compile(r"\b(tell|tells|told)\b", re.IGNORECASE),
    "somebody": re.compile(r"\b(somebody|nobody|anybody|someone)\b", re.IGNORECASE),
}
OPENING = re.compile(r"(Of|As|What|Who|Whoever|Where|How|That)\b")


class Docstring(NamedTuple):
    """A docstring and the line at which its definition begins."""

    path: Path
    line: int
    text: str


def docstrings(path: Path) -> Iterator[Docstring]:
    """Yield the docstrings of a module, its classes and its functions."""
    kinds = ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, kinds) and (text := ast.get_docstring(node)):
            yield Docstring(path, getattr(node, "lineno", 1), text)


def main(arguments: list[str]) -> int:
    """Print the findings; return the exit code."""
    places = [Path(argument) for argument in arguments or FOLDERS]
    files = [
        file for place in places for file in ([place] if place.is_file() else place.rglob("*.py"))
    ]
    words, openings, counts = 0, 0, Counter[str]()
    for found in (found for file in sorted(files) for found in docstrings(file)):
        words += len(found.text.split())
        hits = {name: len(pattern.findall(found.text)) for name, pattern in GROUPS.items()}
        counts.update(hits)
        opens = OPENING.match(found.text) is not None
        openings += opens
        if opens or any(hits.values()):
            named = [name for name, count in hits.items() if count] + ["opening"] * opens
            print(f"{found.path}:{found.line}: {', '.join(named)}: {found.text.splitlines()[0]}")
    rates = {name: 1000 * counts[name] / max(words, 1) for name in GROUPS}
    shown = ", ".join(f"{name} {rate:.1f}" for name, rate in rates.items())
    print(
        f"{words:,} words of docstrings; per 1,000: {shown}; {openings} openings without a subject"
    )
    return 1 if openings or any(rate > LIMIT for rate in rates.values()) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
