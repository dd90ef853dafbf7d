"""Faults of the rehearsal arm: base drift and gripper slip."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from serl import plugins
from serl.geometry import from_rotation_vector, multiply, wrap_angle, yaw
from serl.motion import Pose
from serl.ros.arm.rehearsal import RehearsalArm, RehearsalConfig
from serl.ros.arm.rehearsal_driver import RehearsalDriver
from serl.ros.arm.topics import truth
from serl.ros.node import RosNode
from serl.ros.telemetry import scene_topic
from serl.runs.config import resolve
from serl.runs.task_setup import make_task

pytestmark = pytest.mark.ros

STILL = {"drift_m": 0.0, "drift_rad": 0.0, "slips": 0.0}


def made(**settings: Any) -> tuple[Any, RehearsalArm]:
    """Return a simulated arm with a cube on the table, and a rehearsal arm that wraps it."""
    simulation: Any = plugins.make_simulation(make_task(resolve({"task": "pick_cube"})))
    simulation.reset(0)
    return simulation, RehearsalArm(simulation, RehearsalConfig(**(STILL | settings)))


def follow(arm: RehearsalArm, pose: Pose, seconds: float) -> None:
    for _ in range(round(100 * seconds)):
        arm.follow(pose)


def pose_of(values: list[float]) -> Pose:
    x, y, z, *q = values
    return Pose((x, y, z), (q[0], q[1], q[2], q[3]))


def test_base_of_rehearsal_arm_drifts_while_measured_pose_is_constant() -> None:
    simulation, arm = made(drift_m=0.02, drift_rad=0.05, drift_s=2.0)
    start = pose_of(arm.measure()["tcp_pose"])
    cube = arm.measure()["cube_pose"]
    before = np.array(simulation.measure()["tcp_pose"])
    follow(arm, start, 2.0)
    measured = arm.measure()
    assert math.dist(measured["tcp_pose"][:3], start.position) < 0.004, (
        "the measured pose stays at the start"
    )
    after = np.array(simulation.measure()["tcp_pose"])
    assert np.linalg.norm((after - before)[:3]) > 0.005, "the base has moved"
    assert measured["cube_pose"] == pytest.approx(cube, abs=1e-4), "the tracked pose does not drift"
    assert measured["tcp_pose"] != simulation.measure()["tcp_pose"]


def test_rehearsal_arm_without_faults_measures_like_simulation() -> None:
    simulation, arm = made()
    follow(arm, pose_of(arm.measure()["tcp_pose"]), 0.3)
    for name, values in simulation.measure().items():
        assert arm.measure()[name] == pytest.approx(values, abs=1e-12)


@pytest.mark.parametrize("slips", [0.0, 1.0])
def test_slipping_gripper_drops_cube_and_regains_friction_after_opening(slips: float) -> None:
    simulation, arm = made(slips=slips, slip_low_s=0.5, slip_high_s=0.6)
    start, cube = (pose_of(arm.measure()[name]) for name in ("tcp_pose", "cube_pose"))
    x, y, _ = cube.position
    turn = from_rotation_vector((0.0, 0.0, wrap_angle(yaw(cube.quaternion), 0.5 * math.pi)))
    down = multiply(turn, start.quaternion)
    for goal in ((x, y, 0.15), (x, y, 0.02)):
        here = arm.measure()["tcp_pose"][:3]
        for share in np.linspace(0.0, 1.0, 40).tolist():
            place = np.array(here) + share * (np.array(goal) - here)
            follow(arm, Pose(tuple(place.tolist()), down), 0.04)
    arm.grip(True)
    follow(arm, Pose((x, y, 0.02), down), 0.4)
    for height in np.linspace(0.02, 0.12, 40).tolist():
        follow(arm, Pose((x, y, height), down), 0.04)
    follow(arm, Pose((x, y, 0.12), down), 0.8)
    measured = arm.measure()
    assert arm.slips == int(slips)
    lies = measured["cube_pose"][2] < 0.05
    assert lies == bool(slips)
    assert (measured["gripper"][0] < 0.1) == bool(slips), "the gripper opening shows the slip"
    arm.grip(False)
    assert simulation.model.geom_friction[simulation.model.geom("pad_left").id][0] > 1.0


def test_share_of_slipping_grasps_follows_setting_and_seed() -> None:
    class Fingers:
        def __init__(self) -> None:
            self.slippery: list[bool] = []

        def slip(self, slips: bool) -> None:
            self.slippery.append(slips)

        def grip(self, closed: bool) -> None: ...

        def follow(self, setpoint: Pose) -> None: ...

    def slips(seed: int) -> list[int]:
        fingers: Any = Fingers()
        arm = RehearsalArm(fingers, RehearsalConfig(slips=0.3, seed=seed, slip_high_s=0.5))
        counts = []
        for _ in range(100):
            arm.grip(True)
            follow(arm, Pose((0, 0, 0), (0, 0, 0, 1)), 0.6)
            arm.grip(False)
            counts.append(arm.slips)
        return counts

    assert 15 < slips(1)[-1] < 45
    assert slips(1) == slips(1)
    assert slips(1) != slips(2)


def test_rehearsal_driver_reveals_no_truth_and_publishes_pictures_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulation, _ = made()
    with RosNode("arm", tmp_path, local=True) as node:
        config = RehearsalConfig(image_latency_s=0.06, camera_hz=10.0)
        profile = plugins.load("robot", "sim")
        driver = RehearsalDriver(node, "arm", simulation, profile, ["cube"], config)
        sent, stamps_ns = list[tuple[int, int]](), list[int]()

        def send(pictures: object, stamp_ns: int) -> None:
            sent.append((len(stamps_ns) + 1, stamp_ns))

        monkeypatch.setattr(driver._publisher, "pictures", send)
        for _ in range(30):
            driver.tick()
            stamps_ns.append(driver.stamp_ns)
        name, place = node.handle.get_name(), node.handle.get_namespace()
        topics = dict(node.handle.get_publisher_names_and_types_by_node(name, place))
        services = dict(node.handle.get_service_names_and_types_by_node(name, place))
        absent = [truth("arm").name, scene_topic("arm").name]
        assert node.absolute("arm/cube_pose") in topics
        assert not {node.absolute(each) for each in absent} & topics.keys()
        own = {each.rpartition("/")[2] for each in services} & {"restore", "reset"}
        assert own == {"restore"}, "it places objects, and no arm"
    assert sent == [(ticks + 6, stamps_ns[ticks - 1]) for ticks in (10, 20)]


def test_slip_times_in_wrong_order_are_rejected() -> None:
    with pytest.raises(ValidationError, match="slip_low_s: 5: expected at most slip_high_s"):
        RehearsalConfig(slip_low_s=5.0)
