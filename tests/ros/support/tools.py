"""A client of nodes' lifecycles, parameters and diagnostics, like the ROS 2 tools."""

from __future__ import annotations

import math
import time
from typing import Any

from diagnostic_msgs.msg import DiagnosticArray
from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import ChangeState, GetState
from rcl_interfaces.srv import DescribeParameters, ListParameters, SetParameters
from rclpy.parameter import Parameter

from serl.ros.node import RosNode
from serl.ros.telemetry import DIAGNOSTICS
from serl.ros.testing.processes import eventually

CONFIGURE, CLEAN_UP = Transition.TRANSITION_CONFIGURE, Transition.TRANSITION_CLEANUP
ACTIVATE, DEACTIVATE = Transition.TRANSITION_ACTIVATE, Transition.TRANSITION_DEACTIVATE
SHUT_DOWN = Transition.TRANSITION_INACTIVE_SHUTDOWN
LIMIT_S = 240.0
_AGAIN_S = 10.0


class Tools:
    """A client with the calls of `ros2 lifecycle` and `ros2 param` and all /diagnostics."""

    def __init__(self, node: RosNode) -> None:
        self.node = node
        self.diagnostics: dict[str, list[tuple[Any, Any]]] = {}
        self._clients: dict[str, Any] = {}
        node.subscribe(DIAGNOSTICS, self._hear)

    def call(self, service: str, kind: Any, request: Any) -> Any:
        client = self._client(kind, self.node.absolute(service))
        eventually(client.service_is_ready, LIMIT_S)
        answers: list[Any] = []
        asked_s = -math.inf

        def answered() -> bool:
            nonlocal asked_s
            if time.monotonic() - asked_s > _AGAIN_S:  # discovery is not always mutual yet
                asked_s = time.monotonic()
                client.call_async(request).add_done_callback(lambda f: answers.append(f.result()))
            return bool(answers)

        eventually(answered, LIMIT_S)
        return answers[0]

    def _client(self, kind: Any, service: str) -> Any:
        if service not in self._clients:
            self._clients[service] = self.node.handle.create_client(kind, service)
        return self._clients[service]

    def state(self, node: str) -> str:
        return str(self.call(f"{node}/get_state", GetState, GetState.Request()).current_state.label)

    def change(self, node: str, transition: int) -> bool:
        request = ChangeState.Request(transition=Transition(id=transition))
        return bool(self.call(f"{node}/change_state", ChangeState, request).success)

    def descriptors(self, node: str) -> dict[str, Any]:
        names = self.call(f"{node}/list_parameters", ListParameters, ListParameters.Request())
        request = DescribeParameters.Request(names=names.result.names)
        answer = self.call(f"{node}/describe_parameters", DescribeParameters, request)
        return {each.name: each for each in answer.descriptors}

    def refusal(self, node: str, name: str, value: Any) -> str:
        """Return why a parameter cannot be set; empty if it was set."""
        parameter = Parameter(name, value=value).to_parameter_msg()
        request = SetParameters.Request(parameters=[parameter])
        (result,) = self.call(f"{node}/set_parameters", SetParameters, request).results
        return "" if result.successful else str(result.reason)

    def statuses(self, text: str) -> list[Any]:
        """Return the statuses received whose names contain a text."""
        return [status for _, status in self._found(text)]

    def stamps_s(self, text: str) -> list[float]:
        """Return the stamps of these statuses."""
        return [stamp.sec + 1e-9 * stamp.nanosec for stamp, _ in self._found(text)]

    def numbers(self, text: str) -> dict[str, str]:
        """Return the values of the last one, by key."""
        found = self.statuses(text)
        return {pair.key: pair.value for pair in found[-1].values} if found else {}

    def listen(self, text: str, times: int) -> None:
        """Wait for this number of further statuses."""
        before = len(self.statuses(text))
        eventually(lambda: len(self.statuses(text)) >= before + times, LIMIT_S)

    def _found(self, text: str) -> list[tuple[Any, Any]]:
        return [each for name, all_ in self.diagnostics.items() if text in name for each in all_]

    def _hear(self, message: DiagnosticArray) -> None:
        for status in message.status:
            self.diagnostics.setdefault(status.name, []).append((message.header.stamp, status))
