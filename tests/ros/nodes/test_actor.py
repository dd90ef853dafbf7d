"""Delays of an actor's actions, and what its process imports."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest

from serl.ros.nodes.actor import Delays, delay_s
from serl.testing.samples import random_records
from serl.types import End, Step

pytestmark = pytest.mark.ros


def _steps(count: int) -> tuple[list[Step], End]:
    """Steps of an episode, one a second, and its end; nobody says when a reading was taken."""
    *steps, end = random_records(count)
    assert isinstance(end, End)
    return [
        replace(step, monotonic_s=float(n), observation=replace(step.observation, stamps={}))
        for n, step in enumerate(steps)
        if isinstance(step, Step)
    ], end


def test_an_action_may_be_late_after_its_reading_or_after_the_action_before_it() -> None:
    (first, second), _ = _steps(2)
    seen = replace(first.observation, stamps={"robot": -0.2})
    assert delay_s(replace(first, observation=seen)) == pytest.approx(0.2)
    delays = Delays(0.1)
    delays.on_step(replace(first, observation=seen))
    assert delays.late == 1
    assert delays.worst_s == pytest.approx(0.2)
    delays.on_step(second)
    assert (delays.late, delays.worst_s) == (2, 1.0)


def test_between_two_episodes_nobody_acts() -> None:
    (first, second), end = _steps(2)
    delays = Delays(0.1)
    delays.on_step(first)
    delays.on_end(end)
    delays.on_step(second)
    assert (delays.late, delays.worst_s) == (0, 0.0)


@pytest.mark.parametrize("module", ["serl.ros.nodes.actor", "serl.ros.nodes.link"])
def test_a_process_beside_an_arm_imports_nothing_for_people(module: str) -> None:
    heavy = {"tensorboard", "matplotlib", "rich", "PIL", "google.protobuf"}
    program = f"import sys, {module}; print(*({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr
