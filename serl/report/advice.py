"""One line on what a person should do now, drawn from the last episodes.

The rules follow what those who trained with corrections report: help early episodes to a success
(a third of them at least), correct briefly, and let go when the policy does it alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

ALONE = 10
"""Last episodes that are looked at; hands should be off from so many successes without them on."""
ENOUGH = 8
PATIENCE = 15
"""Episodes without a success after which a demonstration helps more than waiting."""
_WINDOW = 20
_MUCH = 0.5
_LONG_S = 2.0
"""Of a takeover on average: bench_habits.py's brief ones take 1.2 s, its long ones 2.5 s."""
_THIRD = 3


def advise(episodes: Sequence[dict[str, Any]]) -> str:
    """What to do, and why, from rows of metrics of episodes, oldest first."""
    if not episodes:
        return "watch: the first episode is on its way"
    last = list(episodes)[-PATIENCE:]
    alone = [row["success"] and not row["assisted"] for row in episodes[-ALONE:]]
    won = sum(row["success"] for row in last)
    if len(alone) == ALONE and sum(alone) >= ENOUGH:
        return f"hands off: {sum(alone)} of the last {ALONE} episodes succeeded without help"
    if len(last) == PATIENCE and not won:
        return f"demonstrate: no success in {PATIENCE} episodes"
    if len(last) == PATIENCE and won * _THIRD < PATIENCE:
        return f"help to a success: {won} of the last {PATIENCE} episodes had one"
    if (share := human_share(episodes)) > _MUCH:
        return f"correct more briefly: hands were on in {share:.0%} of the last steps"
    if len(last) == PATIENCE and (takeover_s := mean_takeover_s(episodes)) > _LONG_S:
        return f"correct briefly: takeovers of {takeover_s:.1f} s raise over-estimation"
    tried = [row["success"] for row in episodes if not row["assisted"]][-ALONE:]
    if not tried:
        return "let it try: no episode was without help yet"
    return f"correct briefly: {sum(tried)} of the last {len(tried)} unassisted episodes succeeded"


def human_share(episodes: Sequence[dict[str, Any]]) -> float:
    """Share of human steps in the last 20 episodes; 0 without any."""
    last = list(episodes)[-_WINDOW:]
    steps = sum(row["length"] for row in last)
    return sum(row["human_steps"] for row in last) / steps if steps else 0.0


def mean_takeover_s(episodes: Sequence[dict[str, Any]]) -> float:
    """How long a takeover of the last 20 episodes was, on average; 0 without any.

    A long one that ends in a success teaches that what it began in is worth that success, which the
    policy alone cannot make true.
    """
    last = [row for row in list(episodes)[-_WINDOW:] if row["interventions"]]
    hands_s = sum(row["human_steps"] * row["duration_s"] / row["length"] for row in last)
    return hands_s / sum(row["interventions"] for row in last) if last else 0.0
