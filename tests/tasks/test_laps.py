"""One recorded lap defines the course of a training run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from serl.cli import main as cli
from serl.cli.record import persons_folder
from serl.clock import VirtualClock
from serl.datasets.person import ACTOR, RecordingStation, record_person
from serl.datasets.recording_session import Recording
from serl.errors import SpecMismatch
from serl.log.episode_log import EpisodeLog
from serl.log.episode_reader import episode_paths, read_episode
from serl.loop import EpisodeKey
from serl.policy import Policy
from serl.robot import Truth
from serl.runs.assembly import make_agent
from serl.runs.config import TrainConfig, resolve
from serl.runs.demonstrations import (
    EXPERT,
    demonstrated_settings,
    read_demonstrations,
    record_expert,
    specs_of,
)
from serl.runs.folder import RunFolder
from serl.runs.settings import run_settings
from serl.runs.task_setup import make_rewarded_task, make_spec, make_task
from serl.sim.car import SimCar
from serl.tasks.parts.track import Course, Points
from serl.tasks.racing_car import _WAY_M, RacingCar, RacingCarConfig, _middle, _Pursuit
from serl.teleop.human_input import HumanInput
from serl.teleop.mapping import Axis, MappingConfig
from serl.teleop.mux import TeleopMux
from serl.teleop.operator import Operator
from serl.teleop.stop import StopLatch
from serl.types import ActionSource, Record

from ..teleop.pad import HABITS, Pad


class Driver(RacingCar):
    """Racing car task whose expert drives beside the centre line."""

    outwards_m = 0.0

    def expert(self, truth: Callable[[], Truth], seed: int) -> Policy:
        line = _middle(_WAY_M, self.outwards_m)
        return _Pursuit(truth, Course([(x, y) for x, y in line.tolist()]), self.config, seed)


@cache
def drive_lap(outwards_m: float) -> list[Record]:
    """Return the records of one lap, with car positions."""
    task, records = Driver(RacingCarConfig(record_pose=True)), list[Record]()
    task.outwards_m = outwards_m
    record_expert(
        SimCar(task.scene, task.config), task, records.append, 1, 7, EpisodeKey("", "", 5, 0)
    )
    return records


def record_lap(
    folder: Path,
    outwards_m: float = 0.0,
    change: Callable[[Points], Points] = lambda each: each,
    actor: str = EXPERT,
) -> Path:
    """Record one lap; `change` may falsify the recorded car positions."""
    spec = make_spec(RacingCar(RacingCarConfig(record_pose=True)))
    records = drive_lap(outwards_m)
    driven = np.array([each.observation.state["car_pose"] for each in records])
    driven[:, :2] = change(driven[:, :2])
    with EpisodeLog(folder, spec, folder.name, actor, 5) as log:
        for each, pose in zip(records, driven, strict=True):
            key = replace(each.key, run=folder.name, actor=actor)
            state = {**each.observation.state, "car_pose": pose}
            log.append(replace(each, key=key, observation=replace(each.observation, state=state)))
    return folder


def settings(record: Path, **changes: Any) -> TrainConfig:
    return run_settings("racing_car", {}, {"demo_paths": (record,), **changes})


def course_of(config: TrainConfig) -> Course:
    task = make_task(config)
    assert isinstance(task, RacingCar)
    return task.course


def off_m(course: Course, line: Course) -> list[float]:
    """Return the distances between two lines in metres, sampled every half metre."""
    points = [course.at(along) for along in np.arange(0.0, course.length_m, 0.5)]
    return [float(np.linalg.norm(line.at(line.nearest(point)) - point)) for point in points]


@pytest.fixture(scope="module")
def outer_lap(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record_lap(tmp_path_factory.mktemp("records") / "outer", 0.2)


def test_recorded_lap_defines_the_course(outer_lap: Path, tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, settings(outer_lap), datetime.now())
    course = course_of(RunFolder.open(run.path).config)
    middle, outer = (Course(_middle(_WAY_M, aside).tolist()) for aside in (0.0, 0.2))
    assert np.mean(off_m(course, outer)) < 0.05
    assert np.mean(off_m(course, middle)) > 0.15
    assert course.length_m > RacingCar().course.length_m + 0.8
    again = course_of(RunFolder.open(run.path).config)
    assert [*again.at(3.0)] == [*course.at(3.0)], "a restarted actor gets the same course"


def test_scripted_resets_of_an_actor_define_no_course(tmp_path: Path) -> None:
    reset = record_lap(tmp_path / "actor0", 0.2, actor="actor0")
    assert demonstrated_settings(resolve({"task": "racing_car"}, {"demo_paths": [reset]})) == {}


def test_run_keeps_course_after_recording_is_deleted(tmp_path: Path) -> None:
    record = record_lap(tmp_path / "lap")
    run = RunFolder.create(tmp_path, settings(record), datetime.now())
    (path,) = record.glob("*.mcap")
    path.unlink()
    assert max(off_m(course_of(RunFolder.open(run.path).config), RacingCar().course)) < 0.2


def test_recording_is_observed_and_rewarded_on_its_own_course(outer_lap: Path) -> None:
    config = settings(outer_lap)
    (episode,) = read_demonstrations(outer_lap, config)
    spec, course = make_spec(make_task(config)), course_of(config)
    assert "car_pose" not in spec.observation.state, "the policy does not see the car pose"
    for step in episode.steps:
        spec.observation.validate_observation(step.observation)
    (path,) = episode_paths(outer_lap)
    observed, seen = (
        np.array([step.observation.state["course"][1] for step in each.steps])
        for each in (episode, read_episode(path, specs_of(config)[1]))
    )
    assert np.mean(seen - observed) == pytest.approx(0.2, abs=0.04), (
        "the original course is left of the driven line"
    )
    total = sum(step.reward for step in episode.steps)
    assert total == pytest.approx(0.15 * course.length_m, rel=0.04)
    assert episode.end is not None
    spec.observation.validate_observation(episode.end.observation)


def test_demonstrations_with_car_pose_use_the_same_course(outer_lap: Path) -> None:
    config = settings(outer_lap, task_config={"record_pose": True})
    (episode,), (plain,) = (
        read_demonstrations(outer_lap, each) for each in (config, settings(outer_lap))
    )
    assert [step.reward for step in episode.steps] == [step.reward for step in plain.steps]
    for step, other in zip(episode.steps, plain.steps, strict=True):
        assert np.array_equal(step.observation.state["course"], other.observation.state["course"])
        assert "car_pose" in step.observation.state


def test_configured_checkpoints_override_recorded_lap(outer_lap: Path) -> None:
    square = [[0.0, -2.0], [2.0, 0.0], [0.0, 2.0], [-2.0, 0.0]]
    config = settings(outer_lap, task_config={"checkpoints": square})
    assert config.task_config["checkpoints"] == square
    (episode,) = read_demonstrations(outer_lap, config)
    assert episode.success


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda at: at[np.minimum(np.arange(len(at)), 50)], "it does not come back"),
        (lambda at: at[np.zeros(len(at), int)], "it does not come back"),
        (lambda at: at[::-1], "it goes against the direction of driving"),
        (lambda at: 1.4 * at, "m off the track"),
    ],
)
def test_invalid_lap_gives_one_line_error(
    tmp_path: Path,
    change: Callable[[Points], Points],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    record, runs = record_lap(tmp_path / "lap", change=change), tmp_path / "runs"
    assert cli.main(["train", "racing_car", "--demos", str(record), "--runs", str(runs)]) == 2
    errors = capsys.readouterr().err
    assert message in errors
    assert f"{record}/" in errors
    assert errors.count("\n") == 1
    assert not runs.exists()


def test_lap_with_backward_section_gives_forward_course(tmp_path: Path) -> None:
    def hesitate(at: Points) -> Points:
        last = len(at) - 1
        index = np.interp(np.arange(len(at)), [0, 40, 46, 54, last], [0, 40, 36, 54, last])
        hesitating: Points = at[index.round().astype(int)]
        return hesitating

    course = course_of(settings(record_lap(tmp_path / "lap", change=hesitate)))
    assert max(off_m(course, RacingCar().course)) < 0.2
    assert course.length_m == pytest.approx(RacingCar().course.length_m, rel=0.02)


@pytest.fixture(scope="module")
def old_lap(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Record a lap without car poses, as training runs and older versions do."""
    task, old = RacingCar(), tmp_path_factory.mktemp("records") / "old"
    with EpisodeLog(old, make_spec(task), "old", "expert", 5) as log:
        key = EpisodeKey("old", "expert", 5, 0)
        record_expert(SimCar(task.scene, task.config), task, log.append, 1, 7, key)
    return old


@pytest.mark.parametrize(
    ("before", "also"),
    [
        ((), ()),
        (("outer_lap",), ()),
        ((), ("--task_config.checkpoints", "[[0, -2], [2, 0], [0, 2], [-2, 0]]")),
    ],
    ids=["alone", "after another recording", "with configured checkpoints"],
)
def test_recording_without_car_poses_is_refused(
    before: tuple[str, ...],
    also: tuple[str, ...],
    old_lap: Path,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    capsys: pytest.CaptureFixture[str],
) -> None:
    demos = [str(request.getfixturevalue(each)) for each in before] + [str(old_lap)]
    words = ["train", "racing_car", "--demos", f"[{', '.join(demos)}]", *also]
    assert cli.main([*words, "--runs", str(tmp_path / "runs")]) == 2
    errors = capsys.readouterr().err
    assert f"{old_lap}/" in errors
    assert "has no poses of the car" in errors
    assert errors.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_recordings_of_a_run_need_no_car_poses(old_lap: Path) -> None:
    """Check recordings without poses in a new run and in resumed settings that name them."""
    for given in ({}, {"demo_paths": [old_lap]}):
        (episode,) = read_demonstrations(old_lap, resolve({"task": "racing_car"}, given))
        assert episode.success


def test_recording_of_another_task_is_refused(
    old_lap: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["train", "reach", "--demos", str(old_lap), "--runs", str(tmp_path)]) == 2
    assert 'task: "racing_car" != "reach"' in capsys.readouterr().err


def test_steps_from_a_run_on_another_course_are_refused(outer_lap: Path, tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, settings(outer_lap), datetime.now())
    agent = make_agent(run.config, make_spec(make_task(run.config)), 0)
    run.save_checkpoint(9, {"agent": agent.state_dict()}, {})
    origin = {"run": run.path, "data": "steps"}
    assert settings(outer_lap, init_from=origin).init_from.run == run.path
    with pytest.raises(SpecMismatch, match=r"of no use here: task_config\.checkpoints are others"):
        run_settings("racing_car", {}, {"init_from": origin})
    plain = run_settings("racing_car", {}, {"init_from": {"run": run.path}})
    assert plain.init_from.load, "learned parameters can be inherited"


def test_record_command_stores_car_poses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "lap"
    assert cli.main(["record", "racing_car", "--demos", "1", "--out", str(folder)]) == 0
    assert f"next: serl train racing_car --demos {folder}" in capsys.readouterr().out
    assert max(off_m(course_of(settings(folder)), RacingCar().course)) < 0.2


def test_operator_records_lap_with_gamepad(tmp_path: Path) -> None:
    """Record as `serl record racing_car --device gamepad --demos 1` does, in simulated time."""
    options = cli.parse(["record", "racing_car", "--out", str(tmp_path / "mine")])
    options.overrides = []
    run = persons_folder(options, {"task_config": {"time_limit_s": 60.0}})
    task = make_rewarded_task(run.config)
    car, pad = SimCar(task.scene, task.config), Pad()
    axes: dict[str, tuple[Axis, float]] = {"x": ("x", 1.0), "y": ("yaw", 1.0)}
    mapping = MappingConfig(axes=axes, dead_zone=0.0, deadman="hold")
    person = Operator(pad, mapping, HABITS, task.config.action_spec, pad.now_s)
    driver, start_s = task.expert(car.truth, 0), pad.time_s

    def advance(dt_s: float) -> None:
        car.advance(dt_s)
        pad.time_s += dt_s
        pad.buttons.set("hold", pad.time_s > start_s + 0.5)
        pad.axes = dict(zip("xy", driver(car.observe()).tolist(), strict=True))

    desk = HumanInput(TeleopMux([person]), StopLatch(run.path / "stopped"), run.path)
    clock = VirtualClock(advance, task.config.rate_hz)
    stand = RecordingStation(car, desk, clock, lambda: pad.time_s > start_s + 100.0)
    recorded = Recording(run.path, run.episodes(ACTOR))
    record_person(stand, task, recorded, 1, 0)
    assert recorded.counts == (1, 0, 0)
    assert max(off_m(course_of(settings(run.path)), RacingCar().course)) < 0.3
    (episode,) = read_demonstrations(run.path, settings(run.path))
    assert episode.count(ActionSource.HUMAN) > 0.9 * len(episode.steps)
