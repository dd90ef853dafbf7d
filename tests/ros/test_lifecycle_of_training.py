"""Lifecycle transitions and diagnostics of every node of a training."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from datetime import datetime
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest
from diagnostic_msgs.msg import DiagnosticStatus

from serl.console.access import read_address
from serl.ros.lifecycle import INACTIVE
from serl.ros.node import RosNode
from serl.ros.testing.processes import eventually
from serl.runs.checkpoint import checkpoint_paths
from serl.runs.config import resolve
from serl.runs.folder import RunFolder

from ..support.command import Command
from ..system.test_cameras import write_film
from .conftest import Run
from .support.tools import ACTIVATE, CLEAN_UP, CONFIGURE, DEACTIVATE, LIMIT_S, SHUT_DOWN, Tools
from .test_training import TINY

pytestmark = [pytest.mark.ros, pytest.mark.xdist_group("managed")]

SETTINGS = {
    **TINY,
    "steps": 1_000_000,
    "actor.max_lead_steps": 1_000_000,
    "learner.checkpoint_every": 1_000_000,
}
NODES = {
    "learner": "learner",
    "link_actor0": "link actor0",
    "actor0": "actor actor0",
    "actor0/arm": "simulated arm",
    "guard_actor0": "guard ",
    "console": "console of actor0",
}
"""Nodes of `serl train --robot sim --console`, with their names in /diagnostics."""
WARN = bytes(DiagnosticStatus.WARN)
UNMANAGED = ("--ros-args", "-p", "autostart:=false")


class Training:
    """A run of `serl train` with a simulated arm and a console, and a client of its nodes."""

    def __init__(self, folder: Path) -> None:
        self.command = Command(folder, "train", "reach", "--console", **SETTINGS, robot="sim")
        self.run: RunFolder = self.command.run_folder()
        self.node = RosNode("tools", self.run.path, local=True)
        self.tools = Tools(self.node)


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Training]:
    made = Training(tmp_path_factory.mktemp("training"))
    with made.command, made.node:
        made.command.until(lambda: trained(made.tools) > 0.0)
        yield made
    assert "killed" not in made.command.output
    assert "to continue: serl train --resume" in made.command.output


def reports_inactive(tools: Tools, text: str) -> bool:
    """Return whether the last diagnostic status warns that the node is inactive."""
    last = tools.statuses(text)[-1]
    return bool(last.level == WARN and last.message == INACTIVE)


def is_active(tools: Tools, node: str) -> bool:
    return tools.state(node) == "active"


def trained(tools: Tools) -> float:
    return float(tools.numbers("learner").get("trained", 0.0))


def test_each_training_node_is_active_and_describes_its_parameters(training: Training) -> None:
    tools = training.tools
    for node in NODES:
        eventually(partial(is_active, tools, node), LIMIT_S)
        found = tools.descriptors(node)
        own = found.keys() - {"use_sim_time", "start_type_description_service"}
        assert len(own) > 1, node
        assert all(found[name].description for name in own), node


def test_each_training_node_publishes_diagnostics_at_the_same_rate(training: Training) -> None:
    """Compare rates between nodes, as a busy machine delays all of them."""
    tools = training.tools
    eventually(lambda: all(tools.statuses(text) for text in NODES.values()), LIMIT_S)
    first_s = tools.stamps_s("learner")[-1]
    tools.listen("learner", 5)
    passed_s = tools.stamps_s("learner")[-1] - first_s
    assert passed_s > 3.5
    for text in NODES.values():
        since = [stamp_s for stamp_s in tools.stamps_s(text) if stamp_s > first_s]
        assert 0.3 * passed_s < len(since) < 1.5 * (since[-1] - first_s) + 1.0, text
    status = tools.statuses("actor actor0")[-1]
    assert status.name == f"{training.node.absolute('actor0')}: actor actor0"
    assert {pair.key for pair in status.values} >= {"episodes", "paused"}


@pytest.mark.slow
def test_learner_trains_only_while_active_and_saves_on_deactivation(
    training: Training,
) -> None:
    tools = training.tools
    assert tools.change("learner", DEACTIVATE)
    eventually(lambda: reports_inactive(tools, "learner"), LIMIT_S)
    steps = trained(tools)
    sent = float(tools.numbers("link actor0")["acknowledged"])
    eventually(lambda: float(tools.numbers("link actor0")["acknowledged"]) > sent, LIMIT_S)
    assert trained(tools) == steps, "an inactive learner receives records without training"
    assert int(checkpoint_paths(training.run.checkpoints)[-1].name) == steps
    assert tools.change("learner", CLEAN_UP)
    assert tools.state("learner") == "unconfigured"
    assert not tools.change("learner", ACTIVATE)
    assert tools.change("learner", CONFIGURE)
    assert tools.change("learner", ACTIVATE)
    eventually(lambda: trained(tools) > steps, LIMIT_S)


def test_learner_loads_on_configure_and_saves_on_shutdown(
    tmp_path: Path,
) -> None:
    config = resolve({"task": "reach", "demos": 0, "agent": {"hidden": [8], "device": "cpu"}})
    run = RunFolder.create(tmp_path, config, datetime.now())
    with Run(run.path) as processes, RosNode("tools", run.path, local=True) as node:
        tools = Tools(node)
        learner = ("-m", "serl.ros.nodes.learner", "--run", str(run.path), *UNMANAGED)
        process = processes.start(*learner)
        assert tools.state("learner") == "unconfigured"
        eventually(
            lambda: tools.statuses("learner") and reports_inactive(tools, "learner"), LIMIT_S
        )
        assert not tools.numbers("learner"), "an unconfigured learner has loaded nothing"
        assert not run.checkpoints.exists() or not checkpoint_paths(run.checkpoints)
        assert tools.change("learner", CONFIGURE)
        eventually(lambda: tools.numbers("learner"), LIMIT_S)
        assert tools.change("learner", SHUT_DOWN)
        eventually(lambda: checkpoint_paths(run.checkpoints), LIMIT_S)
        assert tools.state("learner") == "finalized"
        processes.start(*learner).wait(LIMIT_S)  # the run already has a learner
        again = processes.processes.pop()
        assert again.returncode == 2
        processes.end()
        assert process.returncode == 0


@pytest.mark.slow
def test_inactive_link_sends_nothing(training: Training) -> None:
    tools = training.tools
    assert tools.change("link_actor0", DEACTIVATE)
    eventually(lambda: reports_inactive(tools, "link actor0"), LIMIT_S)
    sent = tools.numbers("link actor0")["sent"]
    tools.listen("link actor0", 3)
    assert tools.numbers("link actor0")["sent"] == sent
    assert tools.change("link_actor0", ACTIVATE)
    eventually(lambda: float(tools.numbers("link actor0")["sent"]) > float(sent), LIMIT_S)


@pytest.mark.slow
def test_inactive_console_serves_no_page(training: Training) -> None:
    tools, folder = training.tools, training.run.path
    eventually(lambda: read_address(folder), LIMIT_S)
    door = read_address(folder)
    assert door is not None
    assert answers(door.url)
    assert tools.change("console", DEACTIVATE)
    eventually(lambda: reports_inactive(tools, "console"), LIMIT_S)
    eventually(lambda: read_address(folder) is None, LIMIT_S)
    eventually(lambda: not answers(door.url), LIMIT_S)
    assert tools.change("console", ACTIVATE)
    eventually(lambda: read_address(folder) == door, LIMIT_S)
    assert answers(door.url)


def answers(url: str) -> bool:
    place = urlsplit(url)
    try:
        socket.create_connection((place.hostname, place.port), 5.0).close()
    except OSError:
        return False
    return True


def test_camera_node_opens_its_device_only_while_active(tmp_path: Path) -> None:
    film = write_film(tmp_path / "a.avi", 40)
    folder = tmp_path / "cell"
    folder.mkdir()
    given = ("front", "--file", str(film), "--namespace", "/cell/arm", "--loop", *UNMANAGED)
    with Run(folder) as processes, RosNode("tools", folder, local=True) as node:
        tools = Tools(node)
        process = psutil.Process(processes.start("-m", "serl.cli.main", "camera", *given).pid)

        def holds() -> bool:
            return str(film) in (file.path for file in process.open_files())

        (name,) = found(tools, "camera_front")
        assert tools.state(name) == "unconfigured"
        eventually(lambda: tools.statuses("camera") and reports_inactive(tools, "camera"), LIMIT_S)
        eventually(lambda: not holds(), LIMIT_S)
        assert tools.numbers("camera")["frames"] == "0"
        assert {"source", "jpeg", "autostart"} <= tools.descriptors(name).keys()
        assert tools.change(name, CONFIGURE)
        assert tools.change(name, ACTIVATE)
        eventually(lambda: tools.numbers("camera")["frames"] > "0", LIMIT_S)
        assert holds()
        assert tools.change(name, DEACTIVATE)
        eventually(lambda: reports_inactive(tools, "camera") and not holds(), LIMIT_S)
        assert tools.change(name, SHUT_DOWN)
        assert tools.state(name) == "finalized"


def found(tools: Tools, name: str) -> list[str]:
    """Return the absolute names of all nodes with this name."""

    def seen() -> list[str]:
        pairs = tools.node.handle.get_node_names_and_namespaces()
        return [f"{place.rstrip('/')}/{each}" for each, place in pairs if each == name]

    eventually(seen, LIMIT_S)
    return seen()
