from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import torch

from serl.agents.classifier import Card, Classifier, make_reward
from serl.agents.classifier_training import (
    _SUREST,
    TrainedClassifier,
    _temperature,
    _threshold,
    split_by_episode,
    train_classifier,
)
from serl.agents.config import ClassifierConfig
from serl.camera import REAL, View
from serl.errors import BadInput, CorruptData, SpecMismatch
from serl.geometry import Vector
from serl.log.annotations import Origin, Samples, StepKey
from serl.reward import RewardConfig, ToolPlace
from serl.system.files import digest_of
from serl.tasks.pick_cube import PickCube, PickCubeConfig
from serl.types import Observation

VIEWS = {"front": View(camera="field", width=12, height=12)}
TASK = PickCube(PickCubeConfig(observe="pixels", views=VIEWS))
CARD = Card(views=VIEWS, channels=(4, 8), latent=8, hidden=16)
UP_M = (-1.0, -1.0, 0.1)
QUICK = ClassifierConfig(epochs=15, batch_size=32, learning_rate=3e-3, threads=1)


def make_samples(count: int = 240, classes: int = 2, seed: int = 0) -> Samples:
    """Return noise images with a bright spot, leftmost for class 0, further right for others."""
    rng = np.random.default_rng(seed)
    images = rng.integers(0, 90, (count, 12, 12, 3), np.uint8)
    labels = np.arange(count) % classes
    for image, label in zip(images, labels, strict=True):
        left = 1 + round(7 * label / (classes - 1))
        image[4:7, left : left + 3] = 250
    episodes = np.arange(count) // 12
    origins = tuple(Origin(Path(), StepKey(1, int(e), row)) for row, e in enumerate(episodes))
    tools_m = np.full((count, 3), np.nan, np.float32)
    return Samples({"front": images}, labels, episodes, origins, tools_m)


@pytest.fixture(scope="module")
def trained() -> TrainedClassifier:
    return train_classifier(make_samples(), CARD, QUICK)


def test_classifier_learns_and_reports_its_accuracy(trained: TrainedClassifier) -> None:
    card = trained.classifier.card
    assert card.accuracy >= 0.97
    predictions = trained.probabilities[:, 1] >= card.threshold
    assert (predictions == trained.held_out.labels).mean() == card.accuracy
    assert (card.positives, card.negatives) == (72, 72)
    assert 0.5 <= card.threshold < 1.0
    unseen = make_samples(seed=5)
    probabilities = trained.classifier.probabilities(unseen.images)
    assert probabilities.shape == (240, 2)
    np.testing.assert_allclose(probabilities.sum(1), 1.0, atol=1e-5)
    assert (probabilities.argmax(1) == unseen.labels).mean() > 0.95


def test_split_keeps_each_episode_in_one_part() -> None:
    parts = split_by_episode(make_samples(), (0.1, 0.25), seed=3)
    episodes = [set(part.episodes.tolist()) for part in parts]
    assert [len(each) for each in episodes] == [13, 2, 5]
    assert set.union(*episodes) == set(range(20))
    assert sum(len(part.labels) for part in parts) == 240


def test_split_depends_only_on_the_seed() -> None:
    first, again, other = (split_by_episode(make_samples(), (0.2, 0.2), seed) for seed in (3, 3, 4))
    assert [part.origins for part in first] == [part.origins for part in again]
    assert [part.origins for part in first] != [part.origins for part in other]


def test_held_out_labels_do_not_affect_the_model(trained: TrainedClassifier) -> None:
    """Train again with flipped held-out labels; weights and threshold must stay the same."""
    samples = make_samples()
    held_out = np.isin(samples.episodes, trained.held_out.episodes)
    wrong = samples._replace(labels=np.where(held_out, 1 - samples.labels, samples.labels))
    other = train_classifier(wrong, CARD, QUICK)
    for flat in ("encoder_flat", "head_flat"):
        assert torch.equal(getattr(other.classifier, flat), getattr(trained.classifier, flat))
    assert other.classifier.card.temperature == trained.classifier.card.temperature
    assert other.classifier.card.threshold == trained.classifier.card.threshold
    assert other.classifier.card.accuracy < 0.1


@pytest.mark.parametrize(("confidence", "least", "most"), [(6.0, 4.0, 7.0), (0.5, 0.3, 0.6)])
def test_temperature_calibrates_probabilities(confidence: float, least: float, most: float) -> None:
    """Check that a model right in three of four cases gets mean confidence 0.75 at any scale."""
    labels = np.arange(400) % 2
    predictions = np.where(np.arange(400) % 8 < 2, 1 - labels, labels)
    logits = confidence * math.log(3.0) * np.eye(2, dtype=np.float32)[predictions]
    temperature = _temperature(logits, labels)
    assert least < temperature < most
    sure = np.exp(logits / temperature).max(1) / np.exp(logits / temperature).sum(1)
    assert sure.mean() == pytest.approx(0.75, abs=0.02)


def test_threshold_exceeds_false_positive_probabilities() -> None:
    samples = make_samples()
    wrong = np.flatnonzero(samples.labels == 0)[::4]
    samples.images["front"][wrong] = samples.images["front"][wrong + 1]  # look like success
    _, calibration, _ = split_by_episode(samples, (QUICK.calibration, QUICK.held_out), QUICK.seed)
    trained = train_classifier(samples, CARD, QUICK)
    predictions = trained.classifier.probabilities(calibration.images)
    mistaken = predictions[calibration.labels == 0, 1]
    assert mistaken.max() > 0.5
    assert trained.classifier.card.threshold > mistaken.max()


def sure(counts: dict[tuple[int, int, float], int]) -> tuple[Any, Any]:
    """Expand counts keyed by (label, predicted class, probability) to (N, 3) rows and labels."""
    rows, labels = [], []
    for (label, predictions, probability), count in counts.items():
        row = np.full(3, (1.0 - probability) / 2, np.float32)
        row[predictions] = probability
        rows += [row] * count
        labels += [label] * count
    return np.array(rows), np.array(labels)


def test_threshold_exceeds_probabilities_of_misclassified_stages() -> None:
    """Check that stages misread as success raise the threshold like other negatives."""
    right = {(0, 0, 0.98): 1000, (1, 1, 0.95): 50, (2, 2, 0.98): 50}
    assert _threshold(*sure(right), 0.001) == 0.5
    probabilities, labels = sure({**right, (1, 2, 0.9): 50})
    assert 0.9 < _threshold(probabilities, labels, 0.001) < 1.0
    assert _threshold(probabilities, labels, 0.6) == 0.5, (
        "the allowed rate covers all misread stages"
    )
    few = sure({**right, (1, 2, 0.9): 1})
    assert _threshold(*few, 0.01) > 0.9, "a rare stage counts as much as the frequent negatives"
    assert _threshold(*sure({**right, (2, 1, 0.9): 50}), 0.001) == 0.5, (
        "a missed success only delays the reward"
    )


def test_unreachable_false_positive_rate_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    right = {(0, 0, 0.98): 98, (1, 1, 0.95): 50, (2, 2, 1.0): 100}
    mistaken = {(0, 2, 1.0): 1, (0, 1, 0.9999999): 1}
    assert _threshold(*sure({**right, **mistaken}), 0.001) == _SUREST
    assert caplog.messages == [
        "reward train: 2 of 100 samples of label 0 in calibration are taken for more with a "
        "probability of 0.999999 and above: no threshold holds false_positives 0.001; look for "
        "wrong labels (serl reward audit), or collect more that look like them"
    ]
    caplog.clear()
    assert _threshold(*sure({**right, **mistaken}), 0.02) < _SUREST
    assert not caplog.messages


def test_classifier_learns_three_classes() -> None:
    card = CARD.model_copy(update={"classes": ("nothing", "stage 1", "success")})
    trained = train_classifier(
        make_samples(classes=3), card, QUICK.model_copy(update={"crop_px": 1})
    )
    assert trained.probabilities.shape[1] == 3
    assert trained.classifier.card.accuracy > 0.9


def test_too_few_labels_are_refused() -> None:
    with pytest.raises(BadInput, match=r"labels: \d+ of '.*' in one of three parts, .* at least 5"):
        train_classifier(make_samples().where(np.arange(240) < 30), CARD, QUICK)


@pytest.mark.parametrize(
    ("classes", "kept", "line"),
    [
        (2, [0], "none of 'success', only 120 of 'nothing': .* --label 1"),
        (2, [1], "none of 'nothing', only 120 of 'success': .* --label 0"),
        (3, [0, 2], "none of 'stage 1', only 80 of 'nothing', 80 of 'success': .* --label 1"),
    ],
)
def test_labels_without_every_class_are_refused_by_missing_class(
    classes: int, kept: list[int], line: str
) -> None:
    samples = make_samples(classes=classes)
    names = ("nothing", *(["stage 1"] if classes == 3 else []), "success")
    card = CARD.model_copy(update={"classes": names})
    with pytest.raises(BadInput, match=line):
        train_classifier(samples.where(np.isin(samples.labels, kept)), card, QUICK)


def test_classifier_file_round_trip_is_exact(trained: TrainedClassifier, tmp_path: Path) -> None:
    path = tmp_path / "models" / "m.safetensors"
    trained.classifier.save(path)
    loaded = Classifier.load(path)
    assert loaded.card == trained.classifier.card
    images = make_samples(seed=8).images
    np.testing.assert_array_equal(
        loaded.probabilities(images), trained.classifier.probabilities(images)
    )


def test_damaged_or_foreign_classifier_files_give_one_line_errors(
    trained: TrainedClassifier, tmp_path: Path
) -> None:
    path = tmp_path / "m.safetensors"
    with pytest.raises(BadInput, match=r"reward model .*m\.safetensors: No such file"):
        Classifier.load(path)
    trained.classifier.save(path)
    whole = path.read_bytes()
    bad = {
        "cut": whole[: len(whole) // 2],
        "empty": b"",
        "text": b"not a model at all",
        "foreign": safetensors.numpy.save({"a": np.zeros(3, np.float32)}, {"format": "x"}),
        "card": safetensors.numpy.save({}, {"format": "serl reward classifier 1", "card": "{}"}),
        "arrays": safetensors.numpy.save(
            {"a": np.zeros(3, np.float32)},
            {"format": "serl reward classifier 1", "card": CARD.model_dump_json()},
        ),
    }
    arrays = safetensors.numpy.load(whole)
    arrays["head.0.weight"] = np.full_like(arrays["head.0.weight"], np.nan)
    metadata = {"format": "serl reward classifier 1", "card": CARD.model_dump_json()}
    bad["nan"] = safetensors.numpy.save(arrays, metadata)
    for header in (b"[1,2]", b'{"__metadata__":null}', b"[" * 5000):
        bad[header[:20].decode()] = len(header).to_bytes(8, "little") + header
    huge = CARD.model_dump(mode="json") | {"channels": [1024] * 8, "latent": 4096}
    metadata = {"format": "serl reward classifier 1", "card": json.dumps(huge)}
    bad["huge"] = safetensors.numpy.save({}, metadata)
    bad["negative"] = safetensors.numpy.save(
        {}, {**metadata, "card": json.dumps(huge | {"channels": [-1]})}
    )
    for data in bad.values():
        path.write_bytes(data)
        with pytest.raises(CorruptData, match=r"reward model .*m\.safetensors: ") as caught:
            Classifier.load(path)
        assert "\n" not in str(caught.value)


def saved(trained: TrainedClassifier, path: Path, **changes: Any) -> RewardConfig:
    """Save the model with changed card fields; return a reward configuration for it."""
    card = trained.classifier.card.model_copy(update=changes)
    Classifier(card, trained.classifier.encoder_flat, trained.classifier.head_flat).save(path)
    return RewardConfig(kind="classifier", model=path)


def test_classifier_reward_holds_success_over_consecutive_frames(
    trained: TrainedClassifier, tmp_path: Path
) -> None:
    config = saved(trained, tmp_path / "m").model_copy(update={"hold": (2, 3)})
    reward = make_reward(config, TASK)
    samples = make_samples()
    seen = [Observation({}, {"front": samples.images["front"][row]}) for row in (1, 0, 3, 5)]
    reward.begin(seen[0])
    assert [reward(reading).success for reading in seen] == [False, False, True, False]


def test_classifier_changed_since_run_creation_is_refused(
    trained: TrainedClassifier, tmp_path: Path
) -> None:
    path = tmp_path / "m"
    config = saved(trained, path).model_copy(update={"sha256": digest_of(path)})
    make_reward(config, TASK)
    saved(trained, path, threshold=0.7)
    with pytest.raises(SpecMismatch, match="is another one than when the run was made"):
        make_reward(config, TASK)


@pytest.mark.parametrize(
    ("views", "found"),
    [
        ({"wrist": VIEWS["front"]}, r"is not there, only \['wrist'\]"),
        ({"front": View(camera="wrist", width=12, height=12)}, "is camera='wrist'"),
        ({"front": View(camera="field", width=16, height=12)}, "is camera='field' width=16"),
    ],
)
def test_classifier_refuses_cameras_it_was_not_trained_on(
    views: dict[str, View], found: str, trained: TrainedClassifier, tmp_path: Path
) -> None:
    config = saved(trained, tmp_path / "m")
    with pytest.raises(SpecMismatch, match=f"trained on the view 'front' .* which {found}"):
        make_reward(config, PickCube(PickCubeConfig(observe="pixels", views=views)))


def test_classifier_of_another_task_is_refused_unless_allowed(
    trained: TrainedClassifier, tmp_path: Path
) -> None:
    config = saved(trained, tmp_path / "m", task="drawer")
    line = "trained for drawer, not for pick_cube; .* allow it by --reward.transfer true"
    with pytest.raises(SpecMismatch, match=line):
        make_reward(config, TASK)
    make_reward(config.model_copy(update={"transfer": True}), TASK)
    make_reward(saved(trained, tmp_path / "m", task="pick_cube"), TASK)


@pytest.mark.parametrize(
    ("drawn", "here", "line"),
    [
        (("ray",), "gl", "trained on images by ray, here they are by gl"),
        (("gl", "ray"), REAL, "trained on images by gl, ray, here they are by camera"),
        (("gl", "ray"), "gl", ""),
        ((), "gl", ""),  # a file that does not record its renderers
    ],
)
def test_images_from_another_renderer_are_warned_about(
    drawn: tuple[str, ...],
    here: str,
    line: str,
    trained: TrainedClassifier,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    make_reward(saved(trained, tmp_path / "m", renderers=drawn), TASK, here)
    assert line in caplog.text
    assert bool(caplog.records) == bool(line)


def test_tool_position_check_lowers_the_needed_threshold() -> None:
    """Train with negatives that look like successes but have the tool elsewhere."""
    samples = make_samples()
    lookalikes = np.flatnonzero(samples.labels == 1)[::2]
    samples.labels[lookalikes] = 0
    tools_m = np.zeros((240, 3), np.float32)
    tools_m[samples.labels == 1, 2] = 0.2
    samples = samples._replace(tools_m=tools_m)
    config = QUICK.model_copy(update={"tool_low_m": (-1.0, -1.0, 0.1)})
    plain, checked = (train_classifier(samples, CARD, each) for each in (QUICK, config))
    assert plain.classifier.card.accuracy < 0.95
    assert checked.classifier.card.accuracy > 0.95
    assert checked.classifier.card.threshold < plain.classifier.card.threshold
    assert plain.classifier.card.place == ToolPlace()
    assert checked.classifier.card.place == ToolPlace(tool_low_m=(-1.0, -1.0, 0.1))


@pytest.mark.parametrize(
    ("learned", "here", "line"),
    [
        (ToolPlace(tool_low_m=UP_M), UP_M, ""),
        (ToolPlace(tool_low_m=UP_M), (-1.0, -1.0, 0.2), ""),
        (ToolPlace(), UP_M, ""),
        (ToolPlace(), None, ""),
        (
            ToolPlace(tool_low_m=UP_M),
            (-1.0, -1.0, 0.05),
            "above x, y, z of [-1.0, -1.0, 0.1] m, "
            "here it is queried where it is above x, y, z of [-1.0, -1.0, 0.05] m",
        ),
        (
            ToolPlace(tool_low_m=UP_M),
            None,
            "above x, y, z of [-1.0, -1.0, 0.1] m, here it is queried anywhere",
        ),
        (
            ToolPlace(tool_high_m=(1.0, 1.0, 0.1)),
            UP_M,
            "below x, y, z of [1.0, 1.0, 0.1] m, here it is queried where it is above",
        ),
    ],
)
def test_classifier_is_queried_only_within_its_threshold_tool_box(
    trained: TrainedClassifier, tmp_path: Path, learned: ToolPlace, here: Vector | None, line: str
) -> None:
    """Refuse tool boxes wider than the calibrated one; the threshold is unverified there."""
    path = saved(trained, tmp_path / "m", task="", place=learned).model
    config = RewardConfig(kind="classifier", model=path, tool_low_m=here)
    if not line:
        make_reward(config, TASK)
        return
    with pytest.raises(SpecMismatch, match=re.escape(line)) as error:
        make_reward(config, TASK)
    assert "\n" not in str(error.value)


def test_classifier_without_recorded_tool_box_is_warned_about(
    trained: TrainedClassifier, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make_reward(saved(trained, tmp_path / "m", place=None), TASK)
    assert "does not record the tool's box for which its threshold was chosen; here: anywhere" in (
        caplog.text
    )
