"""The commands of docs/tutorials/first-day.md on the simulated arm."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from serl.arm_profile import load_robot, read_robot
from serl.ros.setup.steps import STEPS
from serl.ros.testing.processes import eventually
from serl.runs.folder import RunFolder
from serl.runs.guard_setup import workspace_guard

from ..support.command import Command
from .test_real_task_on_an_arm import train_to_the_end
from .test_training import trained

pytestmark = [pytest.mark.ros, pytest.mark.slow]

PAGE = (Path(__file__).parents[2] / "docs/tutorials/first-day.md").read_text(encoding="utf-8")
REASONS: dict[str, str] = dict(re.findall(r"\n\| (\w+) \| `(s [a-z ]+)`", PAGE))
CORNERS: list[str] = re.findall(r"`(0\.\d+,-?0\.\d+,0\.\d+)`", PAGE)
TRAINED_STEPS = 60
SHORT = (
    f" --steps {TRAINED_STEPS} --trials 1 --required_success_rate null"
    " --agent.hidden '[16, 16]' --agent.batch_size 16 --agent.threads 1"
)
CHOICE = "[q] leave, to continue later"
SWINGS = "a stop of a device counts, too."


def command(start: str) -> list[str]:
    """Return the arguments of the tutorial's command that starts with these words."""
    (line,) = re.findall(rf"^(serl {start}.*)$", PAGE, re.MULTILINE)
    return shlex.split(line, comments=True)[1:]


def answer(said: str) -> str | None:
    """Return the answer to the last question in the output; None without a question."""
    end = said.rstrip()[-400:]
    if end.endswith(CHOICE):
        step = re.findall(r"\d+/10 (\w+): ", said)[-1]
        return REASONS.get(step, "")
    for corner, place in zip(("nearest", "furthest"), CORNERS, strict=True):
        if f"corner {corner}" in end.splitlines()[-1] and end.endswith("x,y,z in m"):
            return place
    if end.endswith("up down]"):
        axis = re.findall(r"\+([xyz]): which way", end)[-1]
        return {"x": "forward", "y": "left", "z": "up"}[axis]
    if end.endswith("e ends"):
        return "e"
    if end.endswith("[y/n]"):
        return "y"
    return "" if end.endswith(("Enter", "Enter begins", SWINGS)) else None


@pytest.fixture
def sim(tmp_path: Path) -> Iterator[Command]:
    with Command(tmp_path, *command("sim")) as arm:
        arm.until("topics and services under /sim/arm")
        yield arm


def rehearse(person: Command) -> None:
    """Answer all questions until the command ends; repeat the press that stops the swing."""
    heard = 0

    def done() -> bool:
        nonlocal heard
        said = person.output
        new = len(said) > heard or said.rstrip().endswith(SWINGS)
        if new and (words := answer(said)) is not None and person.is_running:
            heard = len(said)
            person.say(words)
        return not person.is_running

    eventually(done, 600.0)


def test_first_day_tutorial_sets_up_arm_starts_guard_trains_and_evaluates(
    sim: Command, tmp_path: Path
) -> None:
    with Command(tmp_path, *command("setup sim")) as person:
        rehearse(person)
        assert person.process.returncode == 0, person.output
    kept = read_robot(tmp_path / "rehearsal.yaml")
    assert list(kept.setup) == [step.name for step in STEPS]
    assert {name for name, trial in kept.setup.items() if trial.skipped} == set(REASONS)
    assert kept.workspace is not None
    assert [kept.workspace.low_m, kept.workspace.high_m] == [
        tuple(map(float, corner.split(","))) for corner in CORNERS
    ]
    assert workspace_guard(load_robot(str(tmp_path / "rehearsal.yaml"))).motion.gripper
    with Command(tmp_path, *command("guard rehearsal")) as guard:
        guard.until("Ctrl-C ends it")
    words = [*command("train pick_cube --robot rehearsal"), *shlex.split(SHORT)]
    with Command(tmp_path, *words) as training:
        train_to_the_end(training)
    training.assert_trials_ended()
    assert "1 unassisted trials on the arm" in training.output
    assert "episode 1 of 1: " in training.output, "no trial has ended"
    (run,) = (tmp_path / "runs" / "pick_cube").iterdir()
    assert sum(trained(RunFolder.open(run)).values()) >= TRAINED_STEPS
