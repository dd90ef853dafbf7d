"""A fake camera driver in its own process, with sensor noise and optional faults.

    python fake_camera.py NAMESPACE CAMERA [RECORD]

It writes the monotonic time and the fault of each image into the file RECORD. Its parameter
`fault` selects a fault: frozen (the same bytes, with new stamps), stuck (the same message
repeatedly), black, gone (no messages), larger, late (stamps 300 ms old).
"""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path
from typing import Any

import rclpy
from rclpy.executors import ExternalShutdownException
from rclpy.qos import qos_profile_sensor_data
from sensor_msgs.msg import Image

SIDE_PX = 32
PERIOD_S = 1 / 30


class FakeCamera:
    def __init__(self, namespace: str, camera: str, record: Path = Path("/dev/null")) -> None:
        self._node: Any = rclpy.create_node(camera, namespace=namespace, enable_rosout=False)
        self._node.declare_parameter("fault", "")
        name = f"{namespace}/{camera}/image_raw"
        self._images = self._node.create_publisher(Image, name, qos_profile_sensor_data)
        self._last = self._picture(SIDE_PX)
        self._record = record.open("a", buffering=1)
        self._node.create_timer(PERIOD_S, self._tick)

    def spin(self) -> None:
        rclpy.spin(self._node)

    def _tick(self) -> None:
        fault = str(self._node.get_parameter("fault").value)
        self._record.write(f"{time.monotonic()} {fault}\n")
        if fault == "gone":
            return
        message = self._last
        if fault not in ("frozen", "stuck"):
            message = self._picture(2 * SIDE_PX if fault == "larger" else SIDE_PX)
        if fault == "black":
            message.data = bytes(len(message.data))
        if fault != "stuck":
            message.header.stamp = self._node.get_clock().now().to_msg()
        if fault == "late":
            late_ns = self._node.get_clock().now().nanoseconds - 300_000_000
            message.header.stamp.sec, message.header.stamp.nanosec = divmod(late_ns, 1_000_000_000)
        self._last = message
        self._images.publish(message)

    def _picture(self, side_px: int) -> Image:
        message = Image(height=side_px, width=side_px, encoding="rgb8", step=3 * side_px)
        message.data = random.randbytes(3 * side_px * side_px)
        return message


if __name__ == "__main__":
    rclpy.init(args=[])
    try:
        FakeCamera(sys.argv[1], sys.argv[2], *map(Path, sys.argv[3:])).spin()
    except (KeyboardInterrupt, ExternalShutdownException):
        pass
    finally:
        rclpy.try_shutdown()
