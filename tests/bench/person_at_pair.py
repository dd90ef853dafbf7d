"""A simulated person at two rehearsal arms, who drives both with the devices of `serl teleop`.

The person is a ROS 2 node of its own. It sees the arms and the tracked bodies by their topics, as
an actor does, and moves both arms at once. It reacts a few tenths of a second late, and so moves
slowly near its goals. Nothing of the product is replaced.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import numpy as np

from serl.arm_pair import SIDES, ArmPair, Mount, mount_of
from serl.arm_profile import load_robot
from serl.bimanual import LEFT, RIGHT
from serl.errors import SerlError
from serl.motion import Motion, pose_from
from serl.robot import Truth
from serl.ros.arm.measurements import Measurements, numbers_of
from serl.ros.arm.topics import SENSOR, topic_of
from serl.ros.conversions import pose_of
from serl.ros.node import RosNode
from serl.ros.people.control import control_topic
from serl.ros.people.teleop import RemoteHand, device_topics
from serl.ros.services import Remote
from serl.task import SimulatedTask
from serl.tasks import handover
from serl.teleop.mapping import AXES, Wish
from serl.teleop.scripted import ScriptedHuman, ScriptedHumanConfig
from serl.types import Action, Array, Observation

HEARTBEAT_S, STEP_S = 1.0 / 30.0, 0.1
HELP = ScriptedHumanConfig(
    patience_steps=25, gain=0.5, max_hold_steps=60, bucket_steps=150, noise=0.1
)
SLOWER = 2.0  # from this many largest actions away from a goal, the person slows down
REST = (Wish((0.0,) * len(AXES), False, ()),) * 2
_STILL_S, _PLACED_S, _PATIENCE_S, _NO_RESET_S = 1.0, 1.5, 25.0, 25.0
_VECTORS = ("tcp_twist", "wrench")


def patient(motion: Motion) -> Motion:
    """Return a motion with larger actions: an expert that uses it slows down near its goals."""
    larger = {name: SLOWER * getattr(motion, name) for name in ("translation_m", "rotation_rad")}
    return motion.model_copy(update=larger)


def held(state: Mapping[str, Array]) -> dict[str, Array]:
    """Return which hands hold the bar of `handover`, as far as a person sees it."""
    holds = {side: np.array([handover._holds(state, side)], np.float32) for side in (LEFT, RIGHT)}
    return {f"{side}bar_{kind}": holds[side] for side in holds for kind in ("grasped", "touched")}


class PairView:
    """A `serl.intervention.SimulationView` of two arms and the bodies beside them, by topics.

    Args:
        node: the person's own node.
        task: the task, which names the tracked bodies.
        pair: the arms.
    """

    def __init__(self, node: RosNode, task: SimulatedTask, pair: ArmPair) -> None:
        self._bodies = {f"{name}_pose" for name in task.scene.tracked}
        self._arms: dict[str, tuple[Measurements, Mount]] = {}
        self._targets: dict[str, list[float]] = {}
        for side, prefix in SIDES.items():
            arm = getattr(pair, side)
            profile, namespace = load_robot(arm.profile), arm.namespace
            tracked = task.scene.tracked if prefix == LEFT else ()
            seen = Measurements(node, namespace, profile, task.config, tracked)
            self._arms[prefix] = seen, mount_of(side, arm, task.scene.bases[prefix])
            topic = topic_of(profile.target, namespace, SENSOR)
            node.subscribe(topic, self._target_into(prefix, profile.base_frame))

    def observe(self) -> Observation:
        """Return the newest reading of both arms; raise `Silent` if one is missing or stale."""
        state: dict[str, Array] = {}
        for prefix, (seen, mount) in self._arms.items():
            numbers, _, _ = seen.read()
            numbers["target_pose"] = self._targets.get(prefix, numbers["tcp_pose"])
            for name, values in numbers.items():
                full = name if name in self._bodies else f"{prefix}{name}"
                state[full] = np.array(_common(mount, name, values), np.float32)
        return Observation(state)

    def truth(self) -> Truth:
        """Return what the person takes for the state of the scene."""
        state = self.observe().state
        return {**state, **held(state)}

    def _target_into(self, prefix: str, frame: str) -> Callable[[Any], None]:
        def take(message: Any) -> None:
            self._targets[prefix] = numbers_of(pose_of(message, frame))

        return take


def _common(mount: Mount, name: str, values: list[float]) -> list[float]:
    """Return a value of an arm's own frame in the common frame."""
    if name.endswith("_pose"):
        return numbers_of(mount.common_pose(pose_from(values)))
    if name in _VECTORS:
        a, b, c, d, e, f = values
        return [*mount.to_common((a, b, c)), *mount.to_common((d, e, f))]
    return values


Habit = Callable[[], "Action | None"]
"""Returns the actions of both arms, or None with hands off; called at the control rate."""


class PersonAtPair:
    """A simulated person at two arms.

    Args:
        node: the person's own node.
        task: the task whose expert the person is, with `patient` motions.
        pair: the arms.
        seed: seed of the person's errors.

    Attributes:
        status: values of the actor's topic `control`.
    """

    def __init__(self, node: RosNode, task: SimulatedTask, pair: ArmPair, seed: int) -> None:
        self.status: dict[str, str] = {}
        self._node, self._task, self._seed = node, task, seed
        self._view, self._remote = PairView(node, task, pair), Remote(node, lambda: None)
        self._service = f"{pair.left.namespace}/arm/restore"
        self._hands: list[RemoteHand] = []
        self._habit: Habit | None = None
        self._wishes, self._restores = REST, False
        node.begin_real_time(0.008)
        node.every(HEARTBEAT_S, self._send)
        node.every(STEP_S, self._act)

    @property
    def is_leaving(self) -> bool:
        """Whether the process was asked to end."""
        return self._node.stopping

    def begin(self, prefix: str, habit: Habit) -> None:
        """Begin to act at the devices of an actor, given the prefix of its topics."""
        cell, _, actor = prefix.rpartition("/")
        control = control_topic(actor)
        self.status, self._wishes = {}, REST
        self._node.subscribe(control._replace(name=f"{cell}/{control.name}"), self._see_control)
        topics = (topic._replace(name=f"{cell}/{topic.name}") for topic in device_topics(actor, 2))
        self._hands = [RemoteHand(self._node, topic) for topic in topics]
        self._habit = habit

    def leave(self) -> None:
        """Stop acting."""
        self._habit = None

    def press(self) -> None:
        """Put the objects back, if a habit asks for it."""
        if self._restores:
            self.restore()
            self._restores = False

    def restore(self) -> None:
        """Put the objects at a new start."""
        self._remote.trigger(self._service, 5.0)

    def helps(self, planned_steps: int) -> Habit:
        """Return the habit that corrects a policy as in a training in a simulation."""
        human = ScriptedHuman(HELP, self._task, self._view, planned_steps, self._seed)
        episode = ""

        def help_out() -> Action | None:
            nonlocal episode
            if self.status.get("driver") not in ("policy", "human"):
                episode = ""
                return None
            if episode != self.status["episode"]:
                episode = self.status["episode"]
                human.begin()
            return human()

        return help_out

    def demonstrates(self) -> Habit:
        """Return the habit that puts the objects back after each reset, and performs the task."""
        begins_s, since_s, has_seen_reset = math.inf, time.monotonic(), False

        def demonstrate() -> Action | None:
            nonlocal begins_s, since_s, has_seen_reset
            now_s, driver = time.monotonic(), self.status.get("driver", "")
            if begins_s == math.inf:
                has_seen_reset |= driver == "script"
                since_s = now_s if driver else since_s
                waits_s = now_s - since_s
                if waits_s > (_STILL_S if has_seen_reset else _NO_RESET_S):
                    self._restores, begins_s = True, now_s + _PLACED_S
                return None
            driven_s = now_s - begins_s
            if driven_s < 0.0:
                return None
            if driven_s > _PATIENCE_S or (driven_s > 1.0 and driver != "human"):
                begins_s, since_s, has_seen_reset = math.inf, now_s, driver == "script"
                return None
            return self._expert(self._task.observation(self._view.observe()))

        self._seed += 1
        self._expert = self._task.expert(self._view.truth, self._seed)
        return demonstrate

    def _see_control(self, message: Any) -> None:
        self.status = {pair.key: pair.value for pair in message.values}

    def _act(self) -> None:
        if self._habit is None:
            return
        with suppress(SerlError):  # a late message: the hands go on as they are
            action = self._habit()
            self._wishes = REST if action is None else self._wishes_of(action)

    def _wishes_of(self, action: Action) -> tuple[Wish, Wish]:
        config = self._task.config
        motions = (config.motion, config.right_motion)  # type: ignore[attr-defined]
        left, right = (
            dict(zip([*motion.axes, "gripper"], part.tolist(), strict=True))
            for motion, part in zip(motions, np.split(action, 2), strict=True)
        )
        return _wish(left), _wish(right)

    def _send(self) -> None:
        if self._habit is not None:
            for hand, wish in zip(self._hands, self._wishes, strict=True):
                hand.send(wish)


def _wish(motion: Mapping[str, float]) -> Wish:
    return Wish(tuple(motion.get(axis, 0.0) for axis in AXES), True, ())
