"""Motion laws of the fake drivers, compared with the source of the real controllers."""

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


def make_controller(name: str, **parameters: Any) -> LawRunner:
    """Return a runner of a robot's control law with its file's parameters and overrides."""
    driver = driver_of(name)
    return LawRunner(driver.law_kind, {**driver.parameters.values, **parameters}, driver.frame.name)


FORWARD = np.array([0.02, 0.0, 0.0, 0.0, 0.0, 0.0])
TURN = np.array([0.0, 0.0, 0.0, 0.0, 0.0, 0.2])


@pytest.mark.parametrize("name", [name for name in FAMILIES if name != "ur5e_servo"])
def test_controller_holds_target_after_commands_end(name: str) -> None:
    controller = make_controller(name)
    if name in ("xarm7", "kinova_gen3"):
        controller.parameters |= {f"pd_gains.trans_{axis}.p": 10.0 for axis in "xyz"}
    controller.go_to(FORWARD)
    assert controller.run(3.0) == pytest.approx(FORWARD, abs=1e-3)
    assert controller.run(1.0) == pytest.approx(FORWARD, abs=1e-3)


@pytest.mark.parametrize("name", ["ur5e", "xarm7", "kinova_gen3"])
def test_cartesian_controllers_reject_targets_in_another_frame_or_with_nan(name: str) -> None:
    """cartesian_motion_controller.cpp:181-199."""
    controller = make_controller(name)
    controller.go_to(FORWARD, frame="world")
    controller.go_to(np.array([math.nan, 0.0, 0.0, 0.0, 0.0, 0.0]))
    assert not controller.run(2.0).any()


def test_crisp_ignores_targets_from_two_publishers() -> None:
    """cartesian_controller.cpp:339, 641-659."""
    controller = make_controller("franka")
    controller.go_to(FORWARD, publishers=2)
    assert not controller.run(2.0).any()
    controller.go_to(FORWARD, frame="world")  # crisp ignores the frame
    assert controller.run(3.0) == pytest.approx(FORWARD, abs=1e-3)


def test_crisp_applies_gain_changes_at_once_and_clip_limits_speed() -> None:
    """cartesian_controller.cpp:116-120, 211-213."""
    soft = {f"task.k_pos_{axis}": 200.0 for axis in "xyz"}
    steps = []
    for changes in ({}, soft, {"task.error_clip.x": 0.005}):
        controller = make_controller("franka")
        controller.parameters |= changes  # at run time
        controller.go_to(FORWARD)
        steps.append(controller.run(0.05)[0])
    assert steps[1] < 0.75 * steps[0]
    assert steps[2] < 0.5 * steps[0]


def test_crisp_rotates_about_base_unless_jacobian_is_local() -> None:
    """cartesian_controller.cpp:103-127: the default is the frame WORLD."""
    strayed = []
    for local in (False, True):
        controller = make_controller("franka", use_local_jacobian=local)
        controller.go_to(TURN)
        strayed.append(max(np.linalg.norm(controller.run(0.01)[:3]) for _ in range(50)))
    assert strayed[0] > 0.01
    assert strayed[1] < 1e-9


def test_admittance_displacement_follows_force_and_current_stiffness() -> None:
    """cartesian_compliance_controller.cpp:159-180."""
    controller = make_controller("ur5e")
    push = np.array([5.0, 0.0, 0.0, 0.0, 0.0, 0.0])
    assert controller.run(3.0, push)[0] == pytest.approx(5.0 / 500.0, rel=0.01)
    controller.parameters |= {f"stiffness.trans_{axis}": 200.0 for axis in "xyz"}
    assert controller.run(5.0, push)[0] == pytest.approx(5.0 / 200.0, rel=0.01)
    assert controller.run(5.0)[0] == pytest.approx(0.0, abs=1e-3)


def test_admittance_has_stiffness_and_sensor_along_axes_of_tool() -> None:
    """cartesian_compliance_controller.cpp:171-177; cartesian_force_controller.cpp:159."""
    controller = make_controller("ur5e", **{"stiffness.trans_x": 200.0})
    turn = multiply(from_rotation_vector((0.0, 0.0, math.pi / 2)), DOWN)
    controller.start = controller.tool = Tool(controller.start.position, np.array(turn))
    controller.go_to(np.zeros(6))
    moved = controller.run(5.0, np.array([5.0, 0.0, 5.0, 0.0, 0.0, 0.0]))
    assert moved[:3] == pytest.approx([0.0, 5.0 / 200.0, -5.0 / 500.0], abs=2e-4)


@pytest.mark.parametrize(("name", "sunk_m"), [("franka", 4.0 / 2000.0), ("ur5e", 4.0 / 500.0)])
def test_target_wrench_is_along_axes_of_tool_and_held_by_spring(name: str, sunk_m: float) -> None:
    """cartesian_controller.cpp:192-195; cartesian_force_controller.cpp:146-159."""
    controller = make_controller(name, **plugins.load("robot", name).controller.parameters)
    controller.law.exerted = np.array([0.0, 0.0, 4.0, 0.0, 0.0, 0.0])  # the tool points down
    assert controller.run(3.0)[:3] == pytest.approx([0.0, 0.0, -sunk_m], abs=1e-5)
    controller.law.exerted = np.zeros(6)
    assert controller.run(3.0) == pytest.approx(np.zeros(6), abs=1e-5)
    if name == "franka":  # its clipped spring holds 20 N
        controller.law.exerted = np.array([0.0, 0.0, 25.0, 0.0, 0.0, 0.0])
        assert controller.run(2.0)[2] < -0.05


def test_xarm_reads_iterations_at_start_and_reports_internal_model_twist() -> None:
    """cartesian_controller_base.cpp:216, 473-507; ForwardDynamicsSolver.cpp:92-95."""
    gains = {f"pd_gains.trans_{axis}.p": 10.0 for axis in "xyz"}
    controller, other = make_controller("xarm7", **gains), make_controller("xarm7", **gains)
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


def test_servo_stops_on_old_stamp_and_reads_timeout_at_start() -> None:
    """moveit_servo src/servo_node.cpp:98, 261-284."""
    velocity = np.array([0.1, 0.0, 0.0, 0.0, 0.0, 0.0])
    controller = make_controller("ur5e_servo")
    controller.go_at(velocity, age_s=1.0)
    assert not controller.run(0.5).any()
    controller.parameters["moveit_servo.incoming_command_timeout"] = 5.0
    controller.go_at(velocity)
    travelled_m = controller.run(1.0)[0]
    assert 0.005 < travelled_m < 0.02
    assert controller.run(1.0)[0] == pytest.approx(travelled_m, abs=1e-4)


@pytest.mark.parametrize(("frame", "speed"), [("", 0.1), ("world", 0.1), (None, math.inf)])
def test_servo_rejects_unknown_frame_and_nonfinite_velocity(
    frame: str | None, speed: float
) -> None:
    """moveit_servo src/utils/common.cpp:105-108, src/servo.cpp:575-588."""
    controller = make_controller("ur5e_servo")
    controller.go_at(np.array([speed, 0.0, 0.0, 0.0, 0.0, 0.0]), frame=frame)
    assert not controller.run(0.5).any()


class MoveItServoArm(ServoedArm):
    """An arm driven by the MoveIt Servo law from the velocities that a guard sends."""

    def __init__(self, loop: Loop, parameters: dict[str, float]) -> None:
        super().__init__(loop, lag_s=0.05, dead_s=0.0)
        self._servo = make_controller("ur5e_servo", **parameters)
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
def test_servo_follows_guard_rotation_only_with_profile_scale(scale: float, together: bool) -> None:
    """Compare the executed with the commanded rotation; a smaller scale falls behind."""
    profile: ArmProfile = plugins.load("robot", "ur5e_servo")
    loop = Loop(motion={"limits": limits_of(Limits(), profile)})
    arm = MoveItServoArm(loop, {"moveit_servo.scale.rotational": scale})
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


def test_law_without_step_method_is_rejected(tmp_path: Path) -> None:
    file = tmp_path / "still.py"
    file.write_text(
        "from serl.ros.testing import Law\n\n"
        "class Still(Law):\n    def receive(self, message, publishers): ...\n"
    )
    with pytest.raises(BadInput, match="Still does not define step"):
        load_law(f"{file}:Still")
