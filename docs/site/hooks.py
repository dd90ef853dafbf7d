"""Hooks of MkDocs: generated tables, pages from the top of the repository, diagrams in the page.

A page names a generated table in a comment, `<!-- generated: commands -->`; see `tables`. Links to
files that are no pages of the site become their text, as the site holds no source files.
"""

from __future__ import annotations

import re
from pathlib import Path
from posixpath import dirname, normpath, relpath
from typing import Any

import tables
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

ROOT = Path(__file__).parents[2]
FROM_TOP = {"CONTRIBUTING.md": "contributing.md", "SECURITY.md": "security.md"}
"""Pages of the site by the file at the top of the repository that they are."""

_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)\s#:]+)(#[^)\s]*)?\)")
_GENERATED = re.compile(r"<!-- generated: (\w+) -->")
_DIAGRAM = re.compile(r'<img alt="([^"]*)" src="[^"]*images/diagrams/(\w+)\.svg" ?/?>')

_OUTSIDE = re.compile(
    r'<(?:script|img|link|iframe|source|video)\b[^>]*?(?:src|href)="(https?://[^"]*)'
)


def on_files(files: Any, config: Any, **_: Any) -> Any:
    """Add the pages from the top of the repository."""
    for name, page in FROM_TOP.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=_links(text, name, page, files)))
    return files


def on_page_markdown(markdown: str, page: Any, files: Any, **_: Any) -> str:
    """Insert the generated tables, and make links fit the site."""
    place = page.file.src_uri
    if place not in FROM_TOP.values():
        markdown = _links(markdown, f"docs/{place}", place, files)
    return _GENERATED.sub(lambda found: tables.TABLES[found[1]](), markdown)


def on_page_content(html: str, **_: Any) -> str:
    """Put each diagram into the page itself, where the colours of the theme apply to it."""
    folder = ROOT / "docs/images/diagrams"

    def drawn(found: re.Match[str]) -> str:
        svg = (folder / f"{found[2]}.svg").read_text(encoding="utf-8")
        return f'<span class="diagram">{svg}</span>'

    return _DIAGRAM.sub(drawn, html)


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """Refuse a page that loads something from another host."""
    if found := _OUTSIDE.search(output):
        raise PluginError(f"{page.file.src_uri}: loads {found[1]} from another host")
    return output


def _links(markdown: str, source: str, page: str, files: Any) -> str:
    """Return the text of a page with its links made to fit the site.

    Args:
        markdown: text of the page.
        source: file that the links are relative to, from the top of the repository.
        page: name of the page in the site.
        files: files of the site.
    """

    def fitting(found: re.Match[str]) -> str:
        text, target, anchor = found[1], found[2], found[3] or ""
        path = normpath(f"{dirname(source)}/{target}" if dirname(source) else target)
        inside = FROM_TOP.get(path, path.removeprefix("docs/") if path.startswith("docs/") else "")
        if inside in FROM_TOP.values() or (inside and files.get_file_from_path(inside)):
            return f"[{text}]({relpath(inside, dirname(page) or '.')}{anchor})"
        return text if (ROOT / path).exists() else found[0]

    return _LINK.sub(fitting, markdown)
