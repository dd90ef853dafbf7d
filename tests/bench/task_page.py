"""The page on tasks: a table, and for each task a picture and the results of its trainings."""

from __future__ import annotations

import json
import shlex
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image as Picture

from serl.agents.config import SACConfig
from serl.agents.encoder_weights import with_encoder
from serl.arm_profile import is_real
from serl.errors import BadInput, SerlError
from serl.log.episode_reader import count_records, episode_paths
from serl.report.curves import total_assistance
from serl.report.page import TEMPLATES
from serl.report.plots import Trace, plot
from serl.report.report import STEPS, evaluations, success_alone
from serl.report.run_data import RunData, read_run
from serl.runs.config import InitFrom, TrainConfig, resolve
from serl.runs.folder import CONFIG, STAGES, RunFolder
from serl.runs.real_arm import tuned_settings
from serl.runs.task_setup import make_task
from serl.specs import ArraySpec
from serl.system.files import write_atomic
from serl.system.settings_file import leaves
from serl.training.evaluation import wilson
from serl.types import Image
from tests.bench.task_bench import DATA, Cloned, TaskRecord, Training, Walk

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
    """Save the records, new pictures and new curves, and write the page that shows them.

    Args:
        docs: an existing folder.
        records: records of all tasks.
        summaries: the text on each task of the page, in the page's order.
        pictures: new pictures, by task.
        curves: new curves, SVG by name of the file.

    Raises:
        BadInput: the folder does not exist.
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
    """Return the page in Markdown."""
    lines = [
        "# Tasks",
        "",
        "<!-- written by: python tests/bench/bench_tasks.py --docs docs -->",
        "",
    ]
    lines += [
        "Each task has a scripted expert. It shows that the task can be solved, gives the",
        "demonstrations, and corrects the policy as the simulated human.",
        "",
        *table(records, summaries),
        "",
        "- **Expert**: successes in trials from random starts, and the mean number of steps.",
        "- **Env steps/s**: on one core, without cameras, with random actions.",
        "- **Random steps**: faults are warnings of MuJoCo, readings that contain NaN, and objects",
        "  that left the world, fell through the table or were more than 8 mm inside another one",
        "  for a second.",
        "- **Training**: from state, with 20 demonstrations and the simulated human (`racing_car`:",
        "  with one demonstration and no human), then unassisted trials. Steps are those of each",
        "  seed, minutes those of the slowest seed.",
        "- **Cloned alone**: the same demonstrations, cloned by the task's own network, without",
        "  robot steps, a human or tuning. Where cloning reaches 90 % or more, the training shows",
        "  no benefit. [Imitation of takeovers](benchmarks.md#imitation-of-takeovers) is a",
        "  stronger baseline. [Practice beyond cloning](benchmarks.md#practice-beyond-cloning)",
        "  clones the slower demonstrations of a simulated person.",
        "- **Not measured** means: not by this page's script.",
        "  [Status](status.md#simulation-and-learning) has results of other runs.",
        "",
        "A result of one seed says little: the intervals (95 %) account for the number of trials,",
        "not for the differences between seeds. `docs/tasks.json` has the commits of all results.",
        "",
        "Curves show the success of the last 20 unassisted training episodes, one line for each",
        "seed; points are trials of checkpoints. A line can be far below the points, because the",
        "policy explores in training with noise in every action. A film shows the first success",
        "among the first ten final trials of a policy.",
        "",
    ]
    described: dict[str, str] = {}
    for name, summary in summaries.items():
        record, first = records.get(name, TaskRecord()), described.setdefault(summary, name)
        text = summary if first == name else f"The opposite direction of [{first}](#{first})."
        lines += [f"## {name}", "", text, ""]
        if shown[name]:
            content = record.picture or "a moment of its expert's first try"
            lines += [
                f"![{name}: {content}]({PICTURES}/{name}.webp)",
                "",
                f"*Shown: {content}.*",
                "",
            ]
        lines += _shown(name, record)
    return "\n".join(lines)


def _shown(name: str, record: TaskRecord) -> list[str]:
    """Return lines with the results of cloning and trainings, and the reason for failures."""
    lines = []
    if cloned := record.cloned:
        lines += [f"Cloned alone (commit {cloned.recorded_in}): {_cloned(cloned)}", ""]
    for training in record.trainings:
        lines += [f"`{training.command}` (commit {training.recorded_in}): {told(training)}", ""]
        if training.curve:
            picture = f"{PICTURES}/{training.curve}"
            lines += [f"![{name}: success of unassisted episodes over steps]({picture})", ""]
    if record.reason:
        lines += [f"Why fewer than {GOOD:.0%} succeed: {record.reason}", ""]
    return lines


def told(training: Training) -> str:
    """Return the result of a training in words."""
    several = len(training.seeds) > 1
    most = "at most " if several else ""
    seeds, steps = _counted(len(training.seeds), "seed"), f"{training.steps:,} steps"
    parts = [f"{_rate(training.successes, training.trials)}, {seeds}, {steps}"]
    if several:
        parts[0] += " each"
    if training.minutes:
        parts[0] += f", {most}{training.minutes:g} minutes"
    if training.robot_minutes:
        parts.append(f"The robot moved for {most}{training.robot_minutes:g} minutes")
        parts[-1] += ", resets included"
    if training.cycle_s:
        parts.append(f"A success takes {training.cycle_s:.1f} s")
        if shown_s := training.demonstrated_s:
            parts[-1] += f", a demonstration {shown_s:.1f} s"
    if training.episodes:
        helped = _counted(training.takeovers or 0, "takeover")
        asked = _counted(training.requests or 0, "request")
        parts.append(f"{training.episodes:,} episodes had {helped} and {asked} for a person")
    return ". ".join(parts) + "."


def _cloned(cloned: Cloned) -> str:
    """Return the result of cloning alone in words."""
    seeds = _counted(len(cloned.seeds), "seed")
    text = (
        f"{_rate(cloned.successes, cloned.trials)}, {seeds}, {cloned.updates:,} gradient steps on "
        f"{cloned.demonstrations} demonstrations."
    )
    return text + (f" A success takes {cloned.cycle_s:.1f} s." if cloned.cycle_s else "")


def table(records: Mapping[str, TaskRecord], names: Iterable[str]) -> list[str]:
    """Return the lines of the table, one per task."""
    head = (
        "| task | expert | its mean steps | env steps/s | random steps "
        "| training | steps | minutes | cloned alone |"
    )
    return [head, "|---|---|---|---|---|---|---|---|---|", *(row(name, records) for name in names)]


def row(name: str, records: Mapping[str, TaskRecord]) -> str:
    """Return the table's line of a task."""
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
    cells.append(_UNKNOWN)
    if cloned := record.cloned:
        seeds = _counted(len(cloned.seeds), "seed")
        cells[-1] = f"{_rate(cloned.successes, cloned.trials)}, {seeds}"
    return f"| {' | '.join(cells)} |"


def walked(walk: Walk) -> str:
    """Return the number and the faults of random steps in words."""
    kinds = {
        "warning": walk.warnings,
        "NaN reading": walk.not_finite,
        "object lost": walk.lost,
    }
    broken = ", ".join(_counted(count, kind) for kind, count in kinds.items() if count)
    return f"{walk.steps:,}, {broken or 'no fault'}"


def _counted(count: int, thing: str) -> str:
    return f"{count:,} {thing}{'' if count == 1 else 's'}"


def _rate(successes: int, trials: int) -> str:
    low, high = wilson(successes, trials)
    return f"{successes} of {trials} ({low:.0%} to {high:.0%})"


CURVE_PX = (400, 190)
UNKNOWN_COMMIT = "unknown"
_HOUSEKEEPING = {"seed", "network", "log", "teleop", "required_success_rate"}


@dataclass(frozen=True, eq=False)
class Finished:
    """A finished training of one task, or of one stage, with final trials.

    Attributes:
        task: name of the trained task.
        command: command of the training, without the seed.
        run: folder of the run.
        commit: commit of the code.
        data: data of the run's report.
        seconds: duration of the run, trials included.
    """

    task: str
    command: str
    run: RunFolder
    commit: str
    data: RunData
    seconds: float


@dataclass(frozen=True, slots=True)
class Shown:
    """The result of equal trainings of a task with different seeds, and their curves as an SVG."""

    task: str
    training: Training
    curve: str


def find_runs(folder: Path) -> list[Path]:
    """Return the folders of the runs in a folder, or the folder itself, without those of stages.

    Raises:
        BadInput: the folder holds no run.
    """
    found = [path.parent for path in sorted(folder.rglob(CONFIG))] if folder.is_dir() else []
    runs = [path for path in found if path.parent.name != STAGES]
    if not runs:
        raise BadInput(f"--runs {folder}: expected a folder of runs, found none in it")
    return runs


def shown_by(
    paths: Sequence[Path], told: Callable[[str], object], commit: str = UNKNOWN_COMMIT
) -> list[Shown]:
    """Return the results of runs, grouped by command; of runs with equal seeds the newest counts.

    Args:
        paths: folders of runs.
        told: called with the reason for each run that is passed over.
        commit: commit for runs that have not recorded theirs.
    """
    groups: dict[tuple[str, str], dict[int, Finished]] = defaultdict(dict)
    finished: list[Finished] = []
    for path in paths:
        try:
            finished += _finished(RunFolder.open(path), commit)
        except SerlError as error:
            told(f"passed over: {error}")
    for each in sorted(finished, key=lambda each: each.run.info.created):
        groups[each.task, each.command][each.run.config.seed] = each
    return [_shown_seeds([runs[seed] for seed in sorted(runs)]) for runs in groups.values()]


def _finished(run: RunFolder, commit: str) -> Iterator[Finished]:
    command = f"serl train {run.config.task}{overrides(run.config)}"
    for part in run.parts().values():
        data = read_run(part.path)
        if not data.finals:
            raise BadInput(f"{part.path}: no final trials yet")
        task, made_with = make_task(part.config).name, run.info.versions.get("commit", commit)
        yield Finished(task, command, part, made_with, data, data.finals[-1]["time_s"])


def _shown_seeds(runs: Sequence[Finished]) -> Shown:
    """Return the joint result of runs that differ in their seeds."""
    first = runs[0]
    finals = [run.data.finals[-1] for run in runs]
    helped = total_assistance(run.data.help for run in runs)
    each = [run.run.config.seed for run in runs]
    seeds = "-".join(map(str, each))
    training = Training(
        command=f"{first.command} --seed {each[0]}",
        recorded_in=", ".join(dict.fromkeys(run.commit for run in runs)),
        seeds=tuple(each),
        steps=max(int(final["steps"]) for final in finals),
        minutes=round(max(run.seconds for run in runs) / 60.0, 1),
        successes=sum(int(final["successes"]) for final in finals),
        trials=sum(int(final["trials"]) for final in finals),
        cycle_s=_mean([final.get("cycle_time_s") for final in finals]),
        demonstrated_s=_mean([run.data.demonstrated_s for run in runs]),
        robot_minutes=round(max(map(_robot_s, runs)) / 60.0, 1),
        episodes=helped.episodes,
        takeovers=helped.takeovers,
        requests=helped.requests,
    )
    variant = "" if training.is_tuned else f"-{zlib.crc32(first.command.encode()):08x}"
    file = f"{first.task}{variant}-{seeds}.svg"
    return Shown(first.task, training.model_copy(update={"curve": file}), _curve(runs))


def _robot_s(run: Finished) -> float:
    """Return the task time for which the robots of a run moved, resets included, s."""
    folder, rate_hz = run.run, make_task(run.run.config).config.rate_hz
    paths = [path for actor in folder.actors() for path in episode_paths(folder.episodes(actor))]
    return sum(max(0, count_records(path) - 1) for path in paths) / rate_hz


def _curve(runs: Sequence[Finished]) -> str:
    """Plot the success of unassisted episodes over steps, one line per seed, and trials; as SVG."""
    lines = [Trace("", "policy", *success_alone(run.data)) for run in runs]
    points = [evaluations(run.data) for run in runs]
    name = f"{runs[0].task}: success of unassisted episodes"
    traces = [*lines, *points]
    figure = plot(name, traces, STEPS, scale="percent", size_px=CURVE_PX, from_zero=True)
    return standalone(str(figure))  # methods of Markup escape their arguments


def standalone(svg: str) -> str:
    """Return the element from `plot` as a standalone SVG file, in the colours of the report."""
    _, _, width, height = svg.partition('viewBox="')[2].partition('"')[0].split()
    spaces = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
    size = f'width="{width}" height="{height}"'
    palette = (TEMPLATES / "palette.css").read_text()
    style = f"<style>{palette}svg{{background:var(--card);font-family:sans-serif}}</style>"
    opening, _, body = svg.partition(">")
    return f"{opening.replace('<svg', f'<svg {spaces} {size}', 1)}>{style}{body}"


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None and np.isfinite(value)]
    return round(float(np.mean(known)), 2) if known else None


def overrides(config: TrainConfig) -> str:
    """Return the options by which a run's settings differ from its task's tuned settings."""
    named: dict[str, Any] = {"task": config.task, "task_config": config.task_config}
    nothing = {"agent": SACConfig(), "init_from": InitFrom()}
    nobody = config.model_copy(update=nothing)  # without settings that the tuned ones depend on
    tuned = tuned_settings(nobody, make_task(resolve(named, {"observe": config.observe})))
    cameras = make_task(config).observation_spec.images
    usual = _settled(resolve(tuned, {"task": config.task}), cameras)
    own = _settled(config, cameras)
    judged_by_task = own["reward.kind"] == usual["reward.kind"] == "task"
    idle = {*_HOUSEKEEPING, "reward"} if judged_by_task else _HOUSEKEEPING
    words = [
        f" --{name} {shlex.quote(value if isinstance(value, str) else json.dumps(value))}"
        for name, value in own.items()
        if usual.get(name, _ABSENT) != value and name.split(".")[0] not in idle
    ]
    return "".join(words)


def _settled(config: TrainConfig, cameras: Mapping[str, ArraySpec]) -> dict[str, Any]:
    """Return the settings by name, with the encoder that they resolve to for these cameras."""
    inherited, real = config.init_from.loads("encoder"), is_real(config.robot)
    agent = with_encoder(config.agent, [cameras], inherited, real)
    settled = config.model_copy(update={"agent": agent}).model_dump(mode="json")
    return {name: value for name, value in leaves(settled) if value != {}}


_ABSENT = object()
