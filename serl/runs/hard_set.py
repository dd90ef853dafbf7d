"""The hard set: tasks under a lab's conditions, and the learners that are compared on them.

A row is a learner; its runs lie in a folder of its name, as `serl compare` reads them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from serl.errors import BadInput
from serl.log.metrics import EpisodeRow, read_metrics
from serl.runs.config import TrainConfig
from serl.runs.settings import run_settings
from serl.runs.sweep import Family, SweepRun, run_name
from serl.system.settings_file import merge

RowName = Literal["expert", "bc", "hg_dagger", "rl", "rl_human", "hil_serl"]
ROW_NAMES: tuple[RowName, ...] = get_args(RowName)

SEEDS = (100, 101, 102, 103, 104)
"""Seeds of a claim; see `serl compare --claim`."""

# No person demonstrates wrenches by hand.
_SCRIPTED = {"demonstrator": "expert", "intervention": "scripted"}

TASKS: Mapping[str, Mapping[str, Any]] = {
    "peg_insertion": {},
    "connector_insertion": {},
    "peg_insertion_6d": {},
    "connector_insertion_6d": {},
    "dashboard": {},
    "handover": {},
    "timing_belt": {},
    "whip_block": _SCRIPTED,
}
"""Settings by task that differ from those of the preset "hard"."""


class Row(NamedTuple):
    """A learner.

    Attributes:
        fixed: settings that make it this learner.
        usual: settings that may be changed.
    """

    text: str
    fixed: Mapping[str, Any]
    usual: Mapping[str, Any] = {}


_CLONING = {"algorithm": "bc"}
_NETWORK = {"agent": {"hidden": [256, 256], "activation": "tanh"}}  # the best for cloning

ROWS: Mapping[RowName, Row] = {
    "bc": Row(
        "cloned demonstrations, without a robot step",
        {"steps": 0, "intervention": "none", "agent": _CLONING},
        {**_NETWORK, "learner": {"warm_up": 2000}},
    ),
    "hg_dagger": Row(
        "cloned demonstrations and takeovers, at most as many takeovers as in rl_human",
        {"agent": _CLONING},
        _NETWORK,
    ),
    "rl": Row("reinforcement learning without a human", {"intervention": "none"}),
    "rl_human": Row("reinforcement learning with a human", {}),
    "hil_serl": Row("recipe hil_serl, with a human", {"recipe": "hil_serl"}),
}
"""The rows that are trained; the row "expert" is the script that demonstrates."""


def settings_of(task: str, row: RowName, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a row in a task, beside the task's tuned ones.

    Args:
        task: name of a task of the set.
        row: name of the row.
        overrides: settings for all rows; those that make a row win.
    """
    found = merge({"preset": "hard"}, TASKS[task])
    if row == "expert":
        return merge(found, overrides)
    found = merge(merge(found, ROWS[row].usual), overrides)
    return merge(found, ROWS[row].fixed)


class HardSet:
    """The runs of the hard set in a folder.

    Args:
        folder: folder of all rows.
        tasks: names of tasks of the set.
        seeds: seeds of each row in each task.
        overrides: settings for all rows.
    """

    def __init__(
        self,
        folder: Path,
        tasks: Sequence[str],
        seeds: Sequence[int],
        overrides: Mapping[str, Any],
    ) -> None:
        if unknown := [task for task in tasks if task not in TASKS]:
            raise BadInput(f"--tasks: {unknown[0]!r} is none of {', '.join(TASKS)}")
        for kind, values in (("tasks", tasks), ("seeds", seeds)):
            if len(set(values)) < len(values):
                raise BadInput(f"--{kind}: one is given twice")
        for name in ("task", "seed"):
            if name in overrides:
                raise BadInput(f"--{name}: expected --{name}s")
        self.folder, self.tasks, self.seeds = folder, tasks, seeds
        self._overrides = overrides
        self._families: dict[tuple[str, str], Family] = {}
        self._takeovers: dict[tuple[str, int], int] = {}

    def expert(self, task: str, seed: int) -> tuple[TrainConfig, Path]:
        """Return the settings of the expert's trials, and the file of their result."""
        given = settings_of(task, "expert", self._overrides)
        path = self.folder / "expert" / f"{run_name(task, seed)}.json"
        return run_settings(task, given, {"seed": seed}), path

    def check(self, rows: Iterable[RowName]) -> None:
        """Raise `BadInput` if a setting of these rows cannot be used."""
        for task in self.tasks:
            for row in rows:
                if row == "expert":
                    self.expert(task, 0)
                else:
                    _ = self._run(row, task, 0, {}).config

    def run(self, row: RowName, task: str, seed: int) -> SweepRun | None:
        """Return a run, which need not have begun.

        One of the row "hg_dagger" has at most the takeovers that the row "rl_human" had; it is None
        until that is finished.
        """
        if row != "hg_dagger":
            return self._run(row, task, seed, {})
        takeovers = self._takeovers_of(task, seed)
        more = {"human": {"max_takeovers": takeovers}}
        return None if takeovers is None else self._run(row, task, seed, more)

    def _takeovers_of(self, task: str, seed: int) -> int | None:
        """Return the number of takeovers that RL with a human had; None before its end."""
        if (task, seed) not in self._takeovers:
            run = self._run("rl_human", task, seed, {}).begun()
            if run is None or not run.is_finished():
                return None
            played = (row for row in read_metrics(run.metrics) if row["kind"] == EpisodeRow.kind)
            self._takeovers[task, seed] = sum(int(row["interventions"]) for row in played)
        return self._takeovers[task, seed]

    def _run(self, row: RowName, task: str, seed: int, more: Mapping[str, Any]) -> SweepRun:
        family = Family(task, merge(settings_of(task, row, self._overrides), more))
        if not more:
            family = self._families.setdefault((row, task), family)
        return SweepRun(row, task, seed, self.folder / row / run_name(task, seed), family)
