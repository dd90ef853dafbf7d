"""A Kinova Gen3 (7 joints) under FZI's cartesian_motion_controller, on top of ros2_kortex.

Sources: fzi-forschungszentrum-informatik/cartesian_controllers f53f798 (`cmc` is
cartesian_motion_controller.cpp, `base` cartesian_controller_base.cpp), Kinovarobotics/ros2_kortex
caa7ea4 (0.2.6, jazzy; `hw` is hardware_interface.cpp, `yaml` the ros2_controllers.yaml of 7 joints)
and PickNikRobotics/picknik_controllers e824173 (0.0.4; `reset` is
picknik_reset_fault_controller.cpp, `twist` picknik_twist_controller.cpp):

- why this controller: the driver sends joint positions (hw:919-948) or a twist (hw:1021-1030). It
  sends no efforts (hw:490-497), which crisp_controllers needs; the documentation of these names
  cartesian_controllers for such arms (8093548, docs/misc/new_robot_setup.md:7). The twist is along
  the axes of the tool (hw:230), stays until the next one (twist:132-153), and comes without poses.
  MoveIt Servo publishes no pose either, and its users report jitter and an arm that sinks
  (ros2_kortex issues 168 and 261, moveit2 issue 3472).
- target: PoseStamped, reliable, depth 3 (cmc:75). Refused while the controller is inactive, with a
  NaN, and in another frame than its `robot_base_link` (cmc:176-199), which has to be `base_link`.
- no commands: no timeout; the last target stays (cmc:201). What the arm does when the driver itself
  ends is not in these sources.
- motion: a mass of 1 kg, drawn by `pd_gains` times the error (base:387-398,
  ForwardDynamicsSolver.cpp:77-118), one step in each period of the driver, 1 ms (yaml:3): with the
  gains below, which are those of `xarm7`, up to 3.6 % of the distance and 0.36 % of the angle. An
  arm that lags follows more slowly. Errors are clipped at 1 m and 1 rad alone (cmc:152-155).
- parameters: `pd_gains`, `error_scale` and `publish_state_feedback` are read in every cycle
  (PDController.cpp:77-78, base:341, 391); `iterations` once (base:216): a later change is read back
  but has no effect. Configure the controller with 1; the guard compares the value.
- pose: the controller's, only with `publish_state_feedback` (base:341): the pose of the measured
  joints (cmc:106), plus the commanded step (base:397, 476), 0.4 mm at a lead of 10 mm.
- twist: `current_twist` is the speed of that mass in its own time, 0.02 s a period (base:494-504):
  computed from poses instead.
- joints: joint_state_broadcaster. Joints 2, 4 and 6 have the limits of the URDF
  (gen3_macro.xacro:176, 266, 356), the others turn freely. Angles are within -pi and pi (hw:776).
  The controller starts from the measured ones in each period, but an observation of a free joint
  jumps by 2 pi there: the home is far from it, unlike the driver's (joint_3 3.14, gen3.srdf:36).
- wrench: the driver exports none (hw:294-331), so none is read.
- errors: `internal_fault`, a Bool that is true while the arm has a fault, in each period of
  fault_controller (reset:65-69, 88; hw:763-793); to such an arm nothing is sent (hw:857, 915).
  `recover` (reset:99) stops the arm, clears its faults and goes on (hw:818-841); the target stays.
- gripper: an action of position_controllers/GripperActionController (ros2_controllers 4.42.1,
  gripper_action_controller_impl.hpp:299). The driver's own file loads a controller whose action has
  another type (yaml:15), so load that one in its place. It ignores the effort of a goal:
  `gripper_max_force` of the launch file limits it. Closed: 0.8 in the URDF, 0.81 in hw:805, 1002.

The arm is position-controlled: only the lead, the speed and the arm's own protection bound its
force. Gains, payload and home were not tried on an arm.
"""

from __future__ import annotations

from serl.arm_profile import (
    GRIP,
    JOINTS,
    KORTEX_FAULT,
    POSE,
    ArmProfile,
    Channel,
    ControllerProfile,
    GripperProfile,
    Payload,
)

_PI = 3.141592653589793
_CONTROLLER = "/cartesian_motion_controller"

robot = ArmProfile(
    name="kinova_gen3",
    summary="Kinova Gen3 with a Robotiq 2F-85, driven by FZI's cartesian_motion_controller",
    base_frame="base_link",
    tool_frame="end_effector_link",
    joints=tuple(f"joint_{number}" for number in range(1, 8)),
    joint_low_rad=(-2 * _PI, -2.24, -2 * _PI, -2.57, -2 * _PI, -2.09, -2 * _PI),
    joint_high_rad=(2 * _PI, 2.24, 2 * _PI, 2.57, 2 * _PI, 2.09, 2 * _PI),
    home_rad=(0.0, 0.45, 0.0, 1.95, 0.0, _PI - 0.45 - 1.95, -_PI / 2),  # the tool points down
    pose=Channel(name=f"{_CONTROLLER}/current_pose", type=POSE),
    twist=None,
    wrench=None,
    joint_states=Channel(name="/joint_states", type=JOINTS),
    target=Channel(name=f"{_CONTROLLER}/target_frame", type=POSE),
    gripper=GripperProfile(
        command=Channel(name="/robotiq_gripper_controller/gripper_cmd", type=GRIP),
        state=Channel(name="/joint_states", type=JOINTS),
        joint="robotiq_85_left_knuckle_joint",
        closed=0.8,
        open=0.0,
    ),
    controller=ControllerProfile(
        node=_CONTROLLER,
        parameters={
            "solver.publish_state_feedback": True,
            "solver.error_scale": 1.0,
            **{f"pd_gains.trans_{axis}.p": 10.0 for axis in "xyz"},
            **{f"pd_gains.rot_{axis}.p": 1.0 for axis in "xyz"},
        },
        expected={"solver.iterations": 1},
    ),
    payload=Payload(mass_kg=0.925, center_m=(0.0, 0.0, 0.058)),
    fault=Channel(name="/fault_controller/internal_fault", type=KORTEX_FAULT),
    recover=Channel(
        name="/fault_controller/reset_fault",
        type="example_interfaces/srv/Trigger",
    ),
)
