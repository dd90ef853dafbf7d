"""Tests of a learner that resumes from a checkpoint or restores one."""

from __future__ import annotations

from typing import Any

import pytest

from serl.errors import CorruptData
from serl.log.metrics import EpisodeRow
from serl.training.learner_stats import restore_progress
from serl.transport import MAX_LEAD, MAX_VERSION
from serl.types import ActionSource, Step

from ..support.desk import LearnerBench, count_steps, episodes, states


def test_checkpoint_holds_state_that_log_does_not() -> None:
    bench = LearnerBench(checkpoint_every=25)
    bench.transport.send(list(episodes(4)))
    bench.run(60)
    assert [step for step, _, _ in bench.saved] == [25, 50, 60]
    _, arrays, info = bench.saved[1]
    assert arrays.keys() == {"agent", "actor", "replay"}
    assert info["trained"] == {"a": 50}
    assert info["taken"] == [["a", 1, 51]]  # including one end record
    assert info["version"] == 6  # at 0, 10, 20, ...
    bench.learner.checkpoint()
    assert len(bench.saved) == 3  # no update since the last checkpoint


@pytest.mark.parametrize("prefetch", [False, True])
def test_resumed_learner_continues_exactly(prefetch: bool) -> None:
    log = list(episodes(4))
    settings: dict[str, Any] = {"starts_at": 30, "prefetch": prefetch}
    whole, first = LearnerBench(**settings), LearnerBench(**settings, checkpoint_every=40)
    for bench in (whole, first):
        bench.transport.send(log)
    whole.run(10**6)
    first.run(50)
    first.saved.pop()  # killed before the last checkpoint
    assert first.saved[-1][2]["taken"] == [["a", 1, 41]], (
        "the end record counts, records that were only stored do not"
    )
    second = LearnerBench(log, **settings)
    second.resume_from(first)
    assert second.learner.progress.steps == second.agent.updates == 40
    assert not second.accepted
    second.run(10**6)
    assert states(second.agent.batches) == states(whole.agent.batches[40:])
    assert second.learner.progress.trained == {"a": count_steps(log)}
    assert second.learner.progress.taken == {("a", 1): len(log)}
    assert second.replay.online == count_steps(log)
    assert second.transport.snapshots[0].version > first.transport.snapshots[-1].version
    lengths = [row.length for _, row in whole.metrics.rows_of(EpisodeRow)]
    assert [row.length for _, row in second.metrics.rows_of(EpisodeRow)] == lengths[1:]


def test_resumed_learner_trains_on_steps_taken_but_not_trained() -> None:
    log = list(episodes(4))
    first = LearnerBench(starts_at=30, checkpoint_every=10)
    first.transport.send(log)
    first.run(10)  # of the 30 steps taken
    assert first.learner.progress.received == 30
    second = LearnerBench(log, starts_at=30)
    second.resume_from(first)
    second.run(10**6)
    assert second.agent.updates == count_steps(log)


def test_log_without_checkpoint_is_trained_on_from_start() -> None:
    bench = LearnerBench(log := list(episodes(2)))
    bench.transport.send(rest := list(episodes(1, first=2)))
    bench.run(10**6)
    assert bench.learner.progress.taken == {("a", 1): len(log + rest)}
    assert bench.agent.updates == count_steps(log + rest)
    assert bench.accepted == rest


@pytest.mark.parametrize(("version", "highest"), [(70, 2000), (MAX_VERSION, 100)])
def test_weight_versions_exceed_those_of_predecessor_without_checkpoint(
    version: int, highest: int
) -> None:
    """Check that a version no learner can have published is ignored as forged."""
    newer = [
        Step(**{name: getattr(r, name) for name in Step.__slots__} | {"policy_version": version})
        for r in episodes(1)
        if isinstance(r, Step)
    ]
    bench = LearnerBench(newer)
    bench.run(10**6)
    lowest = version if version < MAX_VERSION else 0
    assert lowest < bench.transport.snapshots[-1].version < highest


def test_learner_resumes_from_checkpoint_with_impossible_version() -> None:
    first, second = LearnerBench(checkpoint_every=10), LearnerBench(log := list(episodes(2)))
    first.transport.send(log)
    first.run(10)
    first.saved[-1][2]["version"] = 10**15
    for _ in range(2):  # and from the checkpoint that follows it
        second.resume_from(first)
        second.run(20)
        versions = [snapshot.version for snapshot in second.transport.snapshots]
        assert versions == sorted(versions)
        assert MAX_LEAD < versions[-1] < MAX_VERSION - MAX_LEAD
        first, second = second, LearnerBench(log)


def test_checkpoint_with_other_demonstrations_is_refused() -> None:
    first, second = LearnerBench(), LearnerBench()
    for record in episodes(1, source=ActionSource.SCRIPT):
        first.replay.add(record, prior=True)
    first.transport.send(list(episodes(1, first=1)))
    first.run(10)
    with pytest.raises(CorruptData, match=r"made with \d+ transitions .* found 0"):
        second.resume_from(first)


def test_episode_resumed_midway_is_counted_in_full() -> None:
    records = list(episodes(1))
    first = LearnerBench()
    first.transport.send(records[:10])
    first.run(10**6)
    second = LearnerBench(records[:10])
    second.resume_from(first)
    second.transport.send(records[10:])
    second.run(10**6)
    (row,) = (row for _, row in second.metrics.rows_of(EpisodeRow))
    assert row.length == count_steps(records)
    assert row.weight_age <= 5  # skipped versions do not count


@pytest.mark.parametrize(
    "info",
    [
        {},
        {"trained": 3, "version": 1, "taken": []},
        {"trained": {}, "version": 1, "taken": [["a"]]},
        {"trained": {}, "version": 1, "taken": [["a", 1, -5]]},
        {"trained": {}, "version": 1, "taken": [["a", 2**63, 5]]},
        {"trained": {"a": -3}, "version": 1, "taken": []},
        {"trained": ["a"], "version": 1, "taken": []},
        {"trained": {}, "version": "1", "taken": []},
    ],
)
def test_damaged_checkpoint_counters_are_refused(info: dict[str, Any]) -> None:
    with pytest.raises(CorruptData, match=r"checkpoint: .*expected"):
        restore_progress(info)
