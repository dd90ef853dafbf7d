"""`report.html` of a run, or of all stages of a run: one self-contained file."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from serl.log.metrics import MetricsRow
from serl.report import page
from serl.report.curves import (
    WINDOW,
    Assistance,
    Quarter,
    Values,
    judged,
    number,
    quarters,
    running_mean,
    running_ratio,
    series,
    thin,
    total_assistance,
)
from serl.report.plots import Colour, Trace, plot
from serl.report.run_data import RunData, read_run
from serl.runs.folder import STAGES, RunFolder
from serl.system.files import write_atomic
from serl.training.evaluation import wilson

STEPS, MINUTES = "online environment steps", "minutes of training"
MAX_VIDEO_BYTES = 24_000_000
"""Bytes of films that one page embeds; further films are named only."""
HERO_PX = (400, 205)
"""Width and height of the large plots, pixels."""
_LEARNER_PLOTS = (  # title, field of `UpdateRow`, note
    ("Updates per step", "utd", "critic updates per online step, achieved"),
    ("Updates per second", "updates_per_s", "each with its critic updates"),
    ("Lag", "lag", "steps received, not yet trained on"),
    ("Critic loss", "critic_loss", "mean over the ensemble"),
    ("Actor loss", "actor_loss", "last batch"),
    ("Q", "q", "mean value of the batch"),
    ("Temperature", "temperature", "of the entropy bonus"),
    ("Entropy", "entropy", "of the policy, in nats"),
    ("VICE: successes", "vice_good", "mean predicted probability of success"),
    ("VICE: visits", "vice_visited", "mean predicted probability of success of visited states"),
    ("VICE: reward", "vice_reward", "mean over the batch"),
    ("Feedback: loss", "feedback_loss", "squared error of predicted evaluations"),
    ("Feedback: reward", "feedback_reward", "mean addition over the batch"),
)


def write_report(run_path: Path) -> Path:
    """Write `report.html` into a run folder, at any time of the run, and return its path.

    Notes replace missing data.

    Raises:
        BadInput: `run_path` is not a run folder.
        CorruptData: `metrics.jsonl` is damaged before its last line.
    """
    run = read_run(run_path)
    content = page.render(
        "report.html",
        task=run.task,
        name=run.name,
        **_result(run),
        films=page.films(run.videos, MAX_VIDEO_BYTES),
        tiles=_tiles(run),
        window=WINDOW,
        learning=_learning(run),
        help=[_human_steps(run)],
        quarters=[_quarter(part) for part in quarters(run.episodes)],
        episodes=_episodes(run),
        learner=_learner(run),
        evaluations=_evaluation_rows(run),
        events=[
            (page.clock(row["time_s"]), page.whole(row["steps"]), str(row.get("text", "")))
            for row in run.events
        ],
        config=run.config,
    )
    path = run_path / "report.html"
    write_atomic(path, content)
    return path


def write_stages_report(run: RunFolder) -> Assistance:
    """Write the report of a run with stages into its folder, at any time of the run.

    Returns:
        The human help in all stages together.

    Raises:
        BadInput: a stage's folder is not a run.
    """
    stages = {name: read_run(part.path) for name, part in run.parts().items()}
    helped = total_assistance(stage.help for stage in stages.values())
    finals = [stage.finals[-1] for stage in stages.values() if stage.finals]
    result = _score(None, "Not every stage has a final evaluation.")
    if len(finals) == len(stages):
        won, trials = (sum(int(row[name]) for row in finals) for name in ("successes", "trials"))
        text = f"{won} of {trials} unassisted trials of all stages succeeded."
        if any(row.get("early_end") for row in finals):
            text += " This result is partial: the trials of a stage ended early."
        result = _score((won, trials), text)
    content = page.render(
        "stages.html",
        task=run.config.task,
        name=run.name,
        **result,
        films=[],
        tiles=[
            ("episodes", page.whole(helped.episodes), "of all stages"),
            ("human steps", page.percent(helped.human_share), "of all steps"),
            *_help_tiles(helped),
        ],
        help=str(helped),
        rows=[_stage_row(name, stage) for name, stage in stages.items()]
        + [["all", "", *_help_cells(helped)]],
        folder=STAGES,
        stages=list(stages),
        learning=[_stage_card(name, stage) for name, stage in stages.items()],
    )
    write_atomic(run.report, content)
    return helped


def _stage_row(name: str, stage: RunData) -> list[str]:
    final = stage.finals[-1] if stage.finals else None
    trials = f"{final['successes']}/{final['trials']}" if final else "-"
    return [name, trials, *_help_cells(stage.help)]


def _help_cells(helped: Assistance) -> list[str]:
    return [
        page.whole(helped.episodes),
        page.whole(helped.steps),
        page.percent(helped.human_share, 1),
        page.whole(helped.takeovers),
        page.whole(helped.requests),
        page.decimal(helped.requests_per_100),
    ]


def _stage_card(name: str, stage: RunData) -> page.PlotCard:
    steps, rates = success_alone(stage)
    trace = Trace("", "policy", steps, rates)
    figure = plot(f"{name} success", [trace], STEPS, scale="percent", size_px=HERO_PX)
    return page.PlotCard(name, figure, page.percent(float(rates[-1]) if len(rates) else math.nan))


def _interval(row: MetricsRow) -> tuple[float, float]:
    return wilson(int(row["successes"]), int(row["trials"]))


def _rate(row: MetricsRow) -> float:
    return number(row, "successes") / number(row, "trials")


def _trained(run: RunData) -> tuple[int, float]:
    """Return the online steps, and the seconds until the last episode or update."""
    rows = run.episodes + run.updates
    counted = rows + run.selections + run.finals  # no row need have come with the last step
    steps = max((row["steps"] for row in counted), default=0)
    return int(steps), max((row["time_s"] for row in rows), default=0.0)


def _score(counts: tuple[int, int] | None, text: str) -> dict[str, Any]:
    """Return the values of a page's headline: the rate of (successes, trials), and a sentence."""
    if counts is None:
        return {"rate": None, "result": text}
    low, high = wilson(*counts)
    return {"rate": counts[0] / counts[1], "low": low, "high": high, "result": text}


def _result(run: RunData) -> dict[str, Any]:
    if not run.finals:
        return _score(None, _so_far(run))
    final = run.finals[-1]
    text = (
        f"{final['successes']} of {final['trials']} unassisted trials succeeded, from starts "
        "that were used neither in training nor to choose the checkpoint."
    )
    if final.get("early_end"):
        text += f" This result is partial: the trials {final['early_end']}."
    elif final.get("void"):
        text += f" Not counted: {final['void']}."
    if run.lasts:
        last = run.lasts[-1]
        text += (
            f" The last checkpoint, which was not selected, succeeded in {last['successes']} of "
            f"{last['trials']} trials from the same starts."
        )
    return _score((int(final["successes"]), int(final["trials"])), text)


def _tiles(run: RunData) -> list[page.Tile]:
    steps, time_s = _trained(run)
    last = quarters(run.episodes)[-1:]
    return [
        ("environment steps", page.whole(steps) if steps else "-", "online, of all actors"),
        ("training time", page.minutes(time_s) if time_s else "-", "all resumes together"),
        _cycle_tile(run),
        (
            "human steps",
            page.percent(run.help.human_share),
            f"{page.percent(last[0].human_share)} in the last quarter" if last else "",
        ),
        *_help_tiles(run.help),
        ("updates per step", page.decimal(_last(run.updates, "utd")), "critic updates, achieved"),
    ]


def _help_tiles(helped: Assistance) -> list[page.Tile]:
    per_100 = f"{page.decimal(helped.requests_per_100)} per 100 episodes"
    return [
        ("takeovers", page.whole(helped.takeovers), "by a human, in training"),
        ("requests for a person", page.whole(helped.requests), per_100),
    ]


def _so_far(run: RunData) -> str:
    """Return a sentence on final trials of which none counts, or on the last training episodes."""
    alone = [row for row in judged(run.episodes) if not row.get("assisted")][-WINDOW:]
    if run.early_end:
        return f"No final trial counts: the trials {run.early_end}."
    if not alone:
        return "The run has no final evaluation, and no unassisted training episode."
    won = sum(bool(row.get("success")) for row in alone)
    return (
        "The run has no final evaluation. "
        f"Of its last {len(alone)} unassisted training episodes, {won} succeeded."
    )


def _cycle_tile(run: RunData) -> page.Tile:
    if run.finals:
        cycle_s, shown_s = number(run.finals[-1], "cycle_time_s"), run.demonstrated_s
        note = "mean of the successful trials"
        if cycle_s > 0 and shown_s > 0:
            speed = page.percent(shown_s / cycle_s)
            note += f", at {speed} of the speed of the demonstrations ({shown_s:.1f} s)"
        return ("cycle time", page.seconds(cycle_s), note)
    times_s = [number(row, "duration_s") for row in run.episodes if row.get("success")][-WINDOW:]
    mean_s = float(np.mean(times_s)) if times_s else math.nan
    return ("cycle time", page.seconds(mean_s), f"last {WINDOW} successful episodes")


def _last(rows: Sequence[MetricsRow], name: str) -> float:
    return number(rows[-1], name) if rows else math.nan


def _minutes(rows: Sequence[MetricsRow]) -> Values:
    return series(rows, "time_s") / 60.0


def _abscissae(rows: Sequence[MetricsRow], by_time: bool) -> Values:
    return _minutes(rows) if by_time else series(rows, "steps")


def success_alone(run: RunData) -> tuple[Values, Values]:
    """Return steps and running mean of successes of unassisted episodes.  # (N,) each."""
    rows = [row for row in judged(run.episodes) if not row.get("assisted")]
    return series(rows, "steps"), running_mean(series(rows, "success"))


def _success_traces(run: RunData, by_time: bool) -> list[Trace]:
    traces = []
    kinds: list[tuple[str, Colour, bool]]
    kinds = [("assisted", "human", True), ("unassisted", "policy", False)]
    for label, colour, assisted in kinds:
        rows = [row for row in judged(run.episodes) if bool(row.get("assisted")) is assisted]
        mean = running_mean(series(rows, "success"))
        traces.append(Trace(label, colour, _abscissae(rows, by_time), mean))
    return [*traces, evaluations(run, by_time)]


def evaluations(run: RunData, by_time: bool = False) -> Trace:
    """Return the trace of the trials of checkpoints with their intervals, over steps or minutes.

    A checkpoint stands at the time at which its steps were trained, not at that of its trials.
    """
    rows = run.selections + run.finals[-1:]
    low, high = np.array([_interval(row) for row in rows]).reshape(-1, 2).T
    x = series(rows, "checkpoint")
    if by_time and (known := run.episodes + run.updates):
        known = sorted(known, key=lambda row: number(row, "steps"))
        x = np.interp(x, series(known, "steps"), _minutes(known))
    rates = np.array([_rate(row) for row in rows])
    return Trace("evaluations", "evaluation", x, rates, "points", (low, high))


def _return_traces(run: RunData, by_time: bool) -> list[Trace]:
    x, values = _abscissae(run.episodes, by_time), series(run.episodes, "reward")
    return [
        Trace("episodes", "policy", x, values, "dots"),
        Trace("running mean", "policy", x, running_mean(values)),
    ]


def _learning(run: RunData) -> list[page.PlotCard]:
    views = ((False, "steps", STEPS), (True, "time", MINUTES))
    cards = []
    for by_time, axis, label in views:
        traces, title = _success_traces(run, by_time), f"Success against {axis}"
        figure = plot(title, traces, label, scale="percent", size_px=HERO_PX)
        cards.append(page.PlotCard(title, figure, legend=traces))
    for by_time, axis, label in views:
        traces, title = _return_traces(run, by_time), f"Return against {axis}"
        figure = plot(title, traces, label, size_px=HERO_PX)
        cards.append(
            page.PlotCard(title, figure, page.decimal(_final(traces[-1].y)), legend=traces)
        )
    return cards


def _human_steps(run: RunData) -> page.PlotCard:
    x = series(run.episodes, "steps")
    share = running_ratio(series(run.episodes, "human_steps"), series(run.episodes, "length"))
    trace = Trace("", "human", x, share)
    figure = plot("Human steps", [trace], STEPS, scale="fitted percent", size_px=HERO_PX)
    return page.PlotCard("Human steps", figure, page.percent(_final(share)))


def _quarter(part: Quarter) -> list[str]:
    return [
        page.whole(part.last_step),
        page.whole(part.episodes),
        page.percent(part.human_share, 1),
        page.decimal(part.interventions, 2),
        *(f"{won}/{all_}" if all_ else "-" for won, all_ in (part.unassisted, part.assisted)),
    ]


def _episodes(run: RunData) -> list[page.PlotCard]:
    x, rows = series(run.episodes, "steps"), run.episodes
    solved = [row for row in rows if row.get("success")]
    specs = (
        ("Cycle time", "s, successes", series(solved, "steps"), series(solved, "duration_s")),
        ("Weight age", "versions behind at the episode's end", x, series(rows, "weight_age")),
    )
    cards = []
    for title, note, at, values in specs:
        mean = running_mean(values)
        traces = [Trace("", "policy", at, values, "dots"), Trace("", "policy", at, mean)]
        figure = plot(title, traces, STEPS)
        cards.append(page.PlotCard(title, figure, page.decimal(_final(mean)), note=note))
    return cards


def _learner(run: RunData) -> list[page.PlotCard]:
    x = series(run.updates, "steps")
    cards = []
    for title, name, note in _LEARNER_PLOTS:
        values = series(run.updates, name)
        if name.startswith(("vice", "feedback")) and not np.isfinite(values).any():
            continue
        traces = [
            Trace("", "policy", x, values, "dots"),
            Trace("", "policy", *thin(x, values, 60)),
        ]
        figure = plot(title, traces, STEPS)
        cards.append(page.PlotCard(title, figure, page.decimal(_final(values)), note=note))
    return cards


def _evaluation_rows(run: RunData) -> list[list[str]]:
    chosen = number(run.finals[-1], "checkpoint") if run.finals else math.nan
    rows = []
    for row in run.clones + run.selections + run.lasts + run.finals:
        low, high = _interval(row)
        step = number(row, "checkpoint")
        purpose = str(row["purpose"])
        chose = purpose == "selection" and step == chosen
        rows.append(
            [
                page.whole(step),
                purpose + ", chosen" * chose,
                f"{row['successes']}/{row['trials']}",
                f"{page.percent(_rate(row))} ({100 * low:.0f} to {100 * high:.0f})",
                page.seconds(number(row, "cycle_time_s")),
            ]
        )
    return rows


def _final(values: Values) -> float:
    """Return the last finite value; NaN without one."""
    finite = values[np.isfinite(values)]
    return float(finite[-1]) if len(finite) else math.nan
