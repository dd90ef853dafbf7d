"""Faults of grippers and cameras behind topics: foreign processes, over real DDS.

How late this machine is with waking up who sleeps is added to what is required, as in `motion`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from unittest.mock import patch

from serl.camera import View
from serl.errors import SerlError
from serl.guard.camera_monitor import CameraMonitor
from serl.ros.arm.camera import RosCamera, picture_topic
from serl.ros.environment import free_domain
from serl.ros.node import RosNode
from serl.ros.services import Remote
from serl.ros.testing import ProfileBench
from serl.ros.testing.processes import ROBOT, eventually
from serl.types import Observation

from ..ros.support.cell import Cell
from ..support.upstream import file_of
from .registry import REGISTRY, Level

CAMERA = "front"
VIEW = View(camera=CAMERA, width=16, height=16, capture=(32, 32))
PERIOD_S = 0.1
NOTICED_S = 0.3
TRIES = 5


@contextmanager
def driven(folder: Path) -> Iterator[ProfileBench]:
    """An FR3 as crisp_controllers have it, whose guard has taken it."""
    with (
        free_domain() as domain,
        patch.dict(os.environ, ROS_DOMAIN_ID=str(domain.id)),
        ProfileBench(folder, "franka", file_of("franka")) as bench,
    ):
        bench.take()
        bench.arm.observe_when_fresh(60.0)
        yield bench


def _complaint(observe: Callable[[], object], part: str) -> tuple[float, str]:
    """When who is read ten times a second says so, instead of a reading, and its words."""
    deadline_s, why = time.monotonic() + 60.0, ""
    while time.monotonic() < deadline_s:
        try:
            observe()
        except SerlError as error:
            why = str(error)
            if part in why:
                return time.monotonic(), why
        time.sleep(PERIOD_S)  # real time passes
    raise AssertionError(f"expected a complaint with {part!r}: {why}")


@REGISTRY.fault(
    38,
    "Gripper does nothing",
    injected="a gripper behind a topic that takes commands, and does not move",
    required="named after a second, by the actor's end: no reading, so that the episode ends "
    "truncated and the arm holds; it is driven again once it moves",
    level=Level.PROCESSES,
)
def idle_gripper(folder: Path) -> None:
    with driven(folder) as bench:
        bench.misbehave("numb")
        bench.drive(until=lambda: bench.state.startswith("policy"), gripper=1.0)
        bench.drive(until=lambda: bench.arm.aim.closed, gripper=-1.0)
        told_s = time.monotonic()
        bench.lateness.worst_s = 0.0
        noticed_s, why = _complaint(bench.arm.observe, "gripper: commanded to close")
        assert noticed_s - told_s <= 1.0 + NOTICED_S + 3.0 * bench.lateness.worst_s
        bench.arm.stop(why)  # as the control loop does
        bench.until("hold: the actor holds")
        bench.misbehave()
        bench.recover()
        bench.drive(until=lambda: bench.opening() < 0.1)


class Eyes:
    """A camera's driver in another process, and the actor's end of it, as `RosArm` has one."""

    def __init__(self, cell: Cell, node: RosNode) -> None:
        self.cell, self._remote = cell, Remote(node)
        topic = picture_topic(ROBOT, CAMERA)
        self._camera = RosCamera(node, topic, {CAMERA: VIEW}, 0.2, still=False)
        self._watch = CameraMonitor({CAMERA: VIEW.spec})

    def observe(self) -> None:
        """Look at the newest picture; raises when it cannot be trusted."""
        images, taken_s = self._camera.images()
        stamps = {"robot": time.monotonic(), CAMERA: taken_s}
        self._watch.check(Observation({}, images, stamps))

    def spoil(self, fault: str) -> float:
        """Let the driver have a fault; when that was."""
        self._remote.set_parameters(f"{ROBOT}/{CAMERA}", {"fault": fault})
        return time.monotonic()

    def is_well(self) -> bool:
        self._watch.begin()
        with suppress(SerlError):
            self.observe()
            return True
        return False


@contextmanager
def seeing(folder: Path) -> Iterator[Eyes]:
    """A camera that is well."""
    with (
        free_domain() as domain,
        patch.dict(os.environ, ROS_DOMAIN_ID=str(domain.id)),
        Cell(folder) as cell,
        RosNode("eyes", folder, local=True) as node,
    ):
        cell.start_camera(CAMERA)
        yield Eyes(cell, node)


def _noticed(folder: Path, faults: dict[str, str]) -> None:
    """Each fault of a camera leaves no reading in time, by its name, and passes with it.

    The driver and the executor may be late as well, which cannot be measured from here: a busy
    machine only delays, so that the best of a few tries counts.
    """
    with seeing(folder) as eyes:
        for fault, part in faults.items():
            late_s = [_late_s(eyes, fault, part)]
            while min(late_s) > NOTICED_S:
                assert len(late_s) < TRIES, (fault, late_s)
                late_s.append(_late_s(eyes, fault, part))
        eventually(eyes.is_well)


def _late_s(eyes: Eyes, fault: str, part: str) -> float:
    """How long a fault of a camera goes unnoticed, less what this machine is late."""
    eventually(eyes.is_well)
    eyes.cell.lateness.worst_s = 0.0
    begun_s = eyes.spoil(fault)
    noticed_s, why = _complaint(eyes.observe, part)
    assert CAMERA in why, why
    eyes.spoil("")
    return noticed_s - begun_s - 3.0 * eyes.cell.lateness.worst_s


@REGISTRY.fault(
    39,
    "Camera behind a topic frozen",
    injected="a driver that sends the same bytes with new stamps, then the same message again and "
    "again, 30 a second",
    required="no reading within 300 ms, with the camera's name, so that the robot holds; "
    "goes on when it is well",
    level=Level.PROCESSES,
)
def frozen_camera_topic(folder: Path) -> None:
    _noticed(folder, {"frozen": "frozen: ", "stuck": "s old"})


@REGISTRY.fault(
    40,
    "Camera behind a topic gone, black, or of another size",
    injected="a driver that falls silent, sends black pictures, or larger ones",
    required="no reading within 300 ms, with the camera's name, so that the robot holds; "
    "goes on when it is well",
    level=Level.PROCESSES,
)
def lost_camera_topic(folder: Path) -> None:
    _noticed(folder, {"gone": "s old", "black": "black", "larger": "64"})


@REGISTRY.fault(
    41,
    "Camera behind a topic late",
    injected="a driver that stamps its pictures 300 ms ago",
    required="no reading within 300 ms, with the camera's name",
    level=Level.PROCESSES,
)
def late_camera_topic(folder: Path) -> None:
    _noticed(folder, {"late": "s old"})
