"""Test that a damaged episode is quarantined and the others keep their numbers."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest

from serl.errors import CorruptData, SpecMismatch
from serl.log.episode_reader import EpisodeName, episode_paths
from serl.log.manifest import MANIFEST
from serl.log.recovery import encode_losses, lost_records, quarantine_episode, read_logged, survey
from serl.log.wire import decode_arrival, encode_record
from serl.runs.config import TrainConfig
from serl.runs.folder import RunFolder
from serl.runs.replica import Replica
from serl.runs.resume import open_index
from serl.runs.verify import verify
from serl.testing.samples import ACTOR, EPOCH, RUN, SPEC, encoded, random_records, write_log
from serl.types import Arrival, LostRecord, place_after

from ..support.mutations import flip

LENGTHS = (2, 3, 4)
RECORDS = random_records(*LENGTHS)
SECOND = EpisodeName(EPOCH, 1)


def keys(arrivals: list[Arrival]) -> list[tuple[int, int, bool]]:
    return [(each.key.episode, each.key.index, isinstance(each, LostRecord)) for each in arrivals]


EXPECTED = [(each.key.episode, each.key.index, each.key.episode == 1) for each in RECORDS]


def damage_summary(path: Path) -> None:
    flip(path, int(0.98 * path.stat().st_size))


@pytest.mark.parametrize("damage", [flip, damage_summary])
def test_log_with_damaged_episode_keeps_record_numbers(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    path = write_log(tmp_path, RECORDS)[1]
    damage(path)
    for lines in (1, 0):
        messages: list[str] = []
        episodes = survey(tmp_path, messages.append)
        assert [episode.records for episode in episodes] == [3, 4, 5]
        arrivals = list(read_logged(episodes, RUN, ACTOR, SPEC, messages.append))
        assert keys(arrivals) == EXPECTED
        assert [place_after(each) for each in arrivals] == [place_after(each) for each in RECORDS]
        sound = [each for each in arrivals if not isinstance(each, LostRecord)]
        assert encoded(sound) == encoded(each for each in RECORDS if each.key.episode != 1)
        assert len(messages) == lines
    assert not path.exists()
    assert lost_records(tmp_path) == {SECOND: 4}


def test_unlisted_damaged_episode_is_counted_before_quarantine(tmp_path: Path) -> None:
    path = write_log(tmp_path, RECORDS)[1]
    (tmp_path / MANIFEST).unlink()
    flip(path)
    list(read_logged(survey(tmp_path, print), RUN, ACTOR, SPEC, print))
    assert lost_records(tmp_path) == {SECOND: 4}


def test_second_damaged_file_of_same_name_is_kept_too(tmp_path: Path) -> None:
    path = write_log(tmp_path, RECORDS)[1]
    data = path.read_bytes()
    for content in (data[:-1], data[:-2]):
        path.write_bytes(content)
        quarantine_episode(path, CorruptData("cut"))
    assert "cut: moved to" in quarantine_episode(
        path, CorruptData("cut")
    )  # another process moved the file first
    assert len(list((tmp_path / "quarantine").iterdir())) == 2


def test_episode_of_another_spec_is_not_quarantined(tmp_path: Path) -> None:
    paths = write_log(tmp_path, RECORDS)
    other = SPEC.model_copy(update={"task": "other"})
    with pytest.raises(SpecMismatch):
        list(read_logged(survey(tmp_path, print), RUN, ACTOR, other, print))
    assert episode_paths(tmp_path) == paths


def test_lost_records_can_be_encoded_and_sent(tmp_path: Path) -> None:
    path = write_log(tmp_path, RECORDS)[1]
    assert encode_losses(tmp_path, RUN, ACTOR, print, SECOND) == []
    flip(path)
    payloads = encode_losses(tmp_path, RUN, ACTOR, print, SECOND)
    arrivals = [decode_arrival(payload, SPEC) for payload in payloads]
    assert keys(arrivals) == [each for each in EXPECTED if each[2]]
    assert [place_after(each) for each in arrivals] == [(1, 1), (1, 2), (1, 3), (2, 0)]
    record = RECORDS[0]
    assert encoded([decode_arrival(encode_record(record), SPEC)]) == encoded([record])  # type: ignore[list-item]
    with pytest.raises(CorruptData, match="lost record"):
        decode_arrival(payloads[0][:-1], SPEC)


@pytest.mark.parametrize("held", [3, 5, 7])
@pytest.mark.parametrize("restarted_at", [3, 4, 6, 7, 12])
def test_replica_continues_after_log_lost_episode(
    tmp_path: Path, held: int, restarted_at: int
) -> None:
    """The learner holds none, some or all records of the second episode when the log loses it."""
    folder = RunFolder.create(tmp_path, TrainConfig(), datetime(2026, 11, 21))
    lost = [LostRecord(each.key, index == 3) for index, each in enumerate(RECORDS[3:7])]
    sent: list[Arrival] = [*RECORDS[:held], *lost[held - 3 :], *RECORDS[7:]]
    _accept(folder, sent[:restarted_at])
    position = _accept(folder, [])
    assert position in (restarted_at, 3)  # a half lost episode is requested again
    _accept(folder, [*RECORDS[:3], *lost, *RECORDS[7:]][position:])
    report = verify(folder.path)
    assert (report.lost, report.duplicated) == (0 if min(held, restarted_at) == 7 else 4, 0)


def _accept(folder: RunFolder, arrivals: list[Arrival]) -> int:
    """Start a learner, accept the arrivals and return the number of records held before."""
    logged = sum(episode.records for episode in survey(folder.episodes(ACTOR), print))
    index = open_index(folder.index, {(ACTOR, EPOCH): logged}).index
    mirror = Replica(folder, SPEC)
    mirror.register(ACTOR, "far away")
    held = index.cursors.get((ACTOR, EPOCH), 0)
    for each in arrivals:
        mirror.append([each])
        index.accept([each])
    assert index.cursors.get((ACTOR, EPOCH), 0) == held + len(arrivals)
    mirror.close()
    index.close()
    return held
