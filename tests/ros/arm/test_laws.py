"""The motion laws of the fakes against the lines of the controllers that they stand for."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from serl import plugins
from serl.arm_profile import ArmProfile
from serl.errors import BadInput
from serl.geometry import from_rotation_vector, multiply, rotation_between
from serl.guard.config import limits_of
from serl.motion import Limits, Pose
from serl.ros.testing.laws import LawRunner, Tool, load_law

from ...support.guarding import DOWN, Loop
from ...support.guarding import START as START_POSE
from ...support.servoing import STILL, ServoedArm
from ...support.upstream import FAMILIES, driver_of


def controller_of(name: str, **parameters: Any) -> LawRunner:
    """The law of a robot's controller with the parameters of its file, and changes."""
    driver = driver_of(name)
    return LawRunner(driver.law_kind, {**driver.parameters.values, **parameters}, driver.frame.name)


FORWARD = np.array([0.02, 0.0, 0.0, 0.0, 0.0, 0.0])
TURN = np.array([0.0, 0.0, 0.0, 0.0, 0.0, 0.2])


@pytest.mark.parametrize("name", [name for name in FAMILIES if name != "ur5e_servo"])
def test_a_target_is_kept_when_commands_end(name: str) -> None:
    controller = controller_of(name)
    if name == "xarm7":
        controller.parameters |= {f"pd_gains.trans_{axis}.p": 10.0 for axis in "xyz"}
    controller.go_to(FORWARD)
    assert controller.run(3.0) == pytest.approx(FORWARD, abs=1e-3)
    assert controller.run(1.0) == pytest.approx(FORWARD, abs=1e-3)


@pytest.mark.parametrize("name", ["ur5e", "xarm7"])
def test_a_target_of_another_frame_or_with_a_nan_is_refused(name: str) -> None:
    """cartesian_motion_controller.cpp:181-199."""
    controller = controller_of(name)
    controller.go_to(FORWARD, frame="world")
    controller.go_to(np.array([math.nan, 0.0, 0.0, 0.0, 0.0, 0.0]))
    assert not controller.run(2.0).any()


def test_crisp_ignores_all_targets_while_two_nodes_publish_them() -> None:
    """cartesian_controller.cpp:339, 641-659."""
    controller = controller_of("franka")
    controller.go_to(FORWARD, publishers=2)
    assert not controller.run(2.0).any()
    controller.go_to(FORWARD, frame="world")  # which is not looked at
    assert controller.run(3.0) == pytest.approx(FORWARD, abs=1e-3)


def test_the_gains_of_crisp_are_live_and_its_clip_bounds_the_speed() -> None:
    """cartesian_controller.cpp:116-120, 211-213."""
    soft = {f"task.k_pos_{axis}": 200.0 for axis in "xyz"}
    steps = []
    for changes in ({}, soft, {"task.error_clip.x": 0.005}):
        controller = controller_of("franka")
        controller.parameters |= changes  # while it runs
        controller.go_to(FORWARD)
        steps.append(controller.run(0.05)[0])
    assert steps[1] < 0.75 * steps[0]
    assert steps[2] < 0.5 * steps[0]


def test_crisp_turns_about_the_base_unless_its_jacobian_is_local() -> None:
    """cartesian_controller.cpp:103-127: the default is the frame WORLD."""
    strayed = []
    for local in (False, True):
        controller = controller_of("franka", use_local_jacobian=local)
        controller.go_to(TURN)
        strayed.append(max(np.linalg.norm(controller.run(0.01)[:3]) for _ in range(50)))
    assert strayed[0] > 0.01
    assert strayed[1] < 1e-9


def test_an_admittance_yields_to_the_force_that_it_hears_by_its_stiffness_which_is_live() -> None:
    """cartesian_compliance_controller.cpp:159-180."""
    controller = controller_of("ur5e")
    push = np.array([5.0, 0.0, 0.0, 0.0, 0.0, 0.0])
    assert controller.run(3.0, push)[0] == pytest.approx(5.0 / 500.0, rel=0.01)
    controller.parameters |= {f"stiffness.trans_{axis}": 200.0 for axis in "xyz"}
    assert controller.run(5.0, push)[0] == pytest.approx(5.0 / 200.0, rel=0.01)
    assert controller.run(5.0)[0] == pytest.approx(0.0, abs=1e-3)


def test_iterations_are_read_once_and_the_twist_is_that_of_the_internal_model() -> None:
    """cartesian_controller_base.cpp:216, 473-507; ForwardDynamicsSolver.cpp:92-95."""
    gains = {f"pd_gains.trans_{axis}.p": 10.0 for axis in "xyz"}
    controller, other = controller_of("xarm7", **gains), controller_of("xarm7", **gains)
    other.parameters["solver.iterations"] = 10
    for each in (controller, other):
        each.go_to(FORWARD)
        before = each.run(0.10)[0]
        shown_m_s, real_m_s = each.law.twist[0], (each.run(0.01)[0] - before) / 0.01
        assert real_m_s == pytest.approx(2.0 * shown_m_s)  # 0.02 s of the model in 0.01 s
    assert controller.tool.position[0] == other.tool.position[0]
    assert not controller.law.publishes("pose")  # before publish_state_feedback is set
    controller.parameters["solver.publish_state_feedback"] = True
    assert controller.law.publishes("pose")


def test_servo_halts_by_the_age_of_the_stamp_and_copies_its_timeout_at_the_start() -> None:
    """moveit_servo src/servo_node.cpp:98, 261-284."""
    velocity = np.array([0.1, 0.0, 0.0, 0.0, 0.0, 0.0])
    controller = controller_of("ur5e_servo")
    controller.go_at(velocity, age_s=1.0)
    assert not controller.run(0.5).any()
    controller.parameters["moveit_servo.incoming_command_timeout"] = 5.0
    controller.go_at(velocity)
    travelled_m = controller.run(1.0)[0]
    assert 0.005 < travelled_m < 0.02
    assert controller.run(1.0)[0] == pytest.approx(travelled_m, abs=1e-4)


@pytest.mark.parametrize(("frame", "speed"), [("", 0.1), ("world", 0.1), (None, math.inf)])
def test_servo_refuses_what_it_cannot_place_or_is_not_finite(
    frame: str | None, speed: float
) -> None:
    """moveit_servo src/utils/common.cpp:105-108, src/servo.cpp:575-588."""
    controller = controller_of("ur5e_servo")
    controller.go_at(np.array([speed, 0.0, 0.0, 0.0, 0.0, 0.0]), frame=frame)
    assert not controller.run(0.5).any()


class Servoed(ServoedArm):
    """MoveIt Servo as it is configured at its start, below a guard."""

    def __init__(self, loop: Loop, parameters: dict[str, float]) -> None:
        super().__init__(loop, lag_s=0.05, dead_s=0.0)
        self._servo = controller_of("ur5e_servo", **parameters)
        self._servo.tool = Tool(np.array(self.pose.position), np.array(self.pose.quaternion))

    def tick(self, now_s: float) -> Pose:
        """Let 10 ms pass."""
        self._servo.go_at(np.array(self.sent[-1] if self.sent else STILL).reshape(6))
        self._servo.run(0.01)
        x, y, z = self._servo.tool.position
        a, b, c, d = self._servo.tool.quaternion
        self.pose = Pose((x, y, z), (a, b, c, d))
        return self.pose


@pytest.mark.parametrize(("scale", "together"), [(0.8, True), (0.2, False)])
def test_servo_and_its_guard_stay_together_in_a_turn_with_the_scale_that_is_compared(
    scale: float, together: bool
) -> None:
    """With a smaller one the arm falls behind what the guard sends."""
    profile: ArmProfile = plugins.load("robot", "ur5e_servo")
    loop = Loop(motion={"limits": limits_of(Limits(), profile)})
    arm = Servoed(loop, {"moveit_servo.scale.rotational": scale})
    loop.fake = arm  # type: ignore[assignment]
    loop.tick(20)
    loop.guard.arm(loop.now_s)
    loop.mode = "policy"
    loop.target = Pose(START_POSE.position, multiply(from_rotation_vector((0.0, 0.0, 0.55)), DOWN))
    loop.tick(150)
    fastest = max(math.hypot(*angular) for _, angular in arm.sent)
    assert 0.2 < fastest <= 0.8
    turned_rad = math.hypot(*rotation_between(START_POSE.quaternion, arm.pose.quaternion))
    asked_rad = sum(0.01 * math.hypot(*angular) for _, angular in arm.sent)
    assert (turned_rad == pytest.approx(asked_rad, rel=0.05)) == together


def test_a_law_that_does_not_say_how_it_moves_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "still.py"
    file.write_text(
        "from serl.ros.testing import Law\n\n"
        "class Still(Law):\n    def receive(self, message, publishers): ...\n"
    )
    with pytest.raises(BadInput, match="Still does not define step"):
        load_law(f"{file}:Still")
