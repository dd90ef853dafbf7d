"""`serl doctor --graph` and `--robot` on real processes, healthy and faulty."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path

import pytest
from geometry_msgs.msg import PoseStamped, TwistStamped
from std_msgs.msg import Bool, Float64MultiArray, String

from serl import plugins
from serl.arm_profile import RUNNING, TWIST, Channel, ControllerProfile
from serl.cli import main as cli
from serl.cli.doctor_graph import examine_graph
from serl.ros import inspection
from serl.ros.arm.faults import fault_topic
from serl.ros.arm.topics import SENSOR
from serl.ros.conversions import nanoseconds_of
from serl.ros.doctor import Finding
from serl.ros.environment import environment, meet_others
from serl.ros.node import RosNode
from serl.ros.services import Remote
from serl.ros.setup import driver_check
from serl.ros.setup.driver_check import RobotCheck
from serl.ros.testing.processes import eventually
from serl.ros.topics import STATS, Topic
from serl.runs.config import resolve
from serl.runs.folder import RunFolder

from .conftest import Run
from .support.franka import start_franka

pytestmark = [pytest.mark.ros, pytest.mark.xdist_group("doctor")]

FRANKA = plugins.load("robot", "franka")
EVERY_CHECK = [
    "messages",
    "pose",
    "wrench",
    "joints",
    "fingers",
    "limits",
    "target",
    "press",
    "gripper",
    "gains",
    "contact",
]


class Bench:
    """A fake arm, and a node that runs the doctor's checks on it."""

    def __init__(self, folder: Path) -> None:
        self.driver = Run(folder)
        self.arm = start_franka(self.driver)
        self.node = RosNode("tester", folder, local=True)
        self.remote = Remote(self.node, lambda: None)

    def misbehave(self, fault: str) -> None:
        controller = f"{self.arm}/{FRANKA.controller.node}"
        self.remote.set_parameters(controller, {"fault": fault})

    def findings(self, profile: object = FRANKA) -> dict[str, Finding]:
        folder = self.driver.folder
        with RosNode("doctor", folder, local=True) as node:
            pose = f"{self.arm}/current_pose"  # a busy machine discovers the driver late
            eventually(lambda: node.handle.count_publishers(pose))
            check = RobotCheck(node, profile, self.arm)  # type: ignore[arg-type]
            return {finding.subject: finding for finding in check.findings(1.0)}


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    made = Bench(tmp_path_factory.mktemp("driver"))
    with made.node:
        yield made
        made.driver.end()


@pytest.fixture(autouse=True)
def _well(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.misbehave("")
    monkeypatch.setattr(inspection, "_QUIET_S", 0.5)


def test_arm_that_matches_its_profile_passes_every_check(bench: Bench) -> None:
    found = bench.findings()
    assert sorted(found) == sorted(EVERY_CHECK)
    busy = ("a second", " s ago, over")  # a busy machine delays messages
    bad = [str(each) for each in found.values() if not each.sound]
    assert all(any(sign in line for sign in busy) for line in bad), bad
    assert "use_local_jacobian is False, will be True" in found["gains"].text
    assert found["contact"].text == "after a stop by a contact: 200 N/m"


def test_robot_check_ends_while_messages_keep_arriving(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Slow(int):
        def __rsub__(self, other: int) -> int:
            time.sleep(0.002)
            return other - int(self)

    monkeypatch.setattr(driver_check, "nanoseconds_of", lambda stamp: Slow(nanoseconds_of(stamp)))
    assert sorted(bench.findings()) == sorted(EVERY_CHECK)


@pytest.mark.parametrize(
    ("fault", "complaint"),
    [
        ("silent", "current_pose: silent for 1 s"),
        ("frozen", "current_pose: its stamps stand still"),
        ("nan", "position not finite"),
        ("late", " s ago, over 0.1 s"),
    ],
)
def test_robot_check_reports_driver_fault_in_one_line(
    bench: Bench, fault: str, complaint: str
) -> None:
    bench.misbehave(fault)
    pose = bench.findings()["pose"]
    assert not pose.sound
    assert complaint in pose.text
    assert "\n" not in str(pose)


def _changed(**fields: object) -> object:
    return FRANKA.model_copy(update=fields)


ABSENT = ControllerProfile(node="absent", parameters={"gain": 1.0})
WITHOUT_GAIN = ControllerProfile(node=FRANKA.controller.node, parameters={"gain": 1.0})


@pytest.mark.parametrize(
    ("profile", "complaints"),
    [
        (
            _changed(
                base_frame="world",
                joints=("a", *FRANKA.joints[1:]),
                target=Channel(name="elsewhere", type=FRANKA.pose.type),
                recover=Channel(name="heal", type="std_srvs/srv/Trigger"),
                controller=ABSENT,
                fault=Channel(name="/program", type=RUNNING),
            ),
            {
                "pose": "world",
                "joints": "no joint a among",
                "limits": "no joint a among",
                "target": "elsewhere: it has no subscriber",
                "recovery": "heal: it has no server",
                "controller": "absent/get_parameters: no such service",
                "errors": "/program: it has no publisher",
            },
        ),
        (
            _changed(
                pose=Channel(name="current_pose", type=TWIST),
                joint_high_rad=(-0.1,) * 7,
                target=Channel(name="target_pose", type=TWIST),
                controller=WITHOUT_GAIN,
            ),
            {
                "pose": "is geometry_msgs/msg/PoseStamped, expected geometry_msgs/msg/TwistStamped",
                "limits": "its limits are",
                "target": "is geometry_msgs/msg/PoseStamped, expected",
                "controller": "has no parameter gain",
            },
        ),
    ],
)
def test_robot_check_reports_each_mismatch_between_profile_and_driver(
    bench: Bench,
    profile: object,
    complaints: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if "controller" in complaints and "absent" in complaints["controller"]:
        monkeypatch.setattr(driver_check, "_ANSWER_S", 1.0)  # the node does not exist
    found = bench.findings(profile)
    for subject, complaint in complaints.items():
        assert not found[subject].sound
        assert complaint in found[subject].text, subject


PROGRAM = Channel(name="/program", type=RUNNING)


def test_robot_check_reports_wrench_frame_of_arm_without_errors(bench: Bench) -> None:
    bench.misbehave("misframed")
    with RosNode("program", bench.driver.folder, local=True) as node:
        node.publisher(fault_topic(PROGRAM, bench.arm)).publish(Bool(data=True))
        found = bench.findings(_changed(fault=PROGRAM))
    assert not found["wrench"].sound
    line = "external_wrench_in_base_frame: in the frame 'world', expected 'base'"
    assert line in found["wrench"].text
    assert "frame '" not in found["pose"].text
    assert (found["errors"].sound, found["errors"].text) == (True, "/program: the arm is well")


def test_robot_check_reports_stopped_program_and_second_commander(bench: Bench) -> None:
    with RosNode("stranger", bench.driver.folder, local=True) as stranger:
        stranger.publisher(Topic(f"{bench.arm}/target_pose", PoseStamped, SENSOR))
        gripper = f"{bench.arm}/gripper/gripper_position_controller/commands"
        stranger.publisher(Topic(gripper, Float64MultiArray, SENSOR))
        stranger.publisher(fault_topic(PROGRAM, bench.arm)).publish(Bool(data=False))
        found = bench.findings(_changed(fault=PROGRAM))
    for what in ("target", "gripper"):
        assert not found[what].sound
        assert "stranger commands it already" in found[what].text
    line = "/program: the arm reports that its program does not run"
    assert (found["errors"].sound, found["errors"].text) == (False, line)


def test_doctor_command_prints_one_line_for_each_check(
    bench: Bench, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["doctor", "--robot", "franka", "--namespace", bench.arm]
    code = cli.main(words)
    lines = capfd.readouterr().out.splitlines()
    assert [line.split()[1] for line in lines] == ["profile", *EVERY_CHECK]
    assert code == (cli.FAILED if any(line.startswith("BAD") for line in lines) else cli.DONE)


def test_doctor_explains_transports_when_no_driver_is_found(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROS_DOMAIN_ID", _other_domain())
    monkeypatch.setattr(inspection, "_SETTLED_S", 1.0)
    assert cli.main(["doctor", "--robot", "franka"]) == cli.FAILED
    last = capfd.readouterr().out.splitlines()[-1]
    assert last.startswith("BAD  driver")
    assert "the default transports of ROS 2" in last


def _other_domain() -> str:
    return str(101 - int(os.environ["ROS_DOMAIN_ID"]))


def test_graph_lists_types_rates_and_publishers_of_topics(
    bench: Bench, capfd: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["doctor", "--graph"]) == cli.DONE
    output = capfd.readouterr().out
    row = next(line for line in output.splitlines() if "external_wrench" in line).split()
    assert row[1] == "WrenchStamped", output
    assert row[2] != "-", output
    assert float(row[2]) > 1.0
    assert row[3].startswith("cartesian")
    assert "ok " in output.splitlines()[-1]


def test_graph_of_run_reports_nodes_that_are_not_started(
    bench: Bench, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    config = resolve({"task": "reach", "robot": "sim", "demos": 0})
    run = RunFolder.create(tmp_path, config, datetime.now())
    assert cli.main(["doctor", "--graph", str(run.path)]) == cli.BAD_INPUT
    assert "no learner was started yet" in capfd.readouterr().err
    (run.path / "ros_domain").write_text(os.environ["ROS_DOMAIN_ID"])
    with RosNode("learner", run.path, local=True) as node:
        node.publisher(STATS)
        assert cli.main(["doctor", "--graph", str(run.path)]) == cli.FAILED
    lines = capfd.readouterr().out.splitlines()
    missing = {line.split()[1].rpartition("/")[2] for line in lines if line.endswith("is missing")}
    assert missing == {"actor0:", "link_actor0:", "guard_actor0:", "arm:"}
    assert any(line.startswith("stats ") for line in lines), lines
    assert "listening for 3 s" in lines


@contextmanager
def _idle(folder: Path, domain: int) -> Iterator[None]:
    """Run an idle node in a separate process while the block runs."""
    node = subprocess.Popen(
        [sys.executable, "-m", "serl.ros.nodes.idle", "--run", str(folder)],
        env=environment(domain, folder),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with node:
        assert node.stdin is not None
        assert node.stdout is not None
        assert node.stdout.readline() == b"ready\n"
        yield
        node.stdin.close()


def test_graph_searches_domain_over_loopback_and_shared_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Find one node on 127.0.0.1 (as of `serl sim`) and one on shared memory (as of a run)."""
    monkeypatch.setenv("ROS_DOMAIN_ID", domain := _other_domain())
    assert not examine_graph(domain, 0.5)
    assert "found no node of this host" in capfd.readouterr().out
    monkeypatch.delenv("SERL_SHARED_MEMORY")
    folders = [tmp_path / "sockets", tmp_path / "memory"]
    for folder in folders:
        folder.mkdir()
    meet_others(folders[0])
    with ExitStack() as stack:
        for folder in folders:
            stack.enter_context(_idle(folder, int(domain)))
        assert examine_graph(domain, 0.5)
    lines = capfd.readouterr().out.splitlines()
    nodes = [line for line in lines if line.startswith("nodes: ")]
    assert nodes == ["nodes: sockets/doctor", "nodes: memory/doctor"], lines
    ways = [line for line in lines if line.endswith(":")]
    assert [way.split()[0] for way in ways] == ["over", "through"]


def test_graph_problems_print_one_line_each_and_fail_the_command(
    bench: Bench, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = bench.driver.folder
    with RosNode("guard_a", folder, local=True) as one, RosNode("b", folder, local=True) as other:
        for node in (one, other):
            node.publisher(Topic(f"{bench.arm}/target_pose", PoseStamped, 1))
        one.publisher(Topic("/loose", TwistStamped, SENSOR))
        other.subscribe(Topic("/loose", TwistStamped, 1), lambda message: None)
        other.publisher(Topic("/torn", TwistStamped, 1))
        bench.node.publisher(Topic("/torn", String, 1))
        bad = list[str]()

        def find() -> int:
            assert not examine_graph(os.environ["ROS_DOMAIN_ID"], 0.5)
            lines = capfd.readouterr().out.splitlines()
            bad[:] = [line for line in lines if line.startswith("BAD")]
            return len(bad)

        eventually(lambda: find() == 3, found=lambda: str(bad))
    assert any("target_pose: 2 publishers command: " in line for line in bad)
    assert any("/loose: " in line and "best effort" in line for line in bad)
    assert any("/torn: has several types" in line for line in bad)
