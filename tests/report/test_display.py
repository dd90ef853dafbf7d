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


def output_of(to: Console) -> str:
    assert isinstance(to.file, io.StringIO)
    return to.file.getvalue()


def render_panel(progress: RunProgress, width: int = 80) -> str:
    to = console(terminal=True, width=width)
    to.print(panel(progress))
    return output_of(to)


def test_panel_shows_all_values_within_80_columns() -> None:
    text = render_panel(FULL, width=120)
    assert max(map(len, text.splitlines())) == 80
    text = " ".join(text.replace("│", " ").split())
    for part in (
        *("pick_cube", "3:12 elapsed", "1:02:05 left", "7,412 of 12,000 steps", "214"),
        *(
            "85%",
            "95%",
            "7%",
            "41.3",
            "4.0",
            "version 371",
            "● learner ● actor-0 finished",
            "[red]killed by signal 9[/red]",
        ),
        "51,234 steps acknowledged, 3 waiting · newest weights",
        "link process not running · 3 versions behind",
        "link process starting · no weights yet",
        "waiting for the learner · no weights yet",
    ):
        assert part in text


@pytest.mark.parametrize("width", [40, 60, 80])
def test_panel_fits_narrow_terminal(width: int) -> None:
    assert max(map(len, render_panel(FULL, width).splitlines())) <= width


def test_panel_and_line_of_starting_run_have_no_values() -> None:
    text = render_panel(RunProgress(actors=(ActorProgress("actor-0"),)))
    assert "serl starting" in text
    assert "weights  -" in text
    assert line(RunProgress()).startswith("- elapsed | steps -/- | episodes -")


def test_panel_omits_remaining_time_at_end() -> None:
    assert "left" in render_panel(RunProgress(elapsed_s=1.0, left_s=3.0))
    assert "left" not in render_panel(RunProgress(elapsed_s=1.0, left_s=0.0))


def test_panel_accepts_more_steps_than_planned() -> None:
    assert "13,000 of 12,000" in render_panel(RunProgress(steps=13000, total_steps=12000))


def test_line_is_ascii_and_names_faults() -> None:
    assert line(FULL) == (
        "3:12 elapsed | steps 7,412/12,000 | episodes 214 | success of unassisted episodes 85% | "
        "of assisted episodes 95% | human steps 7% | updates/s 41.3 | updates/step 4.0 | "
        "weights version 371 | actor-0 51,234 steps acknowledged, 3 waiting (newest weights) | "
        "actor-1 link process not running (3 versions behind) | "
        "actor-2 link process starting (no weights yet) | "
        "actor-3 waiting for the learner (no weights yet) | "
        "actor-0 finished | actor-1 [red]killed by signal 9[/red] | about 1:02:05 left"
    )
    assert line(FULL).isascii()


def test_waiting_actor_shows_its_reason_instead_of_link_state() -> None:
    waits = "estop: the service estop: Enter confirms that it is safe to continue"
    progress = RunProgress(
        steps=2000, total_steps=6000, actors=(ActorProgress("actor0", link=WELL, waits=waits),)
    )
    text = " ".join(render_panel(progress, width=80).replace("│", " ").split())
    assert f"actor0 ● waits for a person: {waits}" in text
    assert "acknowledged" not in text
    assert f" | actor0 waits for a person: {waits}" in line(progress)


def test_display_prints_one_line_every_ten_seconds_to_pipe() -> None:
    clock, to = Clock(), console(terminal=False)
    with Display(to, clock) as display:
        for tick in range(300):  # 30 s at 10 Hz
            clock.now_s = 100.0 + tick / 10
            display.update(RunProgress(elapsed_s=tick / 10, task="x" * 200))
        display.print_line("actor-1 restarted [2]")
    *lines, last_line = output_of(to).splitlines()
    assert [text.split(" |")[0] for text in lines] == [
        f"0:{second:02} elapsed" for second in (0, 10, 20)
    ]
    assert last_line == "actor-1 restarted [2]"
    assert "\x1b" not in output_of(to)


def test_display_on_terminal_keeps_last_panel() -> None:
    to = console(terminal=True)
    with Display(to, Clock()) as display:
        display.update(RunProgress(task="first"))
        display.print_line("learner restarted")
        display.update(FULL)
    text = output_of(to)
    assert text.index("first") < text.index("learner restarted") < text.rindex("pick_cube")


def test_summary_shows_success_cycle_time_and_human_shares() -> None:
    to = console(terminal=False)
    print_summary(to, SUMMARY)
    text = output_of(to)
    for part in ("96%", "48 of 50 trials", "87% to 99%", "4.2 s", "5:12", "28% → 14% → 5% → 2%"):
        assert part in text
    assert str(SUMMARY.folder) in text  # not wrapped, so that it can be copied
    assert str(SUMMARY.report) in text


def test_summary_of_run_without_evaluation() -> None:
    to = console(terminal=False)
    print_summary(to, Summary("pick_cube", Path("runs/x"), None, 0, 3.0))
    assert "not evaluated" in output_of(to)
    assert "cycle time" not in output_of(to)


def test_summary_marks_partial_result() -> None:
    to, ended = console(terminal=False), "ended early: 1 of 2 valid"
    for trials in ((Trial(0, True, 9, 1.0, ""),), ()):
        evaluation = Evaluation(trials, early_end=ended)
        print_summary(to, replace(SUMMARY, clone=None, evaluation=evaluation))
    assert "100%  1 of 1 trials, partial, 95 % interval" in output_of(to)
    assert f"unassisted success  {ended}" in output_of(to)


def test_summary_shows_requests_for_operator() -> None:
    to = console(terminal=False)
    print_summary(to, replace(SUMMARY, help=Assistance(episodes=200, takeovers=3, requests=1)))
    assert "requests for a person: 1 in 200 episodes (0.5 per 100)" in output_of(to)


def test_summary_shows_dash_for_quarter_without_steps() -> None:
    to = console(terminal=False)
    print_summary(to, replace(SUMMARY, human_shares=(math.nan, 0.62, 0.51, 0.0)))
    assert "- → 62% → 51% → 0%" in output_of(to)


def test_display_in_notebook_updates_one_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    render_panel: list[RenderableType] = []

    class Cell:
        def update(self, renderable: RenderableType) -> None:
            render_panel[-1] = renderable

    def display(renderable: RenderableType, display_id: bool) -> Cell:
        assert display_id
        render_panel.append(renderable)
        return Cell()

    notebook = SimpleNamespace(display=display)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(display=notebook))
    monkeypatch.setitem(sys.modules, "IPython.display", notebook)
    console = Console(file=io.StringIO(), force_jupyter=True)
    with Display(console) as output:
        output.update(RunProgress(steps=10))
        output.update(FULL)
    (last,) = render_panel
    html = last._repr_mimebundle_((), ())["text/html"]  # type: ignore[union-attr]
    assert "7,412 of 12,000 steps" in html


def test_trial_progress_is_one_line_every_ten_seconds_in_pipe() -> None:
    clock, to = Clock(), console(terminal=False)
    with Display(to, clock).counting("trials", 6) as advance:
        for _ in range(6):
            clock.now_s += 4.0
            advance()
    assert output_of(to).splitlines() == ["trials: 1 of 6", "trials: 4 of 6"]
    with Display(to := console(terminal=False)).counting("epochs", 40) as on_epoch:
        on_epoch(1, 0.25)
    assert output_of(to) == "epochs: 1 of 40, loss 0.2500\n"


def test_working_message_is_shown_on_terminal_only() -> None:
    for terminal in (True, False):
        with Display(to := console(terminal)).working("reading"):
            pass
        assert ("reading" in output_of(to)) == terminal


def test_working_message_changes_and_is_line_every_ten_seconds_in_pipe() -> None:
    clock, to = Clock(), console(terminal=False)
    with Display(to, clock).working("starting") as show:
        for number in range(6):
            show(f"episodes {number}")
            clock.now_s += 4.0
    assert output_of(to).splitlines() == ["episodes 0", "episodes 3"]
    with Display(to := console(terminal=True)).working("starting") as show:
        show("episodes 7")
    assert "episodes 7" in output_of(to)


def test_trial_progress_is_bar_on_terminal() -> None:
    to = console(terminal=True)
    with Display(to).counting("trials", 6) as advance:
        advance()
        advance()
        advance(5)
    assert "5/6" in output_of(to)
