"""What trainings that lie in a folder have shown of their tasks."""

from __future__ import annotations

import json
import shlex
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from serl.agents.config import SACConfig
from serl.runs.task_setup import make_task
from serl.report.assistance import together
from serl.runs.config import TrainConfig, resolve
from serl.agents.encoder_weights import with_encoder
from serl.log.episode_reader import count_records, episode_paths
from serl.errors import BadInput, SerlError
from serl.runs.origin import OriginConfig
from serl.report.page import PALETTE
from serl.report.plots import Trace, plot, standalone
from serl.runs.real_arm import tuned_settings
from serl.report.report import STEPS, RunData, evaluations, read_run, success_alone
from serl.runs.folder import CONFIG, STAGES, RunFolder
from serl.specs import ArraySpec
from serl.report.task_bench import Training

CURVE_PX = (400, 190)
UNKNOWN_COMMIT = "unknown"
_HOUSEKEEPING = {"seed", "network", "log", "teleop", "required_success_rate"}


@dataclass(frozen=True, eq=False)
class Finished:
    """A training of one task with final trials; a stage is one.

    Attributes:
        task: name of what was trained.
        command: that trains it, without the seed.
        run: its folder.
        commit: of the code.
        data: what its report shows.
        seconds: that it took, trials included.
    """

    task: str
    command: str
    run: RunFolder
    commit: str
    data: RunData
    seconds: float


@dataclass(frozen=True, slots=True)
class Shown:
    """What equal trainings with different seeds have shown of a task, and their curves, an SVG."""

    task: str
    training: Training
    curve: str


def find_runs(folder: Path) -> list[Path]:
    """Folders of runs in a folder, or itself; stages are parts of theirs.

    Raises:
        BadInput: there is none.
    """
    found = [path.parent for path in sorted(folder.rglob(CONFIG))] if folder.is_dir() else []
    runs = [path for path in found if path.parent.name != STAGES]
    if not runs:
        raise BadInput(f"--runs {folder}: expected a folder of runs, found none in it")
    return runs


def shown_by(
    paths: Sequence[Path], told: Callable[[str], object], commit: str = UNKNOWN_COMMIT
) -> list[Shown]:
    """What the runs have shown: those of one command together, of each seed the newest one.

    Args:
        paths: of runs.
        told: hears of each that is passed over, and why.
        commit: of runs that do not say with which they were made.
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
    command = f"serl train {run.config.task}{_overrides(run.config)}"
    for part in run.parts().values():
        data = read_run(part.path)
        if not data.finals:
            raise BadInput(f"{part.path}: no final trials yet")
        task, made_with = make_task(part.config).name, run.info.versions.get("commit", commit)
        yield Finished(task, command, part, made_with, data, data.finals[-1]["time_s"])


def _shown_seeds(runs: Sequence[Finished]) -> Shown:
    """Of runs that differ in their seeds."""
    first = runs[0]
    finals = [run.data.finals[-1] for run in runs]
    helped = together(run.data.help for run in runs)
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
    """How long the robots of a run were moved, resets included, in their time."""
    folder, rate_hz = run.run, make_task(run.run.config).config.rate_hz
    paths = [path for actor in folder.actors() for path in episode_paths(folder.episodes(actor))]
    return sum(max(0, count_records(path) - 1) for path in paths) / rate_hz


def _curve(runs: Sequence[Finished]) -> str:
    """Success of unassisted episodes over steps, a line a seed, and trials of checkpoints."""
    lines = [Trace("", "policy", *success_alone(run.data)) for run in runs]
    points = [evaluations(run.data) for run in runs]
    name = f"{runs[0].task}: success of unassisted episodes"
    traces = [*lines, *points]
    figure = plot(name, traces, STEPS, scale="percent", size_px=CURVE_PX, from_zero=True)
    return standalone(figure, PALETTE)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None and np.isfinite(value)]
    return round(float(np.mean(known)), 2) if known else None


def _overrides(config: TrainConfig) -> str:
    """The options by which a run's settings differ from the tuned ones of its task."""
    named: dict[str, Any] = {"task": config.task, "task_config": config.task_config}
    nothing = {"agent": SACConfig(), "init_from": OriginConfig()}
    nobody = config.model_copy(update=nothing)  # asked for anything
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
    """Settings by name, with the encoder that they come to with these cameras."""
    agent = with_encoder(config.agent, [cameras], config.init_from.loads("encoder"))
    return dict(_leaves(config.model_copy(update={"agent": agent}).model_dump(mode="json")))


_ABSENT = object()


def _leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{prefix}{name}.")
        elif value != {}:
            yield f"{prefix}{name}", value
