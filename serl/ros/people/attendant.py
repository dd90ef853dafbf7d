"""The person at the terminal beside arms: asked for what nothing but a person may do."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from serl.arm_profile import is_simulated_arm
from serl.errors import SerlError
from serl.guard.config import LATCHED, GuardState
from serl.guard.latch import GuardedArm
from serl.ros.arm.guard_client import GuardClient
from serl.ros.node import RosNode
from serl.ros.people.control import control_topic
from serl.ros.services import Remote
from serl.runs.folder import RunFolder
from serl.system.signed_order import key_path
from serl.teleop.stop import STOP_FILE

logger = logging.getLogger(__name__)

_LIMIT_S, _MOMENT_S = 5.0, 1.0
_UNHEARD_S = 10.0
_SEEN = "noted; next: end the guard's stop"


class Attendant:
    """Ends stops, arms guards and lets actors go on, when a person says so.

    Args:
        run: folder of the run.
        arms: the arm of each actor.
    """

    def __init__(self, run: RunFolder, arms: Mapping[str, GuardedArm]) -> None:
        self._run, self._guarded = run, arms
        self._unheard_s, self._question = _UNHEARD_S, ""
        self._arms: list[SupervisedArm]
        self._asked: SupervisedArm
        self._join()

    def __enter__(self) -> Self:
        self._node.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._node.__exit__(kind, error, trace)

    @property
    def asked_to_end(self) -> bool:
        """Ctrl-C, which the node of a process takes."""
        return self._node.stopping and not self._node.deaf

    def question(self) -> str:
        """What a person has to say before an arm moves; empty when nothing is asked.

        Of one arm after the other: it is asked about the same one until that is answered, and only
        where an answer helps.
        """
        self._rejoin_if_deaf()
        if not self._question or self._asked.question() != self._question:
            able = [arm for arm in self._arms if arm.question() and not arm.hindrance()]
            self._asked = able[0] if able else self._asked
            self._question = self._asked.question() if able else ""
        return self._named(self._asked, self._question)

    def means(self) -> str:
        """How else than here the question is answered."""
        return self._asked.means()

    def waiting(self, heard: bool) -> dict[str, str]:
        """What each actor waits for a person to do, by its name; without those that do not wait.

        Args:
            heard: somebody at this terminal can answer the question.
        """
        asked = self._asked if heard and self._question else None
        return {arm.actor: arm.waits(arm is asked) for arm in self._arms if arm.question()}

    def hindrance(self) -> str:
        """What keeps a guard stopped that no answer would settle; empty when nothing does."""
        for arm in self._arms:
            if arm.question() and (hindrance := arm.hindrance()):
                return self._named(arm, f"the guard waits: {hindrance}")
        return ""

    def answer(self) -> str:
        """The person said yes to the question; what came of it.

        Raises:
            SerlError: it is refused; until an answer helps nothing is asked of that arm.
        """
        arm, question, self._question = self._asked, self._question, ""
        self._remote.wait(lambda: not arm.hindrance(), _MOMENT_S)  # an arm is silent now and then
        said = arm.answer(question)
        self._remote.wait(lambda: arm.question() != question, _MOMENT_S)
        return said

    def _join(self) -> None:
        self._node = RosNode("attendant", self._run.path, local=True)
        self._remote = Remote(self._node, lambda: None)
        self._arms = [
            SupervisedArm(self._node, self._remote, self._run, *each)
            for each in self._guarded.items()
        ]
        self._asked, self._question = self._arms[0], ""
        self._heard_s = time.monotonic()

    def _rejoin_if_deaf(self) -> None:
        """Join anew when no guard was heard for long: two nodes may have missed each other.

        Fast DDS can leave two participants that never match, however long both are there. The
        pauses between attempts double, as there may be no guard yet.
        """
        if any(arm.is_heard for arm in self._arms):
            self._heard_s, self._unheard_s = time.monotonic(), _UNHEARD_S
        if time.monotonic() - self._heard_s < self._unheard_s and not self._node.deaf:
            return
        logger.info("no guard is heard: joining the ROS domain again")
        with suppress(SerlError):
            self._node.__exit__(None, None, None)
        self._join()
        self._node.__enter__()
        self._unheard_s *= 2.0

    def _named(self, arm: SupervisedArm, text: str) -> str:
        return f"{arm.actor}: {text}" if text and len(self._arms) > 1 else text


class _Asked(NamedTuple):
    """What a person is asked about an arm.

    Attributes:
        why: the arm does not move; empty for no question.
        does: what a yes does.
        service: whose call is the answer; of the arm's guard, or of the actor.
        is_first: of the two answers to an emergency stop.
    """

    why: str = ""
    does: str = ""
    service: str = ""
    is_first: bool = False

    @property
    def text(self) -> str:
        """Of the question; empty for none."""
        return f"{self.why}: Enter {self.does}" if self.why else ""

    @property
    def guard_word(self) -> str:
        """What the guard is told by a yes: ack, reset or arm; empty when it asks nothing."""
        place, _, word = self.service.rpartition("/")
        return word if place.endswith("/guard") else ""


class SupervisedArm:
    """One arm, its guard and the actor that drives it.

    Args:
        node: of the process.
        remote: calls services.
        run: of the actor. Nobody can be hurt by a simulated arm, so its actor itself arms its
            guard and acknowledges its protective stops: neither is asked.
        actor: its name.
        arm: where its guard is.
    """

    def __init__(
        self, node: RosNode, remote: Remote, run: RunFolder, actor: str, arm: GuardedArm
    ) -> None:
        self.actor, self._arm = actor, arm.namespace.rstrip("/")
        self._simulated = is_simulated_arm(run.config.robot)
        self._guard_key = key_path(arm.latch)
        self._actor_key = key_path(run.link(actor) / STOP_FILE)
        self._stopped = self._paused = ""  # of the actor
        self._node, self._remote = node, remote
        self._seen = False  # an emergency stop was acknowledged here
        self._guard = GuardClient(node, self._arm, remote)
        node.subscribe(control_topic(actor), self._hear)

    @property
    def is_heard(self) -> bool:
        """Whether the arm's guard says what it does."""
        return self._guard.standing is not None

    def question(self) -> str:
        """What it waits for; empty for nothing."""
        return self._asked().text

    def guard_word(self) -> str:
        """What a yes tells the guard: ack, reset or arm; empty when it asks nothing."""
        return self._asked().guard_word

    def means(self) -> str:
        """The command that answers the question, or the service."""
        asked = self._asked()
        named = [asked.service] + [f"{self._arm}/guard/reset"] * asked.is_first
        services = " ".join(map(self._node.absolute, named))
        if (key := self._key(asked)) is None:
            return f"ros2 service call {services} std_srvs/srv/Trigger"
        return f"serl order {services} --key {key.absolute()}"

    def waits(self, heard: bool) -> str:
        """Why the arm does not move, and how a person ends that, who is heard here or elsewhere."""
        asked = self._asked()
        if hindrance := self.hindrance():
            return f"{asked.why}: the guard waits: {hindrance}"
        return asked.text if heard else f"{asked.why}: {self.means()}"

    def hindrance(self) -> str:
        """Why a yes to the question would be refused."""
        standing = self._guard.standing
        return standing.not_now if standing else ""

    def answer(self, question: str) -> str:
        """Do what was asked about; raises `SerlError` when it is refused, or not what is asked."""
        asked = self._asked()
        if asked.text != question:
            raise SerlError("not done: something else is asked by now")
        try:
            said = self._call(asked)
        except SerlError:
            self._seen = False  # a new guard has not heard of it
            raise
        self._seen = asked.service.endswith("/ack")
        return _SEEN if asked.is_first else said

    def _asked(self) -> _Asked:
        if (standing := self._guard.standing) is None:
            return _Asked()
        what = f"{standing.state}: {standing.cause}"
        if standing.state is GuardState.ESTOP and self._seen:
            return _Asked(what, "ends the guard's stop", f"{self._arm}/guard/reset")
        self._seen = False
        is_first = standing.state is GuardState.ESTOP
        if is_first or (standing.state in LATCHED and not self._simulated):
            does = "says that you have seen to it"
            return _Asked(what, does, f"{self._arm}/guard/ack", is_first)
        if standing.state is GuardState.DISARMED and not self._simulated:
            does = "arms it; keep clear, and a hand at the stop"
            return _Asked("the guard is disarmed", does, f"{self._arm}/guard/arm")
        if self._stopped:
            return _Asked(self._stopped, "ends the actor's stop", f"{self.actor}/release")
        if self._paused:
            return _Asked(self._paused, "goes on", f"{self.actor}/resume")
        return _Asked()

    def _call(self, asked: _Asked) -> str:
        if (key := self._key(asked)) is None:
            return self._remote.trigger(asked.service, _LIMIT_S)
        return self._remote.order(asked.service, key, _LIMIT_S)

    def _key(self, asked: _Asked) -> Path | None:
        """The file of the key that an answer is signed with; None for one that needs none."""
        if asked.guard_word:
            return self._guard_key
        return self._actor_key if asked.service.endswith("/release") else None

    def _hear(self, message: Any) -> None:
        said = {pair.key: pair.value for pair in message.values}
        self._stopped, self._paused = said.get("stopped", ""), said.get("paused", "")
