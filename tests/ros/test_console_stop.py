"""STOP at the page of a run reaches the arm's guard, whatever the actor does, and lasts."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from serl.console.access import ConsoleAddress, read_address
from serl.ros.arm.station import RESTORE
from serl.ros.testing.processes import LIMIT_S, eventually
from serl.runs.config import resolve
from serl.runs.folder import RunFolder

from .conftest import Start
from .support.guard_bench import GuardBench
from .support.tracked import SEEN, answer_until, franka_beside_a_goal

pytestmark = pytest.mark.ros

TRAINING = (
    *("train", "reach", "--console", "--console-port", 8990, "--demos", 0, "--trials", 0),
    *("--reset.kind", "person"),
)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[GuardBench]:
    run = RunFolder.create(tmp_path, resolve({"task": "reach"}), datetime.now())
    with GuardBench(run.path) as made:
        yield made


async def press_stop(door: ConsoleAddress) -> dict[str, Any]:
    """What the page does when STOP is pressed, without the controls; what it is answered."""
    own = door.url.rstrip("/")
    async with (
        aiohttp.ClientSession() as client,
        client.ws_connect(f"{own}/socket", headers={"Origin": own}) as page,
    ):
        await page.send_json({"token": door.token})
        await page.send_json({"type": "say", "what": "estop"})
        async for message in page:
            if message.type is aiohttp.WSMsgType.TEXT:
                said: dict[str, Any] = message.json()
                if said["type"] == "answer":
                    return said
    raise AssertionError("the console hung up")


def open_console(bench: GuardBench) -> ConsoleAddress:
    bench.start_console()
    eventually(lambda: read_address(bench.folder))
    door = read_address(bench.folder)
    assert door is not None
    return door


def test_stop_at_the_page_latches_the_guard_and_reports_one_that_is_gone(bench: GuardBench) -> None:
    bench.start_all()  # its actor has no services: it would not hear of a stop
    door = open_console(bench)

    def pressed() -> bool:
        """The console may not have found the guard yet: a person presses again."""
        return bool(asyncio.run(press_stop(door))["done"])

    eventually(pressed)
    bench.until("estop: the service estop")
    assert bench.latch.read_text() == "serl latch: estop\nthe service estop\n"

    bench.signal("guard", signal.SIGKILL)
    bench.states.clear()
    bench.start_guard()
    bench.until("estop: the service estop")
    assert not bench.call("arm")[0], "a restart ends no stop"
    assert not bench.call("reset")[0], "nor does anything before a person has seen it"
    eventually(lambda: bench.call("ack")[0])
    assert bench.state.startswith("estop")
    assert bench.call("reset")[0]
    bench.until("disarmed")
    bench.arm()

    eventually(pressed)
    bench.signal("guard", signal.SIGSTOP)  # holds the arm's own timeout; it answers nobody
    answer = asyncio.run(press_stop(door))
    assert not answer["done"]
    assert "guard: the guard did not answer within 3 s" in answer["text"]
    assert "actor: the actor does not answer" in answer["text"]


def test_stop_at_the_page_of_a_training_reaches_the_guard_of_a_real_arm(
    tmp_path: Path, start: Start
) -> None:
    """Whose namespace has nothing to do with the actor's name."""
    with franka_beside_a_goal(tmp_path) as (_, arm):
        command = start(*TRAINING, "--robot", "mine.py", "--namespace", arm)
        command.until("console: http")
        answer_until(command, lambda: "Enter arms it" in command.output, (SEEN,))
        (door_file,) = (tmp_path / "runs").rglob("console.json")
        door = read_address(door_file.parent)
        assert door is not None
        answers: list[dict[str, Any]] = []

        def pressed() -> bool:
            """Both were stopped; on a busy machine the actor may answer a later press only."""
            answers.append(asyncio.run(press_stop(door)))
            return bool(answers[-1]["done"]) and "actor: stopped by" in answers[-1]["text"]

        eventually(pressed, found=lambda: str(answers[-1]))
        assert "guard: estop" in answers[-1]["text"], answers
        (latch,) = tmp_path.glob("mine*.latch")
        assert latch.read_text() == "serl latch: estop\nthe service estop\n"
        stop = "stopped by the operator: Enter ends the actor's stop"
        question = f"{RESTORE}: Enter goes on"
        answer_until(command, lambda: question in command.output.partition(stop)[2])
    assert stop in command.output, "and what was to be done before it is to be done still"


async def answer_at_the_page(door: ConsoleAddress, bench: GuardBench) -> list[str]:
    """Say yes to what the guard asks until it holds the arm; what was answered, in words."""
    own, said = door.url.rstrip("/"), list[str]()
    async with (
        aiohttp.ClientSession() as client,
        client.ws_connect(f"{own}/socket", headers={"Origin": own}) as page,
    ):
        await page.send_json({"token": door.token})
        await page.send_json({"type": "take"})
        async for message in page:
            if message.type is not aiohttp.WSMsgType.TEXT:
                continue
            told = message.json()
            if told["type"] == "state":
                await page.send_json({"type": "drive", "motion": [0.0] * 7, "hands": False})
                if told["question"] and not told["not_now"]:
                    await page.send_json({"type": "yes", "question": told["question"]})
            elif told["type"] == "answer" and told["done"]:
                said.append(told["text"])
                if said[-1] == "armed":
                    return said
    raise AssertionError("the console hung up")


def test_a_person_at_the_page_ends_a_stop_and_arms(bench: GuardBench) -> None:
    """Also where nobody is at the terminal of the training."""
    bench.latch.unlink()
    bench.start_arm()
    bench.start_guard()
    door = open_console(bench)
    bench.until("estop: no latch file")
    said = asyncio.run(asyncio.wait_for(answer_at_the_page(door, bench), LIMIT_S))
    assert said[0] == "noted; next: end the guard's stop"
    assert "disarmed" in said
    bench.until("hold")


def test_a_page_beside_an_arm_whose_guard_is_not_there_says_that_nothing_stops_it(
    bench: GuardBench,
) -> None:
    door = open_console(bench)
    answer = asyncio.run(press_stop(door))
    assert not answer["done"]
    assert "guard: the guard does not answer" in answer["text"]
