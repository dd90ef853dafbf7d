"""Test that a killed and resumed learner ends bit-identical to an uninterrupted one."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from serl.agent import State
from serl.errors import BadInput, CorruptData
from serl.log.episode_log import EpisodeLog, LogConfig
from serl.log.episode_reader import episode_paths
from serl.log.manifest import MANIFEST, Entry, append_entry
from serl.log.metrics import MetricsRow, MetricsWriter, read_metrics
from serl.runs.checkpoint import checkpoint_paths, load
from serl.runs.config import TrainConfig, resolve
from serl.runs.folder import RunFolder
from serl.runs.resume import Continuation
from serl.runs.task_setup import make_spec, make_task
from serl.runs.verify import verify
from serl.specs import Spec
from serl.system.files import sha256_of
from serl.system.settings_file import checked, merge
from serl.testing import InProcess
from serl.testing.samples import equal, random_observation, random_step
from serl.training.learner import Learner
from serl.types import ActionSource, End, EndReason, Key, Record

from ..support.mutations import flip

STEPS, EPISODE = 100, 13
ACTORS = ("a", "b")
SETTINGS: dict[str, Any] = {
    "task": "reach",
    "demos": 0,
    "steps": STEPS,
    "agent": {
        "hidden": [8],
        "batch_size": 4,
        "utd": 2,
        "threads": 1,
        "device": "cpu",
        "matmul": "float32",
    },
    "learner": {
        "starts_at": 20,
        "checkpoint_every": 15,
        "metrics_every": 10,
        "publish_every": 5,
        "capacity": 90,
    },
}
LOG = LogConfig(min_free_bytes=0)


class Feed(InProcess):
    """Transport that delivers the recorded order from the index's position in random batches."""

    def __init__(self, order: Sequence[Record], held: int) -> None:
        super().__init__()
        self._order = order
        self._next = held
        self._sizes = np.random.default_rng(held)

    def receive(self) -> Sequence[Record]:
        """Return between zero and nine records."""
        first = self._next
        self._next = min(len(self._order), first + int(self._sizes.integers(10)))
        return self._order[first : self._next]


@dataclass
class RecordedRun:
    """Run of two actors with a complete log; `order` interleaves their records."""

    folder: RunFolder
    order: Sequence[Record]

    def copied(self, root: Path) -> RecordedRun:
        """Return a copy of the run under `root`."""
        path = root / self.folder.name
        shutil.copytree(self.folder.path, path)
        return RecordedRun(RunFolder.open(path), self.order)

    def learn(self, steps: int, *, killed: bool) -> Learner:
        """Train from the current state until `steps` steps have been trained on."""
        with MetricsWriter(self.folder.path) as metrics:
            continuation = Continuation(self.folder, metrics)
            held = sum(continuation.index.cursors.values())
            learner = continuation.learner(Feed(self.order, held))
            if killed:
                while learner.progress.steps < steps:
                    learner.step()
                    assert learner.progress.received < 132
            else:
                learner.run(steps, lambda: False, idle_s=0.0)
            continuation.close()
        return learner

    def configure(self, settings: dict[str, Any]) -> None:
        """Merge settings into the configuration of the run."""
        config = checked(TrainConfig, merge(self.folder.config.model_dump(), settings))
        self.folder.info = self.folder.info.model_copy(update={"config": config})

    def rows(self, kind: str) -> list[MetricsRow]:
        return [row for row in read_metrics(self.folder.metrics) if row["kind"] == kind]


def record(root: Path) -> RecordedRun:
    """Create a run with demonstrations and the episodes of two actors."""
    demonstrations = root / "demonstrations"
    config = resolve(SETTINGS, {"demo_paths": [demonstrations]})
    folder = RunFolder.create(root, config, datetime(2026, 11, 21))
    spec = make_spec(make_task(config))
    write(demonstrations, spec, demonstration(spec))
    streams = []
    for epoch, actor in enumerate(ACTORS, start=1):
        streams.append(list(episodes(spec, folder.name, actor, epoch)))
        write(folder.episodes(actor), spec, streams[-1])
    return RecordedRun(folder, list(interleave(streams)))


def demonstration(spec: Spec, success: bool = True) -> list[Record]:
    """Return one episode of an expert."""
    *steps, end = list(episodes(spec, "expert", "expert", 1))[: EPISODE + 1]
    assert isinstance(end, End)
    return [*steps, replace(end, success=success)]


def write(folder: Path, spec: Spec, records: Sequence[Record]) -> None:
    key = records[0].key
    with EpisodeLog(folder, spec, key.run, key.actor, key.epoch, LOG) as log:
        for each in records:
            log.append(each)


def episodes(spec: Spec, run: str, actor: str, epoch: int) -> Iterator[Record]:
    """Yield six episodes with steps of scripts, policy and human."""
    rng = np.random.default_rng(epoch)
    for number in range(6):
        for index in range(EPISODE):
            step = random_step(Key(run, actor, epoch, number, index), spec, rng)
            source = (
                ActionSource.SCRIPT if index < 2 else ActionSource(rng.choice(["policy", "human"]))
            )
            reward = float(rng.uniform())
            yield replace(step, source=source, reward=reward)
        key = Key(run, actor, epoch, number, EPISODE)
        observation = random_observation(spec.observation, rng)
        yield End(key, observation, bool(number % 2), EndReason.TIME_LIMIT, 1.0, 1.0)


def interleave(streams: list[list[Record]]) -> Iterator[Record]:
    rng = np.random.default_rng(0)
    left = [iter(stream) for stream in streams]
    while left:
        number = int(rng.integers(len(left)))
        for _ in range(int(rng.integers(1, 6))):
            record = next(left[number], None)
            if record is None:
                left.pop(number)
                break
            yield record


def whole_state(learner: Learner) -> dict[str, np.ndarray[Any, Any]]:
    """Return the parameters, optimisers, generators, and a batch from replay."""
    batch = learner.replay.sample(64)
    return {
        **learner.agent.state_dict(),
        "batch.state": batch.state,
        "batch.action": batch.action,
        "batch.next": batch.next_state,
        "batch.reward": batch.reward,
    }


def assert_same(killed: State, whole: State) -> None:
    assert [name for name in whole if not np.array_equal(killed[name], whole[name])] == []
    assert equal(killed, whole)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> RecordedRun:
    return record(tmp_path_factory.mktemp("recorded"))


@pytest.fixture
def run(recorded: RecordedRun, tmp_path: Path) -> RecordedRun:
    """Copy the recorded run before any learning."""
    return recorded.copied(tmp_path)


@pytest.fixture(scope="module")
def whole(
    recorded: RecordedRun, tmp_path_factory: pytest.TempPathFactory
) -> tuple[State, list[MetricsRow]]:
    """Return the final state and episode rows of an uninterrupted learner."""
    run = recorded.copied(tmp_path_factory.mktemp("whole"))
    return whole_state(run.learn(STEPS, killed=False)), run.rows("episode")


# Before the first checkpoint; just after it, in the initial burst; and often, at a checkpoint too.
KILLS = [(3,), (16,), (7, 15, 29, 61, 62, 99)]


@pytest.mark.parametrize("kills", KILLS)
def test_killed_learner_ends_like_uninterrupted_one(
    run: RecordedRun, whole: tuple[State, list[MetricsRow]], kills: tuple[int, ...]
) -> None:
    for steps in kills:
        run.learn(steps, killed=True)
    learner = run.learn(STEPS, killed=False)
    state, rows = whole
    assert_same(whole_state(learner), state)
    assert learner.progress.trained.total() == STEPS
    logged = [
        (row["actor"], row["episode"], row["steps"], row["length"]) for row in run.rows("episode")
    ]
    assert logged == [(row["actor"], row["episode"], row["steps"], row["length"]) for row in rows]
    updates = [row["steps"] for row in run.rows("update")]
    assert updates == list(range(10, STEPS + 1, 10))


def test_stopped_learner_ends_like_uninterrupted_one(
    run: RecordedRun, whole: tuple[State, list[MetricsRow]]
) -> None:
    for steps in (22, 50, STEPS):
        learner = run.learn(steps, killed=False)
    assert_same(whole_state(learner), whole[0])
    assert [row["text"] for row in run.rows("event")] == [
        "resumed at 22 steps",
        "resumed at 50 steps",
    ]


def test_damaged_checkpoint_is_replaced_by_earlier_one_without_difference(
    run: RecordedRun, whole: tuple[State, list[MetricsRow]]
) -> None:
    run.learn(48, killed=True)
    newest = checkpoint_paths(run.folder.checkpoints)[-1]
    (newest / "agent.safetensors").write_bytes(b"")
    assert_same(whole_state(run.learn(STEPS, killed=False)), whole[0])
    texts = [row["text"] for row in run.rows("event")]
    assert texts[0] == "resumed at 30 steps"
    assert "agent.safetensors" in texts[1]
    assert len(run.rows("episode")) == len(whole[1])


def test_rebuilt_index_repeats_no_training(run: RecordedRun) -> None:
    run.learn(48, killed=True)
    taken = run.learn(48, killed=False).progress.taken
    run.folder.index.write_bytes(b"damaged")
    run.order = []  # only the log remains
    learner = run.learn(STEPS, killed=False)
    assert learner.progress.steps == STEPS
    assert all(learner.progress.taken[stream] >= count for stream, count in taken.items())
    (event,) = (row["text"] for row in run.rows("event") if "rebuilt" in row["text"])
    assert "file is not a database" in event


def test_damaged_episode_loses_only_its_own_records(
    run: RecordedRun, capsys: pytest.CaptureFixture[str]
) -> None:
    before = run.learn(48, killed=True)
    damaged = episode_paths(run.folder.episodes("a"))[1]
    flip(damaged)
    learner = run.learn(STEPS, killed=False)
    assert learner.progress.steps == STEPS
    assert learner.progress.taken["a", 1] >= before.progress.taken["a", 1]
    assert (damaged.parent / "quarantine" / damaged.name).exists()
    line = f"{damaged}: byte"
    assert line in capsys.readouterr().err
    (logged,) = (row["text"] for row in run.rows("event") if line in row["text"])
    assert logged.endswith(f"moved to quarantine/, its {EPISODE + 1} records are lost")
    report = verify(run.folder.path)
    assert (report.lost, report.duplicated, report.sound) == (EPISODE + 1, 0, False)
    (finding,) = report.findings
    assert finding == f"{damaged}: damaged, moved to quarantine/, with {EPISODE + 1} records"
    run.configure({"steps": STEPS + 10})
    assert run.learn(STEPS + 10, killed=False).progress.steps == STEPS + 10


def test_episode_of_unknown_format_is_not_quarantined(run: RecordedRun) -> None:
    run.learn(20, killed=False)
    foreign = episode_paths(run.folder.episodes("a"))[1]
    foreign.write_bytes(b"of another format")
    entry = Entry(
        foreign.name, foreign.stat().st_size, sha256_of(foreign), EPISODE + 1, True, False
    )
    append_entry(foreign.parent, entry)
    with pytest.raises(CorruptData, match=str(foreign)):
        run.learn(STEPS, killed=False)
    assert foreign.exists()


def test_resume_with_other_code_version_is_logged(
    run: RecordedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.learn(0, killed=False)
    monkeypatch.setattr("serl.runs.resume.__version__", "9.9")
    run.learn(0, killed=False)
    (text,) = (row["text"] for row in run.rows("event") if "made by serl" in row["text"])
    assert text.endswith("this is 9.9")


def test_learner_continues_after_log_lost_its_tail(run: RecordedRun) -> None:
    run.learn(STEPS, killed=False)
    episodes = run.folder.episodes("b")
    for path in episode_paths(episodes)[-2:]:
        path.unlink()
    listed = (episodes / MANIFEST).read_text().splitlines(keepends=True)
    (episodes / MANIFEST).write_text("".join(listed[:-2]))
    run.order = []
    with MetricsWriter(run.folder.path) as metrics:
        continuation = Continuation(run.folder, metrics)
        learner = continuation.learner(Feed([], 0))
        while learner.step():
            pass
        continuation.close()
    assert learner.progress.taken["b", 2] == 4 * (EPISODE + 1)
    assert any("lost its last" in row["text"] for row in run.rows("event"))


@pytest.mark.parametrize("warm_up", [0, 3])
def test_policy_after_warm_up_is_saved(run: RecordedRun, warm_up: int) -> None:
    """The checkpoint is a candidate at the end and avoids repeating the warm-up after a kill."""
    run.configure({"learner": {"warm_up": warm_up}})
    begun = run.learn(0, killed=True).agent.actor_weights()
    found = checkpoint_paths(run.folder.checkpoints)
    assert [int(path.name) for path in found] == [0] * bool(warm_up)
    for path in found:
        saved = load(path).arrays["actor"]
        assert all(np.array_equal(saved[name], begun[name]) for name in begun)


def test_demonstrations_without_success_are_refused(run: RecordedRun, tmp_path: Path) -> None:
    failures = tmp_path / "failures"
    spec = make_spec(make_task(run.folder.config))
    write(failures, spec, demonstration(spec, success=False))
    run.configure({"demo_paths": [failures]})
    with pytest.raises(BadInput, match="failures: none of its 1 episodes is a success"):
        run.learn(0, killed=True)


def test_replay_of_images_has_room_for_recordings(tmp_path: Path) -> None:
    demonstrations = tmp_path / "demonstrations"
    pixels = {"task": "pick_cube", "observe": "pixels", "demo_paths": [demonstrations]}
    config = resolve(SETTINGS, pixels, {"learner": {"capacity": 200_000}})
    folder, spec = RunFolder.create(tmp_path, config, datetime.now()), make_spec(make_task(config))
    write(demonstrations, spec, demonstration(spec))
    with MetricsWriter(folder.path) as metrics, closing(Continuation(folder, metrics)) as going:
        replay = going.learner(InProcess()).replay
    assert replay.capacity == 2 * STEPS + 20_000 + EPISODE + 1
