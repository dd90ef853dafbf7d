"""The simulated arm of `serl sim`: a Franka with its hand, under impedance control."""

from __future__ import annotations

from serl.arm_profile import (
    JOINTS,
    NUMBERS,
    TRAJECTORY,
    WRENCH,
    ArmProfile,
    Channel,
    ControllerProfile,
    ErrorClip,
    GripperProfile,
    Payload,
)

_QUARTER = 0.785398
_CLIP_M, _CLIP_RAD = (-0.010, 0.010), (-0.026666, 0.026666)  # 20 N and 4 Nm

robot = ArmProfile(
    name="sim",
    summary="a Franka in MuJoCo, in the scene of a task (serl sim)",
    base_frame="base",
    tool_frame="tcp",
    joints=tuple(f"joint{number}" for number in range(1, 8)),
    joint_low_rad=(-2.8973, -1.7628, -2.8973, -3.0718, -2.8973, -0.0175, -2.8973),
    joint_high_rad=(2.8973, 1.7628, 2.8973, -0.0698, 2.8973, 3.7525, 2.8973),
    home_rad=(0.0, -_QUARTER, 0.0, -3 * _QUARTER, 0.0, 2 * _QUARTER, _QUARTER),
    target_wrench=Channel(name="target_wrench", type=WRENCH),
    trajectory=Channel(name="joint_trajectory", type=TRAJECTORY),
    gripper=GripperProfile(
        command=Channel(name="gripper/commands", type=NUMBERS),
        state=Channel(name="gripper/joint_states", type=JOINTS),
        open=0.08,
    ),
    controller=ControllerProfile(
        node="arm",
        stiffness_n_m=2000.0,
        error_clip=ErrorClip(
            x=_CLIP_M, y=_CLIP_M, z=_CLIP_M, rx=_CLIP_RAD, ry=_CLIP_RAD, rz=_CLIP_RAD
        ),
    ),
    payload=Payload(mass_kg=0.0),  # the model includes the hand in the arm
)
