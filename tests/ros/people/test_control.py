"""What an actor's control topic says of the arm."""

from __future__ import annotations

import numpy as np
import pytest

from serl import plugins
from serl.ros.people.control import felt_by_arm
from serl.tasks.pick_cube import PickCube
from serl.types import Observation

pytestmark = pytest.mark.ros


def test_an_operator_reads_force_gripper_and_place_of_one_arm_and_the_force_of_two() -> None:
    with plugins.make_simulation(PickCube()) as arm:
        reading = arm.reset(0)
    felt = felt_by_arm(reading)
    assert float(felt["gripper"]) == pytest.approx(float(reading.state["gripper"][0]), abs=1e-3)
    place_m = [float(word) for word in felt["tcp_m"].split()]
    assert place_m == pytest.approx(reading.state["tcp_pose"][:3].tolist(), abs=1e-4)
    force, none = np.array([3, 0, 4, 9, 9, 9], np.float32), np.zeros(6, np.float32)
    pair = Observation({"left_wrench": none, "right_wrench": force}, {}, {})
    assert felt_by_arm(pair) == {"force_n": "5.00"}
    assert felt_by_arm(Observation({"speed": none}, {}, {})) == {}
