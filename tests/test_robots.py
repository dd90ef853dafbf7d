"""Arm profiles: comparison with the sources of their drivers beyond `ProfileSuite`, limits."""

from __future__ import annotations

import math

import pytest

from serl import plugins
from serl.arm_profile import ArmProfile
from serl.geometry import Quaternion, Vector, add, from_rotation_vector, multiply, rotate
from serl.guard.config import limits_of
from serl.motion import Limits
from serl.runs.config import resolve
from serl.runs.real_arm import within_workspace
from serl.runs.task_setup import make_task

from .support.upstream import FAMILIES, driver_of


def profile(name: str) -> ArmProfile:
    found = plugins.load("robot", name)
    assert isinstance(found, ArmProfile)
    return found


def test_every_real_arm_has_upstream_driver_data() -> None:
    assert {*plugins.names("robot")} == {*FAMILIES, "sim"}
    for name in FAMILIES:
        assert list(driver_of(name).mismatches(profile(name))) == []
    other = profile("franka").model_copy(update={"wrench_reversed": False})
    (line,) = driver_of("franka").mismatches(other)
    assert line.startswith("wrench_reversed: False, unlike the driver (franka_ros2 ")


def test_franka_profile_matches_crisp_py() -> None:
    """Compare with FrankaConfig in crisp_py/robot/robot_config.py and gripper_franka.yaml."""
    franka, quarter = profile("franka"), math.pi / 4
    assert franka.joints == tuple(f"fr3_joint{n}" for n in range(1, 8))
    assert franka.home_rad == pytest.approx((0, -quarter, 0, -3 * quarter, 0, 2 * quarter, quarter))
    assert (franka.base_frame, franka.tool_frame) == ("base", "fr3_hand_tcp")
    assert franka.gripper is not None
    assert franka.gripper.command.name == "gripper/gripper_position_controller/commands"
    assert franka.gripper.state.name == "gripper/joint_states"
    assert (franka.gripper.closed, franka.gripper.open) == (0.0, 1.0)


def test_franka_error_clip_matches_its_parameters() -> None:
    controller = profile("franka").controller
    assert controller.error_clip is not None
    for axis, (low, high) in controller.error_clip:
        assert controller.parameters[f"task.error_clip.{axis}"] == high == -low


@pytest.mark.parametrize("robot", ["franka", "ur5e"])
def test_compliance_mode_is_softer_than_start_and_precision_within_limit(
    robot: str,
) -> None:
    modes = profile(robot).controller.modes
    soft, stiff = modes["compliance"].stiffness_n_m, modes["precision"].stiffness_n_m
    start = profile(robot).controller.stiffness_n_m
    assert soft is not None
    assert stiff is not None
    assert start is not None
    assert soft < start <= stiff <= 2000.0


def test_speed_limits_stay_within_command_scale_of_moveit_servo() -> None:
    """See moveit_servo src/utils/command.cpp:181-199 for the use of these scales."""
    controller = profile("ur5e_servo").controller
    assert controller.fastest_m_s == controller.expected["moveit_servo.scale.linear"]
    assert controller.fastest_rad_s == controller.expected["moveit_servo.scale.rotational"]
    lowered = limits_of(Limits(), profile("ur5e_servo"))
    assert (lowered.speed_m_s, lowered.angular_speed_rad_s) == (0.15, 0.8)
    assert limits_of(Limits(), profile("ur5e")) == Limits()


def test_ur5e_and_xarm7_profiles_match_their_drivers() -> None:
    """Compare with crisp_py's URConfig and xarm_api's XArmDriver.

    Sources: crisp_py/config/grippers/gripper_robotiq_2f85.yaml; XArmDriver calls
    create_server<GripperCommand>("xarm_gripper/gripper_action").
    """
    ur5e, xarm7 = profile("ur5e"), profile("xarm7")
    assert ur5e.gripper is not None
    assert ur5e.gripper.command.name == "/robotiq_gripper_controller/gripper_cmd"
    assert (ur5e.gripper.closed, ur5e.gripper.open, ur5e.gripper.effort) == (0.8, 0.0, 5.0)
    joints = ["shoulder_pan", "shoulder_lift", "elbow", "wrist_1", "wrist_2", "wrist_3"]
    assert ur5e.joints == tuple(f"{joint}_joint" for joint in joints)
    assert ur5e.wrench_frame == "tool", "ur_controllers.yaml: frame_id: tool0_controller"
    assert ur5e.base_frame == "base", "ur_controllers.yaml: tcp_pose_broadcaster frame_id: base"
    assert xarm7.gripper is not None
    assert xarm7.gripper.command.name == "/xarm_gripper/gripper_action"
    assert {ur5e.gripper.command.package, xarm7.gripper.command.package} == {"control_msgs"}
    assert xarm7.controller.parameters["solver.publish_state_feedback"] is True


def test_gen3_tool_points_down_at_home_with_joints_away_from_wrap() -> None:
    """Use the joint and tool origins of the vendor's model; the driver wraps angles at pi.

    Sources: kortex_description arms/gen3/7dof/urdf/gen3_macro.xacro; kortex_driver
    src/hardware_interface.cpp:776.
    """
    home_rad, quarter = profile("kinova_gen3").home_rad, math.pi / 2
    origins = [  # in m, and the rotation about x
        (0.0, 0.0, 0.15643, math.pi),
        (0.0, 0.005375, -0.12838, quarter),
        (0.0, -0.21038, -0.006375, -quarter),
        (0.0, 0.006375, -0.21038, quarter),
        (0.0, -0.20843, -0.006375, -quarter),
        (0.0, 0.00017505, -0.10593, quarter),
        (0.0, -0.10593, -0.00017505, -quarter),
        (0.0, 0.0, -0.061525, math.pi),
    ]
    place: Vector = (0.0, 0.0, 0.0)
    turn: Quaternion = (0.0, 0.0, 0.0, 1.0)
    for (x, y, z, roll_rad), angle_rad in zip(origins, (*home_rad, 0.0), strict=True):
        place = add(place, rotate(turn, (x, y, z)))
        for vector in ((roll_rad, 0.0, 0.0), (0.0, 0.0, angle_rad)):
            turn = multiply(turn, from_rotation_vector(vector))
    assert rotate(turn, (0.0, 0.0, 1.0)) == pytest.approx((0.0, 0.0, -1.0), abs=1e-6)
    assert 0.3 < place[0] < 0.5
    assert 0.2 < place[2] < 0.4
    assert max(map(abs, home_rad)) < math.pi - 0.5


@pytest.mark.parametrize("name", sorted(plugins.names("robot")))
def test_lead_is_at_most_10_mm_unless_controller_clips_error(
    name: str,
) -> None:
    arm = profile(name)
    for task in ("pick_cube", "reach", "cable_routing", "peg_insertion"):
        motion = make_task(resolve({"task": task})).config.motion
        lead_m = within_workspace(motion, arm).limits.lead_m
        assert lead_m <= 0.010 or arm.controller.error_clip is not None
    longest = Limits(lead_m=0.020)
    assert limits_of(longest, profile("xarm7")).lead_m == 0.010
    assert limits_of(longest, profile("franka")) == longest


@pytest.mark.parametrize("name", ["franka", "sim"])
def test_force_at_error_clip_stays_below_stop_force(name: str) -> None:
    controller = profile(name).controller
    assert controller.error_clip is not None
    assert controller.stiffness_n_m is not None
    for axis in "xyz":
        low, high = getattr(controller.error_clip, axis)
        assert controller.stiffness_n_m * max(high, -low) < 30.0
