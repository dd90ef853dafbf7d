"""`serl camera` in its own process, with a film instead of a camera, over real DDS."""

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
from serl.ros.arm.camera import RosCamera, cell_camera, info_topic
from serl.ros.environment import meet_others
from serl.ros.node import RosNode
from serl.ros.testing.processes import eventually
from serl.types import Image
from serl.workspace import CellCamera

from ..system.test_cameras import RED, write_film
from .conftest import Run

pytestmark = pytest.mark.ros

AGE_S = 0.2
CELL = ("--namespace", "/cell/arm")


class Bench:
    """Camera processes, and a node that subscribes to their images."""

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

    def camera(self, name: str, **known: Any) -> RosCamera:
        views = {name: View(camera=name, width=32, height=24)}
        cell = CellCamera(topic=f"/cell/arm/{name}", rate_hz=20.0, **known) if known else None
        return cell_camera(self.node, "arm", name, views, AGE_S, cell)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    made = Bench(tmp_path_factory.mktemp("cameras"))
    with made.node:
        yield made
        made.processes.end()


def is_fresh(camera: RosCamera) -> bool:
    return camera.feed.is_fresh


def newest(camera: RosCamera) -> tuple[Mapping[str, Image], float]:
    """Return the first images that are not late, and their capture time."""
    found: list[tuple[Mapping[str, Image], float]] = []

    def is_seen() -> bool:
        with suppress(Silent):
            found.append(camera.images())
        return bool(found)

    eventually(is_seen)
    return found[0]


def test_camera_node_publishes_cropped_resized_images_until_it_ends(bench: Bench) -> None:
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
    assert whole.shape == (64, 48, 3), "the image must be cropped and resized before publishing"
    eventually(lambda: infos)
    info = infos[-1]
    assert (info.width, info.height, info.header.frame_id) == (48, 64, "front_optical")
    first_ns = camera.feed.stamp_ns
    eventually(lambda: camera.feed.stamp_ns > first_ns)
    process.send_signal(signal.SIGINT)
    output = process.communicate(timeout=30)[1]
    assert process.returncode == 0, output
    eventually(lambda: not is_fresh(camera))
    with pytest.raises(Silent, match=r"front/image_raw: its newest message is .* over 0.2 s"):
        camera.images()


def test_cell_profile_reads_and_crops_compressed_camera(bench: Bench) -> None:
    left = bench.camera("wrist", compressed=True, crop=(0.0, 0.0, 0.1, 1.0))
    bench.start("wrist", "--jpeg", "90", "--loop")
    eventually(lambda: newest(left)[0]["wrist"][12, 3, 2] > 150)  # the bar is there
    assert newest(left)[0]["wrist"].shape == (24, 32, 3)


def test_unplugged_camera_is_reported_and_ends_its_node(
    bench: Bench, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """End the film to emulate an unplugged camera."""
    bench.film = write_film(tmp_path / "side.avi", 80)
    camera = bench.camera("side")
    process = bench.start("side")
    eventually(lambda: is_fresh(camera))
    assert process.wait(60.0) == 0
    assert "camera side: " in (output := capfd.readouterr().out)
    assert "side.avi ended" in output
    eventually(lambda: not is_fresh(camera))
