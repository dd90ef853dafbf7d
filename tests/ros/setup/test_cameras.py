"""The camera step of `serl setup`, with cameras that a node of this process publishes."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from sensor_msgs.msg import Image

from serl.arm_profile import load_robot
from serl.ros.arm.camera import picture_topic
from serl.ros.conversions import image_message
from serl.ros.node import RosNode
from serl.ros.services import Remote
from serl.ros.setup import cameras as module
from serl.ros.setup.cameras import cameras
from serl.ros.setup.checks import StepFailed
from serl.ros.testing.processes import eventually

pytestmark = pytest.mark.ros


class Cell:
    """A setup session beside cameras, whose person answers by the key of the question."""

    def __init__(self, folder: Path) -> None:
        self.node, self.other = (RosNode(name, folder, local=True) for name in ("setup", "driver"))
        self.answers = dict[str, str]()
        self.said = list[str]()
        self.profile, self.out = load_robot("sim"), folder / "arm.yaml"
        remote = Remote(self.node)
        self.arm: Any = SimpleNamespace(driver=SimpleNamespace(remote=remote))
        self.asker: Any = SimpleNamespace(
            show=self.said.append, ask=self._answer, pressed=lambda key: True
        )

    def _answer(self, key: str, question: str) -> str:
        return self.answers.get(key, "y" if key.endswith(".good") else "")

    def publish(self, base: str, encoding: str = "rgb8") -> None:
        """Publish pictures at 20 Hz from now on, each brighter than the one before."""
        topic, frames = picture_topic("", base), count()
        if not base:
            topic = topic._replace(name="/image_raw")
        publisher = self.other.publisher(topic)

        def send() -> None:
            picture = np.full((8, 8, 3), 100 + next(frames) % 100, np.uint8)
            stamp_ns = self.other.handle.get_clock().now().nanoseconds
            message: Image = image_message(picture, "camera", stamp_ns)
            message.encoding = encoding
            publisher.publish(message)

        self.other.every(0.05, send)
        eventually(lambda: self.node.handle.count_publishers(topic.name))

    def run(self) -> str:
        given: Any = self
        return cameras(given)


@pytest.fixture
def cell(tmp_path: Path) -> Iterator[Cell]:
    made = Cell(tmp_path)
    with made.node, made.other:
        yield made


def test_camera_step_ends_its_subscriptions(cell: Cell) -> None:
    """Leave none behind: the node would go on to receive all pictures while the arm moves."""
    cell.publish("/front")
    before = len(list(cell.node.handle.subscriptions))
    assert cell.run().startswith("front ")
    assert cell.profile.cameras["front"].topic == "/front"
    eventually(lambda: len(list(cell.node.handle.subscriptions)) == before)


def test_camera_step_can_leave_out_camera_whose_pictures_cannot_be_read(
    cell: Cell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_LIMIT_S", 2.0)
    cell.publish("/front")
    cell.publish("/depth", "16UC1")
    with pytest.raises(StepFailed, match=r"camera /depth: .*image encoding '16UC1'"):
        cell.run()
    cell.answers["cameras/depth"] = "-"
    assert cell.run().startswith("front ")
    assert list(cell.profile.cameras) == ["front"]


def test_camera_step_leaves_out_camera_at_the_root(cell: Cell) -> None:
    cell.publish("")
    with pytest.raises(StepFailed, match="no camera publishes in a namespace"):
        cell.run()
    assert "/image_raw is left out: give its driver a namespace" in cell.said[0]
    cell.publish("/front")
    assert cell.run().startswith("front ")
