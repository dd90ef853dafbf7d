"""The simulated arm reached through its node: a `RosArm` with resets and ground truth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np

from serl.arm_profile import ArmProfile
from serl.errors import SerlError
from serl.motion import pose_from
from serl.ros.arm.robot import RosArm
from serl.ros.arm.sim_driver import PERIOD, SEED
from serl.ros.arm.topics import EXACT, SENSOR, truth
from serl.ros.conversions import truth_of
from serl.ros.feed import Feed
from serl.ros.node import RosNode
from serl.system.json_fields import check_fields, parse_object
from serl.task import TaskConfig
from serl.types import Array, Observation

_FIELDS = {"stamp_ns": int, "time_s": float, "target": list, "closed": bool}
_TRUTH_AGE_S = 0.5
_ANSWER_S = 5.0
_ATTEMPTS = 3
_FOUND_S = 30.0


class MessageCounter:
    """Counter of the messages that several publishers send and the simulation takes.

    Attributes:
        taken: messages that the simulation had taken at the last count; None before the first.
        pending: messages sent since that count.
    """

    def __init__(self) -> None:
        self.taken: int | None = None
        self.pending = 0

    def publisher(self, publisher: Any) -> _CountedPublisher:
        """Return the publisher with its messages counted."""
        return _CountedPublisher(publisher, self)

    def add(self) -> None:
        """Count a sent message; messages sent before the first count are ignored."""
        self.pending += self.taken is not None


class _CountedPublisher:
    def __init__(self, publisher: Any, sent: MessageCounter) -> None:
        self._publisher, self._sent = publisher, sent

    def publish(self, message: Any) -> None:
        self._publisher.publish(message)
        self._sent.add()

    def has_subscriber(self) -> bool:
        return bool(self._publisher.get_subscription_count())


class SimulatedRosArm(RosArm):
    """A `serl.robot.SimulatedRobot` behind `serl.ros.nodes.sim`.

    In real time `advance` is refused: time passes by itself. Arguments are those of `RosArm`.
    """

    still_pictures = True  # a simulated camera has no noise: a static scene gives equal pictures

    def __init__(
        self,
        node: RosNode,
        robot: str,
        profile: ArmProfile,
        config: TaskConfig,
        tracked: Sequence[str] = (),
        lease: str = "actor",
        lockstep: bool = False,
        guarded: bool = False,
    ) -> None:
        super().__init__(node, robot, profile, config, tracked, lease, lockstep, guarded)
        self._arm = f"{self.robot}/arm"
        qos, oldest_s = (EXACT, None) if lockstep else (SENSOR, _TRUTH_AGE_S)
        self._truth: Feed[dict[str, Array]] = Feed(
            self.node, truth(self.robot, qos), truth_of, oldest_s, stamped=False
        )
        self._advance_s = 0.0  # the node's parameter, once set
        self._sent = MessageCounter() if lockstep else None
        if self._sent is not None:
            publishers = (self._target, self._grip, self._beat)
            self._target, self._grip, self._beat = map(self._sent.publisher, publishers)

    def __enter__(self) -> Self:
        """Reset in lock-step, where the node publishes only after a reset; not in real time."""
        if self._sent is not None:
            self.reset(0)
        return self

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        self._settle()

    def reset(self, seed: int) -> Observation:
        """Place arm and scene at rest, in the start that the task draws from `seed`.

        The guard releases the arm before the reset and takes it again afterwards, as the arm's
        pose jumps.

        Raises:
            SerlError: the node does not answer, its messages do not arrive, or the guard refuses.
        """
        if self.guard is not None:
            self.remote.wait(self._is_guarded, _FOUND_S)
            self.guard.release()
        self._settle()
        self._count()
        self.remote.set_parameters(self._arm, {SEED: seed})
        for _ in range(_ATTEMPTS):  # messages are lost until discovery is complete
            answer = self._call("reset")
            if self._arrived(answer, _ANSWER_S):
                break
        else:
            why = f": {self.node.timeless}" if self.node.timeless else ""
            raise SerlError(f"{self.robot}: reset, but its messages do not arrive{why}")
        for feed in self.feeds:
            feed.forget(answer["stamp_ns"])
        self.begin(pose_from(answer["target"]), answer["closed"])
        self.stop_reason = None
        if self.guard is not None:
            self.guard.take()
        return self.observe_when_fresh(_ANSWER_S)

    def advance(self, dt_s: float) -> None:
        """Advance simulated time by `dt_s`; in lock-step only."""
        self._settle()
        if dt_s != self._advance_s:
            self.remote.set_parameters(self._arm, {PERIOD: dt_s})
            self._advance_s = dt_s
        if not self._arrived(self._call("advance"), _ANSWER_S):
            raise SerlError(f"{self.robot}: advanced, but its messages do not arrive")

    def truth(self) -> dict[str, Array]:
        """Return the privileged state, and the target computed here from the actions."""
        target = np.array([*self.aim.target.position, *self.aim.target.quaternion], np.float32)
        return {**self._truth.newest().value, "target_pose": target}

    def _is_guarded(self) -> bool:
        return self.guard is not None and self.guard.feed.is_fresh

    def _settle(self) -> None:
        """Block, in lock-step, until the node has taken all messages sent to it.

        Services and topics overtake each other, and DDS acknowledges at an unspecified time.
        """
        sent = self._sent
        if sent is None or sent.taken is None or not sent.pending:
            return
        taken = sent.taken + sent.pending
        if not self.remote.wait(lambda: self._taken() == taken, _ANSWER_S):
            raise SerlError(f"{self.robot}: the simulation does not take commands")
        sent.taken, sent.pending = taken, 0

    def _count(self) -> None:
        """Begin, in lock-step, to count messages taken by the node, from its present count on."""
        if self._sent is None:
            return
        publishers = (self._target, self._grip, self._beat)
        if not self.remote.wait(lambda: all(p.has_subscriber() for p in publishers), _FOUND_S):
            raise SerlError(f"{self.robot}: no simulation takes commands")
        self._sent.taken = self._taken()

    def _taken(self) -> int:
        return int(self.remote.trigger(f"{self._arm}/taken"))

    def _call(self, name: str) -> dict[str, Any]:
        text = self.remote.trigger(f"{self._arm}/{name}")
        answer = parse_object(text.encode(), name)
        check_fields(answer, _FIELDS, name)
        return answer

    def _arrived(self, answer: Mapping[str, Any], limit_s: float) -> bool:
        """Return whether all messages of the answer's instant arrived within `limit_s`."""
        answered_s = np.float32(answer["time_s"])

        def here() -> bool:
            if any(feed.stamp_ns < answer["stamp_ns"] for feed in (*self.feeds, self._truth)):
                return False
            return not self._lockstep or self._truth.newest().value["time_s"][0] == answered_s

        return self.remote.wait(here, limit_s)
