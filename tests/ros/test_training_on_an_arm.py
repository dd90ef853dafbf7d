"""`serl train TASK --robot NAME` on a fake Franka: what a person types and answers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from serl import cli
from serl.assignment import make_spec, make_task
from serl.control_status import read_control_status
from serl.episodes import read_records
from serl.run_folder import RunFolder
from serl.types import End, Source, Step

from .terminal import Terminal
from .test_training import assert_sound, rows, trained
from .tracked import GOAL_M, answer_all, franka_beside_a_goal

pytestmark = pytest.mark.ros

STEPS = 40
SETTINGS = (
    "--task_config.time_limit_s=1.0",
    "--task_config.motion.box_high_m=[0.7,0.3,0.6]",
    "--agent.hidden=[32,32]",
    "--agent.batch_size=16",
    "--agent.utd=1",
    "--agent.device=cpu",
    "--learner.publish_every=5",
    "--learner.metrics_every=10",
    "--learner.checkpoint_every=20",
)
POSE = f"--reward.pose=[{GOAL_M[0]},{GOAL_M[1]},{GOAL_M[2]},1,0,0,0]"


@pytest.fixture
def commands() -> Iterator[list[Terminal]]:
    started: list[Terminal] = []
    yield started
    for command in started:
        if command.process.poll() is None:
            command.interrupt()


def test_an_arm_is_trained_on_through_its_guard_and_tried_on(
    tmp_path: Path, commands: list[Terminal], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["record", "reach", "--demos", "2", "--out", "demos"]) == 0
    with franka_beside_a_goal(tmp_path) as (_, arm):
        words = ("--robot", "mine.py", "--namespace", arm, "--demos", "demos", "--trials", 1)
        reward = ("--reward.kind=pose", POSE)
        command = Terminal(tmp_path, "train", "reach", *words, "--steps", STEPS, *reward, *SETTINGS)
        commands.append(command)
        command.until("is this the first start?: Enter says that you have seen to it")
        command.press_enter()
        command.until("the guard is disarmed: Enter arms it")
        answer_all(command)
    assert command.process.returncode == 0, command.output
    (folder,) = (tmp_path / "runs" / "reach").iterdir()
    run = RunFolder.open(folder)
    assert sum(trained(run).values()) == STEPS
    assert rows(run, "update")
    assert_sound(run)
    records = list(read_records(run.episodes("actor0"), make_spec(make_task(run.config))))
    steps = [record for record in records if isinstance(record, Step)]
    assert {step.source for step in steps} == {Source.POLICY}
    assert {step.reward_provenance for step in steps} == {"pose"}
    assert any(record.reason == "time limit" for record in records if isinstance(record, End))
    assert read_control_status(run.link("actor0")) is not None
    (final,) = rows(run, "evaluation")
    assert (final["purpose"], final["trials"]) == ("final", 1)
    assert "bring arm and scene to a start, then go on: Enter goes on" in command.output
    assert "1 unassisted trials on the arm" in command.output
