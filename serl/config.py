"""The configuration of a training run, merged from layers.

Defaults, the task's tuned settings, a file, and the command line; later ones win.

Unknown keys are errors; each error is one line that names the key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from serl.actor import ActorConfig
from serl.agents.config import SACConfig
from serl.errors import BadInput
from serl.learner import LearnerConfig
from serl.network import NetworkConfig
from serl.recording import LogConfig
from serl.teleop.scripted import ScriptedHumanConfig

Model = TypeVar("Model", bound=BaseModel)


class TrainConfig(BaseModel):
    """A training run.

    Attributes:
        task: name of a task, or path of a .py file that defines one.
        task_config: overrides of the task's own configuration.
        seed: of everything random in the run.
        steps: online environment steps, of all actors together.
        actors: number of actors.
        demos: number of demonstrations that the scripted expert records at the start ...
        demo_paths: ... or recordings to use instead.
        intervention: who may take over during training.
        trials: unassisted trials of the final evaluation.
        required_success_rate: share of those trials for exit code 0; None asks for nothing.
        selection_trials: trials per checkpoint when the best of the last ones is chosen.
        selection_checkpoints: how many of the last checkpoints are compared.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    task: str = "pick_cube"
    task_config: dict[str, Any] = {}
    seed: int = Field(0, ge=0)
    steps: int = Field(15_000, ge=1)
    actors: int = Field(1, ge=1, le=16)
    demos: int = Field(20, ge=0)
    demo_paths: tuple[Path, ...] = ()
    intervention: Literal["scripted", "none"] = "scripted"
    trials: int = Field(50, ge=1)
    required_success_rate: float | None = Field(None, ge=0, le=1)
    selection_trials: int = Field(30, ge=1)
    selection_checkpoints: int = Field(5, ge=1)
    agent: SACConfig = SACConfig()
    learner: LearnerConfig = LearnerConfig()
    actor: ActorConfig = ActorConfig()
    human: ScriptedHumanConfig = ScriptedHumanConfig()
    network: NetworkConfig = NetworkConfig()
    log: LogConfig = LogConfig()


def resolve(*layers: Mapping[str, Any]) -> TrainConfig:
    """Merge layers, later ones winning, into a checked configuration."""
    merged: dict[str, Any] = {}
    for layer in layers:
        merged = merge(merged, layer)
    return checked(TrainConfig, merged)


def checked(model: type[Model], values: Mapping[str, Any]) -> Model:
    """Validate, turning the first error into one line: `BadInput`."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise BadInput(_first_line(model, error)) from None


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with the leaves of `over` put over it."""
    merged = dict(base)
    for key, value in over.items():
        below = merged.get(key)
        both = isinstance(below, Mapping) and isinstance(value, Mapping)
        merged[key] = merge(below, value) if both else value  # type: ignore[arg-type]
    return merged


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
        leaf = _yaml(text, word)
        for part in reversed(name.replace("-", "_").split(".")):
            leaf = {part: leaf}
        overrides = merge(overrides, leaf)
    return overrides


def read_yaml(path: Path) -> dict[str, Any]:
    """A YAML file that holds a mapping."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{path}: cannot be read: {error}") from None
    values = _yaml(text, str(path))
    if not isinstance(values, dict):
        raise BadInput(f"{path}: expected a YAML mapping, found {type(values).__name__}")
    return values


def _yaml(text: str, where: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise BadInput(f"{where}: not YAML: {' '.join(str(error).split())}") from None


def _first_line(model: type[BaseModel], error: ValidationError) -> str:
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        owner: Any = model
        for part in first["loc"][:-1]:
            owner = owner.model_fields[part].annotation
        return f"{where}: unknown setting; known ones: {', '.join(sorted(owner.model_fields))}"
    if first["type"] == "value_error":  # of a check over several settings, which it names itself
        return f"{where}: {first['ctx']['error']}"
    return f"{where}: {first['msg'][0].lower()}{first['msg'][1:]}, got {first['input']!r}"
