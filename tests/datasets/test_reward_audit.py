from __future__ import annotations

from pathlib import Path

import numpy as np

from serl.datasets.reward_audit import UNKNOWN, Endings, LabelledEpisode, audit, endings
from serl.log.annotations import Origin, StepKey
from serl.reward import RewardConfig

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


def test_what_is_not_the_likeliest_is_not_believed() -> None:
    told = np.array([[0.5, 0.1, 0.4], [0.1, 0.4, 0.5]], np.float32)
    assert audit(np.array([0, 2]), told, 0.3).precision == (1, 1)


def told(truths: str, believed: str, by: str = "labels") -> LabelledEpisode:
    """An episode: "1" for success, "0" for nothing, "?" for unknown; what a model believes."""
    sureness = np.array([0.9 if each == "1" else 0.1 for each in believed], np.float32)
    classes = np.array([UNKNOWN if each == "?" else int(each) for each in truths])
    origins = tuple(Origin(Path("d"), StepKey(1, 0, step)) for step in range(len(truths)))
    return LabelledEpisode(origins, classes, np.stack([1 - sureness, sureness], 1), by, True)


HELD = RewardConfig(kind="classifier", model=Path("m"), hold=(2, 3))


def ended(*episodes: LabelledEpisode) -> Endings:
    return endings(episodes, HELD, 0.5)


def test_an_ending_waits_for_as_many_images_as_the_reward_does() -> None:
    assert ended(told("000000", "010010")).wrong == ()
    found = ended(told("000000", "010110"))
    assert [origin.place.step for origin in found.wrong] == [3]
    assert found.detected == (0, 0)
    assert "1 of 1 episodes end with a false success" in found.lines()[2]


def test_the_first_observation_is_nobodys_ending() -> None:
    """The reward judges what comes after a step."""
    assert ended(told("0000", "1100")).wrong == ()


def test_what_lies_between_labels_is_known_and_what_is_near_one_is_believed() -> None:
    assert ended(told("?0????1????1??", "00000001100000")).right == 1
    assert ended(told("0?????1", "0000110")).right == 1
    assert len(ended(told("0??????0???", "00011000000")).wrong) == 1
    far = ended(told("0???????????1", "0000011000000"))
    assert (far.right, far.wrong, far.unclear) == (0, (), 1)
    assert "1 episodes it ends at steps without a label" in far.lines()[-1]


def test_a_success_that_lasts_has_to_be_told_and_one_that_ends_the_recording_cannot() -> None:
    found = ended(told("00111", "00000"), told("00111", "00111"), told("00001", "00001"))
    assert found.detected == (1, 2)
    assert found.short == 1
    assert "recall      50.0%   1 of 2 lasting successes" in found.lines()[1]
    assert found.lines()[3].startswith("1 recordings end before their success")


def test_stages_are_told_in_their_order() -> None:
    classes = [0, 2, 2, 1, 1, 2, 2]
    origins = tuple(Origin(Path("d"), StepKey(1, 0, step)) for step in range(7))
    episode = LabelledEpisode(
        origins, np.array(classes), np.eye(3, dtype=np.float32)[classes], "labels", True
    )
    assert ended(episode).right == 1
    early = LabelledEpisode(
        origins, np.array([0] * 5 + [2] * 2), episode.probabilities, "labels", True
    )
    assert ended(early).right == 1, "the success before the first stage does not count"
