"""A simulated person at an arm, who answers questions by its pose and moves it by hand.

No part of the product is replaced: the hand guides the arm by the arm's own topic, and stops the
guard by the guard's own topic or service.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

from geometry_msgs.msg import PoseStamped, TwistStamped
from std_msgs.msg import Bool

from serl.arm_profile import ArmProfile
from serl.geometry import Vector, add, subtract
from serl.motion import Pose
from serl.ros.arm.guard_topics import ESTOP
from serl.ros.arm.topics import SENSOR, of_robot, topic_of
from serl.ros.conversions import pose_message, pose_of
from serl.ros.node import RosNode
from serl.ros.people.teleop import twist_topic
from serl.ros.services import Remote
from serl.ros.setup.checks import SessionLeft
from serl.runs.guard_setup import ArmNamespace

Answer = str | Callable[[], str]

WORDS = {0: ("forward", "back"), 1: ("left", "right"), 2: ("up", "down")}
YES = ("guard.release", "limits.joints", "limits.payload", "dry_run.end", "cameras.simulated")
GUIDED_M, PULL_M = 0.003, 0.015


class Person:
    """An `Asker` that measures and moves the arm through its own node.

    Args:
        node: its own.
        place: namespace of the arm.
        profile: profile of the arm.

    Attributes:
        answers: answers by key of the question; otherwise Enter, or yes where a word is expected.
        whenever: by key, functions that return whether that key was pressed.
        said: texts shown.
        asked: keys of all questions.
    """

    def __init__(self, node: RosNode, place: ArmNamespace, profile: ArmProfile) -> None:
        self.answers: dict[str, Answer] = {}
        self.whenever: dict[str, Callable[[], bool]] = {}
        self.said: list[str] = []
        self.asked: list[str] = []
        self.remote = Remote(node)
        self._node, self._place, self._frame = node, place, profile.base_frame
        self._pose: Pose | None = None
        self._start: Vector = (0.0, 0.0, 0.0)
        self._hand: Any = None
        self._target = topic_of(profile.target, place.robot, 1)
        self._button = node.publisher(of_robot(ESTOP, place.robot))
        self._stick = node.publisher(twist_topic(place.robot))
        node.subscribe(topic_of(profile.pose, place.robot, SENSOR), self._see)

    def show(self, text: str) -> None:
        self.said.append(text)

    def ask(self, key: str, question: str) -> str:
        self.asked.append(key)
        if key == "frames.begin":
            self._start = self.place
        if key not in self.answers and key in ("frames.x", "frames.y", "frames.z"):
            return self.seen()
        if key == "reset.pose":
            return "e"
        answer = self.answers.get(key, "y" if key in YES or key.endswith(".good") else "")
        return answer if isinstance(answer, str) else answer()

    def pressed(self, key: str) -> bool:
        look = self.whenever.get(key)
        return look() if look else True

    @property
    def place(self) -> Vector:
        """Measured position of the tool."""
        assert self.sees(30.0)
        assert self._pose is not None
        return self._pose.position

    def sees(self, limit_s: float) -> bool:
        """Wait until the arm has measured its pose; return whether it has."""
        return self.remote.wait(lambda: self._pose is not None, limit_s)

    def seen(self) -> str:
        """Return in a word where the tool has moved since `frames.begin`."""
        way = subtract(self.place, self._start)
        axis = max(range(3), key=lambda each: abs(way[each]))
        return WORDS[axis][0 if way[axis] > 0 else 1]

    def guide(self, goal: Vector) -> str:
        """Move the tool to a place by hand; no other node may command the arm meanwhile."""
        self._hand = self._hand or self._node.publisher(self._target)
        deadline_s = time.monotonic() + 60.0
        assert self._pose is not None
        while math.dist(here := self.place, goal) > GUIDED_M:
            assert time.monotonic() < deadline_s, (here, goal)
            way = subtract(goal, here)
            share = min(1.0, PULL_M / math.hypot(*way))
            aim = add(here, (share * way[0], share * way[1], share * way[2]))
            stamp_ns = self._node.handle.get_clock().now().nanoseconds
            values = [*aim, *self._pose.quaternion]
            self._hand.publish(pose_message(values, self._frame, stamp_ns))
            time.sleep(0.01)  # a hand moves in real time
        return ""

    def hands_off(self) -> str:
        """Release the arm, so that only the guard commands it."""
        if self._hand is not None:
            hand, self._hand = self._hand, None
            self._node.soon(lambda: self._node.handle.destroy_publisher(hand))
        return ""

    def push_button(self) -> bool:
        """Stop the guard by its topic instead of a key; return False for the key."""
        self._button.publish(Bool(data=True))
        return False

    def steer(self, x: float, y: float, z: float) -> None:
        """Publish one reading of a joystick."""
        message = TwistStamped()
        message.header.stamp = self._node.handle.get_clock().now().to_msg()
        linear = message.twist.linear
        linear.x, linear.y, linear.z = x, y, z
        self._stick.publish(message)

    def leave(self) -> str:
        raise SessionLeft("the test is over")

    def _see(self, message: PoseStamped) -> None:
        self._pose = pose_of(message, self._frame)
