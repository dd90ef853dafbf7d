from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from mcap.reader import NonSeekingReader, make_reader

from serl.episodes import PART, Tail, episode_paths, read_episode, read_records
from serl.errors import BadInput, CorruptData, SerlError, SpecMismatch
from serl.recording import EpisodeLog, recover
from serl.specs import ArraySpec, ObservationSpec, Spec
from serl.testing.samples import random_array, random_observation
from serl.types import End, Key, Record, Source, Step
from serl.wire import encode_record

STATE = {"tcp_pose": ArraySpec(shape=(7,)), "gripper": ArraySpec(shape=(1,))}
SPEC = Spec(
    task="test",
    observation=ObservationSpec(
        state=STATE,
        images={name: ArraySpec(shape=(4, 5, 3), dtype="uint8") for name in ("wrist", "front")},
    ),
    action=ArraySpec(shape=(3,), low=-1, high=1),
    rate_hz=10,
)
BLIND = SPEC.model_copy(update={"observation": ObservationSpec(state=STATE)})
EPOCH = 1763715240123456789
UNLIMITED = 1 << 40


def records(
    *lengths: int, epoch: int = EPOCH, spec: Spec = SPEC, ended: bool = True
) -> list[Record]:
    """Episodes of random steps, each with an end."""
    rng = np.random.default_rng(sum(lengths))
    result: list[Record] = []
    for episode, length in enumerate(lengths):
        for index in range(length + ended):
            key = Key("run", "actor0", epoch, episode, index)
            observation = random_observation(spec.observation, rng)
            wall_s = 1763715240.0 + len(result)
            if index == length:
                result.append(End(key, observation, True, "success", index * 0.1, wall_s))
                continue
            action = random_array(spec.action, rng)
            result.append(
                Step(
                    key=key,
                    observation=observation,
                    requested=-action,
                    action=action,
                    reward=0.0,
                    reward_provenance="truth",
                    terminated=index == length - 1,
                    truncated=False,
                    source=Source.POLICY,
                    policy_version=1,
                    monotonic_s=index * 0.1,
                    wall_s=wall_s,
                )
            )
    return result


def open_log(folder: Path, epoch: int = EPOCH, spec: Spec = SPEC) -> EpisodeLog:
    return EpisodeLog(folder, spec, "run", "actor0", epoch)


def write(folder: Path, items: list[Record], epoch: int = EPOCH, spec: Spec = SPEC) -> list[Path]:
    with open_log(folder, epoch, spec) as log:
        for item in items:
            log.append(item)
    return episode_paths(folder)


def leave_open(folder: Path, items: list[Record], spec: Spec = SPEC) -> Path:
    """What a killed actor leaves: a copy of the open file before its log is closed."""
    with open_log(folder / "alive", spec=spec) as log:
        for item in items:
            log.append(item)
        (part,) = (folder / "alive").glob(f"*{PART}")
        return Path(shutil.copy(part, folder / part.name))


def encoded(items: list[Record]) -> list[bytes]:
    return [encode_record(item) for item in items]


def test_episodes_survive_exactly(tmp_path: Path) -> None:
    items = records(3, 1, 2)
    paths = write(tmp_path, items)
    assert [path.name for path in paths] == [f"{EPOCH}-00000{n}.mcap" for n in range(3)]
    assert encoded(list(read_records(tmp_path, SPEC))) == encoded(items)
    episode = read_episode(paths[0], SPEC)
    assert len(episode.steps) == 3
    assert episode.success


def test_epochs_and_episodes_are_read_in_order(tmp_path: Path) -> None:
    late, early = records(1, 1, epoch=100), records(1, 1, epoch=99)
    write(tmp_path, late, epoch=100)
    write(tmp_path, early, epoch=99)
    assert encoded(list(read_records(tmp_path, SPEC))) == encoded(early + late)


def test_the_mcap_package_reads_and_verifies_a_file(tmp_path: Path) -> None:
    items = records(3)
    (path,) = write(tmp_path, items)
    with path.open("rb") as file:
        reader = make_reader(file, validate_crcs=True)
        summary = reader.get_summary()
        assert summary is not None
        assert summary.statistics.message_count == 3 * len(items)
        assert summary.statistics.channel_message_counts == {1: 3, 2: 1, 3: 4, 4: 4}
        (metadata,) = reader.iter_metadata()
        assert metadata.name == "serl"
        assert Spec.model_validate_json(metadata.metadata["spec"]) == SPEC
        messages = list(reader.iter_messages())
        late = list(reader.iter_messages(topics="/step", starting_at=messages[-1][2].log_time))
        chosen = list(reader.iter_messages(topics="/step", starting_at=round(1763715242e9)))
    with path.open("rb") as file:
        plain = list(NonSeekingReader(file, validate_crcs=True).iter_messages())
    assert late == []
    assert [message.sequence for _, _, message in chosen] == [2]
    assert [message for _, _, message in plain] == [message for _, _, message in messages]
    schemas = {channel.topic: schema for schema, channel, _ in messages}
    assert set(schemas) == {"/step", "/end", "/image/front", "/image/wrist"}
    for topic, schema in schemas.items():
        if not topic.startswith("/image"):
            assert schema.encoding == "jsonschema"
            assert "tcp_pose" in json.loads(schema.data)["properties"]["state"]["properties"]
    steps = [json.loads(m.data) for _, channel, m in messages if channel.topic == "/step"]
    front = [m.data for _, channel, m in messages if channel.topic == "/image/front"]
    for item, fields, image in zip(items, steps, front, strict=False):
        assert np.float32(fields["state"]["tcp_pose"]).tolist() == pytest.approx(
            item.observation.state["tcp_pose"].tolist(), abs=0
        )
        assert image == item.observation.images["front"].tobytes()


def test_every_cut_of_an_open_file_gives_a_clean_prefix(tmp_path: Path) -> None:
    items = records(3, spec=BLIND, ended=False)
    part = leave_open(tmp_path, items, BLIND)
    expected, lengths = encoded(items), set()
    for cut in range(part.stat().st_size, -1, -1):
        os.truncate(part, cut)
        found = encoded(list(read_episode(part, BLIND).steps))
        assert found == expected[: len(found)]
        lengths.add(len(found))
    assert lengths == {0, 1, 2, 3}


def test_an_open_file_that_ends_in_garbage_gives_a_clean_prefix(tmp_path: Path) -> None:
    items = records(3, ended=False)
    part = leave_open(tmp_path, items)
    data, expected = part.read_bytes(), encoded(items)
    for cut in range(len(data) - 900, len(data), 7):
        for garbage in (bytes(500), b"\xa5" * 500):
            part.write_bytes(data[:cut] + garbage)
            found = encoded(list(read_episode(part, SPEC).steps))
            assert 2 <= len(found) <= 3
            assert found == expected[: len(found)]


def test_every_cut_of_a_sealed_file_is_refused(tmp_path: Path) -> None:
    (path,) = write(tmp_path, records(1, spec=BLIND), spec=BLIND)
    data = path.read_bytes()
    for cut in range(len(data) - 1, -1, -1):
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


def test_every_damaged_byte_of_a_sealed_file_is_noticed(tmp_path: Path) -> None:
    (path,) = write(tmp_path, records(1, spec=BLIND), spec=BLIND)
    bits = np.random.default_rng(0).integers(8, size=path.stat().st_size)
    for place, bit in enumerate(bits):
        with damaged_byte(path, place, int(bit)), pytest.raises(CorruptData, match=path.name):
            read_episode(path, BLIND)
    assert len(read_episode(path, BLIND).steps) == 1


def test_damage_of_an_open_file_ends_its_prefix(tmp_path: Path) -> None:
    items = records(3, spec=BLIND, ended=False)
    part = leave_open(tmp_path, items, BLIND)
    data, expected = part.read_bytes(), encoded(items)
    for index, payload in enumerate(expected):
        text = payload[12:]
        start = data.index(text)
        for place in range(start, start + len(text), 3):
            with damaged_byte(part, place, 4):
                found = encoded(list(read_episode(part, BLIND).steps))
            assert found == expected[:index]


def test_mutated_files_raise_nothing_undeclared(tmp_path: Path) -> None:
    (path,) = write(tmp_path, records(1, spec=BLIND), spec=BLIND)
    part = path.with_name(path.name.replace(".mcap", PART))
    data = path.read_bytes()
    rng = np.random.default_rng(1)
    for _ in range(250):
        damaged = bytearray(data)
        place, length = int(rng.integers(len(data))), int(rng.integers(1, 12))
        damaged[place : place + length] = rng.bytes(int(rng.integers(12)))
        for file in (path, part):
            file.write_bytes(damaged)
            try:
                read_episode(file, BLIND)
            except (CorruptData, SpecMismatch):
                continue


def test_another_spec_is_refused_with_the_difference(tmp_path: Path) -> None:
    (path,) = write(tmp_path, records(1))
    with pytest.raises(SpecMismatch, match=rf"{path.name}.*rate_hz: 10.0 != 20.0"):
        read_episode(path, SPEC.model_copy(update={"rate_hz": 20.0}))


def test_a_file_under_another_episodes_name_is_refused(tmp_path: Path) -> None:
    (path,) = write(tmp_path, records(1))
    moved = path.rename(path.with_name(f"{EPOCH}-000001.mcap"))
    with pytest.raises(CorruptData, match="holds episode '0', named as another"):
        read_episode(moved, SPEC)


def test_a_foreign_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "1-000000.mcap"
    path.write_bytes(b"GIF89a" + bytes(100))
    with pytest.raises(CorruptData, match="byte 0: not an MCAP file"):
        read_episode(path, SPEC)
    with pytest.raises(BadInput, match="expected an episode file"):
        read_episode(tmp_path / "notes.txt", SPEC)
    with pytest.raises(BadInput, match="No such file"):
        read_episode(tmp_path / "2-000000.mcap", SPEC)


def test_a_tail_follows_across_episodes(tmp_path: Path) -> None:
    items = records(3, 0, 2, 5)
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


@pytest.mark.parametrize("start", [0, 1, 4, 7, 11, 12])
def test_a_tail_starts_anywhere(tmp_path: Path, start: int) -> None:
    items = records(3, 2, 4)
    write(tmp_path, items)
    tail = Tail(tmp_path, EPOCH, start)
    assert tail.position == start
    assert tail.read(UNLIMITED) == encoded(items)[start:]
    assert tail.position == len(items)
    tail.close()


def test_a_tail_stops_at_the_limit_but_always_goes_on(tmp_path: Path) -> None:
    items = records(3, 2)
    write(tmp_path, items)
    tail = Tail(tmp_path, EPOCH)
    assert [tail.read(1) for _ in range(8)] == [[data] for data in encoded(items)] + [[]]
    tail.close()


def test_a_tail_never_gives_a_part_of_a_record(tmp_path: Path) -> None:
    items = records(3, ended=False)
    part = leave_open(tmp_path, items)
    data, expected, seen = part.read_bytes(), encoded(items), []
    part.write_bytes(b"")
    tail = Tail(tmp_path, EPOCH)
    with part.open("ab", buffering=0) as file:
        for byte in data:
            file.write(bytes([byte]))
            seen += tail.read(UNLIMITED)
            assert seen == expected[: len(seen)]
    assert seen == expected
    tail.close()


def test_a_tail_gives_no_damaged_record(tmp_path: Path) -> None:
    part = leave_open(tmp_path, records(1, ended=False))
    part.write_bytes(part.read_bytes().replace(b'"policy"', b'"script"'))
    tail = Tail(tmp_path, EPOCH)
    with pytest.raises(CorruptData, match=rf"{part.name}: byte \d+: the checksum"):
        tail.read(UNLIMITED)
    tail.close()


def test_an_episode_without_end_is_sealed_by_the_next(tmp_path: Path) -> None:
    items = [item for item in records(2, 2) if item.key != records(2, 2)[2].key]
    write(tmp_path, items)
    assert [path.suffixes for path in episode_paths(tmp_path)] == [[".mcap"], [".mcap"]]
    assert encoded(list(read_records(tmp_path, SPEC))) == encoded(items)
    tail = Tail(tmp_path, EPOCH)
    assert tail.read(UNLIMITED) == encoded(items)
    tail.close()


def test_a_record_that_does_not_fit_leaves_no_trace(tmp_path: Path) -> None:
    items = records(2)
    with open_log(tmp_path) as log:
        log.append(items[0])
        good = items[1]
        assert isinstance(good, Step)
        state = {**good.observation.state, "gripper": np.array([np.nan], np.float32)}
        for bad, message in (
            (replace(good, observation=replace(good.observation, state=state)), "state gripper"),
            (replace(good, action=good.action * 3), "action"),
            (replace(good, requested=good.action[:2]), "requested action"),
            (replace(good, observation=replace(good.observation, images={})), "images"),
        ):
            with pytest.raises(SpecMismatch, match=message):
                log.append(bad)
        for key in (
            replace(good.key, index=2),
            replace(good.key, index=0),
            replace(good.key, episode=2, index=0),
            replace(good.key, episode=1, index=1),
            replace(good.key, epoch=1),
            replace(good.key, actor="other"),
        ):
            with pytest.raises(BadInput, match="expected the record"):
                log.append(replace(good, key=key))
        for item in items[1:]:
            log.append(item)
    assert encoded(list(read_records(tmp_path, SPEC))) == encoded(items)


def test_episodes_without_a_gap_are_demanded(tmp_path: Path) -> None:
    """A tail could not tell a gap from an episode that is yet to come."""
    first, second, third = (item for item in records(0, 0, 0))
    with open_log(tmp_path) as log:
        with pytest.raises(BadInput, match="expected the record"):
            log.append(second)
        log.append(first)
        with pytest.raises(BadInput, match="expected the record"):
            log.append(third)
        log.append(second)


def test_a_second_writer_is_refused_while_the_first_lives(tmp_path: Path) -> None:
    with open_log(tmp_path):
        with pytest.raises(BadInput, match="in use by process"):
            open_log(tmp_path, EPOCH + 1)
        with pytest.raises(BadInput, match="in use by process"):
            recover(tmp_path)
    open_log(tmp_path, EPOCH + 1).close()


def test_an_open_file_is_recovered_to_its_prefix(tmp_path: Path) -> None:
    items = records(4)
    part = leave_open(tmp_path, items[:4])
    original = part.read_bytes()[:-50]
    part.write_bytes(original)
    (sealed,) = recover(tmp_path)
    assert not part.exists()
    episode = read_episode(sealed, SPEC)
    assert encoded(list(episode.steps)) == encoded(items[:4])
    assert episode.end is None
    assert not episode.success
    # Only an index was cut off here, yet nothing is thrown away unseen.
    assert (tmp_path / "quarantine" / part.name).read_bytes() == original
    assert recover(tmp_path) == []


def test_a_file_that_is_sealed_after_it_was_listed_is_read_all_the_same(tmp_path: Path) -> None:
    listed = leave_open(tmp_path, items := records(5, ended=False))
    recover(tmp_path)
    assert not listed.exists()
    assert len(read_episode(listed, SPEC).steps) == 5
    assert len(list(read_records([listed], SPEC))) == len(items)


def test_a_whole_open_file_needs_no_quarantine(tmp_path: Path) -> None:
    items = records(2)
    leave_open(tmp_path, items[:2])
    assert [path.name for path in recover(tmp_path)] == [f"{EPOCH}-000000.mcap"]
    assert not (tmp_path / "quarantine").exists()
    tail = Tail(tmp_path, EPOCH)
    assert tail.read(UNLIMITED) == encoded(items[:2])
    tail.close()


def test_recovery_survives_files_without_anything_sound(tmp_path: Path) -> None:
    part = leave_open(tmp_path, records(1, ended=False))
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


def test_an_epoch_cannot_be_used_twice(tmp_path: Path) -> None:
    items = records(1)
    write(tmp_path, items)
    with pytest.raises(BadInput, match="already has episodes of the epoch"):
        open_log(tmp_path)
    open_log(tmp_path, EPOCH + 1).close()


def test_a_crash_inside_recovery_counts_nothing_twice(tmp_path: Path) -> None:
    items = records(2)
    part = leave_open(tmp_path, items[:2])
    copy = part.read_bytes()
    recover(tmp_path)
    part.write_bytes(copy)  # as if the crash came before the old file was removed
    assert encoded(list(read_records(tmp_path, SPEC))) == encoded(items[:2])
    recover(tmp_path)
    assert encoded(list(read_records(tmp_path, SPEC))) == encoded(items[:2])


WRITER = """
import sys; sys.path.insert(0, {tests!r})
import importlib.util
module = importlib.util.spec_from_file_location("recorded", {file!r})
recorded = importlib.util.module_from_spec(module); module.loader.exec_module(recorded)
from pathlib import Path
with recorded.open_log(Path({folder!r})) as log:
    for item in recorded.records(*[5] * 100):
        log.append(item)
        print(item.key.episode * 6 + item.key.index + 1, flush=True)
    input()
"""


@pytest.mark.parametrize("wanted", [1, 40, 123])
def test_a_killed_writer_loses_nothing_that_it_appended(tmp_path: Path, wanted: int) -> None:
    program = WRITER.format(
        tests=str(Path(__file__).parent), file=__file__, folder=str(tmp_path / "log")
    )
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as writer:
        assert writer.stdout is not None
        appended = 0
        while appended < wanted:
            appended = int(writer.stdout.readline())
        writer.send_signal(signal.SIGKILL)
        appended = max([appended, *(int(line) for line in writer.stdout if line.endswith("\n"))])
    recover(tmp_path / "log")
    assert not list((tmp_path / "log").glob(f"*{PART}"))
    found = encoded(list(read_records(tmp_path / "log", SPEC)))
    assert len(found) >= appended
    assert found == encoded(records(*[5] * 100))[: len(found)]


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """The operating system writes a part, then refuses: as a full disk does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_is_an_error_and_what_was_appended_stays(tmp_path: Path) -> None:
    items = records(40, ended=False)
    appended = 0
    log = open_log(tmp_path)
    with file_size_limit(12_345), suppress(SerlError):
        for item in items:
            log.append(item)
            appended += 1
    assert 3 < appended < 40
    with pytest.raises(SerlError, match="an earlier write"):
        log.append(items[appended])
    with pytest.raises(SerlError):
        log.close()
    assert encoded(list(read_records(tmp_path, SPEC))) == encoded(items[:appended])
    (sealed,) = recover(tmp_path)
    assert encoded(list(read_episode(sealed, SPEC).steps)) == encoded(items[:appended])
