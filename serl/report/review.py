"""Review of recorded episodes in a terminal: a table, a summary of one, one in real time."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import groupby, pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rich.console import Console
from rich.text import Text

from serl.clock import Clock, VirtualClock
from serl.errors import BadInput
from serl.log.annotations import LABELS_FILE, read_label_entries
from serl.log.episode_reader import episode_name, episode_paths, read_episode, read_spec
from serl.loop import RecordCallback, Result
from serl.report.curves import Values
from serl.report.playback import replay
from serl.runs.deployment import one_part
from serl.runs.folder import RunFolder
from serl.specs import ArraySpec, Spec
from serl.system.json_fields import printable
from serl.types import ActionSource, Episode, Record, Step

STYLES = {
    ActionSource.POLICY: "blue",
    ActionSource.HUMAN: "yellow",
    ActionSource.SCRIPT: "bright_black",
}
_MARKS = {ActionSource.POLICY: "─", ActionSource.HUMAN: "█", ActionSource.SCRIPT: "┄"}
_LEVELS = "▁▂▃▄▅▆▇█"
_CELLS = 36
_HEAD = ("actor", "episode", "steps", "time", "return", "human", "success", "ended by")
_GOOD, _QUIET = "green", "bright_black"


class RecordingFile(NamedTuple):
    """The file of a recorded episode.

    Attributes:
        actor: name of the actor that recorded the episode.
        number: number among the actor's episodes over all of its starts, from 0.
    """

    actor: str
    number: int
    path: Path


class ReplayedEpisode(NamedTuple):
    """An episode that was read in full and replayed."""

    recording: RecordingFile
    spec: Spec
    episode: Episode
    result: Result


def recordings(folder: Path) -> list[RecordingFile]:
    """Return the episodes of a run, or of a folder of episode files, by actor, then by time.

    Raises:
        BadInput: the folder is neither of the two, has stages, or has no episode yet.
    """
    if episode_paths(folder):
        return _recordings(folder.resolve().name, folder)
    run = one_part(RunFolder.open(folder, data_only=True))
    found = [item for actor in run.actors() for item in _recordings(actor, run.episodes(actor))]
    if not found:
        raise BadInput(f"{folder}: no episode was recorded yet")
    return found


def _recordings(actor: str, folder: Path) -> list[RecordingFile]:
    return [RecordingFile(actor, number, path) for number, path in enumerate(episode_paths(folder))]


def of_actor(found: Sequence[RecordingFile], actor: str | None) -> list[RecordingFile]:
    """Return the recordings of one actor; all of them when `actor` is None.

    Raises:
        BadInput: the actor is unknown; the message names the known ones.
    """
    if actor is None:
        return list(found)
    known = list(dict.fromkeys(recording.actor for recording in found))
    if actor not in known:
        raise BadInput(f"no actor {actor!r}: expected one of {', '.join(known)}")
    return [recording for recording in found if recording.actor == actor]


def newest(found: Sequence[RecordingFile], most: int | None) -> list[RecordingFile]:
    """Return the last `most` recordings of each actor; all of them when `most` is None."""
    groups = groupby(found, key=lambda recording: recording.actor)
    return [each for _, group in groups for each in list(group)[-(most or 0) :]]


def pick(found: Sequence[RecordingFile], number: int) -> RecordingFile:
    """Return the episode `number`.

    Raises:
        BadInput: no actor or several actors have this episode; the message lists the choices.
    """
    chosen = [recording for recording in found if recording.number == number]
    if len(chosen) > 1:
        names = ", ".join(recording.actor for recording in chosen)
        raise BadInput(
            f"several actors have an episode {number}: choose one with --actor ({names})"
        )
    if not chosen:
        known = ", ".join(
            f"{actor} 0 to {max(recording.number for recording in group)}"
            for actor, group in groupby(found, key=lambda recording: recording.actor)
        )
        raise BadInput(f"no episode {number}: there are {known}")
    return chosen[0]


def replayed(recording: RecordingFile) -> ReplayedEpisode | None:
    """Read an episode and run the control loop on it; return None when it has no step yet.

    Raises:
        CorruptData: the file is damaged; the message names the file and the byte.
    """
    spec = read_spec(recording.path)
    if spec is None:
        return None
    episode = read_episode(recording.path, spec)
    if not episode.steps:
        return None
    clock = VirtualClock(lambda dt_s: None, spec.rate_hz)
    return ReplayedEpisode(recording, spec, episode, replay(episode, spec, clock, []))


def print_table(console: Console, found: Sequence[RecordingFile]) -> None:
    """Print one line per episode while reading; same columns on a terminal and in a pipe."""
    widest = max(len(recording.actor) for recording in found)
    widths = (-max(widest, len(_HEAD[0])), 7, 5, 8, 8, 5, -7, 0)
    whole = not console.is_terminal  # in a pipe, an episode is one line
    console.print(_line([(name, _QUIET) for name in _HEAD], widths), soft_wrap=whole)
    for recording in found:
        name = [(recording.actor, ""), (str(recording.number), "")]
        console.print(_line([*name, *_cells(replayed(recording))], widths), soft_wrap=whole)


def _cells(shown: ReplayedEpisode | None) -> list[tuple[str, str]]:
    """Return texts and styles of the cells of an episode's line."""
    if shown is None:
        return [*[("-", _QUIET)] * 5, ("no step was recorded yet", _QUIET)]
    result, human = shown.result, shown.result.human_steps
    return [
        (str(result.steps), ""),
        (f"{result.steps / shown.spec.rate_hz:.1f} s", ""),
        (f"{result.reward:.3g}", ""),
        (str(human), STYLES[ActionSource.HUMAN] if human else _QUIET),
        ("yes", _GOOD) if result.success else ("no", ""),
        (printable(result.text), ""),
    ]


def _line(cells: Sequence[tuple[str, str]], widths: Sequence[int]) -> Text:
    """Return the cells in columns, flush left where the width is negative."""
    line = Text()
    for (text, style), width in zip(cells, widths, strict=True):
        line.append(text.ljust(-width) if width < 0 else text.rjust(width), style)
        line.append("  ")
    line.rstrip()
    return line


def print_summary(console: Console, shown: ReplayedEpisode) -> None:
    """Print a summary of an episode: ending, labels, action sources, rewards, actions, states."""
    lines = [
        *_headline(shown),
        *_labels(shown),
        Text(),
        *_course(shown),
        Text(),
        *_actions(shown),
        Text(),
    ]
    for line in [*lines, *_observations(shown)]:
        console.print(line, soft_wrap=True)


def follow(console: Console, shown: ReplayedEpisode, clock: Clock) -> None:
    """Print the steps of a recording one by one, at the clock's pace."""
    names = shown.spec.action_names

    def print_step(record: Record) -> None:
        if isinstance(record, Step):
            acted = "  ".join(
                f"{name} {value:+.2f}" for name, value in zip(names, record.action, strict=True)
            )
            line = Text(f"{record.key.index:5} ")
            line.append(f"{record.source.value:7}", STYLES[record.source])
            line.append(f" {acted}  reward {record.reward:g}")
            console.print(line, soft_wrap=True)

    replay(shown.episode, shown.spec, clock, [RecordCallback(print_step)])


def _headline(shown: ReplayedEpisode) -> Iterator[Text]:
    (actor, number, path), result = shown.recording, shown.result
    yield Text.assemble((printable(shown.spec.task), "bold"), f" · {actor} · episode {number}")
    ending = Text.assemble((printable(result.text), _GOOD if result.success else "bold"))
    ending.append(f" after {result.steps} steps, {result.steps / shown.spec.rate_hz:.1f} s")
    ending.append(f" · return {result.reward:g}")
    versions = [step.policy_version for step in shown.episode.steps if step.policy_version]
    if versions:
        first, last = min(versions), max(versions)
        ending.append(f" · weights version {first}" + (f" to {last}" if last > first else ""))
    yield ending
    yield Text(str(path), _QUIET)


def _labels(shown: ReplayedEpisode, most: int = 8) -> Iterator[Text]:
    """Yield the labels of the episode's steps in the order they were given; the last one counts."""
    path = shown.recording.path
    here = tuple(episode_name(path))
    words = [word for word in read_label_entries(path.parent) if word.place[:2] == here]
    for (step, label, by), group in groupby(
        words, key=lambda word: (word.place.step, word.label, word.by)
    ):
        if (most := most - 1) < 0:
            yield Text(f"{'':20}... {len(words)} labels in total, in {LABELS_FILE}", _QUIET)
            return
        given_s = list(group)[-1].wall_s
        when = datetime.fromtimestamp(given_s).strftime("%Y-%m-%d %H:%M:%S")
        yield _row("label", Text(f"step {step}: {label}"), Text(f"by {by}, {when}"))


def _course(shown: ReplayedEpisode) -> Iterator[Text]:
    """Yield the action sources and the rewards over time."""
    steps = shown.episode.steps
    strip = Text()
    for part in _parts(len(steps)):
        # Short takeovers must remain visible in a long episode.
        sources = {step.source for step in steps[part]}
        source = ActionSource.HUMAN if ActionSource.HUMAN in sources else steps[part][0].source
        strip.append(_MARKS[source], STYLES[source])
    counts = " · ".join(
        f"{source.value} {count}"
        for source in ActionSource
        if (count := shown.episode.count(source))
    )
    yield _row("source", strip, Text(counts))
    if takeovers := _takeovers(steps):
        yield Text(f"{'':20}human: steps {takeovers}", STYLES[ActionSource.HUMAN])
    rewards = np.array([step.reward for step in steps])
    yield _row("reward", _sparkline(rewards, peaks=True), Text(f"sum {rewards.sum():g}"))


def _takeovers(steps: Sequence[Step], most: int = 6) -> str:
    """Return the human steps as text: "3-7, 12-20"."""
    spans = []
    for source, group in groupby(steps, key=lambda step: step.source):
        indices = [step.key.index for step in group]
        if source is ActionSource.HUMAN:
            spans.append(f"{indices[0]}-{indices[-1]}" if len(indices) > 1 else f"{indices[0]}")
    left = len(spans) - most
    return ", ".join(spans[:most]) + (f" and {left} more" if left > 0 else "")


def _actions(shown: ReplayedEpisode) -> Iterator[Text]:
    """Yield the executed actions over time, and their mean difference from the requested ones."""
    steps = shown.episode.steps
    executed = np.array([step.action for step in steps], np.float64)  # (N, A)
    apart = np.abs(executed - np.array([step.requested for step in steps]))  # (N, A)
    human = np.array([step.source is ActionSource.HUMAN for step in steps])
    note = f"{'cut':>5} {'human':>7}" if human.any() else f"{'cut':>5}"
    yield _row("action", Text("executed, from -1 to 1", _QUIET), Text(note, _QUIET))
    for index, name in enumerate(shown.spec.action_names):
        note = f"{_mean(apart[~human, index])} "
        note += f"{_mean(apart[human, index]):>7}" if human.any() else ""
        yield _row(name, _sparkline(executed[:, index], -1.0, 1.0), Text(note))
    apart_from = "by limits, human: from the policy's" if human.any() else "by limits"
    yield Text(f"{'':20}mean change; cut: {apart_from}", _QUIET)


def _observations(shown: ReplayedEpisode) -> Iterator[Text]:
    """Yield the entry of each state array with the largest range, and the cameras."""
    spec = shown.spec.observation
    if spec.state:
        yield _row("state", Text("the entry with the largest range", _QUIET), Text())
    for name, array in spec.state.items():
        values = np.array([step.observation.state[name].ravel() for step in shown.episode.steps])
        if not values.shape[1]:
            continue
        entry = int(np.ptp(values, axis=0).argmax())
        curve = values[:, entry].astype(np.float64)
        label = f"{name}[{entry}]" if values.shape[1] > 1 else name
        span = float(np.ptp(curve)) or 1.0
        digits = max(0, 2 - math.floor(math.log10(span)))
        note = f"{curve[0]:z.{digits}f} → {curve[-1]:z.{digits}f} {_unit(array)}"
        yield _row(label, _sparkline(curve), Text(note))
    for name, image in spec.images.items():
        yield _row(name, Text(f"camera, {image.shape[1]} x {image.shape[0]}", _QUIET), Text())


def _unit(array: ArraySpec) -> str:
    """Return the first word of an array's unit: "m" of "m, base frame"."""
    return re.split(r"[ ,]", array.unit)[0]


def _row(label: str, strip: Text, note: Text) -> Text:
    strip.pad_right(_CELLS - len(strip))
    row = Text.assemble((f"{label:>18}  ", _QUIET), strip, "  ", note)
    row.rstrip()
    return row


def _sparkline(
    values: Values, low: float | None = None, high: float | None = None, peaks: bool = False
) -> Text:
    """Return a sparkline: one cell per part of `values`, for its mean, or its peak if `peaks`."""
    cells = [values[part].max() if peaks else values[part].mean() for part in _parts(len(values))]
    low = float(values.min()) if low is None else low
    high = float(values.max()) if high is None else high
    scale = (len(_LEVELS) - 1) / (high - low) if high > low else 0.0
    return Text(
        "".join(_LEVELS[round((min(max(cell, low), high) - low) * scale)] for cell in cells)
    )


def _parts(count: int) -> list[slice]:
    """Divide `count` entries into at most `_CELLS` even parts, none of them empty."""
    edges = np.linspace(0, count, min(count, _CELLS) + 1).astype(int).tolist()
    return [slice(first, last) for first, last in pairwise(edges)]


def _mean(values: Values) -> str:
    return f"{values.mean():.2f}" if values.size else "-"
