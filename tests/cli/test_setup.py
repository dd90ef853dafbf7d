"""The dialogue of the first day: what is done, repeated, skipped, left and gone on with."""

from __future__ import annotations

import os
import pty
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple, cast

import pytest

from serl import plugins
from serl.arm_profile import ArmProfile, read_robot
from serl.cli import setup as setup_command
from serl.cli.setup import SetupTerminal, walk
from serl.errors import BadInput
from serl.ros.setup.checks import SessionLeft, StepFailed, ask_to_begin
from serl.system.terminal import TerminalClosed
from serl.workspace import SetupResult

SIM: ArmProfile = plugins.load("robot", "sim")


class Step(NamedTuple):
    name: str
    title: str
    run: Callable[[Any], str]


@dataclass
class Sitting:
    """What a step changes: the profile; and who answers."""

    out: Path
    answers: list[str]
    profile: ArmProfile = SIM
    said: list[str] = field(default_factory=list)

    @property
    def asker(self) -> Sitting:
        return self

    def show(self, text: str) -> None:
        self.said.append(text)

    def ask(self, key: str, question: str) -> str:
        if not self.answers or (answer := self.answers.pop(0)) == "q":
            raise SessionLeft("gone")
        return answer

    def pressed(self, key: str) -> bool:
        return False


def noon() -> datetime:
    return datetime(2026, 11, 22, 12)


def go(sitting: Sitting, *steps: Step) -> bool:
    return walk(cast(Any, sitting), cast(Any, steps), noon)


def found(text: str) -> Callable[[Any], str]:
    return lambda session: text


def test_steps_are_written_as_they_are_done_and_not_done_twice(tmp_path: Path) -> None:
    out, ran = tmp_path / "a.yaml", list[str]()

    def second(session: Any) -> str:
        ran.append("second")
        raise SessionLeft("went home")

    first = Step("first", "one", found("100 Hz"))
    assert not go(Sitting(out, ["", ""]), first, Step("second", "two", second))
    kept = read_robot(out)
    assert kept.setup == {"first": SetupResult(at="2026-11-22 12:00", found="100 Hz")}

    later = Sitting(out, [""], kept)
    assert go(later, first, Step("second", "two", found("well")))
    assert any("first: one: done 2026-11-22 12:00: 100 Hz" in line for line in later.said)
    assert list(read_robot(out).setup) == ["first", "second"]
    assert ran == ["second"]


def test_a_step_that_fails_is_one_line_and_tried_again(tmp_path: Path) -> None:
    tries: list[int] = []

    def third_time_lucky(session: Any) -> str:
        tries.append(1)
        if len(tries) < 3:
            raise StepFailed(f"try {len(tries)}")
        return "well"

    sitting = Sitting(tmp_path / "a.yaml", ["", "", ""])
    assert go(sitting, Step("step", "one", third_time_lucky))
    assert [line for line in sitting.said if "not yet" in line] == [
        "  not yet: try 1",
        "  not yet: try 2",
    ]


def test_a_step_is_stamped_when_it_is_done_not_when_it_was_begun(tmp_path: Path) -> None:
    hours = iter([12])

    def long(session: Any) -> str:
        assert next(hours) == 12  # nobody has looked at the clock yet
        return "well"

    def clock() -> datetime:
        assert next(hours, None) is None
        return datetime(2026, 11, 22, 13)

    sitting = Sitting(tmp_path / "a.yaml", [""])
    assert walk(cast(Any, sitting), cast(Any, [Step("step", "one", long)]), clock)
    assert read_robot(tmp_path / "a.yaml").setup["step"].at == "2026-11-22 13:00"


def test_a_step_is_skipped_for_a_reason_only(tmp_path: Path) -> None:
    sitting = Sitting(tmp_path / "a.yaml", ["s", "later", "s no camera here"])
    assert go(sitting, Step("cameras", "what is seen", found("never")))
    assert read_robot(tmp_path / "a.yaml").setup["cameras"].skipped == "no camera here"
    assert "a skipped step needs a reason: s no camera in this cell" in sitting.said
    assert "'later': expected Enter, s and a reason, or q" in sitting.said


def test_leaving_keeps_what_was_done(tmp_path: Path) -> None:
    sitting = Sitting(tmp_path / "a.yaml", ["q"])
    assert not go(sitting, Step("step", "one", found("never")))
    assert sitting.said[-1] == f"left; to go on: serl setup {tmp_path / 'a.yaml'}"
    assert not (tmp_path / "a.yaml").exists()


def test_what_a_step_taught_is_kept_with_it(tmp_path: Path) -> None:
    def teach(session: Any) -> str:
        session.profile = session.profile.model_copy(update={"summary": "mine"})
        return "well"

    assert go(Sitting(tmp_path / "a.yaml", [""]), Step("step", "one", teach))
    assert read_robot(tmp_path / "a.yaml").summary == "mine"


def test_a_profile_is_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert setup_command._destination("franka", None) == Path("franka.cell.yaml")
    assert setup_command._destination("left.yaml", None) == Path("left.yaml")
    done = SIM.model_copy(
        update={"setup": {"frames": SetupResult(at="now"), "estop": SetupResult(at="now")}}
    )
    left = setup_command._without(done, ["frames"], ["frames", "estop"])
    assert list(left.setup) == ["estop"]
    (tmp_path / "a.yaml").mkdir()
    with pytest.raises(BadInput, match=r"a\.yaml: is a folder"):
        setup_command._destination("a.yaml", None)


@pytest.fixture
def keyboard(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], int]]:
    """Types at a terminal, which gives one line at a time."""
    write, read = pty.openpty()
    with os.fdopen(read) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        yield lambda text: os.write(write, text.encode())
    os.close(write)


def test_nothing_typed_ahead_answers(
    keyboard: Callable[[str], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who has pressed Enter once too often before has not let the arm move now."""
    terminal, told = SetupTerminal(), list[str]()

    def show(text: str, **others: Any) -> None:
        told.append(text)
        keyboard("now\n")

    keyboard("\n\n\n")
    monkeypatch.setattr("builtins.print", show)
    assert terminal.ask("frames.begin", "Enter begins") == "now"
    assert told == ["Enter begins"]


def test_what_was_typed_before_one_looks_for_a_key_is_none(
    keyboard: Callable[[str], int], capsys: pytest.CaptureFixture[str]
) -> None:
    terminal = SetupTerminal()
    keyboard("\n\n")
    terminal.show("press Enter once it stands")
    assert not any(terminal.pressed("stop_button") for _ in range(5))
    keyboard("\n\n")
    assert terminal.pressed("stop_button")
    assert terminal.pressed("stop_button")
    assert not terminal.pressed("stop_button")


def test_an_arm_begins_to_move_by_enter_alone() -> None:
    sitting = Sitting(Path("a.yaml"), ["n", ""])
    with pytest.raises(StepFailed, match="'n': not begun: Enter alone begins"):
        ask_to_begin(sitting, "frames.begin", "Enter begins")
    ask_to_begin(sitting, "frames.begin", "Enter begins")


def test_a_terminal_that_ends_is_a_person_who_left(monkeypatch: pytest.MonkeyPatch) -> None:
    with Path("/dev/null").open() as nothing:
        monkeypatch.setattr("sys.stdin", nothing)
        with pytest.raises(SessionLeft):
            SetupTerminal().ask("key", "Well?")
        with pytest.raises(SessionLeft):
            SetupTerminal().pressed("key")


@pytest.mark.parametrize("typed", ["q\n", ""])
def test_q_and_the_end_of_input_leave_at_any_question(
    typed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = SetupTerminal()
    lines = iter(["n", *typed.split()])

    def line(timeout_s: float | None) -> str:
        try:
            return next(lines)
        except StopIteration:
            raise TerminalClosed from None

    monkeypatch.setattr(terminal._typed, "line", line)
    monkeypatch.setattr(terminal._typed, "drop", lambda: None)
    assert terminal.ask("free", "Is the way free?") == "n"
    with pytest.raises(SessionLeft):
        ask_to_begin(terminal, "move", "The arm will move. Enter begins")
