"""Launch files start the processes of `serl train`; run by `ros2 launch` where installed."""

from __future__ import annotations

import importlib.util
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from xml.etree import ElementTree

import psutil
import pytest
import yaml

from serl.cli import launch as launching
from serl.errors import BadInput
from serl.ros.processes import all_processes, arm_processes, graph_processes
from serl.runs.checkpoint import checkpoint_paths
from serl.runs.config import parse_overrides
from serl.runs.folder import RunFolder
from serl.runs.graph_file import GraphConfig
from serl.runs.verify import verify
from serl.system.settings_file import checked

from ..support.command import Program

ROOT = Path(__file__).parents[2]
NOTHING = {"task": "", "settings": "", "config": "", "runs": "runs", "run": ""}
TINY = (
    "--steps 120 --demos 2 --task_config.time_limit_s 1.0 --agent.hidden [32,32]"
    " --agent.batch_size 16 --agent.utd 1 --agent.device cpu --learner.warm_up 20"
    " --learner.checkpoint_every 100 --learner.publish_every 10"
)
ROS2 = "from ros2cli.cli import main; raise SystemExit(main())"

MANAGED = """
from launch import LaunchDescription
from launch.actions import GroupAction, IncludeLaunchDescription, LogInfo, RegisterEventHandler
from launch.launch_description_sources import AnyLaunchDescriptionSource
from launch_ros.actions import LifecycleTransition, PushROSNamespace
from launch_ros.event_handlers import OnStateTransition

NODE = "/plant/cell/left/arm"


def generate_launch_description():
    arguments = dict(task="reach", name="left", namespace="cell", autostart="false")
    arguments |= dict(rtf="2", use_sim_time="true")
    arm = IncludeLaunchDescription(
        AnyLaunchDescriptionSource("{file}"), launch_arguments=arguments.items()
    )
    transitions = LifecycleTransition(lifecycle_node_names=[NODE], transition_ids=[1, 3])
    told = OnStateTransition(goal_state="active", entities=[LogInfo(msg=NODE + " is active")])
    group = GroupAction([PushROSNamespace("plant"), arm, transitions])
    return LaunchDescription([RegisterEventHandler(told), group])
"""

RENAMED = """
from launch import LaunchDescription
from launch.actions import GroupAction, IncludeLaunchDescription
from launch.launch_description_sources import AnyLaunchDescriptionSource
from launch_ros.actions import SetRemap


def generate_launch_description():
    arguments = dict(task="reach", name="left", namespace="/cell", rtf="0.5")
    arm = IncludeLaunchDescription(
        AnyLaunchDescriptionSource("{file}"), launch_arguments=arguments.items()
    )
    renamed = SetRemap("/cell/left/current_pose", "/plant/pose")
    return LaunchDescription([GroupAction([renamed, arm])])
"""

WITNESS = """
import sys, time
import rclpy

rclpy.init(args=[])
node, missing = rclpy.create_node("witness"), set(sys.argv[1:])
while missing:
    rclpy.spin_once(node, timeout_sec=0.1)
    names = [name for name, _ in node.get_topic_names_and_types() if node.count_publishers(name)]
    missing -= set(names)
print(" ".join(names))
"""

pytestmark = [pytest.mark.ros, pytest.mark.xdist_group("launch")]

with_launch = pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("ros2launch", "launch_ros"))),
    reason="NOT TESTED: launch files, for `ros2 launch` is not installed (it is not on PyPI)",
)


Launcher = Callable[..., Program]


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launcher]:
    """Yield a starter of `ros2 launch` for a file path or for the name of a file of serl."""
    environment = {**os.environ, **_installed(tmp_path), "SERL_SHARED_MEMORY": ""}
    numbers = count()

    with ExitStack() as stack:

        def start(file: str, *given: str) -> Program:
            package = [] if "/" in file else ["serl"]
            patience = "sigterm_timeout:=90"  # the default of 5 s is too short for a busy machine
            words = [sys.executable, "-c", ROS2, "launch", *package, file, *given, patience]
            output = tmp_path / f"{next(numbers)}.out"
            return stack.enter_context(Program(words, output, environment))

        yield start


def _installed(folder: Path) -> dict[str, str]:
    """Install the package's data files in a prefix; return the environment that selects it."""
    prefix = folder / "prefix"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    for target, patterns in project["tool"]["setuptools"]["data-files"].items():
        (prefix / target).mkdir(parents=True, exist_ok=True)
        for path in (path for pattern in patterns for path in ROOT.glob(pattern)):
            shutil.copy(path, prefix / target)
    others = os.environ.get("AMENT_PREFIX_PATH") or sys.prefix
    return {"AMENT_PREFIX_PATH": f"{prefix}{os.pathsep}{others}"}


def assert_ended_well(launched: Program, *modules: str) -> None:
    """Assert that the launch started these modules and that all of them ended cleanly."""
    said = launched.output
    started = dict(re.findall(r"\[(\S+)-\d+\]: process started with pid \[(\d+)\]", said))
    assert {*modules} == {*started}, said
    assert "has died" not in said, said
    assert "Traceback" not in said, said
    assert not any(psutil.pid_exists(int(pid)) for pid in started.values()), said


def newest(folder: Path) -> RunFolder:
    return RunFolder.open(max((folder / "runs" / "reach").iterdir()))


def test_tilde_in_arguments_is_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    run = launching._run_of({**NOTHING, "task": "reach", "runs": "~/runs"})
    assert run.path.parent == tmp_path / "runs/reach"
    again = {**NOTHING, "run": f"~/{run.path.relative_to(tmp_path)}"}
    assert launching._run_of(again).path == run.path


def test_train_launch_file_starts_the_processes_of_serl_train(tmp_path: Path) -> None:
    given = {**NOTHING, "task": "reach", "settings": TINY, "runs": str(tmp_path / "runs")}
    graph = launching._run_graph(given, all_processes)
    assert list(graph.processes) == all_processes(graph.run)
    assert graph.run.config.steps == 120
    assert graph.domain_id == int(os.environ["ROS_DOMAIN_ID"])
    assert graph.ends_with == {"learner"}


@pytest.mark.parametrize(
    ("file", "arguments"),
    [
        ("train", {"task", "settings", "config", "runs", "run"}),
        ("learner", {"task", "settings", "config", "runs", "run"}),
        ("actor", {"run", "name"}),
        ("sim", {"task", "settings", "config", "runs", "run", "name", "rtf", "lockstep"}),
        (
            "guard",
            {"task", "settings", "config", "runs", "run", "name"} | {"profile", "arm_namespace"},
        ),
        ("up", {"file"}),
    ],
)
def test_launch_file_declares_its_arguments_and_imports_launch_lazily(
    file: str, arguments: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    declared: list[set[str]] = []
    monkeypatch.setattr(launching, "_description", lambda table, graph: declared.append({*table}))
    scope = runpy.run_path(str(ROOT / "launch" / f"{file}.launch.py"))
    assert scope["__doc__"].rstrip(".").split(": ")[1].startswith("ros2 launch serl")
    scope["generate_launch_description"]()
    assert declared == [arguments]


def test_launch_folder_has_the_six_launch_files() -> None:
    files = {path.name.removesuffix(".launch.py") for path in (ROOT / "launch").iterdir()}
    assert files == {"train", "learner", "actor", "sim", "guard", "up"}


def test_simulated_arm_and_its_guard_have_separate_launch_graphs(tmp_path: Path) -> None:
    motion = "--task_config.motion"
    box = f"{motion}.box_low_m [0.4,-0.1,0.1] {motion}.box_high_m [0.6,0.1,0.4]"
    new = {**NOTHING, "task": "reach", "runs": str(tmp_path), "name": "left", "settings": box}
    graph = launching._simulation_graph({**new, "rtf": "2.0", "lockstep": "false"})
    (arm,) = graph.processes
    assert arm.module == "serl.ros.nodes.sim"
    assert arm.arguments[2:] == ("--robot", "left", "--rtf", "2.0")  # no /clock unless asked
    again = {**NOTHING, "run": str(graph.run.path), "name": "left"}
    rest = {"profile": "sim", "arm_namespace": "/"}
    (guard,) = launching._guard_graph({**again, **rest}).processes
    assert guard == arm_processes(graph.run, "left")[1]
    rest = {"profile": "franka", "arm_namespace": "/fr3"}
    (guard,) = launching._guard_graph({**again, **rest}).processes
    assert guard.arguments[2:4] == ("--robot", "/fr3")
    assert guard.arguments[-1].endswith("/serl/franka@fr3.latch"), (
        "the latch must belong to the arm, not to the run"
    )


def test_guard_example_of_launch_page_starts_guard_of_a_set_up_arm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (ROOT / "docs/launch.md").read_text(encoding="utf-8")
    (words,) = re.findall(r"launch/guard\.launch\.py (task:=.*?)`", page)
    given = dict(word.split(":=") for word in words.split())
    shutil.copy(ROOT / "docs/examples/rehearsal.yaml", tmp_path / "right.yaml")
    monkeypatch.chdir(tmp_path)
    (guard,) = launching._guard_graph({**NOTHING, "name": "arm", **given}).processes
    assert guard.arguments[2:4] == ("--robot", "/right")


def test_only_one_simulated_arm_publishes_clock(tmp_path: Path) -> None:
    new = {**NOTHING, "task": "reach", "runs": str(tmp_path), "settings": "--robot sim --demos 0"}
    before = launching._run_graph(
        {**new, "settings": new["settings"] + " --actors 2"}, all_processes
    )
    after = launching._with_clock(before.processes)
    changed = [b for a, b in zip(before.processes, after, strict=True) if a != b]
    assert [each.name for each in changed] == ["sim-actor0"]
    assert changed[0].arguments[-1] == "--clock"
    assert launching._with_clock(after) == after
    assert launching._with_clock(after[-1:]) == after[-1:]  # another node may publish /clock


def test_up_launch_file_starts_the_processes_of_serl_up(tmp_path: Path) -> None:
    file = tmp_path / "cell.yaml"
    robots = [{"name": "left"}, {"name": "right"}]
    text = {"task": "reach", "runs": str(tmp_path), "settings": {"demos": 0}, "robots": robots}
    file.write_text(yaml.safe_dump(text))
    graph = launching._file_graph({"file": str(file)})
    description = checked(GraphConfig, {"run": graph.run.path, "robots": robots})
    assert list(graph.processes) == graph_processes(graph.run, description)
    assert graph.ends_with == {"learner"}


def _train_graph(given: dict[str, str]) -> object:
    return launching._run_graph(given, all_processes)


EITHER = "expected task:=NAME for a new run, or run:=FOLDER"


@pytest.mark.parametrize(
    ("graph", "given", "complaint"),
    [
        (_train_graph, {}, EITHER),
        (_train_graph, {"task": "reach", "run": "x"}, EITHER),
        (_train_graph, {"run": "x", "settings": "--seed 2"}, "x has its own settings"),
        (_train_graph, {"run": "absent"}, "absent: expected the folder of a run"),
        (_train_graph, {"task": "nonsense"}, "unknown task 'nonsense'"),
        (_train_graph, {"task": "reach", "settings": "--agent.n 1"}, "agent.n: unknown setting"),
        (
            launching._simulation_graph,
            {"lockstep": "yes", "rtf": "1"},
            "lockstep: expected true or false",
        ),
        (launching._simulation_graph, {"lockstep": "true", "rtf": "1"}, "expected task:=NAME"),
        (launching._simulation_graph, {"lockstep": "true", "rtf": "0"}, "rtf: expected from 0.01"),
        (
            launching._simulation_graph,
            {"lockstep": "true", "rtf": "fast"},
            "rtf: could not convert",
        ),
        (
            launching._simulation_graph,
            {"lockstep": "true", "rtf": "1", "name": "a/b"},
            "robot 'a/b': expected",
        ),
        (
            launching._simulation_graph,
            {"lockstep": "true", "rtf": "1", "name": "a-b"},
            "robot 'a-b': expected",
        ),
        (
            launching._simulation_graph,
            {"lockstep": "true", "rtf": "1", "name": "learner"},
            "robot 'learner' is the name of another process of the run",
        ),
        (launching._guard_graph, {"task": "reach", "profile": "nobody"}, "unknown robot 'nobody'"),
        (
            launching._guard_graph,
            {"task": "reach", "profile": "franka", "arm_namespace": "right"},
            "arm_namespace: 'right': expected one from the root",
        ),
        (
            launching._guard_graph,
            {"task": "reach", "profile": "~/a.yaml"},
            "^/.*/a.yaml: cannot be",
        ),
        (launching._file_graph, {"file": ""}, "file: expected a YAML file"),
        (launching._file_graph, {"file": "absent.yaml"}, "absent.yaml: cannot be read"),
        (launching._actor_graph, {"name": "actor0"}, "run: expected the folder of a run"),
    ],
)
def test_launch_files_reject_bad_arguments_in_one_line(
    graph: Callable[..., object], given: dict[str, str], complaint: str, tmp_path: Path
) -> None:
    given = {**NOTHING, "runs": str(tmp_path), "name": "arm", **given}
    given.setdefault("arm_namespace", "/")
    with pytest.raises(BadInput, match=complaint) as raised:
        graph(given)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("pushed", "given", "namespace"),
    [
        ("", "", ""),
        ("", "cell", "/cell"),
        ("", "/cell/", "/cell"),
        ("/plant", "", "/plant"),
        ("/plant", "cell", "/plant/cell"),
        ("/plant", "/cell", "/cell"),
    ],
)
def test_launch_namespace_combines_group_and_argument(
    pushed: str, given: str, namespace: str
) -> None:
    assert launching._within(pushed, given) == namespace


def test_launched_processes_have_known_lifecycle_node_names(tmp_path: Path) -> None:
    new = {**NOTHING, "task": "reach", "runs": str(tmp_path), "settings": "--robot sim --demos 0"}
    processes = launching._run_graph(new, all_processes).processes
    assert {spec.module: spec.node for spec in processes} == {
        "serl.ros.nodes.sim": "actor0/arm",
        "serl.ros.nodes.guard": "guard_actor0",
        "serl.ros.nodes.actor": "actor0",
        "serl.ros.nodes.learner": "learner",
        "serl.ros.nodes.link": "link_actor0",
    }


def test_package_xml_lists_imported_message_packages() -> None:
    named = {each.text for each in ElementTree.parse(ROOT / "package.xml").iter("exec_depend")}
    sources = "\n".join(path.read_text() for path in (ROOT / "serl").rglob("*.py"))
    imported = re.findall(r"^\s*from (\w+)\.(?:msg|srv) import", sources, re.MULTILINE)
    assert {*imported, "rclpy", "launch_ros"} == named


@with_launch
def test_ros2_launch_runs_training_to_its_end(tmp_path: Path, launch: Launcher) -> None:
    training = launch("train.launch.py", "task:=reach", f"settings:={TINY}")
    assert "[learner-1]: process has finished cleanly" in training.succeed()
    assert_ended_well(training, "learner", "link-actor0", "actor0")
    assert int(checkpoint_paths(newest(tmp_path).checkpoints)[-1].name) == 120


@with_launch
def test_launch_activates_managed_node(tmp_path: Path, launch: Launcher) -> None:
    file = tmp_path / "managed.launch.py"
    file.write_text(MANAGED.format(file=ROOT / "launch" / "sim.launch.py"))
    launched = launch(str(file))
    launched.until("/plant/cell/left/arm is active")
    words = [word for child in launched.children() for word in child.cmdline()]
    parameters = Path(words[words.index("--params-file") + 1]).read_text()
    assert "use_sim_time: true" in parameters
    assert "Failed to make transition" not in launched.output


@with_launch
def test_ctrl_c_ends_launched_processes_and_second_launch_resumes_run(
    tmp_path: Path, launch: Launcher
) -> None:
    longer = TINY.replace("--steps 120", "--steps 400")
    training = launch("train.launch.py", "task:=reach", f"settings:={longer}")
    training.until((tmp_path / "runs" / "reach").exists)
    training.until(lambda: checkpoint_paths(newest(tmp_path).checkpoints)[1:])
    assert training.interrupt(group=True) == 0
    assert_ended_well(training, "learner", "link-actor0", "actor0")
    launch("train.launch.py", f"run:={newest(tmp_path).path}").succeed()
    assert int(checkpoint_paths(newest(tmp_path).checkpoints)[-1].name) == 400


@with_launch
def test_learner_and_actor_launched_separately_train_together(
    tmp_path: Path, launch: Launcher
) -> None:
    shorter = TINY.replace("--steps 120", "--steps 40")
    where, settings = "namespace:=cell", f"settings:={shorter} --robot sim"
    learner = launch("learner.launch.py", "task:=reach", settings, where)
    learner.until("process started")
    given = (f"run:={newest(tmp_path).path}", "name:=more", where)
    actor = launch("actor.launch.py", *given)
    learner.succeed()
    assert actor.interrupt(group=True) == 0
    assert_ended_well(learner, "learner")
    assert_ended_well(actor, "sim-more", "guard-more", "link-more", "more")
    assert "serl guard of /cell/more" in actor.output
    report = verify(newest(tmp_path).path)
    assert report.sound, report
    assert [log.accepted > 0 for log in report.contents if log.actor == "more"] == [True]


@with_launch
def test_arm_and_guard_launched_separately_with_remapped_topics_connect(
    tmp_path: Path, launch: Launcher
) -> None:
    file = tmp_path / "renamed.launch.py"
    file.write_text(RENAMED.format(file=ROOT / "launch" / "sim.launch.py"))
    arm = launch(str(file))
    arm.until("process started")
    given = (f"run:={newest(tmp_path).path}", "name:=left", "namespace:=/cell")
    guard = launch("guard.launch.py", *given)
    guard.until("serl guard of /cell/left")
    seen = subprocess.run(
        [sys.executable, "-c", WITNESS, "/plant/pose", "/cell/left/guard/state"],
        env={**os.environ, "SERL_SHARED_MEMORY": ""},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert seen.returncode == 0, seen.stderr
    assert "/cell/left/wrench" in seen.stdout
    assert "/cell/left/current_pose" not in seen.stdout.split()
    assert "/clock" not in seen.stdout.split(), "/clock needs use_sim_time"
    second = launch("guard.launch.py", *given)
    assert second.wait() == 1, "an arm must reject a second guard"
    assert "the arm of this latch" in second.output
    assert [guard.interrupt(group=True), arm.interrupt(group=True)] == [0, 0]
    assert_ended_well(guard, "guard-left")
    assert_ended_well(arm, "sim-left")


@with_launch
def test_up_launch_file_runs_training_to_its_end(tmp_path: Path, launch: Launcher) -> None:
    settings = parse_overrides(shlex.split(TINY))
    cell = {"task": "reach", "settings": settings, "robots": [{"name": "left", "profile": None}]}
    (tmp_path / "cell.yaml").write_text(yaml.safe_dump(cell))
    launched = launch("up.launch.py", "file:=cell.yaml")
    launched.succeed()
    assert_ended_well(launched, "learner", "link-left", "left")
