"""The configuration of a training run, merged from layers.

Defaults, the task's tuned settings, a file, and the command line; later ones win.

Unknown keys are errors; each error is one line that names the key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal, Self, get_args

from pydantic import (
    BaseModel,
    Field,
    SerializeAsAny,
    ValidationInfo,
    field_validator,
    model_validator,
)

from serl.agent import AgentConfig
from serl.agents.config import FeedbackConfig, SACConfig, VICEConfig
from serl.arm_profile import is_real
from serl.errors import BadInput
from serl.intervention import PersonConfig
from serl.log.episode_log import LogConfig
from serl.plugins import PluginName
from serl.reset import ResetConfig
from serl.reward import RewardConfig
from serl.runs.graph_file import Namespace
from serl.runs.network import NetworkConfig, RosConfig
from serl.runs.plugin_settings import CHOICES
from serl.system.files import expand_home
from serl.system.settings_file import HomePath, checked, merge, nest, parse_yaml
from serl.teleop.config import TeleopConfig
from serl.teleop.scripted import ScriptedHumanConfig
from serl.training.actor import ActorConfig
from serl.training.curriculum import CurriculumConfig
from serl.training.learner import LearnerConfig
from serl.training.stages import Stage, StageName
from serl.transport import TransportConfig
from serl.types import FrozenModel

_STATISTICS_STEPS = 500
Part = Literal["actor", "critics", "encoder", "normaliser"]


class InitFrom(FrozenModel):
    """Another run to start from: its folder, and the parts and data to take over.

    In a configuration the path alone stands for these settings with their defaults.

    Attributes:
        run: folder of the other run; None to start from nothing.
        load: parts to load; None for all that fit, the actor at least. The normaliser is the
            scale of observations: without it this run's demonstrations give a new one.
        data: recorded data of the other run that enters replay: none, its successful episodes as
            demonstrations, or all its online steps beside those of this run.
    """

    run: HomePath | None = None
    load: tuple[Part, ...] | None = None
    data: Literal["none", "successes", "steps"] = "none"

    @model_validator(mode="before")
    @classmethod
    def _of_path(cls, value: Any) -> Any:
        return {"run": value} if value is None or isinstance(value, str | Path) else value

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.run is None and (self.load or self.data != "none"):
            raise ValueError("run: expected the folder of a run to load or take data from")
        return self

    def loads(self, part: Part) -> bool:
        """Return whether a part is to be loaded; without `load`, every part is, if it fits."""
        return self.run is not None and (self.load is None or part in self.load)


PRESETS: Mapping[str, Mapping[str, Any]] = {
    "none": {},
    "hard": {
        "demonstrator": "human",
        "intervention": "novice",
        "task_config": {
            "perception": {"bias_m": 0.0025, "bias_rad": 0.035, "delay_s": 0.1, "dropout": 0.05}
        },
    },
    "practice": {
        "demos": 10,
        "demonstrator": "human",
        "intervention": "none",
        "baseline": "clone",
    },
}
"""Settings by the name of a preset.

"hard" has a lab's conditions: simulated people, and poses with a camera's errors. "practice" shows
what a policy learns alone from few demonstrations of a simulated person, beside a clone of these.
"""

DATA_ONLY = "data only"
"""Validation context of a configuration that must not run plug-in code; see `RunFolder.open`."""


class TrainConfig(FrozenModel):
    """The settings of a training run.

    Attributes:
        task: name of a task, or path of a .py or .yaml file that defines one.
        task_config: overrides of the task's own configuration.
        preset: a named set of settings (see `PRESETS`); settings given explicitly override it.
            "hard" trains under a lab's conditions: demonstrations and takeovers of simulated
            people, and poses with a camera's errors.
            "practice" trains without a human from 10 demonstrations of a simulated person, and
            compares the result with a clone of them. For policies that observe the state it also
            has the settings of `serl.runs.recipes.PRACTICE` and the task's own `practice`.
        stages: tasks by name that are trained in turns, in this order, each from the scene in which
            the one before it succeeded; see `serl.training.stages`. None for a single task.
        recipe: settings of a published agent that replace the task's tuned ones; see
            `serl.runs.recipes`.
        observe: observations of the policy: the state of the scene, or cameras and the arm's own
            state; None for the task's default.
        reward: source of rewards and successes in training; the choice of the checkpoint and the
            final trials use the ground truth.
        reset: how arm and scene return to a start between two episodes.
        vice: settings of the learned reward of the kind "vice".
        feedback: settings of an addition to the reward, learned from a person's evaluations.
        seed: seed of all random numbers in the run.
        steps: online environment steps, of all actors together; 0 to train on demonstrations only,
            by `learner.warm_up` and without an actor.
        actors: number of actors.
        robot: "sim" for the simulated arm as a ROS 2 node behind a guard, in real time; a profile,
            or a .py or .yaml file with one, for a real arm behind its guard; a .yaml file with the
            keys left and right for two arms; None for a simulated arm in the process of the actor,
            as fast as possible. The path is relative to the working directory.
        namespace: namespace of a real arm's own topics, from the root; "/" for the root itself.
        demos: number of demonstrations that are recorded at the start.
        demonstrator: source of these demonstrations: the scripted "expert", or a simulated "human",
            which knows as much and moves like a person (see `serl.teleop.human_motion`), within
            three times the time limit.
        demo_paths: recordings to use instead of new demonstrations; `demos` accepts them, too.
        init_from: another run to start from, and the parts and data to take over.
        curriculum: whether episodes begin nearer to the goal at first.
        intervention: the simulated person that may take over during training: "scripted", with
            the exact state; "novice", with a late and wrong view of it; "evaluator", which only
            rewards and penalises (see `feedback`); "none"; the name of one in an installed package;
            or the path of a .py file.
        human: settings of that person.
        transport: transport of steps to the learner and of weights to the actors.
        trials: unassisted trials of the final evaluation, on the run's own arm if it is real; 0
            trials are allowed on a real arm only.
        required_success_rate: share of successful trials for exit code 0; None, or no trials, for
            no requirement.
        trial_actions: actions of all trials: the mode of the policy, or, in simulation only,
            samples as in training.
        selection_trials: trials per checkpoint when the best of the last ones is chosen.
        selection_checkpoints: number of last checkpoints that are compared, besides the one after
            the warm-up.
        arm_selection_trials: largest number of trials per checkpoint when a real arm compares the
            last ones; fewer where one is clearly worse. 0 for the newest, without a comparison.
        baseline: policy with which the final trials are repeated, for comparison: "clone" for a
            clone of the demonstrations (see `serl.runs.baseline`), or "none".
    """

    task: str = "pick_cube"
    task_config: dict[str, Any] = Field({})
    preset: Literal["none", "hard", "practice"] = "none"
    stages: dict[StageName, Stage] | None = None
    recipe: Literal["hil_serl"] | None = None
    observe: Literal["state", "pixels"] | None = None
    reward: SerializeAsAny[RewardConfig] = RewardConfig()
    reset: ResetConfig = ResetConfig()
    vice: VICEConfig = VICEConfig()
    feedback: FeedbackConfig = FeedbackConfig()
    seed: int = Field(0, ge=0, lt=2**32)
    steps: int = Field(15_000, ge=0)
    actors: int = Field(1, ge=1, le=16)
    robot: str | None = None
    namespace: Namespace = "/"
    demos: int = Field(20, ge=0, le=100_000)
    demonstrator: Literal["expert", "human"] = "expert"
    demo_paths: tuple[HomePath, ...] = ()
    init_from: InitFrom = InitFrom()
    intervention: PluginName = "scripted"
    trials: int = Field(50, ge=0, le=100_000)
    required_success_rate: float | None = Field(None, ge=0, le=1)
    trial_actions: Literal["mode", "sampled"] = "mode"
    selection_trials: int = Field(30, ge=1, le=100_000)
    selection_checkpoints: int = Field(5, ge=1, le=1000)
    arm_selection_trials: int = Field(0, ge=0, le=1000)
    baseline: Literal["none", "clone"] = "none"
    agent: SerializeAsAny[AgentConfig] = SACConfig()
    learner: LearnerConfig = LearnerConfig()
    actor: ActorConfig = ActorConfig()
    curriculum: CurriculumConfig = CurriculumConfig()
    human: SerializeAsAny[PersonConfig] = Field(
        default_factory=ScriptedHumanConfig, validate_default=True
    )
    transport: SerializeAsAny[TransportConfig] = TransportConfig()
    teleop: TeleopConfig = TeleopConfig()
    network: NetworkConfig = NetworkConfig()
    ros: RosConfig = RosConfig()
    log: LogConfig = LogConfig()

    @property
    def first_update_at(self) -> int:
        """The number of online steps before the first update.

        Without demonstrations at least 500, from which the scale of observations is computed.
        """
        origin = self.init_from
        recorded = self.demos or self.demo_paths or origin.data != "none"
        demonstrated = recorded or origin.loads("normaliser")
        return max(self.learner.starts_at, 0 if demonstrated else _STATISTICS_STEPS)

    @field_validator("robot", mode="before")
    @classmethod
    def _refuse_settings(cls, value: Any) -> Any:
        """Say where two arms are described, to a user who describes them here."""
        if isinstance(value, Mapping):
            raise ValueError(
                "expected the name of an arm, or a file: two arms are a file of their own, with "
                "the keys left and right"
            )
        return value

    @field_validator("task", "robot")
    @classmethod
    def _expand(cls, value: str | None) -> str | None:
        return value and expand_home(value)

    @field_validator("agent", "reward", "human", "transport", mode="before")
    @classmethod
    def _of_plugin(cls, value: Any, info: ValidationInfo) -> Any:
        """Validate the settings of a plug-in with the plug-in's own model.

        With the context `DATA_ONLY`, external plug-ins are not loaded, as that runs their code.
        """
        assert info.field_name is not None
        choice = CHOICES[info.field_name]
        read = choice.validate_unloaded if info.context == DATA_ONLY else choice.validate
        return read(value, info.data)

    @model_validator(mode="after")
    def _check(self) -> Self:
        for network in self.agent.frozen:
            pretrained = network == "encoder" and self.agent.encoder_weights not in (None, "auto")
            if not (pretrained or self.init_from.loads(network)):
                raise ValueError(
                    f"agent.frozen: nothing loads the {network} (init_from.load), which would stay "
                    "as chance made it"
                )
        if self.reward.kind == "vice" and not (
            self.demos or self.demo_paths or self.vice.positives
        ):
            raise ValueError("reward vice: expected demonstrations, or vice.positives")
        if self.reward.kind == "vice" and self.agent.cached_features:
            raise ValueError(
                "reward vice: sees images; agent.cached_features, which keeps none, has to be false"
            )
        if self.feedback.weight:
            self._check_feedback()
        if self.reset.kind not in (None, "task") and self.task_config.get("auto_reset"):
            raise ValueError(f"reset.kind: {self.reset.kind}, but task_config.auto_reset is true")
        if self.stages:
            _check_graph(self.stages)
        if self.stages is not None and not self.stages:
            raise ValueError("stages: expected at least one, or null")
        if self.steps == 0 and not (self.learner.warm_up or self.init_from.run):
            raise ValueError("steps: expected at least 1, or learner.warm_up, or init_from")
        if self.baseline == "clone" and (is_real(self.robot) or self.stages):
            raise ValueError("baseline clone: is tried in a simulation only, and without stages")
        if self.baseline == "clone" and not (self.demos or self.demo_paths):
            raise ValueError("baseline clone: expected demonstrations, by demos or demo_paths")
        if self.trials == 0 and not is_real(self.robot):
            raise ValueError(
                "trials: expected at least 1; only a training on a real arm may have 0"
            )
        return self

    def _check_feedback(self) -> None:
        """Raise `ValueError` if a reward learned from evaluations contradicts other settings."""
        if self.reward.kind == "vice":
            raise ValueError("feedback.weight: reward vice replaces all rewards: expected 0")
        if self.agent.algorithm == "bc":
            raise ValueError("feedback.weight: bc learns from no reward: expected 0")
        if self.agent.cached_features:
            raise ValueError(
                "feedback.weight: sees images; agent.cached_features, which keeps none, has to be "
                "false"
            )
        if self.learner.n_step > 1:
            raise ValueError(
                "feedback.weight: adds to the rewards of single steps: expected learner.n_step 1, "
                f"not {self.learner.n_step}"
            )


def _check_graph(stages: Mapping[str, Stage]) -> None:
    """Check that each stage leads to known stages, and the first stage to all of them."""
    for name, stage in stages.items():
        for field, other in (("then", stage.then), ("otherwise", stage.otherwise)):
            if other is not None and other not in stages:
                known = ", ".join(stages)
                raise ValueError(f"stages.{name}.{field}: {other!r} is none of {known}")
    reached: set[str] = set()
    ahead = [next(iter(stages))]
    while ahead:
        name = ahead.pop()
        if name not in reached:
            reached.add(name)
            ahead += [stages[name].then, stages[name].otherwise or stages[name].then]
    if lost := [name for name in stages if name not in reached]:
        raise ValueError(f"stages.{lost[0]}: no other stage leads to it from {next(iter(stages))}")


def stage_configs(config: TrainConfig) -> dict[str, TrainConfig]:
    """Return the settings of each stage's own run, by the name of the stage."""
    shared = config.model_dump(exclude={"stages"})
    if is_real(config.robot) and config.reset.kind is None:
        shared["reset"]["kind"] = "task"  # each begins where the one before it succeeded
    return {name: resolve(shared, stage.config) for name, stage in (config.stages or {}).items()}


def resolve(*layers: Mapping[str, Any]) -> TrainConfig:
    """Merge layers, later ones winning, into a checked configuration.

    Settings of a preset come right below those of the layer that names it; a later layer that names
    another preset replaces it.
    """
    merged: dict[str, Any] = {}
    named = [layer["preset"] for layer in layers if "preset" in layer]
    for layer in layers:
        if "preset" in layer and layer["preset"] == named[-1]:
            merged = merge(merged, PRESETS.get(str(named[-1]), {}))
        merged = merge_layer(merged, layer)
    return checked(TrainConfig, merged)


def merge_layer(below: Mapping[str, Any], layer: Mapping[str, Any]) -> dict[str, Any]:
    """Merge a layer into those below it, with its abbreviations expanded.

    A number of demonstrations replaces recordings of the layers below.
    """
    layer = expand_abbreviations(layer)
    if "demos" in layer and "demo_paths" not in layer:
        below = {name: value for name, value in below.items() if name != "demo_paths"}
    return merge(below, layer)


def expand_abbreviations(layer: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a layer with its abbreviations expanded, so that other layers can be merged into it.

    A path given as `init_from` becomes `init_from.run`; paths given as `demos` become `demo_paths`.
    """
    origin, demos = layer.get("init_from"), layer.get("demos")
    if isinstance(origin, str | Path):
        layer = {**layer, "init_from": {"run": origin}}
    paths = [demos] if isinstance(demos, str) else demos
    if isinstance(paths, list | tuple) and all(isinstance(path, str | Path) for path in paths):
        layer = {**{k: v for k, v in layer.items() if k != "demos"}, "demo_paths": paths}
    return layer


def parse_overrides(words: Sequence[str]) -> dict[str, Any]:
    """Return `--agent.utd 8` or `--agent.utd=8` as nested values; values are read as YAML.

    A setting that can be true, such as `--log.wandb`, is true if no value follows.
    """
    overrides: dict[str, Any] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if not word.startswith("--") or len(word) == 2:
            raise BadInput(f"unexpected argument {word!r}: overrides look like --agent.utd 8")
        name, equals, text = word[2:].partition("=")
        if not equals and is_bare(name, rest):
            text = "true"
        elif not equals:
            if not rest:
                raise BadInput(f"{word}: expected a value")
            text = rest.pop(0)
        leaf = nest(name.replace("-", "_"), parse_yaml(text, word))
        overrides = merge(overrides, expand_abbreviations(leaf))
    return overrides


def is_bare(name: str, rest: Sequence[str]) -> bool:
    """Return whether a setting that can be true has no value: `rest` is empty or an option."""
    return _can_be_true(name.replace("-", "_")) and not (rest and not rest[0].startswith("--"))


@cache
def _can_be_true(name: str) -> bool:
    """Return whether a setting with this dotted name is a boolean, or a boolean or a choice."""
    config: Any = TrainConfig()
    *groups, last = name.split(".")
    for group in groups:
        config = getattr(config, group, None)
    fields = type(config).model_fields if isinstance(config, BaseModel) else {}
    kind = fields[last].annotation if last in fields else None
    return bool in (kind, *get_args(kind))
