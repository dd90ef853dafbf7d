"""`serl up`: one file starts two arms in two namespaces, a guard for each, and one learner."""

from __future__ import annotations

import io
import os
import re
import shutil
from contextlib import suppress
from datetime import datetime
from functools import partial
from pathlib import Path

import psutil
import pytest
import yaml
from geometry_msgs.msg import PoseStamped
from rich.console import Console

from serl import plugins
from serl.arm_profile import ArmProfile, write_robot
from serl.cli import main as cli
from serl.cli.up import _guarded, attend, run_of
from serl.errors import BadInput
from serl.log.metrics import MetricsWriter, UpdateRow
from serl.report.display import Display
from serl.ros.environment import guard_name
from serl.ros.processes import (
    actor_processes,
    console_processes,
    ends_with,
    graph_processes,
    guard_processes,
    learner_processes,
)
from serl.ros.real_arm import RealArm
from serl.ros.testing.processes import eventually
from serl.ros.topics import Topic
from serl.runs.config import resolve
from serl.runs.folder import RunFolder
from serl.runs.graph_file import GraphConfig
from serl.runs.verify import verify
from serl.system.settings_file import checked
from serl.system.supervisor import ProcessSpec, Supervisor
from serl.workspace import Workspace

from ..support.command import Command
from .conftest import Start
from .support.tracked import ARMS, GOAL_M, GOES_ON, answer_until, frankas_beside_goals

pytestmark = pytest.mark.ros

DOCS = Path(__file__).parents[2] / "docs"
ROBOTS = [{"name": "left"}, {"name": "right"}]
SETTINGS = {
    "steps": 60,
    "demos": 2,
    "intervention": "none",
    "task_config": {"time_limit_s": 1.0, "reach_m": 0.05},
    "agent": {"hidden": [32, 32], "batch_size": 16, "utd": 1, "device": "cpu"},
    "learner": {"checkpoint_every": 20, "publish_every": 5},
}


ON_ARMS = SETTINGS | {
    "steps": 30,
    "demos": 0,
    "task_config": {
        "time_limit_s": 1.0,
        "motion": {"box_low_m": [0.25, -0.3, 0.04], "box_high_m": [0.7, 0.3, 0.6]},
    },
    "reward": {"kind": "pose", "pose": [*GOAL_M, 1, 0, 0, 0]},
}


# A real arm without a workspace needs its own box.
OWN_BOX = {"motion": {"box_low_m": [0.4, -0.1, 0.1], "box_high_m": [0.6, 0.1, 0.4]}}


def made(folder: Path, robot: str | None = "sim") -> RunFolder:
    settings = {"task": "reach", "demos": 0, "robot": robot, "actors": 2}
    config = resolve(settings | {"task_config": OWN_BOX})
    return RunFolder.create(folder, config, datetime.now())


def described(run: RunFolder, **fields: object) -> list[str]:
    graph = checked(GraphConfig, {"run": run.path, "robots": ROBOTS, **fields})
    return [spec.name for spec in graph_processes(run, graph)]


def test_graph_processes_are_those_of_serl_train(tmp_path: Path) -> None:
    run = made(tmp_path)
    graph = checked(GraphConfig, {"run": run.path, "robots": ROBOTS})
    expected = [
        *learner_processes(run),
        *actor_processes(run, "left"),
        *actor_processes(run, "right"),
    ]
    assert graph_processes(run, graph) == expected
    assert ends_with(graph) == {"learner"}
    guards = [spec for spec in expected if spec.module == "serl.ros.nodes.guard"]
    assert [spec.arguments[3] for spec in guards] == ["left", "right"]


def test_graph_starts_only_the_listed_parts(tmp_path: Path) -> None:
    run = made(tmp_path)
    assert described(run, robots=[]) == ["learner"]
    joined = described(run, learner=False, robots=[{"name": "more"}])
    assert joined == ["sim-more", "guard-more", "link-more", "more"]
    arm = {"name": "arm", "actor": False}
    assert described(run, robots=[arm]) == ["learner", "sim-arm", "guard-arm"]
    assert described(run, robots=[arm | {"guard": False}]) == ["learner", "sim-arm"]
    real = arm | {"profile": "franka", "namespace": "/left"}
    assert described(run, robots=[real]) == ["learner", "guard-arm"]
    console = {"robot": "left"}
    assert described(run, console=console)[-1] == "console"
    simulated = ("--guard", "left", "left", str(run.path / "guard" / "left.latch"))
    assert console_processes(run, "left", 8765)[0].arguments[-4:] == simulated
    noted = RealArm("franka", "/left").guarded
    arguments = ("--guard", "arm", "/left", str(noted.latch))
    assert console_processes(run, "arm", 8765)[0].arguments[-4:] == arguments
    for older in ("/left\n", "", "/left\nlatch\nmore\n"):
        (run.path / "guard" / "left.arm").write_text(older)
        assert console_processes(run, "left", 8765)[0].arguments[-4:] == simulated
    given = RealArm("franka", "/right")
    arguments = ("--guard", "left", "/right", str(given.guarded.latch))
    assert console_processes(run, "left", 8765, given)[0].arguments[-4:] == arguments
    two = RealArm(str(DOCS / "examples/pair.yaml"), "")
    pair = console_processes(run, "left", 8765, two)[0].arguments
    named = [pair[at + 1] for at, word in enumerate(pair) if word == "--guard"]
    assert named == ["left/left", "left/right"]
    assert pair[pair.index("--profile") + 1 :][:2] == ("left", two.profile)
    graph = checked(GraphConfig, {"run": run.path, "robots": ROBOTS, "console": console})
    other = ("--actor", "right", "--guard", "right", "right")
    latch = str(run.path / "guard" / "right.latch")
    assert graph_processes(run, graph)[-1].arguments[-6:] == (*other, latch)
    alone = made(tmp_path / "alone", None)
    assert "--guard" not in console_processes(alone, "left", 8765)[0].arguments


def test_pair_profile_has_one_actor_and_a_guard_per_arm(tmp_path: Path) -> None:
    for name in ("pair.yaml", "pair_arm.yaml"):
        shutil.copy(DOCS / "examples" / name, tmp_path / name)
    entry = {"name": "arms", "profile": str(tmp_path / "pair.yaml")}
    text = {
        "task": "handover",
        "runs": tmp_path,
        "robots": [entry],
        "settings": {"demos": 0, "trials": 0},
    }
    graph = checked(GraphConfig, text)
    run = run_of(graph)
    names = [spec.name for spec in graph_processes(run, graph)]
    assert names == ["learner", "guard-arms-left", "guard-arms-right", "link-arms", "arms"]
    assert set(_guarded(run, graph.robots[0])) == {"arms/left", "arms/right"}


def test_latch_of_real_arm_is_independent_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    runs = [made(tmp_path / part, "franka") for part in ("a", "b")]
    arms = [RealArm("franka", "/left"), RealArm("franka", "/right")]
    latches = [
        guard.arguments[-1]
        for run in runs
        for arm in arms
        for guard in guard_processes(run, "arm", arm)
    ]
    folder = tmp_path / "serl"
    assert latches == 2 * [str(folder / "franka@left.latch"), str(folder / "franka@right.latch")]


def test_progress_is_shown_until_the_learner_ends(tmp_path: Path) -> None:
    run, shown = made(tmp_path, None), io.StringIO()
    with MetricsWriter(run.path) as metrics:
        metrics.write(20, UpdateRow(7, 12.3, 3.9, weights_version=4))
    sleep = ("-n1", "-r1", "import time; time.sleep(1)")
    supervisor = Supervisor([ProcessSpec("learner", "timeit", sleep)], os.environ, run.log)
    supervisor.start()
    display = Display(Console(file=shown, width=200))
    attend(run, supervisor, frozenset({"learner"}), dict, display)
    supervisor.stop()
    assert f"steps 20/{run.config.steps:,}" in shown.getvalue()
    assert "weights version 4" in shown.getvalue()


def test_graph_rejects_robot_profile_that_differs_from_the_run(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"robots.left.profile: sim, and .* drives null"):
        described(made(tmp_path, None))


def test_two_arms_tutorial_names_its_example_file() -> None:
    page = (DOCS / "tutorials/two-arms.md").read_text(encoding="utf-8")
    assert "\nserl up docs/examples/two_arms.yaml\n" in page


@pytest.mark.slow
def test_two_simulated_arms_in_two_namespaces_train_one_learner(
    tmp_path: Path, start: Start
) -> None:
    """Run a shortened version of the file of docs/tutorials/two-arms.md."""
    file = tmp_path / "up.yaml"
    graph = yaml.safe_load((DOCS / "examples/two_arms.yaml").read_text(encoding="utf-8"))
    file.write_text(yaml.safe_dump({**graph, "settings": graph["settings"] | SETTINGS}))
    command = start("up", file)
    command.until(lambda: _nodes(command) >= 10)
    assert re.search(r"^console: http://127\.0\.0\.1:\d+/#[\w-]{43}$", command.succeed(), re.M)
    (folder,) = (tmp_path / "runs" / "reach").iterdir()
    report = verify(folder)
    assert report.sound, report
    accepted = {log.actor: log.accepted for log in report.contents}
    assert accepted["left"] > 0
    assert accepted["right"] > 0
    assert {path.stem for path in (folder / "guard").glob("*.yaml")} == {"left", "right"}
    page = (DOCS / "tutorials/two-arms.md").read_text(encoding="utf-8")
    assert re.findall(r"^serl (\w+) \$RUN$", page, re.MULTILINE) == ["eval", "verify"]
    assert "of 2 trials" in start("eval", folder, "--trials", 2).succeed()
    assert "lost 0, duplicated 0" in start("verify", folder).succeed()


@pytest.mark.slow
def test_two_real_arms_move_by_their_own_guards_and_train_one_learner(
    tmp_path: Path, start: Start
) -> None:
    places = ("/two/left", "/two/right")
    robots = [
        {"name": place.rpartition("/")[2], "profile": "mine.py", "namespace": place}
        for place in places
    ]
    text = {"task": "reach", "settings": ON_ARMS, "robots": robots}
    (tmp_path / "up.yaml").write_text(yaml.safe_dump(text))
    with frankas_beside_goals(tmp_path, *places) as (_, arms, node):
        heights_m: dict[str, list[float]] = {arm: [] for arm in arms}
        for arm in arms:
            see = partial(
                lambda seen, message: seen.append(message.pose.position.z), heights_m[arm]
            )
            node.subscribe(Topic(f"{arm}/current_pose", PoseStamped, 10), see)
        eventually(lambda: all(heights_m.values()))
        command = start("up", "up.yaml")
        commanding: dict[str, set[str]] = {arm: set() for arm in arms}

        def done() -> bool:
            for arm, names in commanding.items():
                found = node.handle.get_publishers_info_by_topic(f"{arm}/target_pose")
                names.update(each.node_name for each in found)
            return not command.is_running

        command.until(": estop: no latch file")  # of either guard
        assert not list((tmp_path / "runs").rglob("*.mcap")), (
            "the arms moved before the operator's confirmation"
        )
        answer_until(command, done, (*ARMS, GOES_ON))
        assert command.process.returncode == 0, command.output
    assert all(max(seen) - min(seen) > 0.005 for seen in heights_m.values()), "both arms must move"
    for arm, names in commanding.items():
        assert names - {"_NODE_NAME_UNKNOWN_"} == {guard_name(arm)}, commanding
    (folder,) = (tmp_path / "runs" / "reach").iterdir()
    report = verify(folder)
    assert report.sound, report
    accepted = {log.actor: log.accepted for log in report.contents}
    assert min(accepted["left"], accepted["right"]) > 0, accepted
    for name in ("left", "right"):
        latch = tmp_path / f"mine@two.{name}.latch"
        assert latch.read_text() == "serl latch: disarmed\n"


@pytest.mark.parametrize(
    ("second", "complaint"),
    [
        ({"profile": "absent.yaml"}, "robots.right.profile: absent.yaml: cannot be read"),
        ({"profile": "nobody"}, "robots.right.profile: unknown robot 'nobody'"),
        ({"profile": "away.yaml"}, "robots.right.profile: workspace of sim: along x it begins at"),
        ({"profile": "left.yaml", "namespace": "/b"}, "its profile is of the same arm as left's"),
        ({"profile": "right.yaml"}, "robots.right.namespace: /: is that of left, whose actor"),
    ],
)
def test_up_checks_every_arm_profile_before_it_writes_files(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    second: dict[str, str],
    complaint: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    profile: ArmProfile = plugins.load("robot", "sim")
    away = Workspace(
        low_m=(5.0, -0.1, 0.1),
        high_m=(5.1, 0.1, 0.2),
        reference=(1.0, 0.0, 0.0, 0.0),
        home_m=(5.05, 0.0, 0.15),
    )
    for name in ("left", "right"):
        write_robot(tmp_path / f"{name}.yaml", profile.within(f"/{name}"))
    write_robot(tmp_path / "away.yaml", profile.model_copy(update={"workspace": away}))
    robots = [{"name": "left", "profile": "left.yaml"}, {"name": "right"} | second]
    text = {"task": "reach", "settings": ON_ARMS, "robots": robots}
    (tmp_path / "up.yaml").write_text(yaml.safe_dump(text))
    assert cli.main(["up", "up.yaml"]) == cli.BAD_INPUT
    output = capfd.readouterr()
    assert complaint in output.err
    assert (output.out, output.err.count("\n")) == ("", 1)
    written = {"up.yaml", "left.yaml", "right.yaml", "away.yaml"}
    assert {path.name for path in tmp_path.iterdir()} == written


@pytest.mark.parametrize("without_workspace", ["left", "right"])
def test_up_rejects_arm_without_workspace_when_other_arm_has_one(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    without_workspace: str,
) -> None:
    """Reject the default box, which belongs to a simulated table."""
    monkeypatch.chdir(tmp_path)
    profile: ArmProfile = plugins.load("robot", "sim")
    place = Workspace(
        low_m=(0.3, -0.2, 0.05),
        high_m=(0.6, 0.2, 0.4),
        reference=(1.0, 0.0, 0.0, 0.0),
        home_m=(0.45, 0.0, 0.2),
    )
    taught = profile.model_copy(update={"workspace": place})
    names = ("left", "right")
    for name in names:
        own = profile if name == without_workspace else taught
        write_robot(tmp_path / f"{name}.yaml", own.within(f"/{name}"))
    robots = [{"name": name, "profile": f"{name}.yaml"} for name in names]
    settings = ON_ARMS | {"task_config": {"time_limit_s": 1.0}}
    text = {"task": "reach", "settings": settings, "robots": robots}
    (tmp_path / "up.yaml").write_text(yaml.safe_dump(text))
    assert cli.main(["up", "up.yaml"]) == cli.BAD_INPUT
    output = capfd.readouterr()
    assert "it has no workspace yet: serl setup sim" in output.err
    # A complaint about the left arm names no entry, as the run takes its profile.
    assert without_workspace == "left" or "robots.right.profile: " in output.err
    assert (output.out, output.err.count("\n")) == ("", 1)
    assert {path.name for path in tmp_path.iterdir()} == {"up.yaml", "left.yaml", "right.yaml"}


def _nodes(command: Command) -> int:
    """Count the node processes of the command: one learner, one console, and four per arm."""
    count = 0
    for child in command.children():
        with suppress(psutil.NoSuchProcess):  # the process has ended
            count += "serl.ros." in " ".join(child.cmdline())
    return count
