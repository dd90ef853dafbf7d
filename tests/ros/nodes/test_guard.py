from __future__ import annotations

import importlib.util
import json
import os
import resource
import signal
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from diagnostic_msgs.msg import DiagnosticStatus
from geometry_msgs.msg import PoseStamped

from serl.guard.latch import LatchFile
from serl.ros.arm.competitors import Rivals
from serl.ros.arm.guard_topics import COMMAND_GRIPPER, COMMAND_POSE
from serl.ros.arm.topics import COMMAND, of_robot
from serl.ros.conversions import opening_message
from serl.ros.node import RosNode, namespace
from serl.ros.nodes.guard import GuardNode
from serl.ros.testing.processes import ROBOT, eventually
from serl.ros.topics import Topic
from serl.system.signed_order import OrderCheck, key_path

from ...support.guarding import config
from ..support.cell import PROFILE, Cell
from ..support.tools import Tools

pytestmark = pytest.mark.ros


def _motion(cell: Cell) -> str:
    """Whether the arm follows or holds by now, as it wrote down."""
    words = [line.words[0] for line in cell.lines(0.0)]
    return next(word for word in reversed(words) if word in ("follows", "holds"))


@pytest.fixture
def cell(tmp_path: Path) -> Iterator[Cell]:
    with Cell(tmp_path) as made:
        yield made


def test_an_armed_guard_lets_the_actor_drive_until_it_is_disarmed(cell: Cell) -> None:
    cell.start_all()
    eventually(cell.moves)
    assert cell.call("disarm")[0]
    cell.until("disarmed")
    eventually(lambda: _motion(cell) == "holds")
    eventually(lambda: cell.latch.read_text() == "serl latch: disarmed\n")
    assert not cell.call("ack")[0]


def test_sigterm_brakes_and_leaves_a_clean_latch(cell: Cell) -> None:
    cell.start_all()
    guard = cell.processes["guard"]
    cell.stops(lambda: cell.signal("guard", signal.SIGTERM), "state hold: disarming")
    said, _ = guard.communicate(timeout=10)
    assert guard.returncode == 0
    assert cell.latch.read_text() == "serl latch: disarmed\n"
    assert "does not replace a hardware e-stop" in said
    assert "3.8 cm" in said


def test_it_does_not_command_an_arm_beside_somebody_else(cell: Cell) -> None:
    cell.start_arm()
    others = f"others publish {cell.prefix}/target_pose: {namespace(cell.folder)}/stranger"
    with cell.stranger():
        assert _refusal(cell) == f"the guard does not start: {others}"
    cell.start_guard()
    cell.until("disarmed")
    cell.arm()
    with cell.stranger():
        cell.until("protective stop: others publish")  # at once, and soon by name
        cell.until(f"protective stop: {others}")
        eventually(lambda: cell.call("ack")[0])  # refused while a busy machine is late
        assert cell.call("arm")[1] == f"not now: {others}"
    cell.arm()


def test_somebody_else_by_the_name_of_its_actor_is_noticed_and_a_successor_is_none(
    cell: Cell,
) -> None:
    cell.start_all()
    with RosNode(f"actor_{ROBOT}", cell.folder, local=True) as rival:
        targets = rival.publisher(of_robot(COMMAND_POSE, cell.prefix))
        name = rival.handle.get_fully_qualified_name()
        cell.until(f"hold: several nodes command: {name}, another {name}")
        rival.handle.destroy_publisher(targets)
        cell.until("policy")
    cell.signal("actor", signal.SIGKILL)
    cell.start_actor()
    eventually(lambda: cell.is_taken("policy"), found=lambda: cell.state)


def test_it_says_that_nobody_tells_the_time_and_is_not_armed(cell: Cell) -> None:
    cell.start_arm()
    with RosNode("tools", cell.folder, local=True) as node:
        tools = Tools(node)
        guard = cell.start_guard("--ros-args", "-p", "use_sim_time:=true")
        cell.until("disarmed")
        eventually(lambda: cell.counts.get("pose: future", 0.0) > 0.0)
        said = "use_sim_time is true, and /clock has no publisher"
        assert cell.call("arm") == (False, f"not now: {said}")
        tools.listen("guard", 7)
        assert tools.told("guard")[-1].message == f"disarmed; {said}"
        assert tools.told("guard")[-1].level == bytes(DiagnosticStatus.WARN)
    guard.send_signal(signal.SIGTERM)
    told = guard.communicate(timeout=30)[1]
    assert told.count(said) == 1, told
    assert "setpoint" not in (cell.folder / "arm.txt").read_text()


def test_it_reads_how_old_a_gripper_command_is(cell: Cell) -> None:
    cell.start_arm()
    cell.start_guard()
    cell.until("disarmed")
    publisher = cell.publisher(COMMAND_GRIPPER)

    def refused(reason: str, age_s: float) -> bool:
        publisher.publish(opening_message(1.0, time.time_ns() - round(1e9 * age_s)))
        return cell.counts.get(f"gripper: {reason}", 0.0) > 0.0

    eventually(lambda: refused("old", 1.0))
    eventually(lambda: refused("holding", 0.0))


def test_a_guard_that_is_armed_while_it_looks_about_does_not_leave(
    cell: Cell, monkeypatch: pytest.MonkeyPatch
) -> None:
    def arm_meanwhile(*_: object) -> str:
        cell.arm()
        return "others publish"

    cell.start_arm()
    with RosNode("guard", cell.folder, local=True, managed=True) as node:
        guard = GuardNode(
            node,
            cell.prefix,
            PROFILE,
            config(),
            LatchFile(cell.latch),
            OrderCheck(key_path(cell.latch)),
        )
        monkeypatch.setattr(Rivals, "named_words", arm_meanwhile)
        ticks = count()
        guard.run(lambda: next(ticks) > 100)
    assert cell.latch.read_text() == "serl latch: disarmed\n"


@pytest.mark.parametrize("blow", [signal.SIGSTOP, signal.SIGKILL])
def test_who_listens_reliably_and_hangs_or_dies_delays_no_setpoint(
    cell: Cell, blow: signal.Signals
) -> None:
    cell.start_all()
    cell.start_reader()
    usual_s = cell.longest_gap_s(time.monotonic(), 100)
    cell.lateness.worst_s = 0.0
    struck_s = cell.signal("reader", blow)
    longest_s = cell.longest_gap_s(struck_s, 200)
    assert longest_s < 0.1 + 3.0 * max(usual_s, cell.lateness.worst_s), (longest_s, usual_s)


def test_publishing_to_who_hangs_or_died_never_waits(cell: Cell) -> None:
    """Whatever else keeps the machine busy: a thread that waits says so to the kernel."""
    cell.start_reader()
    publisher = cell.publisher(Topic("target_pose", PoseStamped, COMMAND))
    eventually(publisher.get_subscription_count)
    for blow in (signal.SIGSTOP, signal.SIGKILL):
        cell.signal("reader", blow)
        before = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
        for _ in range(500):
            publisher.publish(PoseStamped())
        waits = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw - before
        assert waits <= 25, waits


def test_an_arm_that_nobody_listens_for_is_not_taken(cell: Cell) -> None:
    cell.start_arm(deaf=True)
    cell.start_guard()
    cell.until("disarmed")
    eventually(lambda: cell.call("arm")[1].endswith("/target_pose: no controller listens"))
    assert cell.state.startswith("disarmed")


def test_a_family_that_needs_other_packages_is_refused_with_their_names(cell: Cell) -> None:
    if importlib.util.find_spec("control_msgs"):
        pytest.skip("NOT TESTED: control_msgs is installed")
    line = "arm ur5e: not installed: control_msgs/action/GripperCommand; source a ROS 2"
    assert line in _refusal(cell, "--arm", "ur5e")


def test_two_guards_of_an_arm_are_one_too_many(cell: Cell) -> None:
    cell.start_guard()
    cell.until("disarmed")
    assert "is in use by process" in _refusal(cell)


def test_it_refuses_an_arm_that_speaks_of_another_frame(cell: Cell) -> None:
    cell.start_arm(frame="world")
    line = _refusal(cell)
    assert "pose is in the frame 'world', expected 'base' (" in line
    assert line.endswith("/arm/current_pose)")


def test_it_names_the_topic_of_joints_that_are_too_few(cell: Cell) -> None:
    cell.start_arm(joints=6)
    cell.start_guard()
    cell.until("disarmed")
    line = "not now: joints: 6 numbers, expected 7 ("
    eventually(lambda: cell.call("arm")[1].startswith(line))
    assert cell.call("arm")[1].endswith("/arm/joint_states)")


def test_an_arm_that_is_elsewhere_is_refused_by_key_and_topic_before_it_moves(cell: Cell) -> None:
    cell.start_arm(away_m=0.4)
    cell.start_guard()
    cell.until("disarmed")
    begun = (
        "not now: pose: the tool is outside the box (x is 0.850 m, motion.box from 0.3 to 0.6 m)"
    )
    eventually(lambda: cell.call("arm")[1].startswith(begun))
    armed, said = cell.call("arm")
    assert not armed
    assert said.endswith("/arm/current_pose)")
    assert not any(line.words[0] == "setpoint" for line in cell.lines(0.0))


@pytest.mark.parametrize(
    ("path", "value", "line"),
    [
        (("motion", "box_low_m"), [0.7, -0.2, 0.05], "must be below box_high_m"),
        (("motion", "box_low_m"), None, "motion.box_low_m"),
        (("joint_low_rad",), None, "joint_low_rad: field required"),
        (("joint_low_rad",), [3.0] * 7, "must be below joint_high_rad"),
        (("motion", "limits", "speed_m_s"), 0.3, "speed_m_s"),
        (("heartbeat_s",), 0.2, "heartbeat_s"),
        (("reference",), [0.0] * 4, "reference"),
    ],
)
def test_it_refuses_bad_limits_with_one_line(
    cell: Cell, path: tuple[str, ...], value: object, line: str
) -> None:
    file = cell.folder / "guard.yaml"
    settings = json.loads(file.read_text())
    inner = settings
    for key in path[:-1]:
        inner = inner[key]
    if value is None:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    file.write_text(json.dumps(settings))
    assert line in _refusal(cell)


def test_a_stop_that_the_disk_does_not_take_is_tried_again_until_it_does(cell: Cell) -> None:
    cell.start_arm()
    cell.start_guard()
    cell.until("disarmed")
    eventually(cell.latch.exists)
    cell.latch.unlink()
    cell.latch.mkdir()  # what root cannot write either
    for _ in range(2):
        done, said = cell.call("estop")
        assert not done
        assert "estop; the latch cannot be written" in said
    cell.latch.rmdir()
    eventually(lambda: cell.latch.is_file() and "estop" in cell.latch.read_text())
    assert cell.call("estop")[0]


def test_an_arm_that_is_stopped_is_told_nothing_of_its_gripper(cell: Cell) -> None:
    cell.start_all()

    def told(since_s: float) -> int:
        return sum(line.words[0] == "gripper" for line in cell.lines(since_s))

    eventually(lambda: told(0.0) > 3)
    assert cell.call("estop")[0]
    cell.until("estop")
    stopped_s = time.monotonic() + 0.1  # what was under way
    cell.longest_gap_s(stopped_s, 50)
    assert told(stopped_s) == 0


@pytest.mark.skipif(os.getuid() == 0, reason="root may write everywhere")
def test_it_refuses_to_start_where_no_latch_can_be_kept(cell: Cell) -> None:
    cell.latch.parent.chmod(0o500)
    assert "arm.latch" in _refusal(cell)


def _refusal(cell: Cell, *arguments: str) -> str:
    """The one line with which a guard refuses to start."""
    process = cell.start_guard(*arguments)
    said, why = process.communicate(timeout=60)
    assert process.returncode == 2, (said, why)
    assert len(why.splitlines()) == 1
    return why.strip()
