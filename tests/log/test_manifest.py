from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

from serl.log.manifest import MANIFEST, Entry, append_entry, read_entries

FIRST = Entry("1-000000.mcap", 10, "ab", 3, True, False)
SECOND = Entry("1-000001.mcap", 20, "cd", 4, False, True)


def test_manifest_entries_round_trip(tmp_path: Path) -> None:
    assert read_entries(tmp_path) == {}
    for entry in (FIRST, SECOND, FIRST):
        append_entry(tmp_path, entry)
    assert read_entries(tmp_path) == {FIRST.name: [FIRST, FIRST], SECOND.name: [SECOND]}


@pytest.mark.parametrize(
    "damage", [b"{", b"\xff\xfe", bytes(100), b'{"name":"../x"}', b"[" * 100_000]
)
def test_damaged_manifest_line_is_skipped(tmp_path: Path, damage: bytes) -> None:
    append_entry(tmp_path, FIRST)
    with (tmp_path / MANIFEST).open("ab") as file:
        file.write(damage)
    append_entry(tmp_path, SECOND)
    assert read_entries(tmp_path) == {FIRST.name: [FIRST], SECOND.name: [SECOND]}


def test_manifest_without_newlines_uses_little_memory(tmp_path: Path) -> None:
    append_entry(tmp_path, FIRST)
    with (tmp_path / MANIFEST).open("r+b") as file:
        file.truncate(100 << 20)  # appends zeros, as a power cut may
    append_entry(tmp_path, SECOND)
    tracemalloc.start()
    entries = read_entries(tmp_path)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert FIRST.name in entries
    assert SECOND.name in entries
    assert peak_bytes < 8 << 20
