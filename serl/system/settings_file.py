"""Settings: YAML files, merged mappings, and their validation by pydantic models."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar, get_args

import yaml
from pydantic import (
    BaseModel,
    ValidationError,
)

from serl.errors import BadInput, CorruptData, did_you_mean
from serl.system.files import read_bounded
from serl.system.json_fields import short


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return `base` with its leaves replaced or extended by those of `over`."""
    merged = dict(base)
    for key, value in over.items():
        below = merged.get(key)
        both = isinstance(below, Mapping) and isinstance(value, Mapping)
        merged[key] = merge(below, value) if both else value  # type: ignore[arg-type]
    return merged


def leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of nested mappings by their dotted names."""
    for name, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def unknown_setting(model: type[BaseModel], name: str) -> str:
    """Return the error text for a setting that a model does not have."""
    known = sorted(model.model_fields)
    return f"unknown setting; known ones: {', '.join(known)}{did_you_mean(name, known)}"


Model = TypeVar("Model", bound=BaseModel)


MAX_YAML_BYTES = 64 << 10


def checked(model: type[Model], values: Mapping[str, Any]) -> Model:
    """Return the validated model; raise `BadInput` with the first error in one line."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise BadInput(_first_line(model, error)) from None


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML file that holds a mapping.

    Raises:
        BadInput: the file is absent, or cannot be read.
        CorruptData: as for `parse_yaml`, or the file holds another value than a mapping.
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


def parse_yaml(text: str, subject: str) -> Any:
    """Return the plain value of a YAML text of at most 64 KiB.

    Raises:
        CorruptData: the text is not YAML, is longer, or contains tags, a duplicate key in a mapping
            or aliases, which can unfold a few lines to gigabytes.
    """
    if len(text) > MAX_YAML_BYTES:
        raise CorruptData(f"{subject}: {len(text)} characters of YAML, allowed {MAX_YAML_BYTES}")
    try:
        with closing(_PlainLoader(text)) as loader:
            return loader.get_single_data()
    except _DuplicateKey as error:
        raise CorruptData(f"{subject}: {error}") from None
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError) as error:
        cause = " ".join(str(error).split())
        raise CorruptData(f"{subject}: not YAML: {cause[:300]}") from None


class _DuplicateKey(CorruptData):
    """The error for a key that a mapping has twice."""


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
    """Return the model that a field's annotation contains, also inside a mapping; None if none."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(_model_in, get_args(annotation))), None)


def _first_line(model: type[BaseModel], error: ValidationError) -> str:
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        owner = model
        for part in first["loc"][:-1]:
            if part in owner.model_fields:  # otherwise the part names one of several models
                owner = _model_in(owner.model_fields[str(part)].annotation) or owner
        return f"{where}: {unknown_setting(owner, str(first['loc'][-1]))}"
    if first["type"] == "value_error":  # a check over several settings, whose text names them
        return f"{where}: {first['ctx']['error']}" if where else str(first["ctx"]["error"])
    if not where:
        return str(first["msg"])
    return f"{where}: {first['msg'][0].lower()}{first['msg'][1:]}, got {short(first['input'])}"
