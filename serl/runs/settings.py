"""The settings of a new run, checked before any of its files is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from serl import plugins
from serl.agents.encoder_weights import with_encoder
from serl.agents.trunk_weights import with_trunk
from serl.arm_pair import read_pair
from serl.arm_profile import is_real, load_robot
from serl.errors import BadInput
from serl.guard.checks import is_inside
from serl.log.wandb_run import check_wandb
from serl.motion import Pose
from serl.reset import ResetConfig
from serl.reward import ProgressConfig, RewardConfig
from serl.runs.assembly import check_agent
from serl.runs.config import (
    TrainConfig,
    expand_abbreviations,
    merge_layer,
    resolve,
    stage_configs,
)
from serl.runs.demonstrations import (
    check_recordings,
    check_rewards,
    demonstrated_settings,
    specs_of,
)
from serl.runs.guard_setup import guarded_arm, guarded_arms
from serl.runs.inheritance import inherit
from serl.runs.plugin_settings import without_unknown
from serl.runs.real_arm import check_trainable, tuned_settings
from serl.runs.recipes import PRACTICE, RECIPES
from serl.runs.reward_data import with_labelled
from serl.runs.scene_reset import check_given, check_reset, reset_of_arm
from serl.runs.task_setup import (
    check_runnable,
    check_topics,
    make_demonstrated_task,
    make_rewarded_task,
    make_spec,
    make_task,
)
from serl.specs import Spec
from serl.system.files import digest_of
from serl.system.settings_file import merge
from serl.task import SimulatedTask
from serl.teleop.human_motion import check_hand
from serl.teleop.novice import NoviceConfig
from serl.training.successes import LastFrames


def run_settings(
    task: str | None, file: Mapping[str, Any], overrides: Mapping[str, Any]
) -> TrainConfig:
    """Merge the defaults, the task's tuned settings, the recipe, the file and the overrides.

    Later ones win. Paths are made absolute, so that the run can be resumed from any directory.

    Raises:
        BadInput: a setting, or a file that it names, cannot be used.
    """
    config = _resolve_layers(task, file, overrides)
    specs = _check_settings(config)
    check_given(config, merge(file, overrides).get("reset", {}))
    return config.model_copy(update=_resolve_files(config, specs))


def training_discount(task: str, overrides: Mapping[str, Any]) -> float:
    """Return the discount of a training with these settings, which shapes its rewards.

    Raises:
        BadInput: a setting cannot be used.
    """
    return _resolve_layers(task, {}, overrides).agent.discount


def _resolve_layers(
    task: str | None, file: Mapping[str, Any], overrides: Mapping[str, Any]
) -> TrainConfig:
    """Merge all layers; make the paths of the task and of the robot's profile absolute."""
    name = overrides.get("recipe", file.get("recipe"))
    file = merge(RECIPES.get(name, {}) if isinstance(name, str) else {}, file)
    named: Mapping[str, Any] = {"task": task} if task else {}
    joined = merge_layer(merge_layer({}, file), overrides)
    requested = resolve(_of_task(joined), named)
    task_made = make_task(requested)
    tuned = without_unknown(tuned_settings(requested, task_made), requested)
    if requested.preset == "hard":
        tuned = merge(tuned, {"task_config": type(task_made.config).hard})
    if requested.preset == "practice" and not (name or task_made.config.policy_views):
        practice = merge(PRACTICE, type(task_made.config).practice)
        tuned = merge(tuned, without_unknown(practice, requested))
    alone = _of_arm(requested.robot)
    robot = requested.robot and plugins.absolute(requested.robot)
    kept = tuned.get("agent", {}).get("cached_features", requested.agent.cached_features)
    found = {"task": plugins.absolute(requested.task), "robot": robot}
    given = (alone, file, overrides, found, {"agent": {"cached_features": kept}})
    config = resolve(tuned, *given)
    if "return_bounds" not in tuned.get("agent", {}):
        return config
    declared, free = tuned.get("reward", {}).get("kind"), without_unknown(_UNBOUNDED, requested)
    if not _sums_to_one(config.reward, declared):
        return resolve(merge(tuned, free), *given)
    chosen = merge(file, overrides).get("agent", {})
    free = {"agent": {name: free["agent"][name] for name in free["agent"].keys() - chosen.keys()}}
    stages = dict(config.stages or {})  # a stage may have a reward of its own
    for name, each in stage_configs(config).items():
        if not _sums_to_one(each.reward, declared):
            own = merge(free, stages[name].config)
            stages[name] = stages[name].model_copy(update={"config": own})
    return config.model_copy(update={"stages": stages or config.stages})


_UNBOUNDED = {"agent": {"return_bounds": None, "layer_norm": True}}
"""Settings for rewards whose sum is not known, instead of bounds of returns."""


def _sums_to_one(reward: RewardConfig, declared: str | None) -> bool:
    """Return whether rewards sum to 1 at a success, as tuned bounds of returns assume.

    The number of a topic may be any number, and so may a reward from outside; the kind that a task
    declares fits the bounds that it declares.
    """
    if reward.kind == declared:
        return True
    if reward.kind == "topic":
        return reward.message == "Bool"
    return reward.kind in plugins.provided("reward")


def _of_arm(robot: str | None) -> dict[str, Any]:
    """Return the settings that a real arm implies, and those in its file; {} in simulation."""
    if robot is None or not is_real(robot):
        return {}
    return {"intervention": "none", "reset": reset_of_arm(robot)}  # there is no simulated human


def _check_settings(config: TrainConfig) -> list[Spec]:
    """Return the spec of the run, or of each of its stages; raise `BadInput` if it cannot run."""
    check_wandb(config.log.wandb)
    if config.learner.imitate_successes and config.reward.kind == "vice":
        raise BadInput(
            "learner.imitate_successes: not with --reward.kind vice, which needs failures"
        )
    for each in (config, *stage_configs(config).values()):
        check_runnable(make_task(each), each.robot)
        if each.robot is not None:
            check_topics(make_task(each), pair=read_pair(each.robot) is not None)
        _check_expert(each, make_demonstrated_task(each))
        if isinstance(each.human, NoviceConfig):
            check_hand(make_task(each))
        rewarded = make_rewarded_task(each)
        _check_homing(each, rewarded)
        if each.robot is not None:
            _check_arm(each)
        check_reset(each)
    stages = list(stage_configs(config).values()) or [config]
    specs = [make_spec(make_task(stage)) for stage in stages]
    for stage, spec in zip(stages, specs, strict=True):
        check_recordings(stage.demo_paths, *specs_of(stage))
        check_rewards(stage)
        _check_positives(stage, spec)
        check_agent(stage, spec)
    if config.vice.positives and all(stage.reward.kind != "vice" for stage in stages):
        raise BadInput("vice.positives: are for --reward.kind vice alone")
    return specs


def _resolve_files(config: TrainConfig, specs: Sequence[Spec]) -> dict[str, Any]:
    """Return the settings that depend on files, with absolute paths and digests of the files.

    In a run with stages, each stage resolves `init_from` itself, as the stage uses it.
    """
    positives = tuple(each.resolve() for each in config.vice.positives)
    defined = _demonstrated(config)
    origin = config.init_from
    if origin.run is not None and config.stages:
        origin = origin.model_copy(update={"run": origin.run.resolve()})
    elif origin.run is not None:
        origin = inherit(config.model_copy(update=defined)).origin
    cameras = [spec.observation.images for spec in specs]
    trunk = with_trunk(config.agent)
    return {
        "demo_paths": tuple(each.resolve() for each in config.demo_paths),
        "reward": config.reward.model_copy(update=_pin_reward(config.reward)),
        "reset": config.reset.model_copy(update=_pin_model(config.reset)),
        "vice": config.vice.model_copy(update={"positives": positives}),
        "init_from": origin,
        "agent": with_encoder(trunk, cameras, origin.loads("encoder"), real=is_real(config.robot)),
        **defined,
    }


def _demonstrated(config: TrainConfig) -> dict[str, Any]:
    """Return the task settings that demonstrations define; with stages, the stages' settings."""
    if not config.stages:
        return {"task_config": merge(config.task_config, demonstrated_settings(config))}
    stages = {
        name: stage.model_copy(update={"config": _resolve_stage(stage.config, each)})
        for (name, stage), each in zip(
            config.stages.items(), stage_configs(config).values(), strict=True
        )
    }
    return {"stages": stages}


def _check_expert(config: TrainConfig, task: SimulatedTask) -> None:
    """Raise `BadInput` where a scripted expert is needed that the task lacks, or cannot begin."""
    if config.curriculum.start < 1.0 and not getattr(task, "is_divisible", True):
        raise BadInput(
            f"curriculum.start: {task.name} begins anew where a script ends: expected 1.0"
        )
    demonstrates = config.demos and not (config.demo_paths or is_real(config.robot))
    corrects = config.intervention in ("scripted", "novice", "evaluator")
    if getattr(task, "has_expert", True):
        return
    if config.curriculum.start < 1.0:
        raise BadInput(f"curriculum.start: {task.name} has no scripted expert, which it needs: 1.0")
    if demonstrates or corrects:
        task.expert(dict, 0)  # raises with the remedy


def _check_homing(config: TrainConfig, task: SimulatedTask) -> None:
    """Raise `BadInput` if `actor.home_every` is set for a robot that cannot go home by itself."""
    driven = task.scene.robot
    if not config.actor.home_every:
        return
    if config.robot is not None:
        _check_joint_move(config, config.robot)
    elif not hasattr(plugins.load("sim", driven), "home"):
        raise BadInput(f"actor.home_every: {task.name}: {driven!r} does not go home: expected 0")
    elif driven == "arm" and task.config.motion.action_mode == "wrench":
        raise BadInput(f"actor.home_every: {task.name} exerts wrenches: expected 0, joints stay")


def _check_joint_move(config: TrainConfig, robot: str) -> None:
    """Raise `BadInput` unless a guard can move the joints of this arm home, into the task's box."""
    key = "actor.home_every"
    if not is_real(robot):
        raise BadInput(f"{key}: a simulated arm needs a run without a guard: expected no robot")
    if read_pair(robot) is not None:
        raise BadInput(f"{key}: two arms: expected 0, their joints stay")
    profile = load_robot(robot)
    if profile.trajectory is None:
        raise BadInput(f"{key}: arm {profile.name}: its profile names no trajectory: expected 0")
    _, guard = guarded_arm(config, robot)
    if not guard.home_rad:
        raise BadInput(f"{key}: arm {profile.name}: home_rad: a joint is near its limit there")
    if (place := profile.workspace) is None:
        raise BadInput(f"{key}: arm {profile.name}: it has no taught workspace: expected 0")
    if not is_inside(Pose(place.home_m, place.reference), guard):
        raise BadInput(
            f"{key}: arm {profile.name}: its home {place.home_m} is outside the box of "
            f"{config.task}: expected 0"
        )


def _check_positives(config: TrainConfig, spec: Spec) -> None:
    """Check that a "vice" reward can be learned from `vice.positives`; raise as `with_labelled`."""
    if config.reward.kind == "vice":
        none = LastFrames(spec.observation, 1).successes()
        with_labelled(none, config.vice.positives, make_task(config).config.policy_views)


def _check_arm(config: TrainConfig) -> None:
    """Raise `BadInput` unless the run's arm can be guarded, and if real, be trained on."""
    assert config.robot is not None
    if is_real(config.robot):
        if read_pair(config.robot) is None:
            load_robot(config.robot)  # first, so that an unknown arm is reported as unknown
        check_trainable(config, make_task(config))
    guarded_arms(config, config.robot, config.namespace)


def _of_task(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the given settings on which the task's tuned settings depend."""
    agent, reward = settings.get("agent", {}), settings.get("reward", {})
    if isinstance(agent, Mapping):  # else validation rejects it
        agent = {name: agent[name] for name in _TUNED_FOR_AGENT if name in agent}
        if settings.get("stages") and agent.get("cached_features") is None:
            agent["cached_features"] = False  # the observations of stages may differ
    if isinstance(reward, Mapping):
        reward = {"kind": "vice"} if reward.get("kind") == "vice" else {}
    own = {name: settings[name] for name in _TUNED_FOR if name in settings}
    return {**own, "agent": agent, "reward": reward}


_TUNED_FOR = (
    "task",
    "task_config",
    "preset",
    "observe",
    "robot",
    "init_from",
    "intervention",
    "demos",
    "demo_paths",
    "vice",
    "feedback",
)
_TUNED_FOR_AGENT = (
    "algorithm",
    "cached_features",
    "encoder",
    "encoder_weights",
    "encoder_channels",
    "latent",
    "state_latent",
    "frames",
)


def _pin_reward(reward: RewardConfig) -> dict[str, Any]:
    """Return the absolute paths and the digests of the files of a reward."""
    progress = reward.progress.model_copy(update=_pin_model(reward.progress))
    return {**_pin_model(reward), "progress": progress}


def _pin_model(config: RewardConfig | ResetConfig | ProgressConfig) -> dict[str, Any]:
    """Return the absolute path and the digest of a model's file; {} without one."""
    if config.model is None:
        return {}
    model = config.model.resolve()
    return {"model": model, "sha256": digest_of(model)}


def _resolve_stage(own: Mapping[str, Any], stage: TrainConfig) -> dict[str, Any]:
    """Return a stage's own settings, with its files resolved as for a separate run."""
    found = _resolve_files(stage, [make_spec(make_task(stage))])
    found["task"] = plugins.absolute(stage.task)
    settled = stage.model_copy(update=found).model_dump(mode="json")
    return merge(expand_abbreviations(own), _changes(stage.model_dump(mode="json"), settled))


def _changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Return the leaves of settings that were changed or added."""
    changed: dict[str, Any] = {}
    for name, value in after.items():
        old = before.get(name)
        if isinstance(value, Mapping) and isinstance(old, Mapping):
            if inner := _changes(old, value):
                changed[name] = inner
        elif name not in before or value != old:
            changed[name] = value
    return changed
