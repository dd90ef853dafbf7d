"""`serl plan`: how long a training of a task will take, from some seconds of it."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from rich.console import Console
from rich.table import Table

from serl.runs.task_setup import make_task
from serl.runs.config import TrainConfig, parse_overrides
from serl.errors import BadInput
from serl.system.settings_file import read_yaml
from serl.cli.plan import Conditions, Plan, Rates, make_plan
from serl.cli.rates import measure
from serl.runs.settings import run_settings


def add_options(parser: argparse.ArgumentParser) -> None:
    """Of the command."""
    parser.add_argument("task", help="name of a task or path of a .py file")
    parser.add_argument("--config", type=Path, help="YAML file of settings")
    parser.add_argument("--seconds", type=float, default=3.0, help="to measure each rate for")
    parser.add_argument(
        "--reset-s", type=float, default=5.0, help="time between two episodes on an arm"
    )


def plan(options: argparse.Namespace) -> int:
    """Measure, and print the plan.

    Raises:
        BadInput: a setting cannot be used.
    """
    if not 0.1 <= options.seconds <= 60.0:
        raise BadInput(f"--seconds {options.seconds:g}: expected from 0.1 to 60")
    if not 0.0 <= options.reset_s <= 3600.0:
        raise BadInput(f"--reset-s {options.reset_s:g}: expected from 0 to 3600")
    file = read_yaml(options.config) if options.config else {}
    config = run_settings(options.task, file, parse_overrides(options.overrides))
    if config.stages:
        raise BadInput("stages: plan one task at a time, with --stages null")
    console, task = Console(highlight=False), make_task(config)
    with console.status("measuring"):
        rates, gpu = measure(config, options.seconds)
    conditions = Conditions(
        rate_hz=task.config.rate_hz,
        max_steps=task.config.max_steps,
        processors=len(os.sched_getaffinity(0)),
        gpu=gpu,
        reset_s=options.reset_s,
    )
    show(console, config, rates, conditions, make_plan(config, rates, conditions))
    return 0


def show(
    console: Console, config: TrainConfig, rates: Rates, conditions: Conditions, plan: Plan
) -> None:
    """Print what was measured, how long each part takes, and what all wait for."""
    agent = config.agent
    console.print(
        f"{config.task}: {config.steps:,} steps, actors {config.actors}, batch {agent.batch_size}, "
        f"UTD {agent.utd}, processors {conditions.processors}",
        soft_wrap=True,
    )
    if (load := os.getloadavg()[0]) > conditions.processors + 1:
        console.print(f"a load of {load:.1f}: others work on this machine, which is faster alone")
    console.print(
        f"measured: {rates.env_steps_per_s:,.0f} steps/s of one simulation with its policy, "
        f"{rates.updates_per_s:,.1f} updates/s (each of {agent.utd} critic updates, for one step), "
        f"{1e3 * rates.act_s:.1f} ms for an action",
        soft_wrap=True,
    )
    table = Table(box=None)
    for title in ("part", "how much", "min in simulation", f"min at {conditions.rate_hz:g} Hz"):
        table.add_column(title, justify="right" if title.startswith("min") else "left")
    for part in plan.parts:
        table.add_row(part.name, part.amount, _minutes(part.simulation_s), _minutes(part.arm_s))
    table.add_row("all", "", _minutes(plan.simulation_s), _minutes(plan.arm_s), style="bold")
    console.print(table)
    console.print(f"in simulation it waits for {plan.simulation_bottleneck}")
    console.print(
        f"on an arm it waits for {plan.arm_bottleneck}; each reset is taken to last "
        f"{conditions.reset_s:g} s (--reset-s)",
        soft_wrap=True,
    )


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.1f}"
