"""A film in the place of a camera, over real DDS: `serl camera` in a process of its own."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sensor_msgs.msg import CameraInfo

from serl.camera import View
from serl.errors import Silent
from serl.guard.camera_monitor import CameraFault, CameraMonitor, CameraMonitorConfig
from serl.ros.arm.camera import RosCamera, cell_camera, info_topic
from serl.ros.environment import meet_others
from serl.ros.node import RosNode
from serl.ros.testing.processes import eventually
from serl.types import ActionSource, Image, Observation
from serl.workspace import CellCamera

from ..system.test_cameras import RED, write_film
from .conftest import Run

pytestmark = pytest.mark.ros

AGE_S = 0.2
CELL = ("--namespace", "/cell/arm")


class Bench:
    """Cameras as processes, and a node that looks at them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "cell"
        self.folder.mkdir()
        meet_others(self.folder)
        self.film = write_film(folder / "a.avi", 40)
        self.processes = Run(self.folder)
        self.node = RosNode("looker", self.folder, local=True)

    def start(self, name: str, *options: str) -> subprocess.Popen[str]:
        words = ("camera", name, "--file", str(self.film), *CELL, *options)
        return self.processes.start("-m", "serl.cli.main", *words)

    def camera(self, name: str, oldest_s: float = AGE_S, **known: Any) -> RosCamera:
        views = {name: View(camera=name, width=32, height=24)}
        cell = CellCamera(topic=f"/cell/arm/{name}", rate_hz=20.0, **known) if known else None
        return cell_camera(self.node, "arm", name, views, oldest_s, cell)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    made = Bench(tmp_path_factory.mktemp("cameras"))
    with made.node:
        yield made
        made.processes.end()


def seen(camera: RosCamera) -> bool:
    return camera.feed.is_fresh


def newest(camera: RosCamera) -> tuple[Mapping[str, Image], float]:
    """Return the images, once a busy machine is not late, and the time when they were taken."""
    found: list[tuple[Mapping[str, Image], float]] = []

    def is_seen() -> bool:
        with suppress(Silent):
            found.append(camera.images())
        return bool(found)

    eventually(is_seen)
    return found[0]


def test_pictures_arrive_in_size_colour_and_time_and_its_end_is_noticed(bench: Bench) -> None:
    infos: list[CameraInfo] = []
    bench.node.subscribe(info_topic("arm", "front"), infos.append)
    camera = bench.camera("front")
    options = ("--crop", "0.5,0,1,1", "--resize", "48x64", "--frame-id", "front_optical", "--loop")
    process = bench.start("front", *options)
    images, taken_s = newest(camera)
    assert 0.0 <= time.monotonic() - taken_s < AGE_S + 0.1
    assert images["front"].shape == (24, 32, 3)
    assert np.abs(images["front"][5, 20].astype(int) - RED).max() < 15
    whole = camera.feed._samples[-1].value
    assert whole.shape == (64, 48, 3), "cut and resized before it was sent"
    eventually(lambda: infos)
    info = infos[-1]
    assert (info.width, info.height, info.header.frame_id) == (48, 64, "front_optical")
    first_ns = camera.feed.stamp_ns
    eventually(lambda: camera.feed.stamp_ns > first_ns)
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=30)[1]
    assert process.returncode == 0, said
    eventually(lambda: not seen(camera))
    with pytest.raises(Silent, match=r"front/image_raw: its newest message is .* over 0.2 s"):
        camera.images()


def test_a_compressed_one_is_known_by_the_profile_of_the_cell(bench: Bench) -> None:
    left = bench.camera("wrist", compressed=True, crop=(0.0, 0.0, 0.1, 1.0))
    bench.start("wrist", "--jpeg", "90", "--loop")
    eventually(lambda: newest(left)[0]["wrist"][12, 3, 2] > 150)  # the bar, which has come
    assert newest(left)[0]["wrist"].shape == (24, 32, 3)


def test_an_unplugged_camera_is_told_and_stops_the_robot_in_time(
    bench: Bench, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The end of a film is a camera that is gone: its last picture is too old within 300 ms."""
    bench.film = write_film(tmp_path / "side.avi", 80)
    camera = bench.camera("side", oldest_s=60.0)  # a feed that lets everything pass
    watch = CameraMonitor({"side": View(camera="side", width=32, height=24).spec})
    process = bench.start("side")
    eventually(lambda: seen(camera))
    assert process.wait(60.0) == 0
    ended_s = time.monotonic()
    assert "camera side: " in (said := capfd.readouterr().out)
    assert "side.avi ended" in said
    eventually(lambda: faulty(camera, watch))
    last_s = camera.images()[1]
    with pytest.raises(CameraFault, match=r"camera side: its image is .* s old, over 0.2 s"):
        watch.check(reading(camera, last_s + 0.21))
    watch.on_begin(ActionSource.POLICY)
    watch.check(reading(camera, last_s + 0.19))
    assert last_s < ended_s


def test_a_frozen_camera_is_noticed_by_its_pictures(bench: Bench, tmp_path: Path) -> None:
    """New messages, new stamps, and the same picture: 300 ms are 5 of them at 20 Hz."""
    bench.film = write_film(tmp_path / "one.avi", 1)
    camera = bench.camera("stuck", oldest_s=2.0)
    watch = CameraMonitor(
        {"stuck": View(camera="stuck", width=32, height=24).spec},
        CameraMonitorConfig(max_age_s=2.0),
    )
    bench.start("stuck", "--loop")
    eventually(lambda: seen(camera))
    stamps: list[float] = []

    def look() -> None:
        eventually(lambda: camera.feed.newest().taken_s not in stamps)
        stamps.append(camera.images()[1])
        watch.check(reading(camera, stamps[-1]))

    for _ in range(4):
        look()
    with pytest.raises(CameraFault, match="camera stuck: frozen, 5 equal images in a row"):
        look()


def reading(camera: RosCamera, now_s: float) -> Observation:
    """Of a robot whose state is of now, and of this camera."""
    images, taken_s = camera.images()
    return Observation({}, images, {"robot": now_s, **dict.fromkeys(images, taken_s)})


def faulty(camera: RosCamera, watch: CameraMonitor) -> bool:
    try:
        watch.on_begin(ActionSource.POLICY)
        watch.check(reading(camera, time.monotonic()))
    except CameraFault:
        return True
    return False
