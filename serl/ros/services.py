"""Services of a node: standard triggers that any ROS 2 tool can call."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from diagnostic_msgs.srv import AddDiagnostics
from rcl_interfaces.srv import GetParameters, ListParameters, SetParameters
from rclpy.parameter import Parameter, parameter_value_to_python
from std_srvs.srv import Trigger

from serl.errors import SerlError
from serl.ros.node import RosNode
from serl.system.json_fields import printable
from serl.system.signed_order import OrderCheck, load_order_key, sign_order

ORDER = "order"
"""Name of the service that takes signed orders, beside the triggers named after the orders."""


def serve(node: RosNode, name: str, act: Callable[[], str]) -> None:
    """Offer the trigger `<node>/<name>`; `act`, in the executor's thread, returns the answer.

    A name with a slash is relative to the run. A `SerlError` of `act` refuses the call with its
    text. Nothing is offered in a run of several hosts, where any host in the network could call it.
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
    """Offer `<place>/order`, a service that takes the orders of `acts` as signed text.

    Its type is `diagnostic_msgs/AddDiagnostics`, the standard service that takes a text and answers
    as a trigger does. Triggers with the names of the orders refuse, and explain how to sign.

    Args:
        node: the node that offers the services.
        place: absolute prefix of the services' names.
        acts: the function of each order; a `SerlError` refuses it.
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
    """A service `~/<name>` whose calls `taken` reports to another thread."""

    def __init__(self, node: RosNode, name: str) -> None:
        self._pending = False
        serve(node, name, self._ask)

    def taken(self) -> bool:
        """Return whether the service was called since the last call of this method."""
        if not self._pending:
            return False
        self._pending = False  # a call that arrives before this line is one with the earlier call
        return True

    def _ask(self) -> str:
        self._pending = True
        return "requested"


_SLICE_S = 0.02
_AGAIN_S = 3.0
"""Time after which a request is repeated: it is lost where the server died and was not discovered
anew. Requests in real time are harmless twice; in lock-step time would advance twice."""


class Remote:
    """A blocking client for services of other nodes of the run.

    Args:
        beat: called every 20 ms while waiting. None where time stands still meanwhile: then every
            arriving message ends a wait between two checks.
    """

    def __init__(self, node: RosNode, beat: Callable[[], None] | None = None) -> None:
        self._node, self._beat = node, beat
        self._again_s = _AGAIN_S if beat is not None else math.inf
        self._clients: dict[str, Any] = {}

    def trigger(self, name: str, limit_s: float = 30.0) -> str:
        """Call a `std_srvs/Trigger` and return its answer.

        Raises:
            SerlError: the service refused, or no answer arrived.
        """
        answer = self._call(name, Trigger, Trigger.Request, limit_s)
        if not answer.success:
            raise SerlError(f"{name}: {answer.message}")
        return str(answer.message)

    def order(self, name: str, key: Path, limit_s: float = 30.0) -> str:
        """Send a signed order and return its answer.

        Args:
            name: name of the service, whose last part is the order.
            key: file of the key.
            limit_s: time limit for the answer.

        Raises:
            BadInput: the key cannot be read.
            SerlError: the order was refused, or no answer arrived.
        """
        secret, full = load_order_key(key), self._node.absolute(name)

        def request() -> Any:
            text = sign_order(secret, full, time.monotonic_ns())
            return AddDiagnostics.Request(load_namespace=text)

        service = f"{full.rpartition('/')[0]}/{ORDER}"
        answer = self._call(service, AddDiagnostics, request, limit_s)
        if not answer.success:
            raise SerlError(f"{name}: {printable(answer.message)}")
        return printable(answer.message)

    def set_parameters(self, node: str, values: Mapping[str, Any], limit_s: float = 30.0) -> None:
        """Set parameters of a node; raises `SerlError` when one of them is refused."""
        request = SetParameters.Request()
        request.parameters = [
            Parameter(name, value=value).to_parameter_msg() for name, value in values.items()
        ]
        answer = self._call(f"{node}/set_parameters", SetParameters, lambda: request, limit_s)
        for name, result in zip(values, answer.results, strict=True):
            if not result.successful:
                raise SerlError(f"{node}: parameter {name}: {printable(result.reason)}")

    def get_parameters(self, node: str, names: list[str], limit_s: float = 30.0) -> dict[str, Any]:
        """Return values of a node's parameters; None for those that it does not have."""
        request = GetParameters.Request(names=names)
        answer = self._call(f"{node}/get_parameters", GetParameters, lambda: request, limit_s)
        if len(answer.values) == len(names):
            return dict(zip(names, map(parameter_value_to_python, answer.values), strict=True))
        if len(names) == 1:
            return {names[0]: None}
        # A node returns no value at all if it lacks one of the parameters.
        return {name: self.get_parameters(node, [name], limit_s)[name] for name in names}

    def list_parameters(self, node: str, limit_s: float = 30.0) -> list[str]:
        """Return the names of a node's parameters."""
        answer = self._call(
            f"{node}/list_parameters", ListParameters, ListParameters.Request, limit_s
        )
        return [str(name) for name in answer.result.names]

    def wait(self, condition: Callable[[], object], limit_s: float) -> bool:
        """Call `beat` until the condition holds; False after the time limit, or when stopping."""
        deadline_s = time.monotonic() + limit_s
        while not condition():
            if time.monotonic() > deadline_s or self._node.stopping:
                return False
            self._rest()
        return True

    def _call(self, name: str, kind: Any, request: Callable[[], Any], limit_s: float) -> Any:
        full = self._node.absolute(name)
        if full not in self._clients:
            self._clients[full] = self._node.handle.create_client(kind, full)
        client, deadline_s = self._clients[full], time.monotonic() + limit_s
        while not client.service_is_ready():
            self._check(deadline_s, f"{full}: no such service")
            self._rest()
        answers: list[Any] = []
        answered = threading.Event()

        def keep(future: Any) -> None:
            answers.append(future.result())
            answered.set()

        ask_s = time.monotonic()
        while not answered.is_set():
            self._check(deadline_s, f"{full}: no answer within {limit_s:g} s")
            if time.monotonic() >= ask_s:
                ask_s += self._again_s
                client.call_async(request()).add_done_callback(keep)
            answered.wait(_SLICE_S)
            if self._beat is not None:
                self._beat()
        return answers[0]

    def _check(self, deadline_s: float, complaint: str) -> None:
        if time.monotonic() > deadline_s:
            raise SerlError(complaint)
        if self._node.stopping:
            raise SerlError(f"{complaint}: the process was asked to end")

    def _rest(self) -> None:
        if self._beat is None:
            self._node.wait(_SLICE_S)
        else:
            self._beat()
            time.sleep(_SLICE_S)
