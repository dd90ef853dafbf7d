"""What the product says when it refuses something."""

from __future__ import annotations

from collections.abc import Callable

from serl.errors import SerlError


def refusal(act: Callable[[], object], kind: type[SerlError] = SerlError) -> str:
    """The one line that it refuses with; empty when it does not. Other errors get through."""
    try:
        act()
    except kind as error:
        line = str(error)
    else:
        return ""
    assert line, kind
    assert "\n" not in line, line
    return line
