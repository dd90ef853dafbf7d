"""Services of a node: standard triggers that any ROS 2 tool can call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from diagnostic_msgs.srv import AddDiagnostics
from std_srvs.srv import Trigger

from serl.errors import SerlError
from serl.ros.node import RosNode
from serl.system.signed_order import OrderCheck

ORDER = "order"
"""Service that takes signed orders, beside those whose names are the words of the orders."""


def serve(node: RosNode, name: str, act: Callable[[], str]) -> None:
    """Offer `<node>/<name>`; `act` runs in the executor's thread and says what it did.

    A name with a slash is of the run. What `act` raises as `SerlError` is refused with its text.
    Nothing is offered in a run of several hosts, where anybody in the network could call it.
    """
    if node.signed:
        return

    def answer(request: Any, response: Any) -> Any:
        return _answered(response, act)

    full = node.absolute(name) if "/" in name else f"~/{name}"
    node.handle.create_service(Trigger, full, answer)


def serve_signed(
    node: RosNode, place: str, acts: Mapping[str, Callable[[], str]], orders: OrderCheck
) -> None:
    """Offer `<place>/order`, which takes the words of `acts` in a signed text.

    Its type is `diagnostic_msgs/AddDiagnostics`: of the standard services the one that takes a text
    and answers as a trigger does. The triggers of the same names refuse, and say how to sign.

    Args:
        node: offers them.
        place: what the names of the services begin with, from the root.
        acts: what each word does; `SerlError` refuses.
        orders: checks the signatures.
    """
    if node.signed:
        return

    def answer(request: Any, response: Any) -> Any:
        def act() -> str:
            word = orders.word(place, request.load_namespace)
            if word not in acts:
                raise SerlError(f"{word}: expected one of {', '.join(acts)}")
            return acts[word]()

        return _answered(response, act)

    def refuse(word: str) -> str:
        raise orders.refusal(f"{place}/{word}")

    node.handle.create_service(AddDiagnostics, f"{place}/{ORDER}", answer)
    for word in acts:
        serve(node, f"{place}/{word}", partial(refuse, word))


def _answered(response: Any, act: Callable[[], str]) -> Any:
    try:
        response.success, response.message = True, act()
    except SerlError as error:
        response.success, response.message = False, str(error)
    return response


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
