"""A task without a simulation: the tutorial's commands, and an arm of another maker."""

from __future__ import annotations

import math
import re
import shlex
import time
from pathlib import Path

import pytest
from geometry_msgs.msg import PoseStamped

from serl.arm_profile import load_robot, write_robot
from serl.datasets.person import ACTOR
from serl.real_task import read_task
from serl.ros.arm.topics import SENSOR
from serl.ros.node import RosNode, namespace
from serl.ros.people.teleop import RemoteHand, device_topics
from serl.ros.testing.bench import SPAWN, missing_types
from serl.ros.testing.processes import eventually
from serl.ros.topics import Topic
from serl.runs.folder import RunFolder
from serl.teleop.mapping import Wish
from serl.workspace import Workspace

from ..support.command import Command
from ..support.upstream import file_of
from .conftest import Run, Start
from .support.tracked import PATIENT, PROGRESS, SMALL
from .test_training import trained

pytestmark = [pytest.mark.ros, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/tutorials/real-task.md").read_text(encoding="utf-8")
REHEARSAL = (ROOT / "docs/examples/rehearsal.yaml").read_text(encoding="utf-8")
TYPED: list[str] = re.findall(r"^\|.*\| `([^`]+)`", PAGE, re.MULTILINE)
AROUND = Workspace(
    low_m=(0.2, -0.3, 0.05),
    high_m=(0.7, 0.3, 0.8),
    home_m=(0.31, 0.0, 0.48),
    reference=(1, 0, 0, 0),
)
STEPS = 60
SHORT = (
    *(*SMALL, "--steps", str(STEPS)),
    *("--task_config.time_limit_s", "10.0", "--trials", "0", "--learner.publish_every", "20"),
)


def tutorial_command(start: str) -> list[str]:
    """Return the arguments of the tutorial's command that starts with these words."""
    (line,) = re.findall(rf"^serl ({start}.*)$", PAGE, re.MULTILINE)
    return shlex.split(line)


def answer(command: Command, answers: list[str]) -> None:
    """Answer each question of a dialogue in turn until the command ends."""
    left, answered_chars = list(answers), 0

    def done() -> bool:
        nonlocal answered_chars
        said = command.output
        if len(said) > answered_chars and re.search(r"(:|in m|corners|\]) $", said) and left:
            answered_chars = len(said)
            command.say(left.pop(0))
        return not command.is_running

    eventually(done, 120.0, lambda: command.output[-2000:])


class Hands:
    """An operator who waits until the arm rests at a start, and then drives it to a goal."""

    def __init__(self, node: RosNode, recording: str, goal_m: tuple[float, ...]) -> None:
        (topic,) = device_topics(ACTOR)
        self._hand = RemoteHand(node, topic._replace(name=f"/{recording}/{topic.name}"))
        self._goal_m, self._rested_m, self._since_s = goal_m, (0.0,) * 3, time.monotonic()
        self._drives = False
        self._way_m = [0.0] * 3
        node.subscribe(Topic("/sim/arm/current_pose", PoseStamped, SENSOR), self._look)
        node.every(0.02, self._move)

    def _look(self, message: PoseStamped) -> None:
        place, now_s = message.pose.position, time.monotonic()
        tool_m = (place.x, place.y, place.z)
        self._way_m = [goal - at for goal, at in zip(self._goal_m, tool_m, strict=True)]
        if math.dist(tool_m, self._rested_m) > 0.001:
            self._rested_m, self._since_s = tool_m, now_s
        self._drives |= now_s - self._since_s > 3.0
        self._drives &= max(map(abs, self._way_m)) > 0.003

    def _move(self) -> None:
        push = [min(0.3, max(-0.3, way / 0.05)) for way in self._way_m]
        self._hand.send(Wish((*push, 0.0, 0.0, 0.0, 0.0), self._drives, ()))


def train_to_the_end(command: Command) -> None:
    """Confirm every question, also those for late messages, until a command ends."""
    asked = 0

    def done() -> bool:
        nonlocal asked
        lines = [line for line in command.output.splitlines(True) if PROGRESS not in line]
        questions = [line for line in lines if ": Enter " in line and line.endswith("\n")]
        if len(questions) > asked:
            asked = len(questions)
            command.say()
        return not command.is_running

    eventually(done, 480.0, lambda: command.output[-2000:])


def assert_trained(folder: Path) -> None:
    (run,) = (folder / "runs" / "press").iterdir()
    assert sum(trained(RunFolder.open(run)).values()) >= STEPS


def test_tutorial_commands_teach_plan_train_and_evaluate_a_task(
    tmp_path: Path, start: Start
) -> None:
    (tmp_path / "rehearsal.yaml").write_text(REHEARSAL)
    sim = start(*tutorial_command("sim"), "--task_config.renderer", "ray", "--rehearsal.slips", "0")
    sim.until("topics and services under /sim/arm")
    summary, goal, begin, keep = TYPED[:4]
    teaching = start(*tutorial_command("task new"))
    answer(teaching, [summary, goal, begin, "", "", keep, ""])
    assert teaching.process.returncode == 0, teaching.output
    assert "next: serl train press.yaml --robot rehearsal.yaml" in teaching.output
    task = read_task(tmp_path / "press.yaml")()
    assert task.config.origin_m == tuple(map(float, goal.split(",")))
    listed = start(*tutorial_command("list"))
    listed.wait()
    assert re.search(r"reward.kind +pose", listed.output)
    planned = start(*tutorial_command("plan"), "--seconds", "0.5")
    assert "minutes at 10 Hz" in planned.succeed()
    recording = start(*tutorial_command("record"), "--demos", "1", *PATIENT)
    with RosNode("hands", tmp_path, local=True) as node:
        Hands(node, "presses", tuple(map(float, goal.split(","))))
        train_to_the_end(recording)
    assert recording.process.returncode == 0, recording.output
    training = start(*tutorial_command("train"), *SHORT, "--trials", "1")
    train_to_the_end(training)
    training.assert_trials_ended()
    assert "1 unassisted trials on the arm" in training.output
    assert "episode 1 of 1: " in training.output, "no trial has ended"
    assert_trained(tmp_path)


ANY_ARM = """
task: press
motion:
  {axes: [x, y, z], translation_m: 0.01, box_low_m: [0.25, -0.2, 0.05], box_high_m: [0.6, 0.2, 0.6]}
observe: state
training:
  reward: {kind: pose, pose: [0.35, 0.02, 0.3, 1.0, 0.0, 0.0, 0.0], tolerance_rad: 3.0}
"""


@pytest.mark.parametrize("maker", ["rehearsal", "ur5e"])
def test_task_file_trains_on_arms_of_two_makers(maker: str, tmp_path: Path, start: Start) -> None:
    (tmp_path / "press.yaml").write_text(ANY_ARM)
    with Run(tmp_path / "driver") as driver:
        driver.folder.mkdir()
        if maker == "rehearsal":
            (tmp_path / "arm.yaml").write_text(REHEARSAL)
            start("sim", "reach", "--rehearsal", "--task_config.renderer", "ray").until("/sim/arm")
            place = "/sim/arm"
        else:
            profile, place = load_robot(maker), f"{namespace(driver.folder)}/left"
            own = {"workspace": AROUND, **dict.fromkeys(missing_types(profile))}
            write_robot(tmp_path / "arm.yaml", profile.model_copy(update=own))
            driver.start(*SPAWN, str(file_of(maker)), place)
        arm = ("--robot", "arm.yaml", "--namespace", place)
        training = start("train", "press.yaml", *arm, *SHORT)
        train_to_the_end(training)
    assert training.process.returncode == 0, training.output
    assert_trained(tmp_path)
