"""Benchmark of full training runs; `--ablations` also measures the value of each component.

    python tests/bench/bench_training.py [--seeds 0 1 2 3 4] [--ablations] [--steps N ...]

Each run is one `serl train`, in sequence; settings of `serl train` may follow and apply to every
run. Results, including failures, are appended to OUT/results.jsonl and not run again, so an
interrupted benchmark continues. Seconds to 90 % count from the start of the learner, total seconds
from the start of the command.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from serl.log.metrics import read_metrics
from serl.report.aggregates import SeedResults, estimate
from serl.report.curves import quarters, reached
from serl.runs.folder import RunFolder
from tests.bench.training_runs import Result, train_once

BASE = "serl"
ABLATIONS = {
    BASE: (),
    "no demonstrations": ("--demos=0",),
    "no interventions": ("--intervention=none",),
    "LayerNorm": ("--agent.layer_norm=true",),
    "no observation normalisation": ("--agent.normalise=false",),
}
SHORT = ["--task_config.time_limit_s=2", "--steps=60", "--demos=2", "--trials=2"]


def main() -> None:
    """Run missing trainings, then print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--task", default="pick_cube")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--ablations", action="store_true", help="also without each of its parts")
    parser.add_argument("--ablation-seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--out", type=Path, default=Path("runs/bench"), help="folder of all runs")
    parser.add_argument("--short", action="store_true", help="one seed of reach, hardly trained")
    options, settings = parser.parse_known_args()
    task, seeds, others = options.task, options.seeds, options.ablation_seeds
    if options.short:
        task, settings, seeds, others = "reach", [*SHORT, *settings], seeds[:1], others[:1]

    def result(variant: str, seed: int) -> Result:
        arguments = [task, f"--seed={seed}", *settings, *ABLATIONS[variant]]
        return train_once(options.out, arguments, {"variant": variant, "seed": seed}, summary)

    print_runs([result(BASE, seed) for seed in seeds])
    if options.ablations:
        print_ablations({v: [result(v, seed) for seed in others] for v in ABLATIONS})


def summary(run: RunFolder) -> Result:
    """Return the results of a run; None for values it did not reach."""
    rows = read_metrics(run.metrics)
    episodes = [row for row in rows if row["kind"] == "episode"]
    final = next((r for r in rows if r["kind"] == "evaluation" and r["purpose"] == "final"), {})
    first = reached(rows)
    length = sum(row["length"] for row in episodes)
    return {
        "run": str(run.path),
        "budget": run.config.steps,
        "steps": max((row["steps"] for row in rows), default=0),
        "trials": run.config.trials,
        "successes": final.get("successes"),
        "cycle_time_s": final.get("cycle_time_s"),
        "reached": first if math.isfinite(first[0]) else None,
        "human": sum(row["human_steps"] for row in episodes) / length if length else None,
        "quarters": [quarter.human_share for quarter in quarters(episodes)],
    }


def print_runs(results: Sequence[Result]) -> None:
    """Print a row per seed, then all trials with the interval by seed and by trial."""
    print(
        "\n| seed | final trials | steps to 90 % | s to 90 % | steps | total s | cycle s |", end=""
    )
    print(" human, by quarter | human | exit |\n|" + "---|" * 10)
    for result in results:
        steps, seconds = result.get("reached") or ("never", "never")
        shares = ", ".join(_percent(share) for share in result.get("quarters", []))
        print(
            f"| {result['seed']} | {_trials(result)} | {_number(steps)} | {_number(seconds)} "
            f"| {_number(result.get('steps'))} | {_number(result['seconds'])} "
            f"| {_number(result.get('cycle_time_s'), '.1f')} | {shares} "
            f"| {_percent(result.get('human'))} | {result['exit']} |"
        )
    print(f"\nall: {_together(results)}")


def print_ablations(results: dict[str, list[Result]]) -> None:
    """Print a row per variant: trials, difference to the full algorithm, and effort."""
    print(f"\n| variant, seeds {[r['seed'] for r in results[BASE]]} | all | each |", end="")
    print(" worth, points | median steps to 90 % | median total s |\n|" + "---|" * 6)
    shares = {v: np.divide(*_counts(runs)) for v, runs in results.items()}
    for variant, runs in results.items():
        steps = [(run.get("reached") or (math.inf,))[0] for run in runs]
        worth = "" if variant == BASE else f"{100 * (shares[BASE] - shares[variant]):+.0f}"
        middle = statistics.median(steps)
        print(
            f"| {variant} | {_together(runs)} | {', '.join(map(_trials, runs))} | {worth} "
            f"| {_number(middle if math.isfinite(middle) else 'never')} "
            f"| {_number(statistics.median(run['seconds'] for run in runs))} |"
        )


def _counts(results: Sequence[Result]) -> tuple[int, int]:
    """Return successes and trials of all runs; a run without final trials counts as failed."""
    successes = sum(result.get("successes") or 0 for result in results)
    return successes, sum(result.get("trials", 50) for result in results)


def _together(results: Sequence[Result]) -> str:
    trials = [result.get("trials", 50) for result in results]
    shares = [(run.get("successes") or 0) / n for run, n in zip(results, trials, strict=True)]
    _, low, high = estimate(
        lambda group: group[0].values.mean(-1), [SeedResults.of(shares, trials)]
    )
    successes, of = _counts(results)
    return f"{successes} of {of}: {successes / of:.1%} ({low:.1%} to {high:.1%} by seed)"


def _trials(result: Result) -> str:
    if result["error"]:
        return f"failed: {result['error']}"
    return f"{result['successes']} of {result['trials']}"


def _number(value: Any, form: str = ",.0f") -> str:
    return format(value, form) if isinstance(value, int | float) else value or "-"


def _percent(share: float | None) -> str:
    return "-" if share is None or math.isnan(share) else f"{share:.0%}"


if __name__ == "__main__":
    main()
