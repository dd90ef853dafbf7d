from __future__ import annotations

from pathlib import Path

import numpy as np

from serl.labels import Place
from serl.reward_audit import audit, contact_sheet
from serl.reward_data import Origin, Samples

LABELS = np.array([1, 1, 1, 0, 0, 0, 0])
SURENESS = np.array([0.9, 0.2, 0.6, 0.8, 0.1, 0.95, 0.3], np.float32)


def test_mistakes_are_counted_and_the_surest_come_first() -> None:
    found = audit(LABELS, np.stack([1 - SURENESS, SURENESS], 1), 0.7)
    assert found.accuracy == (3, 7)
    assert found.precision == (1, 3)
    assert found.recall == (1, 3)
    assert found.false_positives == (5, 3)
    assert found.false_negatives == (1, 2)
    assert "33.3%   1 of 3 of the successes are seen; 95 %" in found.lines()[2]


def test_of_stages_only_the_last_is_a_success() -> None:
    told = np.array([[0.1, 0.9, 0.0], [0.0, 0.1, 0.9], [0.0, 0.2, 0.8]], np.float32)
    found = audit(np.array([1, 2, 1]), told, 0.5)
    assert found.precision == (1, 2)
    assert found.false_positives == (2,)


def test_nothing_to_count_is_said() -> None:
    found = audit(np.array([0, 0]), np.array([[0.9, 0.1]] * 2, np.float32), 0.5)
    assert "nothing to count" in found.lines()[1]
    assert found.accuracy == (2, 2)


def test_a_contact_sheet_shows_views_and_rows() -> None:
    images = {name: np.full((7, 8, 8, 3), 40 * (n + 1), np.uint8) for n, name in enumerate("ab")}
    origins = tuple(Origin(Path(), Place(1, 2, row)) for row in range(7))
    samples = Samples(images, LABELS, np.zeros(7, np.int64), origins, np.zeros((7, 3), np.float32))
    sheet = contact_sheet(samples, [5, 3], SURENESS.tolist(), "wrong")
    empty = contact_sheet(samples, [], [], "wrong")
    assert sheet.dtype == np.uint8
    assert sheet.shape[1] == empty.shape[1]
    for level in (40, 80):
        assert (sheet == level).all(2).sum() == 2 * 96 * 96
        assert not (empty == level).all(2).any()
