"""`report.html` of a run: one self-contained file."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from serl.errors import BadInput, SerlError
from serl.log.metrics import FILE, MetricsRow, read_metrics
from serl.report import page
from serl.report.curves import (
    WINDOW,
    Assistance,
    Quarter,
    Values,
    assistance,
    number,
    quarters,
    running_mean,
    running_ratio,
    series,
    thinned,
)
from serl.report.plots import Colour, Trace, plot
from serl.runs.demonstrations import mean_duration_s
from serl.system.files import write_atomic
from serl.system.settings_file import parse_yaml
from serl.system.video import VIDEO_TYPES
from serl.training.evaluation import wilson

STEPS, MINUTES = "online environment steps", "minutes of training"
MAX_VIDEO_BYTES = 24_000_000
HERO_PX = (400, 205)


@dataclass(frozen=True, eq=False)
class RunData:
    """The data of a run's report; `demonstrated_s` is NaN without demonstrations."""

    name: str
    task: str
    config: str
    videos: tuple[Path, ...]
    demonstrated_s: float
    help: Assistance
    episodes: list[MetricsRow]
    updates: list[MetricsRow]
    selections: list[MetricsRow]
    finals: list[MetricsRow]
    events: list[MetricsRow]


def write_report(run_path: Path) -> Path:
    """Write `report.html` into a run folder, at any time of the run, and return its path.

    Notes replace missing data.

    Raises:
        BadInput: `run_path` is not a run folder.
        CorruptData: `metrics.jsonl` is damaged before its last line.
    """
    run = read_run(run_path)
    sections = [
        _headline(run),
        _learning(run),
        _help(run),
        _robot(run),
        _learner(run),
        _checkpoints(run),
        _events(run),
        page.folded("Configuration", f"<pre>{escape(run.config)}</pre>")
        if run.config
        else page.words("The run has no config.yaml."),
    ]
    path = run_path / "report.html"
    write_atomic(path, page.document(f"{run.task} · {run.name}", sections).encode())
    return path


def read_run(run_path: Path) -> RunData:
    """Read the data of a run's report; raise as `write_report` does."""
    config = run_path / "config.yaml"
    if not config.is_file() and not (run_path / FILE).is_file():
        raise BadInput(f"{run_path} is not a run folder: expected config.yaml or {FILE} in it")
    rows = read_metrics(run_path / FILE)
    text = config.read_text(errors="replace") if config.is_file() else ""
    run_path, settings = run_path.resolve(), _settings(text)
    return RunData(
        name=run_path.name,
        task=_task(settings) or run_path.parent.name,
        config=text,
        videos=tuple(
            path for path in sorted((run_path / "videos").glob("*")) if path.suffix in VIDEO_TYPES
        ),
        demonstrated_s=_demonstrated_s(run_path, settings),
        help=assistance(rows),
        episodes=_of_kind(rows, "episode"),
        updates=_of_kind(rows, "update"),
        selections=_evaluations(rows, "selection"),
        finals=_evaluations(rows, "final"),
        events=_of_kind(rows, "event"),
    )


def _settings(config: str) -> dict[str, Any]:
    """Return the settings in the text of a `config.yaml`; {} if it cannot be parsed."""
    try:
        tree = parse_yaml(config, "config.yaml")
    except BadInput:
        return {}
    settings = tree.get("config", tree) if isinstance(tree, dict) else {}
    return settings if isinstance(settings, dict) else {}


def _task(settings: dict[str, Any]) -> str:
    """Return the task's name; empty when there is none."""
    task = settings.get("task")
    if isinstance(task, dict):
        task = task.get("name")
    return task if isinstance(task, str) else ""


def _demonstrated_s(run_path: Path, settings: dict[str, Any]) -> float:
    """Return the mean task time of the demonstrations, s; NaN if there are none or unreadable."""
    given = settings.get("demo_paths")
    folders = [path for path in given if isinstance(path, str)] if isinstance(given, list) else []
    with suppress(SerlError):
        return mean_duration_s([*map(Path, folders), run_path / "demonstrations"])
    return math.nan


def _of_kind(rows: list[MetricsRow], kind: str) -> list[MetricsRow]:
    return [row for row in rows if row["kind"] == kind]


def _evaluations(rows: list[MetricsRow], purpose: str) -> list[MetricsRow]:
    """Return the evaluations for a purpose, without rows of impossible counts."""
    return [
        row
        for row in _of_kind(rows, "evaluation")
        if row.get("purpose") == purpose
        and number(row, "trials") >= 1
        and 0 <= number(row, "successes") <= number(row, "trials")
    ]


def _interval(row: MetricsRow) -> tuple[float, float]:
    return wilson(int(row["successes"]), int(row["trials"]))


def _rate(row: MetricsRow) -> float:
    return number(row, "successes") / number(row, "trials")


def _trained(run: RunData) -> tuple[int, float]:
    """Return the online steps, and the seconds until the last episode or update."""
    rows = run.episodes + run.updates
    steps = max((row["steps"] for row in rows), default=0)
    return int(steps), max((row["time_s"] for row in rows), default=0.0)


def _headline(run: RunData) -> str:
    steps, time_s = _trained(run)
    if run.finals:
        final = run.finals[-1]
        low, high = _interval(final)
        result = page.result(
            _rate(final),
            (low, high),
            f"{final['successes']} of {final['trials']} unassisted trials succeeded, from starts "
            "that neither training nor the choice of the checkpoint ever saw.",
        )
    else:
        result = page.no_result(_so_far(run))
    helped = run.help
    last = quarters(run.episodes)[-1:]
    tiles = [
        ("environment steps", page.whole(steps) if steps else "-", "online, of all actors"),
        ("training time", page.minutes(time_s) if time_s else "-", "all resumes together"),
        _cycle_tile(run),
        (
            "human steps",
            page.percent(helped.human_share),
            f"{page.percent(last[0].human_share)} in the last quarter" if last else "",
        ),
        ("takeovers", page.whole(helped.takeovers), "by a human, in training"),
        (
            "requests for a person",
            page.whole(helped.requests),
            f"{page.decimal(helped.requests_per_100)} per 100 episodes",
        ),
        ("updates per step", page.decimal(_last(run.updates, "utd")), "critic updates, achieved"),
    ]
    return page.headline(run.task, run.name, result, page.film(run.videos, MAX_VIDEO_BYTES), tiles)


def _so_far(run: RunData) -> str:
    """Return a sentence on the last unassisted training episodes, if there is no evaluation."""
    alone = [row for row in run.episodes if not row.get("assisted")][-WINDOW:]
    if not alone:
        return "The run has no final evaluation, and no unassisted training episode."
    won = sum(bool(row.get("success")) for row in alone)
    return (
        "The run has no final evaluation. "
        f"Of its last {len(alone)} unassisted training episodes, {won} succeeded."
    )


def _cycle_tile(run: RunData) -> tuple[str, str, str]:
    if run.finals:
        cycle_s, shown_s = number(run.finals[-1], "cycle_time_s"), run.demonstrated_s
        note = "mean of the successful trials"
        if cycle_s > 0 and shown_s > 0:
            note += f"; demonstrated in {shown_s:.1f} s: {shown_s / cycle_s:.2f} times as fast"
        return ("cycle time", page.seconds(cycle_s), note)
    times_s = [number(row, "duration_s") for row in run.episodes if row.get("success")][-WINDOW:]
    mean_s = float(np.mean(times_s)) if times_s else math.nan
    return ("cycle time", page.seconds(mean_s), f"last {WINDOW} successful episodes")


def _last(rows: Sequence[MetricsRow], name: str) -> float:
    return number(rows[-1], name) if rows else math.nan


def _minutes(rows: Sequence[MetricsRow]) -> Values:
    return series(rows, "time_s") / 60.0


def _abscissae(rows: Sequence[MetricsRow], by_time: bool, steps: str = "steps") -> Values:
    return _minutes(rows) if by_time else series(rows, steps)


def success_alone(run: RunData) -> tuple[Values, Values]:
    """Return steps and running mean of successes of unassisted episodes.  # (N,) each."""
    rows = [row for row in run.episodes if not row.get("assisted")]
    return series(rows, "steps"), running_mean(series(rows, "success"))


def _success_traces(run: RunData, by_time: bool) -> list[Trace]:
    traces = []
    looks: list[tuple[str, Colour, bool]]
    looks = [("assisted", "human", True), ("unassisted", "policy", False)]
    for label, colour, assisted in looks:
        rows = [row for row in run.episodes if bool(row.get("assisted")) is assisted]
        mean = running_mean(series(rows, "success"))
        traces.append(Trace(label, colour, _abscissae(rows, by_time), mean))
    return [*traces, evaluations(run, by_time)]


def evaluations(run: RunData, by_time: bool = False) -> Trace:
    """Return the trace of the trials of checkpoints with their intervals, over steps or minutes."""
    rows = run.selections + run.finals[-1:]
    low, high = np.array([_interval(row) for row in rows]).reshape(-1, 2).T
    x = _abscissae(rows, by_time, "checkpoint")
    rates = np.array([_rate(row) for row in rows])
    return Trace("evaluations", "evaluation", x, rates, "points", (low, high))


def _return_traces(run: RunData, by_time: bool) -> list[Trace]:
    x, values = _abscissae(run.episodes, by_time), series(run.episodes, "reward")
    return [
        Trace("episodes", "policy", x, values, "dots"),
        Trace("running mean", "policy", x, running_mean(values)),
    ]


def _learning(run: RunData) -> str:
    views = ((False, "steps", STEPS), (True, "time", MINUTES))
    cards = []
    for by_time, axis, label in views:
        traces, title = _success_traces(run, by_time), f"Success against {axis}"
        figure = plot(title, traces, label, scale="percent", size_px=HERO_PX)
        cards.append(page.card(title, figure, legend=traces))
    for by_time, axis, label in views:
        traces, title = _return_traces(run, by_time), f"Return against {axis}"
        figure = plot(title, traces, label, size_px=HERO_PX)
        cards.append(page.card(title, figure, page.decimal(_final(traces[-1].y)), legend=traces))
    note = (
        f"Training episodes as running means of {WINDOW}, those with and without a human step "
        "apart; evaluations with their 95 % Wilson intervals. Returns are not discounted."
    )
    return page.section("Learning", note, page.grid(cards, wide=True))


def _help(run: RunData) -> str:
    x = series(run.episodes, "steps")
    share = running_ratio(series(run.episodes, "human_steps"), series(run.episodes, "length"))
    trace = Trace("", "human", x, share)
    figure = plot("Human steps", [trace], STEPS, scale="fitted percent", size_px=HERO_PX)
    cards = [
        page.card("Human steps", figure, page.percent(_final(share))),
        page.card("By quarter of the steps", _quarter_table(quarters(run.episodes))),
    ]
    note = f"Share of the steps that a human drove, over the last {WINDOW} episodes."
    return page.section("Human help", note, page.grid(cards, wide=True))


def _quarter_table(parts: list[Quarter]) -> str:
    if not parts:
        return ""
    heads = ["to step", "episodes", "human steps", "takeovers each", "unassisted", "assisted"]
    rows = [
        [
            page.whole(part.last_step),
            page.whole(part.episodes),
            page.percent(part.human_share, 1),
            page.decimal(part.interventions, 2),
            *(f"{won}/{all_}" if all_ else "-" for won, all_ in (part.unassisted, part.assisted)),
        ]
        for part in parts
    ]
    return page.table(heads, rows)


def _robot(run: RunData) -> str:
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
        cards.append(
            page.card(title, plot(title, traces, STEPS), page.decimal(_final(mean)), note=note)
        )
    note = f"Dots are episodes, lines their running means of {WINDOW}."
    return page.section("Episodes", note, page.grid(cards))


def _learner(run: RunData) -> str:
    x = series(run.updates, "steps")
    cards = []
    for title, name, note in (
        ("Updates per step", "utd", "critic updates per online step, achieved"),
        ("Updates per second", "updates_per_s", "each with its critic updates"),
        ("Lag", "lag", "steps received, not yet trained on"),
        ("Critic loss", "critic_loss", "mean over the ensemble"),
        ("Actor loss", "actor_loss", "last batch"),
        ("Q", "q", "mean value of the batch"),
        ("Temperature", "temperature", "of the entropy bonus"),
        ("Entropy", "entropy", "of the policy, in nats"),
        ("VICE: successes", "vice_good", "how probable it takes them to be one"),
        ("VICE: visits", "vice_visited", "how probable it takes what the policy visits to be one"),
        ("VICE: reward", "vice_reward", "mean over the batch"),
    ):
        values = series(run.updates, name)
        if name.startswith("vice") and not np.isfinite(values).any():
            continue
        traces = [
            Trace("", "policy", x, values, "dots"),
            Trace("", "policy", *thinned(x, values, 60)),
        ]
        figure = plot(title, traces, STEPS)
        cards.append(page.card(title, figure, page.decimal(_final(values)), note=note))
    note = "Dots are reports of the learner, lines the means of neighbouring ones."
    return page.section("Learner", note, page.grid(cards))


def _checkpoints(run: RunData) -> str:
    chosen = number(run.finals[-1], "checkpoint") if run.finals else math.nan
    rows = []
    for row in run.selections + run.finals:
        low, high = _interval(row)
        step = number(row, "checkpoint")
        is_final = row.get("purpose") == "final"
        rows.append(
            [
                page.whole(step),
                "final" if is_final else "selection" + ", chosen" * (step == chosen),
                f"{row['successes']}/{row['trials']}",
                f"{page.percent(_rate(row))} ({100 * low:.0f} to {100 * high:.0f})",
                page.seconds(number(row, "cycle_time_s")),
            ]
        )
    heads = ["step", "purpose", "solved", "rate (95 % interval)", "cycle time"]
    body = page.table(heads, rows) if rows else page.words("No checkpoint was evaluated.")
    note = "The checkpoint is chosen on starts of its own and then evaluated once on others."
    return page.section("Evaluations", note, page.panel(body))


def _events(run: RunData) -> str:
    rows = [
        [page.clock(row["time_s"]), page.whole(row["steps"]), str(row.get("text", ""))]
        for row in run.events
    ]
    if not rows:
        return page.section("Events", "", page.panel(page.words("Nothing was noted.")))
    body = page.table(["time", "step", "what happened"], rows, last_is_text=True)
    return page.section(
        "Events",
        "",
        page.panel(body) if len(rows) <= 12 else page.folded(f"{len(rows)} events", body),
    )


def _final(values: Values) -> float:
    """Return the last finite value; NaN without one."""
    finite = values[np.isfinite(values)]
    return float(finite[-1]) if len(finite) else math.nan
