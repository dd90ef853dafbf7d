"""An operator at the page of a running training: Chromium, real processes, DDS and the log."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import groupby
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest
from sensor_msgs.msg import JointState

from serl.console.access import ConsoleAddress, read_address
from serl.log.annotations import LABELS_FILE, read_labels
from serl.log.episode_reader import read_records
from serl.ros.arm.topics import SENSOR
from serl.ros.node import RosNode
from serl.ros.testing.processes import eventually
from serl.ros.topics import Topic
from serl.runs.folder import RunFolder
from serl.runs.task_setup import make_spec, make_task
from serl.teleop.human_input import TWICE_S
from serl.types import ActionSource, End, Record, Step

from ..console.browser import CHROMIUM, Page, browser
from ..console.site import heard
from ..support.command import Command
from .conftest import LIMIT_S
from .test_training import TINY

pytestmark = [
    pytest.mark.xdist_group("console"),  # one training serves all tests
    pytest.mark.ros,
    pytest.mark.skipif(CHROMIUM is None, reason="NO PAGE TESTED: there is no Chromium"),
]

LAB = "127.0.0.2"  # stands for this machine's address in the lab network
QUIET = {
    **TINY,
    "intervention": "none",
    "steps": 1_000_000,
    "task_config.time_limit_s": 600.0,  # a label within 0.7 s of an end would be ignored
    "reward.kind": "human",  # nothing succeeds by itself
    "actor.max_lead_steps": 1_000_000,
    "teleop.operator.stale_s": 0.5,  # test machines are busy
    "teleop.operator.lost_s": 8.0,
    "log.min_free_bytes": 1_000_000,
    "learner.checkpoint_every": 100_000,
}


class Training:
    """A training with a console, and its log."""

    def __init__(self, folder: Path, task: str = "reach", **settings: object) -> None:
        inapplicable = {"task_config.reach_m"} if task != "reach" else set()
        applicable = {name: value for name, value in QUIET.items() if name not in inapplicable}
        self.command = Command(folder, "train", task, "--console", **applicable | settings)
        self.run = self.command.run_folder()
        self.command.until(lambda: read_address(self.run.path))
        door = read_address(self.run.path)
        assert door is not None
        self.door: ConsoleAddress = door
        self.spec = make_spec(make_task(self.run.config))

    @property
    def log(self) -> list[Record]:
        return list(read_records(self.run.episodes("actor0"), self.spec))

    @property
    def endings(self) -> list[str]:
        """Return the reasons of episode ends, without time limits."""
        ends = [record.text for record in self.log if isinstance(record, End)]
        return [reason for reason in ends if reason != "time limit"]

    def rests(self) -> bool:
        """Return whether the log gets no record for 1.5 s."""
        before = len(self.log)
        time.sleep(1.5)
        return len(self.log) == before


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Training]:
    """Yield one training for all tests; the last test ends it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))  # of the certificate
        started = Training(tmp_path_factory.mktemp("training"), **{"console.host": LAB})
    with started.command:
        yield started


@asynccontextmanager
async def opened(training: Training, folder: Path) -> AsyncIterator[Page]:
    """Yield the unlocked page once the policy drives."""
    async with browser(folder) as page:
        await page.open(training.door.url)
        token = training.door.token
        await page.unlock(token)
        await page.until("!document.getElementById('desk').hidden")
        await page.says("The policy drives")
        yield page


async def drives(training: Training, steps: int) -> None:
    """Wait for this number of further human steps."""

    def count() -> int:
        found = (each for each in training.log if isinstance(each, Step))
        return sum(step.source is ActionSource.HUMAN for step in found)

    goal = count() + steps
    await asyncio.to_thread(eventually, lambda: count() >= goal)


async def ended(training: Training, reasons: list[str]) -> None:
    """Wait until the log has exactly these end reasons."""
    await asyncio.to_thread(eventually, lambda: training.endings == reasons, 2 * LIMIT_S)


def human_segments(log: list[Record]) -> list[list[Step]]:
    """Return the consecutive segments of human steps."""
    steps = [record for record in log if isinstance(record, Step)]
    runs = [(source, list(run)) for source, run in groupby(steps, lambda step: step.source)]
    return [run for source, run in runs if source is ActionSource.HUMAN]


def test_phone_enters_over_tls_with_printed_address_code_and_certificate(
    training: Training,
) -> None:
    training.command.until(lambda: "its SHA-256: " in training.command.output)
    printed = re.search(
        rf"^phone: (https://{re.escape(LAB)}:\d+)/  pairing code: (\d{{8}}) \(.*\n"
        r".*; its SHA-256: ((?:[0-9A-F]{2}:){31}[0-9A-F]{2})$",
        training.command.output,
        re.MULTILINE,
    )
    assert printed, training.command.output
    asyncio.run(_enter_by_code(training, *printed.groups()))


async def _enter_by_code(training: Training, lab: str, code: str, certificate: str) -> None:
    digest = bytes.fromhex(certificate.replace(":", ""))
    async with aiohttp.ClientSession() as client:
        with pytest.raises(aiohttp.ServerFingerprintMismatch):
            await client.get(lab, ssl=aiohttp.Fingerprint(digest[::-1]))
        page = await client.ws_connect(
            f"{lab}/socket", headers={"Origin": lab}, ssl=aiohttp.Fingerprint(digest)
        )
        await page.send_json({"pair": code})
        assert (await heard(page, "paired"))["token"] == training.door.token
        await heard(page, "state")


def test_training_with_console_publishes_joint_states(training: Training) -> None:
    received: list[Any] = []
    assert training.run.config.ros.publish_state, "the console enables it"
    with RosNode("viewer", training.run.path) as node:
        node.subscribe(Topic("actor0/joint_states", JointState, SENSOR), received.append)
        eventually(lambda: received)
    assert received[0].name == [f"joint{number}" for number in range(1, 8)]


def test_run_folder_has_token_only_in_console_file(training: Training) -> None:
    run: RunFolder = training.run
    token = training.door.token.encode()
    holders = [p.name for p in run.path.rglob("*") if p.is_file() and token in p.read_bytes()]
    assert holders == ["console.json"]


def test_operator_takes_over_labels_releases_stops_and_resets(
    training: Training, tmp_path: Path
) -> None:
    asyncio.run(_operate(training, tmp_path / "chromium"))
    log, run = training.log, training.run
    assert training.command.is_running, training.command.output
    assert training.command.interrupt() == 130, training.command.output
    assert read_address(run.path) is None

    driven, *_, held = human_segments(log)
    x, y, z = np.array([step.action for step in driven]).T  # executed actions, after the limits
    assert y.max() - y.min() > 0.3
    assert y.argmin() < y.argmax(), "D moves to the right, then A to the left"
    assert abs(x.mean()) < 0.2, "the arm must not move forward"
    assert abs(z.mean()) < 0.2, "the arm must not move up"
    first = next(record for record in log if isinstance(record, End) and record.success)
    assert first.text == "success"
    steps = [record for record in log if isinstance(record, Step)]
    judged = [step for step in steps if step.terminated]
    assert [(step.reward, step.reward_provenance) for step in judged] == [(1.0, "human")]
    assert list(read_labels(run.episodes("actor0")).values()) == [1]
    assert "the operator" in (run.episodes("actor0") / LABELS_FILE).read_text()
    assert {step.key.episode for step in driven} >= {first.key.episode}
    assert not any(step.action.any() for step in held[-3:]), (
        "the robot must hold after the page is closed"
    )


async def _operate(training: Training, folder: Path) -> None:
    async with opened(training, folder) as page:
        await page.take()
        await page.drive("KeyD")
        await drives(training, 10)
        await page.key("KeyD", "keyUp")
        await page.key("KeyA")
        await drives(training, 10)
        await page.hit("Enter")
        await ended(training, ["success"])
        await page.hand_back("KeyA")

        await page.hit("Escape")
        await page.says("Stopped")
        await ended(training, ["success", "stopped"])
        assert await asyncio.to_thread(training.rests)
        actor = training.command.child("serl.ros.nodes.actor")
        actor.suspend()  # a kill alone may go unnoticed
        await page.says("Actor not reachable")
        actor.kill()
        await page.says("Stopped")  # the stop persists
        assert await asyncio.to_thread(training.rests)
        await page.hit("KeyG")
        await page.says("Holding")
        assert await asyncio.to_thread(training.rests)
        await page.hit("KeyG")
        await page.says("The policy drives")

        await page.hit("KeyN")
        await page.hit("KeyN")  # a repeated label is ignored
        await ended(training, ["success", "stopped", "operator"])
        await asyncio.sleep(TWICE_S)
        await page.hit("KeyX")
        await ended(training, ["success", "stopped", "operator", "discarded"])

        await page.drive("KeyA")
        await page.open("about:blank")  # with a key held down
        await ended(training, ["success", "stopped", "operator", "discarded", "device lost"])
        assert await asyncio.to_thread(training.rests)
        foreign = [url for url in page.requests if not url.startswith(_own(training))]
        assert foreign == []


def _own(training: Training) -> tuple[str, ...]:
    return (training.door.url, f"blob:{training.door.url}", "about:blank")
