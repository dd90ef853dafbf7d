"""Collection of labelled images at the page: Chromium, DDS, a real simulation."""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from serl.console.access import ConsoleAddress, read_address
from serl.log.annotations import read_labels
from serl.log.episode_reader import episode_paths
from serl.runs.reward_data import read_samples

from ..console.browser import CHROMIUM, Page, browser
from ..support.command import Command
from .test_record import SETTINGS, counted, enter

pytestmark = [
    pytest.mark.ros,
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="NO PAGE TESTED: there is no Chromium"),
]

WANTED = ("--positives", 12, "--negatives", 5)
LAX = {name: value for name, value in SETTINGS.items() if name != "reward.kind"}
NUMBER = "Number(document.querySelector('[data-name={}] strong').firstChild.textContent)"


def collecting(folder: Path) -> tuple[Command, ConsoleAddress]:
    words = ("reward", "collect", "pick_cube", "--console", *WANTED, "--out", "images")
    command = Command(folder, *words, **LAX)
    command.until(lambda: read_address(folder / "images"))
    door = read_address(folder / "images")
    assert door is not None, command.output
    return command, door


async def shows_answer(page: Page, what: str) -> None:
    await page.until(f"document.getElementById('answer').textContent.startsWith('{what}')")


async def drive(page: Page) -> None:
    """Take over by a key; resume first if the page holds.

    On a busy machine the page may have fallen silent in a hand.
    """
    drives = "document.getElementById('who').textContent === 'You drive'"
    for _ in range(20):
        if await page.run("!document.getElementById('go').hidden"):
            await page.hit("KeyG")
        await page.key("KeyA")
        with suppress(AssertionError):
            await page.until(drives, 3.0)
        await page.key("KeyA", "keyUp")
        if await page.run(drives):
            return
        await asyncio.sleep(1.0)
    raise AssertionError(await page.run("document.body.innerText"))


async def mark(page: Page, code: str, name: str) -> None:
    """Press the key of a label until the page counts one more."""
    before = await page.run(NUMBER.format(name))
    await page.hit(code)
    await page.until(f"{NUMBER.format(name)} === {before + 1}")


async def first_session(folder: Path, door: ConsoleAddress) -> None:
    async with browser(folder / "first") as page:
        await enter(page, door)
        await page.hit("Digit1")
        await shows_answer(page, "nothing to mark: the episode begins when you drive")
        await counted(page, "positives", 0)
        await drive(page)
        await mark(page, "Digit0", "negatives")
        await page.click_on("[data-say=negative]")
        await counted(page, "negatives", 2)
        await page.press_on("[data-say=positive]")  # and holds
        await page.until(f"{NUMBER.format('positives')} >= 3")
        await page.release()
        await page.hit("Enter")  # has no effect here
        await page.until("document.getElementById('who').textContent !== 'Ready'")
        await page.hit("KeyN")
        await page.says("Ready")
        await page.hit("Digit0")
        await shows_answer(page, "nothing to mark")


async def second_session(folder: Path, door: ConsoleAddress, command: Command) -> None:
    async with browser(folder / "second") as page:
        await enter(page, door)
        await counted(page, "negatives", 2)
        await drive(page)
        await mark(page, "Digit0", "negatives")
        await mark(page, "Digit1", "positives")
        while command.is_running:
            for code in ("Digit0", "Digit1"):
                await page.hit(code)
                await asyncio.sleep(0.3)  # a step passes


def test_operator_collects_positives_and_negatives_in_two_sessions(tmp_path: Path) -> None:
    command, door = collecting(tmp_path)
    with command:
        asyncio.run(first_session(tmp_path, door))
    assert command.process.returncode == 130, command.output
    assert "to continue: the same command with --out images" in command.output
    folder = tmp_path / "images"
    first = list(read_labels(folder).values())
    assert first.count(0) == 2
    assert first.count(1) >= 3, "only marks create labels"
    command, door = collecting(tmp_path)
    with command:
        asyncio.run(second_session(tmp_path, door, command))
        command.succeed()
    assert "next: serl reward train images" in command.output
    assert re.search(r"^\d+ of 12 positives, \d+ of 5 negatives$", command.output, re.M)
    samples, views = read_samples([folder])
    negatives, positives = np.bincount(samples.labels).tolist()
    assert negatives >= 5
    assert positives >= 12
    assert views
    assert len(episode_paths(folder)) >= 2
