"""Delays of an actor's actions, and imports of its process."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest

from serl.ros.nodes.actor import Delays
from serl.testing.samples import random_records
from serl.types import End, Step

pytestmark = pytest.mark.ros


def test_delays_ignore_the_pause_between_episodes() -> None:
    *steps, end = random_records(2)
    delays = Delays(0.1)
    assert isinstance(end, End)
    for number, step in enumerate(steps):
        assert isinstance(step, Step)
        unstamped = replace(step.observation, stamps={})
        delays.on_step(replace(step, monotonic_s=float(number), observation=unstamped))
        delays.on_end(end)
    assert (delays.late, delays.worst_s) == (0, 0.0)


def test_actor_and_link_processes_import_no_display_packages() -> None:
    heavy = {"tensorboard", "matplotlib", "rich", "PIL", "google.protobuf"}
    modules = "serl.ros.nodes.actor, serl.ros.nodes.link"
    program = f"import sys, {modules}; print(*({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr
