"""`serl record` and `serl demos undo` with a scripted input device."""

from __future__ import annotations

import os
import shutil
import sys
import time
from pathlib import Path

import pytest
import yaml

from serl.arm_profile import load_robot, write_robot
from serl.cli import main as cli
from serl.cli import record as record_command
from serl.cli import run as run_command
from serl.datasets.recording_session import UNDONE
from serl.errors import BadInput
from serl.log.episode_reader import episode_paths, read_episode
from serl.reset import ResetConfig
from serl.runs.folder import RunFolder
from serl.runs.task_setup import make_spec, make_task
from serl.system.settings_file import read_yaml
from serl.teleop.device import DeviceReport
from serl.types import ActionSource

MAPPING = (
    "--teleop.gamepad.axes.x=[x, 1]",
    "--teleop.gamepad.deadman=hold",
    '--teleop.gamepad.events={"yes": success, "no": failure}',
)
OFF, ON = 4, 6
EXAMPLES = Path(__file__).parents[2] / "docs/examples"


class ScriptedDevice:
    """Device that rests for `OFF` reads, drives for `ON`, presses the next button, and repeats."""

    name = "a scripted device"

    def __init__(self, words: list[str]) -> None:
        self.words, self.looks = words, 0

    def read(self) -> DeviceReport:
        turn, self.looks = self.looks % (OFF + ON), self.looks + 1
        held = frozenset({"hold"} if turn >= OFF else ())
        is_end = turn == OFF + ON - 1 and self.words
        presses = (self.words.pop(0),) if is_end else ("hold",) if turn == OFF else ()
        return DeviceReport({"x": 1.0}, held, presses, time.monotonic())

    def close(self) -> None:
        pass


@pytest.fixture
def button_presses(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Replace the gamepad by a scripted device; return the list of its button presses."""
    words: list[str] = []
    monkeypatch.setattr("serl.teleop.gamepad.open_gamepad", lambda path: ScriptedDevice(words))
    return words


def record(folder: Path, *more: str) -> int:
    words = ["record", "reach", "--device", "gamepad", "--out", str(folder), "--reward.kind=human"]
    return cli.main([*words, *MAPPING, "--log.min_free_bytes=1000000", *more])


def test_operator_records_resumes_and_undoes_demonstrations(
    tmp_path: Path, button_presses: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "demos"
    button_presses += ["no", "yes"]
    assert record(folder, "--demos", "1") == 0
    out = capsys.readouterr().out
    assert "a scripted device drives" in out
    assert "by hand: 0 of 1 demonstration, 1 failure" in out
    assert f"next: serl train reach --demos {folder}" in out
    button_presses += ["yes"]
    assert record(folder, "--demos", "2") == 0
    assert "1 of 2 demonstrations so far" in capsys.readouterr().out
    spec = make_spec(make_task(RunFolder.open(folder).config))
    kept = [read_episode(path, spec) for path in episode_paths(folder)]
    assert [episode.success for episode in kept] == [True, True]
    assert {step.source for episode in kept for step in episode.steps} == {ActionSource.HUMAN}
    assert cli.main(["demos", "undo", str(folder)]) == 0
    assert "demonstration 2 is undone, 1 are left" in capsys.readouterr().out
    assert len(episode_paths(folder / UNDONE)) == 1


def test_operator_at_a_device_alone_continues_after_a_stop_by_enter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, (read, write) = tmp_path / "demos", os.pipe()

    class Device(ScriptedDevice):
        def read(self) -> DeviceReport:
            if (folder / "link/person/stopped").exists():
                os.write(write, b"\n")
            return super().read()

    device = Device(["halt", "yes"])
    monkeypatch.setattr("serl.teleop.gamepad.open_gamepad", lambda path: device)
    halt = '--teleop.gamepad.events={"yes": success, "halt": stop}'
    with os.fdopen(read) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        assert record(folder, "--demos", "1", halt) == 0
    os.close(write)
    assert "stopped by a scripted device: Enter continues" in capsys.readouterr().out


def test_recording_on_arm_has_resets_and_reward_of_its_task_and_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    profile = load_robot(str(EXAMPLES / "rehearsal.yaml"))
    reset = ResetConfig(kind="home", yaw_rad=0.3)
    write_robot(tmp_path / "arm.yaml", profile.model_copy(update={"reset": reset}))
    own = read_yaml(EXAMPLES / "ram.yaml")
    own["training"]["reset"] |= {"range_m": 0.01, "yaw_rad": 0.2}
    (tmp_path / "ram.yaml").write_text(yaml.safe_dump(own))
    words = ["record", "ram.yaml", "--robot", "arm.yaml", "--reset.lift_m", "0.02"]
    config = record_command.persons_folder(cli.parse([*words, "--out", "a"]), {}).config
    assert (config.reward.kind, config.reward.pose) == ("pose", (0.5, 0.0, 0.1, 1.0, 0.0, 0.0, 0.0))
    by_hand = cli.parse([*words, "--out", "b", "--reward.kind", "human"])
    assert record_command.persons_folder(by_hand, {}).config.reward.kind == "human"
    found = config.reset
    assert (found.range_m, found.yaw_rad, found.lift_m) == (0.01, 0.3, 0.02)
    assert (found.kind, found.gripper, found.home_m) == ("home", "keep", (0.5, 0.0, 0.18))
    with pytest.raises(BadInput, match=r"reset\.gains: 'soft': expected a mode of the arm"):
        record_command.persons_folder(cli.parse([*words, "--reset.gains", "soft"]), {})


def test_arm_pair_file_is_accepted_for_recording_and_deployment(tmp_path: Path) -> None:
    for name in ("pair.yaml", "pair_arm.yaml"):
        shutil.copy(EXAMPLES / name, tmp_path / name)
    pair = str(tmp_path / "pair.yaml")
    words = ["record", "handover", "--robot", pair, "--out", str(tmp_path / "demos")]
    run = record_command.persons_folder(cli.parse([*words, "--reward.kind", "human"]), {})
    assert run.config.robot == pair
    page = ["record", "handover", "--console", "--out", str(tmp_path / "page")]
    assert record_command.persons_folder(cli.parse(page), {}).config.robot is None, (
        "a robot was set without --robot"
    )
    with pytest.raises(BadInput, match="its actions move two arms: give --left and --right"):
        record_command.persons_folder(cli.parse([*words, "--device", "gamepad"]), {})
    deployed = run_command._deployed(run.config, cli.parse(["run", "a", "--robot", pair]))
    assert (deployed.robot, deployed.namespace) == (pair, "/")


def test_recording_with_other_settings_cannot_resume_in_folder(
    tmp_path: Path, button_presses: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "demos"
    button_presses += ["yes"]
    record(folder, "--demos", "1")
    capsys.readouterr()
    assert record(folder, "--demos", "2", "--task_config.time_limit_s=9") == 2
    assert "other settings: task_config.time_limit_s: 60.0 != 9" in capsys.readouterr().err


def test_interrupted_collection_is_continued_only_as_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "my images"

    class Device(ScriptedDevice):
        def read(self) -> DeviceReport:
            if self.looks > OFF + 2:
                raise KeyboardInterrupt
            return super().read()

    device = Device([])
    monkeypatch.setattr("serl.teleop.gamepad.open_gamepad", lambda path: device)
    words = ["pick_cube", "--device", "gamepad", "--out", str(folder), *MAPPING]
    words += ["--log.min_free_bytes=1000000"]
    assert cli.main(["reward", "collect", *words]) == cli.INTERRUPTED
    printed = capsys.readouterr().out
    assert f"0 positives and 0 negatives in {folder}\n" in printed
    assert f"to continue: the same command with --out '{folder}'\n" in printed
    (path,) = episode_paths(folder)
    assert cli.main(["record", *words, "--observe=pixels"]) == cli.BAD_INPUT
    assert "is a recording for reward, expected demonstrations" in capsys.readouterr().err
    assert cli.main(["demos", "undo", str(folder)]) == cli.BAD_INPUT
    assert episode_paths(folder) == [path]


def test_record_refuses_invalid_options_before_writing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for words, part in (
        (["--device", "spacemouse", "--path", "/dev/nothing"], "/dev/nothing"),
        (["--console", "--path", "/dev/nothing"], "expected the kind of this device"),
        (["--demos", "0"], "--demos: expected at least 1, got 0"),
    ):
        assert cli.main(["record", "reach", *words]) == 2
        assert part in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_record_and_undo_refuse_folder_with_other_files(
    tmp_path: Path, button_presses: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    assert record(tmp_path) == 2
    assert "expected a person's recording" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
    assert cli.main(["demos", "undo", str(tmp_path)]) == 2


FULL = "--log.min_free_bytes=100000000000000000"


@pytest.mark.parametrize(
    "words",
    [
        ("record", "reach", "--demos=1"),
        ("record", "reach", "--demos=1", "--device", "gamepad", "--reward.kind=human", *MAPPING),
        ("reward", "collect", "pick_cube"),
        ("reward", "collect", "pick_cube", "--device", "gamepad", *MAPPING),
    ],
)
def test_recording_refuses_disk_below_min_free_bytes(
    tmp_path: Path,
    button_presses: list[str],
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
) -> None:
    button_presses += ["yes"]
    assert cli.main([*words, "--out", str(tmp_path / "out"), FULL]) == cli.BAD_INPUT
    assert "100000000.00 GB at least (log.min_free_bytes)" in capsys.readouterr().err
    assert not list((tmp_path / "out").rglob("*.mcap"))
