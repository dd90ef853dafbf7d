"""What the console shows: newest pictures, at a price, and numbers of the run."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest

from serl.camera import View
from serl.console.pictures import DrawnScene, LoggedCameras, Pictures, Placement
from serl.console.status import TrainingStatus
from serl.errors import BadInput
from serl.log.episode_log import EpisodeLog
from serl.log.metrics import EpisodeRow, EvaluationRow, MetricsWriter, UpdateRow
from serl.runs.config import TrainConfig
from serl.runs.folder import RunFolder
from serl.sim.arm import SimArm
from serl.specs import ArraySpec, ObservationSpec, Spec
from serl.tasks.reach import Reach
from serl.training.link import LinkStatus, write_status
from serl.types import ActionSource, End, EndReason, Image, Key, Observation, Step

IMAGE = ArraySpec(shape=(8, 8, 3), dtype="uint8", low=0, high=255)
SPEC = Spec(
    task="test",
    observation=ObservationSpec(state={"tcp": ArraySpec(shape=(7,))}, images={"front": IMAGE}),
    action=ArraySpec(shape=(2,), low=-1, high=1, unit="x y"),
    rate_hz=10,
)


def observation(shade: int) -> Observation:
    image = np.full((8, 8, 3), shade, np.uint8)
    return Observation({"tcp": np.zeros(7, np.float32)}, {"front": image}, {"robot": 0.0})


def step(epoch: int, episode: int, index: int, shade: int) -> Step:
    action = np.zeros(2, np.float32)
    return Step(
        key=Key("run", "actor0", epoch, episode, index),
        observation=observation(shade),
        requested=action,
        action=action,
        reward=0.0,
        reward_provenance="truth",
        terminated=False,
        truncated=False,
        source=ActionSource.POLICY,
        policy_version=0,
        monotonic_s=0.0,
        wall_s=0.0,
    )


def shade(images: Mapping[str, Image] | None) -> int | None:
    return None if images is None else int(images["front"][0, 0, 0])


def test_cameras_are_those_of_the_newest_record(tmp_path: Path) -> None:
    cameras = LoggedCameras(tmp_path)
    assert cameras.look() is None
    with EpisodeLog(tmp_path, SPEC, "run", "actor0", 5) as log:
        for index in range(4):
            log.append(step(5, 0, index, 10 * index))
        assert shade(cameras.look()) == 30
        assert cameras.look() is None, "nothing is new"
        log.append(step(5, 0, 4, 77))
        assert shade(cameras.look()) == 77
        log.append(
            End(Key("run", "actor0", 5, 0, 5), observation(78), False, EndReason.RESET, 0.0, 0.0)
        )
        log.append(step(5, 1, 0, 99))
        assert shade(cameras.look()) == 99


def test_cameras_go_on_with_the_next_start_of_an_actor(tmp_path: Path) -> None:
    cameras = LoggedCameras(tmp_path)
    with EpisodeLog(tmp_path, SPEC, "run", "actor0", 5) as log:
        log.append(step(5, 0, 0, 10))
        assert shade(cameras.look()) == 10
    with EpisodeLog(tmp_path, SPEC, "run", "actor0", 6) as log:
        log.append(step(6, 0, 0, 20))
        assert shade(cameras.look()) == 20


def test_a_damaged_log_shows_nothing_and_breaks_nothing(tmp_path: Path) -> None:
    (tmp_path / "5-000000.part.mcap").write_bytes(b"nonsense" * 100)
    cameras = LoggedCameras(tmp_path)
    for _ in range(3):
        assert cameras.look() is None


def test_a_scene_is_drawn_as_the_views_of_a_policy() -> None:
    task = Reach()
    arm = SimArm(task.scene, task.config)
    arm.reset(1)
    views = {"near": View(camera="front", width=16, height=8, crop=(0.5, 0.5, 1.0, 1.0))}
    shown = DrawnScene(task, arm.placement, views).look()
    assert shown is not None
    assert {name: image.shape for name, image in shown.items()} == {"near": (8, 16, 3)}


def test_a_scene_is_drawn_where_another_arm_has_it() -> None:
    task = Reach()
    arm = SimArm(task.scene, task.config)
    placement: Placement | None = None
    scene = DrawnScene(task, lambda: placement)
    assert scene.look() is None
    arm.reset(1)
    placement = arm.placement()
    first = scene.look()
    assert first is not None
    assert scene.look() is None, "nothing has moved"
    arm.reset(2)
    placement = arm.placement()
    second = scene.look()
    assert second is not None
    assert not np.array_equal(first["front"], second["front"])
    arm.reset(1)
    placement = arm.placement()
    again = scene.look()
    assert again is not None
    assert np.array_equal(first["front"], again["front"])


@pytest.mark.parametrize("placement", [np.zeros(3), np.full(400, np.nan), np.zeros((2, 9))])
def test_a_placement_of_another_scene_is_refused(placement: Placement) -> None:
    task = Reach()
    with pytest.raises(BadInput, match="placement: expected"):
        SimArm(task.scene, task.config).show(placement)


class Slow:
    """Takes its time to look."""

    def __init__(self, cost_s: float) -> None:
        self.cost_s, self.looks, self.looked = cost_s, 0, threading.Event()
        self.closed = False

    def look(self) -> Mapping[str, Image]:
        began_s = time.thread_time()
        while time.thread_time() - began_s < self.cost_s:
            pass
        self.looks += 1
        self.looked.set()
        return {"front": np.zeros((8, 8, 3), np.uint8)}

    def close(self) -> None:
        self.closed = True


def test_pictures_are_made_only_while_somebody_watches_and_within_their_share() -> None:
    source = Slow(0.05)
    pictures = Pictures(source)
    assert not source.looked.wait(0.3)
    assert pictures.newest() == []
    assert source.looked.wait(5.0)
    began_s, before = time.monotonic(), source.looks
    while time.monotonic() - began_s < 1.0:
        pictures.newest()
        time.sleep(0.01)
    assert source.looks - before <= 1.0 / (4 * source.cost_s) + 1
    assert pictures.newest()[0].jpeg.startswith(b"\xff\xd8")
    pictures.close()
    assert source.closed


def row(success: bool, assisted: bool) -> EpisodeRow:
    return EpisodeRow("actor0", 0, 20, success, assisted, 1.0, 5 * assisted, 1, "success", 2.0, 1)


def test_the_overview_tells_numbers_of_the_run_and_what_is_unwell(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, TrainConfig(task="reach", steps=100), datetime(2026, 11, 22))
    overview = TrainingStatus(run, "actor0")
    nothing = overview.read({})
    assert (nothing["steps"], nothing["alone"], nothing["link"][0]) == (None, (0, 0), False)
    with MetricsWriter(run.path) as metrics:
        for episode in (row(True, True), row(False, False), row(True, False)):
            metrics.write(10, episode)
        metrics.write(20, UpdateRow(5, 12.3, 3.9, weights_version=4))
        write_folder = run.link("actor0")
        write_folder.mkdir(parents=True)
        write_status(write_folder, LinkStatus(1234, 5, True))
        states = {"learner": "running", "link-actor0": "running", "actor0": "running"}
        told = overview.read(states)
        assert told["recent"] == ["assisted", "failed", "alone"]
        assert (told["alone"], told["assisted"]) == ((1, 2), (1, 1))
        assert told["cycle_time_s"] == 2.0
        assert told["learner"] == (True, "12 updates/s, 3.9 per step")
        assert told["weights"] == (True, "version 4, 1 behind")
        assert told["link"] == (True, "1,234 acknowledged, 5 waiting")
        assert told["advice"] == "correct briefly: 1 of the last 2 unassisted episodes succeeded"
        assert overview.read({**states, "learner": "silent"})["learner"] == (False, "silent")
        assert not overview.over
        metrics.write(100, EvaluationRow(100, 50, 49, 1.9, "final"))
        assert overview.read({})["advice"] == "done: 49 of 50 unassisted trials succeeded"
        assert overview.over
