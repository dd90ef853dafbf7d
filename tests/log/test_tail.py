"""Test that a tail follows a log completely and in order while its files change."""

from __future__ import annotations

import os
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from serl.errors import CorruptData
from serl.log.episode_reader import EpisodeFile, EpisodeName
from serl.log.manifest import MANIFEST
from serl.log.recovery import encode_losses, recover
from serl.log.tail import Losses, Tail
from serl.log.wire import decode_arrival
from serl.testing.samples import (
    ACTOR,
    EPOCH,
    RUN,
    SPEC,
    encoded,
    leave_open,
    open_log,
    random_records,
    write_log,
)
from serl.types import with_images

from ..support.mutations import flip

UNLIMITED = 1 << 40


def first_record(path: Path) -> int:
    with closing(EpisodeFile(path)) as file:
        message = file.next_message()
    assert message is not None
    return message.offset


def read_from(folder: Path, start: int, losses: Losses = lambda name: ()) -> list[bytes]:
    """Return the records from a position; without `losses`, a damaged episode is an error."""
    with closing(Tail(folder, EPOCH, start, losses)) as tail:
        return tail.read(UNLIMITED)


def test_tail_follows_across_episodes(tmp_path: Path) -> None:
    items = random_records(3, 0, 2, 5)
    tail, seen = Tail(tmp_path, EPOCH), []
    assert tail.read(UNLIMITED) == []
    with open_log(tmp_path) as log:
        for number, item in enumerate(items, start=1):
            log.append(item)
            if number % 3:
                seen += tail.read(UNLIMITED)
                assert tail.position == len(seen) == number
        assert tail.read(UNLIMITED) == encoded(items)[len(seen) :]
    assert tail.read(UNLIMITED) == []
    tail.close()


def test_tail_skips_files_before_its_start(tmp_path: Path) -> None:
    items = random_records(3, 2, 4)
    first, second, _ = write_log(tmp_path, items)
    sound = first.read_bytes()
    flip(first, first_record(first) + 100)
    assert read_from(tmp_path, 5) == encoded(items)[5:]
    with pytest.raises(CorruptData, match=first.name):
        read_from(tmp_path, 3)
    first.write_bytes(sound)
    flip(second, second.stat().st_size - 30)  # in the summary
    assert read_from(tmp_path, 8) == encoded(items)[8:]


def test_tail_starts_at_any_record(tmp_path: Path) -> None:
    items = random_records(3, 2, 4)
    write_log(tmp_path, items)
    for start in range(len(items) + 1):
        with closing(Tail(tmp_path, EPOCH, start)) as tail:
            assert tail.position == start
            assert tail.read(UNLIMITED) == encoded(items)[start:]
            assert tail.position == len(items)


def test_tail_respects_limit_but_returns_at_least_one_record(tmp_path: Path) -> None:
    items = random_records(3, 2)
    write_log(tmp_path, items)
    tail = Tail(tmp_path, EPOCH)
    assert [tail.read(1) for _ in range(8)] == [[data] for data in encoded(items)] + [[]]
    tail.close()


def test_tail_returns_no_partial_record(tmp_path: Path) -> None:
    items = random_records(3, ended=False)
    part = leave_open(tmp_path, items)
    data, expected, seen = part.read_bytes(), encoded(items), []
    part.write_bytes(b"")
    tail = Tail(tmp_path, EPOCH)
    with part.open("ab", buffering=0) as file:
        for start in range(0, len(data), 7):
            file.write(data[start : start + 7])
            seen += tail.read(UNLIMITED)
            assert seen == expected[: len(seen)]
    assert seen == expected
    tail.close()


GARBAGE = {
    "zeros": bytes(4096),
    "noise": b"\xa5" * 4096,
    "half a record": b"\x06" + (1 << 20).to_bytes(8, "little") + bytes(500),
}


@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE)
@pytest.mark.parametrize("start", [0, 2])
def test_tail_continues_after_damaged_open_file_is_recovered(
    tmp_path: Path, garbage: bytes, start: int
) -> None:
    """Simulate a power cut on the actor's host after which the link starts before the actor."""
    items = random_records(4, ended=False)
    part = leave_open(tmp_path, items)
    with part.open("ab") as file:
        file.write(garbage)
    tail = Tail(tmp_path, EPOCH, start)
    assert tail.read(UNLIMITED) == encoded(items)[start:]
    assert tail.read(UNLIMITED) == []
    recover(tmp_path)
    assert tail.read(UNLIMITED) == []
    assert tail.position == len(items)
    tail.close()


def test_damaged_record_is_withheld_while_open_and_raises_once_sealed(
    tmp_path: Path,
) -> None:
    items = random_records(3)
    (path,) = write_log(tmp_path, items)
    part = EpisodeName(EPOCH, 0).path(tmp_path, ".part.mcap")
    path.rename(part)
    part.write_bytes(part.read_bytes().replace(b'"policy"', b'"script"'))
    tail = Tail(tmp_path, EPOCH)
    assert tail.read(UNLIMITED) == []
    assert tail.read(UNLIMITED) == []
    part.rename(path)
    with pytest.raises(CorruptData, match=rf"{path.name}: byte \d+: the checksum"):
        tail.read(UNLIMITED)
    tail.close()


def losses_of(folder: Path, messages: list[str]) -> partial[list[bytes]]:
    return partial(encode_losses, folder, RUN, ACTOR, messages.append)


@pytest.mark.parametrize("start", [0, 4, 5, 6, 7, 12])  # around the lost records 4 to 6, too
@pytest.mark.parametrize("damage", ["flipped", "cut", "taken away"])
def test_lost_records_replace_damaged_or_missing_episode(
    tmp_path: Path, start: int, damage: str
) -> None:
    items = random_records(3, 2, 4)
    _, second, _ = write_log(tmp_path, items)
    if damage == "flipped":
        flip(second, first_record(second) + 100)
    elif damage == "cut":
        os.truncate(second, first_record(second))
    else:
        second.unlink()
    messages: list[str] = []
    found = read_from(tmp_path, start, losses_of(tmp_path, messages))
    sound = encoded(items)
    assert len(found) == len(items) - start
    kept = [number for number in range(start, len(items)) if number not in (4, 5, 6)]
    assert [found[number - start] for number in kept] == [sound[number] for number in kept]
    lost = [decode_arrival(found[number - start], SPEC) for number in (4, 5, 6) if number >= start]
    assert [record.key for record in lost] == [items[n].key for n in (4, 5, 6) if n >= start]
    assert len(messages) == 1 or damage == "taken away" or start > 6


def test_lost_records_follow_records_read_before_damage(tmp_path: Path) -> None:
    items = random_records(6, 1)
    first, _ = write_log(tmp_path, items)
    data = first.read_bytes()
    flip(first, data.rindex(b'"policy"'))
    found = read_from(tmp_path, 0, losses_of(tmp_path, []))
    assert [decode_arrival(record, SPEC).key for record in found] == [item.key for item in items]
    assert found[:5] == encoded(items)[:5]
    assert found[5:7] != encoded(items)[5:7]
    assert found[7:] == encoded(items)[7:]


def test_missing_unlisted_episode_raises(tmp_path: Path) -> None:
    items = random_records(3, 2, 4)
    first, second, _ = write_log(tmp_path, items)
    tail = Tail(tmp_path, EPOCH, 0, losses_of(tmp_path, []))
    assert len(tail.read(1)) == 1
    (tmp_path / MANIFEST).unlink()
    for path in (first, second):
        path.unlink()
    with pytest.raises(CorruptData, match=rf"{second.name}: missing, though later"):
        tail.read(UNLIMITED)
    tail.close()


def test_episode_deleted_before_it_is_read_is_replaced_by_lost_records(tmp_path: Path) -> None:
    items = random_records(1, 1, 1)
    messages: list[str] = []
    tail = Tail(tmp_path, EPOCH, 0, losses_of(tmp_path, messages))
    with open_log(tmp_path) as log:
        for item in items[:2]:
            log.append(item)
        assert tail.read(UNLIMITED) == encoded(items)[:2]
        for item in items[2:]:
            log.append(item)
    EpisodeName(EPOCH, 1).path(tmp_path, ".mcap").unlink()
    found = tail.read(UNLIMITED)
    tail.close()
    assert [decode_arrival(record, SPEC).key for record in found] == [i.key for i in items[2:]]
    assert found[2:] == encoded(items)[4:]


def test_tail_omits_images_that_were_not_requested(tmp_path: Path) -> None:
    items = random_records(3, 2)
    write_log(tmp_path, items)
    narrow = SPEC.with_images(["wrist"])
    with closing(Tail(tmp_path, EPOCH, 1, spec=narrow)) as tail:
        assert tail.read(UNLIMITED) == encoded(with_images(item, ["wrist"]) for item in items)[1:]
    with closing(Tail(tmp_path, EPOCH, 1, spec=SPEC)) as tail:
        assert tail.read(UNLIMITED) == encoded(items)[1:]
