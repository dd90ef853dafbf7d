"""What is known of the steps of collections and of runs, and which word counts before which."""

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
    between,
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


def bright(images: Mapping[str, Image]) -> Probabilities:
    """A model: success where the spot is to the right."""
    right = images["front"][:, 6:9, SUCCESS : SUCCESS + 3].min((1, 2, 3)) > 200
    return np.stack([1.0 - right, right], 1).astype(np.float32)


def told(
    *folders: Path, config: RewardConfig = CLASSIFIER, classes: int = 2
) -> list[LabelledEpisode]:
    stages = classes - 2

    def model(images: Mapping[str, Image]) -> Probabilities:
        return np.insert(bright(images), [1] * stages, 0.0, 1)

    return list(labelled_episodes(folders, VIEWS, model, config, classes))


def make_run(root: Path, kind: str = "task") -> RunFolder:
    reward = {"kind": kind, "model": "m"} if kind == "classifier" else {"kind": kind}
    config = resolve(merge(CONFIG.model_dump(), {"reward": reward}))
    run = RunFolder.create(root, config, datetime.now())
    record(run.episodes("a"), run.name, "a", [NOTHING, SUCCESS])
    return run


def test_what_lies_between_two_equal_words_is_as_they_say() -> None:
    words = np.array([UNKNOWN, 0, UNKNOWN, 0, UNKNOWN, 1, UNKNOWN, 1, UNKNOWN])
    assert between(words).tolist() == [-1, 0, 0, 0, -1, 1, 1, 1, -1]
    assert words[2] == UNKNOWN


def test_in_a_run_that_its_task_judged_the_outcome_is_the_truth(tmp_path: Path) -> None:
    """The second before a success is nobody's: the task may have waited until it was sure."""
    (first, second) = told(make_run(tmp_path).episodes("a"))
    assert first.by == second.by == "outcome"
    assert first.truths.tolist() == [UNKNOWN] * STEPS + [1]
    assert (first.probabilities[:, 1] == 0).all()
    assert (second.probabilities[:, 1] == 1).all()
    assert len(second.origins) == STEPS + 1


def test_of_a_run_that_a_model_judged_nothing_is_known_unless_somebody_knew(tmp_path: Path) -> None:
    folder = make_run(tmp_path, "classifier").episodes("a")
    for episode in told(folder):
        assert episode.by == ""
        assert (episode.truths == UNKNOWN).all()
        assert len(episode.probabilities) == 0
    append_labels(
        folder, [(StepKey(1, 0, 1), 0), (StepKey(1, 0, STEPS), 0)], "simulation", file=TRUTH_FILE
    )
    first, second = told(folder, classes=3)
    assert (first.by, second.by) == ("simulation", "")
    assert first.truths.tolist() == [UNKNOWN, *[0] * STEPS]
    append_labels(
        folder, [(StepKey(1, 1, 4), 1), (StepKey(1, 1, 6), 1)], "simulation", file=TRUTH_FILE
    )
    _, second = told(folder, classes=3)
    assert second.truths[4:7].tolist() == [2, 2, 2], "of stages the last is the success"


def test_what_a_simulation_is_said_to_know_of_a_reset_is_not_believed(tmp_path: Path) -> None:
    """Logs of before hold such words: nobody had looked, and so they all said no."""
    run = RunFolder.create(tmp_path, CONFIG, datetime.now())
    folder = run.episodes("a")
    record(folder, run.name, "a", [SUCCESS], source=ActionSource.SCRIPT)
    append_labels(
        folder, [(StepKey(1, 0, 1), 0), (StepKey(1, 0, STEPS), 0)], "simulation", file=TRUTH_FILE
    )
    (reset,) = told(folder)
    assert (reset.by, set(reset.truths)) == ("", {UNKNOWN})
    append_labels(folder, [(StepKey(1, 0, 3), 1)], "person")
    (reset,) = told(folder)
    assert (reset.by, int(reset.truths.max())) == ("labels", 1)


def test_a_label_counts_before_all_else(tmp_path: Path) -> None:
    folder = make_run(tmp_path).episodes("a")
    append_labels(
        folder, [(StepKey(1, 0, 0), 0), (StepKey(1, 0, STEPS), 1)], "simulation", file=TRUTH_FILE
    )
    append_labels(folder, [(StepKey(1, 0, STEPS), 0), (StepKey(1, 0, 99), 1)], "person")
    first, second = told(folder)
    assert (first.by, second.by) == ("labels", "outcome")
    assert first.truths[-1] == 0


def test_where_no_success_can_be_no_image_is_asked(tmp_path: Path) -> None:
    """These recordings do not say where the tool was, so that it may have been anywhere."""
    elsewhere = CLASSIFIER.model_copy(update={"tool_low_m": (0.0, 0.0, 5.0)})
    _, second = told(make_run(tmp_path).episodes("a"), config=elsewhere)
    assert not second.placed
    assert (second.probabilities[:, 1] == 1).all()


def test_where_a_run_says_where_the_tool_was_it_counts_as_in_the_reward(tmp_path: Path) -> None:
    """The tool comes to where a success can be in the middle of the second episode."""
    folder = make_run(tmp_path).episodes("a")
    height_m = {0: [1.0] * (STEPS + 1), 1: [1.0] * 4 + [6.0] * (STEPS - 3)}
    lines = [
        {"epoch": 1, "episode": episode, "tools_m": [[0.0, 0.0, z] for z in heights]}
        for episode, heights in height_m.items()
    ]
    (folder / TOOLS).write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    high = CLASSIFIER.model_copy(update={"tool_low_m": (-1.0, -1.0, 5.0)})
    first, second = told(folder, config=high)
    assert first.placed
    assert second.placed
    assert second.probabilities[:, 1].tolist() == [0.0] * 4 + [1.0] * (STEPS - 3)
    assert read_tools_of(folder)[:, 2].tolist() == [1.0, 6.0], "trainings read it as well"
    (folder / TOOLS).write_text(f"{json.dumps(lines[0])}\n")
    first, second = told(folder, config=high)
    assert (first.placed, second.placed) == (True, False)
    assert (second.probabilities[:, 1] == 1).all(), "who is not known to be elsewhere may be there"


def read_tools_of(folder: Path) -> Array:
    """Of labelled samples, one before and one after."""
    append_labels(folder, [(StepKey(1, 1, 0), 0), (StepKey(1, 1, STEPS), 1)], "person")
    return read_samples([folder])[0].tools_m


def test_a_run_is_the_episodes_of_all_its_actors(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    record(run.episodes("b"), run.name, "b", [NOTHING])
    folders = episode_folders([run.path])
    assert folders == [run.episodes("a"), run.episodes("b")]
    assert len(told(*folders)) == 3
    assert task_of(folders) == "pick_cube"
    assert episode_folders([run.episodes("b")]) == [run.episodes("b")]
    found = run_of(run.episodes("a"))
    assert found is not None
    assert found.path.resolve() == run.path.resolve()


def test_an_episode_that_is_named_twice_counts_once(tmp_path: Path) -> None:
    """Else it is trained on under one number, and measured on under another one."""
    run = make_run(tmp_path)
    folder, link = run.episodes("a"), tmp_path / "link"
    link.symlink_to(run.path)
    append_labels(folder, [(StepKey(1, 0, 0), 0), (StepKey(1, 1, STEPS), 1)], "person")
    named = [run.path, folder, folder / ".." / "a", link, link / "episodes" / "a"]
    assert episode_folders(named) == [folder]
    samples, _ = read_samples(episode_folders(named))
    assert samples.episodes.tolist() == [1, 2]
    assert len(set(samples.origins)) == 2


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    empty = RunFolder.create(tmp_path, CONFIG, datetime.now())
    with pytest.raises(BadInput, match="no actor of this run has recorded an episode"):
        episode_folders([empty.path])
    with pytest.raises(BadInput, match="no such folder; expected a collection, or a run"):
        episode_folders([tmp_path / "absent"])
    blind = RunFolder.create(tmp_path, resolve({"task": "pick_cube"}), datetime.now())
    with pytest.raises(BadInput, match="have no images, only state"):
        told(blind.episodes("a"))
    assert run_of(tmp_path) is None


def test_episodes_of_several_tasks_are_refused(tmp_path: Path) -> None:
    other = RunFolder.create(tmp_path, DRAWER, datetime.now())
    record(other.episodes("c"), other.name, "c", [NOTHING], DRAWER)
    folders = [make_run(tmp_path).episodes("a"), other.episodes("c")]
    with pytest.raises(
        SpecMismatch, match=r"episodes of several tasks: .* of pick_cube; .* drawer"
    ):
        task_of(folders)


def test_images_are_read_again_in_the_order_they_are_asked_for(tmp_path: Path) -> None:
    folder = make_run(tmp_path).episodes("a")
    first, second = told(folder)
    origins = [second.origins[3], first.origins[STEPS], second.origins[0]]
    images = read_images(origins, ["front"])
    assert bright(images)[:, 1].tolist() == [1.0, 0.0, 1.0]
    assert read_images([], ["front"])["front"].shape[0] == 0


def test_other_views_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecMismatch, match="view 'front': expected"):
        list(
            labelled_episodes(
                [make_run(tmp_path).episodes("a")],
                {"front": VIEWS["wrist"]},
                bright,
                CLASSIFIER,
                2,
            )
        )
