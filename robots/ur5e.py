"""A UR5e under FZI's cartesian_compliance_controller, on top of Universal Robots' driver.

The controller is an admittance: its stiffness bounds the force, and it clips no error. Its
`robot_base_link` has to be `base`, the frame in which the driver tells the measured pose. Names
begin at the root, since ros2_control resolves them there. Checked against the sources, not yet
against an arm.
"""

from __future__ import annotations

from serl.arm_profile import (
    GRIP,
    JOINTS,
    POSE,
    RUNNING,
    TRIGGER,
    WRENCH,
    ArmProfile,
    Channel,
    ControllerProfile,
    Gains,
    GripperProfile,
    Payload,
)

_PI = 3.141592653589793
_CONTROLLER = "/cartesian_compliance_controller"
_STIFFNESS_N_M, _STIFFNESS_NM = 500.0, 100.0


def _gains(stiffness_n_m: float, stiffness_nm: float) -> Gains:
    return Gains(
        parameters={
            **{f"stiffness.trans_{axis}": stiffness_n_m for axis in "xyz"},
            **{f"stiffness.rot_{axis}": stiffness_nm for axis in "xyz"},
        },
        stiffness_n_m=stiffness_n_m,
    )


robot = ArmProfile(
    name="ur5e",
    summary="UR5e with a Robotiq 2F-85, driven by FZI's cartesian_compliance_controller",
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
    target=Channel(name=f"{_CONTROLLER}/target_frame", type=POSE),
    gripper=GripperProfile(
        command=Channel(
            name="/robotiq_gripper_controller/gripper_cmd",
            type=GRIP,
        ),
        state=Channel(name="/joint_states", type=JOINTS),
        joint="robotiq_85_left_knuckle_joint",
        closed=0.8,
        open=0.0,
        effort=5.0,
    ),
    controller=ControllerProfile(
        node=_CONTROLLER,
        parameters={**_gains(_STIFFNESS_N_M, _STIFFNESS_NM).parameters},
        modes={"compliance": _gains(200.0, 20.0), "precision": _gains(1000.0, 100.0)},
        stiffness_n_m=_STIFFNESS_N_M,
    ),
    payload=Payload(mass_kg=0.925, center_m=(0.0, 0.0, 0.058)),
    fault=Channel(name="/io_and_status_controller/robot_program_running", type=RUNNING),
    recover=Channel(name="/io_and_status_controller/resend_robot_program", type=TRIGGER),
)
