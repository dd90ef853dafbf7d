"""The person at the terminal beside a real arm: asked for what nothing but a person may do."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

from serl.errors import SerlError
from serl.guard_config import LATCHED, GuardState
from serl.ros.control import control_topic
from serl.ros.guard_client import GuardClient
from serl.ros.node import RosNode
from serl.ros.remote import Remote
from serl.run_folder import RunFolder

_LIMIT_S = 5.0


class Attendant:
    """Ends stops, arms the guard and lets the actor go on, when a person says so.

    Args:
        run: folder of the run.
        actor: name of the actor.
        arm: namespace of its arm, within the run unless it begins at the root.
    """

    def __init__(self, run: RunFolder, actor: str, arm: str) -> None:
        self._actor, self._arm, self._paused = actor, arm.rstrip("/"), ""
        self._node = RosNode("attendant", run.path, local=True)
        self._remote = Remote(self._node, lambda: None)
        self._guard = GuardClient(self._node, self._arm, self._remote)
        self._node.subscribe(control_topic(actor), self._hear)

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
        return self._node.stopping

    def question(self) -> str:
        """What a person has to say before anything moves; empty when nothing is asked."""
        if not self._guard.feed.is_fresh:
            return ""
        state, cause = self._guard.feed.newest().value
        if state in LATCHED:
            return f"{state}: {cause}: Enter says that you have seen to it"
        if state is GuardState.DISARMED:
            return "the guard is disarmed: Enter arms it; keep clear, and a hand at the stop"
        return f"{self._paused}: Enter goes on" if self._paused else ""

    def answer(self) -> str:
        """The person said yes to the question; what came of it."""
        try:
            return self._answer()
        except SerlError as error:
            return str(error)

    def _answer(self) -> str:
        state, _ = self._guard.feed.newest().value
        if state in LATCHED:
            said = self._call(f"{self._arm}/guard/ack")
            return self._call(f"{self._arm}/guard/reset") if state is GuardState.ESTOP else said
        if state is GuardState.DISARMED:
            return self._call(f"{self._arm}/guard/arm")
        return self._call(f"{self._actor}/resume")

    def _call(self, service: str) -> str:
        return self._remote.trigger(service, _LIMIT_S)

    def _hear(self, message: Any) -> None:
        self._paused = str(message.message)
