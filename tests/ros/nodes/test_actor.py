"""Delays of an actor's actions, and imports of its process."""

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
    """Return one step per second, without observation stamps, and the end of an episode."""
    *steps, end = random_records(count)
    assert isinstance(end, End)
    return [
        replace(step, monotonic_s=float(n), observation=replace(step.observation, stamps={}))
        for n, step in enumerate(steps)
        if isinstance(step, Step)
    ], end


def test_delays_count_late_actions_after_observation_or_previous_action() -> None:
    (first, second), _ = _steps(2)
    seen = replace(first.observation, stamps={"robot": -0.2})
    assert delay_s(replace(first, observation=seen)) == pytest.approx(0.2)
    delays = Delays(0.1)
    delays.on_step(replace(first, observation=seen))
    assert delays.late == 1
    assert delays.worst_s == pytest.approx(0.2)
    delays.on_step(second)
    assert (delays.late, delays.worst_s) == (2, 1.0)


def test_delays_ignore_the_pause_between_episodes() -> None:
    (first, second), end = _steps(2)
    delays = Delays(0.1)
    delays.on_step(first)
    delays.on_end(end)
    delays.on_step(second)
    assert (delays.late, delays.worst_s) == (0, 0.0)


def test_actor_and_link_processes_import_no_display_packages() -> None:
    heavy = {"tensorboard", "matplotlib", "rich", "PIL", "google.protobuf"}
    modules = "serl.ros.nodes.actor, serl.ros.nodes.link"
    program = f"import sys, {modules}; print(*({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr
