"""A training of two tasks in turns: one command, two learners, one arm."""

from __future__ import annotations

from pathlib import Path

import pytest

from serl import cli
from serl.assignment import make_spec, make_task
from serl.episodes import episode_paths, read_episode
from serl.run_folder import RunFolder
from serl.types import Step

from .conftest import LIMIT_S
from .test_training import TINY, Command, assert_sound, rows, trained

pytestmark = pytest.mark.ros

FEW = {"trials": 1, "selection_checkpoints": 1, "learner.checkpoint_every": 40}
STAGES = "{near: {then: nearer}, nearer: {then: near, config: {task_config: {reach_m: 0.04}}}}"


def test_one_command_trains_both_stages_and_goes_on_after_an_interruption(
    tmp_path: Path, commands: list[Command], capsys: pytest.CaptureFixture[str]
) -> None:
    first = Command(tmp_path, "train", "reach", **TINY | FEW, steps=120, stages=STAGES)
    commands.append(first)
    run = first.run_folder()
    parts = run.parts()
    assert list(parts) == ["near", "nearer"]
    first.until(lambda: all(map(trained, parts.values())))
    first.interrupt()
    assert "to go on: serl train --resume" in first.output

    second = Command(tmp_path, "train", "--resume", run.path)
    commands.append(second)
    assert second.process.wait(8 * LIMIT_S) == 0, second.output
    for name, part in parts.items():
        assert sum(trained(part).values()) == 120
        assert part.config.task_config["reach_m"] == {"near": 0.05, "nearer": 0.04}[name]
        assert [row["purpose"] for row in rows(part, "evaluation")][-1] == "final"
        assert_sound(part)
        assert _runs(part) == {name}
        assert part.report.exists()
    capsys.readouterr()
    assert cli.main(["verify", str(run.path)]) == 0
    assert capsys.readouterr().out.count("sound") == 2


def _runs(part: RunFolder) -> set[str]:
    """Which run the steps in the log of a stage say that they are of."""
    keys, spec = set(), make_spec(make_task(part.config))
    for path in episode_paths(part.episodes("actor0")):
        steps = read_episode(path, spec).steps
        keys |= {step.key.run for step in steps if isinstance(step, Step)}
    return keys
