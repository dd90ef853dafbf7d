"""A learner that is killed and goes on ends where one that was never killed does, to the bit."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
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
    """Hands out records of the recorded order from where the index stands, in unequal batches."""

    def __init__(self, order: Sequence[Record], held: int) -> None:
        super().__init__()
        self._order = order
        self._next = held
        self._sizes = np.random.default_rng(held)

    def receive(self) -> Sequence[Record]:
        """Between no record and nine."""
        first = self._next
        self._next = min(len(self._order), first + int(self._sizes.integers(10)))
        return self._order[first : self._next]


@dataclass
class Recorded:
    """A run of two actors that have acted already; its records arrive interleaved."""

    folder: RunFolder
    order: Sequence[Record]

    def copied(self, root: Path) -> Recorded:
        """A copy of its own."""
        path = root / self.folder.name
        shutil.copytree(self.folder.path, path)
        return Recorded(RunFolder.open(path), self.order)

    def learn(self, steps: int, *, killed: bool) -> Learner:
        """Learn until so many steps are trained on, from wherever the run stands."""
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
        """Edit the configuration by hand."""
        config = checked(TrainConfig, merge(self.folder.config.model_dump(), settings))
        self.folder.info = self.folder.info.model_copy(update={"config": config})

    def rows(self, kind: str) -> list[MetricsRow]:
        return [row for row in read_metrics(self.folder.metrics) if row["kind"] == kind]


def record(root: Path) -> Recorded:
    """Demonstrations, and what two actors did."""
    demonstrations = root / "demonstrations"
    config = resolve(SETTINGS, {"demo_paths": [demonstrations]})
    folder = RunFolder.create(root, config, datetime(2026, 11, 21))
    spec = make_spec(make_task(config))
    write(demonstrations, spec, demonstrated(spec))
    streams = []
    for epoch, actor in enumerate(ACTORS, start=1):
        streams.append(list(episodes(spec, folder.name, actor, epoch)))
        write(folder.episodes(actor), spec, streams[-1])
    return Recorded(folder, list(interleaved(streams)))


def demonstrated(spec: Spec, success: bool = True) -> list[Record]:
    """One episode of an expert."""
    *steps, end = list(episodes(spec, "expert", "expert", 1))[: EPISODE + 1]
    assert isinstance(end, End)
    return [*steps, replace(end, success=success)]


def write(folder: Path, spec: Spec, records: Sequence[Record]) -> None:
    key = records[0].key
    with EpisodeLog(folder, spec, key.run, key.actor, key.epoch, LOG) as log:
        for each in records:
            log.append(each)


def episodes(spec: Spec, run: str, actor: str, epoch: int) -> Iterator[Record]:
    """Six episodes; of each the first steps are a script's and some a human's."""
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


def interleaved(streams: list[list[Record]]) -> Iterator[Record]:
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


def flip(path: Path, place: float) -> None:
    data = bytearray(path.read_bytes())
    data[int(len(data) * place)] ^= 1
    path.write_bytes(data)


def whole_state(learner: Learner) -> dict[str, np.ndarray[Any, Any]]:
    """Parameters, optimisers, generators, and a batch out of replay."""
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
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    return record(tmp_path_factory.mktemp("recorded"))


@pytest.fixture
def run(recorded: Recorded, tmp_path: Path) -> Recorded:
    """A copy that nobody learned from yet."""
    return recorded.copied(tmp_path)


@pytest.fixture(scope="module")
def whole(
    recorded: Recorded, tmp_path_factory: pytest.TempPathFactory
) -> tuple[State, list[MetricsRow]]:
    """What a learner that nothing happens to ends with."""
    run = recorded.copied(tmp_path_factory.mktemp("whole"))
    return whole_state(run.learn(STEPS, killed=False)), run.rows("episode")


# Before the first checkpoint, in the burst at the start, on a checkpoint, right after, and late.
KILLS = [(3,), (15,), (16,), (44,), (90, 91), (7, 15, 29, 61, 62, 99)]


@pytest.mark.parametrize("kills", KILLS)
def test_a_killed_learner_ends_where_an_uninterrupted_one_does(
    run: Recorded, whole: tuple[State, list[MetricsRow]], kills: tuple[int, ...]
) -> None:
    for steps in kills:
        run.learn(steps, killed=True)
    learner = run.learn(STEPS, killed=False)
    state, rows = whole
    assert_same(whole_state(learner), state)
    assert learner.progress.trained.total() == STEPS
    told = [
        (row["actor"], row["episode"], row["steps"], row["length"]) for row in run.rows("episode")
    ]
    assert told == [(row["actor"], row["episode"], row["steps"], row["length"]) for row in rows]
    updates = [row["steps"] for row in run.rows("update")]
    assert updates == list(range(10, STEPS + 1, 10))


def test_a_stop_in_peace_changes_nothing_either(
    run: Recorded, whole: tuple[State, list[MetricsRow]]
) -> None:
    for steps in (22, 50, STEPS):
        learner = run.learn(steps, killed=False)
    assert_same(whole_state(learner), whole[0])
    assert [row["text"] for row in run.rows("event")] == [
        "resumed at 22 steps",
        "resumed at 50 steps",
    ]


def test_a_damaged_checkpoint_costs_time_only(
    run: Recorded, whole: tuple[State, list[MetricsRow]]
) -> None:
    run.learn(48, killed=True)
    newest = checkpoint_paths(run.folder.checkpoints)[-1]
    (newest / "agent.safetensors").write_bytes(b"")
    assert_same(whole_state(run.learn(STEPS, killed=False)), whole[0])
    texts = [row["text"] for row in run.rows("event")]
    assert texts[0] == "resumed at 30 steps"
    assert "agent.safetensors" in texts[1]
    assert len(run.rows("episode")) == len(whole[1])


def test_the_index_can_be_rebuilt_without_learning_anything_twice(run: Recorded) -> None:
    run.learn(48, killed=True)
    taken = run.learn(48, killed=False).progress.taken
    run.folder.index.write_bytes(b"damaged")
    run.order = []  # all that is left is in the log
    learner = run.learn(STEPS, killed=False)
    assert learner.progress.steps == STEPS
    assert all(learner.progress.taken[stream] >= count for stream, count in taken.items())
    (event,) = (row["text"] for row in run.rows("event") if "rebuilt" in row["text"])
    assert "file is not a database" in event


@pytest.mark.parametrize("place", [0.5, 0.99])
def test_a_damaged_episode_costs_no_other_one(
    run: Recorded, place: float, capsys: pytest.CaptureFixture[str]
) -> None:
    before = run.learn(48, killed=True)
    damaged = episode_paths(run.folder.episodes("a"))[1]
    flip(damaged, place)
    learner = run.learn(STEPS, killed=False)
    assert learner.progress.steps == STEPS
    assert learner.progress.taken["a", 1] >= before.progress.taken["a", 1]
    assert (damaged.parent / "quarantine" / damaged.name).exists()
    line = f"{damaged}: byte"
    assert line in capsys.readouterr().err
    (told,) = (row["text"] for row in run.rows("event") if line in row["text"])
    assert told.endswith(f"moved to quarantine/, its {EPISODE + 1} records are lost")
    report = verify(run.folder.path)
    assert (report.lost, report.duplicated, report.sound) == (EPISODE + 1, 0, False)
    (finding,) = report.findings
    assert finding == f"{damaged}: damaged, moved to quarantine/, with {EPISODE + 1} records"
    run.configure({"steps": STEPS + 10})
    assert run.learn(STEPS + 10, killed=False).progress.steps == STEPS + 10


def test_what_another_version_made_is_not_put_aside(run: Recorded) -> None:
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


def test_only_damaged_checkpoints_are_no_fresh_start(run: Recorded) -> None:
    run.learn(20, killed=False)
    for path in checkpoint_paths(run.folder.checkpoints):
        (path / "info.json").unlink()
    with pytest.raises(CorruptData, match="no sound checkpoint"):
        run.learn(STEPS, killed=False)


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"agent": {"hidden": [9]}}, r"settings: agent.hidden: \[8\] != \[9\]$"),
        ({"seed": 4}, "settings: seed: 0 != 4$"),
        ({"task_config": {"rate_hz": 20.0}}, "made for the spec"),
    ],
)
def test_another_configuration_is_refused(
    run: Recorded, settings: dict[str, Any], line: str
) -> None:
    run.learn(20, killed=False)
    run.configure(settings)
    with pytest.raises(BadInput, match=line):
        run.learn(STEPS, killed=False)


def test_a_longer_training_is_no_other_configuration(run: Recorded) -> None:
    run.learn(20, killed=False)
    run.configure({"steps": STEPS + 20})
    assert run.learn(STEPS + 20, killed=False).progress.steps == STEPS + 20


def test_other_code_is_told(run: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    run.learn(20, killed=False)
    monkeypatch.setattr("serl.runs.resume.__version__", "9.9")
    run.learn(25, killed=False)
    (text,) = (row["text"] for row in run.rows("event") if "made by serl" in row["text"])
    assert text.endswith("this is 9.9")


def test_a_log_that_lost_its_end_to_a_power_cut_is_gone_on_with_loudly(run: Recorded) -> None:
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


def test_only_successes_demonstrate_and_the_others_are_told(tmp_path: Path) -> None:
    """So that the episodes of an earlier run can be used as demonstrations."""
    recorded = record(tmp_path)
    earlier = tmp_path / "earlier"
    spec = make_spec(make_task(recorded.folder.config))
    write(earlier, spec, list(episodes(spec, "old", "actor0", 3)))
    recorded.configure({"demo_paths": [earlier]})
    learner = recorded.learn(0, killed=True)
    assert learner.replay.demonstrations == 3 * EPISODE
    texts = [row["text"] for row in recorded.rows("event")]
    assert texts == [f"{earlier}: 3 successes demonstrate, 3 others do not"]


@pytest.mark.parametrize("warm_up", [0, 3])
def test_the_policy_after_a_warm_up_is_saved(tmp_path: Path, warm_up: int) -> None:
    """It is compared with those of training at the end, and a kill does not repeat the warm-up."""
    run = record(tmp_path)
    run.configure({"learner": {"warm_up": warm_up}})
    begun = run.learn(0, killed=True).agent.actor_weights()
    found = checkpoint_paths(run.folder.checkpoints)
    assert [int(path.name) for path in found] == [0] * bool(warm_up)
    for path in found:
        saved = load(path).arrays["actor"]
        assert all(np.array_equal(saved[name], begun[name]) for name in begun)


def test_demonstrations_without_a_success_are_refused(tmp_path: Path) -> None:
    recorded = record(tmp_path)
    failures = tmp_path / "failures"
    spec = make_spec(make_task(recorded.folder.config))
    write(failures, spec, demonstrated(spec, success=False))
    recorded.configure({"demo_paths": [failures]})
    with pytest.raises(BadInput, match="failures: none of its 1 episodes is a success"):
        recorded.learn(0, killed=True)
