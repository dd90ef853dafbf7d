"""Benchmark of operator habits: final unassisted success and seconds of operator input.

    python tests/bench/bench_habits.py [--seeds 0 1 2] [--habits early late] [--steps N] [--docs]

Each cell is one `serl train`, run in sequence, with a `ScriptedHuman` of these habits. Results are
appended to OUT/results.jsonl and not run again. `--docs` writes their table into docs/operating.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from serl.log.metrics import read_metrics
from serl.runs.folder import RunFolder
from serl.runs.task_setup import make_task
from serl.training.evaluation import wilson
from tests.bench.training_runs import Result, train_once

PAGE = Path(__file__).parents[2] / "docs" / "operating.md"
BEGIN, END = "<!-- habits -->", "<!-- end of habits -->"
LAST = 20  # episodes, and reports of the learner, at the end of a training

HABITS: dict[str, tuple[str, tuple[str, ...]]] = {
    "early": ("early and brief: after 1.5 s without progress, for at most 1.5 s", ()),
    "late": (
        "late and long: after 4 s without progress, until the episode ends",
        (
            *("--human.patience_steps=40", "--human.regress=0.5", "--human.gain=1.0"),
            *("--human.hold_steps=30", "--human.max_hold_steps=80", "--human.bucket_steps=160"),
        ),
    ),
    "careless": (
        "careless: as 'early', but with noisy actions and a reaction time of 1 s",
        ("--human.noise=0.6", "--human.reaction_steps=10"),
    ),
    "clinging": (
        "never lets go: takes over early, in half of all steps until the training ends",
        ("--human.share=0.9", "--human.final_share=0.5", "--human.patience_steps=5"),
    ),
    "nobody": ("nobody", ("--intervention=none",)),
}


def main() -> None:
    """Run what is missing, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--task", default="pick_cube")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--habits", nargs="+", choices=list(HABITS), default=list(HABITS))
    parser.add_argument("--steps", type=int, help="of each training; else as `serl train` does")
    parser.add_argument("--out", type=Path, default=Path("runs/habits"), help="folder of all runs")
    parser.add_argument("--docs", action="store_true", help="write the table to docs/operating.md")
    options, settings = parser.parse_known_args()
    if options.steps is not None:
        settings.append(f"--steps={options.steps}")
    results = [
        (
            habit,
            [_result(options.out, options.task, habit, seed, settings) for seed in options.seeds],
        )
        for habit in options.habits
    ]
    lines = table(options.task, results)
    print("\n".join(lines))
    if options.docs:
        write_docs(PAGE, lines)


def _result(out: Path, task: str, habit: str, seed: int, settings: Sequence[str]) -> Result:
    """Return the result of a habit's training, with the numbers of its run measured anew."""
    arguments = [task, f"--seed={seed}", *settings, *HABITS[habit][1]]
    result = train_once(out, arguments, {"habit": habit, "seed": seed}, summary)
    return {**result, **summary(RunFolder.open(Path(result["run"])))} if result["run"] else result


def summary(run: RunFolder) -> Result:
    """Return the results of a run."""
    rows = read_metrics(run.metrics)
    episodes = [row for row in rows if row["kind"] == "episode"]
    final = next((r for r in rows if r["kind"] == "evaluation" and r["purpose"] == "final"), {})
    human_steps = sum(row["human_steps"] for row in episodes)
    takeovers = sum(row["interventions"] for row in episodes)
    rate_hz = make_task(run.config).config.rate_hz
    values = [row["q"] for row in rows if row["kind"] == "update"]
    return {
        "trials": run.config.trials,
        "successes": final.get("successes"),
        "cycle_time_s": final.get("cycle_time_s"),
        "human_s": human_steps / rate_hz,
        "share": human_steps / max(1, sum(row["length"] for row in episodes)),
        "takeovers": takeovers,
        "takeover_s": human_steps / takeovers / rate_hz if takeovers else 0.0,
        "believed": sum(values[-LAST:]) / max(1, len(values[-LAST:])),
        "reached": reached(episodes[-LAST:], run.config.agent.discount),
    }


def reached(episodes: Sequence[Result], discount: float) -> float:
    """Return the mean discounted return from all states of these episodes, to compare with Q."""
    steps = returns = 0.0
    for row in episodes:
        steps += row["length"]
        if row["success"]:
            returns += (1.0 - discount ** row["length"]) / (1.0 - discount)
    return returns / max(1.0, steps)


def table(task: str, results: Sequence[tuple[str, Sequence[Result]]]) -> list[str]:
    """Return a table line per habit over all seeds."""
    seeds = [result["seed"] for result in results[0][1]]
    lines = [
        f"| habit ({task}, seeds {', '.join(map(str, seeds))}) | unassisted, at the end | by seed "
        "| human time | of all steps | takeovers | each | predicted value | reached |",
        "|" + "---|" * 9,
    ]
    for habit, runs in results:
        won = sum(run.get("successes") or 0 for run in runs)
        trials = sum(run.get("trials", 50) for run in runs)
        low, high = wilson(won, trials)
        each = ", ".join(str(run.get("successes")) for run in runs)
        lines.append(
            f"| {HABITS[habit][0]} | {won / trials:.0%} ({low:.0%} to {high:.0%}) | {each} "
            f"| {_mean(runs, 'human_s'):.0f} s | {_mean(runs, 'share'):.0%} "
            f"| {_mean(runs, 'takeovers'):.0f} | {_mean(runs, 'takeover_s'):.1f} s "
            f"| {_mean(runs, 'believed'):.2f} | {_mean(runs, 'reached'):.2f} |"
        )
    return lines


def _mean(runs: Sequence[Result], name: str) -> float:
    return sum(run.get(name) or 0.0 for run in runs) / len(runs)


def write_docs(page: Path, lines: Sequence[str]) -> None:
    """Put the table between its two marks."""
    head, begin, rest = page.read_text().partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not (begin and end):
        raise SystemExit(f"{page}: expected {BEGIN} and {END}")
    page.write_text(f"{head}{BEGIN}\n\n" + "\n".join(lines) + f"\n\n{END}{tail}")


if __name__ == "__main__":
    main()
