"""What the guard of an arm is told: a task's motion or a taught workspace, and the profile."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import yaml

from serl.arm_profile import ArmProfile, is_real, load_robot, write_robot
from serl.errors import BadInput
from serl.geometry import between
from serl.guard.config import GuardConfig
from serl.guard.latch import Latch, LatchFile
from serl.motion import Limits, Motion, pose_from
from serl.runs.config import TrainConfig
from serl.runs.graph_file import checked_namespace
from serl.runs.real_arm import check_place, limits_of, within_workspace
from serl.runs.task_setup import check_topics, make_task
from serl.system.files import make_folder, write_atomic
from serl.task import SimulatedTask

GUARD_FOLDER = "guard"
"""Name of the folder of a run in which its guards' files are."""

_STARTS = 64
_LONGEST_S = 0.3
_LEAST_PERIODS = 1.5
"""A target may be late by half a period."""


def guarded_arm(config: TrainConfig, robot: str) -> tuple[ArmProfile, GuardConfig]:
    """The profile of a run's arm, and the limits of its guard.

    Raises:
        BadInput: there is no such arm, nobody has said where a real one may be, or it cannot do the
            task; see `make_guard_config`.
    """
    profile, task = load_robot(robot), make_task(config)
    check_topics(task)  # before a person is sent to teach the arm its place
    if is_real(robot):
        check_place(config, profile)
    return profile, make_guard_config(task, profile)


def make_guard_config(task: SimulatedTask, profile: ArmProfile) -> GuardConfig:
    """The limits of a task, for an arm of a family.

    The box is the task's, within that which a person has taught the arm, if anybody has. Rotations
    are limited about the start of each episode, which the guard does not know: it allows
    as much more about one of them as starts differ. Where a person has taught the arm, they are
    limited about what was taught, and by that as well.

    Raises:
        BadInput: the task is not one of an arm that follows targets, or its box is elsewhere than
            the arm's.
    """
    check_topics(task)
    if task.config.rate_hz * _LONGEST_S < _LEAST_PERIODS:
        raise BadInput(
            f"rate_hz: {task.config.rate_hz:g}: a guard waits {_LONGEST_S:g} s for a target at "
            f"most, so that an arm would hold between two: at least {_LEAST_PERIODS / _LONGEST_S:g}"
        )
    config, rng = task.config, np.random.default_rng(0)
    starts = [pose_from(task.scene.place(rng).tcp).quaternion for _ in range(_STARTS)]
    spread = max(math.hypot(*between(starts[0], start)) for start in starts)
    widest = min(math.pi, config.motion.max_rotation_rad + 1.1 * spread)
    reference, place = starts[0], profile.workspace
    if place is not None:
        reference, widest = place.reference, min(widest, place.max_rotation_rad)
    return GuardConfig(
        motion=within_workspace(
            config.motion.model_copy(update={"max_rotation_rad": widest}), profile
        ),
        reference=reference,
        frame=profile.base_frame,
        joint_names=profile.joints,
        joint_low_rad=profile.joint_low_rad,
        joint_high_rad=profile.joint_high_rad,
        keep_out=place.keep_out if place is not None else (),
        wrench=profile.wrench is not None,
        command_s=max(0.15, _LEAST_PERIODS / config.rate_hz),
    )


def check_fits(config: GuardConfig, profile: ArmProfile) -> None:
    """Raise `BadInput`, naming the key, unless a guard of `config` can guard such an arm."""
    count, names = len(config.joint_low_rad), config.joint_names
    if config.frame != profile.base_frame:
        wrong = f"frame: {config.frame!r}, but its base frame is {profile.base_frame!r}"
    elif count != len(profile.joints):
        wrong = f"joint_low_rad: limits of {count} joints, but it has {len(profile.joints)}"
    elif names and set(names) != set(profile.joints):
        wrong = f"joint_names: {', '.join(names)}, but its joints are {', '.join(profile.joints)}"
    elif config.wrench and profile.wrench is None:
        wrong = (
            "wrench: true, but it tells none: say wrench: false, and that nothing sees a contact"
        )
    elif too_fast := _too_fast(config.motion.limits, profile):
        wrong = too_fast
    else:
        return
    raise BadInput(f"the guard's configuration does not fit the arm {profile.name}: {wrong}")


def _too_fast(limits: Limits, profile: ArmProfile) -> str:
    """Which speed of the limits the arm's controller would scale down; empty if none."""
    able = limits_of(limits, profile)
    for name in ("speed_m_s", "angular_speed_rad_s"):
        asked, most = getattr(limits, name), getattr(able, name)
        if asked > most:
            return f"motion.limits.{name}: {asked:g}, but its controller follows {most:g} at most"
    return ""


def guard_of(profile: ArmProfile, limits: Limits | None = None) -> GuardConfig:
    """The limits of an arm whose workspace a person taught, for whatever it is to do there.

    Raises:
        BadInput: nobody did.
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
    return GuardConfig(
        motion=motion,
        reference=place.reference,
        frame=profile.base_frame,
        joint_names=profile.joints,
        joint_low_rad=profile.joint_low_rad,
        joint_high_rad=profile.joint_high_rad,
        keep_out=place.keep_out,
        wrench=profile.wrench is not None,
    )


def settle_guard(folder: Path, robot: str, config: GuardConfig) -> tuple[Path, Path]:
    """Write the guard's configuration, and a clean latch where none is: nobody stopped it yet.

    Only for a simulated arm, which is as new as its run: a real arm's first start is a stop that a
    person acknowledges.

    Returns:
        The files of the configuration and of the latch.
    """
    settings, latch = write_guard(folder, robot, config), simulated_latch(folder, robot)
    if not latch.exists():
        LatchFile(latch).write(Latch())
    return settings, latch


def simulated_latch(folder: Path, robot: str) -> Path:
    """The latch of a simulated arm, which is as new as its run: see `settle_guard`."""
    return folder / f"{robot}.latch"


def write_guard(folder: Path, robot: str, config: GuardConfig) -> Path:
    """Write the guard's configuration; its file."""
    make_folder(folder)
    settings = folder / f"{robot}.yaml"
    write_atomic(settings, yaml.safe_dump(config.model_dump(mode="json")).encode())
    return settings


class ArmNamespace(NamedTuple):
    """Where an arm is in the ROS graph.

    Attributes:
        cell: name of the folder of its nodes, and so their namespace.
        robot: the arm's own namespace: below that of the cell, or from the root where it begins
            with a slash; empty for the root itself.
    """

    cell: str
    robot: str

    @property
    def namespace(self) -> str:
        """Of the arm, from the root; "/" for the root itself."""
        if self.robot and not self.robot.startswith("/"):
            return f"/{self.cell}/{self.robot}"
        return self.robot or "/"

    @property
    def prefix(self) -> str:
        """What its names begin with, from the root, before their first slash."""
        return self.namespace.rstrip("/")


def guard_arguments(
    folder: Path, place: ArmNamespace, profile: ArmProfile, config: GuardConfig, latch: Path
) -> Sequence[str]:
    """What the guard's process is started with; what it reads is written for it."""
    settings, arm = folder / "guard.yaml", folder / "arm.yaml"
    write_atomic(settings, yaml.safe_dump(config.model_dump(mode="json")).encode())
    write_robot(arm, profile)
    where = ("--run", str(folder), "--robot", place.robot or "/", "--arm", str(arm))
    return (*where, "--config", str(settings), "--latch", str(latch))


def place_of(profile: ArmProfile, namespace: str | None) -> ArmNamespace:
    """Where an arm is: in the namespace that was asked for, or beside other arms of the cell.

    Raises:
        BadInput: it is no namespace.
    """
    if namespace is None:
        return ArmNamespace("cell", profile.name)
    return ArmNamespace("cell", checked_namespace(namespace).rstrip("/"))
