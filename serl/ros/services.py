"""Services of a node: standard triggers that any ROS 2 tool can call."""

from __future__ import annotations

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
