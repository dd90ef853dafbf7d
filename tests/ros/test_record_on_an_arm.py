"""`serl record TASK --robot NAME` on a fake Franka that a joystick drives."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest
from geometry_msgs.msg import PoseStamped
from sensor_msgs.msg import Joy

from serl.datasets.person import ACTOR
from serl.datasets.recording_session import FAILURES
from serl.log.episode_reader import episode_paths, read_episode
from serl.ros.arm.station import RESTORE
from serl.ros.node import RosNode, namespace
from serl.ros.people.teleop import joy_topic
from serl.ros.topics import Topic
from serl.runs.demonstrations import check_recordings
from serl.runs.folder import RunFolder
from serl.runs.task_setup import make_rewarded_task, make_spec, make_task
from serl.system.files import make_folder
from serl.types import ActionSource

from ..support.command import Command
from .conftest import Start
from .support.tracked import ARMS, GOES_ON, MOVES, answer_all, answer_until, frankas_beside_goals

pytestmark = pytest.mark.ros

PERIOD_S, OFF, ON = 0.05, 20, 40
SUCCESS, FAILURE, STOP = 0, 1, 8  # buttons
STOPPED, FAILED = "stopped by the joystick", "\nfailure, "
SETTINGS = (
    "--reward.kind=human",
    "--reset.kind=person",
    "--task_config.motion.box_high_m=[0.7,0.3,0.6]",
    "--log.min_free_bytes=1000000",
    "--teleop.operator.stale_s=0.5",
    "--teleop.operator.lost_s=8.0",
)


def publish_joystick(node: RosNode, folder: Path, command: Command) -> None:
    """Publish a joystick that rests, drives and ends: by a stop, a failure, then successes."""
    topic, ticks = joy_topic(ACTOR), count()
    sticks = node.publisher(topic._replace(name=f"{namespace(folder)}/{topic.name}"))

    def move() -> None:
        turn = next(ticks) % (OFF + ON)
        drives, presses = turn >= OFF, turn == OFF + ON - 1
        outcome = [word in command.output for word in (STOPPED, FAILED)].count(True)
        buttons = [0] * 12
        buttons[5] = int(drives)
        buttons[(STOP, FAILURE, SUCCESS)[outcome]] = int(presses)
        sticks.publish(Joy(axes=[0.0, 1.0 if drives else 0.0, *[0.0] * 6], buttons=buttons))

    node.every(PERIOD_S, move)


def test_operator_records_demonstration_on_guarded_arm_by_joystick(
    tmp_path: Path, start: Start
) -> None:
    folder = tmp_path / "demos"
    with frankas_beside_goals(tmp_path, None) as (_, (arm,), node):
        positions_m: list[float] = []
        pose = Topic(f"{arm}/current_pose", PoseStamped, 10)
        node.subscribe(pose, lambda message: positions_m.append(message.pose.position.x))
        words = ("--robot", "mine.py", "--namespace", arm, "--demos", 1, "--out", folder)
        command = start("record", "reach", *words, *SETTINGS)
        command.until("normal only at the first start: Enter confirms that it is safe to continue")
        make_folder(folder)
        publish_joystick(node, folder, command)
        answer_until(command, lambda: FAILED in command.output, (*ARMS, MOVES, GOES_ON))
        assert f"{STOPPED}{MOVES}" in command.output
        command.until(f"{RESTORE}: Enter continues")
        assert not episode_paths(folder), "a demonstration exists before the success button"
        answer_all(command, (*ARMS, GOES_ON))
    assert command.process.returncode == 0, command.output
    next_command = f"next: serl train reach --robot mine.py --namespace {arm} --demos {folder}"
    assert next_command in command.output
    run = RunFolder.open(folder)
    spec = make_spec(make_rewarded_task(run.config))
    check_recordings((folder,), make_spec(make_task(run.config)))
    (episode,) = (read_episode(path, spec) for path in episode_paths(folder))
    assert episode.success
    driven = [step.action for step in episode.steps if step.source is ActionSource.HUMAN]
    assert episode_paths(folder / FAILURES)
    assert sum(action.any() for action in driven) > 10, "the arm must move after the stop"
    assert max(positions_m) - min(positions_m) > 0.005, "the arm must move"
    (latch,) = tmp_path.glob("mine@*.latch")
    assert latch.read_text() == "serl latch: disarmed\n"
