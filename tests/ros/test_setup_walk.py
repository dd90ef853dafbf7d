"""A whole first day with the simulated arm: every step of `serl setup`, before a person whose hands
guide the arm, steer it and press the stop; then a guard that starts from what was taught.
"""

from __future__ import annotations

import time
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from serl import plugins
from serl.arm_profile import read_robot
from serl.cli.setup import walk
from serl.geometry import Vector, add
from serl.ros.environment import meet_others, ros_name
from serl.ros.node import RosNode
from serl.ros.setup.arm import SetupArm
from serl.ros.setup.session import SetupSession
from serl.ros.setup.steps import STEPS
from serl.runs.config import resolve
from serl.runs.folder import RunFolder
from serl.runs.guard_setup import ArmNamespace, workspace_guard

from ..system.test_cameras import write_film
from .conftest import Run
from .support.person import Person

pytestmark = [pytest.mark.ros, pytest.mark.slow]

ROBOT = "arm"
SIM = plugins.load("robot", "sim")
ATTEMPTS = 12


class Patient(Person):
    """A simulated person who repeats late steps, and skips the button that a simulation lacks."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.tries: dict[str, int] = {}

    def ask(self, key: str, question: str) -> str:
        if key == "stop_button":
            return "s a simulated arm has no red button"
        if key in [step.name for step in STEPS]:
            self.tries[key] = self.tries.get(key, 0) + 1
            assert self.tries[key] <= ATTEMPTS, self.said
        return super().ask(key, question)


def test_setup_walk_completes_every_step_on_simulated_arm(tmp_path: Path) -> None:
    config = resolve({"task": "pick_cube"})
    folder = RunFolder.create(tmp_path, config, datetime.now()).path
    place = ArmNamespace(ros_name(folder.name), ROBOT)
    meet_others(folder)
    processes = Run(folder)
    processes.start("-m", "serl.ros.nodes.sim", "--run", str(folder), "--robot", ROBOT)
    film = write_film(tmp_path / "front.avi", 60)
    camera = ("camera", "front", "--file", str(film), "--loop", "--namespace", place.namespace)
    processes.start("-m", "serl.cli.main", *camera)
    out = tmp_path / "arm.yaml"
    try:
        with RosNode("setup", folder, local=True) as node, RosNode("me", folder, local=True) as own:
            person = Patient(own, place, SIM)
            prepare(person, own)
            assert person.sees(120.0)
            profile = SIM.within(place.namespace)
            with SetupArm(node, place, profile, folder, tmp_path / "latch", person) as arm:
                assert walk(SetupSession(node, arm, person, out), STEPS), person.said
    finally:
        processes.end()
    kept = read_robot(out)
    assert list(kept.setup) == [step.name for step in STEPS]
    assert [name for name, trial in kept.setup.items() if trial.skipped] == ["stop_button"]
    assert kept.workspace is not None
    sides = zip(kept.workspace.low_m, kept.workspace.high_m, strict=True)
    assert [high - low for low, high in sides] == pytest.approx([0.1, 0.1, 0.08], abs=0.01)
    assert workspace_guard(kept).motion.box_low_m == kept.workspace.low_m
    assert kept.cameras["front"].topic == f"{place.namespace}/front"
    assert kept.cameras["front"].crop == (0.5, 0.0, 1.0, 1.0)
    assert out.with_name("arm.front.png").exists()


def prepare(person: Person, node: RosNode) -> None:
    """Define how the simulated person guides the arm, steers it and presses the stop."""
    began_s, start = time.monotonic(), list[Vector]()

    def guide(x: float, y: float, z: float) -> str:
        if not start:
            start.append(person.place)
        return person.guide(add(start[0], (x, y, z)))

    person.answers |= {
        "workspace.home": lambda: guide(0.0, 0.0, 0.0),
        "workspace.low": lambda: guide(-0.05, -0.05, -0.04),
        "workspace.high": lambda: guide(0.05, 0.05, 0.04),
        "workspace.end": lambda: guide(0.0, 0.0, 0.0) + person.hands_off(),
    }
    person.answers["cameras.front.crop"] = "0.5,0,1,1"
    person.whenever["estop"] = person.push_button

    def steer_periodically() -> None:
        on = 1.0 < (time.monotonic() - began_s) % 4.0 < 3.0
        person.steer(0.0, 0.0, 1.0 if on else 0.0)

    node.every(0.05, steer_periodically)
