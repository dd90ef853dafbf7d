"""Bounded JSON objects with exactly the declared fields: the first stage of every decoder."""

from __future__ import annotations

import json
import reprlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from itertools import count
from math import isfinite
from pathlib import Path
from typing import Any

from serl.errors import CorruptData
from serl.system.files import open_regular, read_bounded

MAX_JSON_BYTES = 1 << 20
_MAX_FILE_BYTES = 1 << 30
_MAX_SMALL_BYTES = 4096
MAX_TEXT = 4096
"""Largest number of characters in a field, which may be the path of a file."""

_lines = reprlib.Repr()
_lines.maxstring = _lines.maxother = 120
_lines.maxlevel = 2
_encoder = json.JSONEncoder(allow_nan=False, separators=(",", ":"))


def dump_object(value: Mapping[str, Any]) -> bytes:
    """Return an object as compact JSON; raise `ValueError` when a number is not finite."""
    return _encoder.encode(value).encode()


def parse_object(
    text: bytes | memoryview, subject: str, max_bytes: int = MAX_JSON_BYTES
) -> dict[str, Any]:
    """Parse the JSON object in `text`, at most 1 MiB by default, without NaN or infinity.

    A number beyond float64, such as 1e999, becomes infinite; `check_fields` refuses it.

    Raises:
        CorruptData: the text is anything else; the error begins with `subject`.
    """
    if len(text) > max_bytes:
        raise CorruptData(f"{subject}: {len(text)} bytes of JSON, allowed {max_bytes}")
    try:
        value = _decoder.decode(str(text, "utf-8"))
    except (ValueError, RecursionError) as error:
        raise CorruptData(f"{subject}: not JSON: {short(str(error))}") from error
    if not isinstance(value, dict):
        raise CorruptData(f"{subject}: expected a JSON object, got {short(value)}")
    return value


def read_objects(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the objects of a file with one object per line, each after a text naming its line.

    A truncated last line is left out: its writer died.

    Raises:
        CorruptData: another line is not an object, or longer than 1 MiB; the error names it. Or the
            path is not that of a regular file, or the file is larger than 1 GiB.
    """
    with open_regular(path, _MAX_FILE_BYTES) as stream:
        for number in count(1):
            line = stream.readline(MAX_JSON_BYTES + 1)
            if not line.endswith(b"\n") and len(line) <= MAX_JSON_BYTES:
                return
            where = f"{path}: line {number}"
            yield where, parse_object(line, where)


def check_fields(value: Any, fields: Mapping[str, type], subject: str) -> None:
    """Raise `CorruptData` unless `value` is an object of exactly these fields and types.

    Counts lie in [0, 2^63), numbers are finite, text is short and can be written as UTF-8.
    """
    if not isinstance(value, dict) or value.keys() != fields.keys():
        raise CorruptData(f"{subject}: expected the fields {sorted(fields)}, got {short(value)}")
    for name, kind in fields.items():
        item = value[name]
        if type(item) is not kind or (kind in _BOUNDS and not _BOUNDS[kind](item)):
            found = short(item)
            raise CorruptData(f"{subject} {short(name)}: expected {kind.__name__}, got {found}")


def read_fields(path: Path, fields: Mapping[str, type]) -> dict[str, Any] | None:
    """Return the object of exactly these fields in a small file; None if absent or damaged."""
    with suppress(OSError, CorruptData):
        value = parse_object(read_bounded(path, _MAX_SMALL_BYTES), path.name)
        check_fields(value, fields, path.name)
        return value
    return None


def _is_count(item: int) -> bool:
    return 0 <= item < 1 << 63


def _is_text(item: str) -> bool:
    """Return whether a text is short and can be encoded: JSON may contain lone surrogates."""
    if len(item) > MAX_TEXT:
        return False
    try:
        item.encode()
    except UnicodeEncodeError:
        return False
    return True


def printable(text: str, limit: int = 1000) -> str:
    """Return untrusted text as one harmless line for a terminal, a log file or a report.

    Control characters, line breaks, marks that change the direction of writing and all other
    characters without a glyph are escaped as in Python; text beyond the limit is cut off.
    """
    shown = text if len(text) <= limit else f"{text[:limit]}..."
    if shown.isprintable():
        return shown
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in shown
    )


def short(value: object) -> str:
    """Return `value` as text for an error line, cut to a readable length."""
    return _lines.repr(value)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not allowed")


_decoder = json.JSONDecoder(parse_constant=_refuse_constant)
_BOUNDS: dict[type, Callable[[Any], bool]] = {int: _is_count, float: isfinite, str: _is_text}
