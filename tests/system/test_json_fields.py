from __future__ import annotations

import json

import pytest

from serl.errors import CorruptData
from serl.system.json_fields import (
    MAX_JSON_BYTES,
    MAX_TEXT,
    check_fields,
    dump_object,
    parse_object,
    printable,
)

FIELDS = {"count": int, "number": float, "text": str, "flag": bool, "list": list}
SOUND = {
    "count": 2**63 - 1,
    "number": -1e300,
    "text": "\u00e4" * MAX_TEXT,
    "flag": True,
    "list": [],
}


def test_json_object_round_trips() -> None:
    assert parse_object(dump_object(SOUND), "it") == SOUND
    assert parse_object(memoryview(dump_object(SOUND)), "it") == SOUND
    check_fields(SOUND, FIELDS, "it")


@pytest.mark.parametrize(
    "text",
    [
        *(b"", b"[]", b"null", b"{", b"\xff{}", b'{"a":NaN}', b'{"a":-Infinity}'),
        *(b"[" * 100_000, b'{"a":' * 100_000, b'{"a":' + b"9" * 10_000 + b"}"),
        b" " * MAX_JSON_BYTES + b"{}",
    ],
)
def test_parse_object_refuses_invalid_json_in_one_line(text: bytes) -> None:
    with pytest.raises(CorruptData, match=r"^it: ") as refusal:
        parse_object(text, "it")
    assert len(str(refusal.value).splitlines()) == 1
    assert len(str(refusal.value)) < 500


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("count", value) for value in ("-1", "9223372036854775808", "true", "1.0", "null")),
        *(("number", value) for value in ("1e999", "-1e999", "1", "null")),
        *(("text", value) for value in ('"\\ud800"', json.dumps("x" * (MAX_TEXT + 1)), "1")),
        *(("flag", value) for value in ("0", "null")),
    ],
)
def test_check_fields_names_invalid_field(name: str, value: str) -> None:
    fields = {**SOUND, name: json.loads(value)}
    with pytest.raises(CorruptData, match=f"^it '{name}': expected") as refusal:
        check_fields(fields, FIELDS, "it")
    assert len(str(refusal.value)) < 500


def test_check_fields_refuses_missing_and_unknown_fields() -> None:
    wrong: list[object] = [{**SOUND, "more": 1}, {"count": 1}, [], None]
    for fields in wrong:
        with pytest.raises(CorruptData, match=r"^it: expected the fields"):
            check_fields(fields, FIELDS, "it")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain \u00e4 \u2192 text", "plain \u00e4 \u2192 text"),
        ("\x1b[2J\x1b]0;title\x07", r"\x1b[2J\x1b]0;title\x07"),
        ("a\r\nb\tc\x00\x7f\x9b", r"a\r\nb\tc\x00\x7f\x9b"),
        ("\u202egnp.exe \u2066x\u2069 \u200f", r"\u202egnp.exe \u2066x\u2069 \u200f"),
        ("\u2028\u2029\ud800\U000e0041", r"\u2028\u2029\ud800\U000e0041"),
        ("x" * 2000, "x" * 1000 + "..."),
    ],
)
def test_printable_escapes_control_characters_into_one_line(text: str, shown: str) -> None:
    assert printable(text) == shown
    assert printable(text).isprintable()
