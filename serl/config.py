"""The configuration of a training run, merged from layers.

Defaults, the task's tuned settings, a file, and the command line; later ones win.

Unknown keys are errors; each error is one line that names the key.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar, get_args

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializeAsAny,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from serl.actor import ActorConfig
from serl.agents.config import AgentConfig, SACConfig, VICEConfig
from serl.arm_profile import is_real
from serl.curriculum import CurriculumConfig
from serl.errors import BadInput, CorruptData
from serl.fields import short
from serl.files import read_bounded
from serl.intervention import PersonConfig
from serl.learner import LearnerConfig
from serl.merging import merge
from serl.network import NetworkConfig
from serl.origin import OriginConfig
from serl.plugin_settings import CHOICES, unknown_setting
from serl.plugins import PluginName
from serl.recording import LogConfig
from serl.reward import RewardConfig
from serl.teleop.config import TeleopConfig
from serl.teleop.scripted import ScriptedHumanConfig
from serl.transport import TransportConfig

Model = TypeVar("Model", bound=BaseModel)

StageName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,31}$")]
MAX_YAML_BYTES = 64 << 10


DATA_ONLY = "data only"
"""Validation context of a configuration that must execute nothing; see `RunFolder.open`."""


class Stage(BaseModel):
    """One task of several that reset each other.

    Attributes:
        then: the stage that begins where this one has succeeded.
        tries: failures in a row after which another begins all the same, after its own reset:
        otherwise: that one; None for the one that follows on a success.
        config: settings that differ from those of the run, such as the task's direction.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    then: str
    tries: int = Field(3, ge=1, le=1000)
    otherwise: str | None = None
    config: dict[str, Any] = {}


class TrainConfig(BaseModel):
    """A training run.

    Attributes:
        task: name of a task, or path of a .py file that defines one.
        task_config: overrides of the task's own configuration.
        stages: tasks that are trained in turns, each from where the one before it has succeeded, by
            name, the first one first; see `serl.stages`. None for one task alone.
        observe: a policy sees the state of the scene, or cameras and the arm's own state; None for
            what the task says.
        reward: who says what is a success in training; the choice of the checkpoint and the final
            trials ask the ground truth.
        vice: how a reward of the kind "vice" is learned.
        seed: of everything random in the run.
        steps: online environment steps, of all actors together.
        actors: number of actors.
        robot: "sim" for the simulated arm as a ROS 2 node with a guard before it, in real time; a
            profile, or a .py or .yaml file with one, for a real arm behind its guard; None for a
            simulated one in the process of the actor, as fast as it goes.
        namespace: of a real arm's own topics, from the root; "/" for the root itself.
        demos: number of demonstrations that the scripted expert records at the start, or ...
        demo_paths: ... recordings to use instead, which may also be given as `demos`.
        init_from: another run, and what this one starts with of it.
        curriculum: whether episodes begin nearer to the goal at first.
        intervention: the simulated person that may take over during training: "scripted"; "none";
            the name of one that an installed package brings; or the path of a .py file.
        human: settings of that person.
        transport: what carries steps to the learner and weights to the actors.
        trials: unassisted trials of the final evaluation; of a real arm on it, or none for 0.
        required_success_rate: share of those trials for exit code 0; None, or no trials, asks for
            nothing.
        selection_trials: trials per checkpoint when the best of the last ones is chosen.
        selection_checkpoints: how many of the last checkpoints are compared.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    task: str = "pick_cube"
    task_config: dict[str, Any] = {}
    stages: dict[StageName, Stage] | None = None
    observe: Literal["state", "pixels"] | None = None
    reward: SerializeAsAny[RewardConfig] = RewardConfig()
    vice: VICEConfig = VICEConfig()
    seed: int = Field(0, ge=0, lt=2**32)
    steps: int = Field(15_000, ge=1)
    actors: int = Field(1, ge=1, le=16)
    robot: str | None = None
    namespace: str = Field("/", pattern=r"^/$|^(/[A-Za-z][A-Za-z0-9_]*)+$")
    demos: int = Field(20, ge=0, le=100_000)
    demo_paths: tuple[Path, ...] = ()
    init_from: OriginConfig = OriginConfig()
    intervention: PluginName = "scripted"
    trials: int = Field(50, ge=0, le=100_000)
    required_success_rate: float | None = Field(None, ge=0, le=1)
    selection_trials: int = Field(30, ge=1, le=100_000)
    selection_checkpoints: int = Field(5, ge=1, le=1000)
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
    log: LogConfig = LogConfig()

    @field_validator("agent", "reward", "human", "transport", mode="before")
    @classmethod
    def _of_plugin(cls, given: Any, info: ValidationInfo) -> Any:
        """Validate the settings of a plug-in by the model that it brings.

        With the context `DATA_ONLY`, plug-ins from outside are not loaded: that runs their code.
        """
        assert info.field_name is not None
        choice = CHOICES[info.field_name]
        read = choice.unloaded if info.context == DATA_ONLY else choice.validated
        return read(given, info.data)

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
        if self.stages:
            _check_graph(self.stages)
        if self.stages is not None and not self.stages:
            raise ValueError("stages: expected at least one, or null")
        if self.actor.home_every and self.robot is not None:
            raise ValueError("actor.home_every: only an arm in the actor's process goes home")
        if self.stages is not None and self.robot is not None:
            raise ValueError("robot: stages drive a simulation in the actor's process only: null")
        if self.trials == 0 and not is_real(self.robot):
            raise ValueError(
                "trials: expected at least 1; only those on a real arm can be left out"
            )
        return self


def _check_graph(stages: Mapping[str, Stage]) -> None:
    """Each stage leads to known ones, and the first one to all of them."""
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
    """The settings of each stage's own run."""
    shared = config.model_dump(exclude={"stages"})
    return {name: resolve(shared, stage.config) for name, stage in (config.stages or {}).items()}


def resolve(*layers: Mapping[str, Any]) -> TrainConfig:
    """Merge layers, later ones winning, into a checked configuration."""
    merged: dict[str, Any] = {}
    for layer in layers:
        merged = merge(merged, spelled_out(layer))
    return checked(TrainConfig, merged)


def checked(model: type[Model], values: Mapping[str, Any]) -> Model:
    """Validate, turning the first error into one line: `BadInput`."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise BadInput(_first_line(model, error)) from None


def spelled_out(layer: Mapping[str, Any]) -> Mapping[str, Any]:
    """A layer to which others can be merged, with what is short for other settings spelled out.

    A path in the place of `init_from` is that of its run, paths in that of `demos` are recordings.
    """
    origin, demos = layer.get("init_from"), layer.get("demos")
    if isinstance(origin, str | Path):
        layer = {**layer, "init_from": {"run": origin}}
    paths = [demos] if isinstance(demos, str) else demos
    if isinstance(paths, list | tuple) and all(isinstance(path, str | Path) for path in paths):
        layer = {**{k: v for k, v in layer.items() if k != "demos"}, "demo_paths": paths}
    return layer


def parse_overrides(words: Sequence[str]) -> dict[str, Any]:
    """`--agent.utd 8` or `--agent.utd=8` as nested values; values are read as YAML."""
    overrides: dict[str, Any] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if not word.startswith("--") or len(word) == 2:
            raise BadInput(f"unexpected argument {word!r}: overrides look like --agent.utd 8")
        name, equals, text = word[2:].partition("=")
        if not equals:
            if not rest:
                raise BadInput(f"{word}: expected a value")
            text = rest.pop(0)
        leaf = parse_yaml(text, word)
        for part in reversed(name.replace("-", "_").split(".")):
            leaf = {part: leaf}
        overrides = merge(overrides, spelled_out(leaf))
    return overrides


def read_yaml(path: Path) -> dict[str, Any]:
    """A YAML file that holds a mapping.

    Raises:
        BadInput: it is absent, or cannot be read.
        CorruptData: as `parse_yaml`, or it holds something else.
    """
    try:
        text = read_bounded(path, MAX_YAML_BYTES).decode()
    except OSError as error:
        raise BadInput(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise CorruptData(f"{path}: cannot be read: {error}") from None
    values = parse_yaml(text, str(path))
    if not isinstance(values, dict):
        raise CorruptData(f"{path}: expected a YAML mapping, found {type(values).__name__}")
    return values


def parse_yaml(text: str, what: str) -> Any:
    """The plain value that a YAML text of at most 64 KiB stands for.

    Raises:
        CorruptData: anything else, also aliases, which a few lines unfold to gigabytes, tags, and
            a key that a mapping has twice.
    """
    if len(text) > MAX_YAML_BYTES:
        raise CorruptData(f"{what}: {len(text)} characters of YAML, allowed {MAX_YAML_BYTES}")
    try:
        with closing(_PlainLoader(text)) as loader:
            return loader.get_single_data()
    except _DuplicateKey as error:
        raise CorruptData(f"{what}: {error}") from None
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError) as error:
        cause = " ".join(str(error).split())
        raise CorruptData(f"{what}: not YAML: {cause[:300]}") from None


class _DuplicateKey(CorruptData):
    """A key that a mapping has twice."""


class _PlainLoader(yaml.SafeLoader):
    close = yaml.SafeLoader.dispose

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event: yaml.Event = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent) or getattr(event, "tag", None) is not None:
            raise yaml.YAMLError(f"aliases and tags are not allowed {event.start_mark}")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        lines: dict[Any, int] = {}
        for name, _ in node.value:
            key = self.construct_object(name, deep=True)
            line = name.start_mark.line + 1
            if not isinstance(key, Hashable):
                break  # the base class refuses it
            if key in lines:
                raise _DuplicateKey(
                    f"line {line}: the key {short(key)} is given twice, first in line {lines[key]}"
                )
            lines[key] = line
        return super().construct_mapping(node, deep)


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """The model that a field holds, be it among others in a mapping."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(_model_in, get_args(annotation))), None)


def _first_line(model: type[BaseModel], error: ValidationError) -> str:
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        owner = model
        for part in first["loc"][:-1]:
            if part in owner.model_fields:  # or it is the name of one of several models
                owner = _model_in(owner.model_fields[str(part)].annotation) or owner
        return f"{where}: {unknown_setting(owner)}"
    if first["type"] == "value_error":  # of a check over several settings, which it names itself
        return f"{where}: {first['ctx']['error']}" if where else str(first["ctx"]["error"])
    if not where:
        return str(first["msg"])
    return f"{where}: {first['msg'][0].lower()}{first['msg'][1:]}, got {short(first['input'])}"
