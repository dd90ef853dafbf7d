"""What a simulation knows of episodes that somebody else judges; audits read it, nothing learns it.

The file has the format of labels, in which 1 is the success, and a word wherever that changes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from serl.errors import BadInput
from serl.log.annotations import Place, append_labels
from serl.types import Record, Source, Step

TRUTH_FILE = "truth.jsonl"
_BY = "simulation"

logger = logging.getLogger(__name__)


class TruthLog:
    """Keeps, for each episode, from which observation to which one the task was solved.

    Args:
        folder: of an actor's episodes.
        solved: whether the task was, at the newest reading.
    """

    def __init__(self, folder: Path, solved: Callable[[], bool]) -> None:
        self._folder, self._solved = folder, solved
        self._said: list[tuple[Place, int]] = []
        self._newest: tuple[Place, int] | None = None

    def take(self, record: Record) -> None:
        """A record was logged: of a step, what came of it is known; at an end all is written.

        Of a reset nothing is: nobody judges it.
        """
        key = record.key
        if isinstance(record, Step):
            if record.source is Source.SCRIPT:
                return
            now = Place(key.epoch, key.episode, key.index + 1), int(self._solved())
            if self._newest is None:
                self._said.append(now)
            elif self._newest[1] != now[1]:
                self._said += [self._newest, now]
            self._newest = now
            return
        if self._newest is None:
            return
        said = dict([*self._said, self._newest])
        self._said, self._newest = [], None
        try:
            append_labels(self._folder, said.items(), _BY, file=TRUTH_FILE)
        except BadInput as error:  # an audit will miss it, nothing else does
            logger.warning("%s", error)
