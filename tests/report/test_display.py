import io
import math
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console, RenderableType

from serl.report.curves import Assistance
from serl.report.display import (
    ActorProgress,
    Display,
    ProcessProgress,
    RunProgress,
    Summary,
    line,
    panel,
    print_summary,
)
from serl.training.evaluation import Evaluation, Trial
from serl.training.link import LinkStatus

FULL = RunProgress(
    task="pick_cube",
    elapsed_s=192.4,
    left_s=3725.0,
    steps=7412,
    total_steps=12000,
    episodes=214,
    unassisted_success=0.85,
    assisted_success=0.95,
    human_share=0.07,
    updates_per_s=41.34,
    utd=3.98,
    weights_version=371,
    actors=(
        ActorProgress("actor-0", True, LinkStatus(51234, 3, True), 0),
        ActorProgress("actor-1", False, LinkStatus(7, 0, True), 3),
        ActorProgress("actor-2"),
        ActorProgress("actor-3", True, LinkStatus(0, 64, False)),
    ),
    processes=(
        ProcessProgress("learner", "running"),
        ProcessProgress("actor-0", "finished"),
        ProcessProgress("actor-1", "[red]killed by signal 9[/red]"),
    ),
)
WELL = LinkStatus(51234, 3, True)
SUMMARY = Summary(
    "pick_cube",
    Path(
        "runs/pick_cube/2026-11-21T09-12-33/a-folder-with-a-name-that-does-not-fit-into-80-columns"
    ),
    Evaluation(tuple(Trial(seed, seed > 1, 42, 4.2, "success") for seed in range(50))),
    12000,
    312.0,
    (0.28, 0.14, 0.05, 0.02),
    Path("runs/report.html"),
)


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def console(terminal: bool, width: int = 80) -> Console:
    return Console(
        file=io.StringIO(), force_terminal=terminal, width=width, highlight=False, color_system=None
    )


def written(to: Console) -> str:
    assert isinstance(to.file, io.StringIO)
    return to.file.getvalue()


def shown(progress: RunProgress, width: int = 80) -> str:
    to = console(terminal=True, width=width)
    to.print(panel(progress))
    return written(to)


def test_the_panel_shows_everything_within_80_columns() -> None:
    text = shown(FULL, width=120)
    assert max(map(len, text.splitlines())) == 80
    for part in (
        *("pick_cube", "3:12 elapsed", "1:02:05 left", "7\u202f412 of 12\u202f000 steps", "214"),
        *(
            "85%",
            "95%",
            "7%",
            "41.3",
            "4.0",
            "v371",
            "● learner   ● actor-0 finished",
            "[red]killed by signal 9[/red]",
        ),
        *("acked 51\u202f234, 3 waiting · newest weights", "link down · 3 behind"),
        *("link starting · no weights yet", "waiting for the learner · no weights yet"),
    ):
        assert part in text


@pytest.mark.parametrize("width", [40, 60, 80])
def test_the_panel_fits_narrow_terminals(width: int) -> None:
    assert max(map(len, shown(FULL, width).splitlines())) <= width


def test_nothing_is_known_at_first() -> None:
    text = shown(RunProgress(actors=(ActorProgress("actor-0"),)))
    assert "serl starting" in text
    assert "weights  -" in text
    assert line(RunProgress()).startswith("- | steps -/- | episodes -")


def test_at_the_end_no_time_is_left() -> None:
    assert "left" in shown(RunProgress(elapsed_s=1.0, left_s=3.0))
    assert "left" not in shown(RunProgress(elapsed_s=1.0, left_s=0.0))


def test_more_steps_than_planned_are_no_trouble() -> None:
    assert "13\u202f000 of 12\u202f000" in shown(RunProgress(steps=13000, total_steps=12000))


def test_the_line_is_plain_and_names_what_is_wrong() -> None:
    assert line(FULL) == (
        "3:12 | steps 7412/12000 | episodes 214 | success of unassisted episodes 85% | "
        "of assisted 95% | human 7% | updates/s 41.3 | utd 4.0 | weights v371 | "
        "actor-0 acked 51234, 3 waiting (newest weights) | actor-1 link down (3 behind) | "
        "actor-2 link starting (no weights yet) | "
        "actor-3 waiting for the learner (no weights yet) | "
        "actor-0 finished | actor-1 [red]killed by signal 9[/red] | left 1:02:05"
    )
    assert line(FULL).isascii()


def test_who_waits_for_a_person_does_not_look_healthy() -> None:
    waits = "estop: the service estop: Enter confirms that you have dealt with it"
    progress = RunProgress(
        steps=2000, total_steps=6000, actors=(ActorProgress("actor0", link=WELL, waits=waits),)
    )
    text = " ".join(shown(progress, width=80).replace("│", " ").split())
    assert f"actor0 ● waits for a person: {waits}" in text
    assert "acked" not in text
    assert f" | actor0 waits for a person: {waits} | " in line(progress)


def test_a_pipe_gets_one_whole_line_every_ten_seconds() -> None:
    clock, to = Clock(), console(terminal=False)
    with Display(to, clock) as display:
        for tick in range(300):  # 30 s at 10 Hz
            clock.now_s = 100.0 + tick / 10
            display.update(RunProgress(elapsed_s=tick / 10, task="x" * 200))
        display.print_line("actor-1 restarted [2]")
    *lines, said = written(to).splitlines()
    assert [text.split(" |")[0] for text in lines] == ["0:00", "0:10", "0:20"]
    assert said == "actor-1 restarted [2]"
    assert "\x1b" not in written(to)


def test_a_terminal_gets_the_panel_and_keeps_the_last_one() -> None:
    to = console(terminal=True)
    with Display(to, Clock()) as display:
        display.update(RunProgress(task="first"))
        display.print_line("learner restarted")
        display.update(FULL)
    text = written(to)
    assert text.index("first") < text.index("learner restarted") < text.rindex("pick_cube")


def test_the_summary_says_how_it_went() -> None:
    to = console(terminal=False)
    print_summary(to, SUMMARY)
    text = written(to)
    for part in ("96%", "48 of 50 trials", "87% to 99%", "4.2 s", "5:12", "28% → 14% → 5% → 2%"):
        assert part in text
    assert str(SUMMARY.folder) in text  # whole: it will be copied
    assert str(SUMMARY.report) in text


def test_the_summary_of_a_run_that_stopped_early() -> None:
    to = console(terminal=False)
    print_summary(to, Summary("pick_cube", Path("runs/x"), None, 0, 3.0))
    assert "not evaluated" in written(to)
    assert "cycle time" not in written(to)


def test_the_summary_says_how_often_a_person_was_asked() -> None:
    to = console(terminal=False)
    print_summary(to, replace(SUMMARY, help=Assistance(episodes=200, takeovers=3, requests=1)))
    assert "requests for a person: 1 in 200 episodes (0.5 per 100)" in written(to)


def test_a_quarter_in_which_nothing_happened_has_no_share() -> None:
    to = console(terminal=False)
    print_summary(to, replace(SUMMARY, human_shares=(math.nan, 0.62, 0.51, 0.0)))
    assert "- → 62% → 51% → 0%" in written(to)


def test_in_a_notebook_the_panel_stays_in_its_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[RenderableType] = []

    class Cell:
        def update(self, renderable: RenderableType) -> None:
            shown[-1] = renderable

    def display(renderable: RenderableType, display_id: bool) -> Cell:
        assert display_id
        shown.append(renderable)
        return Cell()

    notebook = SimpleNamespace(display=display)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(display=notebook))
    monkeypatch.setitem(sys.modules, "IPython.display", notebook)
    console = Console(file=io.StringIO(), force_jupyter=True)
    with Display(console) as output:
        output.update(RunProgress(steps=10))
        output.update(FULL)
    (last,) = shown
    html = last._repr_mimebundle_((), ())["text/html"]  # type: ignore[union-attr]
    assert "7\N{NARROW NO-BREAK SPACE}412 of 12\N{NARROW NO-BREAK SPACE}000 steps" in html


def test_progress_of_trials_is_a_line_every_ten_seconds_in_a_pipe() -> None:
    clock, to = Clock(), console(terminal=False)
    with Display(to, clock).counting("trials", 6) as advance:
        for _ in range(6):
            clock.now_s += 4.0
            advance()
    assert written(to).splitlines() == ["trials: 1 of 6", "trials: 4 of 6"]


def test_work_of_unknown_length_is_named_on_a_terminal_alone() -> None:
    for terminal in (True, False):
        with Display(to := console(terminal)).working("reading"):
            pass
        assert ("reading" in written(to)) == terminal


def test_progress_of_trials_is_a_bar_on_a_terminal() -> None:
    to = console(terminal=True)
    with Display(to).counting("trials", 6) as advance:
        advance()
        advance()
        advance(5)
    assert "5/6" in written(to)
