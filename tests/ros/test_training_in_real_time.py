"""A whole training with the simulated arm as a node, a guard before it, and a clock on the wall."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from serl.log.episode_reader import read_records
from serl.runs.task_setup import make_spec, make_task
from serl.training.link import read_control_status
from serl.types import End

from .conftest import Start
from .test_training import TINY, assert_sound, trained

pytestmark = pytest.mark.ros


def test_a_training_in_real_time_goes_through_the_guard_and_survives_its_arms_death(
    tmp_path: Path, start: Start
) -> None:
    settings = TINY | {"learner.checkpoint_every": 40, "selection_checkpoints": 1}
    command = start("train", "reach", **settings, steps=80, robot="sim")
    run = command.run_folder()
    command.child("serl.ros.nodes.guard", "actor0")
    command.until(lambda: read_control_status(run.link("actor0")) is not None)  # an episode
    command.child("serl.ros.nodes.sim", "actor0").send_signal(signal.SIGKILL)
    command.succeed()
    assert "sim-actor0 was killed by SIGKILL: started again" in command.output
    assert "control periods began late" in command.output
    assert sum(trained(run).values()) == 80
    assert_sound(run)
    records = list(read_records(run.episodes("actor0"), make_spec(make_task(run.config))))
    reasons = {record.text for record in records if isinstance(record, End)}
    assert reasons & {"time limit", "success"}, f"no episode went well: {reasons}"
