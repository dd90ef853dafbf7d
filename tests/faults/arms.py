"""Faults of drivers, grippers and cameras behind topics: processes over real DDS.

The measured wake-up delay of this machine is added to time limits, as in `motion`.
"""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from unittest.mock import patch

import numpy as np

from serl.camera import View
from serl.compliance import differences
from serl.errors import SerlError
from serl.guard.camera_monitor import CameraMonitor
from serl.ros.arm.camera import RosCamera, picture_topic
from serl.ros.arm.controller import controller_node
from serl.ros.arm.guard_client import GuardClient
from serl.ros.arm.station import Station
from serl.ros.camera import CameraNode, PublishConfig, describe
from serl.ros.environment import free_domain
from serl.ros.node import RosNode
from serl.ros.services import Remote
from serl.ros.testing import ProfileBench
from serl.ros.testing.processes import LIMIT_S, ROBOT, eventually
from serl.system.cameras import CameraLost, ReconnectingCamera, device_path
from serl.teleop.stop import StopLatch
from serl.types import ActionSource, Image, Observation

from ..ros.support.guard_bench import GuardBench
from ..support.upstream import file_of
from .motion import bench_in
from .registry import REGISTRY, Level, Scene

CAMERA, PLUGGED = "front", "wrist"
VIEW = View(camera=CAMERA, width=16, height=16, capture=(32, 32))
PERIOD_S = 0.1
FRAME_S = 1 / 30
NOTICED_S = 0.3


@contextmanager
def _franka(folder: Path) -> Iterator[ProfileBench]:
    """Start a fake FR3 with crisp_controllers and a guard that drives it."""
    with (
        free_domain() as domain,
        patch.dict(os.environ, ROS_DOMAIN_ID=str(domain.id)),
        ProfileBench(folder, "franka", file_of("franka")) as bench,
    ):
        yield bench


franka = Scene(_franka)


def _complaint(observe: Callable[[], object], part: str) -> tuple[float, str]:
    """Read ten times a second; return the time and message of an error that contains `part`."""
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
    "Gripper does not move",
    injected="a gripper behind a topic accepts commands and does not move",
    required="detected and named after a second; the episode ends truncated, and the arm holds "
    "until the gripper moves",
    level=Level.PROCESSES,
    scene=franka,
)
def idle_gripper(bench: ProfileBench) -> None:
    bench.make_ready()
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


@REGISTRY.fault(
    7,
    "The arm's driver restarts between episodes",
    injected="SIGKILL to the driver of an FR3; a new one, whose controller has its default gains, "
    "clips and frame",
    required="protective stop; after `ack` the guard refuses the arm and names the controller, the "
    "waiting actor sets the profile's parameters, which does not move the arm; then a person "
    "can arm, and the arm is driven",
    level=Level.PROCESSES,
    scene=franka,
)
def restarted_driver(bench: ProfileBench) -> None:
    bench.make_ready()
    arm, hold = bench.arm, StopLatch(bench.folder / "stopped")
    arm.guard = GuardClient(bench.node, ROBOT, arm.remote)
    bench.drive(until=lambda: bench.state.startswith("policy"))
    bench.until("hold: command is stale")
    bench.signal("driver", signal.SIGKILL)
    bench.until("protective stop: the arm fell silent")
    hold.pause("no pose")  # as the actor does
    bench.start_fake(file_of("franka"))
    eventually(lambda: bench.call("ack")[0], found=lambda: bench.not_now)
    bench.until("disarmed")
    refusals, places = set[str](), [bench.position()]
    over_s = time.monotonic() + LIMIT_S

    def person() -> bool:
        """Arm as soon as the guard allows that, and only then end the actor's pause."""
        if bench.state.startswith("disarmed") and bench.not_now:
            refusals.add(bench.not_now)
            places.append(bench.position())
        elif bench.state.startswith("disarmed"):
            bench.call("arm")
        elif bench.state.startswith("hold"):
            hold.resume()
        return time.monotonic() > over_s

    assert Station(arm, hold, person).standby()
    controller = bench.node.absolute(controller_node(ROBOT, bench.profile))
    assert any(each.startswith(f"{controller}: task.k_pos_x is 500.0") for each in refusals)
    start = bench.profile.controller.parameters
    assert "use_local_jacobian" in start
    assert differences(bench.get(*start), start) == ""
    places.append(bench.position())
    assert float(np.ptp(places, axis=0).max()) < 1e-4
    bench.drive(until=lambda: abs(bench.position()[0] - places[0][0]) > 0.01, x=1.0)
    arm.guard = None


class WatchedCamera:
    """Camera driver in another process and the actor's subscriber, as in `RosArm`.

    Attributes:
        bench: bench of the driver.
        node: node of the subscriber.
    """

    def __init__(self, bench: GuardBench, node: RosNode, name: str = CAMERA) -> None:
        self.bench, self.node, self._name = bench, node, name
        self._remote = Remote(node)
        topic = picture_topic(ROBOT, name)
        self._camera = RosCamera(node, topic, {name: VIEW}, 0.2, still=False)
        self._monitor = CameraMonitor({name: VIEW.spec})

    def observe(self) -> None:
        """Read the newest image; raise `SerlError` when it cannot be trusted."""
        images, taken_s = self._camera.images()
        stamps = {"robot": time.monotonic(), self._name: taken_s}
        self._monitor.check(Observation({}, images, stamps))

    def is_well(self) -> bool:
        self._monitor.on_begin(ActionSource.POLICY)
        with suppress(SerlError):
            self.observe()
            return True
        return False

    def refuses(self, fault: str, part: str) -> None:
        """Check that a driver fault blocks readings within the limit and that they return after it.

        The time counts from the driver's first faulty image, by its own record, to the
        last accepted reading. The driver's pauses between images, and three times the
        delay with which this process wakes up, do not count.
        """
        eventually(self.is_well)
        self.bench.lateness.worst_s = 0.0
        self._remote.set_parameters(f"{ROBOT}/{CAMERA}", {"fault": fault})
        last_s = self.last_accepted_s(part)
        pictures_s = self._pictures_s(fault)
        pauses_s = (b - a - FRAME_S for a, b in pairwise(pictures_s) if a < last_s)
        allowed_s = NOTICED_S + max(0.0, *pauses_s, 0.0) + 3.0 * self.bench.lateness.worst_s
        assert last_s - pictures_s[0] <= allowed_s, (fault, last_s - pictures_s[0], allowed_s)
        self._remote.set_parameters(f"{ROBOT}/{CAMERA}", {"fault": ""})

    def last_accepted_s(self, part: str) -> float:
        """Read until an error contains `part`, and return the time of the last accepted reading."""
        last_s, deadline_s, why = -math.inf, time.monotonic() + 60.0, ""
        while part not in why:
            assert time.monotonic() < deadline_s, f"expected {part!r}, got {why!r}"
            asked_s = time.monotonic()
            try:
                self.observe()
                last_s = asked_s
            except SerlError as error:
                why = str(error)
            time.sleep(PERIOD_S)  # real time passes
        assert self._name in why, why
        return last_s

    def _pictures_s(self, fault: str) -> list[float]:
        """Return the times at which the driver sent images with a fault, or should have."""
        lines = (self.bench.folder / f"{CAMERA}.txt").read_text().splitlines()
        return [float(line.split(" ")[0]) for line in lines if line.endswith(f" {fault}")]


@contextmanager
def _camera(folder: Path) -> Iterator[WatchedCamera]:
    """Start a working camera at 30 Hz."""
    with bench_in(folder) as bench, RosNode("eyes", folder, local=True) as node:
        bench.start_camera(CAMERA)
        yield WatchedCamera(bench, node)


camera = Scene(_camera)


@REGISTRY.fault(
    39,
    "Camera behind a topic frozen",
    injected="a driver sends the same bytes with new stamps, then the same message 30 times a "
    "second",
    required="readings fail within 300 ms with the camera's name, so that the robot holds; it "
    "continues once the camera works",
    level=Level.PROCESSES,
    scene=camera,
)
def frozen_camera_topic(watched: WatchedCamera) -> None:
    watched.refuses("frozen", "frozen: ")
    watched.refuses("stuck", "s old")


@REGISTRY.fault(
    40,
    "Camera behind a topic missing, black, or of another size",
    injected="a driver sends nothing, black pictures, or larger ones",
    required="readings fail within 300 ms with the camera's name, so that the robot holds; it "
    "continues once the camera works",
    level=Level.PROCESSES,
    scene=camera,
)
def lost_camera_topic(watched: WatchedCamera) -> None:
    for fault, part in {"gone": "s old", "black": "black", "larger": "64"}.items():
        watched.refuses(fault, part)


@REGISTRY.fault(
    41,
    "Camera behind a topic late",
    injected="a driver stamps its pictures 300 ms in the past",
    required="readings fail within 300 ms, with the camera's name",
    level=Level.PROCESSES,
    scene=camera,
)
def late_camera_topic(watched: WatchedCamera) -> None:
    watched.refuses("late", "s old")


class PluggedDevice:
    """The device file of a USB camera, which has another number each time it is plugged in.

    Attributes:
        link: link to it with a fixed name, as in `/dev/v4l/by-id`.
    """

    def __init__(self, folder: Path) -> None:
        self.link, self._folder, self._number = folder / "by-id", folder, 0

    def plug(self) -> None:
        self._number += 2
        (device := self._folder / f"video{self._number}").touch()
        self.link.symlink_to(device)

    def unplug(self) -> None:
        device = self.link.resolve()
        self.link.unlink()
        device.unlink()


class NoisyCamera:
    """Camera with a sensor's noise that ends with its device file."""

    def __init__(self, device: str) -> None:
        self._file = device_path(device).resolve()
        self.name, self._rng = self._file.name, np.random.default_rng(0)

    def read(self) -> Image:
        time.sleep(FRAME_S)  # real time passes
        if not self._file.exists():
            raise CameraLost(f"{self.name} delivers no more frames")
        return self._rng.integers(0, 256, (32, 32, 3), np.uint8)

    def close(self) -> None:
        pass


@contextmanager
def _plugged(bench: GuardBench) -> Iterator[tuple[PluggedDevice, list[str]]]:
    """Publish a camera as `serl camera` does; yield its device, and the lines that it prints."""
    device, lines, over = PluggedDevice(bench.folder), list[str](), threading.Event()
    device.plug()
    source = ReconnectingCamera(partial(NoisyCamera, str(device.link)), lines.append)
    config = PublishConfig(frame="optical")
    own = describe(source.name, config)
    with RosNode(PLUGGED, bench.folder, local=True, parameters=own, managed=True) as node:
        camera = CameraNode(node, ROBOT, PLUGGED, config, source)
        publishing = threading.Thread(target=camera.run, args=(over.is_set,))
        publishing.start()
        try:
            yield device, lines
        finally:
            over.set()
            publishing.join()


@REGISTRY.fault(
    40,
    "USB camera is plugged in again under another number",
    injected="the device of a camera node disappears, and returns as another `/dev/videoN` behind "
    "the same link",
    required="readings fail within 300 ms with the camera's name, so that the robot holds; the "
    "node opens the new device, and reading continues",
    level=Level.PROCESSES,
    scene=camera,
)
def replugged_camera(watched: WatchedCamera) -> None:
    bench = watched.bench
    with _plugged(bench) as (device, lines):
        plugged = WatchedCamera(bench, watched.node, PLUGGED)
        eventually(plugged.is_well)
        bench.lateness.worst_s = 0.0
        silent_s = time.monotonic()
        device.unplug()
        took_s = plugged.last_accepted_s("s old") - silent_s
        allowed_s = NOTICED_S + 3.0 * bench.lateness.worst_s
        assert took_s <= allowed_s, (took_s, allowed_s)
        device.plug()
        eventually(plugged.is_well)
    assert lines == ["video2 delivers no more frames; retrying every 1 s", "video4 is back"]
