"""Test resets of a run: their kind, their requirements, and an arm in MuJoCo that resets."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from serl.arm_profile import load_robot, read_robot, write_robot
from serl.errors import BadInput
from serl.motion import Box
from serl.reset import ResetConfig
from serl.runs.config import resolve, stage_configs
from serl.runs.guard_setup import guarded_arm
from serl.runs.scene_reset import arm_settings, is_attended, make_scene_reset, reset_kind
from serl.runs.settings import run_settings
from serl.runs.task_setup import make_task
from serl.system.settings_file import read_yaml
from serl.workspace import Workspace

EXAMPLES = Path(__file__).parents[2] / "docs/examples"
HOME = {"reset": {"kind": "home", "home_m": [0.45, 0.0, 0.2]}}
PLACE = Workspace(
    low_m=(0.3, -0.25, 0.015), high_m=(0.65, 0.25, 0.35), home_m=(0.45, 0.0, 0.2),
    reference=(1.0, 0.0, 0.0, 0.0),
)  # fmt: skip


def write_arm_file(folder: Path, reset: ResetConfig | None = None) -> str:
    """Write the file of an arm with a workspace and return its path."""
    update = {"workspace": PLACE, "reset": reset}
    write_robot(folder / "right.yaml", load_robot("sim").model_copy(update=update))
    return str(folder / "right.yaml")


def arm_run_settings(robot: str, task: str = "pick_cube", **settings: Any) -> Any:
    return run_settings(task, {"robot": robot, "demos": 0, "trials": 0, **settings}, {})


def test_reset_kind_follows_workspace_and_settings(
    tmp_path: Path,
) -> None:
    robot = write_arm_file(tmp_path)
    assert reset_kind(arm_run_settings(robot)) == "home"
    assert reset_kind(arm_run_settings(robot, task_config={"auto_reset": True})) == "task"
    own = arm_run_settings(robot, reset={"kind": "task"})
    assert make_task(own).config.auto_reset
    person = arm_run_settings(robot, reset={"kind": "person"})
    assert is_attended(person)
    assert not is_attended(own)
    assert reset_kind(resolve({"task": "pick_cube"})) == "person"
    assert not is_attended(resolve({"task": "pick_cube"})), "a simulation resets its own scene"


def test_reset_in_arm_file_ranks_between_task_and_given_settings(
    tmp_path: Path,
) -> None:
    robot = write_arm_file(tmp_path, ResetConfig(range_m=0.05, gripper="keep"))
    assert read_robot(Path(robot)).reset == ResetConfig(range_m=0.05, gripper="keep")
    config = arm_run_settings(robot, reset={"range_m": 0.01})
    assert (config.reset.range_m, config.reset.gripper) == (0.01, "keep")


def test_reset_positions_are_not_applied_to_another_arm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = write_arm_file(tmp_path, ResetConfig(home_m=(0.5, 0.1, 0.2)))
    config = arm_run_settings(right)
    assert config.reset.home_m == (0.5, 0.1, 0.2)
    monkeypatch.chdir(tmp_path)
    for path in (right, Path(right).name):
        assert "reset" not in arm_settings(config, path, "/right"), "given settings stay"
    left = tmp_path / "left.yaml"
    write_robot(left, load_robot("sim").model_copy(update={"workspace": PLACE}))
    elsewhere = config.model_copy(update=arm_settings(config, str(left), "/left"))
    assert elsewhere.reset.home_m is None
    assert (reset_kind(elsewhere), elsewhere.namespace) == ("home", "/left")
    own = config.model_copy(update={"reset": ResetConfig(kind="task")})
    assert arm_settings(own, str(left), "/")["reset"].kind == "task"


WAYPOINT: dict[str, Any] = {"position_m": (0.5, 0.0, 0.1), "orientation": (1.0, 0.0, 0.0, 0.0)}
OF_RAM = {"home_m": (0.5, 0.0, 0.18), "gripper": "keep", "lift_m": 0.02}


@pytest.mark.parametrize(
    ("right", "given", "left", "expected"),
    [
        ({"home_m": (0.45, 0.05, 0.2), "range_m": 0.05, "gains": "precision"}, {}, None, OF_RAM),
        ({"kind": "path", "path": [WAYPOINT]}, {}, None, OF_RAM),
        ({"range_m": 0.05}, {}, {"range_m": 0.03}, OF_RAM | {"range_m": 0.03}),
        ({}, {"kind": "person", "gripper": "open"}, {"kind": "home", "gripper": "keep"},
         OF_RAM | {"kind": "person", "gripper": "open"}),
        ({"tolerance_m": 0.01}, {"home_m": [0.55, 0.0, 0.2]}, {"home_m": (0.5, 0.05, 0.2)},
         OF_RAM | {"home_m": (0.5, 0.05, 0.2)}),
        (None, {"kind": "person", "range_m": 0.04}, {"kind": "home", "range_m": 0.03},
         OF_RAM | {"kind": "person", "range_m": 0.03}),
    ],
    ids=["file", "path", "both", "given", "place", "given, file is gone"],
)  # fmt: skip
def test_reset_on_another_arm_equals_reset_of_new_run_on_it(
    tmp_path: Path,
    right: dict[str, Any] | None,
    given: dict[str, Any],
    left: dict[str, Any] | None,
    expected: dict[str, Any],
) -> None:
    values = read_yaml(EXAMPLES / "ram.yaml")
    values["training"]["reset"]["lift_m"] = 0.02
    (tmp_path / "ram.yaml").write_text(yaml.safe_dump(values))
    rehearsal = load_robot(str(EXAMPLES / "rehearsal.yaml"))
    for name, own in {"right": right or {}, "left": left}.items():
        reset = None if own is None else ResetConfig.model_validate(own)
        write_robot(tmp_path / f"{name}.yaml", rehearsal.model_copy(update={"reset": reset}))
    task = str(tmp_path / "ram.yaml")
    own = {"robot": str(tmp_path / "right.yaml"), "reset": given}
    made = run_settings(task, own, {})
    config = type(made).model_validate(made.model_dump(mode="json"))  # as a run's folder stores it
    if right is None:
        (tmp_path / "right.yaml").unlink()
    found = arm_settings(config, str(tmp_path / "left.yaml"), "/left")["reset"]
    assert found == ResetConfig.model_validate(expected)


def test_path_given_to_a_run_must_be_taught_to_another_arm(tmp_path: Path) -> None:
    right = write_arm_file(tmp_path, ResetConfig.model_validate({"path": [WAYPOINT]}))
    config = arm_run_settings(right, reset={"kind": "path"})
    left = tmp_path / "left.yaml"
    write_robot(left, load_robot("sim").model_copy(update={"workspace": PLACE}))
    with pytest.raises(BadInput, match="reset: path: expected the poses of the kind 'path'"):
        arm_settings(config, str(left), "/")


NARROW: dict[str, Any] = {"motion": {"box_low_m": [0.3, -0.1, 0.02], "box_high_m": [0.6, 0.1, 0.3]}}
KEEP_OUT = Box(low_m=(0.5, 0.1, 0.0), high_m=(0.6, 0.2, 0.1))


@pytest.mark.parametrize(
    ("reset", "task", "complaint"),
    [
        ({"path": [WAYPOINT, WAYPOINT | {"position_m": (0.5, 0.42, 0.1)}]}, {},
         "reset.path: pose 2: x 0.500 y 0.420 z 0.100 m is outside the box of pick_cube on sim: "
         "x 0.3 to 0.65, y -0.25 to 0.25, z 0.015 to 0.35 m"),
        ({"path": [WAYPOINT | {"position_m": (0.5, 0.2, 0.1)}]}, NARROW,
         "reset.path: pose 1: x 0.500 y 0.200 z 0.100 m is outside the box of pick_cube on sim: "
         "x 0.3 to 0.6, y -0.1 to 0.1, z 0.02 to 0.3 m"),
        ({"path": [WAYPOINT | {"position_m": (0.55, 0.15, 0.05)}]}, {},
         "reset.path: pose 1: x 0.550 y 0.150 z 0.050 m is in a keep-out box of pick_cube on sim: "
         "x 0.5 to 0.6, y 0.1 to 0.2, z 0 to 0.1 m"),
        ({"home_m": (0.45, 0.0, 0.6)}, {},
         "reset.home_m: x 0.450 y 0.000 z 0.600 m is outside the box of pick_cube on sim: "
         "x 0.3 to 0.65, y -0.25 to 0.25, z 0.015 to 0.35 m"),
        ({"home_m": (0.55, 0.15, 0.05)}, {},
         "reset.home_m: x 0.550 y 0.150 z 0.050 m is in a keep-out box of pick_cube on sim: "
         "x 0.5 to 0.6, y 0.1 to 0.2, z 0 to 0.1 m"),
        ({}, {"motion": NARROW["motion"] | {"box_high_m": [0.6, 0.1, 0.19]}},
         "reset.home_m, by default the arm's home: x 0.450 y 0.000 z 0.200 m is outside the box of "
         "pick_cube on sim: x 0.3 to 0.6, y -0.1 to 0.1, z 0.02 to 0.19 m"),
        ({"path": [WAYPOINT | {"orientation": (0.921, 0.0, 0.0, 0.39)}]}, {},
         "reset.path: pose 1: is turned by 0.80 rad from the reference of pick_cube on sim: "
         "expected 0.50 rad at most"),
        ({"yaw_rad": 0.6}, {"motion": {"axes": ["x", "y", "z", "yaw"]}},
         "reset.yaw_rad: a start at -0.6 is turned by 0.60 rad from the reference of pick_cube on "
         "sim: expected 0.50 rad at most"),
        ({"orientation": (0.0, 1.0, 0.0, 0.0)}, {},
         "reset.orientation: is turned by 3.14 rad from the reference of pick_cube on sim: "
         "expected 0.50 rad at most"),
    ],
)  # fmt: skip
def test_reset_pose_where_tool_may_not_be_is_refused_before_anything_moves(
    tmp_path: Path, reset: dict[str, Any], task: dict[str, Any], complaint: str
) -> None:
    place = PLACE.model_copy(update={"keep_out": (KEEP_OUT,)})
    robot, kind = str(tmp_path / "arm.yaml"), "path" if "path" in reset else "home"
    update = {"workspace": place, "reset": ResetConfig.model_validate({"kind": kind, **reset})}
    write_robot(tmp_path / "arm.yaml", load_robot("sim").model_copy(update=update))
    with pytest.raises(BadInput, match=f"^{re.escape(complaint)}$"):
        arm_run_settings(robot, task_config=task)
    given = {"task": "pick_cube", "robot": robot, "task_config": task, "reset": update["reset"]}
    config = resolve(given | {"demos": 0, "trials": 0})
    with pytest.raises(BadInput, match=f"^{re.escape(complaint)}$"):  # an actor on another arm
        make_scene_reset(config, make_task(config), None, "actor0", 0)


@pytest.mark.parametrize(
    ("reset", "complaint"),
    [
        ({"gripper": "keep"}, "reset.gripper: keep: sim has no gripper: expected open"),
        ({"kind": "path", "path": [WAYPOINT]},
         "reset.kind: path: sim has no gripper: expected home or person"),
    ],
)  # fmt: skip
def test_arm_without_gripper_holds_no_part(
    tmp_path: Path, reset: dict[str, Any], complaint: str
) -> None:
    update = {"workspace": PLACE, "gripper": None, "reset": ResetConfig.model_validate(reset)}
    write_robot(tmp_path / "arm.yaml", load_robot("sim").model_copy(update=update))
    with pytest.raises(BadInput, match=f"^{complaint}$"):
        arm_run_settings(str(tmp_path / "arm.yaml"), "reach")


def test_joints_go_home_on_arm_with_trajectory_and_home_in_box(tmp_path: Path) -> None:
    robot = write_arm_file(tmp_path)
    every: dict[str, Any] = {"actor": {"home_every": 2}}
    config = arm_run_settings(robot, **every)
    assert config.actor.home_every == 2
    assert guarded_arm(config, robot)[1].home_rad == load_robot("sim").home_rad
    plain = {"workspace": PLACE, "trajectory": None}
    write_robot(tmp_path / "plain.yaml", load_robot("sim").model_copy(update=plain))
    elsewhere = arm_settings(config, str(tmp_path / "plain.yaml"), "/")
    assert elsewhere["actor"].home_every == 0, "the joints of another arm were not checked"
    box: dict[str, Any] = {"task_config": {"motion": {"box_high_m": [0.65, 0.25, 0.15]}}}
    with pytest.raises(BadInput, match=r"home_every: .* its home .* outside the box of pick_cube"):
        arm_run_settings(robot, **every, **box)
    with pytest.raises(BadInput, match="home_every: a simulated arm"):
        arm_run_settings("sim", trials=1, **every)
    sim = load_robot("sim")
    near = {"workspace": PLACE, "home_rad": (2.85, *sim.home_rad[1:])}
    write_robot(tmp_path / "near.yaml", sim.model_copy(update=near))
    with pytest.raises(BadInput, match="home_rad: a joint is near its limit"):
        arm_run_settings(str(tmp_path / "near.yaml"), **every)
    with pytest.raises(BadInput, match="home_every: arm sim: its profile names no trajectory"):
        arm_run_settings(str(tmp_path / "plain.yaml"), **every)


def test_stages_on_arm_reset_each_other(tmp_path: Path) -> None:
    config = arm_run_settings(write_arm_file(tmp_path), "bin_relocation")
    assert not is_attended(config)
    parts = stage_configs(config)
    assert [reset_kind(part) for part in parts.values()] == ["task", "task"]
    assert all(make_task(part).config.auto_reset for part in parts.values())


@pytest.mark.parametrize(
    ("task", "reset", "complaint"),
    [
        ("pick_cube", {"kind": "home"}, r"reset\.home_m: the kind 'home' needs a mean start"),
        (
            "pick_cube",
            {"kind": "home", "home_m": [0.45, 0.0, 0.6]},
            r"reset\.home_m: x 0\.450 y 0\.000 z 0\.600 m is outside the box of pick_cube: x ",
        ),
        ("object_flip", HOME["reset"], r"reset\.kind: home: object_flip exerts wrenches"),
        ("handover", HOME["reset"], r"reset\.kind: home: handover is driven by 'bimanual'"),
        (
            "pick_cube",
            {"check": "pose", "body": "lid", "body_low_m": [0, 0, 0], "body_high_m": [1, 1, 1]},
            r"reset\.body: 'lid': pick_cube tracks cube",
        ),
        ("pick_cube", {"check": "classifier", "model": "absent.safetensors"}, "absent.safetensors"),
    ],
)
def test_impossible_reset_is_refused_by_key(
    task: str, reset: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(BadInput, match=complaint):
        run_settings(task, {"reset": reset}, {})


def test_unknown_gains_and_conflicting_reset_kinds_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"reset\.gains: 'soft': expected a mode of the arm: none"):
        arm_run_settings(write_arm_file(tmp_path), reset={"gains": "soft"})
    with pytest.raises(BadInput, match=r"reset\.kind: home, but task_config\.auto_reset is true"):
        resolve({"task": "pick_cube", "task_config": {"auto_reset": True}, **HOME})
