"""External arm profile: six position-controlled joints, no force sensor, no gripper."""

from __future__ import annotations

from serl.arm_profile import POSE, ArmProfile, Channel, ControllerProfile, Payload

robot = ArmProfile(
    name="my_arm",
    summary="an arm from outside",
    base_frame="base_link",
    tool_frame="flange",
    joints=tuple(f"axis_{number}" for number in range(1, 7)),
    joint_low_rad=(-3.0,) * 6,
    joint_high_rad=(3.0,) * 6,
    home_rad=(0.0, 0.5, 0.5, 0.0, 0.5, 0.0),
    pose=Channel(name="tool_pose", type=POSE),
    twist=None,
    wrench=None,
    target=Channel(name="tracker/goal", type=POSE),
    gripper=None,
    controller=ControllerProfile(
        node="tracker", parameters={"time_constant_s": 0.05}, expected={"timeout_s": 0.5}
    ),
    payload=Payload(mass_kg=0.2),
)
