"""`serl teleop` and `serl console`: the parts that need neither devices nor ROS."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest
from rich.console import Console

from serl.bimanual import Pair
from serl.cli import main as cli
from serl.cli import teleop as teleop_commands
from serl.console.access import ConsoleAddress, write_address
from serl.datasets.recording_session import RecordingSession, write_session
from serl.errors import BadInput
from serl.intervention import Event
from serl.runs.config import resolve
from serl.runs.folder import RunFolder
from serl.system.supervisor import Supervisor
from serl.teleop.config import TeleopConfig
from serl.teleop.device import DeviceLost, DeviceReport
from serl.teleop.mapping import Wish, describe_control
from serl.testing import FakeRobot

from .conftest import Serl, make_run, refused


def test_help_lists_the_terminal_only_where_it_can_be_used(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for command in ("teleop", "record", "reward collect", "setup"):
        with pytest.raises(SystemExit):
            cli.main([*command.split(), "--help"])
        devices = " ".join(capsys.readouterr().out.split()).partition(" input device of ")[2][:60]
        assert devices.startswith("a person: gamepad, keyboard, spacemouse, "), devices
        assert ("terminal" in devices) == (command == "teleop"), command


def test_taken_console_port_is_reported_with_actual_port_for_tunnel(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = RunFolder.create(tmp_path, resolve({"task": "reach"}), datetime.now())
    nothing = Supervisor((), {}, tmp_path)
    write_address(run.path, ConsoleAddress("http://127.0.0.1:8766/", "secret"))
    teleop_commands.announce(run, nothing, 8765)
    taken, console = capsys.readouterr().out.splitlines()
    assert taken.startswith("console: port 8765 is taken; it is at 8766 ")
    assert "ssh -L 8766:127.0.0.1:8766 HOST" in taken
    assert console == "console: http://127.0.0.1:8766/#secret"
    teleop_commands.announce(run, nothing, 8766)
    assert capsys.readouterr().out.splitlines() == [console]


def test_missing_console_package_is_reported_with_install_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(teleop_commands, "find_spec", lambda name: None)
    with pytest.raises(BadInput, match=r'pip install "serl\[console\]"'):
        teleop_commands.require_console()


def test_teleop_check_shows_axes_and_hands() -> None:
    console = Console(width=80, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    wish = Wish((1.0, -0.5, 0, 0, 0, 0, 0), True, ())
    console.print(teleop_commands.picture("pad", wish, ["south"]))
    lines = console.export_text().splitlines()
    assert "takeover: yes" in lines[0]
    assert lines[1].split()[-1] == "+1.00"
    assert lines[1].rstrip(" +1.0").endswith("●")
    assert lines[2].split()[-1] == "-0.50"
    assert "south" in lines[8]


def test_teleop_drives_person_of_recording_and_first_actor_of_training(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, resolve({"task": "reach"}), datetime.now())
    options = cli.parse(["teleop", str(run.path)])
    assert teleop_commands._actor_of(run, options) == "actor0"
    write_session(
        run.path, RecordingSession(purpose="demonstrations", wanted={"demonstrations": 1})
    )
    assert teleop_commands._actor_of(run, options) == "person"
    run.link("right").mkdir(parents=True)
    named = cli.parse(["teleop", str(run.path), "--actor", "right"])
    assert teleop_commands._actor_of(run, named) == "right"


def test_actor_that_does_not_exist_is_refused_with_those_that_do(tmp_path: Path) -> None:
    settings = {"task": "reach", "actors": 2}
    run = RunFolder.create(tmp_path, resolve(settings), datetime.now())
    run.link("right").mkdir(parents=True)
    for command in ("teleop", "console"):
        options = cli.parse([command, str(run.path), "--actor", "actor2"])
        with pytest.raises(BadInput, match=r"^--actor actor2: .*: actor0, actor1, right$"):
            teleop_commands._actor_of(run, options)


class FailingDevice:
    """Device that reports a motion `looks` times and then is lost."""

    def __init__(self, name: str, motion: dict[str, float], looks: int) -> None:
        self.name, self._motion, self._looks, self.closed = name, motion, looks, False

    def read(self) -> DeviceReport:
        self._looks -= 1
        if self._looks < 0:
            raise DeviceLost(f"{self.name}: Input/output error")
        return DeviceReport(self._motion, frozenset({"left"}), (), 0.0)

    def close(self) -> None:
        self.closed = True


def test_teleop_check_shows_two_devices_until_one_is_lost(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = {
        Path("a"): FailingDevice("mouse a", {"x": 1.0}, 3),
        Path("b"): FailingDevice("mouse b", {"z": -1.0}, 2),
    }
    monkeypatch.setattr("serl.teleop.spacemouse.open_spacemouse", made.__getitem__)
    words = ["teleop", "--check", "--device", "spacemouse", "--left", "a", "--right", "b"]
    assert cli.main([*words, "--teleop.spacemouse.axes.x=[y, -0.5]"]) == cli.BAD_INPUT
    out, error = capsys.readouterr()
    lines = [" ".join(line.split()) for line in out.splitlines()]
    left, right = (
        lines.index(f"{side} takeover: yes") for side in ("left: mouse a", "right: mouse b")
    )
    assert lines[left + 2].endswith("-0.50"), "axis y is not mapped as configured"
    assert lines[right + 3].endswith("-1.00"), "axis z is not mapped"
    assert "right: mouse b: Input/output error" in error
    assert all(device.closed for device in made.values())


class SilentDevice(FailingDevice):
    """Device that stays pushed, and of which only a press arrives after `looks` reports."""

    presses: tuple[str, ...] = ()

    def read(self) -> DeviceReport:
        self._looks = max(0, self._looks - 1)
        return DeviceReport(self._motion, frozenset(), self.presses, -float(self._looks))


def test_teleop_sends_no_report_of_a_silent_device_twice() -> None:
    sent: list[Wish] = []
    device = SilentDevice("mouse", {"x": 1.0}, 3)
    hand = teleop_commands.Hand(device, TeleopConfig().spacemouse, sent.append)
    for _ in range(10):
        hand.beat()
    assert [wish.motion[0] for wish in sent] == [1.0] * 3
    device.presses = ("esc",)
    hand.beat()
    assert sent[-1].events == (Event.STOP,)


FAILING_PAD = """
from serl.teleop.device import DeviceReport


class Pad:
    name = "pad"

    @classmethod
    def open(cls, path, config):
        cls.reports = [DeviceReport({"x": 1.0}, frozenset(), (), 0.0)]
        return cls()

    def read(self):
        if self.reports:
            return self.reports.pop()
        raise ValueError("odd\\nbytes")

    def close(self):
        pass


device = Pad
"""


@pytest.mark.parametrize(
    ("action", "answer"),
    [
        ("raise ValueError('no pad\\nhere')", "open: ValueError: no pad here"),
        ("raise SystemExit(0)", "open: SystemExit: 0"),
        ("return None", "open returned None, expected a device with 'name'"),
        ("return Path()", "open returned PosixPath('.'), expected a device with 'read'"),
    ],
)
@pytest.mark.parametrize("which", [(), ("--left", "a", "--right", "b")])
def test_device_plugin_that_does_not_open_is_named_in_one_line(
    serl: Serl, action: str, answer: str, which: tuple[str, ...], tmp_path: Path
) -> None:
    file = tmp_path / "my_pad.py"
    code = f"class Pad:\n    def open(self, path, config):\n        {action}\n"
    file.write_text(f"from pathlib import Path\n\n\n{code}\n\ndevice = Pad()\n")
    for words in (("--check",), (make_run(tmp_path).path,)):
        line = refused(serl, "teleop", *words, "--device", file, *which)
        assert line == f"serl: device {file}: {answer}\n"


def test_device_plugin_that_fails_after_a_good_read_is_named_in_one_line(
    serl: Serl, tmp_path: Path
) -> None:
    file = tmp_path / "my_pad.py"
    file.write_text(FAILING_PAD)
    mapping = teleop_commands.mapping_of(TeleopConfig(), str(file))
    device = teleop_commands._open(str(file), None, mapping)
    sent: list[Wish] = []
    hand = teleop_commands.Hand(device, mapping, sent.append)
    hand.beat()
    assert len(sent) == 1
    with pytest.raises(DeviceLost, match=rf"^device {file}: read: ValueError: odd bytes$"):
        hand.beat()
    line = refused(serl, "teleop", "--check", "--device", file)
    assert line == f"serl: device {file}: read: ValueError: odd bytes\n"


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ({}, "it rests between two episodes"),
        ({"driver": "policy", "owner": "", "stopped": ""}, "the policy drives"),
        ({"driver": "human", "owner": "the console"}, "the console drives"),
        ({"driver": "human", "owner": ""}, "it holds: no operator input"),
        ({"driver": "script"}, "the scene is being reset"),
        ({"driver": "human", "silent": "the device fell silent"}, "holds: the device fell silent"),
        ({"driver": "human", "paused": "paused"}, "it holds: paused"),
        ({"stopped": "stopped by the operator", "paused": "x"}, "holds: stopped by the operator"),
    ],
)
def test_describe_control_names_active_controller_or_reason_for_hold(
    state: dict[str, str], words: str
) -> None:
    assert describe_control(state).endswith(words)
    assert describe_control({"driver": "script"}, records=True) == "it holds: no operator input"


def test_number_of_devices_must_match_number_of_arms() -> None:
    one, two = FakeRobot.action_spec, Pair(FakeRobot(), FakeRobot()).action_spec
    teleop_commands.check_arms("run", one, 1)
    teleop_commands.check_arms("run", two, 2)
    with pytest.raises(BadInput, match="run: its actions move two arms: give --left and --right"):
        teleop_commands.check_arms("run", two, 1)
    with pytest.raises(BadInput, match="run: its actions move one arm: give one device"):
        teleop_commands.check_arms("run", one, 2)
