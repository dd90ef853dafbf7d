"""A UR5e under MoveIt Servo, which takes velocities and does the kinematics.

The guard sends the velocity of its setpoint plus a position correction. The operator starts Servo
with the parameters below and sets its command type to TWIST. Sources: moveit/moveit2 4d8410635
(jazzy), moveit_ros/moveit_servo (`node` is src/servo_node.cpp, `command` src/utils/command.cpp):

- target: TwistStamped, SystemDefaultsQoS (node:106-108), m/s and rad/s with `speed_units`. Refused
  with an empty frame or a value that is not finite (common.cpp:105-108); another known frame is
  converted (servo.cpp:575-630), an unknown one is refused, and the arm stops.
- limits: velocities above `scale.linear` or `scale.rotational` are scaled down to it
  (command:181-199), each separately. The guard compares both parameters and commands no more. Joint
  velocity limits scale the whole command (servo.cpp:515-524), as do
  `override_velocity_scaling_factor` (common.cpp:380-389), collisions (:495-528) and singular poses
  (command:209-217): the guard then sees the arm fall behind.
- no commands: once the *stamp* is as old as `incoming_command_timeout` Servo halts (node:261-284):
  the clocks of both hosts have to agree. That value is copied at the start (node:98): a later
  change is read back but has no effect. Set it in the launch file. All other parameters below are
  read anew with every accepted command (servo.cpp:476).
- type: commands are ignored until the type is TWIST (node:384-396); no topic shows the type.

The arm is position-controlled: only the lead, the speed and the arm's own limits bound its force.
Pose, wrench, errors and gripper are those of `ur5e`. The tracking behavior of the joint controller
behind Servo is not in these sources. Not tried on an arm.
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
_FASTEST_M_S, _FASTEST_RAD_S = 0.4, 0.8  # the defaults of its servo_parameters.yaml

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
    wrench_frames=("tool0_controller", "tool0"),  # the driver's, with the flange's orientation
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
            "moveit_servo.scale.linear": _FASTEST_M_S,
            "moveit_servo.scale.rotational": _FASTEST_RAD_S,
            "moveit_servo.override_velocity_scaling_factor": 0.0,
        },
        fastest_m_s=_FASTEST_M_S,
        fastest_rad_s=_FASTEST_RAD_S,
    ),
    payload=Payload(mass_kg=0.925, center_m=(0.0, 0.0, 0.058)),
    fault=Channel(name="/io_and_status_controller/robot_program_running", type=RUNNING),
    recover=Channel(name="/io_and_status_controller/resend_robot_program", type=TRIGGER),
)
