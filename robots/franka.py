"""A Franka FR3 under crisp_controllers: a Cartesian impedance controller for ros2_control.

Names are those of crisp_controllers and crisp_py of the University of Toronto's dynamic systems
lab; its error clips are symmetric, and along the axes of the tool. The controller has neither a
timeout nor a check for what is not finite: the guard is all that there is. Checked against the
sources, not yet against an arm. A Panda has other joint names and limits.
"""

from __future__ import annotations

from serl.arm_profile import (
    JOINTS,
    NUMBERS,
    WRENCH,
    ArmProfile,
    Channel,
    ControllerProfile,
    ErrorClip,
    Gains,
    GripperProfile,
    Payload,
)

_PI = 3.141592653589793
_STIFFNESS_N_M, _STIFFNESS_NM = 2000.0, 150.0
_CLIP_M, _CLIP_RAD = 0.010, 0.05


def _gains(stiffness_n_m: float, stiffness_nm: float) -> Gains:
    """A spring, with the damping of a kilogram, and of SERL's turns."""
    rows = (
        ("pos", stiffness_n_m, 2.0 * stiffness_n_m**0.5),
        ("rot", stiffness_nm, 0.572 * stiffness_nm**0.5),
    )
    parameters = {
        f"task.{letter}_{kind}_{axis}": round(value, 1)
        for kind, k, d in rows
        for letter, value in (("k", k), ("d", d))
        for axis in "xyz"
    }
    return Gains(parameters=parameters, stiffness_n_m=stiffness_n_m)


_CLIPS = {
    f"task.error_clip.{prefix}{axis}": clip
    for prefix, clip in (("", _CLIP_M), ("r", _CLIP_RAD))
    for axis in "xyz"
}
_EITHER_WAY_M, _EITHER_WAY_RAD = (-_CLIP_M, _CLIP_M), (-_CLIP_RAD, _CLIP_RAD)

robot = ArmProfile(
    name="franka",
    summary="Franka FR3 with its hand, driven by crisp_controllers",
    base_frame="base",
    tool_frame="fr3_hand_tcp",
    joints=tuple(f"fr3_joint{number}" for number in range(1, 8)),
    joint_low_rad=(-2.7437, -1.7837, -2.9007, -3.0421, -2.8065, 0.5445, -3.0159),
    joint_high_rad=(2.7437, 1.7837, 2.9007, -0.1518, 2.8065, 4.5169, 3.0159),
    home_rad=(0.0, -_PI / 4, 0.0, -3 * _PI / 4, 0.0, _PI / 2, _PI / 4),
    wrench=Channel(name="external_wrench", type=WRENCH),
    wrench_frames=("base", "fr3_link0"),  # where Franka's broadcaster tells it: they are one place
    gripper=GripperProfile(
        command=Channel(name="gripper/gripper_position_controller/commands", type=NUMBERS),
        state=Channel(name="gripper/joint_states", type=JOINTS),
        open=1.0,
    ),
    controller=ControllerProfile(
        node="cartesian_impedance_controller",
        parameters={
            **_gains(_STIFFNESS_N_M, _STIFFNESS_NM).parameters,
            **_CLIPS,
            "limit_error": True,
            "limit_torques": True,
        },
        modes={"compliance": _gains(200.0, 20.0), "precision": _gains(2000.0, 150.0)},
        stiffness_n_m=_STIFFNESS_N_M,
        error_clip=ErrorClip(
            x=_EITHER_WAY_M,
            y=_EITHER_WAY_M,
            z=_EITHER_WAY_M,
            rx=_EITHER_WAY_RAD,
            ry=_EITHER_WAY_RAD,
            rz=_EITHER_WAY_RAD,
        ),
    ),
    payload=Payload(mass_kg=0.73, center_m=(-0.01, 0.0, 0.03)),
)
