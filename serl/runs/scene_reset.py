"""The resets of a run: their kind on its arm, their requirements, and the reset of an actor."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from pydantic_core import to_jsonable_python

from serl import plugins
from serl.arm_pair import SIDES, ArmPair, read_pair
from serl.arm_profile import ArmProfile, is_real, load_robot
from serl.compliance import RESET
from serl.errors import BadInput
from serl.geometry import (
    Quaternion,
    Vector,
    from_rotation_vector,
    is_in_box,
    multiply,
    rotation_between,
)
from serl.guard.config import GuardConfig
from serl.motion import Box, Motion, Pose
from serl.reset import ResetConfig, ResetKind, SceneCheck, no_check, pose_check
from serl.reward import Judgement, RewardConfig
from serl.runs.config import TrainConfig
from serl.runs.guard_setup import guarded_arm, guarded_arms
from serl.runs.mounted_arms import MountedArm, mounted_arms
from serl.runs.real_arm import within_workspace
from serl.runs.task_setup import make_task, renderer_of
from serl.system.settings_file import checked, merge
from serl.task import SimulatedTask
from serl.training.arm_reset import ArmReset
from serl.training.evaluation import Purpose, start_seed
from serl.training.pair_reset import PairReset
from serl.training.resets import SceneReset
from serl.types import Observation

_DOWN: Quaternion = (1.0, 0.0, 0.0, 0.0)
_ROUNDED_M, _ROUNDED_RAD = 5e-4, 1e-4
"""Errors of taught poses, which are rounded when they are stored."""
_OF_ARM = ("home_m", "orientation", "path", "gains")
_OF_CLASSIFIER = ("model", "sha256", "threshold", "transfer")
"""Settings of one arm: other arms have other places and gains; its file may name a classifier."""


def reset_kind(config: TrainConfig) -> ResetKind:
    """Return the kind of a run's resets; see `ResetConfig.kind` for the default."""
    if config.reset.kind is not None:
        return config.reset.kind
    task = make_task(config)
    if task.config.auto_reset or config.stages:
        return "task"
    if (pair := read_pair(config.robot)) is not None:  # both arms have a workspace
        files = [reset_of_arm(getattr(pair, side).profile) for side in SIDES]
        return "person" if any(own.get("kind") == "person" for own in files) else "home"
    taught = is_real(config.robot) and _profile(config).workspace is not None
    return "home" if taught and not _immovable(task) else "person"


def is_attended(config: TrainConfig) -> bool:
    """Return whether a person brings a real arm and its scene to a start before each episode."""
    return is_real(config.robot) and reset_kind(config) == "person"


def reset_of_arm(robot: str | None) -> dict[str, Any]:
    """Return the settings of resets in the file of a real arm; {} for a pair or a simulation."""
    single = robot is not None and read_pair(robot) is None
    own = load_robot(robot).reset if robot is not None and single else None
    return own.model_dump(mode="json", exclude_defaults=True) if own is not None else {}


def declared_reset(config: TrainConfig) -> dict[str, Any]:
    """Return the settings of resets that a task and the file of its real arm declare."""
    own = make_task(config).training_defaults().get("reset", {})
    return merge(own, reset_of_arm(config.robot))


def arm_settings(config: TrainConfig, robot: str, namespace: str) -> dict[str, Any]:
    """Return the settings of a run that change on the given arm.

    Resets on another real arm than the run's are those of a new run on it: of its task and of the
    arm's file, then as given to the run, except for places and gains, which differ from arm to arm.
    A simulation places its scene itself. No other arm moves its joints home.

    Raises:
        BadInput: the arm's file cannot be read, or lacks a setting that the run's resets need.
    """
    if plugins.absolute(robot) == config.robot:
        return {"robot": robot, "namespace": namespace}
    own = ResetConfig(kind="task" if config.reset.kind == "task" else None)
    if is_real(robot):
        own = _reset_elsewhere(config, robot)
    update: dict[str, Any] = {"robot": robot, "namespace": namespace, "reset": own}
    if config.actor.home_every:  # whether this arm can go home was not checked
        update["actor"] = config.actor.model_copy(update={"home_every": 0})
    return update


def _reset_elsewhere(config: TrainConfig, robot: str) -> ResetConfig:
    """Return the settings of a run's resets on another real arm.

    A run stores all its settings: those count as given that neither its task nor the file of its
    own arm declares. If that file is gone, the file of the other arm takes precedence, but not over
    a person.
    """
    declared = declared_reset(config.model_copy(update={"robot": robot}))
    there = reset_of_arm(robot)
    apart = {*_OF_ARM, *(_OF_CLASSIFIER if "model" in there else ())}
    try:
        here = declared_reset(config)
    except BadInput:
        here = declared_reset(config.model_copy(update={"robot": None}))
        apart |= there.keys() - ({"kind"} if config.reset.kind == "person" else set())
    given = _given_reset(config.reset, here)
    kept = {name: value for name, value in given.items() if name not in apart}
    if config.reset.kind == "task":  # stages reset each other on each arm
        kept["kind"] = "task"
    return checked(ResetConfig, merge(declared, kept), "reset.")


def _given_reset(reset: ResetConfig, declared: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of a run's settings of resets that are neither declared nor a default."""
    known = ResetConfig().model_dump(mode="json") | to_jsonable_python(declared)
    values = reset.model_dump(mode="json")
    return {name: value for name, value in values.items() if value != known[name]}


def check_reset(config: TrainConfig) -> None:
    """Raise `BadInput`, naming the setting, unless the run's arm can be reset as configured."""
    kind, reset, task = reset_kind(config), config.reset, make_task(config)
    if (pair := read_pair(config.robot)) is not None:
        _check_pair_reset(kind, reset)
        if kind == "home":
            _pair_rooms(config, task, pair)
        make_check(config, task)
        return
    if kind in ("home", "path"):
        if fixed := _immovable(task):
            raise BadInput(f"reset.kind: {kind}: {task.name} {fixed}")
        _arm_room(config, task)
    modes = _profile(config).controller.modes if is_real(config.robot) else {}
    if reset.gains is not None and reset.gains not in modes:
        known = ", ".join(modes) or "none"
        raise BadInput(f"reset.gains: {reset.gains!r}: expected a mode of the arm: {known}")
    tracked = task.scene.tracked
    if reset.check == "pose" and not is_real(config.robot) and reset.body not in tracked:
        known = ", ".join(tracked) or "none"
        raise BadInput(f"reset.body: {reset.body!r}: {task.name} tracks {known}")
    make_check(config, task)


def make_scene_reset(
    config: TrainConfig, task: SimulatedTask, robot: Any, actor: str, first: int
) -> SceneReset:
    """Return the reset between the episodes of an actor.

    Args:
        config: settings of the run.
        task: the task, with the run's reward.
        robot: the arm to drive.
        actor: name of the actor; each draws starts of its own.
        first: number of the first start, so that a restarted actor draws others.
    """
    check = make_check(config, task)
    if reset_kind(config) not in ("home", "path"):
        gains = config.reset.gains
        return SceneReset(task, check, robot, (RESET,) if gains is None else (gains,))
    rng = np.random.default_rng(start_seed(Purpose.TRAINING, config.seed, f"{actor}/reset", first))
    if (pair := read_pair(config.robot)) is not None:
        return _make_pair_reset(config, task, pair, robot, rng, check)
    room = _arm_room(config, task)
    return ArmReset(task, robot, room.reset, room.motion, room.home, rng, check, room.keep_out)


class _Room(NamedTuple):
    """The reset of an arm, and the room of its tool: all poses of the reset are allowed there."""

    reset: ResetConfig
    motion: Motion
    home: Pose
    keep_out: Sequence[Box]


def _arm_room(config: TrainConfig, task: SimulatedTask) -> _Room:
    """Return the room of a run's arm, whose tool returns to a start.

    Raises:
        BadInput: there is no mean start, the tool may not be at a pose of the reset, or the arm
            has no gripper to hold a part.
    """
    kind, motion, place, owner = reset_kind(config), task.config.motion, None, task.name
    if is_real(config.robot):
        profile = _profile(config)
        motion, place = within_workspace(motion, profile), profile.workspace
        owner = f"{task.name} on {profile.name}"
        _check_gripper(kind, config.reset, profile)
    reset = config.reset.model_copy(update={"kind": kind})
    position = reset.home_m or (place.home_m if place is not None else None)
    if position is None:
        raise BadInput(
            f"reset.home_m: the kind {kind!r} needs a mean start of the tool: give one, or "
            "teach the arm its workspace (serl setup)"
        )
    taught = place.reference if place is not None else _DOWN
    keep_out = place.keep_out if place is not None else ()
    room = _Room(reset, motion, Pose(position, reset.orientation or taught), keep_out)
    _check_room(room, owner)
    if is_real(config.robot) and config.robot is not None:
        _check_turns(room, guarded_arm(config, config.robot)[1], owner)
    return room


def _check_room(room: _Room, owner: str) -> None:
    """Raise `BadInput` unless the tool may be at all poses of a reset."""
    reset = room.reset
    name = "reset.home_m" if reset.home_m is not None else "reset.home_m, by default the arm's home"
    _check_position(name, room.home.position, room, owner)
    if reset.kind == "path":
        for number, each in enumerate(reset.path, 1):
            _check_position(f"reset.path: pose {number}", each.position_m, room, owner)


def _check_gripper(kind: ResetKind, reset: ResetConfig, profile: ArmProfile) -> None:
    """Raise `BadInput` if an arm without a gripper is to hold a part."""
    if profile.gripper is None and kind == "path":
        raise BadInput(f"reset.kind: path: {profile.name} has no gripper: expected home or person")
    if profile.gripper is None and reset.gripper == "keep":
        raise BadInput(f"reset.gripper: keep: {profile.name} has no gripper: expected open")


def _check_turns(room: _Room, guard: GuardConfig, owner: str) -> None:
    """Raise `BadInput` unless a guard allows the orientations of all poses of a reset."""
    reset, home = room.reset, room.home.quaternion
    turned = {"reset.orientation:": home}
    if "yaw" in room.motion.axes:
        for turn_rad in (-reset.yaw_rad, reset.yaw_rad):
            turn = from_rotation_vector((0.0, 0.0, turn_rad))
            turned[f"reset.yaw_rad: a start at {turn_rad:g}"] = multiply(turn, home)
    if reset.kind == "path":
        for number, each in enumerate(reset.path, 1):
            turned[f"reset.path: pose {number}:"] = each.orientation
    most = guard.motion.max_rotation_rad
    for name, orientation in turned.items():
        by = math.hypot(*rotation_between(guard.reference, orientation))
        if by > most + _ROUNDED_RAD:
            raise BadInput(
                f"{name} is turned by {by:.2f} rad from the reference of {owner}: "
                f"expected {most:.2f} rad at most"
            )


def _check_position(name: str, position: Vector, room: _Room, owner: str) -> None:
    """Raise `BadInput` unless the tool may be at a position of a reset."""
    at = " ".join(f"{axis} {value:.3f}" for axis, value in zip("xyz", position, strict=True))
    low, high = room.motion.box_low_m, room.motion.box_high_m
    if not is_in_box(position, low, high, _ROUNDED_M):
        raise BadInput(f"{name}: {at} m is outside the box of {owner}: {_sides(low, high)}")
    for box in room.keep_out:
        if is_in_box(position, box.low_m, box.high_m):
            sides = _sides(box.low_m, box.high_m)
            raise BadInput(f"{name}: {at} m is in a keep-out box of {owner}: {sides}")


def _sides(low_m: Vector, high_m: Vector) -> str:
    rows = zip("xyz", low_m, high_m, strict=True)
    return ", ".join(f"{axis} {low:g} to {high:g}" for axis, low, high in rows) + " m"


def _check_pair_reset(kind: ResetKind, reset: ResetConfig) -> None:
    """Raise `BadInput`, naming the setting, unless two arms can be reset as configured."""
    if kind == "path":
        raise BadInput("reset.kind: path: is for one arm; two arms take home or person")
    for name in ("home_m", "orientation"):
        if getattr(reset, name) is not None:
            raise BadInput(f"reset.{name}: two arms have one each: give it in the arms' own files")


def check_given(config: TrainConfig, given: Mapping[str, Any]) -> None:
    """Raise `BadInput` if a setting of resets given to two arms does not override their files'.

    A run does not store which settings were given: those that equal a default leave it to the file.
    """
    if (pair := read_pair(config.robot)) is None:
        return
    effective = _given_reset(config.reset, declared_reset(config))
    for side in SIDES:
        own = reset_of_arm(getattr(pair, side).profile)
        for name in own.keys() & given.keys() - effective.keys():
            if own[name] != (value := config.reset.model_dump(mode="json")[name]):
                raise BadInput(
                    f"reset.{name}: {value} is the default, over which the file of the {side} arm "
                    f"takes precedence with {own[name]}: change it there"
                )


def _make_pair_reset(
    config: TrainConfig,
    task: SimulatedTask,
    pair: ArmPair,
    robot: Any,
    rng: np.random.Generator,
    check: SceneCheck,
) -> SceneReset:
    """Return the reset of two arms, each by the task, then its own file, then the run."""
    arms = {}
    for arm, room in _pair_rooms(config, task, pair):
        home = arm.mount.common_pose(room.home)
        keep_out = [arm.mount.common_box(box) for box in room.keep_out]
        moved = getattr(robot, arm.side)
        arms[arm.side] = ArmReset(task, moved, room.reset, arm.motion, home, rng, keep_out=keep_out)
    return PairReset(task, arms, check)


def _pair_rooms(
    config: TrainConfig, task: SimulatedTask, pair: ArmPair
) -> list[tuple[MountedArm, _Room]]:
    """Return the arms of a pair and their rooms, each in the frame of its own base.

    Raises:
        BadInput: an arm cannot do the task or its reset, or its tool may not be at its mean start.
    """
    assert config.robot is not None  # the file of the pair
    rooms, declared = [], declared_reset(config)
    given = _given_reset(config.reset, declared)
    guards = {each.side: each.config for each in guarded_arms(config, config.robot)}
    for arm in mounted_arms(task, pair):
        place = arm.profile.workspace
        assert place is not None  # checked by `mounted_arms`
        values = merge(merge(declared, reset_of_arm(arm.robot)), given)
        own = checked(ResetConfig, {**values, "kind": "home"}, f"{arm.side}: reset.")
        home = Pose(own.home_m or place.home_m, own.orientation or place.reference)
        room = _Room(own, arm.own_motion, home, arm.keep_out)
        owner = f"{task.name} on {arm.profile.name}, in the frame of its base"
        try:
            _check_gripper("home", own, arm.profile)
            _check_room(room, owner)
            _check_turns(room, guards[arm.side], owner)
        except BadInput as error:
            raise BadInput(f"{arm.side}: {error}") from None
        rooms.append((arm, room))
    return rooms


def make_check(config: TrainConfig, task: SimulatedTask) -> SceneCheck:
    """Return the check of the scene before an episode.

    Raises:
        BadInput: the classifier is absent, damaged, or made for another task or other cameras.
    """
    reset = config.reset
    if reset.check == "none":
        return no_check
    if reset.check == "pose":
        return pose_check(reset)
    classifier = RewardConfig(
        kind="classifier",
        model=reset.model,
        sha256=reset.sha256,
        threshold=reset.threshold,
        transfer=reset.transfer,
        hold=(1, 1),
    )
    sees = plugins.load("reward", "classifier")(classifier, task, renderer_of(config))

    def check(reading: Observation) -> str:
        sees.begin(reading)
        judgement: Judgement = sees(reading)
        return "" if judgement.success else "the classifier does not see a scene that is ready"

    return check


def _profile(config: TrainConfig) -> ArmProfile:
    assert config.robot is not None
    return load_robot(config.robot).with_compliance(make_task(config).config.compliance)


def _immovable(task: SimulatedTask) -> str:
    """Return why the tool of a task cannot be led to a start; empty if it can."""
    motion = task.config.motion
    if task.scene.robot != "arm":
        return f"is driven by {task.scene.robot!r}, expected one arm"
    if motion.action_mode != "pose":
        return "exerts wrenches, expected targets"
    fixed = [axis for axis in "xyz" if axis not in motion.axes]
    return f"does not move the tool along {', '.join(fixed)}" if fixed else ""
