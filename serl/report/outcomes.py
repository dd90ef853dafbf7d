"""Outcomes of finished runs: the configurations that a comparison may compare, read and checked."""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from serl.errors import BadInput
from serl.log.metrics import EpisodeRow, MetricsRow, read_metrics
from serl.report.curves import Values, number, reached, series, success_curve
from serl.report.run_data import evaluations
from serl.runs.folder import CONFIG, RunFolder
from serl.system.json_fields import short
from serl.system.settings_file import leaves, read_yaml

GRID = 101
"""Points of a learning curve, from no step to all steps of the run."""

CLAIM_SEEDS = 5
"""Least number of seeds behind a claim."""

FIRST_CLAIM_SEED = 100
"""First seed that a claim may use; seeds 0 to 4 are for tuning, those between for anything else."""

_DEPTH = 4  # folders below that of a configuration in which its runs are searched
_MAX_NAMED = 6  # settings that an error message lists


@dataclass(frozen=True, eq=False)
class RunOutcome:
    """The results of a finished run, or of one stage of it.

    Attributes:
        path: folder of the run.
        task: name of the task, and of the stage if there are several.
        budget: online environment steps of the run.
        successes: successful final trials.
        trials: number of final trials.
        cycle_s: mean task time of the successful final trials; NaN without any.
        steps_to_90: steps to the first 90 % of successes, see `reached`; infinite if never.
        human_s: task time in which a human drove during training, without demonstrations.
        curve: success rate of unassisted training episodes on `GRID` points.  # (GRID,)
        settings: values of the configuration by dotted name, and the commit.
        partial: whether the final trials ended before all that were planned.
    """

    path: Path
    task: str
    seed: int
    budget: int
    successes: int
    trials: int
    cycle_s: float
    steps_to_90: float
    human_s: float
    curve: Values
    settings: Mapping[str, Any]
    partial: bool = False

    @property
    def success(self) -> float:
        """The share of successful final trials."""
        return self.successes / self.trials

    @property
    def auc(self) -> float:
        """The area under the learning curve over the budget, as a mean success rate."""
        return float(self.curve.mean())


@dataclass(frozen=True, eq=False)
class Configuration:
    """The finished runs of one configuration, over tasks and seeds.

    Attributes:
        tasks: outcomes by task, in the order of seeds; both are sorted.
    """

    name: str
    tasks: Mapping[str, Sequence[RunOutcome]]

    @property
    def outcomes(self) -> list[RunOutcome]:
        """The outcomes of all tasks and seeds."""
        return [outcome for outcomes in self.tasks.values() for outcome in outcomes]


def read_configuration(folder: Path, runs: Container[Path] | None = None) -> Configuration:
    """Read all runs in a folder, or the folder of one run.

    Args:
        folder: folder of a configuration, or of a run.
        runs: folders of the runs to read; None for all.

    Raises:
        BadInput: there is no run, one is damaged or not finished, or two have one task and seed.
    """
    if not folder.is_dir():
        raise BadInput(f"{folder}: expected a folder of finished runs, found no folder")
    tasks: dict[str, dict[int, RunOutcome]] = {}
    for path in sorted(run_folders(folder)):
        for outcome in read_outcomes(path) if runs is None or path in runs else ():
            seeds = tasks.setdefault(outcome.task, {})
            if (other := seeds.setdefault(outcome.seed, outcome)) is not outcome:
                raise BadInput(
                    f"{outcome.path}: {outcome.task} with seed {outcome.seed} again, "
                    f"first in {other.path}"
                )
    if not tasks:
        raise BadInput(f"{folder}: expected finished runs, found no folder with {CONFIG}")
    return Configuration(
        folder.resolve().name,
        {task: [seeds[seed] for seed in sorted(seeds)] for task, seeds in sorted(tasks.items())},
    )


def run_folders(folder: Path, depth: int = _DEPTH) -> Iterator[Path]:
    """Yield the folders of runs in a folder and below, but not those inside a run."""
    if (folder / CONFIG).is_file():
        yield folder
    elif depth:
        for child in folder.iterdir():
            hidden = child.name.startswith(".")
            if not hidden and not child.is_symlink() and child.is_dir():
                yield from run_folders(child, depth - 1)


def read_outcomes(path: Path) -> list[RunOutcome]:
    """Return the outcome of a finished run, or those of its stages.

    Raises:
        BadInput: the run is damaged or not finished.
    """
    run = RunFolder.open(path, data_only=True)
    return [_outcome(part, stage) for stage, part in run.parts().items()]


def _outcome(run: RunFolder, stage: str) -> RunOutcome:
    rows = read_metrics(run.metrics)
    finals = evaluations(rows, "final")
    if not finals:
        raise BadInput(f"{run.path}: not finished, it has no final trials")
    final, budget = finals[-1], run.config.steps
    cycle_s, steps_to_90 = number(final, "cycle_time_s"), reached(rows)[0]
    return RunOutcome(
        path=run.path,
        task=f"{Path(run.config.task).stem} {stage}".strip(),
        seed=run.config.seed,
        budget=budget,
        successes=int(final["successes"]),
        trials=int(final["trials"]),
        cycle_s=cycle_s if cycle_s > 0 else math.nan,
        steps_to_90=steps_to_90 if steps_to_90 <= budget else math.inf,
        human_s=_human_s(rows),
        curve=success_curve(rows, np.linspace(0, budget, GRID)),
        settings=_settings(run.path),
        partial=bool(final.get("early_end")),
    )


def _human_s(rows: Sequence[MetricsRow]) -> float:
    """Return the task time of the steps that a human drove, in training episodes."""
    played = [row for row in rows if row["kind"] == EpisodeRow.kind]
    length, human = series(played, "length"), series(played, "human_steps")
    duration_s = series(played, "duration_s")
    period_s = np.divide(duration_s, length, out=np.zeros_like(length), where=length > 0)
    return float(np.nansum(human * period_s))


def _settings(path: Path) -> dict[str, Any]:
    """Return the values of a run's configuration file by dotted name, without the seed."""
    file = read_yaml(path / CONFIG)
    versions = file.get("versions", {})
    code = {"versions.commit": versions.get("commit") or versions.get("serl")}
    named = {name: value for name, value in leaves(file["config"]) if value != {}}
    return {k: v for k, v in (named | code).items() if k != "seed"}


def differences(configurations: Sequence[Configuration]) -> dict[str, tuple[list[str], ...]]:
    """Return the settings that differ between configurations in the same task.

    Returns:
        For each name, the different values of each configuration as text, over tasks and seeds.

    Raises:
        BadInput: the configurations have different tasks.
    """
    first, *others = configurations
    for other in others:
        if missing := sorted(first.tasks.keys() ^ other.tasks.keys()):
            has, lacks = (first, other) if missing[0] in first.tasks else (other, first)
            raise BadInput(f"{has.name} has runs of {missing[0]}, {lacks.name} has none")
    found: dict[str, tuple[list[str], ...]] = {}
    for task in first.tasks:
        groups = [each.tasks[task] for each in configurations]
        names = {name for group in groups for outcome in group for name in outcome.settings}
        for name in sorted(names):
            given = [[outcome.settings.get(name, _ABSENT) for outcome in group] for group in groups]
            if any(value != given[0][0] for values in given for value in values):
                texts = found.setdefault(name, tuple([] for _ in configurations))
                for listed, values in zip(texts, given, strict=True):
                    new = dict.fromkeys(_text(value) for value in values)
                    listed += [text for text in new if text not in listed]
    return dict(sorted(found.items()))


_ABSENT = object()


def _text(value: Any) -> str:
    return "-" if value is _ABSENT else short(value)


def check_factor(
    found: Mapping[str, tuple[list[str], ...]], factors: Sequence[str], claim: bool
) -> None:
    """Check that configurations differ in one factor, or in the named ones only.

    Args:
        found: differing settings, from `differences`.
        factors: names of settings, or of groups of settings as `agent`; none for any one setting.
        claim: whether at least one has to differ.

    Raises:
        BadInput: other settings differ, or a named one does not.
    """
    extra = [name for name in found if not any(_is_part(name, factor) for factor in factors)]
    if len(extra) > (0 if factors else 1):
        named = ", ".join(extra[:_MAX_NAMED]) + (", ..." if len(extra) > _MAX_NAMED else "")
        expected = f"beside {', '.join(factors)}, none may" if factors else "one may"
        raise BadInput(
            f"the configurations differ in {len(extra)} settings, {expected}: {named} "
            "(--factor NAME allows one more, or a group)"
        )
    for factor in factors:
        if not any(_is_part(name, factor) for name in found):
            raise BadInput(f"--factor {factor}: the configurations do not differ in it")
    if claim and not found:
        raise BadInput("--claim: the configurations do not differ in any setting")


def _is_part(name: str, factor: str) -> bool:
    return name == factor or name.startswith(f"{factor}.")


def check_claim(configurations: Sequence[Configuration]) -> None:
    """Check that each task of each configuration has enough seeds that nothing was tuned on.

    Raises:
        BadInput: there are fewer than `CLAIM_SEEDS`, or a seed is below `FIRST_CLAIM_SEED`.
    """
    for each in configurations:
        for task, outcomes in each.tasks.items():
            seeds = [outcome.seed for outcome in outcomes]
            if early := [seed for seed in seeds if seed < FIRST_CLAIM_SEED]:
                kind = "a tuning seed" if early[0] < 5 else "no claim seed"
                raise BadInput(
                    f"--claim: {each.name}, {task}: seed {early[0]} is {kind}; "
                    f"claims take seeds from {FIRST_CLAIM_SEED} on"
                )
            if len(seeds) < CLAIM_SEEDS:
                raise BadInput(
                    f"--claim: {each.name}, {task}: {len(seeds)} seeds, expected at least "
                    f"{CLAIM_SEEDS}"
                )
