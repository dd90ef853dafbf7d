"""Tasks without a simulation: files, settings, and commands that accept or refuse them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from serl import plugins
from serl.arm_profile import ArmProfile, load_robot, write_robot
from serl.cli import main as cli
from serl.errors import BadInput
from serl.real_task import RealTask, RealTaskConfig, as_simulated, read_task, write_task
from serl.robot import SimulatedRobot
from serl.runs.config import TrainConfig
from serl.runs.folder import RunFolder
from serl.runs.guard_setup import guarded_arm
from serl.runs.scene_reset import reset_kind
from serl.runs.settings import run_settings
from serl.runs.task_setup import make_rewarded_task, make_spec, make_task
from serl.sim.arm import SimArm
from serl.task import Task
from serl.tasks.pick_cube import PickCube
from serl.testing import TaskSuite
from serl.types import Array
from serl.workspace import Workspace

EXAMPLES = Path(__file__).parents[1] / "docs/examples"
RAM, REHEARSAL = str(EXAMPLES / "ram.yaml"), str(EXAMPLES / "rehearsal.yaml")
PAIR = str(EXAMPLES / "pair.yaml")
TINY: dict[str, Any] = {
    "agent": {"hidden": [8, 8], "device": "cpu", "threads": 1, "batch_size": 8, "utd": 1}
}


class TestRam(TaskSuite):
    """Task suite for the example task, on the simulated arm of another task."""

    file = RAM

    def make(self) -> tuple[SimulatedRobot, Task]:
        task: Task = plugins.load("task", self.file)()
        robot = SimArm(PickCube().scene, task.config)
        robot.reset(0)
        return robot, task


class TestRamInPython(TestRam):
    file = str(EXAMPLES / "ram.py")


class ByForce(RealTask):
    """Task of pressing down, with a reward from the arm's own readings."""

    name = "press"
    defaults = RealTaskConfig(
        observe="state", force=True, origin_m=(0.4, 0.0, 0.2), motion=PickCube().config.motion
    )

    def is_success(self, state: Mapping[str, Array]) -> bool:
        return float(state["wrench"][2]) > 5.0


class TestByForce(TaskSuite):
    def make(self) -> tuple[SimulatedRobot, Task]:
        task = ByForce()
        robot = SimArm(PickCube().scene, task.config)
        robot.reset(0)
        return robot, task


def test_real_task_observes_pose_from_origin_and_rewards_by_readings() -> None:
    task = ByForce()
    with SimArm(PickCube().scene, task.config) as robot:
        reading = robot.reset(0)
        task.begin(reading)
        seen = task.observation(reading).state
        tool = reading.state["tcp_pose"][:3]
        assert np.allclose(seen["tcp_from_start"], tool - (0.4, 0.0, 0.2))
        assert np.allclose(seen["wrench"], 0.0)
        reading.state["wrench"][2] += 50.0
        assert task.observation(reading).state["wrench"][2] == pytest.approx(50.0)
        assert task.outcome(reading, 0).success
    assert list(seen) == [
        *("tcp_from_start", "turn_from_start", "tcp_velocity", "gripper", "lead", "wrench")
    ]
    assert task.decides_success


def settings(task: str = RAM, robot: str = REHEARSAL, **own: Any) -> TrainConfig:
    return run_settings(task, {}, {"robot": robot, **TINY, **own})


def test_real_task_file_is_enough_to_configure_training_on_arm() -> None:
    config = settings()
    assert (config.demos, config.intervention, config.steps) == (0, "none", 8000)
    assert config.reward.kind == "pose"
    assert reset_kind(config) == "home"
    assert config.reset.home_m == (0.5, 0.0, 0.18)
    assert make_rewarded_task(config).name == "ram"
    assert make_spec(make_task(config)).observation.images["wrist"].shape == (64, 64, 3)
    by_person = settings(str(EXAMPLES / "ram.py"))
    assert by_person.reward.kind == "human"


def test_real_task_file_fits_arms_of_two_makers(tmp_path: Path) -> None:
    place = Workspace(
        low_m=(0.3, -0.3, 0.05),
        high_m=(0.7, 0.3, 0.5),
        home_m=(0.5, 0, 0.3),
        reference=(1, 0, 0, 0),
    )
    ur: ArmProfile = load_robot("ur5e").model_copy(update={"workspace": place})
    write_robot(tmp_path / "ur.yaml", ur)
    on_rehearsal, on_ur = settings(), settings(robot=str(tmp_path / "ur.yaml"))
    specs = [make_spec(make_task(config)) for config in (on_rehearsal, on_ur)]
    assert specs[0].digest == specs[1].digest, "the policy does not fit both arms"
    for config in (on_rehearsal, on_ur):
        assert config.robot is not None
        profile, guard = guarded_arm(config, config.robot)
        assert guard.motion.box_low_m == (0.4, -0.1, 0.06)
        assert profile.workspace is not None
        assert guard.reference == profile.workspace.reference
        assert guard.motion.max_rotation_rad == profile.workspace.max_rotation_rad


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"robot": None}, "robot: ram has no simulation: expected a real arm, --robot NAME"),
        ({"robot": "sim"}, "robot: ram has no simulation: expected a real arm, --robot NAME"),
        ({"reward": {"kind": "task"}}, "reward.kind: task: ram does not decide on success itself"),
        ({"demos": 5}, "demos: 5: no script demonstrates on a real arm"),
        ({"robot": "franka"}, "arm franka: it has no workspace yet: serl setup franka"),
        ({"reset": {"kind": "task"}}, "task_config.auto_reset: ram has no reset of its own: "),
        ({"robot": PAIR}, "ram: moves one arm, and this robot is a pair: give one of them"),
        ({"task_config": {"views": {"wrist": {"camra": "x"}}}}, "camra: unknown setting"),
    ],
)
def test_invalid_settings_of_real_task_are_refused_in_one_line(
    settings: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(BadInput, match=re.escape(complaint)) as raised:
        run_settings(RAM, {}, {"robot": REHEARSAL, **settings})
    assert "\n" not in str(raised.value)


def test_real_task_that_overrides_reset_may_use_it(tmp_path: Path) -> None:
    source = (EXAMPLES / "ram.py").read_text()
    own = "    def reset(self, reading):\n        return None\n\n\ntask = Ram"
    (tmp_path / "own.py").write_text(source.replace("\n\ntask = Ram", own))
    settings = {"robot": REHEARSAL, "reset": {"kind": "task"}, **TINY}
    config = run_settings(str(tmp_path / "own.py"), {}, settings)
    assert make_task(config).config.auto_reset
    assert reset_kind(config) == "task"


def test_arm_without_workspace_is_refused_even_if_task_has_box() -> None:
    motion = {"box_low_m": [0.4, -0.1, 0.06], "box_high_m": [0.6, 0.1, 0.25]}
    own = {"robot": "franka", "task_config": {"motion": motion}, "reset": {"kind": "person"}}
    with pytest.raises(BadInput, match="arm franka: ram needs a taught workspace: serl setup"):
        run_settings(RAM, {}, own)


@pytest.mark.parametrize(
    "words",
    [
        ["train", RAM],
        ["plan", RAM],
        ["sim", RAM],
        ["record", RAM],
        ["reward", "collect", RAM],
        pytest.param(["record", RAM, "--console"], marks=pytest.mark.ros),
        pytest.param(["reward", "collect", RAM, "--console"], marks=pytest.mark.ros),
        ["encoder", "pretrain", RAM, "--out", "x.safetensors"],
    ],
    ids=lambda words: " ".join(words).replace(RAM, "").strip(),
)
def test_commands_that_simulate_refuse_real_task_in_one_line(
    words: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(words) == cli.BAD_INPUT
    output = capsys.readouterr()
    assert re.fullmatch(r"serl: .*ram:? has no simulation.*--robot NAME.*\n", output.err)
    assert output.out == ""
    assert not list(tmp_path.iterdir()), "a file was written"


@pytest.mark.ros
@pytest.mark.parametrize("words", [(), ("--robot", "sim")], ids=["no robot", "sim"])
def test_policy_of_real_task_is_refused_on_simulation_before_a_folder_is_made(
    words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = RunFolder.create(tmp_path, settings(), datetime.now())
    run.save_checkpoint(100, {"actor": {"w": np.zeros(1)}}, {})
    assert cli.main(["run", str(run.path), *words]) == cli.BAD_INPUT
    line = "serl: robot: ram has no simulation: expected a real arm, --robot NAME\n"
    assert capsys.readouterr() == ("", line)
    assert not (run.path / "deployments").exists()


def test_real_task_settings_are_listed_and_arm_time_is_planned(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main(["list", RAM]) == cli.DONE
    listed = capsys.readouterr().out
    assert re.search(r"setting\* reward.kind +pose", listed)
    assert "task_config.force" in listed
    small = ["--agent.hidden", "[8,8]", "--agent.batch_size", "8", "--agent.threads", "1"]
    words = ["plan", RAM, "--robot", REHEARSAL, "--seconds", "0.1", *small]
    assert cli.main(words) == cli.DONE
    planned = capsys.readouterr().out
    assert "minutes at 10 Hz" in planned
    assert "simulation" not in planned


def test_written_task_file_reads_back_equal(tmp_path: Path) -> None:
    kind = read_task(Path(RAM))
    path, made = tmp_path / "ram.yaml", kind()
    write_task(path, made.name, str(kind.__doc__), made.config, kind.training)
    again = read_task(path)
    assert (again.name, again.__doc__, again().config) == (made.name, kind.__doc__, made.config)
    assert again.training == kind.training
    assert len(path.read_text().splitlines()) <= 16


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"task": None}, "task: "),
        ({"task": "Ram!"}, "task: "),
        ({"motoin": {}}, "motoin: unknown setting"),
        ({"rate_hz": -1}, "rate_hz: "),
        ({"motion": {"axes": ["x"]}}, "motion.translation_m: "),
        ({"views": {}}, "observe pixels: expected a renderer and at least one of views"),
        ({"auto_reset": True}, "auto_reset: a task in a file has no reset of its own: false"),
    ],
)
def test_invalid_task_file_is_refused_with_path_and_key(
    tmp_path: Path, change: dict[str, Any], complaint: str
) -> None:
    path = tmp_path / "wrong.yaml"
    path.write_text(yaml.safe_dump(yaml.safe_load(Path(RAM).read_text()) | change))
    with pytest.raises(BadInput, match=re.escape(str(path))) as raised:
        plugins.load("task", str(path))
    assert complaint in str(raised.value)


@pytest.mark.parametrize("name", ["absent.yaml", REHEARSAL])
def test_missing_or_foreign_file_is_refused_as_task(name: str) -> None:
    with pytest.raises(BadInput, match=r"no such file|expected a task, with the keys task"):
        plugins.load("task", name)


def test_task_class_without_scene_is_completed_but_refuses_simulation() -> None:
    class Bare:
        """User's task with only the methods of `Task`."""

        def __init__(self) -> None:
            self._ram = read_task(Path(RAM))()
            self.name, self.config = "bare", self._ram.config
            self.observation_spec = self._ram.observation_spec
            self.begin, self.observation = self._ram.begin, self._ram.observation
            self.outcome, self.reset = self._ram.outcome, self._ram.reset

    whole = as_simulated(Bare())
    assert whole.training_defaults()["demos"] == 0
    for call in (
        lambda: whole.is_success({}),
        lambda: whole.progress({}),
        lambda: whole.expert(dict, 0),
        lambda: whole.scene.place(np.random.default_rng(0)),
        lambda: plugins.make_simulation(whole),
    ):
        with pytest.raises(BadInput, match="bare: has no simulation"):
            call()
    assert as_simulated(PickCube()).scene.simulated
