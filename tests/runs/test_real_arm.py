"""Test what a training on a real arm requires, and its one-line error messages."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from serl import plugins
from serl.agents.classifier import Card, Classifier
from serl.arm_profile import ArmProfile, is_real, load_robot, write_robot
from serl.cli.training import suffices
from serl.errors import BadInput
from serl.guard.checks import MessageInfo, MessageRefusal, check_command
from serl.motion import Box
from serl.reward import RewardConfig, ToolPlace
from serl.runs.config import resolve
from serl.runs.guard_setup import make_guard_config, workspace_guard
from serl.runs.real_arm import (
    check_place,
    crops_of,
    describe_classifier_bounds,
    needs_unmeasured_poses,
    observed_bodies,
    within_workspace,
    write_crop,
)
from serl.runs.settings import run_settings
from serl.runs.task_setup import make_rewarded_task, make_task
from serl.task import SimulatedTask
from serl.training.evaluation import Evaluation, Trial
from serl.workspace import CellCamera, Workspace
from tests.bench.task_page import overrides

FRANKA: ArmProfile = plugins.load("robot", "franka")
WORKSPACE = Workspace(
    low_m=(0.4, -0.1, 0.0), high_m=(0.6, 0.1, 0.3), home_m=(0.5, 0.0, 0.2), reference=(1, 0, 0, 0)
)
TAUGHT = FRANKA.model_copy(update={"workspace": WORKSPACE})
BOX = {"box_low_m": [0.4, -0.1, 0.1], "box_high_m": [0.6, 0.1, 0.4]}
OWN_BOX = {"task_config": {"motion": BOX}}
PIXELS = {"observe": "pixels", "agent": {"cached_features": False}}


def task(name: str, observe: str | None = None) -> SimulatedTask:
    return make_task(resolve({"task": name, "observe": observe}))


def test_is_real_depends_on_robot_name_only() -> None:
    assert [is_real(robot) for robot in (None, "sim", "franka", "cell.yaml")] == [False] * 2 + [
        True
    ] * 2


@pytest.mark.parametrize(
    ("name", "observe", "seen", "apart"),
    [
        ("reach", None, ("goal",), False),
        ("pick_cube", "state", ("cube",), False),
        ("pick_cube", "pixels", (), True),
        ("cable_routing", "pixels", ("clip",), True),
    ],
)
def test_observed_bodies_are_those_in_policy_observation(
    name: str, observe: str | None, seen: tuple[str, ...], apart: bool
) -> None:
    assert observed_bodies(task(name, observe)) == seen
    assert needs_unmeasured_poses(task(name, observe)) == apart


def test_run_on_real_arm_has_no_simulated_human() -> None:
    config = run_settings("reach", {}, {"robot": "franka", "demos": 0, **OWN_BOX})
    assert (config.robot, config.intervention, config.namespace) == ("franka", "none", "/")
    assert run_settings("reach", {}, {"robot": "sim"}).intervention == "scripted"


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        (
            {},
            r"demos: 20: no script demonstrates on a real arm: give --demos FOLDER, .*serl record",
        ),
        ({"demos": 0, "intervention": "scripted"}, "intervention: scripted: no simulated human"),
        ({"demos": 0, "curriculum": {"start": 0.1}}, "curriculum.start: only a simulation"),
        (
            {"demos": 0, "robot": "absent.yaml"},
            "absent.yaml: cannot be read: No such file or directory; the path is relative to /",
        ),
        (
            {"demos": 0, "robot": {"left": "left.yaml", "right": "right.yaml"}},
            "^robot: expected the name of an arm, or a file: two arms are a file of their own, ",
        ),
        ({"robot": "sim", "task_config": {"rate_hz": 3.0}}, "rate_hz: 3: a guard waits"),
        (
            {"demos": 0, "actor": {"home_every": 2}},
            "actor.home_every: arm franka: its profile",
        ),
        ({"demos": 0, "trials": 0, "robot": "sim"}, "trials: expected at least 1"),
    ],
)
def test_simulation_only_setting_is_refused_by_key(
    settings: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(BadInput, match=complaint) as caught:
        run_settings("reach", {"robot": "franka", **settings}, {})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({}, "reward.kind: task: pick_cube judges itself by cube_pose, which nothing measures"),
        (
            {"reward": {"kind": "human"}, "task_config": {"auto_reset": True}},
            "task_config.auto_reset: pick_cube resets itself by cube_pose",
        ),
    ],
)
def test_outcome_or_reset_from_unmeasured_pose_is_refused(
    settings: dict[str, Any], complaint: str
) -> None:
    values = {"robot": "franka", "demos": 0, **PIXELS, **settings}
    with pytest.raises(BadInput, match=complaint):
        run_settings("pick_cube", values, {})


def test_tuned_task_on_arm_needs_no_trials() -> None:
    motion = {"motion": {"box_low_m": [0.4, -0.1, 0.1], "box_high_m": [0.6, 0.1, 0.4]}}
    values = {"robot": "franka", "demos": 0, "trials": 0, **PIXELS, "reward": {"kind": "human"}}
    asked = {"task_config": motion, "required_success_rate": 0.9}
    config = run_settings("pick_cube", {**values, **asked}, {})
    assert suffices(config, None)
    assert not suffices(config.model_copy(update={"trials": 1}), None)
    partial = Evaluation(
        (Trial(0, True, 9, 1.0, "success"),), early_end="ended early: 1 of 2 valid"
    )
    assert suffices(config, replace(partial, early_end=""))
    unrequired = config.model_copy(update={"trials": 2, "required_success_rate": None})
    assert not suffices(unrequired, partial)
    assert config.required_success_rate is not None, (
        "the required rate is kept but not applied to 0 trials"
    )


def test_task_judged_by_operator_needs_no_unmeasured_pose() -> None:
    values = {"task": "pick_cube", "robot": "franka", "demos": 0, **PIXELS}
    judged = make_rewarded_task(resolve(values))  # the config of a run trained in simulation
    simulated = task("pick_cube", "pixels")
    arm = {name: spec for name, spec in _reading(simulated).state.items() if name != "cube_pose"}
    reading = _reading(simulated)
    blind = type(reading)(arm, reading.images)
    judged.begin(blind)
    assert judged.observation(blind).state.keys() == simulated.observation_spec.state.keys()
    assert judged.reset(blind) is None
    first = judged.outcome(blind, 0)
    last = judged.outcome(blind, judged.config.max_steps - 1)
    assert (first.reward, first.terminated, first.truncated) == (0.0, False, False)
    assert (last.terminated, last.truncated, last.provenance) == (False, True, "human")
    with pytest.raises(KeyError):
        simulated.outcome(blind, 0)


def test_tuned_success_region_of_simulation_is_not_used_on_real_arm(tmp_path: Path) -> None:
    """On a table 20 cm below the base no cube would reach the simulated success height."""
    views = task("pick_cube", "pixels").config.policy_views
    model = tmp_path / "m.safetensors"
    card = Card(views=views, place=ToolPlace())
    Classifier.create(card, torch.Generator().manual_seed(0)).save(model)
    reward: dict[str, Any] = {"kind": "classifier", "model": model}
    arm = {"robot": "franka", "demos": 0, **PIXELS, "task_config": {"motion": BOX}}
    simulated = run_settings("pick_cube", {}, {**PIXELS, "reward": reward})
    assert simulated.reward.tool_low_m == (-1.0, -1.0, 0.15)
    assert describe_classifier_bounds(simulated, make_task(simulated)) == ""
    config = run_settings("pick_cube", {}, {**arm, "reward": reward})
    assert config.reward.place == ToolPlace()
    assert "queried wherever the tool is (pick_cube has a place of a simulated table)" in (
        describe_classifier_bounds(config, make_task(config))
    )
    assert "tool_low_m" not in overrides(config), (
        "the default of a run on this arm is not an override"
    )
    own = {**reward, "tool_low_m": (-1.0, -1.0, -0.05)}
    config = run_settings("pick_cube", {}, {**arm, "reward": own})
    assert config.reward.tool_low_m == (-1.0, -1.0, -0.05)
    line = describe_classifier_bounds(config, make_task(config))
    assert "above x, y, z of [-1.0, -1.0, -0.05] m, in the base frame of this arm" in line
    human = config.model_copy(update={"reward": RewardConfig(kind="human")})
    assert describe_classifier_bounds(human, make_task(human)) == ""


def _reading(of: SimulatedTask) -> Any:
    with plugins.make_simulation(of) as arm:
        return arm.reset(0)


def test_workspace_box_is_intersection_of_task_and_arm() -> None:
    motion = task("reach").config.motion
    assert within_workspace(motion, FRANKA) == motion
    both = within_workspace(motion, TAUGHT)
    assert both.box_low_m == (0.4, -0.1, 0.04)
    assert both.box_high_m == (0.6, 0.1, 0.3)
    assert make_guard_config(task("reach"), TAUGHT).motion.box_high_m == both.box_high_m


def test_rotation_reference_and_limit_come_from_taught_workspace() -> None:
    turned = WORKSPACE.model_copy(update={"reference": (0, 1, 0, 0), "max_rotation_rad": 0.2})
    taught = FRANKA.model_copy(update={"workspace": turned})
    config = make_guard_config(task("reach"), taught)
    assert config.reference == (0, 1, 0, 0)
    assert config.motion.max_rotation_rad == 0.2
    loose = turned.model_copy(update={"max_rotation_rad": 3.0})
    config = make_guard_config(task("reach"), FRANKA.model_copy(update={"workspace": loose}))
    free = make_guard_config(task("reach"), FRANKA).motion.max_rotation_rad
    assert config.motion.max_rotation_rad == min(3.0, free)


def test_guards_of_arm_include_its_keep_out_boxes() -> None:
    post = Box(low_m=(0.52, 0.02, 0.1), high_m=(0.58, 0.08, 0.3))
    place = WORKSPACE.model_copy(update={"keep_out": (post,)})
    taught = FRANKA.model_copy(update={"workspace": place})
    for config in (workspace_guard(taught), make_guard_config(task("reach"), taught)):
        assert config.keep_out == (post,)
        inside = (0.55, 0.05, 0.2, 1.0, 0.0, 0.0, 0.0)
        with pytest.raises(MessageRefusal, match="keep-out box"):
            check_command(inside, MessageInfo(0.0, 0.0, 0.0, config.frame), config)
    assert make_guard_config(task("reach"), FRANKA).keep_out == ()


def test_arm_without_workspace_needs_box_of_its_own() -> None:
    for motion in ({}, {"box_high_m": BOX["box_high_m"]}):
        config = resolve({"task": "reach", "task_config": {"motion": motion}})
        with pytest.raises(BadInput, match=r"arm franka: it has no workspace yet: serl setup"):
            check_place(config, FRANKA)
        check_place(config, TAUGHT)
    check_place(resolve({"task": "reach", **OWN_BOX}), FRANKA)
    with pytest.raises(BadInput, match="it has no workspace yet"):
        run_settings("reach", {}, {"robot": "franka", "demos": 0})


def test_disjoint_boxes_are_refused_by_key() -> None:
    far = WORKSPACE.model_copy(update={"low_m": (0.69, -0.1, 0.0), "high_m": (0.9, 0.1, 0.3)})
    with pytest.raises(BadInput, match=r"workspace of franka: along x .* motion.box_low_m"):
        within_workspace(task("reach").config.motion, FRANKA.model_copy(update={"workspace": far}))


def test_write_crop_changes_only_crop_in_arm_file(tmp_path: Path) -> None:
    camera = CellCamera(topic="/wrist", rate_hz=30.0)
    profile = load_robot("franka").model_copy(update={"cameras": {"wrist": camera}})
    path = tmp_path / "right.yaml"
    write_robot(path, profile)
    assert crops_of(str(path)) == {"wrist": (0.0, 0.0, 1.0, 1.0)}
    answer = write_crop(str(path), "wrist", (0.1, 0.0, 0.87654, 1.0))
    assert answer == f"{path}: cameras.wrist.crop is [0.1, 0.0, 0.877, 1.0] from the next start"
    assert crops_of(str(path)) == {"wrist": (0.1, 0.0, 0.877, 1.0)}
    assert load_robot(str(path)).model_copy(update={"cameras": {}}) == load_robot("franka")
    with pytest.raises(BadInput, match="camera 'front': expected one of its cameras: wrist"):
        write_crop(str(path), "front", (0.0, 0.0, 0.5, 1.0))
    assert crops_of("franka") == {}
    with pytest.raises(BadInput, match="written to the file of an arm"):
        write_crop("franka", "wrist", (0.0, 0.0, 0.5, 1.0))
