from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from serl.camera import View
from serl.cli import main as cli
from serl.errors import BadInput, SpecMismatch
from serl.log.annotations import StepKey, append_labels
from serl.log.episode_log import EpisodeLog, LogConfig
from serl.runs.reward_data import with_labelled, write_views
from serl.specs import ArraySpec, ObservationSpec, Spec
from serl.training.successes import LastFrames, Successes
from serl.types import ActionSource, End, EndReason, Key, Observation, Record, Step

SPEC = ObservationSpec(state={"x": ArraySpec(shape=(1,))})
IMAGE = ArraySpec(shape=(8, 8, 3), dtype="uint8")
WITH_IMAGES = ObservationSpec(state=SPEC.state, images={"front": IMAGE})


def records(episode: int, steps: int, success: bool) -> list[Record]:
    """Return an episode's records; each observation holds 10 * episode + step."""

    def seen(index: int) -> Observation:
        value = 10 * episode + index
        images = {"front": np.full((8, 8, 3), value, np.uint8)}
        return Observation({"x": np.array([value], np.float32)}, images)

    action = np.zeros(1, np.float32)
    taken: list[Record] = [
        Step(
            Key("run", "expert", 1, episode, index),
            seen(index),
            action,
            action,
            0.0,
            "truth",
            False,
            False,
            ActionSource.SCRIPT,
            0,
            0.0,
            0.0,
        )
        for index in range(steps)
    ]
    key = Key("run", "expert", 1, episode, steps)
    return [*taken, End(key, seen(steps), success, EndReason.SUCCESS, 0.0, 0.0)]


def kept(spec: ObservationSpec, count: int = 3) -> Successes:
    last = LastFrames(spec, count)
    for record in (*records(0, 6, True), *records(1, 6, False), *records(2, 1, True)):
        last.add(record)
    return last.successes()


def test_only_last_observations_of_successful_episodes_are_kept() -> None:
    assert kept(SPEC).state.ravel().tolist() == [4, 5, 6, 20, 21]
    assert kept(SPEC, 1).state.ravel().tolist() == [6, 21]


def test_success_images_are_kept_for_image_policies() -> None:
    found = kept(WITH_IMAGES)
    assert len(found) == 5
    assert found.images["front"][:, 0, 0, 0].tolist() == [4, 5, 6, 20, 21]


@pytest.mark.parametrize("spec", [SPEC, WITH_IMAGES])
def test_successes_may_be_empty(spec: ObservationSpec) -> None:
    assert len(LastFrames(spec, 3).successes()) == 0


def test_labelled_images_are_refused_for_state_policies() -> None:
    found = kept(SPEC)
    assert with_labelled(found, (), {}) is found
    with pytest.raises(BadInput, match=r"vice\.positives: are images, and the policy sees none"):
        with_labelled(found, (Path("x"),), {})


SIGHT = {"front": View(camera="front", width=8, height=8)}


def collection(folder: Path, labels: list[int]) -> Path:
    """Write two episodes with observations 10 * episode + step; label the second one."""
    spec = Spec(
        task="test",
        observation=WITH_IMAGES,
        action=ArraySpec(shape=(1,), low=-1.0, high=1.0, unit="x"),
        rate_hz=10.0,
    )
    with EpisodeLog(folder, spec, "run", "expert", 1, LogConfig(min_free_bytes=0)) as log:
        for number in range(2):
            for record in records(number, 4, True):
                log.append(record)
    write_views(folder, SIGHT)
    append_labels(folder, [(StepKey(1, 1, step), each) for step, each in enumerate(labels)], "test")
    return folder


def brightness(found: Successes) -> list[int]:
    images: list[int] = found.images["front"][:, 0, 0, 0].tolist()
    return images


def test_highest_label_of_each_collection_counts_as_success(tmp_path: Path) -> None:
    found = kept(WITH_IMAGES, 1)
    binary = collection(tmp_path / "binary", [0, 1, 1])
    staged = collection(tmp_path / "staged", [0, 1, 1, 2])
    assert brightness(with_labelled(found, (binary,), SIGHT)) == [6, 21, 11, 12]
    both = with_labelled(found, (staged, binary), SIGHT)
    assert brightness(both) == [6, 21, 13, 11, 12]
    assert len(both) == 5
    assert both.state.shape == (5, 0)


def test_collection_without_success_is_refused_by_name(tmp_path: Path) -> None:
    good, bad = collection(tmp_path / "good", [0, 1]), collection(tmp_path / "bad", [0, 0])
    line = r"vice\.positives: .*bad: none of its 2 labelled steps is a success \(serl reward label"
    with pytest.raises(BadInput, match=line):
        with_labelled(kept(WITH_IMAGES), (good, bad), SIGHT)
    unlabelled = collection(tmp_path / "unlabelled", [])
    with pytest.raises(BadInput, match="unlabelled: no step of any episode is labelled"):
        with_labelled(kept(WITH_IMAGES), (good, unlabelled), SIGHT)
    other = {"front": SIGHT["front"].model_copy(update={"camera": "wrist"})}
    with pytest.raises(SpecMismatch, match=r"good: view 'front': expected camera='wrist'"):
        with_labelled(kept(WITH_IMAGES), (good,), other)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("vice", "--observe=pixels"), r"absent: no such folder; expected a collection, or a run"),
        (("vice",), "vice.positives: are images, and the policy sees none (--observe pixels)"),
        (("task", "--observe=pixels"), "vice.positives: are for --reward.kind vice alone"),
    ],
)
def test_unusable_positives_are_refused_before_run_is_created(
    words: tuple[str, ...],
    complaint: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    kind, *rest = words
    asked = [f"--reward.kind={kind}", "--vice.positives=[absent]", *rest]
    assert cli.main(["train", "pick_cube", *asked]) == cli.BAD_INPUT
    message = capsys.readouterr().err
    assert complaint in message
    assert message.count("\n") == 1
    assert not list(tmp_path.iterdir())
