"""Requirements of a real arm on a run: no simulation places its scene or knows the ground truth."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from serl.agents.encoder_weights import is_pretrained_on
from serl.arm_profile import ArmProfile, is_real, load_robot, write_robot
from serl.camera import Crop
from serl.errors import BadInput, CorruptData
from serl.guard.config import limits_of
from serl.motion import Motion
from serl.reward import ToolPlace
from serl.robot import reading_spec
from serl.runs.config import TrainConfig
from serl.runs.folder import RunFolder
from serl.system.files import read_bounded, write_atomic
from serl.system.json_fields import MAX_JSON_BYTES, dump_object, parse_object
from serl.system.settings_file import merge
from serl.task import FeatureTunedTask, SimulatedTask
from serl.types import Observation
from serl.workspace import CellCamera

NO_REWARD = "this arm has no reward: a person labels success or failure"
_LEAST_M = 0.02


def observed_bodies(task: SimulatedTask) -> tuple[str, ...]:
    """Return the tracked bodies whose poses enter the policy's observation.

    On a real arm an object tracker has to publish these poses, as the topics `<name>_pose`.
    """
    shown = _SceneReading(task)
    task.begin(shown.reading)
    task.observation(shown.reading)
    return tuple(name for name in task.scene.tracked if f"{name}_pose" in shown.state.read)


def needs_unmeasured_poses(task: SimulatedTask) -> bool:
    """Return whether the task's success and reset need poses that a real arm does not measure."""
    return observed_bodies(task) != task.scene.tracked


def lacks_success_test(task: SimulatedTask) -> bool:
    """Return whether the task cannot decide on success by the measurements of a real arm."""
    return needs_unmeasured_poses(task) or not getattr(task, "decides_success", True)


def check_trainable(config: TrainConfig, task: SimulatedTask) -> None:
    """Raise `BadInput`, naming the setting, if training on a real arm needs a simulation."""
    if config.intervention != "none":
        raise BadInput(
            f"intervention: {config.intervention}: no simulated human takes over on a real arm; "
            "people do, by their devices or the console: none"
        )
    if config.demos and not config.demo_paths:
        raise BadInput(
            f"demos: {config.demos}: no script demonstrates on a real arm: give --demos "
            f"FOLDER, recorded by a person (serl record {config.task} --robot NAME), or --demos 0"
        )
    if config.curriculum.start < 1.0:
        raise BadInput("curriculum.start: only a simulation is placed near the goal: 1.0")
    if config.trial_actions != "mode":
        raise BadInput("trial_actions: trials on a real arm take the mode of the policy: mode")
    if not getattr(task, "decides_success", True) and config.reward.success_kind == "task":
        raise BadInput(
            f"reward.kind: task: {task.name} does not decide on success itself: expected "
            "classifier, pose, human, vice or topic"
        )
    poses = ", ".join(f"{name}_pose" for name in task.scene.tracked)
    if needs_unmeasured_poses(task) and config.reward.success_kind == "task":
        raise BadInput(
            f"reward.kind: task: {task.name} judges itself by {poses}, which nothing measures on "
            "a real arm with this policy: expected classifier, pose, human, vice or topic"
        )
    if needs_unmeasured_poses(task) and task.config.auto_reset:
        raise BadInput(
            f"task_config.auto_reset: {task.name} resets itself by {poses}, which nothing measures "
            "on a real arm with this policy: false, and a person does"
        )


def tuned_settings(config: TrainConfig, task: SimulatedTask) -> Mapping[str, Any]:
    """Return the task's tuned settings; on a real arm without the tool's place at a success.

    That place is measured at a simulated table, as is the task's box.

    Raises:
        BadInput: `init_from.run` is not a run.
    """
    tuned = dict(task.training_defaults())
    if _keeps_features(config, task):
        small = config.agent.encoder == "small"
        own = task.feature_defaults() if small and isinstance(task, FeatureTunedTask) else {}
        tuned = merge(merge(tuned, own), {"agent": {"cached_features": True}})
    if is_real(config.robot) and task.scene.simulated and "reward" in tuned:
        own = tuned["reward"].items()
        tuned["reward"] = {name: to for name, to in own if name not in ToolPlace.model_fields}
    return tuned


def _keeps_features(config: TrainConfig, task: SimulatedTask) -> bool:
    """Return whether replay stores features of a pretrained encoder instead of images.

    Unless set explicitly, not on a real arm, whose cameras the encoder was not trained on, nor for
    "vice" or `feedback`, which need images, nor in stages, whose observations may differ.
    """
    agent, origin = config.agent, config.init_from
    if agent.cached_features is not None:
        return agent.cached_features
    needs_images = config.reward.kind == "vice" or config.feedback.weight
    if is_real(config.robot) or needs_images or config.stages:
        return False
    if not task.config.policy_views:
        return False
    if origin.run is not None and origin.loads("encoder"):
        return bool(RunFolder.open(origin.run).config.agent.cached_features)
    fresh = agent.encoder_weights == "auto" and isinstance(task, FeatureTunedTask)
    return fresh and is_pretrained_on(task, agent)


def describe_classifier_bounds(config: TrainConfig, task: SimulatedTask) -> str:
    """Return a message with the tool positions at which a real arm's classifier is queried.

    Empty in simulation, and for other kinds of rewards.
    """
    if not is_real(config.robot) or config.reward.success_kind != "classifier":
        return ""
    if (place := config.reward.place) != ToolPlace():
        return (
            f"the classifier is queried where the tool is {place}, in the base frame of this arm: "
            "elsewhere nothing is a success"
        )
    tuned = task.training_defaults() if task.scene.simulated else {}
    own = tuned.get("reward", {}).keys() & ToolPlace.model_fields.keys()
    simulated = f" ({task.name} has a place of a simulated table)" if own else ""
    return (
        f"the classifier is queried wherever the tool is{simulated}: reward.tool_low_m and "
        "tool_high_m, in the base frame of this arm, must contain it"
    )


def check_place(config: TrainConfig, profile: ArmProfile) -> None:
    """Raise `BadInput` unless a real arm's workspace was taught or its box is set explicitly.

    The default box of a task does not count, as it is that of a simulated table.
    """
    given = config.task_config.get("motion", {})
    if profile.workspace is None and not {"box_low_m", "box_high_m"} <= given.keys():
        raise BadInput(
            f"arm {profile.name}: it has no workspace yet: serl setup {profile.name}, "
            "or give --task_config.motion.box_low_m and box_high_m"
        )


def within_workspace(motion: Motion, profile: ArmProfile) -> Motion:
    """Return the motion within the arm's limits and the box of its taught workspace.

    Raises:
        BadInput: the task's box and the workspace share less than 0.02 m along an axis.
    """
    motion = motion.model_copy(update={"limits": limits_of(motion.limits, profile)})
    if (place := profile.workspace) is None:
        return motion
    low = tuple(map(max, motion.box_low_m, place.low_m))
    high = tuple(map(min, motion.box_high_m, place.high_m))
    for axis, least, greatest, taught in zip("xyz", low, high, place.low_m, strict=True):
        if greatest - least < _LEAST_M:
            raise BadInput(
                f"workspace of {profile.name}: along {axis} it begins at {taught:g} m and shares "
                f"under {_LEAST_M:g} m with the task's motion.box_low_m to motion.box_high_m"
            )
    return motion.model_copy(update={"box_low_m": low, "box_high_m": high})


class _ReadDict(dict[str, Any]):
    """A dict that records which of its keys were read."""

    def __init__(self, values: dict[str, Any]) -> None:
        super().__init__(values)
        self.read: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        self.read.add(name)
        return super().__getitem__(name)


class _SceneReading:
    """A reading of an arm at rest in a scene, which records the state arrays that a task reads."""

    def __init__(self, task: SimulatedTask) -> None:
        scene, views = task.scene, task.config.all_views
        spec = reading_spec(7, scene.tracked, views, scene.bases)
        self.state = _ReadDict(
            {name: np.zeros(each.shape, np.float32) for name, each in spec.state.items()}
        )
        for name, values in self.state.items():
            if name.endswith("_pose"):
                values[6] = 1.0
        images = {name: np.zeros(each.shape, np.uint8) for name, each in spec.images.items()}
        self.reading = Observation(self.state, images, {"robot": 0.0})


CameraSettings = dict[str, dict[str, str]]
"""Settings of pictures by camera and name, as text."""

CAMERAS = "cameras.json"
"""Name of the file of these settings, in the folder of a run or a recording."""


def keep_camera_settings(folder: Path, found: CameraSettings) -> None:
    """Add settings of the cameras to those in the folder of a run or a recording.

    Settings of an earlier start stay: its episodes were recorded with them.
    """
    try:
        before = parse_object(read_bounded(folder / CAMERAS, MAX_JSON_BYTES), CAMERAS)
    except (OSError, CorruptData):  # none yet, or of no use
        before = {}
    kept = {name: old for name, old in before.items() if isinstance(old, dict)}
    added = {name: {**settings, **kept.get(name, {})} for name, settings in found.items()}
    write_atomic(folder / CAMERAS, dump_object({**kept, **added}))


def camera_differences(found: CameraSettings, folder: Path) -> list[str]:
    """Return how cameras differ from those of a recording, one line each; empty if it has none.

    Only settings that are known on both sides are compared.
    """
    path = folder / CAMERAS
    if not path.is_file():
        return []
    try:
        before = parse_object(read_bounded(path, MAX_JSON_BYTES), CAMERAS)
    except (OSError, CorruptData) as error:
        return [f"{folder}: the settings of its cameras cannot be read: {error}"]
    lines = []
    for name, settings in found.items():
        old = before.get(name)
        known = old if isinstance(old, dict) else {}
        differ = [
            f"{key} {value}, not {known[key]!s:.80}"
            for key, value in settings.items()
            if key in known and known[key] != value
        ]
        if differ:
            lines.append(f"camera {name} differs from {folder}: {'; '.join(differ)}")
    return lines


def crops_of(robot: str) -> dict[str, Crop]:
    """Return the crops of the cameras in a real arm's file; empty for an arm without one."""
    if not robot.endswith(".yaml"):
        return {}
    return {name: camera.crop for name, camera in load_robot(robot).cameras.items()}


def write_crop(robot: str, camera: str, crop: Crop) -> str:
    """Write the crop of a camera's picture to the arm's file; return a message.

    Raises:
        BadInput: the arm has no such file, or the file no such camera.
    """
    if not robot.endswith(".yaml"):
        raise BadInput("a crop is written to the file of an arm, which `serl setup` makes")
    profile = load_robot(robot)
    if camera not in profile.cameras:
        known = ", ".join(profile.cameras) or "none: `serl setup` adds them"
        raise BadInput(f"{robot}: camera {camera[:40]!r}: expected one of its cameras: {known}")
    shares = tuple(round(share, 3) for share in crop)
    entry = CellCamera.model_validate({**profile.cameras[camera].model_dump(), "crop": shares})
    cameras = {**profile.cameras, camera: entry}
    write_robot(Path(robot), profile.model_copy(update={"cameras": cameras}))
    return f"{robot}: cameras.{camera}.crop is {list(shares)} from the next start"
