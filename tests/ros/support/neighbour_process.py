"""A process of another user of the host, with plain rclpy and the default transports.

python neighbour_process.py ARM ACTOR KEY

It tries to arm the guard, stops the arm and its actor, tries to end both stops, and to read the
key. It prints the result of each attempt and the guard's state before and after, as JSON.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy  # noqa: F401 (messages need it, and its files are closed to another user)
import rclpy
from diagnostic_msgs.msg import DiagnosticStatus
from diagnostic_msgs.srv import AddDiagnostics
from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import ChangeState
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, QoSProfile
from std_srvs.srv import Trigger

from serl.system.signed_order import sign_order

NOBODY, LIMIT_S = 65534, 60.0


class Neighbour:
    """A client of a run's services and of the guard's state."""

    def __init__(self, guard: str) -> None:
        self.said: list[DiagnosticStatus] = []
        self._node = Node("neighbour", enable_rosout=False)
        self._executor = SingleThreadedExecutor()
        self._executor.add_node(self._node)
        latched = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)
        self._node.create_subscription(
            DiagnosticStatus, f"{guard}/state", self.said.append, latched
        )

    def until(self, condition: Callable[[], object], limit_s: float = LIMIT_S) -> bool:
        deadline_s = time.monotonic() + limit_s
        while not condition():
            if time.monotonic() > deadline_s:
                return False
            self._executor.spin_once(0.05)
        return True

    def call(self, service: str, kind: Any = Trigger, request: Any = None) -> list[Any]:
        """Call a service; return whether it succeeded, and its message."""
        client = self._node.create_client(kind, service)
        if not self.until(client.service_is_ready):
            return [False, "no such service"]
        answer = client.call_async(request or kind.Request())
        if not self.until(answer.done):
            return [False, "no answer"]
        return [answer.result().success, answer.result().message]

    def change(self, node: str, transition: int) -> bool:
        """Request a lifecycle transition of a node; return whether it succeeded."""
        client = self._node.create_client(ChangeState, f"{node}/change_state")
        request = ChangeState.Request(transition=Transition(id=transition))
        answer = client.call_async(request) if self.until(client.service_is_ready) else None
        return answer is not None and self.until(answer.done) and answer.result().success

    def order(self, service: str) -> list[Any]:
        """Send an order signed with a guessed key; return its result."""
        text = sign_order(bytes(32), service, time.monotonic_ns())
        place = service.rpartition("/")[0]
        return self.call(
            f"{place}/order", AddDiagnostics, AddDiagnostics.Request(load_namespace=text)
        )

    def state(self) -> dict[str, str]:
        """Return the next state and values that the guard publishes."""
        self.said.clear()
        self.until(lambda: self.said)
        newest = self.said[-1]
        return {"state": newest.message, **{pair.key: pair.value for pair in newest.values}}


def main() -> None:
    guard, actor, key = f"{sys.argv[1]}/guard", sys.argv[2], sys.argv[3]
    os.environ["ROS_LOG_DIR"] = logs = tempfile.mkdtemp()
    os.chown(logs, NOBODY, NOBODY)
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    rclpy.init()
    neighbour = Neighbour(guard)
    neighbour.until(lambda: not neighbour.state()["not now"])  # the guard could be armed
    found: dict[str, Any] = {"uid": os.getuid(), "first": neighbour.state()}
    found["arm"] = [neighbour.call(f"{guard}/arm"), neighbour.order(f"{guard}/arm")]
    found["disarm"] = neighbour.call(f"{guard}/disarm")
    found["stops"] = [neighbour.call(f"{guard}/estop"), neighbour.call(f"{actor}/estop")]
    neighbour.until(lambda: neighbour.state()["state"].startswith("estop"))
    found["before"] = neighbour.state()
    protected = [f"{guard}/{word}" for word in ("ack", "reset", "arm")] + [f"{actor}/release"]
    found["calls"] = {service: neighbour.call(service) for service in protected}
    found["orders"] = {service: neighbour.order(service) for service in protected}
    run, _, robot = sys.argv[1].rpartition("/")
    found["lifecycle"] = [
        neighbour.change(f"{run}/guard_{robot}", Transition.TRANSITION_DEACTIVATE),
        neighbour.change(f"{run}/guard_{robot}", Transition.TRANSITION_ACTIVATE),
    ]
    neighbour.call(f"{guard}/disarm")
    found["after"] = neighbour.state()
    try:
        found["key"] = open(key).read()  # noqa: SIM115
    except OSError as error:
        found["key"] = type(error).__name__
    print(json.dumps(found))  # noqa: T201
    rclpy.shutdown()


if __name__ == "__main__":
    main()
