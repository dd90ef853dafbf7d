"""Lifecycle, parameters and diagnostics of nodes, as standard ROS 2 tools use them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest
from diagnostic_msgs.msg import DiagnosticStatus

from serl import plugins
from serl.errors import SerlError
from serl.ros.arm.simulated import SimulatedRosArm
from serl.ros.environment import guard_name
from serl.ros.lifecycle import INACTIVE
from serl.ros.node import RosNode
from serl.ros.people.control import control_topic
from serl.ros.services import Remote
from serl.ros.testing.processes import ROBOT as GUARDED
from serl.ros.testing.processes import eventually
from serl.runs.config import resolve
from serl.runs.folder import RunFolder
from serl.runs.task_setup import make_task

from .conftest import Run
from .support.guard_bench import GuardBench
from .support.tools import ACTIVATE, CONFIGURE, DEACTIVATE, LIMIT_S, Tools

pytestmark = pytest.mark.ros

ROBOT = "left"


class Rig:
    """A simulated arm in lock-step and two actors, each in its own process."""

    def __init__(self, folder: Path) -> None:
        config = resolve({"task": "reach", "demos": 0, "agent": {"hidden": [8], "device": "cpu"}})
        self.run = RunFolder.create(folder, config, datetime.now())
        self.processes = Run(self.run.path)
        self.node = RosNode("tools", self.run.path, local=True)
        self.tools = Tools(self.node)
        task = make_task(config)
        self.arm = SimulatedRosArm(
            self.node,
            ROBOT,
            plugins.load("robot", "sim"),
            task.config,
            task.scene.tracked,
            lockstep=True,
        )

    def start(self, module: str, *words: str) -> None:
        self.processes.start("-m", f"serl.ros.nodes.{module}", "--run", str(self.run.path), *words)


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    made = Rig(tmp_path_factory.mktemp("rig"))
    with made.node:
        made.start("sim", "--robot", ROBOT, "--lockstep")
        made.start("actor", "--actor", "actor0")
        unmanaged = ("--ros-args", "-p", "autostart:=false")
        made.start("actor", "--actor", "actor1", *unmanaged)
        yield made
        made.processes.end()


def test_inactive_simulated_arm_does_not_advance_time(rig: Rig) -> None:
    node = f"{ROBOT}/arm"
    eventually(lambda: rig.tools.state(node) == "active", LIMIT_S)
    rig.arm.reset(0)
    rig.arm.advance(0.1)
    assert rig.tools.change(node, DEACTIVATE)
    assert rig.tools.state(node) == "inactive"
    with pytest.raises(SerlError, match="the arm's node is not active"):
        rig.arm.advance(0.1)
    warn = bytes(DiagnosticStatus.WARN)
    eventually(lambda: [s for s in rig.tools.statuses("simulated arm") if s.level == warn], LIMIT_S)
    assert rig.tools.change(node, ACTIVATE)
    rig.arm.advance(0.1)


def test_node_parameters_are_described_and_task_is_read_only(rig: Rig) -> None:
    for node in (f"{ROBOT}/arm", "actor0"):
        found = rig.tools.descriptors(node)
        assert "use_sim_time" in found
        own = found.keys() - {"use_sim_time", "start_type_description_service"}
        assert own >= {"task", "autostart"}
        assert all(found[name].description for name in own)
        assert found["task"].read_only
        assert "read-only" in rig.tools.refusal(node, "task", "unicorn")
        assert not rig.tools.refusal(node, "use_sim_time", False)


def test_actor_holds_while_its_node_is_inactive(rig: Rig) -> None:
    control_messages: list[str] = []
    rig.node.subscribe(
        control_topic("actor0"), lambda message: control_messages.append(message.message)
    )
    eventually(lambda: rig.tools.state("actor0") == "active", LIMIT_S)
    assert not rig.tools.change("actor0", ACTIVATE)  # it is active already
    assert rig.tools.change("actor0", DEACTIVATE)
    eventually(lambda: control_messages and control_messages[-1] == INACTIVE, LIMIT_S)
    remote = Remote(rig.node, lambda: None)
    with pytest.raises(SerlError, match=f"{INACTIVE}: activate it"):
        remote.trigger("actor0/resume")
    assert rig.tools.change("actor0", ACTIVATE)
    eventually(lambda: control_messages[-1] == "", LIMIT_S)
    assert remote.trigger("actor0/pause") == "paused"
    assert rig.tools.change("actor0", DEACTIVATE)
    with pytest.raises(SerlError, match=f"{INACTIVE}: activate it"):
        remote.trigger("actor0/resume")
    assert rig.tools.change("actor0", ACTIVATE)
    eventually(lambda: control_messages[-1] == "paused", LIMIT_S)  # the operator's pause persists


def test_managed_node_waits_until_it_is_configured_and_activated(rig: Rig) -> None:
    control_messages: list[str] = []
    rig.node.subscribe(
        control_topic("actor1"), lambda message: control_messages.append(message.message)
    )
    assert rig.tools.state("actor1") == "unconfigured"
    eventually(lambda: control_messages and control_messages[-1] == INACTIVE, LIMIT_S)
    assert not rig.tools.change("actor1", ACTIVATE)  # it is not configured
    assert rig.tools.change("actor1", CONFIGURE)
    assert rig.tools.change("actor1", ACTIVATE)
    eventually(lambda: control_messages[-1] == "", LIMIT_S)


def test_guard_disarms_and_refuses_arming_while_its_node_is_inactive(tmp_path: Path) -> None:
    with GuardBench(tmp_path) as bench, RosNode("tools", tmp_path, local=True) as node:
        tools, name = Tools(node), guard_name(GUARDED)
        bench.start_all()
        assert tools.descriptors(name)["speed_m_s"].read_only
        assert "read-only" in tools.refusal(name, "use_sim_time", True)  # it keeps its clock
        assert tools.change(name, DEACTIVATE)
        bench.until_disarmed()
        eventually(lambda: "the guard's node is not active" in bench.call("arm")[1], LIMIT_S)
        assert tools.change(name, ACTIVATE)
        bench.arm()
        eventually(lambda: tools.statuses("guard"), LIMIT_S)
