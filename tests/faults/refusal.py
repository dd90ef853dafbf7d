"""Error messages with which the product refuses input."""

from __future__ import annotations

from collections.abc import Callable

from serl.errors import SerlError


def refusal(act: Callable[[], object], kind: type[SerlError] = SerlError) -> str:
    """Return the one-line error of a call; empty without an error. Other errors propagate."""
    try:
        act()
    except kind as error:
        line = str(error)
    else:
        return ""
    assert line, kind
    assert "\n" not in line, line
    return line
