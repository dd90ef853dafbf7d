"""The page on tasks: a table, and of each task a picture and what trainings of it have shown."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from PIL import Image as Picture

from serl.errors import BadInput
from serl.training.evaluation import wilson
from serl.system.files import write_atomic
from serl.report.random_walk import Walk
from serl.report.task_bench import DATA, TaskRecord, Training
from serl.types import Image

PAGE, PICTURES = "tasks.md", Path("images/tasks")
GOOD = 0.95
_UNKNOWN = "not measured"


def write_page(
    docs: Path,
    records: Mapping[str, TaskRecord],
    summaries: Mapping[str, str],
    pictures: Mapping[str, Image],
    curves: Mapping[str, str] | None = None,
) -> None:
    """Keep the records, and show them: the table, the pictures and curves that were taken.

    Args:
        docs: the folder; it exists.
        records: of all tasks.
        summaries: one line on each task of the page, in its order.
        pictures: those that are new.
        curves: those that are new, SVG by name of the file.

    Raises:
        BadInput: there is no such folder.
    """
    if not docs.is_dir():
        raise BadInput(f"{docs}: no such folder")
    (docs / PICTURES).mkdir(parents=True, exist_ok=True)
    for name, picture in pictures.items():
        Picture.fromarray(picture).save(docs / PICTURES / f"{name}.webp", quality=80, method=6)
    for file, svg in (curves or {}).items():
        write_atomic(docs / PICTURES / file, svg.encode())
    drawn = {training.curve for record in records.values() for training in record.trainings}
    for path in (docs / PICTURES).glob("*.svg"):
        if path.name not in drawn:
            path.unlink()
    kept = {
        name: record.model_dump(mode="json", exclude_defaults=True)
        for name, record in sorted(records.items())
    }
    write_atomic(docs / DATA, (json.dumps(kept, indent=1) + "\n").encode())
    shown = {name: (docs / PICTURES / f"{name}.webp").exists() for name in summaries}
    write_atomic(docs / PAGE, page(records, summaries, shown).encode())


def page(
    records: Mapping[str, TaskRecord], summaries: Mapping[str, str], shown: Mapping[str, bool]
) -> str:
    """The page in Markdown."""
    lines = ["# Tasks", "", "<!-- written by: serl bench tasks --docs docs -->", ""]
    lines += [
        "Scripted experts show that a task can be solved; demonstrations and simulated humans are",
        "made of them. Speed is that of one core of the machine that measured, from state, with",
        "random actions. Training is from state, with 20 demonstrations and the simulated human",
        "where a task says nothing else; trials are unassisted. Curves are the successes of the",
        "last 20 training episodes without a human step, a line a seed; points are trials of",
        "checkpoints, with their 95 % intervals. The line may lie far below the points: in",
        "training the policy explores, with noise in every action, and the human takes over where",
        "it is stuck, which takes those episodes out of the count; a trial has neither.",
        "Random steps are made an episode after the other;",
        "faults are warnings of MuJoCo, readings with numbers that are none, and objects that left",
        "the world, fell through the table or stayed in another by more than 8 mm for a second.",
        "",
        *table(records, summaries),
        "",
    ]
    for name, summary in summaries.items():
        lines += [f"## {name}", "", summary, ""]
        if shown[name]:
            lines += [f"![{name}: a moment of its expert's first try]({PICTURES}/{name}.webp)", ""]
        lines += _shown(name, records.get(name, TaskRecord()))
    return "\n".join(lines)


def _shown(name: str, record: TaskRecord) -> list[str]:
    """What random steps and trainings have shown, and why it is not more."""
    lines = []
    if record.walk and record.walk.recorded_in:
        lines += [f"Random steps (commit {record.walk.recorded_in}): {walked(record.walk)}.", ""]
    for training in record.trainings:
        lines += [f"`{training.command}` (commit {training.recorded_in}): {told(training)}", ""]
        if training.curve:
            picture = f"{PICTURES}/{training.curve}"
            lines += [f"![{name}: success of unassisted episodes over steps]({picture})", ""]
    if record.reason:
        lines += [f"Why not {GOOD:.0%}: {record.reason}", ""]
    return lines


def told(training: Training) -> str:
    """What a training has shown, in words."""
    seeds, steps = _counted(len(training.seeds), "seed"), f"{training.steps:,} steps each"
    parts = [f"{_rate(training.successes, training.trials)}, {seeds}, {steps}"]
    if training.minutes:
        parts[0] += f", at most {training.minutes:g} minutes"
    if training.robot_minutes:
        parts.append(f"The robot moved for {training.robot_minutes:g} minutes, resets included")
    if training.cycle_s:
        parts.append(f"A success takes {training.cycle_s:.1f} s")
        if shown_s := training.demonstrated_s:
            times = f"{shown_s / training.cycle_s:.2f} times as fast"
            parts[-1] += f", a demonstration {shown_s:.1f} s: {times}"
    if training.episodes:
        asked = f"{training.requests or 0} in {training.episodes:,} episodes"
        rate = f"{100.0 * (training.requests or 0) / training.episodes:.2g} per 100"
        helped = _counted(training.takeovers or 0, "takeover")
        parts.append(f"Requests for a person: {asked} ({rate}); {helped}")
    return ". ".join(parts) + "."


def table(records: Mapping[str, TaskRecord], names: Iterable[str]) -> list[str]:
    """A line a task."""
    head = (
        "| task | expert | its mean steps | env steps/s | random steps "
        "| training | steps | minutes |"
    )
    return [head, "|---|---|---|---|---|---|---|---|", *(row(name, records) for name in names)]


def row(name: str, records: Mapping[str, TaskRecord]) -> str:
    """One of the table."""
    record = records.get(name, TaskRecord())
    cells: list[Any] = [name, _UNKNOWN, _UNKNOWN, _UNKNOWN]
    if record.expert_trials:
        cells[1] = _rate(record.expert_successes, record.expert_trials)
        cells[2:] = f"{record.expert_steps:.0f}", f"{record.steps_per_s:.0f}"
    cells.append(walked(record.walk) if record.walk else _UNKNOWN)
    if training := record.training:
        seeds = _counted(len(training.seeds), "seed")
        cells += [
            f"{_rate(training.successes, training.trials)}, {seeds}",
            f"{training.steps:,}",
            f"{training.minutes:g}" if training.minutes else _UNKNOWN,
        ]
    else:
        cells += [_UNKNOWN, "", ""]
    return f"| {' | '.join(cells)} |"


def walked(walk: Walk) -> str:
    """What random steps have broken, in words."""
    kinds = {
        "warning": walk.warnings,
        "reading that is no number": walk.not_finite,
        "object lost": walk.lost,
    }
    broken = ", ".join(_counted(count, kind) for kind, count in kinds.items() if count)
    return f"{walk.steps:,}, {broken or 'no fault'}"


def _counted(count: int, thing: str) -> str:
    return f"{count:,} {thing}{'' if count == 1 else 's'}"


def _rate(successes: int, trials: int) -> str:
    low, high = wilson(successes, trials)
    return f"{successes} of {trials} ({low:.0%} to {high:.0%})"
