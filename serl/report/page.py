"""The HTML of a report: templates for phones and desktops, and the formats of their numbers.

The templates escape every value, except figures, which are `Markup`.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from serl.errors import CorruptData
from serl.system.video import VIDEO_TYPES, encode_image, middle_frame

if TYPE_CHECKING:  # plots import matplotlib, which the console does not need
    from serl.report.plots import Trace

CONTENT_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; media-src data:; "
    "form-action 'none'; base-uri 'none'"
)
"""Content security policy with which the browser refuses all requests and scripts."""

TEMPLATES = Path(__file__).with_name("templates")
_environment = Environment(
    loader=FileSystemLoader(TEMPLATES),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)

Tile = tuple[str, str, str]
"""Name, value and note of a number at the top of a page."""


@dataclass(frozen=True, eq=False)
class PlotCard:
    """A plot with its title.

    Attributes:
        figure: the plot, an `<svg>` element; empty if there are no data.
        value: newest value, shown beside the title.
        note: explanation below the title.
        legend: traces named below the title.
    """

    title: str
    figure: Markup
    value: str = ""
    note: str = ""
    legend: Sequence[Trace] = ()


class FilmClip(NamedTuple):
    """A film with its poster as `data:` URLs, or the reason why it is not shown."""

    name: str
    source: str = ""
    poster: str = ""
    problem: str = ""


def render(template: str, **values: Any) -> bytes:
    """Return a page as UTF-8; raise `jinja2.UndefinedError` for a missing value."""
    text = _environment.get_template(template).render(policy=CONTENT_POLICY, **values)
    return text.encode()


_TITLES = {"final": "some of the final trials"}
"""Captions of films by the name of their file, where the name alone says too little."""


def films(paths: Iterable[Path], max_bytes: int) -> list[FilmClip]:
    """Return the films, newest first; notes replace damaged ones, and those beyond `max_bytes`."""
    found: list[FilmClip] = []
    for path in sorted(paths, key=lambda path: path.stat().st_mtime, reverse=True):
        name = _TITLES.get(path.stem, path.stem)
        place = f"{path.parent.name}/{path.name}"
        max_bytes -= path.stat().st_size
        if max_bytes < 0:
            found.append(FilmClip(name, problem=f"Not shown for its size: {place}"))
            continue
        try:
            poster = _data_url("image/jpeg", encode_image(middle_frame(path), ".jpg"))
        except CorruptData:
            found.append(FilmClip(name, problem=f"Not a whole video: {place}"))
            continue
        found.append(FilmClip(name, _data_url(VIDEO_TYPES[path.suffix], path.read_bytes()), poster))
    return found


def whole(value: float) -> str:
    """Return an integer as "12 000", with narrow spaces; "-" for NaN."""
    return (
        f"{round(value):,}".replace(",", "\N{NARROW NO-BREAK SPACE}")
        if math.isfinite(value)
        else "-"
    )


def decimal(value: float, digits: int | None = None) -> str:
    """Return a number with three significant digits, or `digits` after the point; "-" for NaN."""
    if not math.isfinite(value):
        return "-"
    if digits is not None:
        return f"{value:.{digits}f}"
    return whole(value) if abs(value) >= 1000 else f"{value:.3g}"


def percent(share: float, digits: int = 0) -> str:
    """Return a share as "7 %"; "-" for NaN."""
    return f"{100 * share:.{digits}f} %" if math.isfinite(share) else "-"


def seconds(value_s: float) -> str:
    """Return a duration as "4.2 s"; "-" for NaN."""
    return f"{value_s:.1f} s" if math.isfinite(value_s) else "-"


def minutes(value_s: float) -> str:
    """Return a duration as "5.2 min", in hours from two hours on."""
    return f"{value_s / 60:.1f} min" if value_s < 7200 else f"{value_s / 3600:.1f} h"


def clock(value_s: float) -> str:
    """Return a duration as "1:02:05"."""
    minute, second = divmod(round(value_s), 60)
    hour, minute = divmod(minute, 60)
    return f"{hour}:{minute:02}:{second:02}"


def _data_url(kind: str, content: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"
