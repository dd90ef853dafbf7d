from __future__ import annotations

import logging
from pathlib import Path

import pytest

from serl.labels import Place, read_labels, read_words
from serl.policy import Hold
from serl.testing import FakeRobot, FakeTask
from serl.testing.samples import episode
from serl.truth_log import FILE, TruthLog
from serl.types import Record

RECORDS = episode(FakeRobot(), FakeTask(), Hold(FakeRobot().action_spec))


def written(folder: Path, solved: set[int]) -> None:
    """The log of an episode that is solved at these observations."""
    records = iter(RECORDS)
    now: list[Record] = []
    log = TruthLog(folder, lambda: now[0].key.index + 1 in solved)
    for record in records:
        now[:] = [record]
        log.take(record)


def test_a_word_is_written_wherever_it_changes_and_at_the_end(tmp_path: Path) -> None:
    count = len(RECORDS) - 1
    assert count > 8
    written(tmp_path, {4, 5, 6})
    said = {place.step: label for place, label in read_labels(tmp_path, FILE).items()}
    assert said == {1: 0, 3: 0, 4: 1, 6: 1, 7: 0, count: 0}
    assert {word.by for word in read_words(tmp_path, FILE)} == {"simulation"}
    assert not read_labels(tmp_path), "it is nobody's label"


def test_an_episode_that_never_changes_has_two_words(tmp_path: Path) -> None:
    written(tmp_path, set())
    epoch, number = RECORDS[0].key.epoch, RECORDS[0].key.episode
    last = RECORDS[-1].key.index
    assert read_labels(tmp_path, FILE) == {
        Place(epoch, number, 1): 0,
        Place(epoch, number, last): 0,
    }


def test_a_disk_that_refuses_stops_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / FILE).mkdir()
    with caplog.at_level(logging.WARNING):
        written(tmp_path, {2})
    assert FILE in caplog.text
