from __future__ import annotations

from pathlib import Path

import pytest

from serl import plugins
from serl.arm_profile import ArmProfile, latch_path, load_robot, read_robot, write_robot
from serl.errors import BadInput
from serl.workspace import CellCamera, SetupResult, Workspace

SIM: ArmProfile = plugins.load("robot", "sim")
TAUGHT = SIM.model_copy(
    update={
        "workspace": Workspace(
            low_m=(0.3, -0.2, 0.05),
            high_m=(0.6, 0.2, 0.4),
            home_m=(0.45, 0.0, 0.2),
            reference=(1.0, 0.0, 0.0, 0.0),
        ),
        "cameras": {"front": CellCamera(topic="/front", rate_hz=30.0)},
        "setup": {"cameras": SetupResult(at="2026-11-22 10:00", skipped="none yet")},
    }
)


@pytest.mark.parametrize("name", plugins.names("robot"))
def test_profile_survives_round_trip_through_file(name: str, tmp_path: Path) -> None:
    profile = plugins.load("robot", name).within("/right/arm")
    write_robot(tmp_path / "cells" / "a.yaml", profile)
    assert read_robot(tmp_path / "cells" / "a.yaml") == profile


def test_taught_profile_is_loaded_from_file_path(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    write_robot(path, TAUGHT)
    assert load_robot(str(path)) == TAUGHT
    assert not list(tmp_path.glob(".*")), "a scratch file is left"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", "expected a YAML mapping"),
        ("name: [", "not YAML"),
        ("name: sim", "missing, but required"),
        ("colour: red", "unknown setting"),
    ],
)
def test_invalid_robot_file_is_refused_in_one_line(text: str, line: str, tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    write_robot(path, TAUGHT)
    whole = path.read_text()
    path.write_text(whole + text if text.startswith("colour") else text)
    with pytest.raises(BadInput, match=line) as caught:
        load_robot(str(path))
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)
    with pytest.raises(BadInput, match=r"no\.yaml: cannot be read"):
        load_robot(str(tmp_path / "no.yaml"))


def test_relative_ros_names_are_put_into_namespace() -> None:
    moved = SIM.within("/right/")
    assert moved.pose.name == "/right/current_pose"
    assert moved.controller.node == "/right/arm"
    assert moved.gripper is not None
    assert moved.gripper.command.name == "/right/gripper/commands"
    assert moved.within("/left") == moved, "an absolute name changed"
    assert SIM.within("/").pose.name == "/current_pose"
    assert all(channel.name.startswith("/") for channel in moved.channels)


def test_latch_path_depends_on_file_and_namespace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert latch_path("franka", SIM, "/") == tmp_path / "serl" / "franka.latch"
    assert latch_path("franka", SIM, "/cell/left/") == tmp_path / "serl" / "franka@cell.left.latch"
    assert latch_path(str(tmp_path / "mine.py"), SIM, "/left") == tmp_path / "mine@left.latch"
    whole = SIM.within("/left")
    assert latch_path(str(tmp_path / "left.yaml"), whole, "/cell/x") == tmp_path / "left.latch"


def test_latch_path_is_same_for_every_path_to_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "linked.yaml").symlink_to("arm.yaml")
    paths = {latch_path(name, SIM, "/") for name in ("arm.yaml", "./arm.yaml", "linked.yaml")}
    assert paths == {tmp_path / "arm.latch"}
