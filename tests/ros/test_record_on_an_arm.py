"""`serl record TASK --robot NAME` on a fake Franka that a joystick drives."""

from __future__ import annotations

from pathlib import Path

import pytest
from geometry_msgs.msg import PoseStamped

from serl.datasets.recording_session import FAILURES
from serl.log.episode_reader import episode_paths, read_episode
from serl.ros.arm.station import RESTORE
from serl.ros.topics import Topic
from serl.runs.demonstrations import check_recordings
from serl.runs.folder import RunFolder
from serl.runs.task_setup import make_rewarded_task, make_spec, make_task
from serl.system.files import make_folder
from serl.types import ActionSource

from .conftest import Start
from .support.tracked import (
    ARMS,
    FAILURE,
    GOES_ON,
    MOVES,
    PATIENT,
    STOP,
    SUCCESS,
    answer_all,
    answer_until,
    frankas_beside_goals,
    publish_joystick,
)

pytestmark = [pytest.mark.ros, pytest.mark.xdist_group("moving_arm")]  # not beside each other

STOPPED, FAILED = "stopped by the joystick", "\nfailure, "
SETTINGS = (
    "--reward.kind=human",
    "--reset.kind=person",
    "--task_config.motion.box_high_m=[0.7,0.3,0.6]",
    "--log.min_free_bytes=1000000",
    *PATIENT,
)


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

        def pressed(tick: int) -> int | None:
            """End the first drive by a stop, the second by a failure, the others by a success."""
            ended = [words in command.output for words in (STOPPED, FAILED)].count(True)
            return (STOP, FAILURE, SUCCESS)[ended] if tick == 39 else None

        publish_joystick(node, folder, 40, pressed)
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
