"""A UFACTORY xArm7 under FZI's cartesian_motion_controller, on top of its own ROS 2 driver.

It is controlled by position: nothing bounds its force but the lead, the speed and the arm's own
collision detection. There is no wrench without UFACTORY's sensor, so the guard is told of none. The
pose is the controller's, which takes over the measured joints in each of its periods. Checked
against the sources, not yet against an arm.
"""

from __future__ import annotations

from serl.arm_profile import (
    GRIP,
    JOINTS,
    POSE,
    TWIST,
    XARM_STATE,
    ArmProfile,
    Channel,
    ControllerProfile,
    GripperProfile,
    Payload,
)

_PI = 3.141592653589793
_CONTROLLER = "/cartesian_motion_controller"

robot = ArmProfile(
    name="xarm7",
    summary="xArm7 with its gripper, driven by FZI's cartesian_motion_controller",
    base_frame="link_base",
    tool_frame="link_tcp",
    joints=tuple(f"joint{number}" for number in range(1, 8)),
    joint_low_rad=(-2 * _PI, -2.059, -2 * _PI, -0.19198, -2 * _PI, -1.69297, -2 * _PI),
    joint_high_rad=(2 * _PI, 2.0944, 2 * _PI, 3.927, 2 * _PI, _PI, 2 * _PI),
    home_rad=(0.0, -0.247, 0.0, 0.909, 0.0, 1.15644, 0.0),
    pose=Channel(name=f"{_CONTROLLER}/current_pose", type=POSE),
    twist=Channel(name=f"{_CONTROLLER}/current_twist", type=TWIST),
    wrench=None,
    joint_states=Channel(name="/joint_states", type=JOINTS),
    target=Channel(name=f"{_CONTROLLER}/target_frame", type=POSE),
    gripper=GripperProfile(
        command=Channel(name="/xarm_gripper/gripper_action", type=GRIP),
        state=Channel(name="/joint_states", type=JOINTS),
        joint="drive_joint",
        closed=0.85,
        open=0.0,
    ),
    controller=ControllerProfile(
        node=_CONTROLLER,
        parameters={
            "solver.publish_state_feedback": True,
            **{f"pd_gains.trans_{axis}.p": 10.0 for axis in "xyz"},
            **{f"pd_gains.rot_{axis}.p": 1.0 for axis in "xyz"},
        },
    ),
    fault=Channel(name="/xarm/robot_states", type=XARM_STATE),
    payload=Payload(mass_kg=0.82, center_m=(0.0, 0.0, 0.048)),
)
