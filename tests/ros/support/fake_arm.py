"""A fake of an arm's driver, in a process of its own: a foreign node, with nothing of ours in it.

    python fake_arm.py FAMILY NAMESPACE

It has exactly the topics, types, parameters and quality of service that `data/FAMILY.yaml` has from
the driver's sources, moves by the law of its controller (`laws`), and can misbehave. Its parameter
`fault` selects how: deaf (its controller does not listen to the force sensor), late (stamps of a
second ago), frozen (the same stamp again and again), nan, silent (no pose), dropped (commands are
lost), stuck (it does not move), reflex (it stops, and says so on the topic for that, or feels 60 N
where there is none), stubborn (parameters are refused), forgetful (they are taken, and kept
otherwise), numb (the gripper does nothing), mirrored (targets have another x), runaway (it drifts,
whatever is commanded), mute (what tells of its errors ended, while all else goes on), misframed
(twist and wrench say that they are in the world's frame), whirling (its second joint turns at 2
rad/s, while the tool follows).
"""

from __future__ import annotations

import importlib
import importlib.util
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import rclpy
import yaml
from laws import LAWS, PERIOD_S, Tool  # type: ignore[import-not-found]
from rcl_interfaces.msg import SetParametersResult
from rclpy.executors import ExternalShutdownException
from rclpy.parameter import Parameter
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy

DRIFT_M_S = 0.04
WHIRL_RAD_S = 2.0
HOME = (0.3069, 0.0, 0.4869)
DOWN = (1.0, 0.0, 0.0, 0.0)
OPEN_RATIO = 0.07 / 0.08
"""A Franka hand that is wider open counts as open for its adapter."""


class FakeArm:
    """A tool that its controller moves."""

    def __init__(self, driver: dict[str, Any], namespace: str) -> None:
        place, _, name = driver["node"]["name"].rpartition("/")
        rooted = driver["node"]["name"].startswith("/")
        self._node: Any = rclpy.create_node(
            name, namespace=place or ("/" if rooted else namespace), enable_rosout=False
        )
        self._namespace, self._driver = namespace, driver
        joints = driver["joints"]
        count = joints.get("count", 0)
        self._names = joints.get("names") or [f"{joints['prefix']}{n + 1}" for n in range(count)]
        self._tool = self._shown = Tool(np.array(HOME), np.array(DOWN))
        self._wrench = np.zeros(6)
        self._ticked_s = 1e-9 * self._node.get_clock().now().nanoseconds
        self._sensor: Any = None
        self._ill: bool | None = None
        self._whirled = 0.0
        gripper = driver["gripper"]
        self._finger = self._finger_target = gripper["open"]
        self._closing = False
        self._stamp = self._now()
        self._publishers = {
            role: self._publisher(row) for role, row in driver["channels"].items() if role in FILL
        }
        self._fingers = self._publisher(gripper["state"])
        if recover := driver["channels"].get("recover"):
            name = self._absolute(recover["name"])
            self._node.create_service(kind_of(recover), name, self._recover)
        self._reports = self._reporter(driver["channels"].get("fault"))
        self._reported = self._reports is not None
        self._values: dict[str, Any] = {"fault": "", **driver["parameters"]["values"]}
        for key, value in self._values.items():
            self._node.declare_parameter(key, value)
        self._node.add_post_set_parameters_callback(self._keep)
        law = LAWS[driver["law"]["name"]]
        self._law = law(self._values.__getitem__, self._tool, driver["frame"]["name"])
        self._listen()
        self._node.add_on_set_parameters_callback(self._on_parameters)
        self._node.add_pre_set_parameters_callback(self._forget)
        self._node.create_timer(PERIOD_S, self._tick)

    def spin(self) -> None:
        rclpy.spin(self._node)

    def _keep(self, parameters: list[Any]) -> None:
        self._values.update({each.name: each.value for each in parameters})

    def _listen(self) -> None:
        target, command = self._driver["channels"]["target"], self._driver["gripper"]["command"]
        name = self._absolute(target["name"])
        self._node.create_subscription(kind_of(target), name, self._on_target, target["depth"])
        if "/msg/" in command["type"]:
            name = self._absolute(command["name"])
            self._node.create_subscription(kind_of(command), name, self._on_gripper, 1)
        elif importlib.util.find_spec("control_msgs"):
            self._serve_gripper(kind_of(command), self._absolute(command["name"]))

    def _reporter(self, row: dict[str, Any] | None) -> Any:
        """Tells errors; None without one, and where the package of its message is missing."""
        if row is None or not importlib.util.find_spec(row["type"].partition("/")[0]):
            return None
        qos = QoSProfile(depth=1)
        if row.get("latched"):
            qos.durability = DurabilityPolicy.TRANSIENT_LOCAL
        kind = kind_of(row)
        return self._node.create_publisher(kind, self._absolute(row["name"]), qos)

    def _report(self, fault: str) -> None:
        """Whether it is well: on each change where that is latched, else again and again."""
        row, ill = self._driver["channels"].get("fault"), fault == "reflex"
        if fault == "mute" and self._reports is not None:
            self._node.destroy_publisher(self._reports)
            self._reports = self._ill = None
        elif fault != "mute" and self._reports is None and self._reported:
            self._reports = self._reporter(row)
        if self._reports is None or (row.get("latched") and ill == self._ill):
            return
        self._ill, message = ill, kind_of(row)()
        for name, value in REPORTED[kind_of(row).__name__][ill].items():
            setattr(message, name, value)
        self._reports.publish(message)

    def _recover(self, request: Any, response: Any) -> Any:
        response.success = True
        return response

    def _serve_gripper(self, kind: Any, name: str) -> None:
        from rclpy.action import ActionServer, GoalResponse

        def asked(goal: Any) -> Any:
            well = self.fault != "numb" and goal.command.max_effort > 0.0
            return GoalResponse.ACCEPT if well else GoalResponse.REJECT

        def execute(handle: Any) -> Any:
            self._finger_target = handle.request.command.position
            handle.succeed()
            return kind.Result(position=self._finger_target, reached_goal=True)

        self._server = ActionServer(self._node, kind, name, execute, goal_callback=asked)

    @property
    def fault(self) -> str:
        return str(self._values["fault"])

    def _absolute(self, name: str) -> str:
        return name if name.startswith("/") else f"{self._namespace}/{name}"

    def _publisher(self, row: dict[str, Any]) -> Any:
        qos = QoSProfile(depth=10)
        if row.get("best_effort"):
            qos.reliability = ReliabilityPolicy.BEST_EFFORT
        return self._node.create_publisher(kind_of(row), self._absolute(row["name"]), qos)

    def _now(self) -> Any:
        return self._node.get_clock().now().to_msg()

    def _on_target(self, message: Any) -> None:
        if self.fault == "mirrored":
            message.pose.position.x = 2 * HOME[0] - message.pose.position.x
        if self.fault != "dropped":
            name = self._absolute(self._driver["channels"]["target"]["name"])
            self._law.hear(message, self._node.count_publishers(name))

    def _listen_to_sensor(self, fault: str) -> None:
        """Have the controller listen to the force sensor, if it does; not when it is deaf."""
        if fault == "deaf" and self._sensor is not None:
            self._node.destroy_subscription(self._sensor)
            self._sensor = None
        elif fault != "deaf" and self._sensor is None and "hears_wrench" in self._driver:
            row = self._driver["channels"]["wrench"]
            name = self._absolute(row["name"])
            self._sensor = self._node.create_subscription(kind_of(row), name, self._on_wrench, 10)

    def _on_wrench(self, message: Any) -> None:
        rows = [message.wrench.force, message.wrench.torque]
        self._wrench = np.array([[each.x, each.y, each.z] for each in rows]).reshape(6)

    def _on_gripper(self, message: Any) -> None:
        """As the Franka hand's adapter does: it knows open and closed alone."""
        wanted, is_open = message.data[0], self._finger > OPEN_RATIO
        if self.fault == "numb":
            return
        if wanted <= 0.5 and is_open and not self._closing:
            self._finger_target, self._closing = 0.0, True
        elif wanted > 0.5 and not is_open and self._closing:
            self._finger_target, self._closing = 1.0, False

    def _on_parameters(self, parameters: list[Any]) -> Any:
        own = [parameter for parameter in parameters if parameter.name != "fault"]
        refused = bool(own) and self.fault == "stubborn"
        return SetParametersResult(successful=not refused, reason="controller is active")

    def _forget(self, parameters: list[Any]) -> list[Any]:
        if self.fault != "forgetful":
            return parameters
        return [
            Parameter(each.name, value=0.5 * each.value) if isinstance(each.value, float) else each
            for each in parameters
        ]

    def _tick(self) -> None:
        fault = self.fault
        self._listen_to_sensor(fault)
        now_s = 1e-9 * self._node.get_clock().now().nanoseconds
        sent = self._law.step(self._tool, self._wrench, now_s)
        if fault == "runaway":
            drift_m = DRIFT_M_S * (now_s - self._ticked_s)  # on a machine that is late as well
            sent = self._tool.moved(np.array([0.0, 0.0, drift_m, 0.0, 0.0, 0.0]))
        self._ticked_s = now_s
        if fault not in ("stuck", "reflex"):
            self._tool = sent
        self._shown = sent if self._law.shows_command else self._tool
        if fault != "frozen":
            self._stamp = self._now()
        if fault == "late":
            self._stamp.sec -= 1
        reach = 0.1 * abs(self._driver["gripper"]["open"] - self._driver["gripper"]["closed"])
        self._finger += max(-reach, min(reach, self._finger_target - self._finger))
        self._tell(fault)
        self._report(fault)

    def _tell(self, fault: str) -> None:
        for role, publisher in self._publishers.items():
            if (role, fault) == ("pose", "silent") or not self._law.publishes(role):
                continue
            message = kind_of(self._driver["channels"][role])()
            message.header.stamp = self._stamp
            if role != "joint_states":
                frame = self._driver["channels"][role].get("frame", self._driver["frame"]["name"])
                strange = fault == "misframed" and role != "pose"
                message.header.frame_id = "world" if strange else frame
            FILL[role](self, message, fault)
            publisher.publish(message)
        gripper = self._driver["gripper"]
        fingers = kind_of(gripper["state"])(name=[gripper["joint"]], position=[self._finger])
        fingers.velocity, fingers.header.stamp = [0.0], self._stamp
        self._fingers.publish(fingers)

    def _fill_pose(self, message: Any, fault: str) -> None:
        place, turn = message.pose.position, message.pose.orientation
        place.x, place.y, place.z = [math.nan] * 3 if fault == "nan" else self._shown.place
        turn.x, turn.y, turn.z, turn.w = self._shown.turn

    def _fill_twist(self, message: Any, fault: str) -> None:
        linear, angular = message.twist.linear, message.twist.angular
        linear.x, linear.y, linear.z, angular.x, angular.y, angular.z = self._law.twist

    def _fill_wrench(self, message: Any, fault: str) -> None:
        message.wrench.force.z = 60.0 if fault == "reflex" and not self._reported else 0.0

    def _fill_joints(self, message: Any, fault: str) -> None:
        bent = [0.0, -0.785, 0.0, -2.356, 0.0, 1.571, 0.785]
        message.name = list(self._names)
        message.position = bent if len(self._names) == 7 else [0.0] * len(self._names)
        if self._names[0].startswith("joint"):  # an xArm bends the other way
            message.position = [abs(angle) for angle in bent]
        message.velocity = [0.0] * len(self._names)
        self._whirled = self._whirled + WHIRL_RAD_S * PERIOD_S if fault == "whirling" else 0.0
        message.position[1] += self._whirled


REPORTED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "Bool": ({"data": True}, {"data": False}),
    "FrankaRobotState": ({"robot_mode": 2}, {"robot_mode": 4}),
    "RobotMsg": ({"state": 1}, {"state": 4, "err": 31}),
}
"""When it is well, and when it is not."""

FILL: dict[str, Any] = {
    "pose": FakeArm._fill_pose,
    "twist": FakeArm._fill_twist,
    "wrench": FakeArm._fill_wrench,
    "joint_states": FakeArm._fill_joints,
}


def kind_of(row: dict[str, Any]) -> Any:
    package, kind, name = row["type"].split("/")
    return getattr(importlib.import_module(f"{package}.{kind}"), name)


def main(family: str, namespace: str) -> None:
    driver = yaml.safe_load((Path(__file__).parents[1] / "data" / f"{family}.yaml").read_text())
    rclpy.init(args=[])
    try:
        FakeArm(driver, namespace).spin()
    except (KeyboardInterrupt, ExternalShutdownException):
        pass
    finally:
        rclpy.try_shutdown()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
