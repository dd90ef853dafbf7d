"""A ROS 2 program without serl, with the default transports of rclpy.

    python stock_process.py

Republishes /stock/heard on /stock/said; its service /stock/ask answers "here".
"""

from __future__ import annotations

import rclpy
from std_msgs.msg import String
from std_srvs.srv import Trigger


def answer(request: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
    response.success, response.message = True, "here"
    return response


def main() -> None:
    rclpy.init()
    node = rclpy.create_node("stock")
    heard: list[str] = []
    publisher = node.create_publisher(String, "/stock/said", 10)
    node.create_subscription(String, "/stock/heard", lambda m: heard.append(m.data), 10)
    node.create_timer(0.05, lambda: publisher.publish(String(data=" ".join(heard[-1:]))))
    node.create_service(Trigger, "/stock/ask", answer)
    rclpy.spin(node)


if __name__ == "__main__":
    main()
