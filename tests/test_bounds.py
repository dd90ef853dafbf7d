"""Bounds of every number in a configuration: a value out of bounds is refused by name."""

from __future__ import annotations

from collections.abc import Iterator
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import pytest
from pydantic import BaseModel

from serl import plugins
from serl.agents.config import ClassifierConfig, PretrainingConfig, TimeToGoConfig
from serl.errors import BadInput
from serl.runs.config import TrainConfig, parse_overrides
from serl.runs.plugin_settings import CHOICES
from serl.system.settings_file import checked

Place = tuple[str, ...]
_MODELS: tuple[type[BaseModel], ...] = (
    TrainConfig,
    ClassifierConfig,
    PretrainingConfig,
    TimeToGoConfig,
    *(type(plugins.load("task", name)().config) for name in plugins.names("task")),
)
# Numbers without an upper bound: a huge number of steps means never, a huge size no limit.
_UNBOUNDED = {
    *("seed", "steps", "bc_steps", "bc_warm_start", "metrics_every", "image_bytes", "memory_bytes"),
    *("warm_up", "starts_at", "publish_every", "checkpoint_every", "home_every", "max_lead_steps"),
    *("patience_steps", "border_patience_steps", "border_ahead_steps", "reaction_steps"),
    *("hold_steps", "max_hold_steps", "bucket_steps", "max_takeovers", "min_free_bytes"),
}
# Positions, returns and entropies: any number is valid.
_ANY_NUMBER = {
    *(
        "target_entropy",
        "entropy_per_dimension",
        "return_bounds",
        "tool_low_m",
        "tool_high_m",
        "pose",
        "tolerance_m",
    ),
    *("box_low_m", "box_high_m", "checkpoints", "middle_m", "fixed_m"),
    *("field_low_m", "field_high_m", "home_m", "body_low_m", "body_high_m"),
}
_SIGNED = {*_ANY_NUMBER, "axes", "pushes", "gripper_open", "gripper_closed"}
_AT_LEAST_ONE = (
    *("agent.hidden", "agent.encoder_channels", "vice.channels", "agent.critics", "agent.subset"),
    *("agent.batch_size", "agent.utd", "agent.latent", "agent.state_latent", "agent.frames"),
    *("agent.threads", "agent.learning_rate", "agent.temperature", "agent.metrics_every"),
    *("vice.hidden", "vice.latent", "vice.batch_size", "vice.last_frames", "actors"),
    *("learner.capacity", "learner.n_step", "learner.image_bytes", "learner.publish_every"),
    *("learner.checkpoint_every", "learner.metrics_every", "selection_trials"),
    *("selection_checkpoints", "log.interval_s", "actor.patience_s", "actor.reset_attempts"),
)


def _numbers(annotation: Any, place: Place = (), count: int = 0) -> Iterator[tuple[Place, int]]:
    """Yield the path of each number of a model, with the length of its tuple or 0."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        for name, field in annotation.model_fields.items():
            yield from _numbers(field.annotation, (*place, name))
    elif annotation in (int, float):
        yield place, count
    elif origin in (Union, UnionType):
        for part in inner:
            yield from _numbers(part, place)
    elif origin is Annotated:
        yield from _numbers(inner[0], place, count)
    elif origin is tuple and inner:
        yield from _numbers(inner[0], place, 2 if Ellipsis in inner else len(inner))


def _all_numbers(model: type[BaseModel]) -> Iterator[tuple[Place, int]]:
    """Yield the numbers of a model; for a run also those of serl's own plug-ins."""
    yield from _numbers(model)
    if model is TrainConfig:
        for choice in CHOICES.values():
            yield from _numbers(choice.own, (choice.field,))


def _refuses(model: type[BaseModel], place: Place, count: int, value: float) -> bool:
    """Return whether the number is refused in one line that names its field."""
    leaf: Any = [value] * count if count else value
    for part in reversed(place):
        leaf = {part: leaf}
    try:
        checked(model, leaf)
    except BadInput as error:
        return place[-1] in str(error) and "\n" not in str(error)
    return False


@pytest.mark.parametrize("model", _MODELS)
@pytest.mark.parametrize(("value", "fine"), [(-1, _SIGNED), (1e9, _UNBOUNDED | _ANY_NUMBER)])
def test_numbers_out_of_bounds_are_refused(
    model: type[BaseModel], value: float, fine: set[str]
) -> None:
    numbers = {*_all_numbers(model)}
    assert numbers
    taken = [
        ".".join(place) for place, count in numbers if not _refuses(model, place, count, value)
    ]
    assert {name for name in taken if name.split(".")[-1] not in fine} == set()


@pytest.mark.parametrize("name", _AT_LEAST_ONE)
def test_zero_is_refused_where_at_least_one_is_required(name: str) -> None:
    place = tuple(name.split("."))
    count = dict(_all_numbers(TrainConfig))[place]
    assert _refuses(TrainConfig, place, count, 0)


@pytest.mark.parametrize("value", ["[]", "[0]", "[-1]", "[256, 0]", "[1e9]", "256"])
def test_invalid_hidden_layer_widths_are_refused(value: str) -> None:
    layer = parse_overrides(["--agent.hidden", value])
    with pytest.raises(BadInput, match=r"^agent\.hidden"):
        checked(TrainConfig, layer)


@pytest.mark.parametrize(
    ("task", "config", "named"),
    [
        ("pick_cube", {"field_low_m": [0.7, 0.0]}, "field_low_m"),
        ("handover", {"field_high_m": [0.3, 0.0]}, "field_high_m"),
        ("peg_insertion", {"start_height_m": [0.06, 0.02]}, "start_height_m: expected the lower"),
        ("reach", {"time_limit_s": 0.01}, "time_limit_s: no step fits in 0.01 s"),
    ],
)
def test_empty_ranges_and_episodes_are_refused(
    task: str, config: dict[str, Any], named: str
) -> None:
    with pytest.raises(BadInput, match=named):
        checked(type(plugins.load("task", task)().config), config)
