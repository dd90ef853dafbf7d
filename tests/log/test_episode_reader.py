from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from serl.errors import BadInput, CorruptData, SpecMismatch
from serl.log.episode_reader import PART, EpisodeFile, read_episode, read_records
from serl.log.episode_writer import EpisodeWriter, metadata_of
from serl.log.manifest import read_entries
from serl.log.recovery import recover
from serl.log.wire import STEP, Parts, record_parts
from serl.specs import ArraySpec, ObservationSpec, Spec
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


def test_episodes_round_trip_exactly(tmp_path: Path) -> None:
    items = random_records(3, 1, 2)
    paths = write_log(tmp_path, items)
    assert [path.name for path in paths] == [f"{EPOCH}-00000{n}.mcap" for n in range(3)]
    assert encoded(list(read_records(tmp_path, SPEC))) == encoded(items)
    episode = read_episode(paths[0], SPEC)
    assert len(episode.steps) == 3
    assert episode.success


def test_epochs_and_episodes_are_read_in_order(tmp_path: Path) -> None:
    late, early = random_records(1, 1, epoch=100), random_records(1, 1, epoch=99)
    write_log(tmp_path, late, epoch=100)
    write_log(tmp_path, early, epoch=99)
    assert encoded(list(read_records(tmp_path, SPEC))) == encoded(early + late)


def test_truncated_or_extended_sealed_file_is_refused(tmp_path: Path) -> None:
    (path,) = write_log(tmp_path, random_records(1, spec=BLIND), spec=BLIND)
    data = path.read_bytes()
    for cut in range(len(data) - 1, -1, -11):
        os.truncate(path, cut)
        with pytest.raises(CorruptData, match=rf"{path.name}: byte \d+"):
            read_episode(path, BLIND)
    path.write_bytes(data + b"\0")
    with pytest.raises(CorruptData):
        read_episode(path, BLIND)


@contextmanager
def damaged_byte(path: Path, place: int, bit: int) -> Iterator[None]:
    with path.open("r+b", buffering=0) as file:
        (good,) = os.pread(file.fileno(), 1, place)
        os.pwrite(file.fileno(), bytes([good ^ 1 << bit]), place)
        yield
        os.pwrite(file.fileno(), bytes([good]), place)


def test_every_damaged_byte_of_sealed_file_is_detected(tmp_path: Path) -> None:
    (path,) = write_log(tmp_path, random_records(1, spec=BLIND), spec=BLIND)
    for place in range(path.stat().st_size):
        with damaged_byte(path, place, place % 8), pytest.raises(CorruptData, match=path.name):
            read_episode(path, BLIND)
    assert len(read_episode(path, BLIND).steps) == 1


@pytest.mark.parametrize("share", [0.01, 0.3, 0.6, 0.99])
def test_bit_flipped_before_seal_is_detected(tmp_path: Path, share: float) -> None:
    """The manifest holds the checksum of the damaged file; the chunk checksums detect it."""
    first, end = random_records(1, spec=BLIND)
    with open_log(tmp_path, spec=BLIND) as log:
        log.append(first)
        (part,) = tmp_path.glob(f"*{PART}")
        with part.open("r+b") as file:
            place = int(share * part.stat().st_size)
            (good,) = os.pread(file.fileno(), 1, place)
            os.pwrite(file.fileno(), bytes([good ^ 1]), place)
        log.append(end)
    (path,) = tmp_path.glob("*.mcap")
    assert [entry.sha256 for entry in read_entries(tmp_path)[path.name]] == [sha256_of(path)]
    with pytest.raises(CorruptData, match=path.name):
        read_episode(path, BLIND)


def test_missing_record_of_open_file_ends_prefix(tmp_path: Path) -> None:
    items = random_records(3, ended=False)
    part = leave_open(tmp_path, items)
    with closing(EpisodeFile(part)) as file:
        first, second, third = [message.offset for message in file.prefix()]
    data = part.read_bytes()
    assert len(read_episode(part, SPEC).steps) == 3
    part.write_bytes(data[:second] + data[third:])
    assert encoded(read_episode(part, SPEC).steps) == encoded(items[:1])
    part.write_bytes(data[:first] + data[second:])
    assert read_episode(part, SPEC).steps == ()


def test_damaged_record_of_open_file_ends_prefix(tmp_path: Path) -> None:
    items = random_records(3, spec=BLIND, ended=False)
    part = leave_open(tmp_path, items, BLIND)
    data, expected = part.read_bytes(), encoded(items)
    for index, payload in enumerate(expected):
        text = payload[12:]
        start = data.index(text)
        for place in range(start, start + len(text), 11):
            with damaged_byte(part, place, 4):
                found = encoded(list(read_episode(part, BLIND).steps))
            assert found == expected[:index]


def test_episode_of_another_spec_is_refused_with_difference(tmp_path: Path) -> None:
    (path,) = write_log(tmp_path, random_records(1))
    with pytest.raises(SpecMismatch, match=rf"{path.name}.*rate_hz: 10.0 != 20.0"):
        read_episode(path, SPEC.model_copy(update={"rate_hz": 20.0}))


def test_file_with_name_of_another_episode_is_refused(tmp_path: Path) -> None:
    (path,) = write_log(tmp_path, random_records(1))
    moved = path.rename(path.with_name(f"{EPOCH}-000001.mcap"))
    with pytest.raises(CorruptData, match="holds episode '0', named as another"):
        read_episode(moved, SPEC)


def test_foreign_or_missing_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "1-000000.mcap"
    path.write_bytes(b"GIF89a" + bytes(100))
    with pytest.raises(CorruptData, match="byte 0: not an MCAP file"):
        read_episode(path, SPEC)
    with pytest.raises(BadInput, match="expected an episode file"):
        read_episode(tmp_path / "notes.txt", SPEC)
    with pytest.raises(BadInput, match="No such file"):
        read_episode(tmp_path / "2-000000.mcap", SPEC)


def test_file_sealed_after_listing_is_still_read(tmp_path: Path) -> None:
    listed = leave_open(tmp_path, items := random_records(5, ended=False))
    recover(tmp_path)
    assert not listed.exists()
    assert len(read_episode(listed, SPEC).steps) == 5
    assert len(list(read_records([listed], SPEC))) == len(items)


def _sized(action: tuple[int, ...] = (7,), image: int = 1, **state: tuple[int, ...]) -> Spec:
    images = {name: ArraySpec(shape=(image, 1024, 3), dtype="uint8") for name in ("a", "b")}
    arrays = {name: ArraySpec(shape=shape) for name, shape in state.items()}
    return BLIND.model_copy(
        update={
            "action": ArraySpec(shape=action),
            "observation": ObservationSpec(state=arrays, images=images),
        }
    )


@pytest.mark.parametrize(
    "spec",
    [
        *(_sized(action=(2, 2)), _sized(action=()), _sized(x=(1 << 20,) * 8)),
        *(_sized(q=(1 << 20, 1 << 20)), _sized(q=(1 << 20, 1 << 11)), _sized(image=12_000)),
    ],
)
def test_oversized_or_invalid_spec_is_refused(tmp_path: Path, spec: Spec) -> None:
    metadata = metadata_of(random_records(1)[0].key, BLIND)
    writer = EpisodeWriter(tmp_path, PART, {**metadata, "spec": spec.model_dump_json()}, BLIND)
    writer.close()
    with closing(EpisodeFile(writer.path)) as file:
        with pytest.raises(CorruptData, match=r"an action of shape|a spec (of|with)"):
            file.next_message()
        assert file.spec is None


@pytest.mark.parametrize(
    "text",
    [b'{"state":{"\xff":[]}}', b'{"x":' + b"[" * 100_000],
    ids=["not UTF-8", "too deep"],
)
def test_unparsable_record_ends_recovered_file(
    tmp_path: Path, text: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = random_records(2, spec=BLIND, ended=False)[0]
    writer = EpisodeWriter(tmp_path, PART, metadata_of(first.key, BLIND), BLIND)
    writer.write(record_parts(first), 0)
    with pytest.raises(CorruptData, match="not of this spec"):
        writer.write(Parts(STEP, text, ()), 0)
    _, standard = writer._messages.encode(STEP, record_parts(first).text, 0)
    head = writer._messages._heads[STEP]
    message = bytes(head.size - 4) + (len(text) + 1).to_bytes(4, "little") + text + b"\0"
    monkeypatch.setattr(writer._messages, "encode", lambda *_: (message, standard))
    writer.write(Parts(STEP, text, ()), 0)
    writer.close()
    (sealed,) = recover(tmp_path)
    assert encoded(read_episode(sealed, BLIND).steps) == encoded([first])


def test_file_shorter_than_written_is_not_sealed(tmp_path: Path) -> None:
    first = random_records(1, spec=BLIND)[0]
    writer = EpisodeWriter(tmp_path, PART, metadata_of(first.key, BLIND), BLIND)
    writer.write(record_parts(first), 0)
    os.lseek(writer._descriptor, -1, os.SEEK_END)  # overwrites a byte, so the file is shorter
    with pytest.raises(OSError, match="not as long as what was written"):
        writer.seal()
    assert not list(tmp_path.glob("*[0-9].mcap"))


def test_unwritable_spec_opens_no_file(tmp_path: Path) -> None:
    before = os.listdir("/proc/self/fd")
    metadata = metadata_of(random_records(1)[0].key, BLIND)
    with pytest.raises(ValueError, match="values to unpack"):
        EpisodeWriter(tmp_path, PART, metadata, _sized(action=(2, 2)))
    assert list(tmp_path.iterdir()) == []
    assert len(os.listdir("/proc/self/fd")) == len(before)
