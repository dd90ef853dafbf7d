"""The guard on controllers that clip, time out and take parameters as their sources say."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from serl.ros.arm.topics import topic_of
from serl.ros.conversions import nanoseconds_of

from ..support.bay import MOTION, Bay
from ..support.cell import ROBOT, eventually

pytestmark = pytest.mark.ros

TURNING = MOTION.model_copy(update={"axes": ("x", "y", "z", "yaw"), "rotation_rad": 0.2})


def turned_rad(bay: Bay) -> float:
    """How far the tool has turned about the vertical from where it points down."""
    x, y, *_ = bay.arm.observe_when_fresh(30.0).state["tcp_pose"][3:]
    return 2.0 * float(np.arctan2(y, x))


def test_the_tool_of_a_franka_stays_where_it_is_while_it_turns(tmp_path: Path) -> None:
    """Its controller turns about the base unless it is set otherwise."""
    with Bay(tmp_path, "franka", motion=TURNING) as bay:
        bay.take()
        start, strayed = bay.place(), [0.0]

        def turned() -> bool:
            strayed.append(float(np.linalg.norm(np.subtract(bay.place(), start))))
            return abs(turned_rad(bay)) > 0.5

        bay.drive(0.0, 0.0, 0.0, 1.0, 0.0, until=turned)
        assert max(strayed) < 0.003


@pytest.mark.parametrize(
    ("name", "changes", "line"),
    [
        (
            "ur5e_servo",
            {"moveit_servo.scale.rotational": 0.3},
            "/servo_node: moveit_servo.scale.rotational is 0.3, expected 0.8",
        ),
        (
            "xarm7",
            {"solver.iterations": 10},
            "/cartesian_motion_controller: solver.iterations is 10, expected 1.0",
        ),
        (
            "ur5e",
            {"fault": "deaf"},
            "/cartesian_compliance_controller does not listen to "
            "/force_torque_sensor_broadcaster/wrench: its stiffness bounds no force",
        ),
    ],
)
def test_an_arm_is_not_taken_whose_controller_would_do_otherwise(
    name: str, changes: dict[str, Any], line: str, tmp_path: Path
) -> None:
    with Bay(tmp_path, name) as bay:
        bay.set(**changes)
        said = f"not now: {line}"
        eventually(lambda: bay.cell.call("arm")[1] == said, found=lambda: bay.cell.call("arm")[1])


def test_the_speed_of_an_xarm_is_that_of_its_tool_not_of_its_controllers_model(
    tmp_path: Path,
) -> None:
    poses: list[tuple[float, float]] = []
    speeds: list[tuple[float, float]] = []

    def hear(message: Any) -> None:
        poses.append((1e-9 * nanoseconds_of(message.header.stamp), message.pose.position.y))

    with Bay(tmp_path, "xarm7") as bay:
        bay.take()
        bay.node.subscribe(topic_of(bay.profile.pose, ROBOT, 200), hear)

        def far() -> bool:
            reading = bay.arm.observe_when_fresh(30.0)
            at_s = reading.stamps["robot"] + time.time() - time.monotonic()
            speeds.append((at_s, float(reading.state["tcp_twist"][1])))
            return bool(reading.state["tcp_pose"][1] > 0.08)

        bay.drive(0.0, 1.0, 0.0, 0.0, until=far)
    times, places = np.array(poses).T
    shares = []
    for at_s, speed in speeds:
        before, after = np.interp([at_s - 0.05, at_s], times, places)
        if times[0] < at_s - 0.05 and after - before > 0.001:
            shares.append(speed / ((after - before) / 0.05))
    assert np.median(shares) == pytest.approx(1.0, abs=0.25)


@pytest.mark.parametrize("name", ["franka", "ur5e_servo"])
def test_an_arm_whose_guard_hangs_stops_within_its_lead_and_the_way_of_a_timeout(
    name: str, tmp_path: Path
) -> None:
    """A target is kept, and a velocity ends with its timeout: neither leads the arm on."""
    with Bay(tmp_path, name) as bay:
        bay.take()
        y_m = bay.place()[1]
        bay.drive(0.0, 1.0, 0.0, 0.0, until=lambda: bay.place()[1] > y_m + 0.03)
        bay.cell.signal("guard", signal.SIGSTOP)
        at_m = bay.place()
        bay.arm.remote.wait(lambda: False, 1.0)
        stood_m = bay.place()
        assert np.linalg.norm(np.subtract(stood_m, at_m)) < 0.04
        bay.arm.remote.wait(lambda: False, 1.0)
        assert np.linalg.norm(np.subtract(bay.place(), stood_m)) < 0.001
