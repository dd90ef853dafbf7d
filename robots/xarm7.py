"""A UFACTORY xArm7 under FZI's cartesian_motion_controller, on top of its own ROS 2 driver.

Sources: fzi-forschungszentrum-informatik/cartesian_controllers f53f798 (`cmc` is
cartesian_motion_controller.cpp, `base` cartesian_controller_base.cpp) and xArm-Developer/xarm_ros2
0417b0f (jazzy; `hw` is uf_robot_system_hardware.cpp, `driver` xarm_driver.cpp):

- target: PoseStamped, reliable, depth 3 (cmc:75). Refused while the controller is inactive, with a
  NaN, and in another frame than its `robot_base_link` (cmc:176-199), which has to be `link_base`.
- no commands: no timeout; the last target stays (cmc:201), and the driver repeats the last joint
  angles each second (hw:387-389). Errors are clipped at 1 m and 1 rad alone (cmc:152-155).
- motion: a mass of 1 kg, drawn by `pd_gains` times the error (base:387-398,
  ForwardDynamicsSolver.cpp:77-118), one step for each of `solver.iterations` (cmc:112-123). The
  driver sends no step below 0.1 mrad (hw:387, its header:104): about a millimetre from the target
  the arm advances once a second only.
- parameters: `pd_gains`, `error_scale` and `publish_state_feedback` are read in every cycle
  (PDController.cpp:77-78, base:341, 391); `iterations` once (base:216): a later change is read back
  but has no effect. Configure the controller with 1; the guard compares the value.
- pose: the controller's, only with `publish_state_feedback` (base:341): the pose of the measured
  joints, read in each period (cmc:106), plus the commanded step (base:397, 476), 0.4 mm at a lead
  of 10 mm. With more iterations it would be further ahead of the arm.
- twist: `current_twist` is the speed of that mass in its own time, 0.02 s an iteration
  (base:494-504), a third of the tool's at the driver's 150 Hz (xarm7_controllers.yaml): computed
  from poses instead.
- joints: joint_state_broadcaster alone. With an error the driver keeps the last angles
  (hw:310-321). The launch files also start joint_state_publisher on that topic: it repeats the
  driver's slow reports of all joints under new stamps (driver:60-75, 234-245;
  _robot_joint_state.launch.py:85-91), which the guard refuses as a second publisher.
- gripper's joint: the driver reports it twice a second, and after the first goal only during goals
  (driver:287-300, 344-445). So start joint_state_publisher yourself, on the topic below: it repeats
  the last report.
- errors: `robot_states` in `hw_ns`, which is xarm (driver:77-95, 246; hw:73). With an error, a
  state over 2 or another mode nothing is sent to the arm (hw:352-356, 443-481).
- gripper: an action that accepts every goal (driver:281-285, 323-329).

The arm is position-controlled: only the lead, the speed and the arm's own collision detection bound
its force. There is no wrench without UFACTORY's sensor, so none is read. Not tried on an arm.
"""

from __future__ import annotations

from serl.arm_profile import (
    GRIP,
    JOINTS,
    POSE,
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
    twist=None,
    wrench=None,
    joint_states=Channel(name="/joint_states", type=JOINTS),
    target=Channel(name=f"{_CONTROLLER}/target_frame", type=POSE),
    gripper=GripperProfile(
        command=Channel(name="/xarm_gripper/gripper_action", type=GRIP),
        state=Channel(name="/xarm_gripper/joint_states", type=JOINTS),
        joint="drive_joint",
        closed=0.85,
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
    fault=Channel(name="/xarm/robot_states", type=XARM_STATE),
    payload=Payload(mass_kg=0.82, center_m=(0.0, 0.0, 0.048)),
)
