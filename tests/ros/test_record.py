"""Recording of demonstrations at the page: Chromium, real DDS, a real simulation."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import numpy as np
import pytest

from serl.console.access import ConsoleAddress, read_address
from serl.datasets.recording_session import FAILURES, UNDONE
from serl.log.annotations import read_labels
from serl.log.episode_reader import episode_paths, read_episode
from serl.ros.testing.processes import eventually
from serl.runs.folder import RunFolder
from serl.runs.task_setup import make_spec, make_task
from serl.types import ActionSource

from ..console.browser import CHROMIUM, Page, browser
from ..support.command import Command
from .conftest import LIMIT_S

pytestmark = [
    pytest.mark.ros,
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="NO PAGE TESTED: there is no Chromium"),
]

SETTINGS = {
    "reward.kind": "human",  # nothing succeeds by itself
    "teleop.operator.stale_s": 0.5,  # test machines are busy
    "teleop.operator.lost_s": 8.0,
    "log.min_free_bytes": 1_000_000,
}


PAGE = (Path(__file__).parents[2] / "docs/tutorials/record.md").read_text(encoding="utf-8")


def commands(start: str) -> list[list[str]]:
    """Return the arguments of the tutorial's commands that start with these words."""
    lines = re.findall(rf"^serl ({start}.*)$", PAGE, re.MULTILINE)
    assert lines, start
    return [line.split() for line in lines]


def recording(folder: Path, demos: int) -> tuple[Command, ConsoleAddress]:
    first, again = commands("record")
    assert first == again, "the same command continues"
    words = [str(demos) if word == "5" else word for word in first]
    command = Command(folder, *words, **SETTINGS)
    command.until(lambda: read_address(folder / "demos"))
    door = read_address(folder / "demos")
    assert door is not None, command.output
    return command, door


async def enter(page: Page, door: ConsoleAddress) -> None:
    await page.open(door.url)
    await page.unlock(door.token)
    await page.says("Ready")
    await page.until("!document.getElementById('session').hidden")
    await page.take()
    await asyncio.sleep(1.0)  # input counts only after rest


async def demonstrate(page: Page, says: str) -> None:
    """Drive by a key, press the key of an outcome, and release control."""
    await page.key("KeyD")
    await page.says("You drive")
    await asyncio.sleep(0.5)
    await page.hit(says)
    await page.says("Ready")
    await page.key("KeyD", "keyUp")
    await asyncio.sleep(0.5)  # input counts only after rest


async def counted(page: Page, name: str, count: int) -> None:
    tile = f"document.querySelector('[data-name={name}] strong')"
    await page.until(f"{tile} && {tile}.firstChild.textContent === '{count}'")


ASLEEP = "const until = Date.now() + 25_000; while (Date.now() < until);"


async def sleep_while_pushing(page: Page, command: Command) -> None:
    """Block the page's script while a key is held, as in a suspended tab."""
    await page.key("KeyD")
    await page.says("You drive")
    asleep = asyncio.create_task(page.run(f"(() => {{ {ASLEEP} }})()"))
    await asyncio.to_thread(eventually, lambda: "device lost, " in command.output, LIMIT_S)
    await asleep


async def first_session(folder: Path, door: ConsoleAddress, command: Command) -> None:
    async with browser(folder / "first") as page:
        await enter(page, door)
        await demonstrate(page, "Enter")
        await counted(page, "demonstrations", 1)
        await demonstrate(page, "Backspace")
        await counted(page, "failures", 1)
        await page.hit("KeyZ")
        await counted(page, "demonstrations", 0)
        await counted(page, "undone", 1)
        await demonstrate(page, "Enter")
        await counted(page, "demonstrations", 1)
        await sleep_while_pushing(page, command)


async def second_session(folder: Path, door: ConsoleAddress) -> None:
    async with browser(folder / "second") as page:
        await enter(page, door)
        await counted(page, "demonstrations", 1)
        await page.key("KeyD")
        await page.says("You drive")
        await page.hit("Enter")


SHORT = {
    "steps": 20,
    "task_config.time_limit_s": 0.5,
    "trials": 1,
    "selection_trials": 1,
    "selection_checkpoints": 1,
    "required_success_rate": "null",
    "agent.hidden": "[16, 16]",
    "agent.batch_size": 16,
    "agent.bc_warm_start": 0,
    "learner.warm_up": 0,
}


def test_operator_records_undoes_and_continues_in_second_session(tmp_path: Path) -> None:
    command, door = recording(tmp_path, 2)
    with command:
        asyncio.run(first_session(tmp_path, door, command))
    assert command.process.returncode == 130, command.output
    assert "1 demonstration in demos; stored separately: 2 failures, 1 undone" in command.output
    command, door = recording(tmp_path, 2)
    with command:
        asyncio.run(second_session(tmp_path, door))
        command.succeed()
    folder = tmp_path / "demos"
    spec = make_spec(make_task(RunFolder.open(folder).config))
    kept = [read_episode(path, spec) for path in episode_paths(folder)]
    assert [episode.success for episode in kept] == [True, True]
    assert all(episode.steps[0].source is ActionSource.HUMAN for episode in kept), (
        "a demonstration starts with a human step"
    )
    assert len(episode_paths(folder / UNDONE)) == 1
    failures = [read_episode(path, spec) for path in episode_paths(folder / FAILURES)]
    assert [episode.end and episode.end.text for episode in failures] == [
        "failure",
        "device lost",
    ]
    lost = failures[1].steps[-3:]
    assert not any(step.action.any() for step in lost), "the robot must hold while the page sleeps"
    assert sorted(read_labels(folder).values()) == [0, 1, 1, 1], "labels of all episodes are kept"
    for words in (*commands("replay"), *commands("demos undo")):
        with Command(tmp_path, *words) as look:
            look.succeed()
    assert len(episode_paths(folder)) == 1, "the newest demonstration is undone"
    (train,) = commands("train")
    with Command(tmp_path, *train, **SHORT) as training:
        training.succeed()


async def drive_both_arms(folder: Path, door: ConsoleAddress) -> None:
    async with browser(folder / "page") as page:
        await enter(page, door)
        await page.key("KeyW")
        await page.says("You drive the left arm")
        await asyncio.sleep(1.0)
        await page.hit("KeyE")
        await page.says("You drive the right arm")
        await page.key("KeyW", "keyUp")
        await page.key("KeyW")
        await asyncio.sleep(1.5)
        await page.hit("Enter")


def test_operator_records_pair_of_arms_driving_one_arm_at_a_time(tmp_path: Path) -> None:
    words = ("record", "handover", "--demos", "1", "--console", "--out", "demos")
    command = Command(tmp_path, *words, **SETTINGS)
    with command:
        command.until(lambda: read_address(tmp_path / "demos"))
        door = read_address(tmp_path / "demos")
        assert door is not None, command.output
        asyncio.run(drive_both_arms(tmp_path, door))
        command.succeed()
    spec = make_spec(make_task(RunFolder.open(tmp_path / "demos").config))
    (path,) = episode_paths(tmp_path / "demos")
    steps = read_episode(path, spec).steps
    driven = np.array([step.action for step in steps if step.source is ActionSource.HUMAN])
    left, right = (part.any(axis=1) for part in np.hsplit(driven, 2))
    assert left.any()
    assert right.any()
    assert not (left & right).any(), "only one arm may move in a step"
