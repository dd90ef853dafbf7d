"""The HTML of a report: parts of a page for phones and desktops, in light and dark mode.

Every function returns HTML and escapes its text arguments; arguments named `body`, `film_body`,
`cards` and `sections` are HTML already.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from serl.errors import CorruptData
from serl.system.video import VIDEO_TYPES, encode_image, read_video

if TYPE_CHECKING:  # plots import matplotlib, which the console does not need
    from serl.report.plots import Trace

POLICY_HEADER = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; media-src data:; "
    "form-action 'none'; base-uri 'none'"
)
"""Content security policy with which the browser refuses all requests and scripts."""

PALETTE = """
:root{color-scheme:light dark;--paper:#f7f6f2;--card:#fffefb;--ink:#20242c;--quiet:#646c79;
--rule:#e4e2da;--policy:#2f6fb5;--human:#c26a17;--evaluation:#23825a;--band:#23825a33}
@media(prefers-color-scheme:dark){:root{--paper:#14171c;--card:#1b1f26;--ink:#e9ebef;
--quiet:#99a2b1;--rule:#2d333d;--policy:#74b0ee;--human:#eea45f;--evaluation:#6bc89b;
--band:#6bc89b38}}
"""
"""CSS variables of the colours of page and plots, in light and dark mode."""

CSS = (
    PALETTE
    + """*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);
font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif;
-webkit-text-size-adjust:100%;font-variant-numeric:tabular-nums}
main{max-width:1180px;margin:0 auto;padding:clamp(20px,4vw,56px) clamp(16px,3vw,32px)}
h1,h2,h3,p,figure{margin:0}
h1{font-size:clamp(28px,4vw,40px);line-height:1.15;font-weight:650;letter-spacing:-.02em;
overflow-wrap:anywhere}
h2{font-size:21px;font-weight:620;letter-spacing:-.01em}
h3{font-size:15px;font-weight:600}
.quiet,.note{color:var(--quiet)}
.note{font-size:14px;max-width:70ch}
header .hero{display:grid;grid-template-columns:minmax(0,1fr);gap:32px;margin-top:28px}
header .hero.film{align-items:center}
@media(min-width:820px){header .hero.film{grid-template-columns:minmax(0,1fr) minmax(0,1fr);
gap:56px}}
.big{font-size:clamp(76px,13vw,132px);line-height:1;font-weight:620;letter-spacing:-.045em}
.big small{font-size:.42em;font-weight:500;letter-spacing:0;margin-left:.08em;color:var(--quiet)}
.track{position:relative;height:10px;border-radius:5px;background:var(--rule);margin:22px 0 6px;
max-width:520px}
.track i{position:absolute;top:0;bottom:0;border-radius:5px;background:var(--band)}
.track b{position:absolute;top:-3px;width:4px;height:16px;margin-left:-2px;border-radius:2px;
background:var(--evaluation)}
.ends{display:flex;justify-content:space-between;max-width:520px;font-size:13px;
color:var(--quiet)}
.says{margin-top:14px;max-width:46ch}
video{display:block;width:100%;border-radius:12px;background:#0b0d10}
figcaption.note{margin-top:8px}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));
gap:1px;margin-top:36px;background:var(--rule);border:1px solid var(--rule);border-radius:12px;
overflow:hidden}
.tiles div{background:var(--card);padding:16px 18px}
.tiles strong{display:block;font-size:25px;line-height:1.25;font-weight:600;
letter-spacing:-.02em}
.tiles span{display:block;font-size:13px;color:var(--quiet);line-height:1.4}
section{margin-top:52px}
section>.note{margin-top:2px}
.grid{display:grid;gap:16px;margin-top:16px;
grid-template-columns:repeat(auto-fill,minmax(min(100%,300px),1fr))}
.grid.wide{grid-template-columns:repeat(auto-fit,minmax(min(100%,430px),1fr))}
.card{background:var(--card);border:1px solid var(--rule);border-radius:12px;padding:16px 18px;
min-width:0;margin:0}
.panel{margin-top:16px}
.card header{display:flex;justify-content:space-between;align-items:baseline;gap:12px}
.card header output{font-size:15px;font-weight:600}
.card .note{font-size:13px;min-height:1.5em}
.card svg{display:block;width:100%;height:auto;margin-top:8px;overflow:visible}
.card svg *{stroke-linejoin:round}
.key{display:flex;flex-wrap:wrap;gap:2px 16px;font-size:13px;color:var(--quiet)}
.key span::before{content:"";display:inline-block;width:14px;height:3px;border-radius:2px;
margin-right:6px;vertical-align:middle;background:var(--c)}
.key span.points::before{width:8px;height:8px;border-radius:1px;transform:rotate(45deg)}
.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:14px}
th,td{text-align:right;white-space:nowrap;padding:7px 0 7px 16px;
border-bottom:1px solid var(--rule)}
th{white-space:normal;font-weight:500;color:var(--quiet);font-size:13px;vertical-align:bottom;
line-height:1.3}
th:first-child,td:first-child,.text th:last-child,.text td:last-child{text-align:left}
th:first-child,td:first-child{padding-left:0}
.text td:last-child{width:80%;white-space:normal;overflow-wrap:anywhere}
.text td{vertical-align:top}
tr:last-child td{border-bottom:0}
details{margin-top:52px;background:var(--card);border:1px solid var(--rule);border-radius:12px;
padding:14px 18px}
section details{margin-top:16px}
summary{cursor:pointer;font-weight:600}
details>:not(summary){margin-top:12px}
pre{margin:0;overflow-x:auto;font:13px/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}
footer{margin-top:52px;font-size:13px;color:var(--quiet)}
@media(max-width:520px){.tiles{grid-template-columns:1fr 1fr}.tiles div{padding:12px 14px}
.tiles div:last-child:nth-child(odd){grid-column:1/-1}
section{margin-top:44px}.card{padding:14px 14px}table{font-size:13px}
th{font-size:12px}th,td{padding-left:8px}td:nth-child(2){white-space:normal}}
@media print{body{background:#fff}.card,.tiles{break-inside:avoid}}
"""
)


def document(title: str, sections: Sequence[str]) -> str:
    """Return the whole page."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY_HEADER}">\n'
        f"<title>{escape(title)}</title>\n<style>{CSS}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(sections)
        + "\n<footer>Written by serl from this run's folder. "
        "The page needs no network and runs no script.</footer>\n</main>\n</body>\n</html>\n"
    )


def headline(
    task: str, run: str, body: str, film_body: str, tiles: Sequence[tuple[str, str, str]]
) -> str:
    """Return the top of the page: task, result beside a film, and tiles (name, value, note)."""
    boxes = "".join(
        f"<div><span>{escape(name)}</span><strong>{escape(value)}</strong>"
        f"<span>{escape(note)}</span></div>"
        for name, value, note in tiles
    )
    hero = "hero film" if film_body else "hero"
    silent = "" if film_body else words("No video was recorded.")
    return (
        f'<header><p class="quiet">{escape(run)}</p><h1>{escape(task)}</h1>'
        f'<div class="{hero}"><div>{body}{silent}</div>{film_body}</div>'
        f'<div class="tiles">{boxes}</div></header>'
    )


def result(rate: float, interval: tuple[float, float], text: str) -> str:
    """Return the success rate in large type, its Wilson interval drawn and in words, and a text."""
    low, high = interval
    shown = f"{100 * rate:.1f}".removesuffix(".0")
    return (
        f'<p class="big">{shown}<small>%</small></p>'
        f'<div class="track"><i style="left:{low:.2%};right:{1 - high:.2%}"></i>'
        f'<b style="left:{rate:.2%}"></b></div>'
        f'<div class="ends"><span>0</span><span>95 % Wilson interval: {100 * low:.1f} to '
        f'{100 * high:.1f} %</span><span>100</span></div><p class="says">{escape(text)}</p>'
    )


def no_result(text: str) -> str:
    """Return a placeholder for `result`, with a text."""
    return f'<p class="big quiet">-</p><p class="says">{escape(text)}</p>'


def film(paths: Sequence[Path], max_bytes: int) -> str:
    """Return the films, newest first, with posters; notes replace damaged or too large ones."""
    figures: list[str] = []
    for path in sorted(paths, key=lambda path: path.stat().st_mtime, reverse=True):
        max_bytes -= path.stat().st_size
        if max_bytes < 0:
            figures.append(words(f"Not shown for its size: {path.parent.name}/{path.name}"))
            continue
        try:
            frames = read_video(path)
        except CorruptData:
            figures.append(words(f"Not a whole video: {path.parent.name}/{path.name}"))
            continue
        poster = _data("image/jpeg", encode_image(frames[len(frames) // 2], ".jpg"))
        figures.append(
            f'<figure><video controls muted loop playsinline poster="{poster}" '
            f'src="{_data(VIDEO_TYPES[path.suffix], path.read_bytes())}"></video>'
            f'<figcaption class="note">{escape(path.stem)}</figcaption></figure>'
        )
    return f"<div>{''.join(figures)}</div>" if figures else ""


def section(title: str, note: str, body: str) -> str:
    """Return a titled section of the page."""
    about = f'<p class="note">{escape(note)}</p>' if note else ""
    return f"<section><h2>{escape(title)}</h2>{about}{body}</section>"


def grid(cards: Sequence[str], *, wide: bool = False) -> str:
    """Return cards side by side, as many as fit: two when `wide`, else three."""
    return f'<div class="grid{" wide" if wide else ""}">{"".join(cards)}</div>'


def card(
    title: str, body: str, value: str = "", *, note: str = "", legend: Sequence[Trace] = ()
) -> str:
    """Return a plot or table with its title and newest value; a note replaces an empty body."""
    about = f'<p class="note">{escape(note)}</p>' if note else ""
    keys = "".join(
        f'<span class="{trace.mark}" style="--c:var(--{trace.colour})">{escape(trace.label)}</span>'
        for trace in reversed(legend)
        if trace.y.size
    )
    newest = f"<output>{escape(value)}</output>" if body and value else ""
    return (
        f'<div class="card"><header><h3>{escape(title)}</h3>{newest}</header>{about}'
        f'<div class="key">{keys}</div>{body or words("Nothing recorded yet.")}</div>'
    )


def panel(body: str) -> str:
    """Return a card across the page without a title."""
    return f'<div class="card panel">{body}</div>'


def folded(title: str, body: str) -> str:
    """Return a part of the page that opens with a click on its title."""
    return f"<details><summary>{escape(title)}</summary>{body}</details>"


def table(
    heads: Sequence[str], rows: Sequence[Sequence[str]], *, last_is_text: bool = False
) -> str:
    """Return a table: numbers flush right, the first column (and the last, if text) flush left."""
    head = "".join(f"<th>{escape(text)}</th>" for text in heads)
    body = "".join(
        f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows
    )
    kind = ' class="text"' if last_is_text else ""
    return (
        f'<div class="scroll"><table{kind}><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def words(text: str) -> str:
    """Return a note, as in the place of missing content."""
    return f'<p class="note">{escape(text)}</p>'


def whole(value: float) -> str:
    """Return an integer as "12 000", with narrow spaces; "-" for NaN."""
    return f"{round(value):,}".replace(",", "\N{NARROW NO-BREAK SPACE}") if _known(value) else "-"


def decimal(value: float, digits: int | None = None) -> str:
    """Return a number with three significant digits, or `digits` after the point; "-" for NaN."""
    if not _known(value):
        return "-"
    if digits is not None:
        return f"{value:.{digits}f}"
    return whole(value) if abs(value) >= 1000 else f"{value:.3g}"


def percent(share: float, digits: int = 0) -> str:
    """Return a share as "7 %"; "-" for NaN."""
    return f"{100 * share:.{digits}f} %" if _known(share) else "-"


def seconds(value_s: float) -> str:
    """Return a duration as "4.2 s"; "-" for NaN."""
    return f"{value_s:.1f} s" if _known(value_s) else "-"


def minutes(value_s: float) -> str:
    """Return a duration as "5.2 min", in hours from two hours on."""
    return f"{value_s / 60:.1f} min" if value_s < 7200 else f"{value_s / 3600:.1f} h"


def clock(value_s: float) -> str:
    """Return a duration as "1:02:05"."""
    minute, second = divmod(round(value_s), 60)
    hour, minute = divmod(minute, 60)
    return f"{hour}:{minute:02}:{second:02}"


def _known(value: float) -> bool:
    return math.isfinite(value)


def _data(kind: str, content: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"
