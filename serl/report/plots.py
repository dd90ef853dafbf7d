"""Plots as inline SVG, with the colours and the font of the surrounding page."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import matplotlib as mpl
import numpy as np
from markupsafe import Markup, escape
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from serl.report.curves import Values, thin

Colour = Literal["policy", "human", "evaluation", "quiet"]
Scale = Literal["values", "percent", "fitted percent"]

_PLACEHOLDERS: dict[str, str] = {
    "policy": "#010203",
    "human": "#010204",
    "evaluation": "#010205",
    "quiet": "#010206",
    "rule": "#010207",
}
"""Placeholder colours, replaced by the page's CSS variables when the SVG is written."""

_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "font.size": 10.5,
    "axes.edgecolor": _PLACEHOLDERS["rule"],
    "axes.labelcolor": _PLACEHOLDERS["quiet"],
    "xtick.color": _PLACEHOLDERS["rule"],
    "ytick.color": _PLACEHOLDERS["rule"],
    "xtick.labelcolor": _PLACEHOLDERS["quiet"],
    "ytick.labelcolor": _PLACEHOLDERS["quiet"],
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "grid.color": _PLACEHOLDERS["rule"],
    "grid.linewidth": 0.8,
    "path.simplify": True,
}
_MAX_POINTS = 320
_DOT_PT = 4.2
_NO_METADATA: dict[str, None] = dict.fromkeys(["Creator", "Date", "Format", "Type"])


@dataclass(frozen=True, eq=False)
class Trace:
    """One line or cloud of a plot.

    Attributes:
        label: for the legend; empty for none.
        colour: colour by meaning.
        x: abscissae.  # (N,)
        y: ordinates, NaN where missing.  # (N,)
        mark: a line, faint dots of raw values, or marked points.
        interval: lower and upper ends of error bars of points, or of the band around a line.
            # two of (N,)
    """

    label: str
    colour: Colour
    x: Values
    y: Values
    mark: Literal["line", "dots", "points"] = "line"
    interval: tuple[Values, Values] | None = None


def plot(
    name: str,
    traces: Sequence[Trace],
    x_label: str,
    *,
    scale: Scale = "values",
    size_px: tuple[int, int] = (330, 190),
    from_zero: bool = False,
) -> Markup:
    """Return an `<svg>` element as wide as its parent; empty when no trace has a finite point.

    Args:
        name: unique on the page, and the plot's name for screen readers.
        traces: traces in drawing order, the last on top.
        x_label: label of the horizontal axis.
        scale: "values"; or shares, on an axis up to 100 % ("percent"), or up to a bound that fits
            the data ("fitted percent").
        size_px: size at which text has its natural size.
        from_zero: whether the horizontal axis begins at 0 instead of near the first point.
    """
    if not any(np.isfinite(trace.y).any() for trace in traces):
        return Markup()
    with mpl.rc_context(_STYLE):
        figure = Figure((size_px[0] / 72, size_px[1] / 72), layout="constrained")
        axes = figure.add_subplot()
        for trace in traces:
            _draw(axes, trace)
        _dress(axes, traces, x_label, scale)
        if from_zero:
            axes.set_xlim(left=0.0)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata=_NO_METADATA)
    return Markup(_inline(buffer.getvalue(), name))


def _draw(axes: Axes, trace: Trace) -> None:
    colour = _PLACEHOLDERS[trace.colour]
    if trace.mark == "line":
        if trace.interval is not None:
            axes.fill_between(trace.x, *trace.interval, color=colour, alpha=0.16, linewidth=0)
        axes.plot(*thin(trace.x, trace.y, _MAX_POINTS), color=colour, linewidth=1.8)
    elif trace.mark == "dots":
        step = len(trace.x) // _MAX_POINTS + 1
        x, y = trace.x[::step], trace.y[::step]
        axes.plot(x, y, "o", color=colour, markersize=_DOT_PT, markeredgewidth=0, alpha=0.45)
    else:
        if trace.interval is not None:
            axes.vlines(trace.x, *trace.interval, color=colour, linewidth=1.2, alpha=0.6)
        axes.plot(trace.x, trace.y, "D", color=colour, markersize=4.5, markeredgewidth=0)


def _dress(axes: Axes, traces: Sequence[Trace], x_label: str, scale: Scale) -> None:
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.set_xlabel(x_label)
    axes.grid(axis="y")
    axes.set_axisbelow(True)
    axes.margins(x=0.02)
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True, steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_formatter(FuncFormatter(_short))
    values = np.concatenate([trace.y[np.isfinite(trace.y)] for trace in traces])
    if scale == "values":
        _fit(axes, values)
        return
    top = 1.0
    while scale == "fitted percent" and values.max() <= top / 2 and top > 0.1:
        top /= 2
    ticks = np.linspace(0.0, top, 5)
    axes.set_ylim(-0.03 * top, 1.03 * top)
    axes.set_yticks(ticks, [*(f"{100 * tick:.3g}" for tick in ticks[:-1]), f"{100 * top:.3g} %"])


def _fit(axes: Axes, values: Values) -> None:
    """Fit the vertical axis to the 0.5 to 99.5 % quantiles, so that outliers do not flatten it.

    The axis begins at 0 if the data come near it.
    """
    low, high = np.percentile(values, [0.5, 99.5])
    if 0 <= low < 0.4 * high:
        low = 0.0
    margin = 0.06 * (high - low) or 0.1 * abs(high) or 1.0
    axes.set_ylim(low - margin, high + margin)
    axes.yaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 2.5, 5, 10]))
    axes.yaxis.set_major_formatter(FuncFormatter(_short))


def _short(value: float, _position: int | None = None) -> str:
    """Return a tick's label: 12k instead of 12000."""
    return f"{value / 1000:g}k" if abs(value) >= 1000 else f"{value:.4g}"


def _inline(document: str, name: str) -> str:
    """Return a document's `<svg>` element with page colours, page font and unique identifiers."""
    svg = document[document.index("<svg") :]
    for variable, colour in _PLACEHOLDERS.items():
        svg = svg.replace(colour, f"var(--{variable})")
    slug = re.sub(r"\W+", "-", name)
    for pattern, replacement in (
        (r"<metadata>.*?</metadata>|<!--.*?-->|<style.*?</style>", ""),
        (r'<g id="[^"]*"', "<g"),
        (r' transform="rotate\(-0[^"]*"', ""),
        (r"font-family: [^;\"]*;|font: (?=[\d.]+px)", ""),
        (r'( id="|href="#|url\(#)', rf"\g<1>{slug}-"),
        (r"\s*\n\s*", "\n"),
    ):
        svg = re.sub(pattern, replacement, svg, flags=re.DOTALL)
    view_box = re.search(r'viewBox="[^"]*"', svg)
    body = svg[svg.index(">") + 1 :]
    return f'<svg role="img" aria-label="{escape(name)}" {view_box and view_box[0]}>{body}'
