"""Test the collection of labelled images in simulation and reading them back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from serl import plugins
from serl.camera import View
from serl.datasets.reward_collection import Kind, LabelCounts, _kind, collect
from serl.errors import BadInput, CorruptData, SpecMismatch
from serl.log.annotations import Samples, StepKey, append_labels, read_labels
from serl.runs.reward_data import VIEWS, read_samples, read_sight
from serl.tasks.pick_cube import PickCube, PickCubeConfig
from serl.testing import FakeRobot, FakeTask

VIEW = View(camera="field", width=16, height=16)
WANTED = LabelCounts(6, 30)


def make_task(**views: View) -> PickCube:
    return PickCube(PickCubeConfig(observe="pixels", views=views or {"front": VIEW}))


@pytest.fixture(scope="module")
def collection(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, task = tmp_path_factory.mktemp("data") / "collection", make_task()
    with plugins.make_simulation(task) as robot:
        assert collect(robot, task, folder, WANTED, seed=0) == WANTED
    return folder


def test_collection_holds_wanted_label_counts_from_many_episodes(collection: Path) -> None:
    samples, views = read_samples([collection])
    assert read_sight(collection) == ({"front": VIEW}, "ray")
    assert views == {"front": VIEW}
    assert samples.images["front"].shape == (36, 16, 16, 3)
    assert np.bincount(samples.labels).tolist() == [30, 6]
    for label, most in ((1, 2), (0, 5)):
        each = np.bincount(samples.episodes[samples.labels == label])
        assert each.max() == most, "few samples per episode"
    assert len(set(samples.origins)) == 36


def test_collected_labels_match_ground_truth(collection: Path) -> None:
    """The expert succeeds late, so all negative steps come before the positive ones."""
    labels = read_labels(collection)
    first = [place.step for place, label in labels.items() if place.episode == 0 and label]
    before = [place.step for place, label in labels.items() if place.episode == 0 and not label]
    assert min(first) > max(before) > 10


def test_steps_near_success_have_no_label(collection: Path) -> None:
    """Images just before and after a change of class are ambiguous."""
    labels = read_labels(collection)
    for episode in {place.episode for place in labels}:
        here = {place.step: label for place, label in labels.items() if place.episode == episode}
        good = [step for step, label in here.items() if label]
        assert all(abs(a - b) > 3 for a in good for b, label in here.items() if not label)


def test_collection_alternates_between_episode_kinds() -> None:
    kinds = [_kind(episode) for episode in range(60)]
    assert set(kinds) == set(Kind)
    assert kinds.count(Kind.CHANCE) == 6
    assert kinds[0] is Kind.SUCCESS, "a pretence needs the place of an earlier success"


def test_latest_label_of_step_replaces_earlier_one(collection: Path) -> None:
    samples, _ = read_samples([collection])
    row = int(np.flatnonzero(samples.labels == 1)[0])
    place = samples.origins[row].place
    append_labels(collection, [(place, 0)], "person")
    assert read_samples([collection])[0].labels[row] == 0
    append_labels(collection, [(place, 1)], "person")
    assert read_samples([collection])[0].labels[row] == 1


def test_samples_where_keeps_fields_aligned(collection: Path) -> None:
    samples, _ = read_samples([collection])
    positive = samples.where(samples.labels == 1)
    assert isinstance(positive, Samples)
    assert set(positive.labels.tolist()) == {1}
    assert len(positive.origins) == len(positive.images["front"]) == len(positive.episodes) == 6


def test_read_samples_refuses_different_views(collection: Path) -> None:
    closer = VIEW.model_copy(update={"crop": (0.1, 0.1, 0.9, 0.9)})
    with pytest.raises(
        SpecMismatch, match=r"view 'front': expected .*0\.1.*, found camera='field'"
    ):
        read_samples([collection], {"front": closer})
    with pytest.raises(SpecMismatch, match=r"view 'wrist': expected .*, found none"):
        read_samples([collection], {"wrist": VIEW})


def test_read_samples_refuses_folders_without_labels_or_valid_views(
    collection: Path, tmp_path: Path
) -> None:
    with pytest.raises(BadInput, match=f"expected a collection with {VIEWS}"):
        read_samples([tmp_path])
    (tmp_path / VIEWS).write_bytes((collection / VIEWS).read_bytes())
    with pytest.raises(BadInput, match="no step of any episode is labelled"):
        read_samples([tmp_path])
    (tmp_path / VIEWS).write_text('{"front": {"camera": "field", "width": -1}}')
    with pytest.raises(CorruptData, match=r"views\.json: "):
        read_samples([tmp_path])


def test_labels_of_missing_steps_are_ignored(collection: Path) -> None:
    append_labels(collection, [(StepKey(1, 0, 9999), 1), (StepKey(7, 7, 7), 1)], "person")
    assert len(read_samples([collection])[0].labels) == 36


def test_collect_refuses_task_without_cameras(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="fake: has no cameras"):
        collect(FakeRobot(), FakeTask(), tmp_path / "x", WANTED, seed=0)
    assert list(tmp_path.iterdir()) == []
