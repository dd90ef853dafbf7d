from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from serl.errors import SerlError
from serl.log.episode_reader import PART, episode_paths, read_episode, read_records
from serl.log.manifest import MANIFEST, read_entries
from serl.log.recovery import recover
from serl.log.tail import Tail
from serl.system.files import sha256_of
from serl.testing.samples import (
    BLIND,
    EPOCH,
    SPEC,
    encoded,
    leave_open,
    open_log,
    random_records,
    write_log,
)

from .support.mutations import flip

UNLIMITED = 1 << 40


def assert_sealed(folder: Path) -> None:
    """Check that no file is open or temporary and that the manifest matches every file."""
    entries = read_entries(folder)
    for path in episode_paths(folder):
        assert not path.name.endswith(PART)
        assert sha256_of(path) in {entry.sha256 for entry in entries[path.name]}
        assert path.stat().st_size == entries[path.name][-1].bytes
    names = {path.name for path in folder.iterdir()}
    episodes = {path.name for path in episode_paths(folder)}
    assert names - episodes <= {MANIFEST, "writer.lock", "quarantine"}


def test_truncated_open_file_is_recovered_to_its_complete_records(tmp_path: Path) -> None:
    items = random_records(4)
    part = leave_open(tmp_path, items[:4])
    original = part.read_bytes()[:-50]
    part.write_bytes(original)
    (sealed,) = recover(tmp_path)
    assert not part.exists()
    episode = read_episode(sealed, SPEC)
    assert encoded(list(episode.steps)) == encoded(items[:4])
    assert episode.end is None
    assert not episode.success
    # Only the index is missing here, yet the original file is kept.
    assert (tmp_path / "quarantine" / part.name).read_bytes() == original
    (entry,) = read_entries(tmp_path)[sealed.name]
    assert (entry.records, entry.ended, entry.recovered) == (4, False, True)
    assert_sealed(tmp_path)
    assert recover(tmp_path) == []


def test_complete_open_file_is_recovered_without_quarantine(tmp_path: Path) -> None:
    items = random_records(2)
    leave_open(tmp_path, items[:2])
    assert [path.name for path in recover(tmp_path)] == [f"{EPOCH}-000000.mcap"]
    assert not (tmp_path / "quarantine").exists()
    tail = Tail(tmp_path, EPOCH)
    assert tail.read(UNLIMITED) == encoded(items[:2])
    tail.close()


@pytest.mark.parametrize(("kept", "steps"), [(1.0, [4, 2]), (0.4, [1]), (0.0, [])])
def test_episode_after_truncated_one_is_quarantined(
    tmp_path: Path, kept: float, steps: list[int]
) -> None:
    """Cover a power cut that truncates an episode but leaves the newer one after it."""
    parts = [
        path.rename(path.with_name(path.name.replace(".mcap", PART)))
        for path in write_log(tmp_path, random_records(4, 2))
    ]
    (tmp_path / MANIFEST).unlink()
    data = parts[0].read_bytes()
    parts[0].write_bytes(data[: round(kept * len(data))])
    recover(tmp_path)
    assert_sealed(tmp_path)
    paths = episode_paths(tmp_path)
    assert [len(read_episode(path, SPEC).steps) for path in paths] == steps
    assert (tmp_path / "quarantine" / parts[1].name).exists() is (kept < 1.0)
    assert recover(tmp_path) == []


def test_recovery_seals_no_file_without_readable_records(tmp_path: Path) -> None:
    part = leave_open(tmp_path, random_records(1, ended=False))
    data = part.read_bytes()
    for name, content in (
        ("2-000000", b""),
        ("3-000000", data),  # holds another episode
        ("4-000000", bytes(5000)),
        (f"{EPOCH}-000000", data.replace(b'"rate_hz"', b'"rate_xy"')),
    ):
        (tmp_path / f"{name}{PART}").write_bytes(content)
    assert recover(tmp_path) == []
    assert episode_paths(tmp_path) == []
    assert len(list((tmp_path / "quarantine").iterdir())) == 3


@pytest.mark.parametrize("cut", [0, 1, 40])
def test_recovery_rewrites_torn_or_missing_manifest_line(tmp_path: Path, cut: int) -> None:
    first, second = write_log(tmp_path, items := random_records(2, 1))
    manifest = tmp_path / MANIFEST
    lines = manifest.read_bytes().splitlines(keepends=True)
    manifest.write_bytes(lines[0] + lines[1][:cut])
    assert set(read_entries(tmp_path)) == {first.name}
    recover(tmp_path)
    assert set(read_entries(tmp_path)) == {first.name, second.name}
    assert_sealed(tmp_path)
    more = random_records(1, epoch=EPOCH + 1)
    (third,) = write_log(tmp_path, more, EPOCH + 1)
    assert third.name in read_entries(tmp_path)
    assert encoded(read_records(tmp_path, SPEC)) == encoded(items + more)


def test_recovery_does_not_list_damaged_file_in_manifest(tmp_path: Path) -> None:
    first, second = write_log(tmp_path, random_records(2, 1))
    (tmp_path / MANIFEST).unlink()
    flip(first)
    recover(tmp_path)
    assert set(read_entries(tmp_path)) == {second.name}


def test_open_file_with_flipped_bit_is_recovered_to_prefix_and_quarantined(tmp_path: Path) -> None:
    """Check that recovered records are a prefix and that a shortened file is in quarantine."""
    items = random_records(3, spec=BLIND, ended=False)
    part = leave_open(tmp_path, items, BLIND)
    data, expected, lengths = part.read_bytes(), encoded(items), set()
    for place in range(0, len(data), 17):
        folder = tmp_path / str(place)
        folder.mkdir()
        damaged = bytearray(data)
        damaged[place] ^= 1 << place % 8
        (folder / part.name).write_bytes(damaged)
        recover(folder)
        found = encoded(read_records(folder, BLIND))
        assert found == expected[: len(found)]
        if len(found) < len(expected):
            assert (folder / "quarantine" / part.name).read_bytes() == damaged
        lengths.add(len(found))
        shutil.rmtree(folder)
    assert lengths == {0, 1, 2, 3}


def test_recovery_reports_folder_that_it_cannot_recover(tmp_path: Path) -> None:
    leave_open(tmp_path, random_records(1, ended=False))
    (tmp_path / f"{EPOCH}-000000.recovered").mkdir()
    with pytest.raises(SerlError, match="cannot recover"):
        recover(tmp_path)


CALLS = ["open", "write", "writev", "rename", "unlink", "mkdir"]
"""Calls that change files: a death before a call in between finds the files of the next death."""

KILLED = 9


def killed_before(number: int, action: Callable[[], object]) -> bool:
    """Run `action` in a child that dies before its call `number`; False when it needs fewer."""
    child = os.fork()
    if child == 0:
        calls = 0

        def dying(real: Callable[..., object]) -> Callable[..., object]:
            def call(*arguments: object, **named: object) -> object:
                nonlocal calls
                calls += 1
                if calls == number:
                    os._exit(KILLED)
                return real(*arguments, **named)

            return call

        for name in CALLS:
            setattr(os, name, dying(getattr(os, name)))
        try:
            action()
            os._exit(0)
        finally:
            os._exit(1)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, KILLED)
    return code == KILLED


def test_actor_killed_before_any_system_call_loses_no_appended_record(tmp_path: Path) -> None:
    items = random_records(2, 1)
    reader, writer = os.pipe()

    def act() -> None:
        with open_log(folder) as log:
            for item in items:
                log.append(item)
                acknowledge(writer, b".")

    acknowledge, number, killed = os.write, 0, True  # `os.write` itself is counted in the child
    while killed:
        number += 1
        folder = tmp_path / str(number)
        killed = killed_before(number, act)
        acknowledge(writer, b"|")
        appended = os.read(reader, 100).index(b"|")
        folder.mkdir(exist_ok=True)
        recover(folder)
        found = encoded(read_records(folder, SPEC))
        assert len(found) >= appended
        assert found == encoded(items)[: len(found)]
        assert_sealed(folder)
    assert number > 20
    assert len(found) == len(items)


def test_recovery_killed_before_any_system_call_loses_no_record(tmp_path: Path) -> None:
    """Cover a file with garbage at its end, a complete open one, and one not in the manifest."""
    template = tmp_path / "template"
    template.mkdir()
    items = random_records(3, 2)
    part = leave_open(template, items[:3])
    part.write_bytes(part.read_bytes() + b"garbage")
    later = random_records(2, epoch=EPOCH + 1)
    (sealed,) = write_log(template, later, EPOCH + 1)
    (template / MANIFEST).unlink()
    shutil.copy(sealed, template / sealed.name.replace(".mcap", PART))
    expected = encoded(items[:3] + later)
    number, killed = 0, True
    while killed:
        number += 1
        folder = tmp_path / str(number)
        shutil.copytree(template, folder)
        killed = killed_before(number, partial(recover, folder))
        assert encoded(read_records(folder, SPEC)) == expected
        recover(folder)
        assert encoded(read_records(folder, SPEC)) == expected
        assert_sealed(folder)
        assert (folder / "quarantine" / part.name).read_bytes() == (
            template / part.name
        ).read_bytes()
    assert number > 20
