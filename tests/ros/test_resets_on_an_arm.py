"""Resets on the rehearsal arm by the commands of docs/resets.md: questions and start poses.

`SERL_REHEARSAL_EPISODES` shortens the hundred episodes of `make soak`.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from serl.arm_profile import ArmProfile, read_robot
from serl.log.episode_reader import read_records
from serl.ros.arm.guard_topics import GUARD_STATE
from serl.ros.arm.topics import COMMAND, SENSOR, of_robot, topic_of
from serl.ros.conversions import joints_of, trajectory_message
from serl.ros.node import RosNode
from serl.ros.services import Remote
from serl.ros.testing.processes import eventually
from serl.runs.folder import RunFolder
from serl.runs.scene_reset import make_scene_reset
from serl.runs.task_setup import make_spec, make_task
from serl.training.arm_reset import ArmReset
from serl.trajectory import JointPoint
from serl.types import ActionSource, End, Record, Step

from ..support.command import Command
from .conftest import Start
from .support.tracked import SMALL, questions_until

pytestmark = [pytest.mark.ros, pytest.mark.slow]

EPISODES = int(os.environ.get("SERL_REHEARSAL_EPISODES", "100"))
EXAMPLE = Path(__file__).parents[2] / "docs/examples/rehearsal.yaml"
PROFILE: ArmProfile = read_robot(EXAMPLE)
LONGEST_S = 20.0 * EPISODES + 300.0


@pytest.fixture
def robot(tmp_path: Path) -> str:
    """Copy the example profile, whose folder also gets the latch."""
    (tmp_path / "rehearsal.yaml").write_text(EXAMPLE.read_text())
    return "rehearsal.yaml"


@pytest.fixture
def train(start: Start, robot: str) -> Callable[..., Command]:
    """Start the rehearsal arm of a task, and a training on it."""

    def start_both(task: str, faults: tuple[str, ...], *words: str) -> Command:
        sim = start("sim", task, "--rehearsal", "--task_config.renderer", "ray", *faults)
        sim.until("topics and services under /sim/arm")
        place = ("--robot", robot, "--namespace", "/sim/arm", "--demos", "0", "--trials", "0")
        return start("train", task, *place, *SMALL, *words)

    return start_both


def sealed(part: RunFolder) -> int:
    """Return the number of ended episodes, including resets."""
    return len([*part.episodes("actor0").glob("*[0-9].mcap")])


def run_of(folder: Path) -> RunFolder | None:
    found = [path for path in (folder / "runs").glob("*/*") if (path / "config.yaml").exists()]
    return RunFolder.open(found[0]) if found else None


def records_of(part: RunFolder) -> list[Record]:
    return list(read_records(part.episodes("actor0"), make_spec(make_task(part.config))))


def policy_episodes(part: RunFolder) -> list[int]:
    """Return the numbers of the policy's ended episodes."""
    records = records_of(part)
    ended = {record.key.episode for record in records if isinstance(record, End)}
    return [
        record.key.episode
        for record in records
        if isinstance(record, Step)
        and record.key.index == 0
        and record.source is ActionSource.POLICY
        and record.key.episode in ended
    ]


def first_tools(part: RunFolder) -> dict[int, list[float]]:
    """Return the TCP position in the first observation of each episode."""
    lines = (part.episodes("actor0") / "tools.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    return {row["episode"]: row["tools_m"][0] for row in rows}


def test_arm_resets_to_sampled_start_poses_without_operator(
    tmp_path: Path, train: Callable[..., Command]
) -> None:
    words = ("--reset.kind", "home", "--reward.kind", "human", "--task_config.time_limit_s", "1.0")
    command = train("reach", ("--rehearsal.drift_s", "60"), *words, "--steps", "100000")

    def done() -> bool:
        run = run_of(tmp_path)
        return run is not None and 2 * sealed(run) >= 5 * EPISODES  # a reset before each, or two

    asked = questions_until(command, done, LONGEST_S)
    command.interrupt()
    assert [each for each in asked if "newest message" not in each] == []  # a busy machine is late
    run = run_of(tmp_path)
    assert run is not None
    reset = make_scene_reset(run.config, make_task(run.config), None, "actor0", 0)
    assert isinstance(reset, ArmReset)
    tools, away_mm = first_tools(run), list[float]()
    for episode in policy_episodes(run):
        for _ in range(1 + 3 * len(asked)):  # interrupted starts are drawn again
            reset.begin()
            distance_mm = 1e3 * math.dist(tools[episode], reset.start.position)
            if distance_mm < 3.0:
                break
        away_mm.append(distance_mm)
    print(f"{len(away_mm)} starts, {max(away_mm):.2f} mm at most, {len(asked)} questions")  # noqa: T201
    assert len(away_mm) >= EPISODES
    assert max(away_mm) < 3.0


class JointWatch:
    """Record of the joints' distance from home, and of the guard's joint moves."""

    def __init__(self, node: RosNode) -> None:
        self.state, self.moves = "", 0
        self.error_rad = self.began_rad = math.inf
        joints = topic_of(PROFILE.joint_states, "", SENSOR)
        node.subscribe(joints, self._on_joints, drain=True)
        node.subscribe(of_robot(GUARD_STATE, "/sim/arm"), self._on_state)

    def _on_joints(self, message: Any) -> None:
        angles = joints_of(message, PROFILE.joints)
        if angles is not None:
            self.error_rad = float(np.abs(np.subtract(angles[0], PROFILE.home_rad)).max())

    def _on_state(self, message: Any) -> None:
        if message.message == "joints" != self.state:
            self.moves, self.began_rad = self.moves + 1, self.error_rad
        self.state = message.message


def turn_elbow(folder: Path) -> None:
    """Turn the elbow and leave the tool in its place, as a person does with the arm's panel."""
    assert PROFILE.trajectory is not None
    joints = [a + b for a, b in zip(PROFILE.home_rad, (0.35, 0, -0.35, 0, 0, 0, 0), strict=True)]
    with RosNode("panel", folder, local=True) as panel:
        publisher = panel.publisher(topic_of(PROFILE.trajectory, "", COMMAND))
        eventually(publisher.get_subscription_count)
        move = (JointPoint(3.0, tuple(joints), (0.0,) * 7),)
        watch = JointWatch(panel)
        eventually(lambda: watch.error_rad < math.inf)
        began_rad = watch.error_rad

        def begins() -> bool:  # the arm may match the publisher after the publisher matches the arm
            publisher.publish(trajectory_message(PROFILE.joints, move))
            return abs(watch.error_rad - began_rad) > 0.01

        eventually(begins)
        eventually(lambda: abs(watch.error_rad - 0.35) < 0.02, found=lambda: str(watch.error_rad))


def test_joints_return_home_every_two_episodes_also_after_stop_midway(
    tmp_path: Path, start: Start, robot: str
) -> None:
    sim = start("sim", "reach", "--rehearsal", "--task_config.renderer", "ray")
    sim.until("topics and services under /sim/arm")
    turn_elbow(tmp_path)
    place = ("--robot", robot, "--namespace", "/sim/arm", "--demos", "0", "--trials", "0")
    words = (*place, *SMALL, "--reward.kind", "human", "--task_config.time_limit_s", "1.0")
    with RosNode("watch", tmp_path, local=True) as node:
        watch = JointWatch(node)
        command = start("train", "reach", *words, "--steps", "100000", "--actor.home_every", "2")

        def is_stopped_midway() -> bool:
            if watch.state == "joints" and watch.error_rad < watch.began_rad - 0.05:
                Remote(node, lambda: None).trigger("/sim/arm/guard/estop")
                return True
            return False

        asked = questions_until(command, is_stopped_midway, 300.0)
        time.sleep(0.5)
        stands_rad = watch.error_rad
        assert stands_rad > 0.08, "the move was stopped midway"
        time.sleep(1.0)
        assert abs(watch.error_rad - stands_rad) < 0.05, "only the lag of the elbow remains"
        assert watch.state.startswith("estop")

        def is_home() -> bool:
            return watch.moves > 1 and watch.state != "joints" and watch.error_rad < 0.02

        asked += questions_until(command, is_home, 300.0)
        print(f"stopped {stands_rad:.2f} rad from home, {len(asked)} questions")  # noqa: T201
        command.interrupt()


def test_forward_and_backward_stages_reset_each_other_on_an_arm(
    tmp_path: Path, train: Callable[..., Command]
) -> None:
    words = ("--task_config.time_limit_s", "2.0", "--steps", "100000")
    command = train("bin_relocation", ("--rehearsal.slips", "0.2"), *words)

    def done() -> bool:
        run = run_of(tmp_path)
        return run is not None and all(sealed(part) >= 6 for part in run.parts().values())

    asked = questions_until(command, done, 900.0)
    command.interrupt()
    assert not any("bring arm and scene" in each for each in asked)
    run = run_of(tmp_path)
    assert run is not None
    bins = {"forward": 0.12, "backward": -0.12}
    for stage, part in run.parts().items():
        tools, firsts = first_tools(part), {}
        for record in records_of(part):
            if isinstance(record, Step) and record.key.index == 0:
                firsts[record.key.episode] = record
        for episode in policy_episodes(part):
            part_m = np.array(tools[episode]) + firsts[episode].observation.state["part_from_tcp"]
            assert abs(part_m[1] - bins[stage]) < 0.09, (
                "the episode must begin with the part in its bin"
            )
            assert part_m[2] < 0.03
