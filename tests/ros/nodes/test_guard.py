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

from serl.arm_profile import write_robot
from serl.guard.latch import LatchFile
from serl.ros.arm.competitors import OtherPublishers
from serl.ros.arm.guard_topics import COMMAND_GRIPPER, COMMAND_POSE
from serl.ros.arm.topics import COMMAND, of_robot
from serl.ros.conversions import opening_message
from serl.ros.node import RosNode, namespace
from serl.ros.nodes.guard import GuardNode
from serl.ros.testing.processes import ROBOT, eventually
from serl.ros.topics import Topic
from serl.system.signed_order import OrderCheck, key_path

from ...support.guarding import config
from ..support.guard_bench import PROFILE, GuardBench
from ..support.tools import Tools

pytestmark = pytest.mark.ros

TRIES = 3
"""Attempts of timing-dependent tests; a busy machine delays single ones."""


def _motion(bench: GuardBench) -> str:
    """Return the arm's last recorded motion: "follows" or "holds"."""
    words = [line.words[0] for line in bench.lines(0.0)]
    return next(word for word in reversed(words) if word in ("follows", "holds"))


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[GuardBench]:
    with GuardBench(tmp_path) as made:
        yield made


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardBench]:
    with GuardBench(tmp_path_factory.mktemp("moving")) as made:
        made.start_all()
        yield made


@pytest.fixture
def moving(started: GuardBench) -> GuardBench:
    """Return the shared bench while an actor moves its arm."""
    started.until_driven()
    return started


def test_actor_drives_arm_until_guard_is_disarmed(moving: GuardBench) -> None:
    eventually(moving.is_moving)
    assert moving.call("disarm")[0]
    moving.until("disarmed")
    eventually(lambda: _motion(moving) == "holds")
    eventually(lambda: moving.latch.read_text() == "serl latch: disarmed\n")
    assert not moving.call("ack")[0]


def test_guard_brakes_on_sigterm_and_leaves_disarmed_latch(bench: GuardBench) -> None:
    bench.start_all()
    guard = bench.processes["guard"]
    bench.assert_stops(lambda: bench.signal("guard", signal.SIGTERM), "state hold: disarming")
    said, _ = guard.communicate(timeout=60)
    assert guard.returncode == 0
    assert bench.latch.read_text() == "serl latch: disarmed\n"
    assert "does not replace a hardware e-stop" in said
    assert "3.8 cm" in said


def test_guard_does_not_start_with_another_command_publisher(bench: GuardBench) -> None:
    bench.start_arm()
    others = f"others publish {bench.prefix}/target_pose: {namespace(bench.folder)}/stranger"
    with bench.second_publisher():
        assert _refusal(bench) == f"the guard does not start: {others}"


def test_guard_holds_for_second_actor_of_same_name_but_accepts_successor(
    moving: GuardBench,
) -> None:
    with RosNode(f"actor_{ROBOT}", moving.folder, local=True) as rival:
        targets = rival.publisher(of_robot(COMMAND_POSE, moving.prefix))
        name = rival.handle.get_fully_qualified_name()
        moving.until(f"hold: several nodes command: {name}, another {name}")
        rival.handle.destroy_publisher(targets)
        moving.until("policy")
    moving.signal("actor", signal.SIGKILL)
    moving.until_driven()


def test_guard_without_clock_publisher_reports_it_and_refuses_arming(bench: GuardBench) -> None:
    bench.start_arm()
    with RosNode("tools", bench.folder, local=True) as node:
        tools = Tools(node)
        bench.start_guard("--ros-args", "-p", "use_sim_time:=true")
        bench.until("disarmed")
        eventually(lambda: bench.counts.get("pose: future", 0.0) > 0.0)
        said = "use_sim_time is true, and /clock has no publisher"
        eventually(lambda: bench.call("arm") == (False, f"not now: {said}"))
        name = f"guard {bench.prefix}"  # other tests may run a guard, too
        tools.listen(name, 1)
        assert tools.statuses(name)[-1].message == f"disarmed; {said}"
        assert tools.statuses(name)[-1].level == bytes(DiagnosticStatus.WARN)
    assert "setpoint" not in (bench.folder / "arm.txt").read_text()


def test_guard_rejects_old_gripper_commands_by_their_stamp(bench: GuardBench) -> None:
    bench.start_arm()
    bench.start_guard()
    bench.until("disarmed")
    publisher = bench.publisher(COMMAND_GRIPPER)

    def refused(reason: str, age_s: float) -> bool:
        publisher.publish(opening_message(1.0, time.time_ns() - round(1e9 * age_s)))
        return bench.counts.get(f"gripper: {reason}", 0.0) > 0.0

    eventually(lambda: refused("old", 1.0))
    eventually(lambda: refused("holding", 0.0))


def test_guard_armed_during_publisher_check_keeps_running(
    bench: GuardBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def arm_meanwhile(*_: object) -> str:
        bench.arm()
        return "others publish"

    bench.start_arm()
    with RosNode("guard", bench.folder, local=True, managed=True) as node:
        guard = GuardNode(
            node,
            bench.prefix,
            PROFILE,
            config(),
            LatchFile(bench.latch),
            OrderCheck(key_path(bench.latch)),
        )
        monkeypatch.setattr(OtherPublishers, "named_report", arm_meanwhile)
        ticks = count()
        guard.run(lambda: next(ticks) > 100)
    assert bench.latch.read_text() == "serl latch: disarmed\n"


def test_hanging_or_killed_reliable_subscriber_delays_no_setpoint(moving: GuardBench) -> None:
    for signal_number in (signal.SIGSTOP, signal.SIGKILL):
        for _ in range(TRIES):
            moving.start_reader()
            usual_s = moving.longest_gap_s(time.monotonic(), 30)
            moving.lateness.worst_s = 0.0
            longest_s = moving.longest_gap_s(moving.signal("reader", signal_number), 200)
            moving.signal("reader", signal.SIGKILL)
            allowed_s = 0.5 + 3.0 * max(usual_s, moving.lateness.worst_s)
            if longest_s < allowed_s:
                break
        assert longest_s < allowed_s, (longest_s, usual_s)


def test_publishing_to_hanging_or_killed_subscriber_does_not_block(bench: GuardBench) -> None:
    """Count voluntary context switches, which do not depend on the load of the machine."""
    bench.start_reader()
    publisher = bench.publisher(Topic("target_pose", PoseStamped, COMMAND))
    eventually(publisher.get_subscription_count)
    for signal_number in (signal.SIGSTOP, signal.SIGKILL):
        bench.signal("reader", signal_number)
        waits: list[int] = []
        while len(waits) < TRIES and min(waits, default=1000) > 250:
            before = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
            for _ in range(500):
                publisher.publish(PoseStamped())
            waits.append(resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw - before)
        assert min(waits) <= 250, waits  # threads of the test switch, too


def test_guard_is_not_armed_without_a_controller_subscription(bench: GuardBench) -> None:
    bench.start_arm(deaf=True)
    bench.start_guard()
    bench.until("disarmed")
    eventually(lambda: bench.call("arm")[1].endswith("/target_pose: no controller listens"))
    assert bench.state.startswith("disarmed")


def test_guard_names_missing_message_packages_of_arm_family(bench: GuardBench) -> None:
    if importlib.util.find_spec("control_msgs"):
        pytest.skip("NOT TESTED: control_msgs is installed")
    line = "arm ur5e: not installed: control_msgs/action/GripperCommand; source a ROS 2"
    assert line in _refusal(bench, "--arm", "ur5e")


def test_second_guard_of_an_arm_does_not_start(bench: GuardBench) -> None:
    bench.start_guard()
    bench.until("disarmed")
    assert "is in use by process" in _refusal(bench)


def test_guard_of_another_arm_does_not_start_in_the_same_namespace(bench: GuardBench) -> None:
    """Two guards in one namespace would both follow the targets of one actor."""
    bench.start_guard()
    bench.until("disarmed")
    other = bench.folder / "other.yaml"
    write_robot(other, PROFILE.within("/other"))
    line = _refusal(bench, "--arm", str(other), "--latch", str(other.with_suffix(".latch")))
    assert line.startswith(f"the guard does not start: others publish {bench.prefix}/guard/state: ")


def test_guard_does_not_start_with_pose_in_another_frame(bench: GuardBench) -> None:
    bench.start_arm(frame="world")
    line = _refusal(bench)
    assert "pose is in the frame 'world', expected 'base' (" in line
    assert line.endswith("/arm/current_pose)")


def test_guard_refuses_arming_with_missing_joints_or_tool_outside_box(
    bench: GuardBench,
) -> None:
    bench.start_arm(joints=6)
    bench.start_guard()
    bench.until("disarmed")

    def is_refused(begin: str, end: str) -> bool:
        armed, answer = bench.call("arm")
        assert not armed
        return answer.startswith(begin) and answer.endswith(end)

    line = "not now: joints: 6 numbers, expected 7 ("
    eventually(lambda: is_refused(line, "/arm/joint_states)"))
    bench.set_arm_faults(away_m=0.4)
    begun = (
        "not now: pose: the tool is outside the box (x is 0.850 m, motion.box from 0.3 to 0.6 m)"
    )
    eventually(lambda: is_refused(begun, "/arm/current_pose)"))
    assert not any(line.words[0] == "setpoint" for line in bench.lines(0.0))


def test_guard_rejects_bad_limits_in_one_line(bench: GuardBench) -> None:
    file = bench.folder / "guard.yaml"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"heartbeat_s": 0.2}))
    assert "heartbeat_s" in _refusal(bench)


def test_guard_retries_writing_latch_after_disk_failure(bench: GuardBench) -> None:
    bench.start_arm()
    bench.start_guard()
    bench.until("disarmed")
    eventually(bench.latch.exists)
    bench.latch.unlink()
    bench.latch.mkdir()  # not writable for root either
    for _ in range(2):
        done, said = bench.call("estop")
        assert not done
        assert "estop; the latch cannot be written" in said
    bench.latch.rmdir()
    eventually(lambda: bench.latch.is_file() and "estop" in bench.latch.read_text())
    assert bench.call("estop")[0]


def test_stopped_guard_sends_no_gripper_commands(moving: GuardBench) -> None:
    begun_s = time.monotonic()

    def gripper_count(since_s: float) -> int:
        return sum(line.words[0] == "gripper" for line in moving.lines(since_s))

    def record_times_s(text: str, since_s: float) -> list[float]:
        lines = moving.lines(since_s)
        return [line.at_s for line in lines if " ".join(line.words).startswith(text)]

    eventually(lambda: gripper_count(begun_s) > 3)
    assert moving.call("estop")[0]
    moving.until("estop")
    eventually(lambda: record_times_s("state estop", begun_s))
    stopped_s = record_times_s("state estop", begun_s)[0]
    eventually(lambda: len(record_times_s("setpoint", stopped_s)) > 60)
    settled_s = record_times_s("setpoint", stopped_s)[10]  # earlier commands were in transit
    assert gripper_count(settled_s) == 0
    eventually(lambda: moving.call("ack")[0])
    eventually(lambda: moving.call("reset")[0])


@pytest.mark.skipif(os.getuid() == 0, reason="root may write everywhere")
def test_guard_does_not_start_without_a_writable_latch_folder(bench: GuardBench) -> None:
    bench.latch.parent.chmod(0o500)
    assert "arm.latch" in _refusal(bench)


def _refusal(bench: GuardBench, *arguments: str) -> str:
    """Return the one line with which a guard refuses to start."""
    process = bench.start_guard(*arguments)
    said, why = process.communicate(timeout=60)
    assert process.returncode == 2, (said, why)
    assert len(why.splitlines()) == 1
    return why.strip()
