"""Faults of grippers and cameras behind topics: foreign processes, over real DDS.

How late this machine is with waking up who sleeps is added to what is required, as in `motion`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

from serl.camera import View
from serl.camera_watch import CameraWatch, WatchedRobot
from serl.errors import SerlError
from serl.robot import Robot
from serl.ros.environment import free_domain

from ..ros.bay import Bay
from ..ros.cell import eventually
from .registry import REGISTRY, Level

VIEWS = {
    name: View(camera=name, width=16, height=16, capture=(32, 32)) for name in ("front", "wrist")
}
PERIOD_S = 0.1
NOTICED_S = 0.3


@contextmanager
def driven(folder: Path, views: dict[str, View] | None = None) -> Iterator[Bay]:
    """An FR3 as crisp_controllers have it, whose guard has taken it."""
    with (
        free_domain() as domain,
        patch.dict(os.environ, ROS_DOMAIN_ID=str(domain.id)),
        Bay(folder, "franka", views) as bay,
    ):
        bay.take()
        bay.arm.observe_when_fresh(60.0)
        yield bay


def _complaint(bay: Bay, robot: Robot, limit_s: float) -> tuple[float, str]:
    """When the robot, read ten times a second, gives no reading any more, and why."""
    deadline_s = time.monotonic() + limit_s
    while time.monotonic() < deadline_s:
        try:
            robot.observe()
        except SerlError as error:
            return time.monotonic(), str(error)
        bay.arm.remote.wait(lambda: False, PERIOD_S)
    raise AssertionError(f"not noticed within {limit_s} s")


@REGISTRY.fault(
    38,
    "Gripper does nothing",
    injected="a gripper behind a topic that takes commands, and does not move",
    required="named after a second, by the actor's end: no reading, so that the episode ends "
    "truncated and the arm holds; it is driven again once it moves",
    level=Level.PROCESSES,
)
def idle_gripper(folder: Path) -> None:
    with driven(folder) as bay:
        bay.misbehave("numb")
        bay.drive(0.0, 0.0, 0.0, 1.0, until=lambda: bay.cell.state.startswith("policy"))
        bay.drive(0.0, 0.0, 0.0, -1.0, until=lambda: bay.arm.aim.closed)
        told_s = time.monotonic()
        bay.cell.lateness.worst_s = 0.0
        noticed_s, why = _complaint(bay, bay.arm, 30.0)
        assert why.startswith("gripper: told to close"), why
        assert noticed_s - told_s <= 1.0 + NOTICED_S + 3.0 * bay.cell.lateness.worst_s
        bay.arm.stop(why)  # as the control loop does
        bay.cell.until("hold: the actor holds")
        bay.misbehave("")
        bay.recover()
        bay.drive(0.0, 0.0, 0.0, 0.0, until=lambda: bay.opening() < 0.1)


def _noticed(bay: Bay, camera: str, faults: dict[str, str]) -> None:
    """Each fault of a camera stops the robot in time, by its name, and passes with it."""
    robot = WatchedRobot(bay.arm, CameraWatch(bay.arm.observation_spec.images))
    for fault, part in faults.items():
        bay.cell.lateness.worst_s = 0.0
        begun_s = bay.spoil(camera, fault)
        noticed_s, why = _complaint(bay, robot, 30.0)
        assert camera in why, why
        assert part in why, why
        late_s = 3.0 * bay.cell.lateness.worst_s
        assert noticed_s - begun_s <= NOTICED_S + late_s, (fault, noticed_s - begun_s, late_s)
        robot.stop(why)
        bay.spoil(camera, "")
        eventually(lambda: _is_well(robot))


def _is_well(robot: WatchedRobot) -> bool:
    try:
        robot.recover()
        robot.observe()
    except SerlError:
        return False
    return True


@REGISTRY.fault(
    39,
    "Camera behind a topic frozen",
    injected="a driver that sends the same bytes with new stamps, then the same message again and "
    "again, 30 a second",
    required="no reading within 300 ms, with the camera's name; the robot holds; goes on when it "
    "is well",
    level=Level.PROCESSES,
)
def frozen_camera_topic(folder: Path) -> None:
    with driven(folder, VIEWS) as bay:
        _noticed(bay, "wrist", {"frozen": "frozen: ", "stuck": "frozen: "})


@REGISTRY.fault(
    40,
    "Camera behind a topic gone, black, or of another size",
    injected="a driver that falls silent, sends black pictures, or larger ones",
    required="no reading within 300 ms, with the camera's name; the robot holds; goes on when it "
    "is well",
    level=Level.PROCESSES,
)
def lost_camera_topic(folder: Path) -> None:
    with driven(folder, VIEWS) as bay:
        _noticed(bay, "front", {"gone": "s old", "black": "black", "larger": "64"})


@REGISTRY.fault(
    41,
    "Camera behind a topic late",
    injected="one of two drivers stamps its pictures 300 ms ago",
    required="no reading within 300 ms, with the camera's name; the robot holds",
    level=Level.PROCESSES,
)
def late_camera_topic(folder: Path) -> None:
    with driven(folder, VIEWS) as bay:
        _noticed(bay, "front", {"late": "s old"})
