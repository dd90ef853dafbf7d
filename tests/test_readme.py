"""The README: length, tables, pictures, and numbers that match the documentation.

Its links are checked by `make check`, its commands are run by `tests/test_tutorials.py`.
"""

from __future__ import annotations

import re
from pathlib import Path

from PIL import Image as Picture

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def rows(heading: str) -> list[str]:
    """Return the rows of the table in a section."""
    section = README.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return re.findall(r"^\| (?!\|)(.+) \|$", section, re.MULTILINE)


def test_readme_has_450_to_650_words() -> None:
    assert 450 <= len(README.split()) <= 650


def test_readme_tables_are_short() -> None:
    assert 0 < len(rows("What you get")) <= 10
    assert len(rows("Comparison")) == 8


def test_readme_pictures_are_small_and_their_script_compiles() -> None:
    pictures = re.findall(r"!\[.*\]\((.+)\)", README)
    assert pictures
    assert sum((ROOT / picture).stat().st_size for picture in pictures) <= 1_000_000
    (made_by,) = re.findall(r"<!-- made by: python (\S+) -->", README)
    compile((ROOT / made_by).read_text(encoding="utf-8"), made_by, "exec")


def test_film_of_learning_is_at_least_640_by_480() -> None:
    assert "docs/images/learning.webp" in README
    with Picture.open(ROOT / "docs/images/learning.webp") as film:
        assert film.width >= 640
        assert film.height >= 480
        assert getattr(film, "n_frames", 1) > 10, "not a film"


def test_readme_numbers_are_in_benchmarks_page() -> None:
    benchmarks = (ROOT / "docs/benchmarks.md").read_text(encoding="utf-8")
    for number in ("242 of 250", "55", "13:55"):
        assert number in README
        assert number in benchmarks
