"""Profiles of arms against what the drivers' sources say; each line names the source it is from."""

from __future__ import annotations

import math

import pytest

from serl import plugins
from serl.arm_profile import ArmProfile

POSE, JOINTS = "geometry_msgs/msg/PoseStamped", "sensor_msgs/msg/JointState"

# (role, name, type, source); commits: crisp_controllers 8093548, crisp_py c350302,
# cartesian_controllers 4e84f69 and 017b68d, Universal_Robots_ROS2_Driver 032aad6.
CHANNELS = {
    "franka": [
        ("target", "target_pose", POSE, "crisp_controllers/src/cartesian_controller.cpp:372"),
        ("pose", "current_pose", POSE, "crisp_controllers/src/pose_broadcaster.cpp:156"),
        (
            "twist",
            "current_twist",
            "geometry_msgs/msg/TwistStamped",
            "crisp_py/robot/robot_config.py: current_twist_topic",
        ),
        ("joint_states", "joint_states", JOINTS, "crisp_py/robot/robot_config.py"),
        (
            "wrench",
            "external_wrench",
            "geometry_msgs/msg/WrenchStamped",
            "crisp_py/config/sensors/force_torque_sensor.yaml: data_topic",
        ),
    ],
    "ur5e": [
        (
            "target",
            "/cartesian_compliance_controller/target_frame",
            POSE,
            "cartesian_motion_controller.cpp, the base of the compliance controller",
        ),
        (
            "pose",
            "/tcp_pose_broadcaster/pose",
            POSE,
            "ur_robot_driver/config/ur_controllers.yaml: tcp_pose_broadcaster, a PoseBroadcaster",
        ),
        ("joint_states", "/joint_states", JOINTS, "ur_controllers.yaml: joint_state_broadcaster"),
        (
            "wrench",
            "/force_torque_sensor_broadcaster/wrench",
            "geometry_msgs/msg/WrenchStamped",
            "ur_controllers.yaml: force_torque_sensor_broadcaster",
        ),
        (
            "recover",
            "/io_and_status_controller/resend_robot_program",
            "std_srvs/srv/Trigger",
            "ur_controllers/src/gpio_controller.cpp",
        ),
    ],
    "xarm7": [
        (
            "target",
            "/cartesian_motion_controller/target_frame",
            POSE,
            "cartesian_motion_controller.cpp: targetFrameCallback",
        ),
        (
            "pose",
            "/cartesian_motion_controller/current_pose",
            POSE,
            "cartesian_controller_base.cpp: m_feedback_pose_publisher",
        ),
        (
            "twist",
            "/cartesian_motion_controller/current_twist",
            "geometry_msgs/msg/TwistStamped",
            "cartesian_controller_base.cpp: m_feedback_twist_publisher",
        ),
        ("joint_states", "/joint_states", JOINTS, "xarm_controller/config/xarm7_controllers.yaml"),
    ],
}


def profile(name: str) -> ArmProfile:
    found = plugins.load("robot", name)
    assert isinstance(found, ArmProfile)
    return found


@pytest.mark.parametrize(
    ("robot", "role", "name", "kind", "source"),
    [(robot, *row) for robot, rows in CHANNELS.items() for row in rows],
)
def test_topics_are_those_of_the_sources(
    robot: str, role: str, name: str, kind: str, source: str
) -> None:
    channel = getattr(profile(robot), role)
    assert (channel.name, channel.type) == (name, kind), source


def test_the_franka_is_what_crisp_py_calls_one() -> None:
    """crisp_py/robot/robot_config.py: FrankaConfig; config/grippers/gripper_franka.yaml."""
    franka, quarter = profile("franka"), math.pi / 4
    assert franka.joints == tuple(f"fr3_joint{n}" for n in range(1, 8))
    assert franka.home_rad == pytest.approx((0, -quarter, 0, -3 * quarter, 0, 2 * quarter, quarter))
    assert (franka.base_frame, franka.tool_frame) == ("base", "fr3_hand_tcp")
    assert franka.gripper is not None
    assert franka.gripper.command.name == "gripper/gripper_position_controller/commands"
    assert franka.gripper.state.name == "gripper/joint_states"
    assert (franka.gripper.closed, franka.gripper.open) == (0.0, 1.0)


def test_gains_of_the_franka_are_parameters_that_crisp_has() -> None:
    """crisp_controllers/src/cartesian_impedance_controller.yaml, as of crisp_py's
    config/control/clipped_cartesian_impedance.yaml."""
    known = {f"task.{k}_{kind}_{axis}" for k in "kd" for kind in ("pos", "rot") for axis in "xyz"}
    known |= {f"task.error_clip.{axis}" for axis in ("x", "y", "z", "rx", "ry", "rz")}
    known |= {"limit_error", "limit_torques"}
    controller = profile("franka").controller
    assert set(controller.parameters) == known
    assert controller.error_clip is not None
    for axis, (low, high) in controller.error_clip:
        assert controller.parameters[f"task.error_clip.{axis}"] == high == -low


def test_grippers_and_joints_of_the_others() -> None:
    """crisp_py/config/grippers/gripper_robotiq_2f85.yaml; crisp_py's URConfig; xarm_api's
    XArmDriver: create_server<GripperCommand>("xarm_gripper/gripper_action").
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


@pytest.mark.parametrize("name", ["franka", "sim"])
def test_the_force_that_the_clips_allow_stays_below_the_stop(name: str) -> None:
    controller = profile(name).controller
    assert controller.error_clip is not None
    assert controller.stiffness_n_m is not None
    for axis in "xyz":
        low, high = getattr(controller.error_clip, axis)
        assert controller.stiffness_n_m * max(high, -low) < 30.0
