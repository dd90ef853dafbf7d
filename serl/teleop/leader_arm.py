"""Leader arms: the robot's tool follows the motion of the leader's tool, step by step.

A leader that stands for the same place in the workspace as the robot may take over only near the
robot's own pose, and the robot then reaches the leader's pose in its first steps. Otherwise the
robot repeats the leader's motion from where it is.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from serl.geometry import (
    Quaternion,
    Vector,
    conjugate,
    from_rotation_vector,
    multiply,
    normalize,
    rotate,
    rotation_between,
    to_rotation_vector,
)
from serl.teleop.device import DeviceReport
from serl.teleop.mapping import MappingConfig

logger = logging.getLogger(__name__)

_AXES = ("x", "y", "z", "roll", "pitch", "yaw")
_MOTION = 0.1
_SWITCH = 0.5  # share of the opening beyond which the gripper is commanded
_FAR = 1e4  # m: no arm is there
_SILENCE_S = 0.5  # time without a pose after which the next one is a new reference
_REST_S = 0.5  # rest after which the next motion is a new takeover
_PATH_S = 1.0  # longest lag of a leader whose motors follow the robot

MAPPING = MappingConfig(
    axes={name: (name, 1.0) for name in (*_AXES, "gripper")},
    dead_zone=0.0,
    threshold=_MOTION,
)
"""Moving the arm, or its gripper, takes over; motion below a tenth of a step is rest."""

Pose = tuple[Vector, Quaternion]


class LeaderArm:
    """A `Device` that receives leader poses; motion beyond one step carries over to the next.

    After a silence the next pose is a new reference, so that an arm that was moved or exchanged
    meanwhile causes no jump.

    Args:
        translation_m: translation that is an action of 1.
        rotation_rad: rotation that is an action of 1.
        now_s: monotonic clock in seconds.
        limits: largest distance (m) and angle (rad) to `robot_pose` at which the leader may take
            over, and from where the robot goes to the leader's pose; None to repeat motion alone.
        in_tool_frame: report motion along the axes of the robot's tool instead of its base.
        follows: the motors of the leader move it after the robot. Only a motion by a step away from
            the robot's path of the last second then takes over.

    Attributes:
        robot_pose: pose of the robot's tool in its base frame; None while it is not known.
    """

    name = "the leader arm"

    def __init__(
        self,
        translation_m: float,
        rotation_rad: float,
        now_s: Callable[[], float] = time.monotonic,
        limits: tuple[float, float] | None = None,
        in_tool_frame: bool = False,
        follows: bool = False,
    ) -> None:
        self._limits, self._in_tool_frame, self._follows = limits, in_tool_frame, follows
        self._path: deque[tuple[float, Pose]] = deque(maxlen=256)  # of the robot, with times
        self.robot_pose: Pose | None = None
        self._active_s = self._refused_s = float("-inf")
        self._gripper: float | None = None
        self._translation_m, self._rotation_rad = translation_m, rotation_rad
        self._now_s = now_s
        self._lock = threading.Lock()  # poses arrive in another thread
        self._newest: Pose | None = None
        self._commanded: Pose | None = None
        self._received_s = float("-inf")

    @property
    def silence_s(self) -> float:
        """Seconds since the last pose; infinite before the first."""
        return self._now_s() - self._received_s

    @property
    def is_active(self) -> bool:
        """Whether the leader has moved the robot in the last half second."""
        return self._now_s() - self._active_s <= _REST_S

    def receive(
        self, position: Vector, quaternion: Quaternion, gripper: float | None = None
    ) -> None:
        """Receive a pose in a frame oriented like the robot's base; invalid poses are ignored.

        Args:
            position: position (m) of the leader's tool.
            quaternion: its orientation, xyzw.
            gripper: opening of its gripper, from -1 (closed) to 1 (open); None without one.
        """
        numbers = (*position, *quaternion, gripper or 0.0)
        if (
            not all(abs(number) < _FAR for number in numbers)
            or abs(math.hypot(*quaternion) - 1.0) > 0.01
        ):
            return
        with self._lock:
            now_s = self._now_s()
            self._newest = (position, normalize(quaternion))
            if self._commanded is None or now_s - self._received_s > _SILENCE_S:
                self._commanded, self._gripper = self._newest, gripper
            self._received_s = now_s
            sides = [0 if value is None else _side(value) for value in (gripper, self._gripper)]
            if sides[0] and self._gripper is not None and sides[0] != sides[1] and self._may_act():
                self._note_motion()
            if gripper is None or sides[0] or self._gripper is None:
                self._gripper = gripper

    def read(self) -> DeviceReport | None:
        """Return the motion not yet commanded, in steps, and count it as commanded."""
        with self._lock:
            if self._newest is None or self._commanded is None:
                return None
            motion = self._motion(self._newest, self._commanded)
            if self.robot_pose is not None:
                self._path.append((self._now_s(), self.robot_pose))
            if max(map(abs, motion)) >= _MOTION:
                if self._is_following() or not self._may_act():
                    self._commanded, motion = self._newest, (0.0,) * len(_AXES)
                else:
                    self._note_motion()
                    motion = self._motion(self._newest, self._commanded)
            turned = self._to_action_axes(motion)
            largest = max(1.0, *map(abs, turned))  # a step along one axis may be one along two
            self._commanded = self._after(self._commanded, [value / largest for value in motion])
            axes = {name: value / largest for name, value in zip(_AXES, turned, strict=True)}
            if self._gripper is not None:
                axes["gripper"] = self._gripper if self.is_active else 0.0
            return DeviceReport(axes, frozenset(), (), self._received_s)

    def close(self) -> None:
        """Do nothing: there is no resource to release."""

    def _note_motion(self) -> None:
        """Note that the leader moves; a takeover with limits starts from the robot's pose."""
        if self._limits and not self.is_active and self.robot_pose:
            self._commanded = self.robot_pose
        self._active_s = self._now_s()

    def _is_following(self) -> bool:
        """Return whether the leader's motors may have brought it where it is: near the path."""
        if not self._follows or self.is_active or self._newest is None:
            return False
        since_s = self._now_s() - _PATH_S
        return any(
            then_s >= since_s and max(map(abs, self._motion(self._newest, pose))) < 1.0
            for then_s, pose in self._path
        )

    def _may_act(self) -> bool:
        """Return whether the leader drives or may take over; log a refusal every five seconds."""
        if self.is_active or not (reason := self._objection()):
            return True
        if self._now_s() - self._refused_s > 5.0:
            self._refused_s = self._now_s()
            logger.warning("%s cannot take over: %s", self.name, reason)
        return False

    def _objection(self) -> str:
        """Return why the leader may not take over; empty if it may."""
        if self._limits is None and not self._in_tool_frame:
            return ""
        newest, robot = self._newest, self.robot_pose
        if newest is None or robot is None:
            return "the pose of the robot is not known"
        distance_m = math.dist(newest[0], robot[0])
        angle_rad = math.hypot(*rotation_between(robot[1], newest[1]))
        if self._limits is None or (distance_m <= self._limits[0] and angle_rad <= self._limits[1]):
            return ""
        return (
            f"it is {distance_m:.3f} m and {angle_rad:.2f} rad from the robot's tool, "
            f"expected {self._limits[0]:g} m and {self._limits[1]:g} rad at most"
        )

    def _motion(self, newest: Pose, reached: Pose) -> tuple[float, ...]:
        """Return the next step from one pose to another, in [-1, 1] along `_AXES`."""
        way = tuple(
            min(1.0, max(-1.0, (now - before) / self._translation_m))
            for now, before in zip(newest[0], reached[0], strict=True)
        )
        turn = to_rotation_vector(multiply(newest[1], conjugate(reached[1])))
        largest = max(1.0, *(abs(angle) / self._rotation_rad for angle in turn))
        return (*way, *(angle / self._rotation_rad / largest for angle in turn))

    def _to_action_axes(self, motion: tuple[float, ...]) -> tuple[float, ...]:
        """Return a step along the axes of the actions."""
        if not self._in_tool_frame or self.robot_pose is None:
            return motion
        tool_q_base = conjugate(self.robot_pose[1])
        way, turn = (rotate(tool_q_base, (x, y, z)) for x, y, z in (motion[:3], motion[3:]))
        return (*way, *turn)

    def _after(self, before: Pose, motion: Sequence[float]) -> Pose:
        """Return the pose after a step."""
        (x, y, z), quaternion = before
        way = [share * self._translation_m for share in motion[:3]]
        roll, pitch, yaw = (share * self._rotation_rad for share in motion[3:])
        turned = normalize(multiply(from_rotation_vector((roll, pitch, yaw)), quaternion))
        return (x + way[0], y + way[1], z + way[2]), turned


def _side(gripper: float) -> int:
    """Return 1 for an open gripper, -1 for a closed one, 0 in between."""
    return (gripper > _SWITCH) - (gripper < -_SWITCH)
