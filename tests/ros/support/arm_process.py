"""A fake arm with the topics of its driver: measures at 100 Hz, follows setpoints, or holds.

    python arm_process.py RUN ROBOT

It records setpoints, guard states, starts of its own holds and late ticks in `arm.txt` of the run.
It reads its faults from `arm_faults.yaml` whenever that changes: silent (measures
nothing), frozen (the wrench and its stamp), frame, force_n, away_m (offset of the measured pose),
error, nan, joints (their number); and at the start: deaf (subscribes to no setpoints),
recorded_elsewhere (`subscriber_process.py` writes `arm.txt`, as this process is killed).
"""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path
from typing import Any

from diagnostic_msgs.msg import DiagnosticStatus
from geometry_msgs.msg import PoseStamped, WrenchStamped
from rclpy.qos import QoSProfile, ReliabilityPolicy
from sensor_msgs.msg import JointState
from std_msgs.msg import Float64MultiArray

from serl.clock import WallClock
from serl.motion import Pose, pose_from
from serl.ros.arm.guard_topics import ARM_STATE, GUARD_STATE
from serl.ros.node import RosNode, namespace
from serl.ros.topics import Topic
from serl.setpoint import PROFILE_PERIOD_S
from serl.system.settings_file import read_yaml
from serl.system.supervisor import is_orphaned
from serl.testing.fakes import FakeArm

START = Pose((0.45, 0.0, 0.2), (1.0, 0.0, 0.0, 0.0))


class ArmProcess:
    def __init__(self, node: RosNode, folder: Path, robot: str, faults: dict[str, Any]) -> None:
        self._node, self._folder = node, folder
        self._arm, self._lock = FakeArm(START), threading.Lock()
        name = "killed_arm.txt" if faults.get("recorded_elsewhere") else "arm.txt"
        self._log = (folder / name).open("a", buffering=1)
        self._said, self._ticked_s = "", time.monotonic()
        self._felt = WrenchStamped()

        def own(topic: Topic) -> Topic:
            return topic._replace(name=f"{namespace(folder)}/{robot}/{topic.name}")

        # The record must be complete; controllers of ros2_control are reliable, too.
        many = QoSProfile(depth=200, reliability=ReliabilityPolicy.RELIABLE)
        self._pose = node.publisher(own(Topic("current_pose", PoseStamped, 10)))
        self._joints = node.publisher(own(Topic("joint_states", JointState, 10)))
        self._wrench = node.publisher(own(Topic("wrench", WrenchStamped, 10)))
        self._state = node.publisher(own(ARM_STATE))
        if not faults.get("deaf"):
            node.subscribe(own(Topic("target_pose", PoseStamped, many)), self._follow)
        node.subscribe(own(Topic("gripper/commands", Float64MultiArray, many)), self._grip)
        node.subscribe(own(GUARD_STATE)._replace(qos=many), self._hear)

    def tick(self, faults: dict[str, Any]) -> None:
        now_s = time.monotonic()
        late_s, self._ticked_s = now_s - self._ticked_s - PROFILE_PERIOD_S, now_s
        if late_s > PROFILE_PERIOD_S:
            self._write(f"late {late_s:.3f}")
        with self._lock:
            before = self._arm.holding
            pose = self._arm.tick(now_s)
            if self._arm.holding != before:
                self._write("holds" if self._arm.holding else "follows")
        if not faults.get("silent"):
            self._measure(pose, faults)
        self._report(faults.get("error", ""))

    def _measure(self, pose: Pose, faults: dict[str, Any]) -> None:
        stamp = self._node.handle.get_clock().now().to_msg()
        message, wrench = PoseStamped(), WrenchStamped()
        joints = JointState(position=[0.0] * faults.get("joints", 7))
        for each in (message, wrench, joints):
            each.header.stamp = stamp
            each.header.frame_id = faults.get("frame", "base")
        place, turn = message.pose.position, message.pose.orientation
        place.x, place.y, place.z = pose.position
        place.x += faults.get("away_m", 0.0)
        if faults.get("nan"):
            place.x = float("nan")
        turn.x, turn.y, turn.z, turn.w = pose.quaternion
        wrench.wrench.force.z = faults.get("force_n", 0.0)
        if not faults.get("frozen"):
            self._felt = wrench
        self._pose.publish(message)
        self._wrench.publish(self._felt)
        self._joints.publish(joints)

    def _report(self, error: str) -> None:
        if error != self._said:
            self._said = error
            level = DiagnosticStatus.ERROR if error else DiagnosticStatus.OK
            self._state.publish(DiagnosticStatus(level=level, name="arm", message=error))

    def _follow(self, message: Any) -> None:
        now_s, place, turn = time.monotonic(), message.pose.position, message.pose.orientation
        pose = pose_from((place.x, place.y, place.z, turn.x, turn.y, turn.z, turn.w))
        with self._lock:
            self._arm.follow(pose, now_s)
            self._write(f"setpoint {place.x!r} {place.y!r} {place.z!r}", now_s)

    def _grip(self, message: Any) -> None:
        self._write(f"gripper {message.data[0]!r}")

    def _hear(self, message: Any) -> None:
        self._write(f"state {message.message}")

    def _write(self, text: str, now_s: float | None = None) -> None:
        self._log.write(f"{time.monotonic() if now_s is None else now_s:.6f} {text}\n")


def main() -> None:
    folder, robot = Path(sys.argv[1]), sys.argv[2]
    path, clock = folder / "arm_faults.yaml", WallClock(1.0 / PROFILE_PERIOD_S)
    with RosNode(f"arm_{robot}", folder, local=True) as node:
        arm = ArmProcess(node, folder, robot, read_yaml(path) if path.exists() else {})
        changed_ns, faults = 0, dict[str, Any]()
        while not (node.stopping or is_orphaned()):
            if path.exists() and (now_ns := path.stat().st_mtime_ns) != changed_ns:
                changed_ns, faults = now_ns, read_yaml(path)
            arm.tick(faults)
            clock.wait()


if __name__ == "__main__":
    main()
