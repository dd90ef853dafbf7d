from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

from serl.log.metrics import (
    FILE,
    EpisodeRow,
    EventRow,
    MetricsWriter,
    RequestRow,
    ResumeRow,
    UpdateRow,
)
from serl.report.display import ActorProgress, RunProgress, line
from serl.report.progress import ProgressReader, with_waiting
from serl.runs.config import resolve
from serl.teleop.stop import STOP_FILE, StopLatch
from serl.training.link import LinkStatus, write_status

RUNNING = {"learner": "running", "link-actor0": "running", "actor0": "running"}


def make_update_row(updates: int, **values: Any) -> UpdateRow:
    return UpdateRow(updates=updates, updates_per_s=40.0, utd=3.9, weights_version=7, **values)


def make_episode_row(
    success: bool, human_steps: int, actor: str = "actor0", age: int = 1
) -> EpisodeRow:
    return EpisodeRow(
        actor=actor,
        episode=0,
        length=40,
        success=success,
        assisted=human_steps > 0,
        reward=float(success),
        human_steps=human_steps,
        interventions=int(human_steps > 0),
        reason="success" if success else "time limit",
        duration_s=4.0,
        weight_age=age,
    )


def test_progress_has_no_values_before_first_row(tmp_path: Path) -> None:
    progress = ProgressReader("reach", tmp_path, 1000).read(RUNNING)
    assert (progress.task, progress.total_steps) == ("reach", 1000)
    assert progress.steps is progress.episodes is progress.left_s is None
    assert progress.unassisted_success is progress.human_share is None
    assert progress.first_update_at is None
    assert progress.actors == (ActorProgress("actor0"),)
    assert [part.state for part in progress.processes] == ["running"] * 3


def test_progress_follows_appended_rows(tmp_path: Path) -> None:
    now_s = 0.0
    with MetricsWriter(tmp_path, lambda: now_s) as writer:
        reader = ProgressReader("reach", tmp_path, 1000)
        writer.write(0, EventRow("started"))
        writer.write(40, make_episode_row(success=False, human_steps=10))
        writer.write(100, make_update_row(100))
        first = reader.read(RUNNING)
        assert (first.steps, first.episodes, first.left_s) == (100, 1, None)
        assert (first.assisted_success, first.unassisted_success) == (0.0, None)
        assert first.human_share == 0.25
        assert (first.updates_per_s, first.utd, first.weights_version) == (40.0, 3.9, 7)
        now_s = 20.0
        writer.write(180, make_episode_row(success=True, human_steps=0))
        writer.write(200, make_update_row(200))
        second = reader.read(RUNNING)
        assert (second.steps, second.episodes) == (200, 2)
        assert (second.assisted_success, second.unassisted_success) == (0.0, 1.0)
        assert second.human_share == 0.125
        assert second.left_s == 160.0  # 100 steps took 20 s, 800 steps remain
        assert reader.read(RUNNING).episodes == 2


def test_steps_before_first_update_are_those_of_episodes(tmp_path: Path) -> None:
    with MetricsWriter(tmp_path) as writer:
        reader = ProgressReader("reach", tmp_path, 1000, first_update_at=500)
        for number in range(13):
            writer.write(0, make_episode_row(success=False, human_steps=0))
            progress = reader.read(RUNNING)
            assert (progress.steps, progress.first_update_at) == (40 * (number + 1), 500)
        shown = "steps 520/1,000 (learning starts at 500)"
        assert shown in line(progress)
        for trained, steps in ((100, 520), (500, 520), (600, 600)):  # never fewer than before
            writer.write(trained, make_update_row(trained))
            writer.write(trained, make_episode_row(success=False, human_steps=0))
            progress = reader.read(RUNNING)
            assert (progress.steps, progress.first_update_at) == (steps, None)
        writer.write(0, ResumeRow(0))
        writer.write(0, make_episode_row(success=False, human_steps=0))
        assert reader.read(RUNNING).steps == 40


def test_first_update_waits_for_scale_of_observations() -> None:
    assert resolve({"task": "reach", "demos": 0}).first_update_at == 500
    assert resolve({"task": "reach", "demos": 5}).first_update_at == 0


def test_events_of_this_session_are_news_once(tmp_path: Path) -> None:
    with MetricsWriter(tmp_path) as writer:
        writer.write(0, EventRow("started"))
        reader = ProgressReader("reach", tmp_path, 1000)
        writer.write(100, ResumeRow(0))
        writer.write(100, EventRow("resumed at 100 steps"))
        reader.read(RUNNING)
        writer.write(100, EventRow("update skipped"))
        writer.write(100, RequestRow("actor0", "a person is needed"))
        reader.read(RUNNING)
        assert reader.news() == ["resumed at 100 steps", "update skipped", "a person is needed"]
        assert reader.read(RUNNING).steps is None
        assert reader.news() == []


def test_stopped_actor_waits_also_after_restart(tmp_path: Path) -> None:
    (tmp_path / "link" / "actor0").mkdir(parents=True)
    StopLatch(tmp_path / "link" / "actor0" / STOP_FILE).stop("stopped by the operator")
    (actor,) = ProgressReader("reach", tmp_path, 1000).read(RUNNING).actors
    assert actor.waits == ("stopped by the operator: release it at the console or with serl order")


def test_remaining_time_is_unknown_while_all_actors_wait(tmp_path: Path) -> None:
    two = RunProgress(left_s=60.0, actors=(ActorProgress("actor0"), ActorProgress("actor1")))
    one_waits = with_waiting(two, {"actor1": "estop"})
    assert [actor.waits for actor in one_waits.actors] == ["", "estop"]
    assert one_waits.left_s == 60.0, "the other actor continues"
    assert with_waiting(two, {"actor0": "paused", "actor1": "estop"}).left_s is None
    assert with_waiting(RunProgress(left_s=60.0), {}).left_s == 60.0


def test_success_rates_cover_last_twenty_episodes(tmp_path: Path) -> None:
    with MetricsWriter(tmp_path) as writer:
        for number in range(50):
            writer.write(40 * (number + 1), make_episode_row(success=number >= 30, human_steps=0))
    progress = ProgressReader("reach", tmp_path, 1000).read(RUNNING)
    assert (progress.episodes, progress.unassisted_success) == (50, 1.0)


def test_actor_progress_has_link_state_and_weight_age(tmp_path: Path) -> None:
    with MetricsWriter(tmp_path) as writer:
        writer.write(40, make_episode_row(success=True, human_steps=0, actor="actor1", age=3))
        writer.write(80, make_episode_row(success=True, human_steps=0, actor="actor0", age=0))
    dead = {**RUNNING, "link-actor0": "was killed by SIGKILL"}
    dead |= {"link-actor1": "running", "link-actor2": "running"}
    del dead["actor0"]
    status = LinkStatus(acknowledged=120, waiting=3, connected=True)
    for actor in ("actor0", "actor1"):
        (tmp_path / "link" / actor).mkdir(parents=True)
        write_status(tmp_path / "link" / actor, status)
    progress = ProgressReader("reach", tmp_path, 1000).read(dead)
    assert progress.actors == (
        ActorProgress("actor0", False, status, 0),
        ActorProgress("actor1", True, status, 3),
        ActorProgress("actor2", True, None, None),
    )


def test_damaged_metrics_lines_are_skipped(tmp_path: Path) -> None:
    with MetricsWriter(tmp_path) as writer:
        writer.write(100, make_update_row(100))
    with (tmp_path / FILE).open("ab") as file:
        file.write(b"{\n" + b"\xff\n" + b"[]\n" + b"[" * 100_000 + b"\n" + bytes(3 << 20) + b"\n")
        reader = ProgressReader("reach", tmp_path, 1000)
        assert reader.read(RUNNING).steps == 100
        line = (tmp_path / FILE).read_bytes().splitlines()[0].replace(b"100", b"200")
        file.write(line[:10])
        file.flush()
        assert reader.read(RUNNING).steps == 100
        file.write(line[10:] + b"\n")
        file.flush()
        assert reader.read(RUNNING).steps == 200


def test_metrics_without_newlines_use_little_memory(tmp_path: Path) -> None:
    with MetricsWriter(tmp_path) as writer:
        writer.write(100, make_update_row(100))
    with (tmp_path / FILE).open("r+b") as file:
        file.truncate(100 << 20)  # appends zeros, as a power cut may
    tracemalloc.start()
    reader = ProgressReader("reach", tmp_path, 1000)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert reader.read(RUNNING).steps == 100
    assert peak_bytes < 16 << 20


def test_elapsed_time_is_that_of_the_run_not_of_its_reader(tmp_path: Path) -> None:
    now_s = 0.0
    with MetricsWriter(tmp_path, lambda: now_s) as writer:
        now_s = 7200.0
        writer.write(40, make_episode_row(success=True, human_steps=0))
    elapsed_s = ProgressReader("reach", tmp_path, 1000).read(RUNNING).elapsed_s
    assert elapsed_s is not None
    assert 7200.0 <= elapsed_s < 7300.0


def test_paused_simulated_actor_is_shown_until_it_resumes_or_restarts(tmp_path: Path) -> None:
    path = tmp_path / "link" / "actor0" / STOP_FILE
    path.parent.mkdir(parents=True)

    def waits() -> str:
        (actor,) = ProgressReader("reach", tmp_path, 1000).read(RUNNING).actors
        return actor.waits

    for resume in (StopLatch.resume, lambda latch: StopLatch(path).keep_pauses(is_real=False)):
        latch = StopLatch(path)
        latch.keep_pauses(is_real=False)
        latch.pause("the console fell silent")
        assert waits().startswith("the console fell silent: resume at the console")
        resume(latch)
        assert waits() == ""
