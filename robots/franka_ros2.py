"""A Franka FR3 under the Cartesian impedance controller of franka_ros2's examples.

For who has Franka's own packages and no other controller. It clips no error, and it has neither a
timeout nor a check for what is not finite: lead, stiffness and the guard are all that bound its
force. Names begin at the root. Checked against the sources, not yet against an arm.
"""

from __future__ import annotations

from serl.arm_profile import (
    FRANKA_STATE,
    GRIP,
    JOINTS,
    POSE,
    WRENCH,
    ArmProfile,
    Channel,
    ControllerProfile,
    Gains,
    GripperProfile,
    Payload,
)

_PI = 3.141592653589793
_CONTROLLER = "/cartesian_impedance_example_controller"
_BROADCASTER = "/franka_robot_state_broadcaster"
_STIFFNESS_N_M, _STIFFNESS_NM = 1000.0, 50.0


def _gains(stiffness_n_m: float, stiffness_nm: float) -> Gains:
    return Gains(
        parameters={
            "translational_stiffness": stiffness_n_m,
            "rotational_stiffness": stiffness_nm,
        },
        stiffness_n_m=stiffness_n_m,
    )


robot = ArmProfile(
    name="franka_ros2",
    summary="Franka FR3 with its hand, driven by franka_ros2's impedance example",
    base_frame="fr3_link0",
    tool_frame="fr3_hand_tcp",
    joints=tuple(f"fr3_joint{number}" for number in range(1, 8)),
    joint_low_rad=(-2.7437, -1.7837, -2.9007, -3.0421, -2.8065, 0.5445, -3.0159),
    joint_high_rad=(2.7437, 1.7837, 2.9007, -0.1518, 2.8065, 4.5169, 3.0159),
    home_rad=(0.0, -_PI / 4, 0.0, -3 * _PI / 4, 0.0, _PI / 2, _PI / 4),
    pose=Channel(name=f"{_BROADCASTER}/current_pose", type=POSE),
    twist=None,  # the driver tells the desired one
    wrench=Channel(name=f"{_BROADCASTER}/external_wrench_in_base_frame", type=WRENCH),
    joint_states=Channel(name=f"{_BROADCASTER}/measured_joint_states", type=JOINTS),
    target=Channel(name=f"{_CONTROLLER}/equilibrium_pose", type=POSE),
    gripper=GripperProfile(
        command=Channel(name="/franka_gripper/gripper_action", type=GRIP),
        state=Channel(name="/franka_gripper/joint_states", type=JOINTS),
        joint="fr3_finger_joint1",
        open=0.04,
        effort=30.0,
    ),
    controller=ControllerProfile(
        node=_CONTROLLER,
        parameters={**_gains(_STIFFNESS_N_M, _STIFFNESS_NM).parameters},
        modes={
            "compliance": _gains(200.0, 10.0),
            "precision": _gains(2000.0, 100.0),
        },
        stiffness_n_m=_STIFFNESS_N_M,
    ),
    fault=Channel(name=f"{_BROADCASTER}/robot_state", type=FRANKA_STATE),
    payload=Payload(mass_kg=0.73, center_m=(-0.01, 0.0, 0.03)),
)
