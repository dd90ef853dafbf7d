"""Test copies of the logs of remote actors, which stay complete and ordered after crashes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import closing
from datetime import datetime
from pathlib import Path

import pytest

from serl.errors import BadInput, SerlError
from serl.log.compression import compact
from serl.log.episode_reader import PART, EpisodeFile, episode_paths, read_records
from serl.log.episode_writer import EpisodeWriter, metadata_of
from serl.log.manifest import read_entries
from serl.log.wire import record_parts
from serl.runs.config import TrainConfig
from serl.runs.folder import RunFolder
from serl.runs.replica import Replica
from serl.testing.samples import ACTOR, CONFIG, EPOCH, SPEC, encoded, random_records
from serl.types import Record

RECORDS = random_records(3, 2, 4)
LATER = random_records(2, 1, epoch=EPOCH + 1)


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path, TrainConfig(log=CONFIG), datetime(2026, 11, 21))


def make_replica(folder: RunFolder) -> Replica:
    made = Replica(folder, SPEC)
    made.register(ACTOR, "elsewhere")
    return made


def copy_in_killed_process(folder: RunFolder, records: Sequence[Record]) -> None:
    """Append records in a child process that exits without closing anything."""
    if (child := os.fork()) == 0:
        try:
            make_replica(folder).append(records)
        finally:
            os._exit(0)
    os.waitpid(child, 0)


def read_copy(folder: RunFolder) -> list[Record]:
    return list(read_records(folder.episodes(ACTOR), SPEC))


def test_replica_equals_log(folder: RunFolder) -> None:
    made = make_replica(folder)
    for record in RECORDS:
        made.append([record])
        assert encoded(read_copy(folder)) == encoded(RECORDS[: len(read_copy(folder))])
        assert read_copy(folder)[-1].key == record.key
    made.append([])
    made.append(LATER)
    made.close()
    assert encoded(read_copy(folder)) == encoded([*RECORDS, *LATER])
    entries = read_entries(folder.episodes(ACTOR))
    assert [e[0].ended and not e[0].recovered for e in entries.values()] == [True] * 5


def test_log_of_local_actor_is_not_copied(folder: RunFolder) -> None:
    folder.link(ACTOR).mkdir(parents=True)
    (folder.link(ACTOR) / "home").write_text("here")
    made = Replica(folder, SPEC)
    made.register(ACTOR, "here")
    made.append(RECORDS)
    assert not folder.episodes(ACTOR).exists()
    made.register(ACTOR, "elsewhere")
    made.append(RECORDS)
    assert encoded(read_copy(folder)) == encoded(RECORDS)


@pytest.mark.parametrize("held", [0, 1, 3, 4, 5, 11])  # around the end of the first episode, too
def test_killed_replica_continues_within_episode(folder: RunFolder, held: int) -> None:
    copy_in_killed_process(folder, RECORDS[:held])
    assert len(read_copy(folder)) == held
    made = make_replica(folder)
    made.append(RECORDS[max(0, held - 2) :])  # includes records that were not acknowledged
    made.close()
    assert encoded(read_copy(folder)) == encoded(RECORDS)
    assert not list(folder.episodes(ACTOR).glob(f"*{PART}"))


def test_replica_continues_after_crash_before_seal(folder: RunFolder) -> None:
    episodes = folder.episodes(ACTOR)
    episodes.mkdir(parents=True)
    writer = EpisodeWriter(episodes, PART, metadata_of(RECORDS[0].key, SPEC), SPEC)
    for record in RECORDS[:4]:
        writer.write(record_parts(record), 0)
    writer.close()
    made = make_replica(folder)
    made.append(RECORDS[4:])
    made.close()
    assert encoded(read_copy(folder)) == encoded(RECORDS)
    assert not list(episodes.glob(f"*{PART}"))


def test_torn_record_is_written_again(folder: RunFolder) -> None:
    copy_in_killed_process(folder, RECORDS[:3])
    (part,) = episode_paths(folder.episodes(ACTOR))
    data = part.read_bytes()
    for size in range(0, len(data), 293):
        part.write_bytes(data[:size])
        copy_in_killed_process(folder, RECORDS[len(read_copy(folder)) : 3])
        assert encoded(read_copy(folder)) == encoded(RECORDS[:3])


@pytest.mark.parametrize("die", [False, True])
def test_episode_left_open_by_actor_stays_truncated(folder: RunFolder, die: bool) -> None:
    made = make_replica(folder)
    if die:
        copy_in_killed_process(folder, RECORDS[:6])
    else:
        # The first episode and two steps of the second.
        made.append(RECORDS[:6])
    made.append(LATER)
    made.close()
    assert encoded(read_copy(folder)) == encoded([*RECORDS[:6], *LATER])
    entries = read_entries(folder.episodes(ACTOR))
    assert [entry[-1].recovered for entry in entries.values()] == [False, True, False, False]


@pytest.mark.parametrize(("die", "compressed"), [(False, False), (True, False), (True, True)])
def test_records_of_earlier_actor_start_are_copied_late(
    folder: RunFolder, die: bool, compressed: bool
) -> None:
    """The learner must not stop if an earlier actor's link is late or two actors overlap."""
    made = make_replica(folder)
    for part in (RECORDS[:6], LATER[:1], RECORDS[6:], LATER[1:]):
        if die:
            copy_in_killed_process(folder, part)
        else:
            made.append(part)
        for path in folder.episodes(ACTOR).glob("*[0-9].mcap") if compressed else ():
            compact(path, CONFIG)
    made.close()
    assert encoded(read_copy(folder)) == encoded([*RECORDS, *LATER])
    entries = read_entries(folder.episodes(ACTOR))
    assert all(entry[-1].ended and not entry[-1].recovered for entry in entries.values())


def test_images_of_replica_are_compressed(folder: RunFolder) -> None:
    made = make_replica(folder)
    made.append(RECORDS)
    made.append(LATER)
    made.close()
    first = min(episode_paths(folder.episodes(ACTOR)))
    with closing(EpisodeFile(first)) as file:
        file.next_message()
        assert file.metadata["images"] == "png"
    assert encoded(read_copy(folder)) == encoded([*RECORDS, *LATER])


def test_out_of_order_record_is_refused(folder: RunFolder) -> None:
    made = make_replica(folder)
    made.append(RECORDS[:2])
    with pytest.raises(BadInput, match="expected the record"):
        made.append(RECORDS[3:])
    made.append(RECORDS[2:6])
    made.append(LATER[:1])
    with pytest.raises(BadInput, match="expected the record"):
        made.append(RECORDS[7:])
    made.close()


def test_unwritable_folder_is_reported_in_one_line(folder: RunFolder) -> None:
    folder.episodes(ACTOR).parent.mkdir()
    folder.episodes(ACTOR).write_text("in the way")
    with pytest.raises(SerlError, match="cannot write to"):
        make_replica(folder).append(RECORDS)
