"""Settings: YAML files, merged mappings, and their validation by pydantic models."""

from __future__ import annotations

import math
import re
from collections.abc import Hashable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_args

import yaml
from pydantic import AfterValidator, BaseModel, ValidationError

from serl.errors import BadInput, CorruptData, did_you_mean
from serl.system.files import home_path, read_bounded
from serl.system.json_fields import short

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

HomePath = Annotated[Path, AfterValidator(home_path)]
"""Type of settings that are paths; `~` becomes the home folder."""


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return `base` with its leaves replaced or extended by those of `over`."""
    merged = dict(base)
    for key, value in over.items():
        below = merged.get(key)
        both = isinstance(below, Mapping) and isinstance(value, Mapping)
        merged[key] = merge(below, value) if both else value  # type: ignore[arg-type]
    return merged


def nest(name: str, value: Any) -> dict[str, Any]:
    """Return nested mappings with one value, given its dotted name."""
    for part in reversed(name.split(".")):
        value = {part: value}
    return dict(value)


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
    guess = did_you_mean(name, known)
    return f"unknown setting{guess or '; known ones: ' + ', '.join(known)}"


Model = TypeVar("Model", bound=BaseModel)


MAX_YAML_BYTES = 64 << 10
"""Largest size of a YAML file, bytes."""


def checked(model: type[Model], values: Mapping[str, Any], prefix: str = "") -> Model:
    """Return the validated model; raise `BadInput` with the first error in one line.

    Args:
        model: the model.
        values: its values.
        prefix: dotted name of the model's place in larger settings, with a dot at the end.
    """
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise BadInput(_first_line(model, error, prefix)) from None


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
        name = type(values).__name__
        found = {"NoneType": "nothing", "str": "text"}.get(name, name)
        raise CorruptData(f"{path}: expected a YAML mapping, found {found}")
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
    except yaml.MarkedYAMLError as error:
        line = 0 if error.problem_mark is None else error.problem_mark.line + 1
        tab = "; indent with spaces" if "'\\t'" in str(error.problem) else ""
        raise CorruptData(f"{subject}: not YAML: line {line}: {error.problem}{tab}") from None
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


def _first_line(model: type[BaseModel], error: ValidationError, prefix: str) -> str:
    order = {"extra_forbidden": 0, "missing": 2}  # a misspelled name explains a missing one
    first = min(error.errors(), key=lambda each: order.get(each["type"], 1))
    where = (prefix + ".".join(str(part) for part in first["loc"])).rstrip(".")
    if first["type"] == "extra_forbidden":
        owner, last = model, str(first["loc"][-1])
        for part in first["loc"][:-1]:
            if part in owner.model_fields:  # otherwise the part names one of several models
                owner = _model_in(owner.model_fields[str(part)].annotation) or owner
        return f"{where}: {_qualify(unknown_setting(owner, last), where)}"
    if first["type"] == "value_error":  # a check over several settings, whose text names them
        text = str(first["ctx"]["error"])
        return f"{where}: {_qualify(text, where)}" if where else text
    if not where:
        return str(first["msg"])
    if first["type"] == "missing":
        return f"{where}: missing, but required"
    found = "nothing" if first["input"] is None else short(first["input"])
    hint = _suggest_number(where, first)
    allowed = _describe_allowed(where, first)
    if first["loc"][-1] == "bool":  # the first of several types of one setting
        where = where.removesuffix(".bool")
        others = [e for e in error.errors() if e["loc"][:-1] == first["loc"][:-1] and e != first]
        allowed += "".join(f" or {_EXPECTED[e['type']].format_map(e['ctx'])}" for e in others)
    return f"{where}: {allowed}, got {found}{hint}"


def _qualify(text: str, where: str) -> str:
    """Return the error of `unknown_setting` with the full name of the suggested setting."""
    prefix, dot, _ = where.rpartition(".")
    return text.replace("did you mean '", f"did you mean '{prefix}{dot}")


_EXPECTED = {
    "greater_than_equal": "at least {ge}",
    "greater_than": "more than {gt}",
    "less_than_equal": "at most {le}",
    "less_than": "less than {lt}",
    "literal_error": "{expected}",
    "model_type": "settings by name",
    "model_attributes_type": "settings by name",
    "dict_type": "values by name",
    "string_type": "a text",
    "tuple_type": "a list such as [1, 2]",
    "list_type": "a list such as [1, 2]",
}
_EXPECTED |= dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "a whole number{unit}")
_EXPECTED |= dict.fromkeys(("float_type", "float_parsing", "finite_number"), "a number{unit}")
_EXPECTED |= dict.fromkeys(("bool_type", "bool_parsing"), "true or false")
"""Allowed values by the type of pydantic's error, with its context and the unit."""


def _describe_allowed(where: str, error: ErrorDetails) -> str:
    """Return the allowed values of a setting as text."""
    if (text := _EXPECTED.get(error["type"])) is None:
        return f"{error['msg'][0].lower()}{error['msg'][1:]}"
    unit = unit_of(where)
    bounds = {k: f"{v:g}" if isinstance(v, float) else v for k, v in error.get("ctx", {}).items()}
    return "expected " + text.format_map({"unit": f" in {unit}" * bool(unit), **bounds})


_UNITS = {"hz": "Hz", "m_s": "m/s", "rad_s": "rad/s", "n": "N", "nm": "Nm", "kg": "kg"}
_UNITS |= {"m_s2": "m/s²", "m_s3": "m/s³", "rad_s2": "rad/s²", "rad_s3": "rad/s³"}
_UNITS |= {"n_m": "N/m", "n_s_m": "Ns/m", "nm_s": "Nms", "nm_rad": "Nm/rad", "nm_s_rad": "Nms/rad"}
_UNITS |= {unit: unit for unit in ("s", "m", "mm", "rad", "px", "bytes")}
_SUFFIX = re.compile(f"_({'|'.join(sorted(_UNITS, key=len, reverse=True))})$")
_AMOUNT = re.compile(r"([-+]?[\d.,_]+(?:e[-+]?\d+)?) *([^\d\s]*)")
_FACTORS = {("m", "mm"): 1e-3, ("m", "cm"): 1e-2, ("s", "ms"): 1e-3, ("s", "min"): 60.0}
_FACTORS |= {("rad", "deg"): math.pi / 180, ("rad", "°"): math.pi / 180}
_FACTORS |= {("", "k"): 1e3, ("", "K"): 1e3, ("", "M"): 1e6}
"""Factors from a unit that people write to the unit of a setting."""


def unit_of(name: str) -> str:
    """Return the unit that the end of a setting's name stands for; "" without one."""
    found = _SUFFIX.search(name)
    return _UNITS[found[1]] if found else ""


def _suggest_number(where: str, error: ErrorDetails) -> str:
    """Return how to write a value such as "5mm" or "10k" as a plain number; "" if unknown."""
    if error["type"] not in ("int_parsing", "float_parsing"):
        return ""
    found, unit = _AMOUNT.fullmatch(str(error["input"])), unit_of(where)
    factor = found and (1.0 if found[2] in ("", unit) else _FACTORS.get((unit, found[2])))
    if found is None or factor is None:
        return ""
    try:
        value = float(found[1].replace(",", "").replace("_", "")) * factor
    except ValueError:
        return ""
    return f"; write {value:.10g}" if value.is_integer() or "float" in error["type"] else ""
