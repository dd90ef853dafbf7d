"""Services of a node: standard triggers that any ROS 2 tool can call."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from std_srvs.srv import Trigger

from serl.errors import SerlError
from serl.ros.node import RosNode


def serve(node: RosNode, name: str, act: Callable[[], str]) -> None:
    """Offer `<node>/<name>`; `act` runs in the executor's thread and says what it did.

    A name with a slash is of the run. What `act` raises as `SerlError` is refused with its text.
    Nothing is offered in a run of several hosts, where anybody in the network could call it.
    """
    if node.signed:
        return

    def answer(request: Any, response: Any) -> Any:
        try:
            response.success, response.message = True, act()
        except SerlError as error:
            response.success, response.message = False, str(error)
        return response

    full = node.absolute(name) if "/" in name else f"~/{name}"
    node.handle.create_service(Trigger, full, answer)


class Request:
    """`~/<name>`: remembers that it was called until somebody takes it."""

    def __init__(self, node: RosNode, name: str) -> None:
        self._asked = False
        serve(node, name, self._ask)

    def taken(self) -> bool:
        """Whether it was called since the last time."""
        asked, self._asked = self._asked, False
        return asked

    def _ask(self) -> str:
        self._asked = True
        return "asked for"


class Pause:
    """`~/pause`, `~/resume` and `~/stop` of an actor: between two steps, the arm holds."""

    def __init__(self, node: RosNode) -> None:
        self._node = node
        self.paused = False
        serve(node, "pause", lambda: self._set(True))
        serve(node, "resume", lambda: self._set(False))
        serve(node, "stop", self._stop)

    def wait(self, stopping: Callable[[], bool], period_s: float = 0.02) -> bool:
        """Return once no longer paused, or once stopping; says which."""
        while self.paused and not stopping():
            time.sleep(period_s)
        return stopping()

    def _set(self, paused: bool) -> str:
        self.paused = paused
        return "paused" if paused else "running"

    def _stop(self) -> str:
        self._node.stopping = True
        return "stopping"
