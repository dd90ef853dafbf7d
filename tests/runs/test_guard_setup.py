from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from serl import plugins
from serl.arm_profile import write_robot
from serl.errors import BadInput
from serl.geometry import rotation_between
from serl.guard.config import GuardConfig, GuardState, check_fits
from serl.guard.latch import Latch, LatchFile
from serl.motion import pose_from
from serl.runs.config import resolve
from serl.runs.guard_setup import describe_cut_boxes, make_guard_config, settle_guard
from serl.runs.task_setup import make_task
from serl.system.settings_file import checked, read_yaml
from serl.workspace import Workspace

PROFILE = plugins.load("robot", "sim")


BY_TOPICS = sorted(
    {*plugins.names("task")}
    - {"handover", "object_flip", "racing_car", "timing_belt", "whip_block"}
)


@pytest.mark.parametrize("name", BY_TOPICS)
def test_guard_rotation_limit_covers_every_start_of_task(name: str) -> None:
    task = make_task(resolve({"task": name}))
    config = make_guard_config(task, PROFILE)
    allowed = config.motion.max_rotation_rad
    rng = np.random.default_rng(7)
    for _ in range(50):
        start = pose_from(task.scene.place(rng).tcp).quaternion
        turned = math.hypot(*rotation_between(config.reference, start))
        assert allowed >= min(math.pi, turned + 0.95 * task.config.motion.max_rotation_rad)


def test_box_that_a_taught_workspace_cuts_is_described_in_metres(tmp_path: Path) -> None:
    file, task = tmp_path / "arm.yaml", make_task(resolve({"task": "reach"}))
    (x, y, z), (u, v, w) = task.config.motion.box_low_m, task.config.motion.box_high_m
    home = (0.5 * (x + u), 0.5 * (y + v), 0.5 * (z + w))
    for cut, high in ((True, (u - 0.05, v, w)), (False, (u, v, w))):
        place = Workspace(low_m=(x, y, z), high_m=high, home_m=home, reference=(1.0, 0.0, 0.0, 0.0))
        write_robot(file, PROFILE.model_copy(update={"workspace": place}))
        line = (
            f"the guard keeps the tool in x {x:.3f} to {u - 0.05:.3f}, y {y:.3f} to {v:.3f}, "
            f"z {z:.3f} to {w:.3f} m: the box of reach, cut by the taught workspace of sim"
        )
        config = resolve({"task": "reach", "robot": str(file)})
        assert describe_cut_boxes(config, config.robot) == [line] * cut
    assert describe_cut_boxes(config, "sim") == describe_cut_boxes(config, None) == []


def test_guard_command_timeout_grows_for_slow_tasks() -> None:
    for rate_hz, command_s in ((20.0, 0.15), (10.0, 0.15), (6.0, 0.25), (5.0, 0.3)):
        overrides = {"task": "reach", "task_config": {"rate_hz": rate_hz}}
        config = make_guard_config(make_task(resolve(overrides)), PROFILE)
        assert config.command_s == pytest.approx(command_s)


def test_task_below_lowest_guarded_rate_is_refused() -> None:
    task = make_task(resolve({"task": "reach", "task_config": {"rate_hz": 4.0}}))
    with pytest.raises(BadInput, match=r"rate_hz: 4: a guard waits 0.3 s .*: at least 5"):
        make_guard_config(task, PROFILE)


def test_guard_for_wrench_actions_is_refused() -> None:
    flip = make_task(resolve({"task": "object_flip"}))
    with pytest.raises(BadInput, match="object_flip: wrenches are exerted in this process only"):
        make_guard_config(flip, PROFILE)
    values = make_guard_config(make_task(resolve({"task": "reach"})), PROFILE).model_dump()
    with pytest.raises(BadInput, match="motion: action_mode wrench: a guard checks targets"):
        checked(GuardConfig, values | {"motion": flip.config.motion.model_dump()})


def test_settle_guard_writes_config_and_keeps_latched_stop(tmp_path: Path) -> None:
    config = make_guard_config(make_task(resolve({"task": "reach"})), PROFILE)
    settings, latch = settle_guard(tmp_path / "guard", "actor0", config)
    assert checked(GuardConfig, read_yaml(settings)).digest == config.digest
    assert LatchFile(latch).read() == Latch()
    stop = Latch(GuardState.ESTOP, "a person")
    LatchFile(latch).write(stop)
    settle_guard(tmp_path / "guard", "actor0", config)
    assert LatchFile(latch).read() == stop


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"frame": "world"}, "frame: 'world', but its base frame is 'base'"),
        ({"joint_names": (*PROFILE.joints[1:], "other")}, "joint_names: .*other, but its joints"),
        (
            {"joint_low_rad": (-1.0,) * 6, "joint_high_rad": (1.0,) * 6, "joint_names": ()},
            "joint_low_rad: limits of 6 joints, but it has 7",
        ),
    ],
)
def test_guard_config_of_another_arm_is_refused_by_key(
    change: dict[str, object], complaint: str
) -> None:
    config = make_guard_config(make_task(resolve({"task": "reach"})), PROFILE)
    check_fits(config, PROFILE)
    with pytest.raises(BadInput, match=f"does not fit the arm sim: {complaint}"):
        check_fits(config.model_copy(update=change), PROFILE)


def test_guard_expecting_wrench_of_arm_without_sensor_is_refused() -> None:
    config = make_guard_config(make_task(resolve({"task": "reach"})), PROFILE)
    numb = PROFILE.model_copy(update={"wrench": None})
    with pytest.raises(BadInput, match="wrench: true, but it publishes none"):
        check_fits(config, numb)


def test_speed_above_controller_limit_is_refused() -> None:
    slow = PROFILE.controller.model_copy(update={"fastest_rad_s": 0.8})
    profile = PROFILE.model_copy(update={"controller": slow})
    task = make_task(resolve({"task": "reach"}))
    check_fits(make_guard_config(task, profile), profile)
    line = "motion.limits.angular_speed_rad_s: 1, but its controller follows 0.8 at most"
    with pytest.raises(BadInput, match=line):
        check_fits(make_guard_config(task, PROFILE), profile)


def test_guard_yields_by_distance_of_profile() -> None:
    task = make_task(resolve({"task": "reach"}))
    for yield_m in (0.0, 0.01):
        config = make_guard_config(task, PROFILE.model_copy(update={"yield_m": yield_m}))
        assert config.motion.limits.yield_m == yield_m


@pytest.mark.parametrize(
    ("name", "why"),
    [("racing_car", "'car'"), ("object_flip", "wrenches"), ("handover", "'bimanual'")],
)
def test_task_without_ros_topics_is_refused(name: str, why: str) -> None:
    with pytest.raises(BadInput, match=f"{name}: .*{why}.*not over topics"):
        make_guard_config(make_task(resolve({"task": name})), PROFILE)
