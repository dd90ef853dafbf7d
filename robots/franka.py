"""A Franka FR3 under crisp_controllers: a Cartesian impedance controller for ros2_control.

Sources: utiasDSL/crisp_controllers 8093548 (`cc` is src/cartesian_controller.cpp),
utiasDSL/crisp_controllers_demos 20212dd and frankarobotics/franka_ros2 29cb85a (jazzy):

- target: PoseStamped, reliable, depth 1 (cc:372). Neither its frame nor a value that is not finite
  is refused (cc:336-346, 495-502). While two nodes publish it, all of it is ignored (cc:339, 641).
- no commands: no timeout; the spring holds the last target (cc:90-114).
- motion: torque = J^T (k error - d velocity) (cc:158), the error clipped per axis (cc:116-120). In
  its default frame the force acts at the origin of the base (cc:123-127), so `use_local_jacobian`
  is set: then clip, stiffness and force are along the axes of the tool, and at the tool.
  `use_operational_space` would scale the stiffness by the arm's inertia (cc:150-156).
- target wrench: WrenchStamped, reliable, depth 1 (cc:360-369, 378-379). torque += J^T wrench
  (cc:192-195), so with `use_local_jacobian` it is that which the tool exerts along its own axes.
  Nothing limits it, and the last one is kept without a timeout (cc:85, 520-524), also while two
  nodes publish it (cc:363-367).
- parameters: read anew in every cycle (cc:211-213), so the values read back are those in effect.
- pose: `current_pose` (pose_broadcaster.cpp:65-78, 156), of `base` (demos 2997a2d,
  config/fr3/controllers.yaml:64), which is not compared with that of a target.
- twist: none is published; it is computed from poses.
- joints: `joint_states`, 30 Hz, of joint_state_publisher (demos launch/franka.launch.py:192-201).
  Limits: frankaemika/franka_description 1ddff9b, robots/fr3/joint_limits.yaml.
- wrench: not published by crisp_controllers. Spawn franka_ros2's franka_robot_state_broadcaster
  beside it (franka_robot_state_broadcaster.cpp:125, 140, 245: best effort; frame:
  franka_robot_state.cpp:160). A force of the arm on its surroundings is positive, and near a
  singular pose all numbers are zero (frankarobotics/libfranka 0.20.5, robot_state.h:301-309).
  Without a wrench the guard refuses the arm; set `wrench: null` in a copy of this profile to do
  without.
- errors of the arm: crisp_controllers has no topic for them. With franka_msgs installed a copy of
  this profile can name that broadcaster's `robot_state` (:149) as `fault`.
- gripper: the hand's adapter (demos crisp_py_franka_hand_adapter.py:146-147, 183), which only opens
  and closes (:196-203).

The arm's behavior after a reflex and the payload, that of Franka's Desk for its hand, are not in
these sources. Not tried on an arm. A Panda has other
joint names and limits.
"""

from __future__ import annotations

from serl.arm_profile import (
    AXES,
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
    """Return a spring with the damping of a mass of 1 kg, and for rotations that of SERL."""
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
_AXES = dict(
    zip(AXES, (f"{kind}_{axis}" for kind in ("pos", "rot") for axis in "xyz"), strict=True)
)
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
    twist=None,
    wrench=Channel(
        name="franka_robot_state_broadcaster/external_wrench_in_base_frame", type=WRENCH
    ),
    wrench_frames=("base", "fr3_link0"),  # the same frame under two names
    wrench_reversed=True,
    target_wrench=Channel(name="target_wrench", type=WRENCH),
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
            "use_local_jacobian": True,
            "use_operational_space": False,
            "stop_commands": False,
            "filter.target_pose": 0.1,
        },
        modes={"compliance": _gains(200.0, 20.0), "precision": _gains(2000.0, 150.0)},
        table_parameters={  # one clip for both directions
            "stiffness": {axis: f"task.k_{name}" for axis, name in _AXES.items()},
            "damping": {axis: f"task.d_{name}" for axis, name in _AXES.items()},
            "clip": {axis: f"task.error_clip.{axis}" for axis in _AXES},
        },
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
