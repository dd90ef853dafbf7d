"""A recording station with topics and services, for a real arm or a simulation."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import count
from typing import Any

from serl.clock import Clock, WallClock
from serl.datasets.person import ACTOR, RecordingStation
from serl.guard.camera_monitor import CameraMonitor, CameraMonitorConfig
from serl.loop import EpisodeKey, Observer
from serl.robot import SimulatedRobot
from serl.ros.arm.camera_settings import note_cameras
from serl.ros.arm.state_publisher import state_publishers
from serl.ros.arm.station import RESTORE, HeldSite, Station, make_arm
from serl.ros.node import RosNode
from serl.ros.people.control import Control, action_frame
from serl.ros.people.teleop import TopicDevices
from serl.ros.reward_topic import connect_reward
from serl.ros.services import serve
from serl.runs.folder import RunFolder
from serl.runs.network import RosConfig
from serl.runs.scene_reset import make_scene_reset, reset_kind
from serl.runs.task_setup import make_task
from serl.task import SimulatedTask
from serl.teleop.human_input import HumanInput
from serl.teleop.mux import TeleopMux
from serl.teleop.operator import Operator
from serl.teleop.stop import StopLatch
from serl.training.actor import Actor
from serl.training.learned_policy import NoPolicy


@contextmanager
def recording_station(
    run: RunFolder,
    robot: SimulatedRobot,
    clock: Clock,
    operators: Sequence[Operator],
    services: Mapping[str, Callable[[], str]],
    check: Callable[[], object],
    ros: RosConfig | None = None,
) -> Iterator[RecordingStation]:
    """Yield a recording station of a robot in this process, with topics and services.

    Its node joins the ROS domain of the environment.

    Args:
        run: the recording.
        robot: the robot to drive.
        clock: keeps the rate.
        operators: operators at devices of this process.
        services: further services, besides those of every actor.
        check: called at every step; raises when another process has failed.
        ros: settings of publication for other programs; None for those of the recording.
    """
    config = run.config.model_copy(update={"ros": ros or run.config.ros})
    with RosNode(ACTOR, run.path, local=True) as node:
        human_input, observers = _open_input(node, run, robot, operators, services)
        observers += state_publishers(node, ACTOR, config, robot)

        def stopping() -> bool:
            check()
            return node.stopping

        yield RecordingStation(
            robot, human_input, clock, stopping, observers, connect=partial(connect_reward, node)
        )


@contextmanager
def arm_station(
    run: RunFolder,
    operators: Sequence[Operator],
    services: Mapping[str, Callable[[], str]],
    check: Callable[[], object],
) -> Iterator[RecordingStation]:
    """Yield a recording station at a real arm, driven through its guard.

    Before an episode the arm returns to a start by itself (`reset.kind` "home" or "path"), without
    a record of it; otherwise a person brings arm and scene to a start.

    Args:
        run: the recording, whose settings name the arm.
        operators: operators at devices of this process, besides those at topics.
        services: further services, besides those of every actor.
        check: called while waiting and at every step; raises when another process has failed.

    Raises:
        SerlError: the arm's driver does not publish all that the run needs.
    """
    task = make_task(run.config)
    with RosNode(ACTOR, run.path, local=True) as node:
        arm: Any = make_arm(node, run, ACTOR, time.time_ns())
        human_input, observers = _open_input(node, run, arm, operators, services)
        monitor = CameraMonitor(arm.observation_spec.images, CameraMonitorConfig())

        def stopping() -> bool:
            check()
            return node.stopping

        arm.silence_s = lambda: human_input.mux.silence_s
        human_input.hold.beat = arm.beat
        human_input.hold.look = lambda: human_input.obey_stops(read=True)
        station = Station(arm, human_input.hold, stopping)

        def standby(ending: Callable[[], bool]) -> bool:
            return bool(human_input.hold.reason or not station.has_arm) and station.standby(ending)

        with arm:
            note_cameras(node, arm, run)
            stand = RecordingStation(
                arm,
                human_input,
                WallClock(task.config.rate_hz, arm.beat),
                stopping,
                [monitor, *observers],
                standby=standby,
                on_silence=human_input.hold.pause,
                connect=partial(connect_reward, node),
            )
            stand.place = _placement(run, task, stand, station)
            yield stand


def _placement(
    run: RunFolder, task: SimulatedTask, stand: RecordingStation, station: Station
) -> Callable[[int], object]:
    """Return the function that brings an arm to the start of an episode; see `arm_station`."""
    human_input = stand.human_input
    if reset_kind(run.config) not in ("home", "path"):
        starts = count()

        def ask(seed: int) -> None:
            if next(starts):
                human_input.hold.pause(RESTORE)
            station.standby()

        return ask
    recorded = sum(1 for _ in run.path.rglob("*.mcap"))  # a continued recording has other starts
    site = HeldSite(human_input.hold, station, stand.stopping)
    site.teleop = human_input
    actor = Actor(
        EpisodeKey(run.name, ACTOR, time.time_ns(), 0),
        stand.robot,
        task,
        NoPolicy(),
        stand.clock,
        [*stand.observers, human_input],
        site,
        run.config.actor,
        make_scene_reset(run.config, task, stand.robot, ACTOR, recorded),
    )
    return lambda seed: actor.bring_to_start()


def _open_input(
    node: RosNode,
    run: RunFolder,
    robot: Any,
    operators: Sequence[Operator],
    services: Mapping[str, Callable[[], str]],
) -> tuple[HumanInput, list[Observer]]:
    """Return the operator input of devices, topics and services, and the observers it needs."""
    link = run.link(ACTOR)
    link.mkdir(parents=True, exist_ok=True)
    devices = TopicDevices(node, ACTOR, run.config.teleop, action_frame(run.config))
    people = TeleopMux([*devices.people(robot.action_spec), *operators])
    human_input = HumanInput(people, StopLatch(link / "stopped"), run.path)
    control = Control(node, ACTOR, human_input, lambda: True, robot)
    for name, act in services.items():
        serve(node, name, act)
    return human_input, [control, devices]
