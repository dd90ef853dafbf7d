"""Configuration of an arm's guard: from a task's motion or a taught workspace, and the profile."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import yaml

from serl.arm_pair import read_pair
from serl.arm_profile import ArmProfile, is_real, load_robot, write_robot
from serl.compliance import TaskCompliance
from serl.errors import BadInput
from serl.geometry import Quaternion, multiply, rotation_between
from serl.guard.config import GuardConfig, check_wrench, limits_of
from serl.guard.latch import Latch, LatchFile
from serl.motion import Limits, Motion, pose_from
from serl.runs.config import TrainConfig
from serl.runs.graph_file import checked_namespace
from serl.runs.mounted_arms import MountedArm, mounted_arms
from serl.runs.real_arm import check_place, within_workspace
from serl.runs.task_setup import check_topics, make_task
from serl.system.files import make_folder, write_atomic
from serl.task import SimulatedTask

GUARD_FOLDER = "guard"
"""Name of the folder of a run that holds its guards' files."""

_STARTS = 64
_LONGEST_S = 0.3
_LEAST_PERIODS = 1.5
"""Least command timeout of the guard, in control periods: a target may be half a period late."""


def guarded_arm(config: TrainConfig, robot: str) -> tuple[ArmProfile, GuardConfig]:
    """Return the profile of a run's arm, and the configuration of its guard.

    Raises:
        BadInput: the arm is unknown, a real arm has no workspace, or the arm cannot do the task;
            see `make_guard_config`.
    """
    profile, task = load_robot(robot), make_task(config)
    check_topics(task)  # before a person is asked to teach the arm its workspace
    own = task.config.compliance
    if is_real(robot):
        check_place(config, profile)
    else:  # its controller has the task's gains already
        own = TaskCompliance(wrench=own.wrench)
    return profile, _with_compliance(make_guard_config(task, profile), own, profile)


class GuardSetup(NamedTuple):
    """An arm of a run that needs a guard.

    Attributes:
        side: "left" or "right" for an arm of a pair, else empty.
        robot: name or file of the arm's profile.
        namespace: namespace of the arm's driver.
        config: configuration of the guard.
    """

    side: str
    robot: str
    namespace: str
    profile: ArmProfile
    config: GuardConfig


def guarded_arms(config: TrainConfig, robot: str, namespace: str = "/") -> list[GuardSetup]:
    """Return the arm of a run, or both arms of a pair, with the configuration of each guard.

    Raises:
        BadInput: as `guarded_arm` for a single arm, and as `mounted_arms` for a pair; or a
            namespace is given to a pair, whose file has those of its arms.
    """
    if (pair := read_pair(robot)) is None:
        return [GuardSetup("", robot, namespace, *guarded_arm(config, robot))]
    if namespace != "/":
        raise BadInput(f"namespace: {namespace}: those of a pair are in its file, {robot}")
    task = make_task(config)
    left, right = mounted_arms(task, pair)
    config_of = partial(_pair_guard, task, *_starts(task))
    return [
        GuardSetup(arm.side, arm.robot, arm.namespace, arm.profile, config_of(arm))
        for arm in (left, right)
    ]


def describe_cut_boxes(config: TrainConfig, robot: str | None) -> list[str]:
    """Return a line with the box of each guard of a real arm whose box is not the task's.

    A taught workspace cuts the box, and between two arms a plane. Boxes of two arms are in their
    common frame.

    Raises:
        BadInput: see `guarded_arms`.
    """
    if robot is None or not is_real(robot):
        return []
    task = make_task(config)
    if (pair := read_pair(robot)) is None:
        wishes, profile = [task.config.motion], load_robot(robot)
        by = f"the taught workspace of {profile.name}"
        kept = [("the tool", by, within_workspace(wishes[0], profile))]
    else:
        arms = mounted_arms(task, pair)
        wishes = [task.config.motion, getattr(task.config, "right_motion", task.config.motion)]
        by = "its taught workspace or the plane between the tools"
        kept = [(f"the {arm.side} tool", by, arm.motion) for arm in arms]
    lines = []
    for wish, (tool, by, motion) in zip(wishes, kept, strict=True):
        low, high = motion.box_low_m, motion.box_high_m
        if (low, high) != (wish.box_low_m, wish.box_high_m):
            sides = zip("xyz", low, high, strict=True)
            box = ", ".join(f"{axis} {least:.3f} to {most:.3f}" for axis, least, most in sides)
            lines.append(f"the guard keeps {tool} in {box} m: the box of {task.name}, cut by {by}")
    return lines


def _starts(task: SimulatedTask) -> tuple[list[Quaternion], list[Quaternion]]:
    """Return the orientations of both tools at starts of a task of two arms."""
    rng = np.random.default_rng(0)
    places = [task.scene.place(rng) for _ in range(_STARTS)]
    rights = [place.right_tcp for place in places if place.right_tcp is not None]
    return [pose_from(place.tcp).quaternion for place in places], [
        pose_from(right).quaternion for right in rights
    ]


def _pair_guard(
    task: SimulatedTask, left: list[Quaternion], right: list[Quaternion], arm: MountedArm
) -> GuardConfig:
    """Return the configuration of the guard of one arm of a pair, in its own frame."""
    command_s = _command_s(task)
    starts = [multiply(arm.mount.inverse_turn, q) for q in (left if arm.side == "left" else right)]
    place = arm.profile.workspace
    assert place is not None  # checked by `mounted_arms`
    widest = min(place.max_rotation_rad, _widest_rad(arm.motion, starts))
    motion = arm.own_motion.model_copy(update={"max_rotation_rad": widest})
    own = _of_arm(arm.profile, motion, place.reference, command_s)
    return _with_compliance(own, task.config.compliance, arm.profile)


def _widest_rad(motion: Motion, starts: Sequence[Quaternion]) -> float:
    """Return the bound of rotations about the first start that allows those about every start."""
    spread = max(math.hypot(*rotation_between(starts[0], start)) for start in starts)
    return motion.max_rotation_rad + 1.1 * spread


def _with_compliance(
    config: GuardConfig, compliance: TaskCompliance, profile: ArmProfile
) -> GuardConfig:
    """Return a guard's configuration with the task's compliance, which the arm must offer."""
    config = config.model_copy(update={"compliance": compliance})
    check_wrench(config, profile.with_compliance(compliance))
    return config


def _command_s(task: SimulatedTask) -> float:
    """Return the command timeout of a guard; raise `BadInput` for a rate that is too low."""
    if task.config.rate_hz * _LONGEST_S < _LEAST_PERIODS:
        raise BadInput(
            f"rate_hz: {task.config.rate_hz:g}: a guard waits {_LONGEST_S:g} s for a target at "
            f"most, so that an arm would hold between two: at least {_LEAST_PERIODS / _LONGEST_S:g}"
        )
    return max(0.15, _LEAST_PERIODS / task.config.rate_hz)


def make_guard_config(task: SimulatedTask, profile: ArmProfile) -> GuardConfig:
    """Return the guard's configuration for a task on an arm.

    The box is the task's, intersected with the arm's taught workspace, if there is one. The task
    limits rotations about the start of each episode, which the guard does not know: the guard
    limits them about one start, with a margin for the spread of the starts. With a taught
    workspace, rotations are limited about its reference, and by its bound as well. A task without
    a simulation has no starts: its rotations are limited by the workspace alone.

    Raises:
        BadInput: the task is not one of an arm that follows targets, its rate is too low for the
            guard's timeout, its box and the arm's workspace do not overlap, or a task without a
            simulation finds no workspace.
    """
    check_topics(task)
    command_s = _command_s(task)
    config, place = task.config, profile.workspace
    if not task.scene.simulated:
        if place is None:
            raise BadInput(f"arm {profile.name}: {task.name} needs a taught workspace: serl setup")
        motion = config.motion.model_copy(update={"max_rotation_rad": place.max_rotation_rad})
        return _of_arm(profile, within_workspace(motion, profile), place.reference, command_s)
    rng = np.random.default_rng(0)
    starts = [pose_from(task.scene.place(rng).tcp).quaternion for _ in range(_STARTS)]
    widest = min(math.pi, _widest_rad(config.motion, starts))
    reference = starts[0]
    if place is not None:
        reference, widest = place.reference, min(widest, place.max_rotation_rad)
    motion = config.motion.model_copy(update={"max_rotation_rad": widest})
    return _of_arm(profile, within_workspace(motion, profile), reference, command_s)


def _of_arm(
    profile: ArmProfile, motion: Motion, reference: Quaternion, command_s: float = 0.15
) -> GuardConfig:
    """Return a guard's configuration with all that the arm's profile defines."""
    return GuardConfig(
        motion=motion,
        reference=reference,
        frame=profile.base_frame,
        joint_names=profile.joints,
        joint_low_rad=profile.joint_low_rad,
        joint_high_rad=profile.joint_high_rad,
        home_rad=_joint_home(profile),
        keep_out=profile.workspace.keep_out if profile.workspace is not None else (),
        wrench=profile.wrench is not None,
        command_s=command_s,
    )


def _joint_home(profile: ArmProfile) -> tuple[float, ...]:
    """Return the home of joint moves; empty if the driver takes none, or it is near a limit."""
    margin_rad = GuardConfig.model_fields["joint_margin_rad"].default
    rows = zip(profile.joint_low_rad, profile.home_rad, profile.joint_high_rad, strict=True)
    clear = all(low + margin_rad < home < high - margin_rad for low, home, high in rows)
    return profile.home_rad if clear and profile.trajectory is not None else ()


def workspace_guard(profile: ArmProfile, limits: Limits | None = None) -> GuardConfig:
    """Return the guard's configuration for any motion in the arm's taught workspace.

    Raises:
        BadInput: the arm has no taught workspace.
    """
    place = profile.workspace
    if place is None:
        raise BadInput(
            f"arm {profile.name}: has no workspace: teach it with `serl setup`; --task alone does "
            "for a simulated one"
        )
    motion = Motion(
        axes=("x", "y", "z", "roll", "pitch", "yaw"),
        translation_m=0.015,
        box_low_m=place.low_m,
        box_high_m=place.high_m,
        max_rotation_rad=place.max_rotation_rad,
        gripper=profile.gripper is not None,
        limits=limits_of(limits or Limits(), profile),
    )
    return _of_arm(profile, motion, place.reference)


def settle_guard(folder: Path, robot: str, config: GuardConfig) -> tuple[Path, Path]:
    """Write the guard's configuration, and a latch without a stop where no latch exists.

    Only for a simulated arm, which is made with its run: a real arm's first start is a stop that a
    person acknowledges.

    Returns:
        The paths of the configuration and of the latch.
    """
    settings, latch = write_guard(folder, robot, config), simulated_latch(folder, robot)
    if not latch.exists():
        LatchFile(latch).write(Latch())
    return settings, latch


def simulated_latch(folder: Path, robot: str) -> Path:
    """Return the path of a simulated arm's latch, in its run's folder; see `settle_guard`."""
    return folder / f"{robot}.latch"


def write_guard(folder: Path, robot: str, config: GuardConfig) -> Path:
    """Write the guard's configuration; return its path."""
    make_folder(folder)
    settings = folder / f"{robot}.yaml"
    write_atomic(settings, yaml.safe_dump(config.model_dump(mode="json")).encode())
    return settings


class ArmNamespace(NamedTuple):
    """The namespace of an arm in the ROS graph.

    Attributes:
        cell: name of the folder of the arm's nodes, and so their namespace.
        robot: the arm's own namespace: relative to the cell's, or absolute if it begins with a
            slash; empty for the root itself.
    """

    cell: str
    robot: str

    @property
    def namespace(self) -> str:
        """The arm's absolute namespace; "/" for the root itself."""
        if self.robot and not self.robot.startswith("/"):
            return f"/{self.cell}/{self.robot}"
        return self.robot or "/"

    @property
    def prefix(self) -> str:
        """The absolute namespace as a prefix of names: without trailing slash, "" for the root."""
        return self.namespace.rstrip("/")


def guard_arguments(
    folder: Path, place: ArmNamespace, profile: ArmProfile, config: GuardConfig, latch: Path
) -> Sequence[str]:
    """Write the files that the guard's process reads; return its command-line arguments."""
    settings, arm = write_guard(folder, "guard", config), folder / "arm.yaml"
    write_robot(arm, profile)
    where = ("--run", str(folder), "--robot", place.robot or "/", "--arm", str(arm))
    return (*where, "--config", str(settings), "--latch", str(latch))


def place_of(profile: ArmProfile, namespace: str | None) -> ArmNamespace:
    """Return the namespace of an arm: the given one, or one in the cell, named by the profile.

    Raises:
        BadInput: the given namespace is malformed.
    """
    if namespace is None:
        return ArmNamespace("cell", profile.name)
    return ArmNamespace("cell", checked_namespace(namespace).rstrip("/"))
