"""State of an arm that operators see, and monitoring of an arm during recording."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import numpy as np
import pytest
from sensor_msgs.msg import JointState

from serl import plugins
from serl.arm_profile import load_robot, write_robot
from serl.clock import VirtualClock
from serl.ros.arm.topics import SENSOR
from serl.ros.node import RosNode
from serl.ros.people import recorder
from serl.ros.people.control import felt_by_arm
from serl.ros.people.recorder import arm_station, recording_station
from serl.ros.testing.processes import eventually
from serl.ros.topics import Topic
from serl.runs.config import resolve
from serl.runs.folder import RunFolder
from serl.runs.network import RosConfig
from serl.runs.task_setup import make_task
from serl.tasks.pick_cube import PickCube
from serl.teleop.mux import TeleopMux
from serl.types import Observation
from serl.workspace import Workspace

from ...support.acting import FakeCameraArm, notice_frozen_camera

pytestmark = pytest.mark.ros


def test_operator_display_has_force_and_gripper_and_position_of_each_arm() -> None:
    with plugins.make_simulation(PickCube()) as arm:
        reading = arm.reset(0)
    felt = felt_by_arm(reading)
    assert float(felt["gripper"]) == pytest.approx(float(reading.state["gripper"][0]), abs=1e-3)
    place_m = [float(word) for word in felt["tcp_m"].split()]
    assert place_m == pytest.approx(reading.state["tcp_pose"][:3].tolist(), abs=1e-4)
    force, none = np.array([3, 0, 4, 9, 9, 9], np.float32), np.zeros(6, np.float32)
    place, grip = np.array([0.4, 0.1, 0.2, 1, 0, 0, 0], np.float32), np.ones(1, np.float32)
    pair = {"left_wrench": none, "right_wrench": force, "left_gripper": grip}
    felt = felt_by_arm(Observation({**pair, "right_tcp_pose": place}, {}, {}))
    assert felt == {
        "force_n": "5.00",
        "left_gripper": "1.000",
        "right_tcp_m": "0.4000 0.1000 0.2000",
    }
    assert felt_by_arm(Observation({"speed": none}, {}, {})) == {}


def test_recording_on_an_arm_monitors_cameras_and_device_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "make_arm", lambda *arguments: FakeCameraArm())
    config = resolve({"task": "reach", "robot": "franka", "demos": 0, "intervention": "none"})
    run = RunFolder.create(tmp_path, config, datetime.now())
    with arm_station(run, [], {}, lambda: None) as station:
        assert notice_frozen_camera(station.observers)
        arm: Any = station.robot
        monkeypatch.setattr(TeleopMux, "silence_s", 0.3)
        assert arm.silence_s() == 0.3, "the guard needs the silence of the device"


class HeldArm:
    """Simulation in this process as an arm whose guard always has it."""

    arms: tuple[Any, ...] = ()  # no driver with readable settings
    guards = (SimpleNamespace(has_arm=True, report=None),)

    def __init__(self, simulation: Any) -> None:
        self._simulation = simulation

    def __getattr__(self, name: str) -> Any:
        return getattr(self._simulation, name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def beat(self) -> None:
        pass

    def begin_from(self, reading: Observation) -> None:
        pass

    def observe_when_fresh(self, limit_s: float) -> Observation:
        return self.observe()  # type: ignore[no-any-return]


def test_arm_returns_to_start_before_each_recorded_episode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Workspace(
        low_m=(0.3, -0.25, 0.015), high_m=(0.65, 0.25, 0.35), home_m=(0.45, 0.0, 0.2),
        reference=(1.0, 0.0, 0.0, 0.0),
    )  # fmt: skip
    write_robot(tmp_path / "arm.yaml", load_robot("sim").model_copy(update={"workspace": place}))
    named = {"task": "reach", "robot": str(tmp_path / "arm.yaml"), "reset": {"yaw_rad": 0.0}}
    config = resolve({**named, "demos": 0, "intervention": "none"})
    run = RunFolder.create(tmp_path, config, datetime.now())
    with plugins.make_simulation(make_task(config)) as simulation:
        simulation.reset(0)
        arm = HeldArm(simulation)
        clock = VirtualClock(arm.advance, 10.0)
        monkeypatch.setattr(recorder, "make_arm", lambda *arguments: arm)
        monkeypatch.setattr(recorder, "WallClock", lambda rate_hz, beat: clock)
        with arm_station(run, [], {}, lambda: None) as station:
            for seed in range(2):
                station.begin(seed)
                away_m = np.array(arm.observe().state["tcp_pose"][:3]) - place.home_m
                assert abs(away_m[:2]).max() < 0.02 + 0.003
                assert abs(away_m[2]) < 0.003
                for _ in range(5):
                    arm.act(np.ones(3, np.float32))
                    clock.wait()
            assert not station.human_input.hold.reason, "no person is asked"
    assert not list(run.path.rglob("*.mcap")), "a reset is no part of a recording"


def test_simulated_recording_publishes_the_topics_of_an_arm(tmp_path: Path) -> None:
    config = resolve({"task": "reach", "demos": 0, "intervention": "none"})
    run, found = RunFolder.create(tmp_path, config, datetime.now()), list[Any]()
    clock, ros = VirtualClock(lambda dt_s: None, 10.0), RosConfig(publish_state=True)
    with (
        plugins.make_simulation(make_task(config)) as robot,
        recording_station(run, robot, clock, [], {}, lambda: None, ros) as station,
        RosNode("viewer", run.path, local=True) as node,
    ):
        node.subscribe(Topic("person/joint_states", JointState, SENSOR), found.append)

        def is_found() -> bool:
            for observer in station.observers:
                observer.on_reading(robot.observe())
            return bool(found)

        eventually(is_found)
