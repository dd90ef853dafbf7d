"""A person marks images of success and of anything else, while driving to where they are seen."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

from serl.runs.task_setup import drawn_by
from serl.teleop.human_input import Desk
from serl.log.episode_reader import episode_paths, next_epoch
from serl.errors import SerlError, Silent
from serl.training.evaluation import Purpose, start_seed
from serl.intervention import Event
from serl.log.annotations import Place, append_labels, read_labels
from serl.loop import EpisodeKey
from serl.datasets.person import ACTOR, Stand
from serl.log.episode_log import EpisodeLog
from serl.log.recovery import recover
from serl.datasets.reward_collection import Counts, Watching, collection_spec
from serl.runs.reward_data import write_views
from serl.runs.folder import RunFolder
from serl.task import SimulatedTask
from serl.types import Action, Record, Step

_MEANING = {Event.SUCCESS: 1, Event.FAILURE: 0}


class Marks:
    """Labels steps as they pass; whoever holds a key down marks each of them once.

    Args:
        run: the collection, whose labels these are.
        by: who says so.
    """

    def __init__(self, run: RunFolder, by: str = "the operator") -> None:
        self._folder, self._by = run.path, by
        self._labels = read_labels(self._folder)
        self._newest: Place | None = None

    @property
    def counts(self) -> Counts:
        """How many steps are marked."""
        positives = sum(label > 0 for label in self._labels.values())
        return Counts(positives, len(self._labels) - positives)

    def watch(self, record: Record) -> None:
        """A step was logged: what it saw is what a mark means now."""
        key = record.key
        seen = Place(key.epoch, key.episode, key.index)
        self._newest = seen if isinstance(record, Step) else None

    def mark(self, label: int) -> str:
        """Label the newest step; raises `SerlError` where none passes.

        To mark a step again in the same way changes nothing; in another, the last word counts.
        """
        place = self._newest
        if place is None:
            raise SerlError("nothing to mark: the episode begins when you drive")
        if self._labels.get(place) != label:
            append_labels(self._folder, [(place, label)], self._by)
            self._labels[place] = label
        positives, negatives = self.counts
        return f"{positives} positives, {negatives} negatives"


class _Marking:
    """A desk where a word of success or failure marks the step that passes, and ends nothing."""

    def __init__(self, desk: Desk, marks: Marks) -> None:
        self._desk, self._marks = desk, marks

    def begin(self) -> None:
        self._desk.begin()

    def __call__(self) -> Action | None:
        return self._desk()

    def events(self) -> tuple[Event, ...]:
        said = self._desk.events()
        for event in said:
            if event in _MEANING:
                with suppress(SerlError):  # no step has passed yet
                    self._marks.mark(_MEANING[event])
        return tuple(event for event in said if event not in _MEANING)


def collect_person(
    stand: Stand,
    task: SimulatedTask,
    run: RunFolder,
    marks: Marks,
    wanted: Counts,
    seed: int,
    progress: Callable[[Counts], object] = lambda counts: None,
) -> Counts:
    """Let a person drive and mark until there is enough of both, or until stopping.

    What a device says for success and failure marks a step as well.

    Raises:
        BadInput: the task has no cameras.
        Silent: the robot is, and the stand has nobody to tell.
    """
    spec = collection_spec(task)
    write_views(run.path, task.config.all_views, drawn_by(run.config))
    recover(run.path)
    told = stand.told

    def watched(record: Record) -> None:
        marks.watch(record)
        told(record)

    def enough() -> bool:
        return marks.counts.positives >= wanted.positives and (
            marks.counts.negatives >= wanted.negatives
        )

    stopping = stand.stopping
    stand.told, stand.stopping = watched, lambda: enough() or stopping()
    name = run.path.resolve().name
    while not stand.stopping():
        epoch = next_epoch(run.path, time.time_ns)
        number = len(episode_paths(run.path))
        try:
            stand.begin(start_seed(Purpose.REWARD, seed, ACTOR, number))
            if not stand.await_hands():
                break
            with EpisodeLog(run.path, spec, name, ACTOR, epoch, run.config.log) as log:
                key = EpisodeKey(name, ACTOR, epoch, 0)
                stand.episode(Watching(task), key, log, _Marking(stand.desk, marks))
        except Silent as error:
            if stand.silent is None:
                raise
            stand.silent(str(error))
            continue
        progress(marks.counts)
    return marks.counts
