"""A UR5e under MoveIt Servo, which takes velocities and does the kinematics.

The guard sends the velocity of its setpoint, and what brings the arm to it; Servo halts by itself
when that ends. A person starts it, sets its command type to TWIST, and sets the parameters below,
which are compared before the guard takes the arm. It is controlled by position: nothing bounds its
force but the lead, the speed and the arm's own limits. Checked against the sources, not yet against
an arm.
"""

from __future__ import annotations

from serl.arm_profile import (
    GRIP,
    JOINTS,
    POSE,
    RUNNING,
    TRIGGER,
    TWIST,
    WRENCH,
    ArmProfile,
    Channel,
    ControllerProfile,
    GripperProfile,
    Payload,
)

_PI = 3.141592653589793

robot = ArmProfile(
    name="ur5e_servo",
    summary="UR5e with a Robotiq 2F-85, driven by MoveIt Servo",
    base_frame="base",
    tool_frame="tool0",
    joints=(
        "shoulder_pan_joint",
        "shoulder_lift_joint",
        "elbow_joint",
        "wrist_1_joint",
        "wrist_2_joint",
        "wrist_3_joint",
    ),
    joint_low_rad=(-2 * _PI, -2 * _PI, -_PI, -2 * _PI, -2 * _PI, -2 * _PI),
    joint_high_rad=(2 * _PI, 2 * _PI, _PI, 2 * _PI, 2 * _PI, 2 * _PI),
    home_rad=(0.0, -_PI / 2, _PI / 2, -_PI / 2, -_PI / 2, 0.0),
    pose=Channel(name="/tcp_pose_broadcaster/pose", type=POSE),
    twist=None,
    wrench=Channel(name="/force_torque_sensor_broadcaster/wrench", type=WRENCH),
    wrench_frame="tool",
    wrench_frames=("tool0_controller", "tool0"),  # the driver's tool, turned as the flange's is
    joint_states=Channel(name="/joint_states", type=JOINTS),
    target=Channel(name="/servo_node/delta_twist_cmds", type=TWIST),
    gripper=GripperProfile(
        command=Channel(name="/robotiq_gripper_controller/gripper_cmd", type=GRIP),
        state=Channel(name="/joint_states", type=JOINTS),
        joint="robotiq_85_left_knuckle_joint",
        closed=0.8,
        open=0.0,
        effort=5.0,
    ),
    controller=ControllerProfile(
        node="/servo_node",
        expected={
            "moveit_servo.command_in_type": "speed_units",
            "moveit_servo.incoming_command_timeout": 0.1,
            "moveit_servo.apply_twist_commands_about_ee_frame": True,
        },
    ),
    payload=Payload(mass_kg=0.925, center_m=(0.0, 0.0, 0.058)),
    fault=Channel(name="/io_and_status_controller/robot_program_running", type=RUNNING),
    recover=Channel(name="/io_and_status_controller/resend_robot_program", type=TRIGGER),
)
