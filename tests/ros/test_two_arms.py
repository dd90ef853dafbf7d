"""A training of two rehearsal arms, by the commands of docs/two-arms.md.

`SERL_TWO_ARMS_EPISODES` sets the number of episodes of `make soak`.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import shutil
from contextlib import suppress
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from diagnostic_msgs.msg import DiagnosticStatus

from serl.datasets.person import ACTOR
from serl.guard.config import GuardState
from serl.intervention import Event
from serl.log.episode_reader import episode_paths, read_episode, read_records
from serl.ros.arm.guard_topics import GUARD_STATE
from serl.ros.arm.topics import of_robot
from serl.ros.node import RosNode
from serl.ros.people.teleop import RemoteHand, device_topics
from serl.ros.services import Remote
from serl.ros.testing.processes import eventually
from serl.runs.folder import RunFolder
from serl.runs.task_setup import make_rewarded_task, make_spec, make_task
from serl.teleop.mapping import Wish
from serl.types import ActionSource, End, Step

from ..console.browser import CHROMIUM, Page, browser
from ..support.command import Command
from .conftest import Start
from .support.tracked import (
    ARMS,
    GOES_ON,
    MOVES,
    PATIENT,
    SMALL,
    answer_all,
    questions_until,
)
from .test_resets_on_an_arm import run_of, sealed

pytestmark = [pytest.mark.ros, pytest.mark.slow]

EPISODES = int(os.environ.get("SERL_TWO_ARMS_EPISODES", "10"))
LONGEST_S = 120.0 + 20.0 * EPISODES
EXAMPLES = Path(__file__).parents[2] / "docs/examples"
LONG = ["--demos", "0", "--trials", "0", "--steps", "100000", "--task_config.time_limit_s", "2.0"]


def test_two_arms_train_and_reset_together_with_two_guards(tmp_path: Path, start: Start) -> None:
    for name in ("pair.yaml", "pair_arm.yaml"):
        shutil.copy(EXAMPLES / name, tmp_path / name)
    sim = start("sim", "handover", "--rehearsal", "--task_config.renderer", "none")
    sim.until("topics and services under /sim/left and /sim/right")
    command = start("train", "handover", "--robot", "pair.yaml", *SMALL, *LONG)

    def done() -> bool:
        part = run_of(tmp_path)
        return part is not None and sealed(part) >= 2 * EPISODES

    asked = questions_until(command, done, LONGEST_S)
    assert [each for each in asked if "newest message" not in each] == []  # a busy machine is late
    one_guard_stops_both(tmp_path, command)
    command.interrupt()
    part = run_of(tmp_path)
    assert part is not None
    command = start("run", part.path, "--robot", "pair.yaml", "--episodes", "1")
    answer_all(command, (*ARMS, MOVES, GOES_ON))
    command.assert_trials_ended()
    assert "episode 1 of 1: " in command.output
    records = list(read_records(part.episodes("actor0"), make_spec(make_task(part.config))))
    ends = {record.key.episode for record in records if isinstance(record, End)}
    firsts = {
        record.key.episode: record
        for record in records
        if isinstance(record, Step) and record.key.index == 0
    }
    learned = [
        step.observation.state
        for episode, step in firsts.items()
        if episode in ends and step.source is ActionSource.POLICY
    ]
    assert len(learned) >= EPISODES // 2
    for state in learned:  # homes relative to the meeting places
        assert math.hypot(*(state["left_from_meeting"][:2] - [0.4 - 0.485, 0.0])) < 0.035
        assert math.hypot(*(state["right_from_meeting"][:2] - [0.7 - 0.615, 0.0])) < 0.035


def recording_on_two_arms(folder: Path, start: Start, *words: str) -> Command:
    """Start two rehearsal arms, and the recording of a demonstration on them."""
    for name in ("pair.yaml", "pair_arm.yaml"):
        shutil.copy(EXAMPLES / name, folder / name)
    sim = start("sim", "handover", "--rehearsal", "--task_config.renderer", "none")
    sim.until("topics and services under /sim/left and /sim/right")
    those = ("--robot", "pair.yaml", "--demos", "1", "--out", "demos", "--reward.kind", "human")
    still = ("--reset.kind", "person")  # the hands do not wait for a reset
    few = ("--log.min_free_bytes", "1000000")
    return start("record", "handover", *those, *still, *PATIENT, *few, *words)


def check_both_arms_were_driven(folder: Path) -> None:
    """Check that the demonstration is a success in which a person moved both arms."""
    run = RunFolder.open(folder / "demos")
    spec = make_spec(make_rewarded_task(run.config))
    (episode,) = (read_episode(path, spec) for path in episode_paths(run.path))
    driven = np.array([s.action for s in episode.steps if s.source is ActionSource.HUMAN])
    assert episode.success
    assert all(part.any() for part in np.hsplit(driven, 2)), "both arms moved"


def test_two_remote_devices_record_demonstration_on_two_arms(tmp_path: Path, start: Start) -> None:
    command = recording_on_two_arms(tmp_path, start)
    with RosNode("hands", tmp_path, local=True) as node:
        topics = (each._replace(name=f"/demos/{each.name}") for each in device_topics(ACTOR, 2))
        hands, ticks = [RemoteHand(node, topic) for topic in topics], count()

        def move() -> None:
            tick = next(ticks) % 150
            succeeds = (Event.SUCCESS,) if tick == 149 else ()
            for hand, push in zip(hands, (0.3, -0.3), strict=True):
                hand.send(Wish((0.0, 0.0, push, 0.0, 0.0, 0.0, 0.0), tick >= 50, succeeds))

        node.every(0.02, move)
        answer_all(command, (*ARMS, MOVES, GOES_ON))
    assert command.process.returncode == 0, command.output
    check_both_arms_were_driven(tmp_path)


@pytest.mark.skipif(CHROMIUM is None, reason="NO PAGE TESTED: there is no Chromium")
def test_browser_records_demonstration_on_two_arms(tmp_path: Path, start: Start) -> None:
    command = recording_on_two_arms(
        tmp_path, start, "--console", "--task_config.time_limit_s", "120"
    )

    async def demonstrate(page: Page) -> None:
        await page.key("Space")  # the episode begins, and both arms hold
        try:
            for side, arm, push in (("left", "KeyQ", "KeyR"), ("right", "KeyE", "KeyF")):
                await page.hit(arm)
                await page.says(f"You drive the {side} arm", 20.0)
                await page.key(push)
                await asyncio.sleep(1.5)
                await page.key(push, "keyUp")
            await page.hit("Enter")
        finally:
            await page.key("Space", "keyUp")
            await asyncio.sleep(2.0)

    async def drive() -> None:
        await asyncio.to_thread(eventually, lambda: "http://127" in command.output)
        url = command.output[command.output.index("http://127") :].split()[0]
        async with browser(tmp_path / "chromium") as page:
            await page.open(url)
            await page.take()
            for _ in range(20):  # late messages of a busy machine end an episode
                if command.is_running:
                    with suppress(AssertionError):
                        await demonstrate(page)

    async def drive_or_end() -> None:
        questions = (*ARMS, MOVES, GOES_ON)
        answers = asyncio.create_task(asyncio.to_thread(answer_all, command, questions))
        try:
            await drive()
        except BaseException:
            command.interrupt()
            raise
        finally:
            await answers

    asyncio.run(drive_or_end())
    assert command.process.returncode == 0, command.output
    check_both_arms_were_driven(tmp_path)


def one_guard_stops_both(folder: Path, command: Command) -> None:
    """Stop the right guard by its service; the left arm is held as well."""
    states: dict[str, str] = {}
    with RosNode("watcher", folder, local=True) as node:

        def watch(side: str) -> None:
            topic = of_robot(GUARD_STATE, f"/sim/{side}")

            def take(message: DiagnosticStatus) -> None:
                states[side] = message.message

            node.subscribe(topic, take)

        for side in ("left", "right"):
            watch(side)
        moving = {str(GuardState.POLICY), str(GuardState.RESET)}
        both_move = lambda: len(states) == 2 and set(states.values()) <= moving  # noqa: E731
        questions_until(command, both_move, LONGEST_S)
        Remote(node, lambda: None).trigger("/sim/right/guard/estop")
        eventually(lambda: states["right"].startswith(GuardState.ESTOP))
        eventually(lambda: states["left"] not in moving, found=lambda: json.dumps(states))
        assert states["left"].startswith(GuardState.HOLD), states
