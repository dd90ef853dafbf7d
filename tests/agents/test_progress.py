"""Models of the time until success and the progress reward derived from them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import torch

from serl.agents.config import TimeToGoConfig
from serl.agents.progress import TimeToGo, make_progress, train_time_to_go
from serl.errors import BadInput, CorruptData, SerlError, SpecMismatch
from serl.reward import RewardConfig
from serl.runs.task_setup import make_spec
from serl.specs import ArraySpec, Spec
from serl.testing import FakeRobot, FakeTask
from serl.testing.samples import episode
from serl.types import Observation

SPEC = make_spec(FakeTask())
QUICK = TimeToGoConfig(epochs=30, batch_size=32, learning_rate=3e-3, hidden=32, threads=1)
DISCOUNT = 0.9


def demonstrations(count: int = 30) -> list[list[Observation]]:
    """Return demonstrations of the fake task: straight paths to the origin."""
    task, made = FakeTask(), []
    for seed in range(count):
        robot = FakeRobot()
        robot.reset(seed)
        records = episode(robot, task, task.expert(robot.truth, 0), seed=seed)
        made.append([record.observation for record in records])
    return made


@pytest.fixture(scope="module")
def trained() -> TimeToGo:
    return train_time_to_go(demonstrations(), SPEC, QUICK)


@pytest.fixture
def path(trained: TimeToGo, tmp_path: Path) -> Path:
    trained.save(tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors"


def settings(path: Path, **own: Any) -> RewardConfig:
    return RewardConfig(kind="progress", progress={"model": path, **own})


def at(x: float) -> Observation:
    return Observation({"position": np.array([x, 0.0], np.float32), "velocity": np.zeros(2, "f4")})


def test_time_to_go_learns_remaining_time_and_reports_held_out_error(trained: TimeToGo) -> None:
    card = trained.card
    assert (card.demonstrations, card.held_out, card.task) == (30, 6, "fake")
    assert card.error_s < 0.5 * card.constant_s
    others = demonstrations(50)[30:]
    states = np.array([SPEC.observation.flatten(each) for run in others for each in run])
    left = np.concatenate([np.arange(len(run) - 1, -1, -1) / SPEC.rate_hz for run in others])
    assert np.abs(trained.seconds(states, {}) - left).mean() < 0.5 * card.constant_s
    again = train_time_to_go(demonstrations(), SPEC, QUICK)
    assert again.card == card
    assert torch.equal(again.head_flat, trained.head_flat)


def test_progress_is_success_discounted_by_time_to_go(path: Path) -> None:
    progress = make_progress(settings(path), SPEC, DISCOUNT)
    model = TimeToGo.load(path)
    (left_s,) = model.seconds(SPEC.observation.flatten(at(0.15))[None], {})
    assert progress(at(0.15)) == pytest.approx(DISCOUNT ** (left_s * SPEC.rate_hz))
    near, far = progress(at(0.02)), progress(at(0.15))
    assert 0.0 < far < near <= 1.0
    assert progress.provenance.startswith("model ")
    beyond = 1.0 * DISCOUNT ** (model.card.longest_s * SPEC.rate_hz)
    assert progress(at(1e6)) >= beyond - 1e-6, "no longer than any demonstration"


def test_progress_model_of_other_task_spec_or_digest_is_refused(path: Path) -> None:
    def refusal(config: RewardConfig, spec: Spec) -> str:
        with pytest.raises(SerlError) as caught:
            make_progress(config, spec, DISCOUNT)
        return str(caught.value)

    other = SPEC.model_copy(update={"task": "other"})
    assert "trained for fake, not for other" in refusal(settings(path), other)
    allowed = settings(path).model_copy(update={"transfer": True})
    make_progress(allowed, other, DISCOUNT)
    more = {**SPEC.observation.state, "gripper": ArraySpec(shape=(1,))}
    wider = SPEC.model_copy(
        update={"observation": SPEC.observation.model_copy(update={"state": more})}
    )
    assert "velocity [2] m/s, here it is position [2] m, velocity [2] m/s, gripper [1]" in refusal(
        settings(path), wider
    )
    assert "is another one than when the run was made" in refusal(
        settings(path, sha256="0" * 64), SPEC
    )


def test_damaged_progress_model_file_is_refused(path: Path) -> None:
    arrays = safetensors.numpy.load(path.read_bytes())
    good = path.read_bytes()
    card = TimeToGo.load(path).card

    def written(text: str, changed: dict[str, np.ndarray[Any, Any]]) -> None:
        metadata = {"format": "serl time to go 1", "card": text}
        path.write_bytes(safetensors.numpy.save({**arrays, **changed}, metadata))

    huge = card.model_copy(update={"hidden": 4096}).model_dump_json()
    cases: list[tuple[Callable[[], object], str]] = [
        (lambda: path.write_bytes(good[:200]), "progress model .*"),
        (lambda: path.write_bytes(b""), "not a safetensors file"),
        (lambda: written("{}", {}), "card: state: Field required"),
        (lambda: written(huge, {}), "expected"),
        (lambda: written(card.model_dump_json(), {"std": np.zeros(4, np.float32)}), "not positive"),
    ]
    for make, line in cases:
        make()
        with pytest.raises(CorruptData, match=line):
            TimeToGo.load(path)
    path.unlink()
    with pytest.raises(BadInput, match="No such file"):
        TimeToGo.load(path)


def test_too_few_demonstrations_and_absent_images_are_refused() -> None:
    with pytest.raises(BadInput, match="4 successful demonstrations: expected at least 5"):
        train_time_to_go(demonstrations(4), SPEC, QUICK)
    blind = QUICK.model_copy(update={"encoder": "resnet10"})
    with pytest.raises(BadInput, match="these observations have no images"):
        train_time_to_go(demonstrations(5), SPEC, blind)


def test_time_to_go_learns_from_frozen_trunk_features(
    trunk_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "serl").symlink_to(trunk_file.parent)
    image = ArraySpec(shape=(12, 12, 3), dtype="uint8")
    state = {"nothing": ArraySpec(shape=(1,))}
    seen = SPEC.observation.model_copy(update={"state": state, "images": {"front": image}})
    spec = SPEC.model_copy(update={"observation": seen})

    def shown(step: int) -> Observation:
        pixels = np.full((12, 12, 3), 40, np.uint8)
        pixels[:, step : step + 3] = 250
        return Observation({"nothing": np.zeros(1, np.float32)}, {"front": pixels})

    runs = [[shown(step) for step in range(first, 10)] for first in (0, 1, 2, 0, 1)]
    changes = {"encoder": "resnet10", "copies": 1, "latent": 16, "epochs": 60}
    config = QUICK.model_copy(update=changes)
    model = train_time_to_go(runs, spec, config)
    assert model.card.error_s < 0.7 * model.card.constant_s
    model.save(tmp_path / "model.safetensors")
    progress = make_progress(settings(tmp_path / "model.safetensors"), spec, DISCOUNT)
    assert progress(shown(9)) > progress(shown(0))
    smaller = {"front": ArraySpec(shape=(8, 8, 3), dtype="uint8")}
    other = seen.model_copy(update={"images": smaller})
    with pytest.raises(SpecMismatch, match="trained on the view 'front'"):
        make_progress(
            settings(tmp_path / "model.safetensors"),
            spec.model_copy(update={"observation": other}),
            DISCOUNT,
        )
