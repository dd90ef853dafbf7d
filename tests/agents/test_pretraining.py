from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import torch

from serl import plugins
from serl.agents.config import PretrainingConfig, SACConfig
from serl.agents.pretraining import (
    PretrainedEncoder,
    TaskImages,
    collect_images,
    load_encoder,
    pretrain,
    save_encoder,
)
from serl.agents.sac import SAC
from serl.errors import BadInput, CorruptData, SpecMismatch
from serl.runs.config import resolve
from serl.runs.task_setup import make_spec, make_task
from serl.testing import FakeRobot, FakeTask
from serl.types import Array, Observation

QUICK = PretrainingConfig(
    samples=400, epochs=30, channels=(8, 8), latent=8, crop_px=0, threads=1, learning_rate=3e-3
)
SMALL = {view: {"width": 16, "height": 16} for view in ("front", "wrist")}
RUN = resolve(
    {
        "task": "pick_cube",
        "observe": "pixels",
        "task_config": {"views": SMALL},
        "agent": {"encoder_channels": [8, 8], "latent": 8, "device": "cpu", "threads": 1},
    }
)
assert isinstance(RUN.agent, SACConfig)
AGENT = RUN.agent


FROM_STATE = resolve({"task": "pick_cube", "observe": "state"})


def spots(count: int, camera: str = "front") -> TaskImages:
    """Return images of a bright spot and its offset from the centre, 1 cm per pixel."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 60, (count, 16, 16, 3), np.uint8)
    places = rng.integers(2, 13, (count, 2))
    for image, (row, column) in zip(images, places, strict=True):
        image[row : row + 2, column : column + 2] = 250
    height = np.full((count, 1), 0.3, np.float32)
    return TaskImages({camera: images}, {"spot": _places(places), "height": height})


def _places(pixels: Any) -> Array:
    metres: Array = ((pixels - 7.5) / 100.0).astype(np.float32)
    return metres


def test_pretraining_learns_positions_and_reports_errors() -> None:
    made = pretrain({"spots": spots(400)}, QUICK)
    assert made.errors["spots"]["spot"] < 0.012, "about one pixel; ignoring the image gives 0.044"
    assert made.errors["spots"]["height"] < 0.05, "a constant target"


def test_pretraining_learns_several_tasks_with_a_shared_camera() -> None:
    wrist = spots(200, "wrist")
    more = {f"{name} again": target for name, target in wrist.targets.items()}
    both = TaskImages({**spots(200).images, **wrist.images}, {**wrist.targets, **more})
    epochs_reported: list[int] = []
    config = QUICK.model_copy(update={"epochs": 2})
    made = pretrain(
        {"one": both, "other": wrist}, config, lambda epoch, loss: epochs_reported.append(epoch)
    )
    assert dict(made.sizes) == {"front": (16, 16), "wrist": (16, 16)}
    assert {name.split(".")[0] for name in made.arrays} == {"front", "wrist"}
    assert list(made.errors) == ["one", "other"]
    assert list(made.errors["one"]) == ["spot", "height", "spot again", "height again"]
    assert epochs_reported == [1, 2]
    larger = TaskImages({"wrist": np.zeros((200, 16, 20, 3), np.uint8)}, wrist.targets)
    with pytest.raises(BadInput, match="other: camera wrist: 16 x 20 pixels, of another task 16 x"):
        pretrain({"one": both, "other": larger}, config)


def test_pretraining_is_most_exact_near_zero() -> None:
    """Train on spots of which half lie within a pixel of the centre and the others far away."""
    rng = np.random.default_rng(0)
    columns = np.where(
        rng.random(600) < 0.5, rng.uniform(-0.02, 0.02, 600), rng.uniform(-1, 1, 600)
    )
    images = np.zeros((600, 16, 16, 3), np.uint8)
    for image, column in zip(images, columns, strict=True):
        place = 7.0 + 6.0 * column
        left = int(place)
        image[7:9, left + 1] = 250
        image[7:9, left], image[7:9, left + 2] = 250 * (left + 1 - place), 250 * (place - left)
    near = TaskImages({"front": images}, {"spot": columns[:, None].astype(np.float32)})
    config = QUICK.model_copy(update={"brightness": 0.0})
    error = pretrain({"near": near}, config).errors["near"]["spot"]
    assert error < 0.02, "the median covers the near spots; a pixel is 0.17"


@pytest.mark.parametrize("randomize", ["none", "full"])
def test_collected_images_come_with_state_observations_as_targets(randomize: str) -> None:
    config = QUICK.model_copy(update={"samples": 100})
    worlds = {"task_config": {"randomize": randomize}}
    task = make_task(resolve(RUN.model_dump(), worlds))
    with plugins.make_simulation(task) as robot:
        images, targets = collect_images(robot, task, make_task(FROM_STATE), config)
    assert {name: frames.shape for name, frames in images.items()} == {
        "front": (100, 16, 16, 3),
        "wrist": (100, 16, 16, 3),
    }
    assert {name: target.shape for name, target in targets.items()} == {
        "cube_from_tcp": (100, 3),
        "cube_height": (100, 1),
        "cube_yaw": (100, 1),
    }
    assert np.linalg.norm(targets["cube_from_tcp"], axis=1).max() < 1.0
    assert targets["cube_from_tcp"].std(0).min() > 0.01
    assert all(target.dtype == np.float32 for target in targets.values())


def test_collected_trajectories_come_near_the_goal() -> None:
    """Check closeness to the goal; noise redrawn at each step would hardly ever get near."""
    config = QUICK.model_copy(update={"samples": 200, "noise": 0.5})
    tiny = {"width": 8, "height": 8, "crop": [0, 0, 1, 1], "capture": None}
    views = dict.fromkeys(("wrist", "wrist_tip", "behind", "behind_tip"), tiny)
    task, from_state = (
        make_task(resolve({"task": "peg_insertion", "observe": observe}, settings))
        for observe, settings in (("pixels", {"task_config": {"views": views}}), ("state", {}))
    )
    with plugins.make_simulation(task) as robot:
        targets = collect_images(robot, task, from_state, config).targets
    aside_m = np.hypot(*targets["hole_from_tip"][:, :2].T)
    assert (aside_m < 0.005).mean() > 0.3
    assert (aside_m > 0.010).mean() > 0.1


def test_each_collected_trajectory_begins_the_task() -> None:
    """Check that a stateful task is begun for each collected trajectory."""
    begun: list[bool] = []
    task, from_state = make_task(RUN), make_task(FROM_STATE)

    class Remembering(type(from_state)):  # type: ignore[misc]
        def begin(self, reading: Observation) -> None:
            begun.append("cube_pose" in reading.state)

    remembering = Remembering(from_state.config)
    with plugins.make_simulation(task) as robot:
        collect_images(robot, task, remembering, QUICK.model_copy(update={"samples": 250}))
    assert len(begun) >= 250 // task.config.max_steps
    assert all(begun), "begin receives the full simulator state"


def test_pretraining_refuses_task_without_cameras_or_targets() -> None:
    with pytest.raises(BadInput, match="fake: needs cameras"):
        collect_images(FakeRobot(), FakeTask(), FakeTask(), QUICK)
    task = make_task(RUN)
    with pytest.raises(
        BadInput, match=r"pick_cube: needs cameras .*, and a state entry that only they"
    ):
        collect_images(FakeRobot(), task, task, QUICK)


def test_agent_starts_from_pretrained_encoder_file(tmp_path: Path) -> None:
    path = tmp_path / "e.safetensors"
    spec = make_spec(make_task(RUN))
    rng = np.random.default_rng(0)
    frames = {name: rng.integers(0, 256, (100, 16, 16, 3), np.uint8) for name in SMALL}
    config = QUICK.model_copy(update={"samples": 100, "epochs": 1})
    targets = {"place": rng.normal(size=(100, 3)).astype(np.float32)}
    made = pretrain({"noise": TaskImages(frames, targets)}, config)
    save_encoder(path, made, {"seed": 0})
    plain = SAC.create(spec, AGENT, 0)
    started = SAC.create(spec, AGENT.model_copy(update={"encoder_weights": path}), 0)
    mine = started.actor_weights()
    for name, array in made.arrays.items():
        assert np.array_equal(mine[f"encoder.{name}"][0], array)
    same = {
        name for name, array in plain.actor_weights().items() if np.array_equal(array, mine[name])
    }
    assert {name for name in mine if name.startswith(("actor", "encoder.state"))} <= same


def test_mismatched_or_damaged_encoder_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "e.safetensors"
    agent = SAC.create(make_spec(make_task(RUN)), AGENT, 0)
    encoder, flat = agent.networks.encoder, agent.encoder.flat.detach().clone()
    before = flat.clone()
    with pytest.raises(BadInput, match="No such file"):
        load_encoder(path, encoder, flat)
    arrays = {
        name: part[0].numpy() for name, part in encoder.views(flat).items() if "state" not in name
    }
    sizes = {name: (16, 16) for name in SMALL}
    fewer = {name: array for name, array in arrays.items() if name.startswith("front")}
    wider = {**arrays, "front.0.bias": np.zeros(9, np.float32)}
    broken = {**arrays, "wrist.0.bias": np.full(8, np.nan, np.float32)}
    for wrong, shown, part in (
        (arrays, {"front": (16, 16)}, "for images"),
        (arrays, {**sizes, "wrist": (64, 64)}, "for images"),
        (fewer, sizes, r"is for the cameras \['front'\], needed \['front', 'wrist'\]"),
        (wider, sizes, r"front\.0\.bias: expected finite float32\[8\], got float32\[9\]"),
        (broken, sizes, r"wrist\.0\.bias: expected finite"),
    ):
        save_encoder(path, PretrainedEncoder(wrong, {}, shown), {})
        with pytest.raises(SpecMismatch, match=part):
            load_encoder(path, encoder, flat)
    save_encoder(path, PretrainedEncoder(arrays, {}, sizes), {})
    changed = bytearray(path.read_bytes())
    changed[-1] ^= 1
    path.write_bytes(changed)
    with pytest.raises(CorruptData, match="the sha256 does not match"):
        load_encoder(path, encoder, flat)
    safetensors.numpy.save_file(arrays, path)
    with pytest.raises(CorruptData, match="expected format"):
        load_encoder(path, encoder, flat)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(CorruptData, match=r"encoder .*e\.safetensors: "):
        load_encoder(path, encoder, flat)
    assert torch.equal(flat, before)


def test_encoder_weights_are_refused_for_task_without_cameras(tmp_path: Path) -> None:
    blind = RUN.model_copy(update={"observe": None, "task_config": {}})
    config = AGENT.model_copy(update={"encoder_weights": tmp_path / "e"})
    with pytest.raises(BadInput, match="the task has no cameras"):
        SAC.create(make_spec(make_task(blind)), config, 0)


def test_delayed_images_get_targets_of_their_capture_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Delay images by half a period; targets must be interpolated to the capture time."""
    task, from_state = make_task(RUN), make_task(FROM_STATE)
    with plugins.make_simulation(task) as robot:
        config = QUICK.model_copy(update={"samples": 100})
        now = collect_images(robot, task, from_state, config).targets["cube_from_tcp"]
        observe, half_s = robot.observe, 0.5 / task.config.rate_hz

        def late() -> Observation:
            reading = observe()
            stamps = {name: reading.stamps["robot"] - half_s for name in reading.images}
            return replace(reading, stamps={**reading.stamps, **stamps})

        monkeypatch.setattr(robot, "observe", late)
        then = collect_images(robot, task, from_state, config).targets["cube_from_tcp"]
    assert np.array_equal(now[0], then[0]), "nothing moves before the start"
    assert np.allclose(then[1:5], 0.5 * (now[:4] + now[1:5]), atol=1e-6)
    assert not np.allclose(then[1:5], now[1:5], atol=1e-3)
