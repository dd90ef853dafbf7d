"""Correction of a reward model: label its mistakes in a run and train it again."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest

from serl.agents.classifier import Classifier, make_reward
from serl.camera import View
from serl.cli import main as cli
from serl.log.annotations import LABELS_FILE, StepKey, append_labels, read_labels
from serl.log.annotations import TRUTH_FILE as TRUTH
from serl.log.episode_log import EpisodeLog
from serl.log.episode_reader import PART, SEALED, episode_paths, read_episode, read_spec
from serl.reward import RewardConfig
from serl.runs.config import TrainConfig, resolve
from serl.runs.folder import RunFolder
from serl.runs.reward_data import read_samples, write_views
from serl.runs.task_setup import make_spec, make_task
from serl.specs import Spec
from serl.testing.samples import random_step
from serl.types import ActionSource, End, EndReason, Image, Key, Observation

VIEWS = {
    name: View(camera=camera, width=16, height=16)
    for name, camera in (("front", "field"), ("wrist", "wrist"))
}
CONFIG = resolve(
    {
        "task": "pick_cube",
        "observe": "pixels",
        "task_config": {"views": {name: view.model_dump() for name, view in VIEWS.items()}},
    }
)
NOTHING, NEARLY, SUCCESS = 1, 9, 12  # column of a bright spot
STEPS = 10
QUICK = ("--epochs=12", "--batch_size=32", "--learning_rate=0.003", "--crop_px=0", "--threads=1")


def spot(column: int, rng: np.random.Generator) -> Image:
    image: Image = rng.integers(0, 90, (16, 16, 3), np.uint8)
    image[6:9, column : column + 3] = 250
    return image


def record(
    folder: Path,
    run: str,
    actor: str,
    columns: Iterable[int],
    config: TrainConfig = CONFIG,
    last: int | None = None,
    source: ActionSource = ActionSource.POLICY,
) -> None:
    """Record an episode per column with the spot there, at the last observation at `last`."""
    spec: Spec = make_spec(make_task(config))
    rng = np.random.default_rng(0)
    state = {name: np.zeros(a.shape, np.float32) for name, a in spec.observation.state.items()}
    with EpisodeLog(folder, spec, run, actor, 1) as log:
        for episode, column in enumerate(columns):
            for index in range(STEPS + 1):
                here = column if last is None or index < STEPS else last
                images = {name: spot(here, rng) for name in spec.observation.images}
                seen = Observation(state, images, dict.fromkeys(("robot", *VIEWS), 0.0))
                key = Key(run, actor, 1, episode, index)
                if index == STEPS:
                    log.append(End(key, seen, True, EndReason.SUCCESS, STEPS * 0.1, 1763715241.0))
                else:
                    step = random_step(key, spec, rng)
                    over = index == STEPS - 1
                    log.append(replace(step, observation=seen, terminated=over, source=source))


def label(folder: Path, episodes: Iterable[int], label: int) -> None:
    places = [StepKey(1, episode, step) for episode in episodes for step in range(STEPS)]
    append_labels(folder, [(place, label) for place in places], "script")


def predicted_success_rate(path: Path, column: int) -> float:
    """Return the fraction of images with the spot at `column` that a model predicts as success."""
    model, rng = Classifier.load(path), np.random.default_rng(9)
    images = {name: np.stack([spot(column, rng) for _ in range(50)]) for name in VIEWS}
    return float((model.probabilities(images)[:, 1] >= model.card.threshold).mean())


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    """Record a collection of both classes and a run that ends just short of success."""
    collection = tmp_path / "collection"
    write_views(collection, VIEWS)
    record(collection, "collection", "collector", [NOTHING, SUCCESS] * 15)
    label(collection, range(0, 30, 2), 0)
    label(collection, range(1, 30, 2), 1)
    run = RunFolder.create(tmp_path / "runs", CONFIG, datetime.now())
    record(run.episodes("actor0"), run.name, "actor0", [NEARLY] * 15)
    return run


def audited(capsys: pytest.CaptureFixture[str], model: Path, *words: object) -> str:
    capsys.readouterr()
    assert cli.main(["reward", "audit", str(model), *map(str, words), "--reward.hold=[2, 3]"]) == 0
    return capsys.readouterr().out


def test_corrected_labels_are_learned_and_original_labels_kept(
    run: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    collection, mine = str(tmp_path / "collection"), run.episodes("actor0")
    first, second = tmp_path / "first.safetensors", tmp_path / "second.safetensors"
    label(mine, range(15), 1)  # as the model predicted at the end of the episodes
    assert cli.main(["reward", "train", collection, str(mine), f"--out={first}", *QUICK]) == 0
    assert predicted_success_rate(first, NEARLY) > 0.9
    text = audited(capsys, first, tmp_path / "collection", run.path)
    assert "truth: labels of steps by people or scripts, 45 episodes" in text
    assert "0 of 45 episodes end with a false success" in text
    assert text.startswith("episodes: 1 of 45\n")

    before = (mine / LABELS_FILE).read_bytes()
    words = ["--episode=0", f"--steps=0:{STEPS - 1}", "--label=0"]
    assert cli.main(["reward", "label", str(run.path), *words]) == 0
    label(mine, range(1, 15), 0)
    assert (mine / LABELS_FILE).read_bytes().startswith(before), "original labels were changed"
    assert set(read_labels(mine).values()) == {0}, (
        "a correction does not override the original label"
    )
    assert read_samples([mine])[0].labels.tolist() == [0] * 15 * STEPS

    sheet = tmp_path / "worst.png"
    text = audited(capsys, first, run.path, f"--sheet={sheet}")
    assert "15 of 15 episodes end with a false success" in text
    assert f"false success: {mine} --epoch 1 --episode 0 --steps 2" in text
    assert sheet.read_bytes().startswith(b"\x89PNG")

    runs = [collection, str(run.path)]
    assert cli.main(["reward", "train", *runs, f"--out={second}", *QUICK]) == 0
    assert "0 of 15 episodes end with a false success" in audited(capsys, second, run.path)
    assert predicted_success_rate(second, NEARLY) < 0.1
    assert predicted_success_rate(second, SUCCESS) > 0.9


def test_final_observation_named_by_audit_can_be_labelled(
    run: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, misclassified = tmp_path / "m.safetensors", tmp_path / "misclassified"
    assert (
        cli.main(["reward", "train", str(tmp_path / "collection"), f"--out={model}", *QUICK]) == 0
    )
    write_views(misclassified, VIEWS)
    record(misclassified, "misclassified", "actor0", [NOTHING], last=SUCCESS)
    append_labels(
        misclassified, [(StepKey(1, 0, 0), 0), (StepKey(1, 0, STEPS), 0)], "simulation", file=TRUTH
    )
    capsys.readouterr()
    assert (
        cli.main(["reward", "audit", str(model), str(misclassified), "--reward.hold=[1, 1]"]) == 0
    )
    (line,) = (each for each in capsys.readouterr().out.splitlines() if "false success:" in each)
    words = line.split("false success: ")[1].split()[:7]  # as `serl reward label` takes them
    assert words[1:] == ["--epoch", "1", "--episode", "0", "--steps", str(STEPS)]
    label = ["reward", "label", *words, "--label"]
    assert cli.main([*label, "0"]) == 0
    assert read_labels(misclassified) == {StepKey(1, 0, STEPS): 0}
    assert cli.main([*label, "1"]) == 0, "the wrong label could not be corrected"
    assert read_labels(misclassified) == {StepKey(1, 0, STEPS): 1}


def test_label_beyond_last_observation_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Refuse also the final observation of an interrupted episode, which was not recorded."""
    write_views(tmp_path, VIEWS)
    record(tmp_path, "collection", "collector", [NOTHING, NOTHING])
    (_, broken) = episode_paths(tmp_path)
    whole = broken.read_bytes()
    broken = broken.rename(broken.with_name(broken.name.removesuffix(SEALED) + PART))
    broken.write_bytes(whole[: len(whole) // 2])
    spec = read_spec(broken)
    assert spec is not None
    left = len(read_episode(broken, spec).steps)
    assert 0 < left < STEPS
    for episode, length in ((0, STEPS + 1), (1, left)):
        words = ["reward", "label", str(tmp_path), f"--episode={episode}", "--label=0"]
        assert cli.main([*words, f"--steps={length}"]) != 0
        assert f"expected steps from 0 to {length - 1}" in capsys.readouterr().err
        assert cli.main([*words, f"--steps={length - 1}"]) == 0


def test_stages_are_labelled_trained_and_rewarded_in_order(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, path = tmp_path / "collection", tmp_path / "m.safetensors"
    write_views(folder, VIEWS, "ray")
    record(folder, "collection", "collector", [NOTHING, NEARLY, SUCCESS] * 6)
    for stage in range(3):
        words = [f"--episode={stage}", f"--steps=0:{STEPS - 1}", f"--label={stage}"]
        assert cli.main(["reward", "label", str(folder), *words]) == 0
        label(folder, range(stage + 3, 18, 3), stage)
    assert cli.main(["reward", "train", str(folder), f"--out={path}", *QUICK]) == 0
    card = Classifier.load(path).card
    assert (card.task, card.renderers) == ("pick_cube", ("ray",))
    assert card.classes == ("nothing", "stage 1", "success")
    assert "0 of 18 episodes end with a false success" in audited(capsys, path, folder)

    rng, task = np.random.default_rng(3), make_task(CONFIG)
    place = task.training_defaults()["reward"]
    reward = make_reward(RewardConfig(kind="classifier", model=path, hold=(2, 3), **place), task)
    columns = [SUCCESS, SUCCESS, NEARLY, NOTHING, NEARLY, SUCCESS, SUCCESS]
    up = {"tcp_pose": np.full(7, 0.5, np.float32)}
    seen = [Observation(up, {name: spot(column, rng) for name in VIEWS}) for column in columns]
    reward.begin(seen[0])
    judgements = [reward(each) for each in seen]
    assert [each.reward for each in judgements] == [0.0] * 4 + [0.5, 0.0, 0.5]
    assert [each.success for each in judgements] == [False] * 6 + [True]
