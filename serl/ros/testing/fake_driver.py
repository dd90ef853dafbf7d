"""Process of a fake driver of an arm: what a `Driver` describes, with the law of its controller.

    python -m serl.ros.testing.fake_driver DRIVER.yaml NAMESPACE

It uses rclpy alone, none of serl's nodes. Its parameter `fault` selects a fault:

- pose: silent (none), frozen (the same stamp), late (stamps of a second ago), nan
- motion: dropped (commands are lost), stuck (no motion), mirrored (targets have another x), runaway
  (drifts, whatever is commanded)
- force: contact (60 N on the tool), deaf (the controller leaves the force sensor), misframed (twist
  and wrench have the frame of the world)
- controller: stubborn (refuses parameters), forgetful (stores half of their values)
- gripper: numb (does not move)
- errors: reflex (stands, and reports it on its fault topic, else as a contact), mute (the fault
  topic ends)
"""

from __future__ import annotations

import importlib
import importlib.util
import math
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import rclpy
from rcl_interfaces.msg import SetParametersResult
from rclpy.executors import ExternalShutdownException
from rclpy.parameter import Parameter
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy

from serl.arm_profile import FRANKA_STATE, KORTEX_FAULT, RUNNING, XARM_STATE
from serl.errors import BadInput
from serl.ros.conversions import trajectory_of
from serl.ros.testing.driver import Driver, DriverChannel
from serl.ros.testing.laws import PERIOD_S, Array, Tool
from serl.trajectory import TrajectoryFollower

DRIFT_M_S = 0.04
CONTACT_N = 60.0
START_M = (0.3069, 0.0, 0.4869)
"""Position of the tool at the start; it points down."""

DOWN = (1.0, 0.0, 0.0, 0.0)
OPEN_RATIO = 0.07 / 0.08
"""Opening above which the adapter of a Franka hand counts the hand as open."""

_MOST_PERIODS = 200
"""Longest delay of a tick that the motion makes up for: 2 s."""

REPORTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    RUNNING: ({"data": True}, {"data": False}),
    FRANKA_STATE: ({"robot_mode": 2}, {"robot_mode": 4}),
    XARM_STATE: ({"state": 1, "mode": 1}, {"state": 4, "err": 31}),
    KORTEX_FAULT: ({"data": False}, {"data": True}),
}
"""Fields of a fault message by its type: of a healthy arm, and of one with an error."""

MEASURED = ("pose", "twist", "wrench", "joint_states")


class FakeDriver:
    """A tool that a controller moves, with the topics of its driver.

    Args:
        namespace: namespace of the arm, from the root.
    """

    def __init__(self, driver: Driver, namespace: str) -> None:
        place, _, name = driver.node.name.rpartition("/")
        rooted = driver.node.name.startswith("/")
        self._node: Any = rclpy.create_node(
            name, namespace=place or ("/" if rooted else namespace), enable_rosout=False
        )
        self._namespace, self._driver = namespace, driver
        self._tool = self._shown = Tool(np.array(START_M), np.array(DOWN))
        self._wrench = np.zeros(6)
        self._ticked_s = self._drifted_s = self._now_s()
        self._stamp = self._now()
        self._values: dict[str, Any] = {"fault": "", **driver.parameters.values}
        for key, value in self._values.items():
            self._node.declare_parameter(key, value)
        law = driver.law_kind
        self._law = law(self._values.__getitem__, self._tool, driver.frame.name)
        self._publishers = {
            role: self._publisher(row) for role, row in driver.channels.items() if role in MEASURED
        }
        self._start_gripper()
        self._start_faults()
        self._sensor: Any = None  # the controller's subscription to the force sensor
        target = driver.channels["target"]
        self._target = self._absolute(target.name)
        self._node.create_subscription(
            message_of(target), self._target, self._on_target, target.depth
        )
        if (row := driver.channels.get("target_wrench")) is not None:
            self._wrench_topic = self._absolute(row.name)
            self._node.create_subscription(
                message_of(row), self._wrench_topic, self._on_target_wrench, row.depth
            )
        self._joints, self._trajectory = driver.joints.rest_rad, TrajectoryFollower()
        if (row := driver.channels.get("trajectory")) is not None:
            self._node.create_subscription(
                message_of(row), self._absolute(row.name), self._on_trajectory, row.depth
            )
        self._node.add_post_set_parameters_callback(self._store)
        self._node.add_on_set_parameters_callback(self._check)
        self._node.add_pre_set_parameters_callback(self._falsify)
        self._node.create_timer(PERIOD_S, self._tick)

    def spin(self) -> None:
        """Run until shut down."""
        rclpy.spin(self._node)

    @property
    def fault(self) -> str:
        """The selected fault; empty for none."""
        return str(self._values["fault"])

    def _absolute(self, name: str) -> str:
        return name if name.startswith("/") else f"{self._namespace}/{name}"

    def _publisher(self, row: DriverChannel) -> Any:
        qos = QoSProfile(depth=1 if row.latched else 10)
        if row.best_effort:
            qos.reliability = ReliabilityPolicy.BEST_EFFORT
        if row.latched:
            qos.durability = DurabilityPolicy.TRANSIENT_LOCAL
        return self._node.create_publisher(message_of(row), self._absolute(row.name), qos)

    def _now(self) -> Any:
        return self._node.get_clock().now().to_msg()

    def _now_s(self) -> float:
        return 1e-9 * float(self._node.get_clock().now().nanoseconds)

    def _on_target(self, message: Any) -> None:
        if self.fault == "mirrored":
            message.pose.position.x = 2 * START_M[0] - message.pose.position.x
        if self.fault != "dropped":
            self._trajectory.end()
            self._law.receive(message, self._node.count_publishers(self._target))

    def _on_trajectory(self, message: Any) -> None:
        """Move the joints; the tool, which has no kinematics, stays."""
        with suppress(BadInput):
            trajectory = trajectory_of(message, self._driver.joints.names)
            if self.fault not in ("dropped", "stuck"):
                self._trajectory.begin(trajectory, self._joints, self._now_s())

    def _on_target_wrench(self, message: Any) -> None:
        self._law.exert(wrench_of(message), self._node.count_publishers(self._wrench_topic))

    # Parameters

    def _store(self, parameters: list[Any]) -> None:
        self._values.update({each.name: each.value for each in parameters})

    def _check(self, parameters: list[Any]) -> Any:
        own = [parameter for parameter in parameters if parameter.name != "fault"]
        refused = bool(own) and self.fault == "stubborn"
        return SetParametersResult(successful=not refused, reason="controller is active")

    def _falsify(self, parameters: list[Any]) -> list[Any]:
        if self.fault != "forgetful":
            return parameters
        return [
            Parameter(each.name, value=0.5 * each.value) if isinstance(each.value, float) else each
            for each in parameters
        ]

    # Gripper

    def _start_gripper(self) -> None:
        gripper = self._driver.gripper
        if gripper is None:
            return
        self._finger = self._finger_target = gripper.open
        self._closing = False
        self._fingers = self._publisher(gripper.state)
        name = self._absolute(gripper.command.name)
        if "/msg/" in gripper.command.type:
            kind = message_of(gripper.command)
            self._node.create_subscription(kind, name, self._on_gripper, 1)
        elif is_installed(gripper.command):
            self._serve_gripper(message_of(gripper.command), name)

    def _on_gripper(self, message: Any) -> None:
        """Close or open, as the adapter of a Franka hand does, which knows no other positions."""
        opening, is_open = message.data[0], self._finger > OPEN_RATIO
        if self.fault == "numb":
            return
        if opening <= 0.5 and is_open and not self._closing:
            self._finger_target, self._closing = 0.0, True
        elif opening > 0.5 and not is_open and self._closing:
            self._finger_target, self._closing = 1.0, False

    def _serve_gripper(self, kind: Any, name: str) -> None:
        from rclpy.action import ActionServer, GoalResponse

        def check(goal: Any) -> Any:
            accepted = self.fault != "numb" and goal.command.max_effort > 0.0
            return GoalResponse.ACCEPT if accepted else GoalResponse.REJECT

        def execute(handle: Any) -> Any:
            self._finger_target = handle.request.command.position
            handle.succeed()
            return kind.Result(position=self._finger_target, reached_goal=True)

        self._server = ActionServer(self._node, kind, name, execute, goal_callback=check)

    def _publish_gripper(self) -> None:
        gripper = self._driver.gripper
        if gripper is None:
            return
        reach = 0.1 * abs(gripper.open - gripper.closed)
        self._finger += max(-reach, min(reach, self._finger_target - self._finger))
        fingers = message_of(gripper.state)(name=[gripper.joint], position=[self._finger])
        fingers.velocity, fingers.header.stamp = [0.0], self._stamp
        self._fingers.publish(fingers)

    # Errors

    def _start_faults(self) -> None:
        channels = self._driver.channels
        self._faults: Any = None
        self._reported: bool | None = None  # the last report, whether the arm has an error
        row = channels.get("fault")
        self._fault_row = row if row is not None and is_installed(row) else None
        if self._fault_row is not None:
            self._faults = self._publisher(self._fault_row)
        recover = channels.get("recover")
        if recover is not None and is_installed(recover):
            name = self._absolute(recover.name)
            self._node.create_service(message_of(recover), name, self._on_recover)

    def _on_recover(self, request: Any, response: Any) -> Any:
        response.success = True
        return response

    def _report(self, fault: str) -> None:
        """Publish whether the arm has an error: on changes if latched, otherwise at each call."""
        row, has_error = self._fault_row, fault == "reflex"
        if row is None:
            return
        if fault == "mute" and self._faults is not None:
            self._node.destroy_publisher(self._faults)
            self._faults = self._reported = None
        elif fault != "mute" and self._faults is None:
            self._faults = self._publisher(row)
        if self._faults is None or (row.latched and has_error == self._reported):
            return
        self._reported, message = has_error, message_of(row)()
        for name, value in REPORTS[row.type][has_error].items():
            setattr(message, name, value)
        self._faults.publish(message)

    # Motion and measurements

    def _follow_sensor(self, fault: str) -> None:
        """Subscribe the controller to the force sensor, if it has this input and is not deaf."""
        if fault == "deaf" and self._sensor is not None:
            self._node.destroy_subscription(self._sensor)
            self._sensor = None
        elif fault != "deaf" and self._sensor is None and self._driver.hears_wrench is not None:
            row = self._driver.channels["wrench"]
            name = self._absolute(row.name)
            self._sensor = self._node.create_subscription(
                message_of(row), name, self._on_wrench, 10
            )

    def _on_wrench(self, message: Any) -> None:
        self._wrench = wrench_of(message)

    def _tick(self) -> None:
        fault = self.fault
        self._follow_sensor(fault)
        now_s = self._now_s()
        moved = self._moved(now_s)
        if fault == "runaway":
            drift_m = DRIFT_M_S * (now_s - self._drifted_s)
            moved = self._tool.moved(np.array([0.0, 0.0, drift_m, 0.0, 0.0, 0.0]))
        self._drifted_s = now_s
        if fault not in ("stuck", "reflex"):
            self._tool = moved
        self._shown = moved if self._law.publishes_command else self._tool
        if fault != "frozen":
            self._stamp = self._now()
        if fault == "late":
            self._stamp.sec -= 1
        self._publish(fault)
        self._publish_gripper()
        self._report(fault)

    def _moved(self, now_s: float) -> Tool:
        """Return the tool after the periods since the last call: a real controller misses none."""
        periods = min(_MOST_PERIODS, max(0, round((now_s - self._ticked_s) / PERIOD_S)))
        begin_s = now_s - periods * PERIOD_S if periods == _MOST_PERIODS else self._ticked_s
        tool = self._tool
        for period in range(1, periods + 1):
            tool = self._law.step(tool, self._wrench, begin_s + period * PERIOD_S)
        self._ticked_s = begin_s + periods * PERIOD_S
        return tool

    def _publish(self, fault: str) -> None:
        for role, publisher in self._publishers.items():
            if (role, fault) == ("pose", "silent") or not self._law.publishes(role):
                continue
            row = self._driver.channels[role]
            message = message_of(row)()
            message.header.stamp = self._stamp
            if role != "joint_states":
                strange = fault == "misframed" and role != "pose"
                frame = row.frame or self._driver.frame.name
                message.header.frame_id = "world" if strange else frame
            _FILL[role](self, message, fault)
            publisher.publish(message)

    def _fill_pose(self, message: Any, fault: str) -> None:
        p, q = message.pose.position, message.pose.orientation
        p.x, p.y, p.z = [math.nan] * 3 if fault == "nan" else self._shown.position
        q.x, q.y, q.z, q.w = self._shown.quaternion

    def _fill_twist(self, message: Any, fault: str) -> None:
        linear, angular = message.twist.linear, message.twist.angular
        linear.x, linear.y, linear.z, angular.x, angular.y, angular.z = self._law.twist

    def _fill_wrench(self, message: Any, fault: str) -> None:
        touched = fault == "contact" or (fault == "reflex" and self._fault_row is None)
        message.wrench.force.z = CONTACT_N if touched else 0.0

    def _fill_joints(self, message: Any, fault: str) -> None:
        message.name = list(self._driver.joints.names)
        if self._trajectory.is_active:
            self._joints, _ = self._trajectory.at(self._now_s())
        message.position = list(self._joints)
        message.velocity = [0.0] * len(message.name)


_FILL: dict[str, Any] = {
    "pose": FakeDriver._fill_pose,
    "twist": FakeDriver._fill_twist,
    "wrench": FakeDriver._fill_wrench,
    "joint_states": FakeDriver._fill_joints,
}


def wrench_of(message: Any) -> Array:
    """Return force and torque of a message, six numbers."""
    rows = [message.wrench.force, message.wrench.torque]
    return np.array([[each.x, each.y, each.z] for each in rows]).reshape(6)


def is_installed(row: DriverChannel) -> bool:
    """Return whether the package of a channel's type is installed."""
    return importlib.util.find_spec(row.type.partition("/")[0]) is not None


def message_of(row: DriverChannel) -> Any:
    """Return the class of a channel's messages."""
    package, kind, name = row.type.split("/")
    return getattr(importlib.import_module(f"{package}.{kind}"), name)


def main(file: str, namespace: str) -> None:
    """Run the process."""
    driver = Driver.read(Path(file))
    rclpy.init(args=[])
    with suppress(KeyboardInterrupt, ExternalShutdownException):  # SIGINT and SIGTERM end it
        FakeDriver(driver, namespace).spin()
    rclpy.try_shutdown()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
