"""The configured task of a run, its spec, its cameras, and the source of its rewards."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from serl import plugins
from serl.arm_profile import is_real
from serl.bimanual import PairConfig
from serl.camera import REAL, View
from serl.errors import BadInput
from serl.motion import check_targets
from serl.perception import PerceptionConfig
from serl.real_task import as_simulated
from serl.reward import NoReward, PoseReward, RewardedTask
from serl.runs.config import TrainConfig
from serl.runs.real_arm import lacks_success_test, needs_unmeasured_poses
from serl.shaping import ShapedTask, Shaper, TopicProgress
from serl.specs import Spec
from serl.system.settings_file import checked, merge
from serl.task import DemonstrationTask, SimulatedTask
from serl.teleop.human_motion import TIME_FACTOR, check_hand
from serl.topic_reward import TopicReward

_JUDGES = ("pose", "human", "topic")
"""Kinds of reward that need neither a model nor a learner."""


def make_task(config: TrainConfig) -> SimulatedTask:
    """Return the task by name or path, with the checked overrides of its configuration.

    A task without a simulation is wrapped by `as_simulated`.

    On a real arm, which has errors of its own, `perception` is left out.

    Raises:
        BadInput: no such task, a wrong override, or a task that sees nothing through `perception`.
    """
    kind = plugins.load("task", config.task)
    task = as_simulated(kind())
    overrides = dict(config.task_config)
    if config.observe is not None:
        overrides["observe"] = config.observe
    if is_real(config.robot):
        overrides.pop("perception", None)
    if config.reset.kind == "task":
        overrides["auto_reset"] = True
    if overrides:
        values = merge(task.config.model_dump(), overrides)
        task = as_simulated(kind(checked(type(task.config), values, "task_config.")))
    if task.config.perception != PerceptionConfig() and not hasattr(task, "perception"):
        raise BadInput(f"task_config.perception: {task.name} sees no bodies through it")
    return task


def for_recording(config: TrainConfig) -> TrainConfig:
    """Return the configuration for recording, which adds the state that defines a task, if any.

    Only tasks whose settings recordings define (`DemonstrationTask`) record more than the policy
    uses.
    """
    task = make_task(config)
    if not isinstance(task, DemonstrationTask):
        return config
    kept = merge(config.task_config, task.recording_defaults())
    return config.model_copy(update={"task_config": kept})


def declared_reward(config: TrainConfig) -> dict[str, Any]:
    """Return the settings of the reward that a task declares, if it decides while recording."""
    own: dict[str, Any] = make_task(config).training_defaults().get("reward", {})
    return own if own.get("kind") in _JUDGES or own.get("model") else {}


def make_demonstrated_task(config: TrainConfig, with_reward: bool = False) -> SimulatedTask:
    """Return the task to be demonstrated, with more time for a demonstrator who is slower.

    Args:
        config: settings of the run.
        with_reward: use the configured reward, as `make_unshaped_task`.

    Raises:
        BadInput: see `check_hand`; if `with_reward`, see `make_unshaped_task`.
    """
    task = make_task(config)
    if config.demonstrator == "human":
        check_hand(task)
        longer = {"time_limit_s": TIME_FACTOR * task.config.time_limit_s}
        given = merge(config.task_config, longer)
        config = config.model_copy(update={"task_config": given})
    return make_unshaped_task(config) if with_reward else make_task(config)


def check_runnable(task: SimulatedTask, robot: str | None) -> None:
    """Raise `BadInput` if a task without a simulation is to run on anything but a real arm."""
    if not (is_real(robot) or task.scene.simulated):
        raise BadInput(f"robot: {task.name} has no simulation: expected a real arm, --robot NAME")


def check_topics(task: SimulatedTask, pair: bool = False) -> None:
    """Raise `BadInput` unless a task's arm, or pair of arms, follows targets sent over topics.

    Args:
        task: the task.
        pair: whether two arms are driven, instead of one.
    """
    driven, config = task.scene.robot, task.config
    if pair and driven == "arm":
        raise BadInput(f"{task.name}: moves one arm, and this robot is a pair: give one of them")
    if driven != ("bimanual" if pair else "arm"):
        line = f"{task.name}: driven by {driven!r} in this process only, not over topics"
        two = "; two arms over topics are a file with the keys left and right (--robot FILE)"
        raise BadInput(line + two if driven == "bimanual" else line)
    check_targets(task.name, config.motion)
    if isinstance(config, PairConfig):
        check_targets(task.name, config.right_motion)


def check_one_tool(task: SimulatedTask) -> None:
    """Raise `BadInput` unless the task's robot is one arm, as rewards of tool poses need."""
    if (robot := task.scene.robot) != "arm":
        raise BadInput(f"{task.name}: driven by {robot!r}: expected a task of one arm and its tool")


def make_rewarded_task(config: TrainConfig) -> SimulatedTask:
    """Return the task with the configured reward; raise as its two parts below."""
    unshaped, shaper = make_unshaped_task(config), make_shaper(config)
    return unshaped if shaper is None else ShapedTask(unshaped, shaper)


def make_shaper(config: TrainConfig) -> Shaper | None:
    """Return the shaping of the reward "progress"; None for other kinds.

    Raises:
        BadInput: the time-to-go model is absent, damaged, or made for another task or observation.
    """
    if config.reward.kind != "progress":
        return None
    progress, discount = TopicProgress(config.reward), config.agent.discount
    if config.reward.progress.model is not None:
        learned, spec = plugins.load("reward", "progress"), make_spec(make_task(config))
        progress = learned(config.reward, spec, discount)
    return Shaper(progress, config.reward.progress.weight, discount)


def make_unshaped_task(config: TrainConfig) -> SimulatedTask:
    """Return the task with the configured source of success, and its unshaped reward.

    With a classifier its observations also hold `private_views`, if they are logged. On a real arm
    that does not measure the poses of the task's own reward, the default reward is a person's.

    Raises:
        BadInput: the reward model is absent, damaged, or made for another task or other cameras.
    """
    task, kind = make_task(config), config.reward.success_kind
    apart = is_real(config.robot) and needs_unmeasured_poses(task)
    if kind == "task" and not (is_real(config.robot) and lacks_success_test(task)):
        return task
    if kind in ("human", "vice", "task"):
        return RewardedTask(task, NoReward("vice" if kind == "vice" else "human"), apart=apart)
    if kind == "pose":
        check_one_tool(task)
        return RewardedTask(task, PoseReward(config.reward), apart=apart)
    if kind == "topic":
        return RewardedTask(task, TopicReward(config.reward), apart=apart)
    if kind != "classifier":
        own = plugins.load("reward", kind).create(config.reward, task)
        return RewardedTask(task, own, apart=apart)
    reward = plugins.load("reward", "classifier")(config.reward, task, renderer_of(config))
    witnesses = logged_views(config).keys() - task.config.policy_views.keys()
    views = {name: task.config.all_views[name] for name in sorted(witnesses)}
    return RewardedTask(task, reward, views, apart)


def renderer_of(config: TrainConfig) -> str:
    """Return the source of a run's images: the name of a renderer, or `REAL` for real cameras."""
    return REAL if is_real(config.robot) else make_task(config).config.renderer


def logged_views(config: TrainConfig) -> Mapping[str, View]:
    """Return the camera views in an actor's log; the learner gets only the policy's views."""
    task = make_task(config).config
    private = config.reward.success_kind == "classifier" and config.log.private_views
    return task.all_views if private else task.policy_views


def make_spec(task: SimulatedTask) -> Spec:
    """Return the spec that actor and learner agree on; needs no robot."""
    return Spec(
        task=task.name,
        observation=task.observation_spec,
        action=task.config.action_spec,
        rate_hz=task.config.rate_hz,
        motion=task.config.action_meaning,
    )
