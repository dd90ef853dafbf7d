"""One page for two actors over ROS 2: cards select the driven actor, STOP ALL stops all."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import Self

import pytest

from serl import plugins
from serl.clock import WallClock
from serl.console.access import ConsoleAddress, read_address
from serl.loop import EpisodeKey, Observer, run
from serl.policy import ZeroPolicy
from serl.ros.node import RosNode
from serl.ros.people.control import OperatorInterface, action_frame
from serl.ros.testing.processes import ROBOT, eventually
from serl.runs.config import resolve
from serl.runs.folder import RunFolder
from serl.runs.task_setup import make_task
from serl.types import ActionSource, Step

from ..console.browser import CHROMIUM, Page, browser
from .support.guard_bench import GuardBench

pytestmark = [
    pytest.mark.ros,
    pytest.mark.skipif(CHROMIUM is None, reason="NO PAGE TESTED: there is no Chromium"),
]

LEFT = "left"
TRIES = 8
"""Attempts of timing-dependent checks; a busy machine delays single ones."""
SETTINGS = {
    "task": "reach",
    "reward": {"kind": "human"},
    "teleop": {"operator": {"stale_s": 0.5, "lost_s": 8.0}},  # test machines are busy
}


class ActorThread(ExitStack, Observer):
    """An actor of a simulated arm in a thread, with operators and a zero policy."""

    def __init__(self, folder: RunFolder, name: str) -> None:
        super().__init__()
        self.name, self._folder = name, folder
        self.forward: list[bool] = []  # whether each human step moved forward
        self.rested = 0  # steps since the last human step
        self._ending = threading.Event()

    def __enter__(self) -> Self:
        config, name = self._folder.config, self.name
        node = self.enter_context(RosNode(name, self._folder.path, local=True))
        frame, link = action_frame(config), self._folder.link(name)
        self.people = OperatorInterface(node, name, config.teleop, frame, link)
        thread = threading.Thread(target=self._act, daemon=True)
        thread.start()
        self.callback(thread.join)
        self.callback(self._ending.set)
        return self

    def _act(self) -> None:
        task, hold = make_task(self._folder.config), self.people.hold
        robot = plugins.make_simulation(task)
        desk = self.people.human_input(robot, None, self._folder.episodes(self.name))
        clock, rests = WallClock(task.config.rate_hz), ZeroPolicy(robot.action_spec)
        for episode in count():
            hold.wait(self._ending.is_set)
            if self._ending.is_set():
                return
            robot.reset(episode)
            run(
                *(robot, task, rests, clock, EpisodeKey("run", self.name, 1, episode)),
                [desk, self.people, self],
                teleop=desk,
                interrupted=lambda: hold.wait_paused(self._ending.is_set),
            )

    def on_step(self, step: Step) -> None:
        """Record the actions of human steps."""
        self.rested += 1
        if step.source is ActionSource.HUMAN:
            self.rested = 0
            self.forward.append(bool(step.action[0] > 0))


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[GuardBench]:
    config = resolve(SETTINGS | {"actors": 2, "demos": 0})
    folder = RunFolder.create(tmp_path, config, datetime.now())
    with GuardBench(folder.path) as made:
        yield made


def open_console(bench: GuardBench) -> ConsoleAddress:
    """Start the console of two actors, of which only the right one has a guard."""
    bench.start(
        *("console", "-m", "serl.ros.nodes.console", "--run", str(bench.folder)),
        *("--port", "8950", "--actor", LEFT),
        *("--actor", ROBOT, "--guard", ROBOT, ROBOT, str(bench.latch)),
    )
    eventually(lambda: read_address(bench.folder))
    door = read_address(bench.folder)
    assert door is not None
    return door


def test_card_selects_driven_actor_and_stop_all_stops_actors_and_guards(
    bench: GuardBench, tmp_path: Path
) -> None:
    bench.start_arm()
    bench.start_guard()
    door, folder = open_console(bench), RunFolder.open(bench.folder)
    with ActorThread(folder, LEFT) as left, ActorThread(folder, ROBOT) as right:
        bench.until("disarmed")
        asyncio.run(_drive_both_and_stop(door, bench, left, right, tmp_path / "chromium"))
    for name in (LEFT, ROBOT):
        assert "stopped by the operator" in (folder.link(name) / "stopped").read_text()


async def _drive_both_and_stop(
    door: ConsoleAddress, bench: GuardBench, left: ActorThread, right: ActorThread, profile: Path
) -> None:
    async with browser(profile) as page:
        await page.open(f"{door.url}#{door.token}")
        await page.until("!document.getElementById('desk').hidden")
        await page.until("document.querySelectorAll('#actors [data-actor]').length === 2")
        await page.says("The policy drives")
        await page.take()
        await _drive(page, left, right)
        await page.click_on(f"#actors [data-actor={ROBOT}]")
        await page.until(f"document.querySelector('#actors .here').dataset.actor === '{ROBOT}'")
        await _drive(page, right, left)
        await page.click("estop")
        await page.says("Stopped")
        await page.until("document.querySelectorAll('#actors [data-mood=stop]').length === 2")
        await asyncio.to_thread(bench.until, "estop")
        assert left.people.hold.stopped
        assert right.people.hold.stopped
        assert await page.text("alarm") == ""


async def _drive(page: Page, driven: ActorThread, other: ActorThread) -> None:
    """Hold W until the driven actor moves forward, then release; the other gets no input.

    A page that is late for `stale_s` leaves the control with the person, who has to drive and let
    go once more; after `lost_s` the actor pauses until the person goes on.
    """
    before = sum(other.forward)
    await page.says("The policy drives")
    for _ in range(TRIES):
        await page.key("KeyW")
        await _wait(lambda: any(driven.forward))
        await page.key("KeyW", "keyUp")
        await _wait(lambda: driven.rested >= 10)
        if any(driven.forward) and driven.rested >= 10:
            break
        if await page.run("!document.getElementById('go').hidden"):
            await page.hit("KeyG")
    assert any(driven.forward)
    assert driven.rested >= 10, await page.run("document.body.innerText")
    await page.says("The policy drives")
    assert sum(other.forward) == before


async def _wait(condition: Callable[[], bool]) -> None:
    """Return once the condition holds, at the latest after 12 s."""
    with suppress(AssertionError):
        await asyncio.to_thread(eventually, condition, 12.0)
