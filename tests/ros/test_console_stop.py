"""STOP at the console reaches the arm's guard independently of the actor, and persists."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
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

pytestmark = [pytest.mark.ros, pytest.mark.xdist_group("moving_arm")]  # not beside each other

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
    """Send STOP as a page without the controls does; return the answer."""
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


def test_console_stop_latches_guard_and_reports_missing_guard(bench: GuardBench) -> None:
    bench.start_arm()
    bench.start_guard()
    door = open_console(bench)

    def is_stopped() -> bool:
        """Press STOP; return False while the console has not discovered the guard."""
        return bool(asyncio.run(press_stop(door))["done"])

    eventually(is_stopped)
    bench.until("estop: the service estop")
    assert bench.latch.read_text() == "serl latch: estop\nthe service estop\n"

    bench.signal("guard", signal.SIGSTOP)  # the guard does not answer
    answer = asyncio.run(press_stop(door))
    assert not answer["done"]
    assert "guard: the guard did not answer within 3 s" in answer["text"]
    assert "actor: the actor does not answer" in answer["text"]


def test_console_stop_of_training_reaches_guard_of_real_arm(tmp_path: Path, start: Start) -> None:
    """Stop an arm whose namespace is unrelated to the actor's name."""
    with franka_beside_a_goal(tmp_path) as (_, arm):
        command = start(*TRAINING, "--robot", "mine.py", "--namespace", arm)
        command.until("console: http")
        answer_until(command, lambda: "Enter arms it" in command.output, (SEEN,))
        (door_file,) = (tmp_path / "runs").rglob("console.json")
        door = read_address(door_file.parent)
        assert door is not None
        answers: list[dict[str, Any]] = []

        def is_stopped() -> bool:
            """Press STOP; return whether both stopped, which a busy actor may delay."""
            answers.append(asyncio.run(press_stop(door)))
            return bool(answers[-1]["done"]) and "actor: stopped by" in answers[-1]["text"]

        eventually(is_stopped, found=lambda: str(answers[-1]))
        assert "guard: estop" in answers[-1]["text"], answers
        (latch,) = tmp_path.glob("mine*.latch")
        assert latch.read_text() == "serl latch: estop\nthe service estop\n"
        stop = "stopped by the operator: Enter ends the actor's stop"
        question = f"{RESTORE}: Enter continues"
        answer_until(command, lambda: question in command.output.partition(stop)[2])
    assert stop in command.output, "the question before the stop must be repeated"


async def answer_at_the_page(door: ConsoleAddress, bench: GuardBench) -> list[str]:
    """Confirm the guard's questions until it is armed; return the answers."""
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
            received = message.json()
            if received["type"] == "state":
                await page.send_json({"type": "drive", "motion": [0.0] * 7, "hands": False})
                if received["question"] and not received["not_now"]:
                    await page.send_json({"type": "yes", "question": received["question"]})
            elif received["type"] == "answer" and received["done"]:
                said.append(received["text"])
                if said[-1] == "armed":
                    return said
    raise AssertionError("the console hung up")


def test_operator_ends_stop_and_arms_guard_at_the_console(bench: GuardBench) -> None:
    """Answer at the page only, without the terminal of a training."""
    bench.latch.unlink()
    bench.start_arm()
    bench.start_guard()
    door = open_console(bench)
    bench.until("estop: no latch file")
    said = asyncio.run(asyncio.wait_for(answer_at_the_page(door, bench), LIMIT_S))
    assert said[0] == "noted; next: end the guard's stop"
    assert "disarmed" in said
    bench.until("hold")


def test_killed_console_is_served_again_with_its_token(bench: GuardBench) -> None:
    bench.environment["SERL_PARENT"] = str(os.getpid())  # as by a supervisor
    door = open_console(bench)
    bench.signal("console", signal.SIGKILL)
    bench.start_console()
    answers: list[dict[str, Any]] = []

    def is_answered() -> bool:
        with suppress(aiohttp.ClientError):
            answers.append(asyncio.run(press_stop(door)))
        return bool(answers)

    eventually(is_answered)
    assert (answers[0]["what"], answers[0]["done"]) == ("estop", False)
    assert "guard: the guard does not answer" in answers[0]["text"], "there is no guard"
