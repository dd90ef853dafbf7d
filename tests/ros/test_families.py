"""Every family of arms: the actor's end, a guard, and a fake of the driver, over real DDS."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from serl import plugins
from serl.arm_profile import GRIP, ArmProfile
from serl.errors import SerlError
from serl.ros.arm import RosArm
from serl.ros.controller import settle_controller
from serl.ros.node import RosNode
from serl.tasks.reach import ReachConfig

from ..guarding import DOWN, config
from ..upstream import FAMILIES
from .cell import ROBOT, Cell, eventually

pytestmark = pytest.mark.ros

MOTION = ReachConfig().motion.model_copy(update={"box_high_m": (0.70, 0.30, 0.60), "gripper": True})
HAS_ACTIONS = importlib.util.find_spec("control_msgs") is not None


def profile_of(name: str) -> ArmProfile:
    """The profile, without a gripper whose messages are not installed."""
    profile: ArmProfile = plugins.load("robot", name)
    gripper = profile.gripper
    if gripper is None or gripper.command.type != GRIP or HAS_ACTIONS:
        return profile
    return profile.model_copy(update={"gripper": None})


class Bay:
    """A family's fake, a guard of it, and an actor's end."""

    def __init__(self, folder: Path, name: str) -> None:
        self.name, self.profile = name, profile_of(name)
        self.cell = Cell(folder)
        limits = config(
            frame=self.profile.base_frame,
            joint_names=self.profile.joints,
            joint_low_rad=self.profile.joint_low_rad,
            joint_high_rad=self.profile.joint_high_rad,
            wrench=self.profile.wrench is not None,
            reference=DOWN,
        ).model_copy(update={"motion": MOTION})
        (folder / "guard.yaml").write_text(json.dumps(limits.model_dump(mode="json")))
        self._file = folder / "family.py"
        without = "" if self.profile.gripper else ".model_copy(update={'gripper': None})"
        self._file.write_text(
            f"from serl import plugins\nrobot = plugins.load('robot', {name!r}){without}\n"
        )
        self.node = RosNode("actor", folder, local=True)

    def __enter__(self) -> Bay:
        self.cell.__enter__()
        self.node.__enter__()
        self.cell.start_fake(FAMILIES[self.name])
        self.cell.start_guard("--arm", str(self._file))
        self.arm = RosArm(self.node, ROBOT, self.profile, ReachConfig(motion=MOTION), guarded=True)
        self.node.every(0.015, self.arm.beat)  # whatever the tests wait for
        settle_controller(self.arm.remote, ROBOT, self.profile)
        self.cell.until("disarmed")
        return self

    def __exit__(self, *failure: Any) -> None:
        self.node.__exit__(None, None, None)
        self.cell.__exit__(None, None, None)

    def misbehave(self, fault: str) -> None:
        node = self.profile.controller.node
        node = node if node.startswith("/") else f"{ROBOT}/{node}"
        self.arm.remote.set_parameters(node, {"fault": fault})

    def take(self) -> None:
        """Have the guard take the arm, which is well."""

        def taken() -> bool:
            if self.cell.state.startswith("disarmed"):
                self.cell.call("arm")
            elif self.cell.state.startswith("protective stop"):
                self.cell.call("ack")
            self.arm.remote.wait(lambda: False, 0.05)
            return self.cell.state.startswith(("hold", "policy"))

        eventually(taken, found=lambda: self.cell.state)

    def drive(self, *action: float, until: Any, limit_s: float = 60.0) -> None:
        """Act ten times a second until something holds."""

        def act() -> bool:
            self.arm.observe_when_fresh(30.0)
            self.arm.act(np.array(action, np.float32))
            self.arm.remote.wait(lambda: False, 0.1)  # real time passes
            return bool(until())

        eventually(act, limit_s, lambda: self.cell.state)

    def place(self) -> list[float]:
        reading = self.arm.observe_when_fresh(30.0)
        return [float(value) for value in reading.state["tcp_pose"][:3]]

    def said(self, sign: str, since: int) -> bool:
        """The guard said so after its `since`-th word; beats meanwhile."""
        self.arm.remote.wait(lambda: False, 0.02)
        return any(text.startswith(sign) for _, text in self.cell.states[since:])


@pytest.mark.parametrize("name", FAMILIES)
def test_the_same_actor_drives_every_family_through_the_guard(name: str, tmp_path: Path) -> None:
    with Bay(tmp_path, name) as bay:
        bay.take()
        y_m = bay.place()[1]
        bay.drive(0.0, 1.0, 0.0, 0.0, until=lambda: bay.place()[1] > y_m + 0.02)
        if bay.profile.gripper is not None:
            bay.drive(0.0, 0.0, 0.0, -1.0, until=lambda: bay.arm.observe().state["gripper"] < 0.1)
            bay.drive(0.0, 0.0, 0.0, 1.0, until=lambda: bay.arm.observe().state["gripper"] > 0.9)
        assert bay.cell.state.startswith("policy")
        bay.arm.stop("test")
        bay.cell.until("hold: the actor holds")


@pytest.fixture(scope="module")
def crisp(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bay]:
    with Bay(tmp_path_factory.mktemp("crisp"), "franka") as bay:
        yield bay


@pytest.mark.parametrize(
    ("fault", "sign"),
    [
        ("silent", "hold: pose is stale"),
        ("frozen", "hold: pose is stale"),
        ("late", "hold: pose is old"),
        ("nan", "hold: pose is not finite"),
        ("reflex", "protective stop: force 60 N"),
    ],
)
def test_what_goes_wrong_with_an_arm_is_named_and_the_guard_takes_it_again(
    crisp: Bay, fault: str, sign: str
) -> None:
    crisp.misbehave("")
    crisp.take()
    crisp.arm.recover()
    crisp.drive(0.0, 0.0, 0.0, 0.0, until=lambda: crisp.cell.state.startswith("policy"))
    since = len(crisp.cell.states)
    crisp.misbehave(fault)
    eventually(lambda: crisp.said(sign, since), found=lambda: crisp.cell.state)
    crisp.misbehave("")
    crisp.take()


@pytest.mark.parametrize("fault", ["stuck", "dropped"])
def test_the_setpoint_never_runs_away_from_an_arm_that_does_not_follow(
    crisp: Bay, fault: str
) -> None:
    crisp.misbehave("")
    crisp.take()
    crisp.arm.recover()
    crisp.misbehave(fault)
    before = crisp.place()
    for _ in range(10):
        crisp.arm.act(np.array([0, 1, 0, 0], np.float32))
        crisp.arm.remote.wait(lambda: False, 0.1)  # real time passes
    crisp.misbehave("")
    target = crisp.arm.aim.target.position
    assert np.linalg.norm(np.subtract(target, before)) < MOTION.limits.lead_m + 0.016


def test_the_guard_does_not_take_an_arm_whose_controller_is_set_otherwise(crisp: Bay) -> None:
    crisp.misbehave("")
    crisp.cell.call("disarm")
    crisp.cell.until("disarmed")
    node = f"{ROBOT}/cartesian_impedance_controller"
    crisp.arm.remote.set_parameters(node, {"task.k_pos_x": 3000.0})
    line = "cartesian_impedance_controller: task.k_pos_x is 3000.0, expected 2000.0"
    eventually(lambda: crisp.cell.call("arm")[1].endswith(line))
    crisp.arm.remote.set_parameters(node, {"task.k_pos_x": 2000.0})
    crisp.take()


def test_gains_switch_while_it_runs_and_are_read_back(crisp: Bay) -> None:
    crisp.misbehave("")
    crisp.take()
    crisp.arm.recover()
    node, modes = f"{ROBOT}/cartesian_impedance_controller", crisp.profile.controller.modes
    for mode in ("compliance", "precision"):
        crisp.arm.switch(mode)
        wanted = modes[mode].parameters
        assert crisp.arm.remote.get_parameters(node, list(wanted)) == wanted
    for fault, complaint in (
        ("forgetful", "task.k_pos_x is 100.0, expected 200.0"),
        ("stubborn", "controller is active"),
    ):
        crisp.misbehave(fault)
        with pytest.raises(SerlError, match=complaint):
            crisp.arm.switch("compliance")
        assert complaint in (crisp.arm.stop_reason or "")
        crisp.misbehave("")
        crisp.arm.recover()
    settle_controller(crisp.arm.remote, ROBOT, crisp.profile)
