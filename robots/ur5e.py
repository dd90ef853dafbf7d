"""A UR5e under FZI's cartesian_compliance_controller, on top of Universal Robots' driver.

Sources: fzi-forschungszentrum-informatik/cartesian_controllers f53f798 (`ccc`, `cmc`, `cfc`, `base`
are its compliance, motion and force controllers and their base) and
UniversalRobots/Universal_Robots_ROS2_Driver 696e1a7b (`yaml` is ur_controllers.yaml). Topics and
frames are the same in its release for Jazzy, 3.8.0 (409548c):

- target: PoseStamped, reliable, depth 3 (cmc:75). Refused while the controller is inactive, with a
  NaN, and in another frame than its `robot_base_link` (cmc:176-199), which has to be `base`.
- no commands: no timeout; the last target stays. On activation the target is the pose (cmc:91).
- motion: a mass of 1 kg (ForwardDynamicsSolver.cpp:77-118, 174-177), drawn by stiffness * error
  plus the sensor's wrench (ccc:171-177), times `pd_gains` and `solver.error_scale` (base:391-392).
  Errors are clipped at 1 m and 1 rad (cmc:152-155), so nothing but the guard's lead bounds them.
- parameters: stiffness, `pd_gains` and `error_scale` are read in every cycle (ccc:162-167,
  PDController.cpp:77-78, base:391), so the values read back are those in effect. Set `pd_gains`
  yourself: they are 0 by default, at which the arm does not move. A softer arm also follows more
  slowly.
- force: the stiffness bounds it only while the controller receives the sensor's wrench (cfc:96-99,
  144-160); the last wrench is used indefinitely. Remap its `ft_sensor_wrench` to the wrench below:
  the guard takes no arm whose controller does not subscribe to it.
- target wrench: WrenchStamped, reliable, depth 10 (cfc:92-94), added to the force (cfc:146-159). It
  is along the axes of `end_effector_link` while `hand_frame_control` is set, which is read in every
  cycle (cfc:147-156). A NaN is refused (cfc:189-197); the last one is kept without a timeout.
- pose: tcp_pose_broadcaster in `base` (yaml:181-186), of the TCP that is set at the robot, which
  has to be the controller's `end_effector_link`. Its topic is not in these sources, nor is the
  wrench's (frame: yaml:85). twist: none is published; it is computed from poses.
- errors: `robot_program_running`, latched, on change (gpio_controller.cpp:265, 363-368); `recover`
  :279. Whether the arm holds when its program ends is not in these sources.

The gripper's names are those of utiasDSL/crisp_py c350302,
config/grippers/gripper_robotiq_2f85.yaml. The joints' limits are those of
UniversalRobots/Universal_Robots_ROS2_Description 1c32d8f, config/ur5e/joint_limits.yaml; the
payload is the data sheet's of the gripper, not in these sources. Names begin at the root, where
ros2_control resolves them. Not tried on an arm.
"""

from __future__ import annotations

from serl.arm_profile import (
    AXES,
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
    wrench_frames=("tool0_controller", "tool0"),  # the driver's, with the flange's orientation
    joint_states=Channel(name="/joint_states", type=JOINTS),
    target=Channel(name=f"{_CONTROLLER}/target_frame", type=POSE),
    target_wrench=Channel(name=f"{_CONTROLLER}/target_wrench", type=WRENCH),
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
        parameters={
            **_gains(_STIFFNESS_N_M, _STIFFNESS_NM).parameters,
            "hand_frame_control": True,
        },
        modes={"compliance": _gains(200.0, 20.0), "precision": _gains(1000.0, 100.0)},
        table_parameters={
            "stiffness": dict(zip(AXES, _gains(1.0, 1.0).parameters, strict=True))  # in this order
        },
        stiffness_n_m=_STIFFNESS_N_M,
        hears_wrench=True,
    ),
    payload=Payload(mass_kg=0.925, center_m=(0.0, 0.0, 0.058)),
    fault=Channel(name="/io_and_status_controller/robot_program_running", type=RUNNING),
    recover=Channel(name="/io_and_status_controller/resend_robot_program", type=TRIGGER),
)
