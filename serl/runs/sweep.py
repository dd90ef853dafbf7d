"""Sweeps: a grid of settings over tasks and seeds, and the folder of each of its runs."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from serl import plugins
from serl.errors import BadInput
from serl.runs.config import TrainConfig
from serl.runs.folder import CONFIG, RunFolder
from serl.runs.settings import run_settings
from serl.system.files import checked_name
from serl.system.settings_file import checked, leaves, merge, nest, read_yaml
from serl.types import FrozenModel

Seed = Annotated[int, Field(ge=0, lt=2**32)]

MAX_RUNS = 10_000
"""Most runs of a sweep."""


class SweepConfig(FrozenModel):
    """The content of a sweep's file.

    Attributes:
        tasks: tasks, by name or path.
        seeds: seeds; each seed is run for all configurations before the next one.
        settings: settings of all runs, as in the file of `serl train --config`.
        factors: values of settings by dotted name; every combination is a configuration.
    """

    tasks: tuple[str, ...] = Field(min_length=1)
    seeds: tuple[Seed, ...] = Field(min_length=1)
    settings: dict[str, Any] = Field({})
    factors: dict[str, tuple[Any, ...]] = Field({})

    @model_validator(mode="after")
    def _check(self) -> Self:
        for field in ("tasks", "seeds"):
            values = getattr(self, field)
            if len(set(values)) < len(values):
                raise ValueError(f"{field}: one is given twice")
        for name in ("task", "seed"):
            if name in self.settings or name in self.factors:
                raise ValueError(f"{name}: belongs to {name}s, not to settings or factors")
        if empty := [name for name, values in self.factors.items() if not values]:
            raise ValueError(f"factors.{empty[0]}: expected at least one value")
        return self


@dataclass(frozen=True)
class SweepRun:
    """One run of a sweep.

    Attributes:
        configuration: name of the combination of factors; "base" without any.
        task: task by name or path.
        path: folder of the run.
        family: the settings that it shares with the other seeds.
    """

    configuration: str
    task: str
    seed: int
    path: Path
    family: Family

    @property
    def name(self) -> str:
        """The name of the run in messages."""
        return f"{self.configuration}/{self.path.name}"

    @property
    def config(self) -> TrainConfig:
        """The settings of the run; raises `BadInput` if they cannot be used."""
        return self.family.config.model_copy(update={"seed": self.seed})

    def open(self, now: datetime) -> RunFolder:
        """Open the run's folder, or make it; raises as `begun`."""
        return self.begun() or RunFolder.create_at(self.path, self.config, now)

    def begun(self) -> RunFolder | None:
        """Return the run if its folder exists.

        Raises:
            BadInput: the settings cannot be used, or the folder has other ones.
        """
        if not (self.path / CONFIG).is_file():
            return None
        run = RunFolder.open(self.path).writable()
        old, new = (dict(leaves(c.model_dump(mode="json"))) for c in (run.config, self.config))
        if differing := [name for name in sorted(old | new) if old.get(name) != new.get(name)]:
            raise BadInput(
                f"{self.path}: was begun with other settings ({', '.join(differing[:4])}); "
                "give another --out"
            )
        return run

    def is_finished(self) -> bool:
        """Return whether the run's final trials are done; raises as `begun`."""
        run = self.begun()
        return run is not None and run.is_finished()


@dataclass(frozen=True)
class Family:
    """The runs of one configuration in one task, which share all settings but the seed."""

    task: str
    settings: Mapping[str, Any]

    @cached_property
    def config(self) -> TrainConfig:
        """The settings with seed 0; raises `BadInput` if they cannot be used."""
        return run_settings(self.task, self.settings, {"seed": 0})


def read_sweep(path: Path) -> SweepConfig:
    """Read the file of a sweep.

    Raises:
        BadInput: the file cannot be read, or a key or value is invalid.
    """
    return checked(SweepConfig, read_yaml(path))


def sweep_runs(sweep: SweepConfig, folder: Path) -> list[SweepRun]:
    """Return all runs of a sweep, in the order in which they are run.

    Raises:
        BadInput: there are too many, or two have one folder.
    """
    combinations = list(itertools.product(*sweep.factors.values()))
    total = len(combinations) * len(sweep.tasks) * len(sweep.seeds)
    if total > MAX_RUNS:
        raise BadInput(f"the sweep has {total} runs, allowed {MAX_RUNS}")
    families: dict[tuple[str, str], Family] = {}
    for values in combinations:
        factors = dict(zip(sweep.factors, values, strict=True))
        settings: dict[str, Any] = sweep.settings
        for name, value in factors.items():
            settings = merge(settings, nest(name, value))
        name = configuration_name(factors)
        if name in {configuration for configuration, _ in families}:
            raise BadInput(f"factors: two configurations are named {name}")
        families |= {(name, task): Family(task, settings) for task in sweep.tasks}
    runs = [
        SweepRun(name, task, seed, folder / name / run_name(task, seed), family)
        for seed in sweep.seeds
        for (name, task), family in families.items()
    ]
    if len({run.path for run in runs}) < len(runs):
        raise BadInput("tasks: two have one name")
    return runs


def configuration_name(factors: Mapping[str, Any]) -> str:
    """Return the name of a combination of factors, as "bc_weight-0.5_utd-8".

    A factor is named by the last part of its setting, or in full if two end alike.
    """
    last = [name.rpartition(".")[2] for name in factors]
    parts = [
        f"{short if last.count(short) == 1 else name}-{_plain(value)}"
        for (name, value), short in zip(factors.items(), last, strict=True)
    ]
    return checked_name("_".join(parts) or "base", "configuration")


def _plain(value: Any) -> str:
    text = re.sub(r"[^A-Za-z0-9_.-]+", "-", str(value))
    return text if isinstance(value, int | float) else text.strip("-") or "none"  # -1 is not 1


def run_name(task: str, seed: int) -> str:
    """Return the name of the folder of a run of this task and seed."""
    return checked_name(f"{plugins.stem(task)}-{seed}", "run")
