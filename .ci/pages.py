"""Check of the documentation without building it: links, anchors, navigation, the Python reference.

    python .ci/pages.py

Prints each broken link, each page that is missing in the navigation, each public module without an
entry in the Python reference, and each public name or constant in one without a docstring; exit
code 1 if there are any. `make docs` checks the built site as well.
"""

from __future__ import annotations

import ast
import re
import runpy
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
INCLUDED = {"security.md": "SECURITY.md", "contributing.md": "CONTRIBUTING.md"}
"""Pages of the site that are files at the top of the repository; see `docs/site/hooks.py`."""

_LINK = re.compile(r"\]\(([^)\s]+)\)")
_IMAGE = re.compile(r'<img [^>]*src="([^"]+)"')
_HEADING = re.compile(r"^#{1,6} +(.+?)(?: +\{#([\w-]+)\})? *$", re.MULTILINE)
_FENCE = re.compile(r"^( *)```.*?^\1```", re.DOTALL | re.MULTILINE)
_GENERATED = re.compile(r"<!-- generated: (\w+) -->")
_WITHOUT_HEADINGS = {"topics"}  # needs rclpy
_CONSTANT = re.compile(r"[A-Z][A-Z0-9_]+")
_MODULE = re.compile(r"^::: ([\w.]+)", re.MULTILINE)


def slug(heading: str) -> str:
    """Return the anchor of a heading, as Python-Markdown and GitHub make it."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    text = re.sub(r"[^\w\s-]", "", text).strip().lower()
    return re.sub(r"[-\s]+", "-", text)


@cache
def tables() -> dict[str, Callable[[], str]]:
    """Return the functions that generate the tables of the reference; they import serl."""
    found: dict[str, Callable[[], str]] = runpy.run_path(str(DOCS / "site/tables.py"))["TABLES"]
    return found


@cache
def text_of(path: Path) -> str:
    """Return a page with its generated tables, and without its blocks of code."""

    def generated(found: re.Match[str]) -> str:
        return "" if found[1] in _WITHOUT_HEADINGS else tables()[found[1]]()

    return _FENCE.sub("", _GENERATED.sub(generated, path.read_text(encoding="utf-8")))


def anchors(path: Path) -> set[str]:
    """Return the anchors of the headings and terms of a page."""
    text = text_of(path)
    found = {given or slug(heading) for heading, given in _HEADING.findall(text)}
    return found | set(re.findall(r'<a id="([\w-]+)"', text))


def target_of(page: Path, target: str) -> Path:
    """Return the file that a relative link leads to."""
    path = (page.parent / target).resolve() if target else page
    if path.parent == DOCS and path.name in INCLUDED:
        return ROOT / INCLUDED[path.name]
    return path


def broken(page: Path) -> Iterator[str]:
    """Yield the links of a page that lead nowhere."""
    text = re.sub(r"`[^`\n]*`", "", text_of(page))
    for link in (*_LINK.findall(text), *_IMAGE.findall(text)):
        if "://" in link or link.startswith("mailto:"):
            continue
        target, _, anchor = link.partition("#")
        path = target_of(page, target)
        if not path.exists():
            yield f"{page.relative_to(ROOT)}: {link}: no such file"
        elif anchor and path.suffix == ".md" and anchor not in anchors(path):
            yield f"{page.relative_to(ROOT)}: {link}: no such heading"


def outside_navigation() -> Iterator[str]:
    """Yield pages that the navigation lacks, and entries of it without a page."""
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:")[2]
    named = set(re.findall(r": (\S+\.md)$", text, re.MULTILINE))
    pages = {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")} | set(INCLUDED)
    yield from (f"mkdocs.yml: {page} is not in the navigation" for page in sorted(pages - named))
    yield from (f"mkdocs.yml: {page}: no such page" for page in sorted(named - pages))


def undocumented() -> Iterator[str]:
    """Yield public modules that the Python reference lacks, and names in it without a docstring."""
    referred = set[str]()
    for path in (DOCS / "reference").glob("*.md"):
        referred |= set(_MODULE.findall(path.read_text(encoding="utf-8")))
    top = {path.stem for path in (ROOT / "serl").glob("*.py")} - {"__init__"}
    rooms = {path.parent.name for path in (ROOT / "serl").glob("*/__init__.py")}
    public = {f"serl.{name}" for name in (top | rooms) - {"robots", "tasks", "sim"}}
    yield from (f"docs/reference: {name} has no entry" for name in sorted(public - referred))
    for name in sorted(referred):
        path = ROOT.joinpath(*name.split("."))
        path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        if not path.is_file():
            yield f"docs/reference: {name}: no such module"
            continue
        yield from (f"{path.relative_to(ROOT)}: {each}: no docstring" for each in _bare(path))


def _bare(path: Path) -> Iterator[str]:
    """Yield the public classes, functions, methods and constants without a docstring."""
    kinds = ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef
    module = ast.parse(path.read_text(encoding="utf-8"))
    for node, after in zip(module.body, [*module.body[1:], None], strict=True):
        if (constant := _constant(node)) and not _is_text(after):
            yield constant
        if not isinstance(node, kinds) or node.name.startswith("_"):
            continue
        members = node.body if isinstance(node, ast.ClassDef) else []
        public = [each for each in members if isinstance(each, kinds) and each.name[0] != "_"]
        for each in (node, *public):
            if not ast.get_docstring(each):
                yield each.name


def _constant(node: ast.stmt) -> str:
    """Return the name of the public constant that a statement defines; empty for none."""
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    names = [each.id for each in targets if isinstance(each, ast.Name)]
    return next(filter(_CONSTANT.fullmatch, names), "")


def _is_text(node: ast.stmt | None) -> bool:
    value = node.value if isinstance(node, ast.Expr) else None
    return isinstance(value, ast.Constant) and isinstance(value.value, str)


def main() -> int:
    """Print the findings; return the exit code."""
    pages = [*ROOT.glob("*.md"), *DOCS.rglob("*.md")]
    findings = [
        *(finding for page in sorted(pages) for finding in broken(page)),
        *outside_navigation(),
        *undocumented(),
    ]
    for finding in findings:
        print(finding)
    print(f"{len(pages)} pages, {len(findings)} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
