"""Test the ground truth of recorded steps: its sources and their precedence."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest

from serl.datasets.reward_audit import (
    UNKNOWN,
    LabelledEpisode,
    Probabilities,
    labelled_episodes,
)
from serl.errors import BadInput, SpecMismatch
from serl.log.annotations import TOOLS_FILE as TOOLS
from serl.log.annotations import TRUTH_FILE, StepKey, append_labels
from serl.reward import RewardConfig
from serl.runs.config import resolve
from serl.runs.folder import RunFolder
from serl.runs.reward_data import episode_folders, read_images, read_samples, run_of, task_of
from serl.system.settings_file import merge
from serl.types import ActionSource, Array, Image

from ..test_reward_corrections import CONFIG, NOTHING, STEPS, SUCCESS, VIEWS, record

DRAWER = resolve({"task": "drawer"})
CLASSIFIER = RewardConfig(kind="classifier", model=Path("m"))


def classify_bright(images: Mapping[str, Image]) -> Probabilities:
    """Stand in for a classifier: success if the bright spot is on the right."""
    right = images["front"][:, 6:9, SUCCESS : SUCCESS + 3].min((1, 2, 3)) > 200
    return np.stack([1.0 - right, right], 1).astype(np.float32)


def label_episodes(
    *folders: Path, config: RewardConfig = CLASSIFIER, classes: int = 2
) -> list[LabelledEpisode]:
    stages = classes - 2

    def model(images: Mapping[str, Image]) -> Probabilities:
        return np.insert(classify_bright(images), [1] * stages, 0.0, 1)

    return list(labelled_episodes(folders, VIEWS, model, config, classes))


def make_run(root: Path, kind: str = "task") -> RunFolder:
    reward = {"kind": kind, "model": "m"} if kind == "classifier" else {"kind": kind}
    config = resolve(merge(CONFIG.model_dump(), {"reward": reward}))
    run = RunFolder.create(root, config, datetime.now())
    record(run.episodes("a"), run.name, "a", [NOTHING, SUCCESS])
    return run


def test_outcome_of_task_is_truth_of_run_without_classifier(tmp_path: Path) -> None:
    """The second before a success is unknown, because the task may debounce its outcome."""
    (first, second) = label_episodes(make_run(tmp_path).episodes("a"))
    assert first.by == second.by == "outcome"
    assert first.truths.tolist() == [UNKNOWN] * STEPS + [1]
    assert (first.probabilities[:, 1] == 0).all()
    assert (second.probabilities[:, 1] == 1).all()
    assert len(second.origins) == STEPS + 1


def test_run_with_classifier_has_unknown_truth_without_labels_or_simulation(tmp_path: Path) -> None:
    folder = make_run(tmp_path, "classifier").episodes("a")
    for episode in label_episodes(folder):
        assert episode.by == ""
        assert (episode.truths == UNKNOWN).all()
        assert len(episode.probabilities) == 0
    append_labels(
        folder, [(StepKey(1, 0, 1), 0), (StepKey(1, 0, STEPS), 0)], "simulation", file=TRUTH_FILE
    )
    first, second = label_episodes(folder, classes=3)
    assert (first.by, second.by) == ("simulation", "")
    assert first.truths.tolist() == [UNKNOWN, *[0] * STEPS]
    append_labels(
        folder, [(StepKey(1, 1, 4), 1), (StepKey(1, 1, 6), 1)], "simulation", file=TRUTH_FILE
    )
    _, second = label_episodes(folder, classes=3)
    assert second.truths[4:7].tolist() == [2, 2, 2], "the last stage is the success"


def test_simulation_truth_of_reset_episodes_is_ignored(tmp_path: Path) -> None:
    """Old logs label every reset step as no success, because the truth was not evaluated."""
    run = RunFolder.create(tmp_path, CONFIG, datetime.now())
    folder = run.episodes("a")
    record(folder, run.name, "a", [SUCCESS], source=ActionSource.SCRIPT)
    append_labels(
        folder, [(StepKey(1, 0, 1), 0), (StepKey(1, 0, STEPS), 0)], "simulation", file=TRUTH_FILE
    )
    (reset,) = label_episodes(folder)
    assert (reset.by, set(reset.truths)) == ("", {UNKNOWN})
    append_labels(folder, [(StepKey(1, 0, 3), 1)], "person")
    (reset,) = label_episodes(folder)
    assert (reset.by, int(reset.truths.max())) == ("labels", 1)


def test_labels_take_precedence_over_simulation_and_outcome(tmp_path: Path) -> None:
    folder = make_run(tmp_path).episodes("a")
    append_labels(
        folder, [(StepKey(1, 0, 0), 0), (StepKey(1, 0, STEPS), 1)], "simulation", file=TRUTH_FILE
    )
    append_labels(folder, [(StepKey(1, 0, STEPS), 0), (StepKey(1, 0, 99), 1)], "person")
    first, second = label_episodes(folder)
    assert (first.by, second.by) == ("labels", "outcome")
    assert first.truths[-1] == 0


def test_label_that_the_model_lacks_is_refused(tmp_path: Path) -> None:
    """Otherwise the success of a task with stages would count as a false positive."""
    folder = make_run(tmp_path).episodes("a")
    append_labels(folder, [(StepKey(1, 1, 3), 2)], "person")
    assert label_episodes(folder, classes=3)[1].truths[3] == 2
    with pytest.raises(SpecMismatch, match="a step is labelled 2, the model knows 0 to 1"):
        label_episodes(folder)


def test_tool_bounds_are_ignored_without_recorded_tool_positions(tmp_path: Path) -> None:
    """Without recorded tool positions the tool may have been inside the success region."""
    elsewhere = CLASSIFIER.model_copy(update={"tool_low_m": (0.0, 0.0, 5.0)})
    _, second = label_episodes(make_run(tmp_path).episodes("a"), config=elsewhere)
    assert not second.placed
    assert (second.probabilities[:, 1] == 1).all()


def test_recorded_tool_positions_bound_predictions_as_in_reward(tmp_path: Path) -> None:
    """The tool enters the success region in the middle of the second episode."""
    folder = make_run(tmp_path).episodes("a")
    height_m = {0: [1.0] * (STEPS + 1), 1: [1.0] * 4 + [6.0] * (STEPS - 3)}
    lines = [
        {"epoch": 1, "episode": episode, "tools_m": [[0.0, 0.0, z] for z in heights]}
        for episode, heights in height_m.items()
    ]
    (folder / TOOLS).write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    high = CLASSIFIER.model_copy(update={"tool_low_m": (-1.0, -1.0, 5.0)})
    first, second = label_episodes(folder, config=high)
    assert first.placed
    assert second.placed
    assert second.probabilities[:, 1].tolist() == [0.0] * 4 + [1.0] * (STEPS - 3)
    assert read_labelled_tools(folder)[:, 2].tolist() == [1.0, 6.0], (
        "training reads the positions as well"
    )
    (folder / TOOLS).write_text(f"{json.dumps(lines[0])}\n")
    first, second = label_episodes(folder, config=high)
    assert (first.placed, second.placed) == (True, False)
    assert (second.probabilities[:, 1] == 1).all(), "an unknown position may be in the region"


def read_labelled_tools(folder: Path) -> Array:
    """Label one step before and one after the tool enters, and read their tool positions."""
    append_labels(folder, [(StepKey(1, 1, 0), 0), (StepKey(1, 1, STEPS), 1)], "person")
    return read_samples([folder])[0].tools_m


def test_run_folder_expands_to_episodes_of_all_actors(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    record(run.episodes("b"), run.name, "b", [NOTHING])
    folders = episode_folders([run.path])
    assert folders == [run.episodes("a"), run.episodes("b")]
    assert len(label_episodes(*folders)) == 3
    assert task_of(folders) == "pick_cube"
    assert episode_folders([run.episodes("b")]) == [run.episodes("b")]
    found = run_of(run.episodes("a"))
    assert found is not None
    assert found.path.resolve() == run.path.resolve()


def test_episode_folder_named_twice_counts_once(tmp_path: Path) -> None:
    """Duplicates would appear in both the training and the test split."""
    run = make_run(tmp_path)
    folder, link = run.episodes("a"), tmp_path / "link"
    link.symlink_to(run.path)
    append_labels(folder, [(StepKey(1, 0, 0), 0), (StepKey(1, 1, STEPS), 1)], "person")
    named = [run.path, folder, folder / ".." / "a", link, link / "episodes" / "a"]
    assert episode_folders(named) == [folder]
    samples, _ = read_samples(episode_folders(named))
    assert samples.episodes.tolist() == [1, 2]
    assert len(set(samples.origins)) == 2


def test_folders_without_episodes_or_images_are_refused(tmp_path: Path) -> None:
    empty = RunFolder.create(tmp_path, CONFIG, datetime.now())
    with pytest.raises(BadInput, match="no actor of this run has recorded an episode"):
        episode_folders([empty.path])
    with pytest.raises(BadInput, match="no such folder; expected a collection, or a run"):
        episode_folders([tmp_path / "absent"])
    blind = RunFolder.create(tmp_path, resolve({"task": "pick_cube"}), datetime.now())
    with pytest.raises(BadInput, match="have no images, only state"):
        label_episodes(blind.episodes("a"))
    assert run_of(tmp_path) is None


def test_episodes_of_several_tasks_are_refused(tmp_path: Path) -> None:
    other = RunFolder.create(tmp_path, DRAWER, datetime.now())
    record(other.episodes("c"), other.name, "c", [NOTHING], DRAWER)
    folders = [make_run(tmp_path).episodes("a"), other.episodes("c")]
    with pytest.raises(
        SpecMismatch, match=r"episodes of several tasks: .* of pick_cube; .* drawer"
    ):
        task_of(folders)


def test_read_images_keeps_requested_order(tmp_path: Path) -> None:
    folder = make_run(tmp_path).episodes("a")
    first, second = label_episodes(folder)
    origins = [second.origins[3], first.origins[STEPS], second.origins[0]]
    images = read_images(origins, ["front"])
    assert classify_bright(images)[:, 1].tolist() == [1.0, 0.0, 1.0]
    assert read_images([], ["front"])["front"].shape[0] == 0


def test_labelled_episodes_refuses_different_views(tmp_path: Path) -> None:
    with pytest.raises(SpecMismatch, match="view 'front': expected"):
        list(
            labelled_episodes(
                [make_run(tmp_path).episodes("a")],
                {"front": VIEWS["wrist"]},
                classify_bright,
                CLASSIFIER,
                2,
            )
        )
