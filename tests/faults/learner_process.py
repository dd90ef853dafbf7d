"""A learner that accepts records as the real one does, notes their keys down, and learns nothing.

python -m tests.faults.learner_process RUN_FOLDER
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

from serl.episodes import count_records, episode_name, episode_paths, read_records
from serl.index import Index, Stream, accepted, open_index
from serl.mirror import Mirror
from serl.ros.node import RosNode
from serl.ros.transport import LearnerTransport
from serl.run_folder import RunFolder
from serl.specs import Spec
from serl.supervisor import orphaned
from serl.types import Record

from .books import accepted_book, lines_of, read_book


class Learner:
    """The index of a run and the book beside it, as a predecessor left them."""

    def __init__(self, run: Path, spec: Spec) -> None:
        self._files = _files(run)
        self._spec = spec
        logged = {stream: sum(map(count_records, paths)) for stream, paths in self._files.items()}
        self.index: Index = open_index(run / "index.sqlite", logged).index
        self.mirror = Mirror(RunFolder.open(run), spec)
        book = accepted_book(run)
        # The book is ahead of the index after a death between the two, behind one that was rebuilt.
        kept = read_book(book)[: sum(self.index.cursors.values())]
        book.write_text("".join(f"{line}\n" for line in kept))
        self._book = os.open(book, os.O_WRONLY | os.O_APPEND)
        self._note(islice(accepted(self.index.spans(), self._read), len(kept), None))

    def accept(self, records: Sequence[Record]) -> None:
        """Note the records down, copy those of other hosts, then commit, all or none."""
        self._note(records)
        self.mirror.append(records)
        self.index.accept(records)

    def claim(self, actor: str, home: str, place: str) -> str:
        """As the real one's."""
        reason = self.index.claim(actor, home, place)
        if not reason:
            self.mirror.meet(actor, home)
        return reason

    def _note(self, records: Iterable[Record]) -> None:
        os.write(self._book, lines_of(record.key for record in records).encode())

    def _read(self, stream: Stream) -> Iterator[Record]:
        return read_records(self._files[stream], self._spec)


def main(run: Path) -> None:
    spec = Spec.model_validate_json((run / "spec.json").read_text())
    learner = Learner(run, spec)
    with RosNode("learner", run) as node, learner.index as index:
        transport = LearnerTransport(node, spec, run.name, index.cursors, learner.claim)
        while not (node.stopping or orphaned()):
            records = transport.receive()
            learner.accept(records)
            if not records:
                node.wait(0.005)


def _files(run: Path) -> dict[Stream, list[Path]]:
    """The episode files of each stream, in order."""
    files: dict[Stream, list[Path]] = {}
    for folder in sorted((run / "episodes").glob("*")):
        for path in episode_paths(folder):
            files.setdefault((folder.name, episode_name(path).epoch), []).append(path)
    return files


if __name__ == "__main__":
    main(Path(sys.argv[1]))
