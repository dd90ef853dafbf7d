"""What the guard of a simulated arm is told: a task's motion, and the profile of the arm."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import yaml

from serl.arm_profile import ArmProfile
from serl.assignment import check_topics
from serl.files import make_folder, write_atomic
from serl.guard_config import GuardConfig
from serl.latch import Latch, LatchFile
from serl.rotations import between
from serl.safety import pose_from
from serl.task import SimulatedTask

_STARTS = 64
_LONGEST_S = 0.3


def make_guard_config(task: SimulatedTask, profile: ArmProfile) -> GuardConfig:
    """The limits of a task, for an arm of a family.

    Rotations are limited about the start of each episode, which the guard does not know: it allows
    as much more about one of them as starts differ.

    Raises:
        BadInput: the task is not one of an arm that follows targets.
    """
    check_topics(task)
    config, rng = task.config, np.random.default_rng(0)
    starts = [pose_from(task.scene.place(rng).tcp).quaternion for _ in range(_STARTS)]
    spread = max(math.hypot(*between(starts[0], start)) for start in starts)
    widest = min(math.pi, config.motion.max_rotation_rad + 1.1 * spread)
    gripper = profile.gripper
    return GuardConfig(
        motion=config.motion.model_copy(update={"max_rotation_rad": widest}),
        reference=starts[0],
        frame=profile.base_frame,
        joint_names=profile.joints,
        joint_low_rad=profile.joint_low_rad,
        joint_high_rad=profile.joint_high_rad,
        gripper_width_m=gripper.open if gripper else 0.08,
        wrench=profile.wrench is not None,
        command_s=min(_LONGEST_S, max(0.15, 1.5 / config.rate_hz)),
    )


def settle_guard(folder: Path, robot: str, config: GuardConfig) -> tuple[Path, Path]:
    """Write the guard's configuration, and a clean latch where none is: nobody stopped it yet.

    Only for a simulated arm, which is as new as its run: a real arm's first start is a stop that a
    person acknowledges.

    Returns:
        The files of the configuration and of the latch.
    """
    make_folder(folder)
    settings, latch = folder / f"{robot}.yaml", folder / f"{robot}.latch"
    write_atomic(settings, yaml.safe_dump(config.model_dump(mode="json")).encode())
    if not latch.exists():
        LatchFile(latch).write(Latch())
    return settings, latch
