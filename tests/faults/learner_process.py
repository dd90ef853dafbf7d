"""Learner process with a stand-in for the networks; notes down the records it received.

Everything else is `serl.ros.nodes.learner`: index, copies of logs, metrics, checkpoints, resume.

python -m tests.faults.learner_process RUN_FOLDER
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

from serl.log.index import Cursors
from serl.ros.link.receiver import LearnerTransport
from serl.ros.node import RosNode
from serl.ros.nodes import learner as learner_node
from serl.runs.folder import RunFolder
from serl.specs import Spec
from serl.types import Arrival, Key

from .books import accepted_book, count_accepted, lines_of, read_book
from .records import STEPS
from .summing import summing


class NotingTransport(LearnerTransport):
    """Transport that notes the keys of records passed to the learner before it accepts them."""

    book = Path()

    def __init__(
        self, node: RosNode, spec: Spec, run: str, cursors: Cursors, *arguments: Any
    ) -> None:
        first = not read_book(self.book)
        self._file = os.open(self.book, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        if first:  # a run's first learner reads records logged before its start from the log
            for (actor, epoch), length in cursors.items():
                places = (divmod(number, STEPS + 1) for number in range(length))
                self._note(Key(run, actor, epoch, *place) for place in places)
        super().__init__(node, spec, run, cursors, *arguments)

    def receive(self) -> Sequence[Arrival]:
        """Receive records and note their keys before they can be accepted."""
        arrived = super().receive()
        self._note(arrival.key for arrival in arrived)
        return arrived

    def _note(self, keys: Iterable[Key]) -> None:
        os.write(self._file, lines_of(keys).encode())


def main(run: Path) -> int:
    NotingTransport.book = book = accepted_book(run)
    # A predecessor killed between receiving and accepting noted more than it accepted.
    accepted = count_accepted(RunFolder.open(run).index)
    book.write_text("".join(f"{line}\n" for line in read_book(book)[:accepted]))
    with summing(), patch.object(learner_node, "LearnerTransport", NotingTransport):
        return learner_node.main(["--run", str(run)])


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
