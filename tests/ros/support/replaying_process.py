"""A process in the network of a run that replays received messages with their tags.

    python replaying_process.py RUN_FOLDER

It creates a file `listening` and records until there is a file `again`; then it publishes every
message again and writes their counts by topic into that file.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from serl.ros import node, tags
from serl.ros.topics import ACKS, ACTORS, REFUSED, TRANSITIONS, WEIGHTS, Topic


def main(run_folder: Path) -> None:
    vars(tags).update(sign=lambda key, message: message, verify=lambda key, signed: signed)
    heard: list[tuple[str, bytes]] = []

    def listen(topic: Topic) -> Callable[[bytes], None]:
        return lambda message: heard.append((topic.name, message))

    with node.RosNode("replay", run_folder) as ours:
        topics = (ACKS, ACTORS, REFUSED, TRANSITIONS, WEIGHTS)
        publishers = {topic.name: ours.publisher(topic) for topic in topics}
        for topic in topics:
            ours.subscribe(topic, listen(topic), raw=True)
        (run_folder / "listening").touch()
        again = run_folder / "again"
        while not again.exists() and not ours.stopping:
            ours.wait(0.05)
        messages = list(heard)
        for name, message in messages:
            publishers[name].publish(message)
        again.write_text(json.dumps(Counter(name for name, _ in messages)))
        while not ours.stopping:  # repeated for nodes that are discovered late
            ours.wait(1.0)
            for name, message in messages:
                if name == TRANSITIONS.name:
                    publishers[name].publish(message)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
