"""Where everything is in a simulation, told to whoever draws it elsewhere: for pictures alone."""

from __future__ import annotations

from typing import Any

from std_msgs.msg import Float64MultiArray

from serl.ros.node import RosNode
from serl.ros.topics import Topic, latest_only

SCENE_PERIOD_S = 1 / 15


def scene_topic(actor: str) -> Topic:
    """Where everything is in an actor's simulation, for pictures; see `SimArm.placement`."""
    return Topic(f"{actor}/scene", Float64MultiArray, latest_only())


class SceneTeller:
    """Tells it while somebody listens, beside the control loop: it waits for nothing there.

    Args:
        node: of the process.
        actor: whose simulation it is.
        robot: the simulation; one that cannot show where everything is, or is none, tells nothing.
    """

    def __init__(self, node: RosNode, actor: str, robot: Any) -> None:
        self._placement = getattr(robot, "placement", None)
        if self._placement is not None:
            self._publisher = node.publisher(scene_topic(actor))
            node.every(SCENE_PERIOD_S, self._tell)

    def _tell(self) -> None:
        if self._placement is not None and self._publisher.get_subscription_count():
            self._publisher.publish(Float64MultiArray(data=self._placement().tolist()))
