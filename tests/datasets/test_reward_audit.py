from __future__ import annotations

from pathlib import Path

import numpy as np

from serl.datasets.reward_audit import UNKNOWN, Endings, LabelledEpisode, audit, endings
from serl.log.annotations import Origin, StepKey
from serl.reward import RewardConfig

LABELS = np.array([1, 1, 1, 0, 0, 0, 0])
SURENESS = np.array([0.9, 0.2, 0.6, 0.8, 0.1, 0.95, 0.3], np.float32)


def test_audit_counts_errors_and_lists_most_confident_first() -> None:
    found = audit(LABELS, np.stack([1 - SURENESS, SURENESS], 1), 0.7)
    assert found.accuracy == (3, 7)
    assert found.precision == (1, 3)
    assert found.recall == (1, 3)
    assert found.false_positives == (5, 3)
    assert found.false_negatives == (1, 2)
    assert "33.3%   1 of 3 of the successes are seen; 95 %" in found.lines()[2]


def test_audit_of_stages_counts_only_last_stage_as_success() -> None:
    predicted = np.array([[0.1, 0.9, 0.0], [0.0, 0.1, 0.9], [0.0, 0.2, 0.8]], np.float32)
    found = audit(np.array([1, 2, 1]), predicted, 0.5)
    assert found.precision == (1, 2)
    assert found.false_positives == (2,)


def test_audit_without_positives_reports_nothing_to_count() -> None:
    found = audit(np.array([0, 0]), np.array([[0.9, 0.1]] * 2, np.float32), 0.5)
    assert "nothing to count" in found.lines()[1]
    assert found.accuracy == (2, 2)


def test_audit_counts_only_most_likely_class_as_predicted() -> None:
    predicted = np.array([[0.5, 0.1, 0.4], [0.1, 0.4, 0.5]], np.float32)
    assert audit(np.array([0, 2]), predicted, 0.3).precision == (1, 1)


def labelled_episode(truths: str, predictions: str, by: str = "labels") -> LabelledEpisode:
    """Build an episode of true ("1", "0", "?" for unknown) and predicted classes per step."""
    sureness = np.array([0.9 if each == "1" else 0.1 for each in predictions], np.float32)
    classes = np.array([UNKNOWN if each == "?" else int(each) for each in truths])
    origins = tuple(Origin(Path("d"), StepKey(1, 0, step)) for step in range(len(truths)))
    return LabelledEpisode(origins, classes, np.stack([1 - sureness, sureness], 1), by, True)


HELD = RewardConfig(kind="classifier", model=Path("m"), hold=(2, 3))


def find_endings(*episodes: LabelledEpisode) -> Endings:
    return endings(episodes, HELD, 0.5)


def test_ending_needs_as_many_positive_images_as_reward() -> None:
    assert find_endings(labelled_episode("000000", "010010")).wrong == ()
    found = find_endings(labelled_episode("000000", "010110"))
    assert [origin.place.step for origin in found.wrong] == [3]
    assert found.detected == (0, 0)
    assert "1 of 1 episodes end with a false success" in found.lines()[2]


def test_first_observation_cannot_end_episode() -> None:
    """The reward is computed from the observation after a step."""
    assert find_endings(labelled_episode("0000", "1100")).wrong == ()


def test_steps_between_equal_labels_share_label_and_ending_near_success_is_right() -> None:
    assert find_endings(labelled_episode("?0????1????1??", "00000001100000")).right == 1
    assert find_endings(labelled_episode("0?????1", "0000110")).right == 1
    assert len(find_endings(labelled_episode("0??????0???", "00011000000")).wrong) == 1
    far = find_endings(labelled_episode("0???????????1", "0000011000000"))
    assert (far.right, far.wrong, far.unclear) == (0, (), 1)
    assert "it ends 1 episode at steps without a label" in far.lines()[-1]


def test_recall_counts_only_successes_that_last_long_enough() -> None:
    found = find_endings(
        labelled_episode("00111", "00000"),
        labelled_episode("00111", "00111"),
        labelled_episode("00001", "00001"),
    )
    assert found.detected == (1, 2)
    assert found.short == 1
    assert "recall      50.0%   1 of 2 lasting successes" in found.lines()[1]
    assert found.lines()[3].startswith("too short to detect a success: 1 recording")


def test_stage_labels_count_in_task_order() -> None:
    classes = [0, 2, 2, 1, 1, 2, 2]
    origins = tuple(Origin(Path("d"), StepKey(1, 0, step)) for step in range(7))
    episode = LabelledEpisode(
        origins, np.array(classes), np.eye(3, dtype=np.float32)[classes], "labels", True
    )
    assert find_endings(episode).right == 1
    early = LabelledEpisode(
        origins, np.array([0] * 5 + [2] * 2), episode.probabilities, "labels", True
    )
    assert find_endings(early).right == 1, "the success before the first stage does not count"
