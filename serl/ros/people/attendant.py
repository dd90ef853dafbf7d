"""Prompts for the person at the terminal of a run, for steps that need confirmation."""

from __future__ import annotations

import logging
import shlex
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from serl.arm_profile import SIM
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
_FIRST_DONE = "noted; next: end the guard's stop"


class Attendant:
    """Prompts a person, and on confirmation ends stops, arms guards and resumes actors.

    Args:
        arms: the guarded arm of each actor; both arms of a pair as `actor/left`, `actor/right`.
    """

    def __init__(self, run: RunFolder, arms: Mapping[str, GuardedArm]) -> None:
        self._run, self._guarded = run, arms
        self._timeout_s, self._question = _UNHEARD_S, ""
        self._arms: list[SupervisedArm]
        self._arm: SupervisedArm
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
    def is_interrupted(self) -> bool:
        """Whether Ctrl-C was pressed; the process's node handles the signal."""
        return self._node.stopping and not self._node.deaf

    def question(self) -> str:
        """Return the question to confirm before an arm moves; empty without one.

        Questions about arms follow each other: one stays until it is answered, and is shown only
        where an answer can succeed.
        """
        self._rejoin_if_deaf()
        if not self._question or self._arm.question() != self._question:
            able = [arm for arm in self._arms if arm.question() and not arm.hindrance()]
            self._arm = able[0] if able else self._arm
            self._question = self._arm.question() if able else ""
        return self._named(self._arm, self._question)

    def means(self) -> str:
        """Return the command that answers the question from elsewhere."""
        return self._arm.means()

    def waiting(self, can_answer: bool) -> dict[str, str]:
        """Return the pending request to a person for each waiting arm, by its name.

        Args:
            can_answer: a person at this terminal can answer the question.
        """
        answerable = self._arm if can_answer and self._question else None
        return {arm.name: arm.waits(arm is answerable) for arm in self._arms if arm.question()}

    def hindrance(self) -> str:
        """Return the condition that keeps a guard stopped despite any answer; empty without one."""
        for arm in self._arms:
            if arm.question() and (hindrance := arm.hindrance()):
                return self._named(arm, f"the guard waits: {hindrance}")
        return ""

    def answer(self) -> str:
        """Carry out the confirmed question; returns the result.

        Raises:
            SerlError: it is refused; the arm is not asked about until an answer can succeed.
        """
        arm, question, self._question = self._arm, self._question, ""
        self._remote.wait(lambda: not arm.hindrance(), _MOMENT_S)  # arms pause now and then
        reply = arm.answer(question)
        self._remote.wait(lambda: arm.question() != question, _MOMENT_S)
        return reply

    def _join(self) -> None:
        self._node = RosNode("attendant", self._run.path, local=True)
        self._remote = Remote(self._node, lambda: None)
        self._arms = [
            SupervisedArm(self._node, self._remote, self._run, *each)
            for each in self._guarded.items()
        ]
        self._arm, self._question = self._arms[0], ""
        self._received_s = time.monotonic()

    def _rejoin_if_deaf(self) -> None:
        """Join the domain anew when no guard has reported for long: discovery may have failed.

        Fast DDS can leave two participants that never match, however long both run. The pauses
        between attempts double, as there may be no guard yet.
        """
        if any(arm.is_connected for arm in self._arms):
            self._received_s, self._timeout_s = time.monotonic(), _UNHEARD_S
        if time.monotonic() - self._received_s < self._timeout_s and not self._node.deaf:
            return
        logger.info("no message from a guard: joining the ROS domain again")
        with suppress(SerlError):
            self._node.__exit__(None, None, None)
        self._join()
        self._node.__enter__()
        self._timeout_s *= 2.0

    def _named(self, arm: SupervisedArm, text: str) -> str:
        return f"{arm.name}: {text}" if text and len(self._arms) > 1 else text


class _Question(NamedTuple):
    """A question to a person about an arm.

    Attributes:
        why: the reason why the arm does not move; empty for no question.
        does: the effect of a confirmation.
        service: the service that a confirmation calls, of the arm's guard or of the actor.
        is_first: the first of the two confirmations that end an emergency stop.
    """

    why: str = ""
    does: str = ""
    service: str = ""
    is_first: bool = False

    @property
    def text(self) -> str:
        """Text of the question; empty for none."""
        return f"{self.why}: Enter {self.does}" if self.why else ""

    @property
    def guard_word(self) -> str:
        """Order that a confirmation sends to the guard: ack, reset or arm; empty without one."""
        place, _, word = self.service.rpartition("/")
        return word if place.endswith("/guard") else ""


class SupervisedArm:
    """An arm, its guard and the actor that drives it.

    Args:
        remote: client that calls the services.
        run: run of the actor. A simulated arm can hurt no person, so its actor itself arms its
            guard and acknowledges its protective stops: there is no question for either.
        name: name of the actor; with the side of the arm after a slash for an arm of a pair.
        arm: namespace and latch of the guard.
    """

    def __init__(
        self, node: RosNode, remote: Remote, run: RunFolder, name: str, arm: GuardedArm
    ) -> None:
        actor = name.partition("/")[0]
        self.name, self.actor, self._arm = name, actor, arm.namespace.rstrip("/")
        self._simulated = run.config.robot == SIM
        self._guard_key = key_path(arm.latch)
        self._actor_key = key_path(run.link(actor) / STOP_FILE)
        self._stopped = self._paused = ""  # the actor's reasons
        self._node, self._remote = node, remote
        self._is_acknowledged = False  # an emergency stop was acknowledged here
        self._guard = GuardClient(node, self._arm, remote)
        node.subscribe(control_topic(actor), self._receive)

    @property
    def is_connected(self) -> bool:
        """Whether the arm's guard reports its state."""
        return self._guard.report is not None

    def question(self) -> str:
        """Return the question about the arm; empty without one."""
        return self._pending().text

    def guard_word(self) -> str:
        """Return the order of a confirmation to the guard: ack, reset or arm; empty without one."""
        return self._pending().guard_word

    def means(self) -> str:
        """Return the shell command that answers the question."""
        pending = self._pending()
        named = [pending.service] + [f"{self._arm}/guard/reset"] * pending.is_first
        services = " ".join(map(self._node.absolute, named))
        if (key := self._key(pending)) is None:
            return f"ros2 service call {services} std_srvs/srv/Trigger"
        return f"serl order {services} --key {shlex.quote(str(key.absolute()))}"

    def waits(self, can_answer: bool) -> str:
        """Return why the arm does not move, and how a person resolves that, here or elsewhere."""
        pending = self._pending()
        if hindrance := self.hindrance():
            return f"{pending.why}: the guard waits: {hindrance}"
        return pending.text if can_answer else f"{pending.why}: {self.means()}"

    def hindrance(self) -> str:
        """Return the reason why a confirmation would be refused; empty without one."""
        report = self._guard.report
        return report.not_now if report else ""

    def answer(self, question: str) -> str:
        """Carry out a confirmed question; raises `SerlError` if it is refused or has changed."""
        pending = self._pending()
        if pending.text != question:
            raise SerlError("not done: the question has changed")
        try:
            reply = self._call(pending)
        except SerlError:
            self._is_acknowledged = False  # a new guard has no record of the acknowledgement
            raise
        self._is_acknowledged = pending.service.endswith("/ack")
        return _FIRST_DONE if pending.is_first else reply

    def _pending(self) -> _Question:
        if (report := self._guard.report) is None:
            return _Question()
        cause = f"{report.state}: {report.cause}"
        if report.state is GuardState.ESTOP and self._is_acknowledged:
            return _Question(cause, "ends the guard's stop", f"{self._arm}/guard/reset")
        self._is_acknowledged = False
        is_first = report.state is GuardState.ESTOP
        if is_first or (report.state in LATCHED and not self._simulated):
            does = "confirms that it is safe to continue"
            return _Question(cause, does, f"{self._arm}/guard/ack", is_first)
        if report.state is GuardState.DISARMED and not self._simulated:
            does = "arms it; keep clear, and a hand at the stop"
            return _Question("the guard is disarmed", does, f"{self._arm}/guard/arm")
        if self._stopped:
            return _Question(self._stopped, "ends the actor's stop", f"{self.actor}/release")
        if self._paused:
            return _Question(self._paused, "continues", f"{self.actor}/resume")
        return _Question()

    def _call(self, question: _Question) -> str:
        if (key := self._key(question)) is None:
            return self._remote.trigger(question.service, _LIMIT_S)
        return self._remote.order(question.service, key, _LIMIT_S)

    def _key(self, question: _Question) -> Path | None:
        """Return the key file that signs an answer; None for answers without a signature."""
        if question.guard_word:
            return self._guard_key
        return self._actor_key if question.service.endswith("/release") else None

    def _receive(self, message: Any) -> None:
        values = {pair.key: pair.value for pair in message.values}
        self._stopped, self._paused = values.get("stopped", ""), values.get("paused", "")
