"""A browser user picks the cube with keys, guided by the log, which records the session."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import groupby
from pathlib import Path

import numpy as np
import pytest

from serl.log.annotations import StepKey, read_label_entries
from serl.types import ActionSource, End, Step

from ..bench.bench_person import Eyes
from ..console.browser import CHROMIUM, Page
from .test_console import Training, ended, human_segments, opened

pytestmark = [
    pytest.mark.ros,
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="NO PAGE TESTED: there is no Chromium"),
]

STEP_M = 0.006  # a key press moves only a little
SETTINGS = {
    "task_config.motion.translation_m": STEP_M,
    "task_config.time_limit_s": 300.0,
}
AXES = (("KeyW", "KeyS"), ("KeyA", "KeyD"), ("KeyR", "KeyF"))
HOVER_M, LIFTED_M = 0.065, 0.08
FAR_M, NEAR_M = 0.03, 0.6 * STEP_M


@asynccontextmanager
async def hold_keys(page: Page, *codes: str) -> AsyncIterator[None]:
    for code in codes:
        await page.key(code)
    yield
    for code in codes:
        await page.key(code, "keyUp")


class KeyPicker:
    """A scripted user: reads the state, presses keys briefly, and repeats; Space keeps control."""

    def __init__(self, page: Page, eyes: Eyes) -> None:
        self._page, self._eyes = page, eyes

    async def pick(self) -> None:
        for _ in range(4):
            async with hold_keys(self._page, "KeyV"):
                await asyncio.sleep(0.6)
            await self._go_over_it_and_down()
            async with hold_keys(self._page, "KeyC"):
                await asyncio.sleep(1.0)
            async with hold_keys(self._page, "KeyR"):
                for _ in range(40):
                    await asyncio.sleep(0.1)
                    if (await self._state())["cube_height"][0] > LIFTED_M:
                        return
        raise AssertionError("the cube was not lifted")

    async def _go_over_it_and_down(self) -> None:
        down = False
        for _ in range(150):
            state = await self._state()
            way = state["cube_from_tcp"] - state["lead"]
            off = max(abs(way[0]), abs(way[1]))
            down = off < 0.008 or (down and off < 0.015)
            way = way + np.array([0.0, 0.0, 0.0 if down else HOVER_M])
            if down and abs(way[2]) < 2 * NEAR_M:
                return
            codes = [
                AXES[axis][0 if part > 0 else 1]
                for axis, part in enumerate(way)
                if abs(part) > NEAR_M
            ]
            async with hold_keys(self._page, *codes):
                await asyncio.sleep(0.3 if np.abs(way).max() > FAR_M else 0.11)
            await asyncio.sleep(0.3)
        raise AssertionError("never over the cube")

    async def _state(self) -> dict[str, np.ndarray[tuple[int], np.dtype[np.float64]]]:
        while (seen := self._eyes.look()) is None:
            await asyncio.sleep(0.1)
        return {name: np.asarray(value, np.float64) for name, value in seen.state.items()}


async def session(training: Training, folder: Path) -> None:
    async with opened(training, folder) as page:
        await page.take()
        async with hold_keys(page, "Space"):
            await page.says("You drive")
            await page.hit("KeyN")  # restore the cube
            await ended(training, ["operator"])
            await page.says("You drive")
            await KeyPicker(page, Eyes(training.run.episodes("actor0"))).pick()
            await page.hit("Enter")
            await ended(training, ["operator", "success"])
        await page.says("The policy drives")
        await page.hit("Escape")
        await page.says("Stopped")
        await ended(training, ["operator", "success", "stopped"])
        await page.hit("KeyG")
        await page.says("Holding")
        await page.hit("KeyG")
        await page.says("The policy drives")
        await page.hit("KeyN")
        await ended(training, ["operator", "success", "stopped", "operator"])
        await page.says("The policy drives")


def test_operator_picks_cube_with_keys_and_log_matches(tmp_path: Path) -> None:
    training = Training(tmp_path, "pick_cube", **SETTINGS)
    try:
        asyncio.run(session(training, tmp_path / "chromium"))
    finally:
        training.command.interrupt()
    log, folder = training.log, training.run.episodes("actor0")
    ends = [r for r in log if isinstance(r, End) and r.text not in {"time limit", "interrupted"}]
    restarted, succeeded, stopped, _ = ends
    assert [end.success for end in ends] == [False, True, False, False]
    picked = [r for r in log if isinstance(r, Step) and r.key.episode == succeeded.key.episode]
    assert {step.source for step in picked} == {ActionSource.HUMAN}, "all steps must be human"
    assert float(picked[0].observation.state["cube_height"][0]) < 0.03
    assert float(succeeded.observation.state["cube_height"][0]) > LIFTED_M - 0.01
    assert (picked[-1].reward, picked[-1].reward_provenance) == (1.0, "human")
    by_hand = {s.key.episode for segment in human_segments(log) for s in segment}
    assert by_hand <= {restarted.key.episode, succeeded.key.episode, succeeded.key.episode + 1}, (
        "the policy drives after the success"
    )
    labels = list(read_label_entries(folder))
    place = StepKey(succeeded.key.epoch, succeeded.key.episode, succeeded.key.index)
    assert [(word.place, word.label, word.by) for word in labels] == [(place, 1, "the operator")]
    stopped_steps = [r for r in log if isinstance(r, Step) and r.key.episode == stopped.key.episode]
    assert [source for source, _ in groupby(step.source for step in stopped_steps)][
        -1
    ] is ActionSource.POLICY
    assert stopped_steps[-1].truncated
