import os
import subprocess
import sys
from pathlib import Path

import pytest

from serl import plugins
from serl.errors import BadInput
from serl.robot import SimulatedRobot
from serl.tasks.pick_cube import PickCube


def test_plugin_names_of_each_kind() -> None:
    assert plugins.names("task") == [
        "bin_relocation",
        "cable_routing",
        "connector_insertion",
        "connector_insertion_6d",
        "dashboard",
        "drawer",
        "handover",
        "object_flip",
        "peg_insertion",
        "peg_insertion_6d",
        "pick_cube",
        "racing_car",
        "reach",
        "timing_belt",
        "whip_block",
    ]
    assert plugins.names("sim") == ["arm", "bimanual", "car", "gymnasium"]
    assert plugins.names("renderer") == ["gl", "ray"]
    assert plugins.names("agent") == ["bc", "hybrid", "sac"]
    assert plugins.names("reward") == ["classifier", "progress", "vice"]


def test_listing_plugins_imports_no_framework() -> None:
    code = (
        "import sys; from serl import plugins; plugins.names('task'); plugins.names('sim');"
        "sys.exit(' '.join({'mujoco', 'torch', 'rclpy'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stderr.strip() == ""


def test_load_by_name_returns_class() -> None:
    assert plugins.load("task", "pick_cube") is PickCube


def test_load_by_file_returns_class(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("class Mine:\n    name = 'mine'\n\n\ntask = Mine\n")
    mine = plugins.load("task", str(path))
    assert mine.name == "mine"
    assert plugins.load("task", str(path)) is mine


def test_tilde_in_path_of_plugin_is_home_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "mine.py").write_text("class Mine: pass\n\n\ntask = Mine\n")
    assert plugins.load("task", "~/mine.py").__name__ == "Mine"
    assert plugins.absolute("~/mine.py") == str(tmp_path / "mine.py")
    assert plugins.absolute("~") == "~"


@pytest.mark.parametrize(
    ("source", "error", "match"),
    [
        (None, BadInput, "no such file"),
        ("x = 1\n", BadInput, "attribute 'task'"),
        ("import not_installed\n", BadInput, "bad.py: ModuleNotFoundError.*not_installed"),
        ("task = 1 / 0\n", BadInput, "bad.py: ZeroDivisionError: division"),
        ("class Near: pass\ntask = Near()\n", BadInput, "such as task = Near, found an object of"),
        ("task = 5\n", BadInput, "expected a class, such as task = Task, found 5"),
    ],
)
def test_load_of_invalid_file_reports_reason(
    tmp_path: Path, source: str | None, error: type[Exception], match: str
) -> None:
    path = tmp_path / "bad.py"
    if source is not None:
        path.write_text(source)
    for _ in range(2):  # a failed load must not be cached
        with pytest.raises(error, match=match):
            plugins.load("task", str(path))


def test_plugin_file_in_folder_that_is_not_utf8_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / os.fsdecode(b"bad\xff")
    folder.mkdir()
    monkeypatch.chdir(folder)
    with pytest.raises(BadInput, match=r"bad\\udcff/my_task.py: names .* must be UTF-8"):
        plugins.absolute("my_task.py")


def test_make_simulation_returns_robot_with_actions_of_task() -> None:
    task = plugins.load("task", "reach")()
    robot = plugins.make_simulation(task)
    assert isinstance(robot, SimulatedRobot)
    assert robot.action_spec == task.config.motion.action_spec
