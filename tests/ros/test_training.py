"""Complete trainings by command line, with real processes, real DDS and some kills."""

from __future__ import annotations

import re
import shutil
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from std_srvs.srv import Trigger

import serl
from serl.log.episode_reader import episode_paths, read_episode, read_records
from serl.log.metrics import MetricsRow, read_metrics
from serl.ros.node import RosNode
from serl.ros.telemetry import StatsMonitor
from serl.ros.testing.processes import eventually
from serl.runs.checkpoint import checkpoint_paths, load
from serl.runs.folder import PROCESSES_LOCK, RunFolder
from serl.runs.task_setup import make_spec, make_task
from serl.runs.verify import verify
from serl.system.files import is_alive
from serl.training.link import read_control_status
from serl.types import ActionSource, End, Step, feedback_of

from ..support.command import Command
from .conftest import Start

pytestmark = pytest.mark.ros

TINY = {
    "demos": 2,
    "trials": 2,
    "selection_trials": 1,
    "selection_checkpoints": 2,
    "task_config.time_limit_s": 1.0,
    "task_config.reach_m": 0.05,
    "agent.hidden": [32, 32],
    "agent.batch_size": 16,
    "agent.utd": 1,
    "agent.device": "cpu",
    "actor.max_lead_steps": 16,
    "learner.checkpoint_every": 100,
    "learner.metrics_every": 50,
    "learner.publish_every": 10,
}

TRIALS = "\ncomparing "
"""Output after a training, before trials, film and report; these are slow."""


def rows(run: RunFolder, kind: str) -> list[MetricsRow]:
    return [row for row in read_metrics(run.metrics) if row["kind"] == kind]


def logged(run: RunFolder, actor: str) -> int:
    """Return the number of online steps in the log of an actor."""
    records = read_records(run.episodes(actor), make_spec(make_task(run.config)))
    return sum(isinstance(r, Step) and r.source is not ActionSource.SCRIPT for r in records)


def trained(run: RunFolder) -> dict[str, int]:
    """Return the online steps per actor that the newest checkpoint was trained on."""
    paths = checkpoint_paths(run.checkpoints)
    counts: dict[str, int] = load(paths[-1]).info["trained"] if paths else {}
    return counts


def set_steps(run: RunFolder, steps: int) -> RunFolder:
    """Set the steps of an interrupted run, which has come as far as the machine is fast."""
    for file in run.path.rglob("config.yaml"):
        file.write_text(re.sub(r"(?m)^  steps: .*", f"  steps: {steps}", file.read_text()))
    return RunFolder.open(run.path)


def assert_sound(run: RunFolder) -> None:
    """Assert that no record is lost or duplicated and that the learner accepted every actor."""
    report = verify(run.path)
    assert report.sound, report
    assert all(log.accepted for log in report.contents if log.actor != "expert")


def test_training_by_python_function_leaves_complete_run_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    often = {"learner.checkpoint_every": 40, "learner.metrics_every": 20}
    made = serl.train("reach", tmp_path, steps=120, **TINY | often)
    assert "a simulated human may drive 50% of the steps at first" in capsys.readouterr().out
    run = RunFolder.open(made.path)
    assert sum(made.steps["source"] != "script") >= run.config.steps
    assert "final" in list(made.metrics("evaluation")["purpose"])
    assert sum(trained(run).values()) == run.config.steps
    assert trained(run)["actor0"] <= logged(run, "actor0")

    spec = make_spec(make_task(run.config))
    demonstrations = [read_episode(path, spec) for path in episode_paths(run.demonstrations)]
    assert [episode.success for episode in demonstrations] == [True, True]
    assert all(path.suffixes == [".mcap"] for path in episode_paths(run.episodes("actor0")))
    assert len(checkpoint_paths(run.checkpoints)) >= 2
    assert (run.checkpoints / "best").exists()
    purposes = [row["purpose"] for row in rows(run, "evaluation")]
    assert [purpose for purpose in purposes if purpose != "last"] == ["selection"] * 2 + ["final"]
    assert len(rows(run, "update")) >= 5
    assert all(row["weight_age"] >= 0 for row in rows(run, "episode"))
    assert list((run.path / "tensorboard").iterdir())
    assert (run.videos / "final.mp4").stat().st_size > 1000
    assert "<html" in run.report.read_text()[:2000]
    assert _online_rows_are_whole(run)
    assert_sound(run)


def _online_rows_are_whole(run: RunFolder) -> bool:
    """Return whether the length of each metrics row equals that of the logged episode."""
    spec = make_spec(make_task(run.config))
    lengths = [len(read_episode(p, spec).steps) for p in episode_paths(run.episodes("actor0"))]
    return all(row["length"] == lengths[row["episode"]] for row in rows(run, "episode"))


class Watch:
    """A client of a run's statistics and services."""

    def __init__(self, node: RosNode) -> None:
        self.node = node
        self.monitor = StatsMonitor(node)

    def number(self, source: str, name: str) -> float:
        reading = self.monitor.latest().get(source)
        return float(reading.values.get(name, 0.0)) if reading else 0.0

    def call(self, service: str) -> str:
        """Call a trigger service of the run; return the answer's message."""
        client = self.node.handle.create_client(Trigger, service)
        eventually(client.service_is_ready)
        answers: list[Any] = []

        def is_answered() -> bool:  # an answer before mutual discovery is lost
            answers.append(client.call_async(Trigger.Request()))
            deadline_s = time.monotonic() + 5.0
            while not answers[-1].done() and time.monotonic() < deadline_s:
                time.sleep(0.01)
            return bool(answers[-1].done())

        eventually(is_answered)
        return str(answers[-1].result().message)


def test_training_with_two_actors_survives_kill_and_resume(tmp_path: Path, start: Start) -> None:
    """Resume from the last checkpoint but one, as the newest one is damaged meanwhile.

    A simulated evaluator gives feedback, from which the learner also learns a reward.
    """
    evaluated = {"intervention": "evaluator", "feedback.weight": 0.1}
    command = start("train", "reach", **TINY | evaluated, steps=10**6, actors=2)
    run = command.run_folder()
    with RosNode("watch", run.path) as node:
        watch = Watch(node)
        command.until(lambda: all(_received(run)))
        assert any(_both_contribute(command, run) for _ in range(2)), "a busy machine is unfair"

        command.child("serl.ros.nodes.actor", "actor1").kill()
        command.until(lambda: "actor1 was killed by SIGKILL: started again" in command.output)
        at_the_kill = watch.number("learner", "trained")
        command.until(lambda: watch.number("learner", "trained") > at_the_kill + 20)
        assert watch.call("actor0/pause") == "paused"  # actor1 needs a share of the steps
        command.until(lambda: len({path.name.split("-")[0] for path in _files(run, "actor1")}) == 2)
        assert watch.call("actor0/resume") == "running"
        assert any(_both_contribute(command, run) for _ in range(2)), "a busy machine is unfair"

        for actor in ("actor0", "actor1"):
            assert watch.call(f"{actor}/pause") == "paused"

        def settled() -> bool:
            online = logged(run, "actor0") + logged(run, "actor1")
            return watch.number("learner", "received") == online

        command.until(settled)
        received = watch.number("learner", "received")

        def is_taken() -> bool:  # statistics are not simultaneous
            open_steps = received - watch.number("learner", "replay")
            return 0 <= open_steps - watch.number("learner", "dropped") <= 2  # one for each actor

        command.until(is_taken)
        for actor in ("actor0", "actor1"):
            assert watch.call(f"{actor}/resume") == "running"
        command.until(lambda: watch.number("learner", "received") > received)

    children = command.children()
    assert len(children) == 5
    assert command.interrupt(signal.SIGTERM) == 130, command.output  # as after Ctrl-C
    assert not any(child.is_running() for child in children)
    assert f"to continue: serl train --resume {run.path.relative_to(tmp_path)}" in command.output
    older, newest = checkpoint_paths(run.checkpoints)[-2:]
    trained_before = sum(load(older).info["trained"].values())
    assert 100 <= trained_before < sum(trained(run).values())
    run = set_steps(run, sum(trained(run).values()) + 200)
    weights = newest / "agent.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])

    resumed = start("train", "--resume", run.path)
    eventually(lambda: is_alive(run.path / PROCESSES_LOCK))
    second = start("train", "--resume", run.path)
    assert second.wait() == 2
    assert f"is in use by process {resumed.process.pid} (" in second.output
    resumed.until(TRIALS)
    assert sum(trained(run).values()) == run.config.steps
    assert any(f"resumed at {trained_before:,} steps" == row["text"] for row in rows(run, "event"))
    damage_line = next(line for line in resumed.output.splitlines() if str(weights) in line)
    assert damage_line.endswith(f"going on from {older.name}")
    assert any(damage_line == row["text"] for row in rows(run, "event"))
    shutil.rmtree(newest, ignore_errors=True)  # kept if few steps were left to train
    assert_sound(run)
    _evaluations_are_learned(run)


def _evaluations_are_learned(run: RunFolder) -> None:
    for actor in ("actor0", "actor1"):
        records = read_records(run.episodes(actor), make_spec(make_task(run.config)))
        steps = [record for record in records if isinstance(record, Step)]
        given = Counter(feedback_of(step.reward_provenance) for step in steps)
        assert min(given[1], given[-1]) > 3
        assert {step.reward for step in steps} <= {0.0, 1.0}
    assert rows(run, "update")[-1]["feedback_loss"] > 0.0
    state = load(checkpoint_paths(run.checkpoints)[-1]).arrays["agent"]
    assert state["feedback.head.1.weight"].any(), "zero at first"


def _received(run: RunFolder) -> list[int]:
    """Return the steps of complete episodes per actor that the learner received."""
    episodes = rows(run, "episode") if run.metrics.exists() else []
    return [
        sum(row["length"] for row in episodes if row["actor"] == actor)
        for actor in ("actor0", "actor1")
    ]


def _both_contribute(command: Command, run: RunFolder) -> bool:
    """Return whether each actor contributes at least 30 % of the next 100 steps."""
    before = _received(run)
    command.until(lambda: sum(_received(run)) >= sum(before) + 100)
    since = [now - then for now, then in zip(_received(run), before, strict=True)]
    return min(since) >= 0.3 * sum(since)


def _files(run: RunFolder, actor: str) -> list[Path]:
    return episode_paths(run.episodes(actor))


@pytest.mark.xdist_group("moving_arm")
def test_realtime_training_uses_guard_and_survives_kill_of_arm(
    tmp_path: Path, start: Start
) -> None:
    settings = TINY | {"learner.checkpoint_every": 25}
    command = start("train", "reach", **settings, steps=50, robot="sim")
    run = command.run_folder()
    command.child("serl.ros.nodes.guard", "actor0")
    command.until(lambda: read_control_status(run.link("actor0")) is not None)  # an episode
    command.child("serl.ros.nodes.sim", "actor0").send_signal(signal.SIGKILL)
    command.until(TRIALS)
    assert "sim-actor0 was killed by SIGKILL: started again" in command.output
    assert "control periods began late" in command.output
    assert sum(trained(run).values()) == 50
    assert_sound(run)
    records = list(read_records(run.episodes("actor0"), make_spec(make_task(run.config))))
    reasons = {record.text for record in records if isinstance(record, End)}
    assert reasons & {"time limit", "success"}, f"no episode went well: {reasons}"
