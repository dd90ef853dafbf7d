"""Programs that are not ours, with ROS 2's default transports, are met over 127.0.0.1."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from std_msgs.msg import String

from serl.ros.environment import meet_others, ros_status
from serl.ros.node import RosNode
from serl.ros.remote import Remote
from serl.ros.topics import Topic
from serl.sockets import open_sockets

from .conftest import eventually

pytestmark = pytest.mark.ros


@pytest.fixture
def stock() -> Iterator[subprocess.Popen[bytes]]:
    environ = {key: value for key, value in os.environ.items() if not key.startswith("FAST")}
    if ros_status().wheels:
        environ["AMENT_PREFIX_PATH"] = sys.prefix
    script = Path(__file__).with_name("stock_process.py")
    process = subprocess.Popen([sys.executable, str(script)], env=environ)
    yield process
    process.kill()
    process.wait()


def test_a_stock_program_hears_is_heard_and_answers(
    stock: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    meet_others(tmp_path)
    said: list[str] = []
    with RosNode("ours", tmp_path, local=True) as node:
        node.subscribe(Topic("/stock/said", String, 10), lambda m: said.append(m.data))
        publisher = node.publisher(Topic("/stock/heard", String, 10))

        def echoed() -> bool:
            publisher.publish(String(data="well"))
            return "well" in said

        eventually(echoed, 60.0)
        assert Remote(node, lambda: None).trigger("/stock/ask") == "here"
        assert all(found.address.is_loopback for found in open_sockets())
        assert stock.poll() is None
