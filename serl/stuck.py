"""An arm that does not move where it is led, though nothing that it feels holds it up.

That is a fault of the arm, and not how the world answers an action: nothing is to be learned from
the steps in which it stood already. They stay in the log.
"""

from __future__ import annotations

import math

from serl.types import End

STUCK = "the arm does not move"
STUCK_S = 2.0
"""How long it is led on in vain before a guard says so."""

_MORE_S = 0.5
"""Until it was as far behind as it is led, and until it was told."""


def stuck_since_s(end: End) -> float:
    """When the arm of an episode that ended so came to stand, as its steps tell time; else inf."""
    return end.monotonic_s - STUCK_S - _MORE_S if STUCK in end.reason else math.inf
