"""A node of plain rclpy that prints "joined", and leaves its domain with its standard input.

python peer_process.py NAME
"""

from __future__ import annotations

import sys

import rclpy

if __name__ == "__main__":
    rclpy.init(args=[])
    node = rclpy.create_node(sys.argv[1], enable_rosout=False)
    print("joined", flush=True)  # noqa: T201
    sys.stdin.read()
    node.destroy_node()
