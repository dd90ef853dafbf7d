"""Compliance tables of tasks: controller parameters that they set, and refused tables."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from serl import plugins
from serl.arm_profile import ArmProfile, load_robot, write_robot
from serl.compliance import AXES, NO_WRENCH, RESET, TaskCompliance, WrenchRamp
from serl.errors import BadInput
from serl.guard.config import GuardConfig, check_wrench
from serl.ros.testing.laws import LawRunner
from serl.runs.guard_setup import guarded_arm
from serl.runs.scene_reset import check_reset
from serl.runs.settings import run_settings
from serl.system.settings_file import checked
from serl.task import SimulatedTask
from serl.training.resets import SceneReset
from serl.types import Observation

from .support import guarding
from .support.upstream import driver_of

REHEARSAL = Path(__file__).parents[1] / "docs/examples/rehearsal.yaml"
TABLES = {
    "task": {
        "stiffness": {"translation": 1000, "rotation": 100},
        "clip": {"x": [-0.002, 0.0075], "rz": [-0.01, 0.01]},
    },
    "reset": {"stiffness": {"translation": 1800}},
}


def tables(**changes: Any) -> TaskCompliance:
    return checked(TaskCompliance, {**TABLES, **changes})


def test_compliance_table_sets_named_parameters_and_reset_mode_restores_profile() -> None:
    before = load_robot(str(REHEARSAL)).controller
    after = load_robot(str(REHEARSAL)).with_compliance(tables()).controller
    changed = {name for name, value in after.parameters.items() if value != before.parameters[name]}
    assert changed == {
        *("translational_stiffness", "rotational_stiffness"),
        *("translational_clip_x", "translational_clip_neg_x"),
        *("rotational_clip_z", "rotational_clip_neg_z"),
    }
    assert after.parameters["translational_clip_neg_x"] == 0.002
    assert after.stiffness_n_m == 1000.0
    reset = after.modes[RESET]
    assert (reset.stiffness_n_m, reset.parameters["translational_clip_x"]) == (1800.0, 0.01)
    assert {mode: gains.stiffness_n_m for mode, gains in after.modes.items() if mode != RESET} == {
        "compliance": 200.0,
        "precision": 2000.0,
    }
    assert not after.mismatch({**after.parameters, **reset.parameters})
    assert "expected 1000.0" in after.mismatch(before.parameters)
    assert before.with_compliance(TaskCompliance()) is before


def test_last_key_of_axis_overrides_earlier_keys() -> None:
    table = tables(task={"stiffness": {"translation": 900, "z": 300}}).task
    assert table.stiffness == {"x": 900.0, "y": 900.0, "z": 300.0}
    franka = load_robot("franka").with_compliance(tables(task=table, reset={})).controller
    assert franka.parameters["task.k_pos_z"] == 300.0
    driver = driver_of("franka")
    law = LawRunner(
        driver.law_kind, {**driver.parameters.values, **franka.parameters}, driver.frame.name
    )
    assert law.law.stiffness_n_m == 900.0 == franka.stiffness_n_m


@pytest.mark.parametrize(
    ("robot", "task", "line"),
    [
        ("ur5e", {"clip": {"x": [-0.01, 0.01]}}, "clip.x: its controller has no such parameter: "),
        ("xarm7", {"damping": {"rz": 5}}, "damping.rz: its controller has no such.*one of none"),
        ("franka", {"clip": {"x": [-0.002, 0.0075]}}, "one parameter, task.error_clip.x, for this"),
        ("franka", {"clip": {"y": [-0.02, 0.02]}}, "task.error_clip.y 0.02: expected at most 0.01"),
        (str(REHEARSAL), {"stiffness": {"x": 900, "y": 800}}, "translational_stiffness, for this"),
        (str(REHEARSAL), {"stiffness": {"rx": 200}}, "at most 150, the largest of the arm's"),
    ],
)
def test_compliance_not_offered_by_controller_is_refused_in_one_line(
    robot: str, task: dict[str, Any], line: str
) -> None:
    with pytest.raises(BadInput, match=rf"^arm \w+: compliance\.task\..*{line}") as caught:
        load_robot(robot).with_compliance(tables(task=task, reset={}))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("tables_given", "where"),
    [
        ({"task": {"clip": {"x": [0.002, 0.01]}}}, "task.clip.*number below 0 and one above"),
        ({"task": {"stiffness": {"w": 1.0}}}, "task.stiffness"),
        ({"reset": {"damping": {"x": 0.0}}}, "reset.damping.x"),
        ({"task": {"clips": {}}}, "task.clips"),
        ({"wrench": {"z": 16.0}}, "wrench: .*z: 16 N: expected 15 N at most"),
        ({"wrench": {"rx": -3.0}}, "wrench: .*rx: -3 Nm: expected 2.5 Nm at most"),
    ],
)
def test_invalid_compliance_table_is_refused(tables_given: dict[str, Any], where: str) -> None:
    with pytest.raises(BadInput, match=where):
        checked(TaskCompliance, tables_given)


def test_profile_may_offer_only_parameters_it_sets_at_start() -> None:
    controller = load_robot("franka").controller
    names = {"stiffness": {axis: f"k.{axis}" for axis in AXES}}
    with pytest.raises(BadInput, match=r"k\.x.*among `parameters`"):
        checked(ArmProfile, load_robot("franka").model_dump() | {
            "controller": controller.model_dump() | {"table_parameters": names}
        })  # fmt: skip


@pytest.fixture
def robot(tmp_path: Path) -> str:
    write_robot(tmp_path / "rehearsal.yaml", load_robot(str(REHEARSAL)))
    return str(tmp_path / "rehearsal.yaml")


def on_arm(robot: str, compliance: Any, **settings: Any) -> Any:
    own = {"robot": robot, "demos": 0, "trials": 0, "task_config": {"compliance": compliance}}
    return run_settings("pick_cube", {**own, **settings}, {})


def test_guard_config_of_run_contains_compliance_of_task(robot: str) -> None:
    _, config = guarded_arm(on_arm(robot, TABLES), robot)
    again = GuardConfig.model_validate(config.model_dump(mode="json"))  # the guard's file
    assert again.compliance == tables()
    assert config.digest != guarded_arm(on_arm(robot, {}), robot)[1].digest
    check_reset(on_arm(robot, TABLES, reset={"gains": RESET}))
    with pytest.raises(BadInput, match=r"reset.gains: 'reset': expected a mode"):
        on_arm(robot, {}, reset={"gains": RESET})
    with pytest.raises(BadInput, match=r"arm rehearsal: compliance\.task\.stiffness"):
        on_arm(robot, {"task": {"stiffness": {"x": 100, "y": 200}}})


class GainRecorder:
    """Robot that records the gains that are set."""

    modes = ("precision", RESET)

    def __init__(self) -> None:
        self.gains: str | None = None
        self.switched: list[str | None] = []

    def switch(self, gains: str | None) -> None:
        self.gains = gains
        self.switched.append(gains)


def test_scene_reset_of_task_uses_reset_compliance() -> None:
    task: Any = SimpleNamespace(reset=lambda reading: None)
    arm, other = GainRecorder(), GainRecorder()
    reset = SceneReset(task, robot=arm)
    reset.prepare()
    reset.end(restore_gains=False)
    assert arm.switched == [RESET], "the gains of a stopped arm changed"
    reset.end()
    assert arm.switched == [RESET, None]
    plain = SceneReset(task, robot=other, gains=("soft",))
    plain.prepare()
    plain.end()
    assert not other.switched
    assert plain(Observation({})) is None


def lead_when_pushed(compliance: dict[str, Any]) -> tuple[Any, float]:
    """Return the impedance of a simulated arm and the lag of its tool behind a target above."""
    reach: type[SimulatedTask] = plugins.load("task", "reach")
    task: Any = reach()
    config = task.config.model_copy(update={"compliance": checked(TaskCompliance, compliance)})
    with plugins.load("sim", "arm")(task.scene, config) as arm:
        arm.reset(0)
        up = np.zeros(arm.action_spec.shape, np.float32)
        up[2] = 1.0
        for _ in range(3):
            arm.act(up)
            arm.advance(0.1)
        state = arm.observe().state
        return arm.impedance, float((state["target_pose"] - state["tcp_pose"])[2])


def test_simulated_arm_applies_compliance_of_task() -> None:
    impedance, stiff_m = lead_when_pushed({})
    assert impedance.parameters()["translational_stiffness"] == 2000.0
    soft = {"task": {"stiffness": {"translation": 300}, "clip": {"translation": [-0.004, 0.004]}}}
    impedance, soft_m = lead_when_pushed(soft)
    assert impedance.parameters()["translational_stiffness"] == 300.0
    assert impedance.parameters()["translational_clip_neg_y"] == pytest.approx(0.004)
    assert soft_m > 1.3 * stiff_m


def test_wrench_is_ramped_in_and_ends_at_once() -> None:
    ramp = WrenchRamp(checked(TaskCompliance, {"wrench": {"z": 5, "rx": -0.5}}).target_wrench)
    assert ramp.advance(False) == NO_WRENCH
    rows = np.array([NO_WRENCH, *(ramp.advance(True) for _ in range(60))])
    assert np.abs(np.diff(rows, axis=0)).max() == pytest.approx(0.1)
    assert rows[50:] == pytest.approx(np.array([[0.0, 0.0, 5.0, -0.5, 0.0, 0.0]] * 11))
    assert ramp.advance(False) == NO_WRENCH
    assert ramp.advance(True)[2] == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("robot", "compliance", "line"),
    [
        ("xarm7", {"wrench": {"z": 1}}, "wrench: its controller takes no target wrench"),
        ("franka", {"wrench": {"z": 10.1}}, "wrench.z: 10.1 N: expected 10 N at most, half of"),
        (
            "franka",
            {"wrench": {"ry": 2.4}, "task": {"clip": {"ry": [-0.02, 0.02]}}},
            "wrench.ry: 2.4 Nm: expected 1.5 Nm at most",
        ),
        ("ur5e", {"wrench": {"z": -5}}, "wrench.z: -5 N: expected 2.5 N at most"),
        ("sim", {"wrench": {"rx": 1}}, "wrench.rx: expected an axis whose spring has a known"),
        (
            str(REHEARSAL),
            {"wrench": {"z": 5}, "task": {"stiffness": {"translation": 400}}},
            "wrench.z: 5 N: expected 2 N at most",
        ),
    ],
)
def test_wrench_that_controller_cannot_hold_is_refused_in_one_line(
    robot: str, compliance: dict[str, Any], line: str
) -> None:
    config = guarding.config(compliance=checked(TaskCompliance, compliance))
    profile = load_robot(robot).with_compliance(config.compliance)
    with pytest.raises(BadInput, match=rf"^arm \w+: compliance\.{line}") as caught:
        check_wrench(config, profile)
    assert "\n" not in str(caught.value)


def test_wrench_of_run_is_checked_before_the_run_and_given_to_guard(robot: str) -> None:
    wrench = {"wrench": {"z": 5}, "task": {"stiffness": {"translation": 1200}}}
    for arm, task, trials in ((robot, wrench, 0), ("sim", {"wrench": {"z": 5}}, 1)):
        _, config = guarded_arm(on_arm(arm, task, trials=trials), arm)
        assert config.compliance == checked(TaskCompliance, task)
        with pytest.raises(BadInput, match=r"compliance\.wrench\.z: 12 N: expected"):
            on_arm(arm, {"wrench": {"z": 12}}, trials=trials)


def test_simulated_tool_exerts_wrench_of_task_unless_stopped() -> None:
    task: Any = plugins.load("task", "reach")()
    compliance = checked(TaskCompliance, {"wrench": {"z": 6}})
    config = task.config.model_copy(update={"compliance": compliance})
    with plugins.load("sim", "arm")(task.scene, config) as arm:

        def height_m() -> float:
            return float(arm.observe().state["tcp_pose"][2])

        arm.reset(0)
        start_m = height_m()
        arm.advance(1.0)
        assert start_m - height_m() == pytest.approx(6.0 / 2000.0, rel=0.05), "the tool points down"
        spring = arm.model.actuator("spring0").id
        exerted = arm.data.ctrl[spring + 6 : spring + 12]
        assert exerted.tolist() == [0.0, 0.0, 6.0, 0.0, 0.0, 0.0]
        arm.stop("test")
        arm.advance(0.01)
        assert not exerted.any()
        arm.recover()
        arm.advance(0.1)
        assert exerted.any()
        arm.reset(1)
        assert not exerted.any()
    much = config.model_copy(
        update={"compliance": checked(TaskCompliance, {"wrench": {"rx": 2.5}})}
    )
    with pytest.raises(BadInput, match=r"compliance\.wrench\.rx: 2\.5 Nm: expected"):
        plugins.load("sim", "arm")(task.scene, much)
