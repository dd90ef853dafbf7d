"""Terminal output of `serl train`: a live panel on a terminal, else plain lines; a final table."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from serl.errors import counted
from serl.report.curves import Assistance
from serl.training.evaluation import Evaluation
from serl.training.link import ControlStatus, LinkStatus

WIDTH = 80
LINE_PERIOD_S = 10.0

GOOD, BAD, QUIET = "green", "bold red", "bright_black"
POLICY, HUMAN = "blue", "yellow"
PROCESS_STYLES = {"running": GOOD, "finished": QUIET}


@dataclass(frozen=True, slots=True)
class ActorProgress:
    """The state of one actor, as known to the learner.

    Attributes:
        running: whether its link process is running.
        link: status of the link process; None before its first report.
        weights_age: number of versions by which the actor's weights are behind the newest.
        control: punctuality of the control loop; None in simulated time.
        waits: action that the actor needs from a person, and the reason; empty if none.
    """

    name: str
    running: bool = True
    link: LinkStatus | None = None
    weights_age: int | None = None
    control: ControlStatus | None = None
    waits: str = ""


@dataclass(frozen=True, slots=True)
class ProcessProgress:
    """The state of one process of the run: "running", "finished" or a description of the fault."""

    name: str
    state: str


@dataclass(frozen=True, slots=True)
class RunProgress:
    """The progress of a run; None stands for unknown values, which are shown as "-".

    Attributes:
        elapsed_s: time that the run has been running.
        left_s: estimate of the time left.
        steps: online environment steps so far.
        total_steps: online environment steps at which the run ends.
        first_update_at: steps before the learner's first update; None once it came.
        episodes: online episodes so far.
        unassisted_success: share of successes of the last 20 episodes without a human step.
        assisted_success: share of successes of the last 20 episodes with a human step.
        human_share: share of human steps in the last 20 episodes.
        updates_per_s: updates of the learner per second.
        utd: critic updates per online step, achieved.
        weights_version: newest version that the learner published.
        actors: one entry per actor.
        processes: one entry per process.
    """

    task: str | None = None
    elapsed_s: float | None = None
    left_s: float | None = None
    steps: int | None = None
    total_steps: int | None = None
    first_update_at: int | None = None
    episodes: int | None = None
    unassisted_success: float | None = None
    assisted_success: float | None = None
    human_share: float | None = None
    updates_per_s: float | None = None
    utd: float | None = None
    weights_version: int | None = None
    actors: tuple[ActorProgress, ...] = ()
    processes: tuple[ProcessProgress, ...] = ()


class Display:
    """Progress output: a live panel on a terminal or in a notebook, else a line every ten seconds.

    Args:
        console: output; standard output by default.
        now_s: clock, monotonic seconds.
    """

    def __init__(
        self, console: Console | None = None, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self.console = console or Console(highlight=False, emoji=False)
        self._now_s = now_s
        self._next_line_s = now_s()
        self._live = Live(console=self.console, auto_refresh=False)
        self._cell: Any = None  # the panel's place in a notebook

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self.console.is_terminal:
            self._live.stop()

    def update(self, progress: RunProgress) -> None:
        """Show the newest state; may be called at any rate."""
        if self.console.is_terminal:
            self._live.update(panel(progress), refresh=True)
        elif self.console.is_jupyter:
            self._show(panel(progress))
        else:
            self._print_rarely(line(progress))

    def _print_rarely(self, text: str) -> None:
        """Print a line unless this is a terminal, or the last such line is newer than 10 s."""
        if not self.console.is_terminal and self._now_s() >= self._next_line_s:
            self._next_line_s = self._now_s() + LINE_PERIOD_S
            self.print_line(text)

    def _show(self, shown: RenderableType) -> None:
        """Show the panel in a notebook's cell, in the place of the last one."""
        from IPython.display import display

        if self._cell is None:
            self._cell = display(shown, display_id=True)
        else:
            self._cell.update(shown)

    @contextmanager
    def counting(self, text: str, total: int) -> Iterator[Callable[..., None]]:
        """Show the progress of `total` things; yield a function to be called after each of them.

        A bar on a terminal, where the panel must not be live; else one line every ten seconds.
        The function takes the number of things done so far; without it one more is done. It also
        takes the loss of a model in training, which is shown with the text.
        """
        columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
        done = 0
        bars = Progress(
            *columns,
            TimeRemainingColumn(),
            console=self.console,
            transient=True,
            disable=not self.console.is_terminal,
        )
        with bars:
            task = bars.add_task(text, total=total)

            def advance(so_far: int | None = None, loss: float | None = None) -> None:
                nonlocal done
                done = done + 1 if so_far is None else so_far
                shown_loss = "" if loss is None else f", loss {loss:.4f}"
                bars.update(task, completed=done, description=f"{text}{shown_loss}")
                self._print_rarely(f"{text}: {done} of {total}{shown_loss}")

            yield advance

    @contextmanager
    def working(self, text: str) -> Iterator[Callable[[str], None]]:
        """Show on a terminal that work of unknown length is in progress.

        The yielded function replaces the text; elsewhere it prints a line every ten seconds.
        """
        with self.console.status(text) as status:

            def show(text: str) -> None:
                status.update(text)
                self._print_rarely(text)

            yield show

    def print_line(self, text: str) -> None:
        """Print one line at once, above the panel: a start, a restart, a warning."""
        self.console.print(text, markup=False, soft_wrap=True)


def panel(progress: RunProgress) -> RenderableType:
    """Return the live panel, at most 80 columns wide."""
    times = f"{_clock(progress.elapsed_s)} elapsed"
    if progress.left_s:
        times += f" · about {_clock(progress.left_s)} left"
    rows: list[RenderableType] = [_steps(progress), Text(), _numbers(progress)]
    if progress.actors or progress.processes:
        rows += [Text(), _parts(progress)]
    return Panel(
        Padding(Group(*rows), (1, 1)),
        title=Text.assemble("serl ", (progress.task or "starting", "bold")),
        title_align="left",
        subtitle=Text(times),
        subtitle_align="right",
        border_style=QUIET,
        width=WIDTH,
    )


def line(progress: RunProgress) -> str:
    """Return the state in one plain line."""
    parts = [
        f"{_clock(progress.elapsed_s)} elapsed",
        f"steps {_whole(progress.steps)}/{_whole(progress.total_steps)}{_learns_from(progress)}",
        f"episodes {_whole(progress.episodes)}",
        f"success of unassisted episodes {_percent(progress.unassisted_success)}",
        f"of assisted episodes {_percent(progress.assisted_success)}",
        f"human steps {_percent(progress.human_share)}",
        f"updates/s {_number(progress.updates_per_s)}",
        f"updates/step {_number(progress.utd)}",
        f"weights version {_whole(progress.weights_version)}",
        *(_actor(actor) for actor in progress.actors),
        *(f"{part.name} {part.state}" for part in progress.processes if part.state != "running"),
        *([f"about {_clock(progress.left_s)} left"] if progress.left_s else []),
    ]
    return " | ".join(parts)


@dataclass(frozen=True, slots=True)
class Summary:
    """The results of a run, for the table at its end.

    Attributes:
        evaluation: final unassisted trials; None when there were none.
        steps: online environment steps.
        duration_s: time that the run has been running.
        human_shares: share of human steps in each quarter of the steps; empty when unknown.
        report: path of the report; None when there is none.
        help: takeovers and requests for a person; None when unknown.
        clone: the same trials of the demonstrations cloned alone; None when there were none.
        practice_s: time until the last step was taken; None if the best policy is the one before
            any practice.
        inherited: the policy before any practice is another run's, without a warm-up.
    """

    task: str
    folder: Path
    evaluation: Evaluation | None
    steps: int
    duration_s: float
    human_shares: Sequence[float] = ()
    report: Path | None = None
    help: Assistance | None = None
    clone: Evaluation | None = None
    practice_s: float | None = None
    inherited: bool = False

    def comparison(self) -> str:
        """Return the successes before and after training as a sentence; "" without a clone."""
        if self.clone is None or self.evaluation is None:
            return ""
        policy = "after the warm-up alone, as practice added nothing"
        if self.inherited:
            policy = "inherited, as practice added nothing"
        if self.practice_s is not None:
            policy = f"after {_clock(self.practice_s)} of practice"
        return (
            f"cloned from the same demonstrations: {_successes(self.clone)}; "
            f"{policy}: {_successes(self.evaluation)}"
        )


def print_summary(console: Console, summary: Summary) -> None:
    """Print the table of results at the end of a run; paths are not wrapped, for copying."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style=QUIET, justify="right")
    table.add_column()
    table.add_row("task", Text(summary.task, style="bold"))
    table.add_row("unassisted success", _result(summary.evaluation))
    if summary.evaluation and summary.evaluation.cycle_time_s is not None:
        table.add_row("cycle time", f"{summary.evaluation.cycle_time_s:.1f} s")
    table.add_row("environment steps", _whole(summary.steps))
    table.add_row("time", _clock(summary.duration_s))
    if summary.human_shares:
        shares = " → ".join(_percent(share) for share in summary.human_shares)
        table.add_row("human steps", f"{shares}  (quarters of the steps)")
    if summary.help is not None:
        table.add_row("help", str(summary.help))
    console.print(Padding(table, (1, 1)))
    if comparison := summary.comparison():
        console.print(f" {comparison}\n", markup=False, soft_wrap=True)
    for name, path in (("run", summary.folder), ("report", summary.report)):
        if path is not None:
            console.print(f" {name:>18}  {path}", markup=False, soft_wrap=True)


def _successes(evaluation: Evaluation) -> str:
    return f"{evaluation.successes} of {len(evaluation.trials)}"


def _result(evaluation: Evaluation | None) -> Text:
    if evaluation is None or not evaluation.trials:
        return Text((evaluation and evaluation.early_end) or "not evaluated")
    low, high = evaluation.interval
    partial, interval = "partial" * bool(evaluation.early_end), f"{low:.0%} to {high:.0%}"
    counts = (f"{_successes(evaluation)} trials", evaluation.void_text, partial)
    text = f"  {', '.join(filter(None, counts))}, 95 % interval {interval}"
    return Text.assemble((f"{evaluation.success_rate:.0%}", "bold"), text)


def _steps(progress: RunProgress) -> RenderableType:
    grid = Table.grid(expand=True, padding=(0, 2, 0, 0))
    grid.add_column(ratio=1)
    grid.add_column(justify="right", no_wrap=True)
    total = progress.total_steps or 0
    bar = ProgressBar(
        total=max(total, 1),
        completed=min(progress.steps or 0, total),
        complete_style=POLICY,
        finished_style=POLICY,
    )
    steps = f"{_whole(progress.steps)} of {_whole(progress.total_steps)} steps"
    grid.add_row(bar, f"{steps}{_learns_from(progress)}")
    return grid


def _learns_from(progress: RunProgress) -> str:
    at = progress.first_update_at
    return f" (learning starts at {at:,})" if at else ""


def _numbers(progress: RunProgress) -> RenderableType:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style=QUIET, justify="right", min_width=18)
    grid.add_column(width=20)
    grid.add_column(justify="right", width=4)
    grid.add_column(style=QUIET, justify="right", width=14)
    grid.add_column(justify="right", width=7)
    rows = (
        ("unassisted success", progress.unassisted_success, POLICY),
        ("assisted success", progress.assisted_success, HUMAN),
        ("human steps", progress.human_share, HUMAN),
    )
    numbers = (
        ("episodes", _whole(progress.episodes)),
        ("updates/s", _number(progress.updates_per_s)),
        ("updates/step", _number(progress.utd)),
    )
    for (name, share, colour), (label, number) in zip(rows, numbers, strict=True):
        bar = ProgressBar(
            total=1.0, completed=share or 0.0, complete_style=colour, finished_style=colour
        )
        grid.add_row(name, bar, _percent(share), label, number)
    grid.add_row("", Text("last 20 of each kind", style=QUIET))
    return grid


def _parts(progress: RunProgress) -> RenderableType:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style=QUIET, justify="right", min_width=18)
    grid.add_column()
    version = progress.weights_version
    grid.add_row("weights", "-" if version is None else f"version {_whole(version)}")
    for actor in progress.actors:
        state = Text.assemble(
            ("● ", _link_style(actor)), f"{link_text(actor)} ", (f"· {_condition(actor)}", QUIET)
        )
        if actor.waits:
            state = Text(f"● waits for a person: {actor.waits}", style=BAD)
        grid.add_row(actor.name, state)
    well = [part for part in progress.processes if part.state in PROCESS_STYLES]
    if well:
        grid.add_row("processes", Text("   ").join(_process(part) for part in well))
    for part in (each for each in progress.processes if each not in well):
        grid.add_row("", _process(part))
    return grid


def _process(process: ProcessProgress) -> Text:
    style = PROCESS_STYLES.get(process.state, BAD)
    shown = "" if process.state == "running" else f" {process.state}"
    return Text.assemble(("● ", style), process.name, (shown, style))


def _actor(actor: ActorProgress) -> str:
    state = f"{link_text(actor)} ({_condition(actor)})"
    return f"{actor.name} {f'waits for a person: {actor.waits}' if actor.waits else state}"


def link_text(actor: ActorProgress) -> str:
    """Return the state of an actor's link in words, with the numbers of steps."""
    if not actor.running:
        return "link process not running"
    if actor.link is None:
        return "link process starting"
    if not actor.link.connected:
        return "waiting for the learner"
    return f"{actor.link.acknowledged:,} steps acknowledged, {actor.link.waiting:,} waiting"


def _link_style(actor: ActorProgress) -> str:
    if not actor.running:
        return BAD
    if actor.link is None:
        return QUIET
    return GOOD if actor.link.connected else HUMAN


def versions_behind(age: int) -> str:
    """Return the age of an actor's weights in words; "" for the newest weights."""
    return f"{counted(age, 'version')} behind" if age else ""


def _condition(actor: ActorProgress) -> str:
    late = "" if actor.control is None else f", {actor.control.share:.1%} of periods late"
    if actor.weights_age is None:
        return f"no weights yet{late}"
    return (versions_behind(actor.weights_age) or "newest weights") + late


def _percent(share: float | None) -> str:
    return "-" if share is None or math.isnan(share) else f"{share:.0%}"


def _whole(number: int | None) -> str:
    return "-" if number is None else f"{number:,}"


def _number(number: float | None) -> str:
    return "-" if number is None else f"{number:.1f}"


def _clock(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"
