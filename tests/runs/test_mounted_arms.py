from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from serl.arm_pair import read_pair
from serl.arm_profile import load_robot, write_robot
from serl.errors import BadInput
from serl.guard.checks import is_inside
from serl.motion import pose_from
from serl.reset import ResetConfig
from serl.runs.config import resolve
from serl.runs.guard_setup import describe_cut_boxes, guarded_arms
from serl.runs.mounted_arms import mounted_arms
from serl.runs.scene_reset import check_reset, is_attended, make_scene_reset, reset_kind
from serl.runs.settings import run_settings
from serl.runs.task_setup import make_task
from serl.training.pair_reset import PairReset
from serl.types import Array, Observation

EXAMPLES = Path(__file__).parents[2] / "docs/examples"


@pytest.fixture
def pair(tmp_path: Path) -> str:
    for name in ("pair.yaml", "pair_arm.yaml"):
        shutil.copy(EXAMPLES / name, tmp_path / name)
    return str(tmp_path / "pair.yaml")


def config(task: str, robot: str | None, **settings: Any) -> Any:
    return resolve({"task": task, "robot": robot, "demos": 0, "trials": 0, **settings})


@pytest.mark.parametrize("name", ["handover", "timing_belt"])
def test_guard_of_each_arm_covers_its_starts_on_its_side(pair: str, name: str) -> None:
    settings = config(name, pair)
    task, file = make_task(settings), read_pair(pair)
    assert file is not None
    left, right = mounted_arms(task, file)
    axis = 0 if name == "handover" else 1
    low, high = sorted((left.motion, right.motion), key=lambda motion: motion.box_low_m[axis])
    assert high.box_low_m[axis] - low.box_high_m[axis] >= 0.07 - 1e-9
    lines = describe_cut_boxes(settings, pair)
    cut = (left, right) if name == "handover" else (right,)
    for arm, line in zip(cut, lines, strict=True):
        ends = f"{arm.motion.box_low_m[axis]:.3f} to {arm.motion.box_high_m[axis]:.3f}"
        assert line.startswith(f"the guard keeps the {arm.side} tool in x ")
        assert f"{'xyz'[axis]} {ends}" in line
    guards = {setup.side: setup for setup in guarded_arms(settings, pair)}
    assert [guards[side].namespace for side in ("left", "right")] == ["/sim/left", "/sim/right"]
    rng = np.random.default_rng(0)
    for _ in range(20):
        place = task.scene.place(rng)
        for arm, tcp in ((left, place.tcp), (right, place.right_tcp)):
            assert tcp is not None
            own = arm.mount.own_pose(pose_from(tcp))
            assert is_inside(own, guards[arm.side].config)


def test_pair_of_arms_resets_to_home_by_default(pair: str, tmp_path: Path) -> None:
    settings = config("handover", pair)
    assert reset_kind(settings) == "home"
    check_reset(settings)
    reset = make_scene_reset(settings, make_task(settings), Arms(), "actor0", 0)
    assert isinstance(reset, PairReset)
    write_reset(tmp_path, {"kind": "person"})
    assert is_attended(settings), "the files ask for a person"
    assert reset_kind(config("handover", pair, reset={"kind": "home"})) == "home"


class Arms:
    left = right = None


def test_arm_near_its_start_goes_exactly_there_while_the_other_one_returns(pair: str) -> None:
    settings = config("handover", pair)
    reset = make_scene_reset(settings, make_task(settings), Arms(), "actor0", 0)
    assert isinstance(reset, PairReset)
    reset.begin()
    state: dict[str, Array] = {}
    for side, above_m in (("left", 0.002), ("right", 0.05)):
        x, y, z = reset._arms[side].start.position
        tool = np.array((x, y, z + above_m, *reset._arms[side].start.quaternion), np.float32)
        state |= {f"{side}_tcp_pose": tool, f"{side}_target_pose": tool}
        state |= {
            f"{side}_tcp_twist": np.zeros(6, np.float32),
            f"{side}_gripper": np.ones(1, np.float32),
        }
    reading = Observation(state)
    script = reset(reading)
    assert script is not None
    assert script(reading)[2] == pytest.approx(-0.002 / 0.015, abs=1e-4)


@pytest.mark.parametrize(
    ("file", "given", "expected"),
    [
        ({"gripper": "keep", "range_m": 0.05}, {}, {"gripper": "keep", "range_m": 0.05}),
        ({"gripper": "keep", "range_m": 0.05}, {"range_m": 0.01, "lift_m": 0.1},
         {"gripper": "keep", "range_m": 0.01, "lift_m": 0.1}),
        (None, {"gripper": "keep"}, {"gripper": "keep"}),
    ],
)  # fmt: skip
def test_reset_settings_of_run_override_those_in_files_of_a_pair(
    pair: str,
    tmp_path: Path,
    file: dict[str, Any] | None,
    given: dict[str, Any],
    expected: dict[str, Any],
) -> None:
    write_reset(tmp_path, file)
    made = config("handover", pair, reset=given)
    stored = type(made).model_validate(made.model_dump(mode="json"))  # as a run's folder has it
    reset = make_scene_reset(stored, make_task(stored), Arms(), "actor0", 0)
    assert isinstance(reset, PairReset)
    for arm in reset._arms.values():
        assert arm._config == ResetConfig.model_validate({"kind": "home", **expected})


def write_reset(folder: Path, reset: dict[str, Any] | None) -> None:
    """Set the resets in the file of both arms of the pair."""
    own = None if reset is None else ResetConfig.model_validate(reset)
    profile = load_robot(str(folder / "pair_arm.yaml"))
    write_robot(folder / "pair_arm.yaml", profile.model_copy(update={"reset": own}))


@pytest.mark.parametrize(
    ("file", "given", "message"),
    [
        ({"orientation": (0.0, 1.0, 0.0, 0.0)}, {},
         "left: reset.orientation: is turned by 3.14 rad from the reference of handover"),
        ({"home_m": (0.6, 0.0, 0.28)}, {},
         "left: reset.home_m: x 0.600 y 0.000 z 0.280 m is outside the box of handover"),
        ({"gripper": "keep"}, {"gripper": "open"},
         "reset.gripper: open is the default, over which the file of the left arm takes "
         "precedence with keep: change it there"),
    ],
)  # fmt: skip
def test_impossible_resets_of_a_pair_are_refused_in_one_line(
    pair: str, tmp_path: Path, file: dict[str, Any], given: dict[str, Any], message: str
) -> None:
    write_reset(tmp_path, file)
    with pytest.raises(BadInput, match=f"^{message}") as caught:
        run_settings("handover", {"robot": pair, "demos": 0, "trials": 0, "reset": given}, {})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("task", "settings", "message"),
    [
        ("pick_cube", {}, "pick_cube: moves one arm, and this robot is a pair"),
        ("handover", {"namespace": "/x"}, "namespace: /x: those of a pair are in its file"),
        ("handover", {"reset": {"home_m": [0, 0, 0]}}, "reset.home_m: two arms have one each"),
        ("handover", {"task_config": {"rate_hz": 2}}, "rate_hz: 2"),
        (
            "timing_belt",
            {},
            r"left: reset.home_m, by default the arm's home: x 0.400 y 0.000 z 0.280 m is outside "
            r"the box of timing_belt on rehearsal_side, in the frame of its base: x 0.45 to 0.65, ",
        ),
    ],
)
def test_invalid_pair_settings_are_refused_in_one_line(
    pair: str, task: str, settings: dict[str, Any], message: str
) -> None:
    given = {"robot": pair, "demos": 0, "trials": 0, **settings}
    with pytest.raises(BadInput, match=message) as caught:
        run_settings(task, given, {})
    assert "\n" not in str(caught.value)


def test_pair_requires_two_arms_with_workspaces(pair: str, tmp_path: Path) -> None:
    one = str(tmp_path / "pair_arm.yaml")
    with pytest.raises(BadInput, match="a file with the keys left and right"):
        run_settings("handover", {"robot": one, "demos": 0, "trials": 0}, {})
    untaught = tmp_path / "untaught.yaml"
    untaught.write_text("left: sim\nright: {profile: sim, namespace: /right}")
    with pytest.raises(BadInput, match="left: sim: has no workspace"):
        run_settings("handover", {"robot": str(untaught), "demos": 0, "trials": 0}, {})
    absent = tmp_path / "absent.yaml"
    absent.write_text("left: nothing.yaml\nright: {profile: sim, namespace: /right}")
    with pytest.raises(BadInput, match=r"left: .*nothing.yaml: cannot be read"):
        run_settings("handover", {"robot": str(absent), "demos": 0, "trials": 0}, {})
