"""A process without the run's key that forges messages in the run's domain on one host.

    python forging_process.py RUN_FOLDER HELLO_FILE SEQUENCE

It is a plain ROS 2 node. It repeatedly publishes the frame SEQUENCE of the actor that the file
introduces, an acknowledgement as of a later learner, weights of a high version, a refusal, and an
actor of its own with a record. Once each has a reader and was published ten times, there is a file
`forged` in the run's folder.
"""

from __future__ import annotations

import json
import sys
import time
from array import array
from pathlib import Path
from typing import Any

import numpy as np
import rclpy
from std_msgs.msg import String, UInt64MultiArray

from serl.log.wire import (
    Hello,
    WireFrame,
    actor_number,
    decode_hello,
    encode_frame,
    encode_hello,
    encode_record,
)
from serl.ros.environment import ros_name
from serl.ros.topics import ACKS, ACTORS, REFUSED, TRANSITIONS, WEIGHTS, to_cdr
from serl.testing.samples import random_step
from serl.training.link import encode_snapshot
from serl.transport import Snapshot
from serl.types import Key

TOPICS = (ACKS, ACTORS, REFUSED, TRANSITIONS, WEIGHTS)
VERSION = 10**6
ROUNDS = 10


def frame(hello: Hello, sequence: int) -> bytes:
    key = Key(hello.run, hello.actor, hello.epoch, 0, sequence)
    payload = encode_record(random_step(key, hello.spec, np.random.default_rng(0)))
    number = actor_number(hello.run, hello.actor)
    return to_cdr(*encode_frame(WireFrame(number, hello.epoch, sequence, payload)))


def messages(hello: Hello, sequence: int) -> list[tuple[str, Any]]:
    """Return the topic and message of every attack."""
    evil = hello._replace(actor="evil", home="e" * 32)
    number = actor_number(hello.run, hello.actor)
    ack = array("Q", (number, hello.epoch, sequence + 10, (1 << 63) + 1, 0))
    weights = Snapshot(VERSION, {hello.actor: VERSION}, {"folder": np.zeros(4, np.uint8)})
    refusal = {"actor": hello.actor, "epoch": hello.epoch, "reason": "\x1b[2Jforged\n"}
    return [
        (TRANSITIONS.name, frame(hello, sequence)),
        (ACTORS.name, String(data=encode_hello(evil).decode())),
        (TRANSITIONS.name, frame(evil, 0)),
        (ACKS.name, UInt64MultiArray(data=ack)),
        (WEIGHTS.name, to_cdr(encode_snapshot(weights, hello.spec.digest))),
        (REFUSED.name, String(data=json.dumps(refusal))),
    ]


def main(run_folder: Path, hello_file: Path, sequence: int) -> None:
    rclpy.init()
    node = rclpy.create_node("stranger", namespace=ros_name(run_folder.name))
    publishers = {
        topic.name: node.create_publisher(
            topic.kind, f"{node.get_namespace()}/{topic.name}", topic.qos
        )
        for topic in TOPICS
    }
    forged = messages(decode_hello(hello_file.read_bytes()), sequence)
    rounds = 0
    while True:
        for name, message in forged:
            publishers[name].publish(message)
        rounds += all(publisher.get_subscription_count() for publisher in publishers.values())
        if rounds == ROUNDS:
            (run_folder / "forged").touch()
        time.sleep(0.05)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
