"""A person's stand with a console beside it: this process drives, pages and topics are heard."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from serl.clock import Clock
from serl.desk import Desk
from serl.hold import Hold
from serl.person import ACTOR, Stand
from serl.robot import SimulatedRobot
from serl.ros.control import Control
from serl.ros.node import RosNode
from serl.ros.services import serve
from serl.ros.teleop import TopicDevices
from serl.run_folder import RunFolder
from serl.teleop.operator import Operator
from serl.teleop.owner import OneOwner


@contextmanager
def attended(
    run: RunFolder,
    robot: SimulatedRobot,
    clock: Clock,
    operators: Sequence[Operator],
    services: Mapping[str, Callable[[], str]],
    check: Callable[[], object],
) -> Iterator[Stand]:
    """A stand that topics and services reach, in the domain of a run that was started.

    Args:
        run: the recording.
        robot: what is driven.
        clock: keeps the rate.
        operators: at devices of this process.
        services: what can be said besides what every actor hears.
        check: called at every step; raises when a process beside this one failed.
    """
    link = run.link(ACTOR)
    link.mkdir(parents=True, exist_ok=True)
    with RosNode(ACTOR, run.path, local=True) as node:
        devices = TopicDevices(node, ACTOR, run.config.teleop)
        people = OneOwner([*devices.people(robot.action_spec), *operators])
        desk = Desk(people, Hold(link / "stopped"), run.path)
        control = Control(node, ACTOR, desk, lambda: True, robot)
        for name, act in services.items():
            serve(node, name, act)

        def stopping() -> bool:
            check()
            return node.stopping

        yield Stand(robot, desk, clock, stopping, lambda record: control.take(record, desk))
