"""Test labelling by an operator: label origins, and samples for training."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from serl import plugins
from serl.clock import VirtualClock
from serl.console.status import RecordingStatus, make_status
from serl.datasets.person import RecordingStation
from serl.datasets.recording_session import RecordingSession, write_session
from serl.datasets.reward_collection import LabelCounts, Marks, collect_person
from serl.errors import BadInput, SerlError, Silent
from serl.intervention import Event
from serl.log.annotations import LABELS_FILE, StepKey, append_labels
from serl.log.episode_reader import episode_paths
from serl.robot import SimulatedRobot
from serl.runs.config import resolve
from serl.runs.folder import RunFolder
from serl.runs.reward_data import read_samples
from serl.runs.task_setup import make_task
from serl.task import SimulatedTask
from serl.teleop.human_input import HumanInput, LastEnd
from serl.teleop.mapping import MappingConfig
from serl.teleop.mux import TeleopMux
from serl.teleop.operator import Operator, OperatorConfig
from serl.teleop.stop import StopLatch
from serl.testing.samples import random_records
from serl.types import Step

from ..teleop.pad import Pad

PIXELS = {"task": "pick_cube", "observe": "pixels", "task_config": {"time_limit_s": 3.0}}
LIMIT = 300


class LabellingBench:
    """Operator with a pad and label keys; `at` maps a tick to an action."""

    def __init__(self, run: RunFolder, task: SimulatedTask, robot: SimulatedRobot) -> None:
        self.run, self.task, self.robot = run, task, robot
        self.pad, self.marks = Pad(), Marks(run)
        words = {"yes": Event.SUCCESS, "no": Event.FAILURE}
        mapping = MappingConfig(axes={"x": ("x", 1.0)}, deadman="hold", events=words)
        person = Operator(self.pad, mapping, OperatorConfig(), robot.action_spec, self.pad.now_s)
        self.desk = HumanInput(
            TeleopMux([person]), StopLatch(run.path / "stopped"), run.path, LastEnd(self.pad.now_s)
        )
        self.ticks = 0
        self.at: dict[int, Callable[[], object]] = {}

    def advance(self, dt_s: float) -> None:
        self.robot.advance(dt_s)
        self.pad.time_s += dt_s
        self.at.pop(self.ticks, lambda: None)()
        self.ticks += 1

    def collect(self, wanted: LabelCounts, **station: Any) -> LabelCounts:
        clock = VirtualClock(self.advance, self.task.config.rate_hz)
        stand = RecordingStation(
            self.robot, self.desk, clock, lambda: self.ticks > LIMIT, **station
        )
        return collect_person(stand, self.task, self.run, self.marks, wanted, 0)


def test_marked_steps_become_samples_across_sessions(tmp_path: Path) -> None:
    run = RunFolder.create_at(tmp_path / "marked", resolve(PIXELS), datetime.now())
    write_session(
        run.path, RecordingSession(purpose="reward", wanted={"positives": 2, "negatives": 3})
    )
    task = make_task(run.config)
    with plugins.make_simulation(task) as robot:
        first = LabellingBench(run, task, robot)
        with pytest.raises(SerlError, match="nothing to mark"):
            first.marks.mark(1)
        first.at[3] = first.pad.hold
        for tick in (8, 9, 10):
            first.at[tick] = lambda: first.marks.mark(0)
        first.at[12] = lambda: (first.marks.mark(1), first.marks.mark(1))
        assert first.collect(LabelCounts(1, 3)) == LabelCounts(1, 3)
        second = LabellingBench(run, task, robot)
        second.at[3] = second.pad.hold
        second.at[8] = lambda: (second.marks.mark(0), second.marks.mark(1))
        assert second.collect(LabelCounts(2, 3)) == LabelCounts(2, 3)
    samples, views = read_samples([run.path])
    assert sorted(samples.labels.tolist()) == [0, 0, 0, 1, 1]
    assert set(views) == set(task.config.all_views)
    lines = (run.path / LABELS_FILE).read_text().splitlines()
    assert len(lines) == 6, "a repeated mark adds no line, a correction adds one"
    assert all("the operator" in line for line in lines)
    assert len(episode_paths(run.path)) == 2
    overview = make_status(run, "person")
    assert isinstance(overview, RecordingStatus)
    shown = overview.read({})
    assert shown["counts"] == [["positives", 2, 2], ["negatives", 3, 3], ["episodes", 2, None]]
    assert shown["advice"] == "done: all requested samples are recorded"
    assert overview.over


def test_device_success_and_failure_buttons_label_without_ending_episode(tmp_path: Path) -> None:
    run = RunFolder.create_at(tmp_path / "marked", resolve(PIXELS), datetime.now())
    task = make_task(run.config)
    with plugins.make_simulation(task) as robot:
        person = LabellingBench(run, task, robot)
        person.at[3] = person.pad.hold
        for tick, word in ((8, "no"), (10, "yes"), (12, "yes")):
            person.at[tick] = lambda word=word: person.pad.hit(word)  # type: ignore[misc]
        assert person.collect(LabelCounts(2, 1)) == LabelCounts(2, 1)
    assert sorted(read_samples([run.path])[0].labels.tolist()) == [0, 1, 1]
    assert len(episode_paths(run.path)) == 1


def test_labels_are_counted_while_another_thread_adds_some(tmp_path: Path) -> None:
    """Buttons of the console label in the thread of its services."""
    run = RunFolder.create_at(tmp_path / "marked", resolve(PIXELS), datetime.now())
    append_labels(run.path, [(StepKey(1, 0, step), 0) for step in range(5000)], "a person")
    marks, step = Marks(run), random_records(1)[0]
    assert isinstance(step, Step)

    def label() -> None:
        for index in range(200):
            marks.on_step(replace(step, key=replace(step.key, index=index)))
            marks.mark(1)

    thread, before = Thread(target=label), sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        thread.start()
        while thread.is_alive():
            assert marks.counts.negatives == 5000
    finally:
        sys.setswitchinterval(before)
        thread.join()
    assert marks.counts == LabelCounts(200, 5000)


def test_collection_reports_silent_robot_and_waits_before_episode(tmp_path: Path) -> None:
    run = RunFolder.create_at(tmp_path / "marked", resolve(PIXELS), datetime.now())
    task = make_task(run.config)
    with plugins.make_simulation(task) as robot:
        person = LabellingBench(run, task, robot)
        person.at[3] = person.pad.hold
        person.at[8] = lambda: person.marks.mark(0)
        person.at[10] = lambda: person.marks.mark(1)
        reported: list[str] = []

        def place(seed: int) -> None:
            if not reported:
                raise Silent("arm: no pose")

        with pytest.raises(Silent):
            person.collect(LabelCounts(1, 1), place=place)
        assert person.collect(
            LabelCounts(1, 1), place=place, on_silence=reported.append
        ) == LabelCounts(1, 1)
    assert reported == ["arm: no pose"]


def test_collection_refuses_task_without_cameras(tmp_path: Path) -> None:
    run = RunFolder.create_at(tmp_path / "blind", resolve({"task": "reach"}), datetime.now())
    task = make_task(run.config)
    with (
        plugins.make_simulation(task) as robot,
        pytest.raises(BadInput, match="has no cameras to look through"),
    ):
        LabellingBench(run, task, robot).collect(LabelCounts(1, 1))
