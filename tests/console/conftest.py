"""Fixtures: a console with a fake backend, and pages of one Chromium per module."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any

import pytest

from .browser import Page, chromium, tab
from .site import Site, site

REST: dict[str, Any] = {
    **dict.fromkeys(("driver", "owner", "silent", "stopped", "paused", "last"), ""),
    **{"episode": 3, "step": 11, "fresh": True, "still": False, "over": False},
}
HEALTH = {name: [True, "well"] for name in ("learner", "weights", "link", "disk")}
TRAINING: dict[str, Any] = {
    **{"task": "reach", "run": "run", "steps": 7, "total_steps": 10, "advice": "watch"},
    **{"alone": [0, 0], "assisted": [0, 0], "human_share": None, "cycle_time_s": None},
    **{"takeovers": 0, "budget_share": 0.5},
    **{"recent": [], "elapsed_s": 1.0, "left_s": None, **HEALTH},
}
COLLECTING: dict[str, Any] = {
    **{"task": "reach", "run": "run", "session": "reward", "counts": [], "recent": []},
    **{"advice": "to go: 3 positives", "disk": [True, "well"]},
}
EPISODES = [
    {"name": f"{number}-000000", "place": place, "film": True}
    for number, place in enumerate(("kept", "failures", "undone", "kept"), 1)
]
RECORDING: dict[str, Any] = {
    **COLLECTING,
    **{"session": "demonstrations", "advice": "to go: 3 demonstrations", "episodes": EPISODES},
}
ACTORS = [
    {**dict.fromkeys(("driver", "owner", "silent", "stopped", "paused", "question"), "")}
    | {"name": name, "step": 4, "fresh": True, **state}
    for name, state in (("left", {}), ("right", {"stopped": "stopped by the operator"}))
]


def show_state(
    here: Site, state: Mapping[str, Any], progress: Mapping[str, Any] = TRAINING
) -> None:
    here.backend.shown, here.backend.numbers = {**REST, **state}, dict(progress)


def film_of(*pictures: bytes) -> bytes:
    return b"".join(len(each).to_bytes(4, "big") + each for each in pictures)


async def enter(page: Page, here: Site) -> None:
    await page.open(here.own)
    await page.unlock(here.token)
    await page.until("document.getElementById('task').textContent === 'reach'")


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Start the Chromium that all tests of a module share; yield its DevTools address."""
    with chromium(tmp_path_factory.mktemp("profile")) as address:
        yield address


def with_page(check: Callable[[Page, Site], Awaitable[None]]) -> Callable[[str], None]:
    """Wrap an async check as a test that runs it with a console and an open browser page."""

    def test(address: str) -> None:
        async def run() -> None:
            async with site() as here, tab(address) as page:
                await check(page, here)

        asyncio.run(run())

    test.__name__ = check.__name__
    return test
