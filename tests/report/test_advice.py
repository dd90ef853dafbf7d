from __future__ import annotations

import pytest

from serl.report.progress import advise


def row(
    success: bool, assisted: bool, human_steps: int = 0, interventions: int = 1
) -> dict[str, object]:
    numbers = {"length": 100, "human_steps": human_steps, "duration_s": 10.0}
    takeovers = interventions if human_steps else 0
    return {"success": success, "assisted": assisted, "interventions": takeovers, **numbers}


ALONE_WON, ALONE_LOST = row(True, False), row(False, False)
HELPED_WON, HELPED_LOST = row(True, True, 5), row(False, True, 5)


@pytest.mark.parametrize(
    ("episodes", "line"),
    [
        ([], "watch: the first episode is in progress"),
        ([HELPED_WON], "let it try: no unassisted episode yet"),
        ([ALONE_LOST], "correct briefly: 0 of the last 1 unassisted episodes succeeded"),
        (
            [ALONE_LOST, ALONE_WON, HELPED_LOST],
            "correct briefly: 1 of the last 2 unassisted episodes succeeded",
        ),
        (
            [ALONE_WON] * 8 + [ALONE_LOST] * 2,
            "stop correcting: 8 of the last 10 episodes succeeded without help",
        ),
        (
            [ALONE_WON, HELPED_WON] * 10,  # half of the episodes were assisted
            "correct briefly: 10 of the last 10 unassisted episodes succeeded",
        ),
        (
            [ALONE_WON] * 8 + [HELPED_WON] * 2,
            "stop correcting: 8 of the last 10 episodes succeeded without help",
        ),
        (
            [HELPED_WON] + [ALONE_WON] * 8,  # nine episodes are below the required ten
            "correct briefly: 8 of the last 8 unassisted episodes succeeded",
        ),
        (
            [ALONE_WON] * 7 + [ALONE_LOST] * 3,
            "correct briefly: 7 of the last 10 unassisted episodes succeeded",
        ),
        ([HELPED_LOST] * 15, "demonstrate: no success in 15 episodes"),
        ([ALONE_LOST] * 14, "correct briefly: 0 of the last 10 unassisted episodes succeeded"),
        (
            [HELPED_LOST] * 11 + [HELPED_WON] * 4,
            "help it succeed: 4 of the last 15 episodes were successes",
        ),
        (
            [row(True, True, 75)] * 15,
            "correct more briefly: 75% of the last steps were human",
        ),
        (
            [row(True, True, 25)] * 15,
            "correct briefly: takeovers of 2.5 s raise over-estimation",
        ),
        ([row(True, True, 25, 2)] * 15, "let it try: no unassisted episode yet"),
        ([row(True, True, 25)] * 14, "let it try: no unassisted episode yet"),
    ],
)
def test_advice_follows_from_last_episodes(episodes: list[dict[str, object]], line: str) -> None:
    assert advise(episodes) == line
