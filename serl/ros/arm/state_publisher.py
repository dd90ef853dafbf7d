"""State of a simulation in the actor's process, on the topics that an arm's driver has."""

from __future__ import annotations

import time
from typing import Any

from serl import plugins
from serl.loop import Observer
from serl.ros.arm.publisher import ArmPublisher, PicturePublisher, PublishedCamera
from serl.ros.arm.topics import SENSOR
from serl.ros.node import RosNode
from serl.runs.config import TrainConfig
from serl.runs.task_setup import make_task
from serl.types import Observation

PERIOD_S = 0.1
"""Wall time between two published readings."""

_OWN = ("tcp_pose", "target_pose")


class StatePublisher(Observer):
    """Publisher of the newest reading, ten times a second, for RViz, Foxglove and similar tools.

    The control loop stores its newest reading; the executor's thread publishes it. Readings in
    between are dropped, as a simulation is faster than real time. An arm of a pair has its own
    namespace below the actor's. Pictures are the views of the task, by their names.

    Args:
        actor: name of the actor, the namespace of the topics.
        config: settings of the run.
        robot: the simulation; without an arm only its pictures are published.
    """

    def __init__(self, node: RosNode, actor: str, config: TrainConfig, robot: Any) -> None:
        spec, profile = robot.observation_spec, plugins.load("robot", "sim")
        poses = [name for name in spec.state if name.endswith("_pose")]
        tracked = [name.removesuffix("_pose") for name in poses if not name.endswith(_OWN)]
        alone = config.actors == 1 and "tcp_pose" in poses
        self._arms: list[tuple[str, ArmPublisher]] = []
        for name in poses:
            if name.endswith(_OWN[0]):
                prefix = name.removesuffix(_OWN[0])
                own = "/".join(filter(None, (actor, prefix.rstrip("_"))))
                made = ArmPublisher(node, own, profile, tracked, {}, SENSOR, with_truth=False)
                self._arms.append((prefix, made))
                if hasattr(robot, "urdf"):
                    made.describe(robot.urdf(prefix), alone)
                tracked = []
        fovy_rad, cameras = getattr(robot, "fovy_rad", {}), {}
        for name in spec.images:
            view = make_task(config).config.all_views.get(name)
            frame = view.camera if view else name
            cameras[name] = PublishedCamera(frame, fovy_rad.get(frame), view)
        self._pictures = PicturePublisher(node, actor, cameras, SENSOR)
        self._newest: tuple[int, Observation] | None = None
        node.every(PERIOD_S, self._publish)

    def on_reading(self, reading: Observation) -> None:
        """Store the reading for the next publication."""
        self._newest = time.time_ns(), reading

    def _publish(self) -> None:
        newest, self._newest = self._newest, None
        if newest is None:
            return
        stamp_ns, reading = newest
        state = {name: values.tolist() for name, values in reading.state.items()}
        for prefix, arm in self._arms:
            own = {name.removeprefix(prefix): values for name, values in state.items()}
            arm.state(state | own, stamp_ns)
        self._pictures.publish(reading.images, stamp_ns)


def state_publishers(
    node: RosNode, actor: str, config: TrainConfig, robot: Any
) -> list[StatePublisher]:
    """Return the publisher of a simulation in this process; none unless the settings ask for it.

    Arguments are those of `StatePublisher`.
    """
    wanted = config.robot is None and config.ros.publish_state
    return [StatePublisher(node, actor, config, robot)] if wanted else []
