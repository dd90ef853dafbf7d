"""A simulated person at a rehearsal arm, who sees tool and ball, and drives by the twist topic.

The person is a ROS 2 node of its own. It sees the arm by its pose and the ball by an object
tracker, knows who drives from the actor's topic `control`, and labels by services, as a button of
any program would. Nothing of the product is replaced.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from geometry_msgs.msg import PoseStamped, TwistStamped

from serl.errors import SerlError
from serl.geometry import Vector, subtract
from serl.ros.node import RosNode
from serl.ros.people.control import control_topic
from serl.ros.people.teleop import twist_topic
from serl.ros.services import Remote
from serl.ros.topics import Topic, latest_only

ARM, BALL = "/sim/arm", "goal"
PERIOD_S = 1.0 / 30.0
REST: Vector = (0.0, 0.0, 0.0)

_SLOW_M, _FINE_M, _DEAD = 0.10, 0.002, 0.05  # it slows down; it lets go; the stick's dead zone
_THERE_M, _NEAR_M, _AWAY_M, _FAR_M = 0.006, 0.008, 0.020, 0.05
_STILL_M, _STILL_S, _LOOK_S = 0.002, 0.8, 0.4
_PATIENCE_S, _STAY_S, _LABEL_S = 8.0, 2.2, 0.2
_HELP_STEPS = 40


@dataclass
class Sight:
    """What a person sees: the way of the tool, the ball, and the state of the actor.

    Attributes:
        ball: position of the ball, m.
        status: values of the actor's topic `control`.
    """

    ball: Vector = REST
    status: dict[str, str] = field(default_factory=dict)
    _way: deque[tuple[float, Vector]] = field(default_factory=deque)

    def see_tool(self, place: Vector, now_s: float) -> None:
        """Note the position of the tool."""
        self._way.append((now_s, place))
        while self._way[0][0] < now_s - _STILL_S:
            self._way.popleft()

    @property
    def tool(self) -> Vector:
        """Newest position of the tool, m."""
        return self._way[-1][1]

    @property
    def driver(self) -> str:
        """The source of the actor's actions; empty between two episodes."""
        return self.status.get("driver", "")

    @property
    def has_both(self) -> bool:
        """Whether arm and ball were seen."""
        return bool(self._way) and self.ball != REST

    @property
    def away_m(self) -> float:
        """Distance between tool and ball."""
        return math.dist(self.tool, self.ball)

    def recent_m(self) -> list[float]:
        """Return the distances between tool and ball of the last moment."""
        since_s = self._way[-1][0] - _LOOK_S
        return [math.dist(place, self.ball) for at_s, place in self._way if at_s >= since_s]

    def is_still(self) -> bool:
        """Return whether the tool has been at rest for most of a second."""
        first_s, last_s = self._way[0][0], self._way[-1][0]
        moved = (math.dist(place, self.tool) for _, place in self._way)
        return last_s - first_s > 0.8 * _STILL_S and max(moved) < _STILL_M

    def towards(self, goal: Vector) -> Vector:
        """Return the twist towards a position, as shares of the largest action."""
        x, y, z = (way / _SLOW_M for way in subtract(goal, self.tool))
        most = max(1.0, abs(x), abs(y), abs(z))
        return _pushed(x / most), _pushed(y / most), _pushed(z / most)


def _pushed(share: float) -> float:
    """Return the deflection that gives a share of the largest action, despite the dead zone."""
    if abs(share) * _SLOW_M < _FINE_M:
        return 0.0
    return math.copysign(_DEAD + (1.0 - _DEAD) * abs(share), share)


class Habit(Protocol):
    """What a person does; called 30 times a second, returns the twist and a service to call."""

    def __call__(self, sight: Sight, now_s: float) -> tuple[Vector, str]: ...


def steers_and_rests(sight: Sight, now_s: float) -> tuple[Vector, str]:
    """Push the tool up for two of each four seconds, as for the takeover of `serl setup`."""
    return ((0.0, 0.0, 1.0) if 1.0 < now_s % 4.0 < 3.0 else REST), ""


class _Driving:
    """A habit of a person who drives once the arm has returned to a start."""

    def __init__(self) -> None:
        self._idle_s, self._began_s = -math.inf, 0.0
        self._returns = False

    def is_ready(self, sight: Sight, now_s: float) -> bool:
        """Return whether the reset before an episode is over; called while the hands rest."""
        if self._idle_s == -math.inf:
            self._idle_s = now_s
        idle_s = now_s - self._idle_s
        self._returns |= idle_s > 1.0 and sight.driver == "script"
        over = (self._returns or idle_s > 30.0) and sight.driver == ""
        if not (over and sight.is_still() and sight.away_m > _FAR_M):
            return False
        self._began_s = now_s
        return True

    def rest(self) -> None:
        """Let go."""
        self._idle_s, self._returns = -math.inf, False


class Demonstrates(_Driving):
    """Drive to the ball, and label the success."""

    def __init__(self) -> None:
        super().__init__()
        self._drives = False

    def __call__(self, sight: Sight, now_s: float) -> tuple[Vector, str]:
        """Return the twist, and the label at the ball."""
        if not self._drives:
            self._drives = self.is_ready(sight, now_s)
            return REST, ""
        is_there = sight.away_m < _THERE_M
        if is_there or now_s - self._began_s > _PATIENCE_S:
            self._drives = False
            self.rest()
            return REST, "success" if is_there else ""
        return sight.towards(sight.ball), ""


class Collects(_Driving):
    """Drive to the ball and to a place beside it, label the steps there, and begin again.

    Args:
        box: corners of the box of the task.
        rng: draws the places.
    """

    def __init__(self, box: tuple[Vector, Vector], rng: np.random.Generator) -> None:
        super().__init__()
        self._box, self._rng = box, rng
        self._goals: deque[Vector] = deque()
        self._arrived_s, self._labelled_s = math.inf, 0.0

    def __call__(self, sight: Sight, now_s: float) -> tuple[Vector, str]:
        """Return the twist, and a label where the tool stays at the ball, or away from it."""
        if not self._goals:
            if self.is_ready(sight, now_s):
                self._goals += self._places(sight.ball)
            return REST, ""
        if math.dist(sight.tool, self._goals[0]) < _THERE_M:
            self._arrived_s = min(self._arrived_s, now_s)
        if now_s > min(self._arrived_s + _STAY_S, self._began_s + _PATIENCE_S):
            self._goals.popleft()
            self._began_s, self._arrived_s = now_s, math.inf
        if not self._goals:
            self.rest()
            return REST, "reset"
        return sight.towards(self._goals[0]), self._label(sight.recent_m(), now_s)

    def _label(self, recent_m: list[float], now_s: float) -> str:
        """Return the label of the step; empty where it is unclear, or was labelled just now."""
        at_ball, aside = max(recent_m) < _NEAR_M, min(recent_m) > _AWAY_M
        if now_s - self._labelled_s < _LABEL_S or not (at_ball or aside):
            return ""
        self._labelled_s = now_s
        return "positive" if at_ball else "negative"

    def _places(self, ball: Vector) -> list[Vector]:
        """Return two goals: about the ball, and aside of it."""
        low, high = self._box
        found: list[Vector] = []
        for reach_m in (0.003, float(self._rng.uniform(0.03, 0.12))):
            way = self._rng.normal(size=3)
            way *= reach_m / np.linalg.norm(way)
            x, y, z = np.clip(np.add(ball, way), low, high).tolist()
            found.append((x, y, z))
        return found


class Helps:
    """Take over in an episode of the policy that lasts long, and drive to the ball."""

    def __call__(self, sight: Sight, now_s: float) -> tuple[Vector, str]:
        """Return the twist; at rest while the policy is to try alone."""
        drives = sight.driver in ("policy", "human")
        late = drives and int(sight.status.get("step", "-1")) >= _HELP_STEPS
        return (sight.towards(sight.ball) if late else REST), ""


class PersonAtArm:
    """A simulated person beside the arm.

    Args:
        node: the person's own node.

    Attributes:
        sight: what the person sees.
    """

    def __init__(self, node: RosNode) -> None:
        self.sight = Sight()
        self._node, self._remote = node, Remote(node, lambda: None)
        self._habit: Habit | None = None
        self._prefix, self._calls = "", deque[str](maxlen=4)
        self._hand: Any = None
        pose = Topic(f"{ARM}/current_pose", PoseStamped, latest_only())
        node.subscribe(pose, self._see_tool)
        node.subscribe(pose._replace(name=f"{ARM}/{BALL}_pose"), self._see_ball)
        node.every(PERIOD_S, self._act)

    @property
    def is_leaving(self) -> bool:
        """Whether the process was asked to end."""
        return self._node.stopping

    def begin(self, prefix: str, habit: Habit) -> None:
        """Begin to act at the topics and services below a prefix, as of an actor."""
        self._habit = None
        cell, _, actor = prefix.rpartition("/")
        twist, control = twist_topic(actor), control_topic(actor)
        self._hand = self._node.publisher(twist._replace(name=f"{cell}/{twist.name}"))
        self.sight.status = {}
        self._node.subscribe(control._replace(name=f"{cell}/{control.name}"), self._see_control)
        self._prefix, self._habit = prefix, habit

    def leave(self) -> None:
        """Stop acting."""
        self._habit = None
        self._calls.clear()

    def press(self) -> None:
        """Call the next service that the person wants to call; a refusal changes nothing."""
        if self._calls:
            with suppress(SerlError):
                self._remote.trigger(f"{self._prefix}/{self._calls.popleft()}", 2.0)

    def place_ball(self, is_good: Callable[[Vector], bool]) -> None:
        """Put the ball elsewhere, until its place is good."""
        while not is_good(self.sight.ball):
            self._remote.trigger(f"{ARM}/arm/restore")
            self._remote.wait(lambda: False, _STILL_S)

    def wait_for_sight(self) -> bool:
        """Wait until arm and ball are seen; return whether they are."""
        return self._remote.wait(lambda: self.sight.has_both, 60.0)

    def _act(self) -> None:
        if self._habit is None or self._hand is None or not self.sight.has_both:
            return
        (x, y, z), call = self._habit(self.sight, time.monotonic())
        message = TwistStamped()
        message.header.stamp = self._node.handle.get_clock().now().to_msg()
        message.twist.linear.x, message.twist.linear.y, message.twist.linear.z = x, y, z
        self._hand.publish(message)
        if call:
            self._calls.append(call)

    def _see_tool(self, message: Any) -> None:
        place = message.pose.position
        self.sight.see_tool((place.x, place.y, place.z), time.monotonic())

    def _see_ball(self, message: Any) -> None:
        place = message.pose.position
        self.sight.ball = place.x, place.y, place.z

    def _see_control(self, message: Any) -> None:
        self.sight.status = {pair.key: pair.value for pair in message.values}
