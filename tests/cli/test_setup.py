"""The dialogue of `serl setup`: steps done, repeated, skipped, interrupted and resumed."""

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
from serl.arm_profile import ArmProfile, read_robot, write_robot
from serl.cli import main as cli
from serl.cli import setup as setup_command
from serl.cli.setup import SetupTerminal, walk
from serl.errors import BadInput
from serl.ros.setup.checks import SessionLeft, StepFailed, ask_to_begin
from serl.workspace import SetupResult

SIM: ArmProfile = plugins.load("robot", "sim")


class Step(NamedTuple):
    name: str
    title: str
    run: Callable[[Any], str]
    outdates: tuple[str, ...] = ()


@dataclass
class FakeSession:
    """Session of a setup: the profile that steps change, and prepared answers of the operator."""

    out: Path
    answers: list[str]
    profile: ArmProfile = SIM
    shown: list[str] = field(default_factory=list)

    @property
    def asker(self) -> FakeSession:
        return self

    def show(self, text: str) -> None:
        self.shown.append(text)

    def ask(self, key: str, question: str) -> str:
        if not self.answers or (answer := self.answers.pop(0)) == "q":
            raise SessionLeft("gone")
        return answer

    def pressed(self, key: str) -> bool:
        return False


def noon() -> datetime:
    return datetime(2026, 11, 22, 12)


def go(fake_session: FakeSession, *steps: Step) -> bool:
    return walk(cast(Any, fake_session), cast(Any, steps), noon)


def step_returning(text: str) -> Callable[[Any], str]:
    return lambda session: text


def test_setup_saves_each_step_and_resumes_after_last(tmp_path: Path) -> None:
    out, ran = tmp_path / "a.yaml", list[str]()

    def second(session: Any) -> str:
        ran.append("second")
        raise SessionLeft("went home")

    first = Step("first", "one", step_returning("100 Hz"))
    assert not go(FakeSession(out, ["", ""]), first, Step("second", "two", second))
    kept = read_robot(out)
    assert kept.setup == {"first": SetupResult(at="2026-11-22 12:00", found="100 Hz")}

    later = FakeSession(out, [""], kept)
    assert go(later, first, Step("second", "two", step_returning("well")))
    assert any("first: one: done 2026-11-22 12:00: 100 Hz" in line for line in later.shown)
    assert list(read_robot(out).setup) == ["first", "second"]
    assert ran == ["second"]


def test_failed_setup_step_prints_one_line_and_is_retried(tmp_path: Path) -> None:
    tries: list[int] = []

    def succeed_on_third_try(session: Any) -> str:
        tries.append(1)
        if len(tries) < 3:
            raise StepFailed(f"try {len(tries)}")
        return "well"

    fake_session = FakeSession(tmp_path / "a.yaml", ["", "", ""])
    assert go(fake_session, Step("step", "one", succeed_on_third_try))
    assert [line for line in fake_session.shown if "not yet" in line] == [
        "  not yet: try 1",
        "  not yet: try 2",
    ]


def test_setup_step_is_stamped_with_its_end_time(tmp_path: Path) -> None:
    hours = iter([12])

    def long(session: Any) -> str:
        assert next(hours) == 12  # the clock has not been read yet
        return "well"

    def clock() -> datetime:
        assert next(hours, None) is None
        return datetime(2026, 11, 22, 13)

    fake_session = FakeSession(tmp_path / "a.yaml", [""])
    assert walk(cast(Any, fake_session), cast(Any, [Step("step", "one", long)]), clock)
    assert read_robot(tmp_path / "a.yaml").setup["step"].at == "2026-11-22 13:00"


def test_setup_step_is_skipped_only_with_reason(tmp_path: Path) -> None:
    fake_session = FakeSession(tmp_path / "a.yaml", ["s", "later", "s no camera here"])
    assert go(fake_session, Step("cameras", "what is seen", step_returning("never")))
    assert read_robot(tmp_path / "a.yaml").setup["cameras"].skipped == "no camera here"
    assert "a skipped step needs a reason, as in: s no camera in this cell" in fake_session.shown
    assert "'later': expected Enter, s and a reason, or q" in fake_session.shown


def test_repeated_setup_step_is_followed_by_steps_that_depend_on_it(tmp_path: Path) -> None:
    out, again = tmp_path / "a.yaml", step_returning("again")
    done = {name: SetupResult(at="before") for name in ("frames", "dry_run")}
    steps = (
        Step("workspace", "the box", again, ("dry_run",)),
        Step("frames", "axes", again),
        Step("dry_run", "the way around it", again),
    )
    old = SIM.model_copy(update={"setup": done})
    assert not go(FakeSession(out, ["", "q"], old), *steps)
    assert list(read_robot(out).setup) == ["frames", "workspace"]
    assert go(FakeSession(out, [""], read_robot(out)), *steps)
    assert [read_robot(out).setup[name].found for name in done] == ["", "again"]
    assert go(FakeSession(out, ["s as before"], old), *steps)
    assert read_robot(out).setup.items() > done.items()


def test_leaving_setup_prints_command_to_resume(tmp_path: Path) -> None:
    fake_session = FakeSession(tmp_path / "a.yaml", ["q"])
    assert not go(fake_session, Step("step", "one", step_returning("never")))
    assert fake_session.shown[-1] == f"stopped; to continue: serl setup {tmp_path / 'a.yaml'}"
    assert not (tmp_path / "a.yaml").exists()


def test_setup_saves_profile_changed_by_step(tmp_path: Path) -> None:
    def teach(session: Any) -> str:
        session.profile = session.profile.model_copy(update={"summary": "mine"})
        return "well"

    assert go(FakeSession(tmp_path / "a.yaml", [""]), Step("step", "one", teach))
    assert read_robot(tmp_path / "a.yaml").summary == "mine"


def test_setup_chooses_profile_file_and_repeats_chosen_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_setup_names_settings_of_continued_file_that_differ_from_given_arm(tmp_path: Path) -> None:
    """A profile that was corrected after the first step is not read again."""
    write_robot(tmp_path / "a.yaml", SIM.within("/right"))
    kept = read_robot(tmp_path / "a.yaml")
    assert setup_command._differing(SIM, kept, "/right") == []
    corrected = SIM.model_copy(update={"joint_high_rad": (2.0,) * 7, "home_rad": (0.1,) * 7})
    assert setup_command._differing(corrected, kept, "/right") == ["joint_high_rad"]


@pytest.mark.parametrize(("robot", "namespace"), [("sim", "/left"), ("franka", "/right")])
def test_setup_does_not_continue_the_file_of_another_arm(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], robot: str, namespace: str
) -> None:
    out = tmp_path / "right.yaml"
    write_robot(out, SIM.within("/right"))
    assert setup_command._continued(out, SIM, "/right") == read_robot(out)
    words = ("setup", robot, "--namespace", namespace, "--out", str(out))
    assert cli.main(list(words)) == cli.BAD_INPUT
    line = f"{out}: is the file of another arm (sim, /right/target_pose) than the given one"
    assert f"{line} ({robot}, {namespace}/target_pose)" in capfd.readouterr().err


@pytest.fixture
def keyboard(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], int]]:
    """Connect stdin to a pseudo-terminal; return a function that types into it."""
    write, read = pty.openpty()
    with os.fdopen(read) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        yield lambda text: os.write(write, text.encode())
    os.close(write)


def test_setup_discards_input_typed_before_question(
    keyboard: Callable[[str], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that surplus Enter presses do not confirm a later motion."""
    terminal, shown = SetupTerminal(), list[str]()

    def show(text: str, **others: Any) -> None:
        shown.append(text)
        keyboard("now\n")

    keyboard("\n\n\n")
    monkeypatch.setattr("builtins.print", show)
    assert terminal.ask("frames.begin", "Enter begins") == "now"
    assert shown == ["Enter begins"]


def test_setup_ignores_key_presses_before_first_check(
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


def test_motion_begins_only_after_empty_enter() -> None:
    fake_session = FakeSession(Path("a.yaml"), ["n", ""])
    with pytest.raises(StepFailed, match="'n': not begun: Enter alone begins"):
        ask_to_begin(fake_session, "frames.begin", "Enter begins")
    ask_to_begin(fake_session, "frames.begin", "Enter begins")


def test_closed_stdin_leaves_setup(monkeypatch: pytest.MonkeyPatch) -> None:
    with Path("/dev/null").open() as nothing:
        monkeypatch.setattr("sys.stdin", nothing)
        with pytest.raises(SessionLeft):
            SetupTerminal().ask("key", "Well?")
        with pytest.raises(SessionLeft):
            SetupTerminal().pressed("key")


def test_q_leaves_setup_at_any_question_and_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, lines = SetupTerminal(), iter(["n", "q", "q"])
    monkeypatch.setattr(terminal._typed, "line", lambda timeout_s: next(lines))
    monkeypatch.setattr(terminal._typed, "drop", lambda: None)
    assert terminal.ask("free", "Is the way free?") == "n"
    with pytest.raises(SessionLeft):
        ask_to_begin(terminal, "move", "The arm will move. Enter begins")
    with pytest.raises(SessionLeft):
        terminal.pressed("stop_button")
