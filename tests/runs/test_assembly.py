"""Test a whole training in one process, with the real algorithm and a simulated arm."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from serl import plugins
from serl.agent import State
from serl.agents.bc import BC
from serl.clock import VirtualClock
from serl.errors import BadInput
from serl.guard.camera_monitor import CameraMonitor
from serl.log.metrics import EpisodeRow
from serl.loop import EpisodeKey, Observer, RecordCallback
from serl.reward import RewardConfig
from serl.runs import assembly
from serl.runs.assembly import (
    ActorHistory,
    DrivenArm,
    frame_encoder,
    make_actor,
    make_agent,
    make_human,
    make_learner,
    make_replay,
)
from serl.runs.checkpoint import Checkpoint
from serl.runs.config import TrainConfig, resolve
from serl.runs.demonstrations import record_expert
from serl.runs.task_setup import make_spec, make_task
from serl.teleop.mux import TeleopMux
from serl.testing import InProcess
from serl.training.frames import random_shift
from serl.training.learner import Learner
from serl.training.learner_stats import restore_progress
from serl.training.replay import Replay
from serl.types import ActionSource, Batch, End, Image, LostRecord, Record, Step, feedback_of

from ..support.acting import FakeCameraArm, FakeSite, notice_frozen_camera
from ..support.desk import MemoryMetrics

CONFIG = resolve(
    {
        "task": "reach",
        "seed": 3,
        "steps": 100,
        "agent": {
            "hidden": [32, 32],
            "batch_size": 16,
            "utd": 2,
            "threads": 1,
            "device": "cpu",
            "matmul": "float32",
        },
        "learner": {"publish_every": 10, "warm_up": 5},
        "human": {"patience_steps": 5},
    }
)


class Training:
    """Learner and actor that alternate step by step, so that results are reproducible."""

    def __init__(
        self,
        config: TrainConfig,
        before: Training | None = None,
        shown: list[Record] | None = None,
    ) -> None:
        self.metrics = MemoryMetrics()
        self.steps: int = config.steps
        shown = before.demonstrations if before else shown
        self.demonstrations: list[Record] = shown or demonstrations(config)
        self.log: list[Record] = list(before.log) if before else []
        self.transport = InProcess()
        self.saved: list[Checkpoint] = []
        self.learner: Learner = make_learner(
            config,
            self.transport,
            self.metrics,
            self._save,
            self.demonstrations,
            before.saved[-1] if before else None,
            list(self.log),
            before.learner.progress.taken.total() if before else 0,
        )
        robot = plugins.make_simulation(make_task(config))
        clock = VirtualClock(robot.advance, make_task(config).config.rate_hz)
        self.actor = make_actor(
            config,
            EpisodeKey("run", "actor0", 1 + sum(r.key.index == 0 for r in self.log), 0),
            self.transport,
            [RecordCallback(self._take)],
            DrivenArm(robot, clock),
            FakeSite(lambda: self.learner.progress.steps >= self.steps),
            ActorHistory.of(len({record.key.episode for record in self.log}), self.log),
        )

    def run(self, steps: int) -> Training:
        """Train until `steps` steps have been trained on."""
        self.steps = steps
        self.learner.publish()
        for _ in self.actor.episodes():
            pass
        self.learner.checkpoint()
        return self

    def weights(self) -> State:
        return self.learner.agent.state_dict()

    def _take(self, record: Record) -> None:
        self.log.append(record)
        self.transport.send([record])
        while self.learner.progress.steps < self.steps and self.learner.step():
            pass

    def _save(
        self, step: int, arrays: Mapping[str, Mapping[str, Any]], info: Mapping[str, Any]
    ) -> None:
        copies = {
            group: {name: np.copy(array) for name, array in named.items()}
            for group, named in arrays.items()
        }
        self.saved.append(Checkpoint(Path(str(step)), step, copies, dict(info)))


def demonstrations(config: TrainConfig, count: int = 2) -> list[Record]:
    task = make_task(config)
    records: list[Record] = []
    with plugins.make_simulation(task) as robot:
        key = EpisodeKey("run", "expert", 1, 0)
        record_expert(robot, task, records.append, count, config.seed, key)
    return records


def assert_equal(a: State, b: State) -> None:
    assert a.keys() == b.keys()
    for name in a:
        np.testing.assert_array_equal(a[name], b[name], err_msg=name)


@pytest.fixture(scope="module")
def trained() -> Training:
    return Training(CONFIG).run(60)


def test_training_runs_to_its_end(trained: Training) -> None:
    progress = trained.learner.progress
    assert progress.steps == 60
    assert trained.learner.replay.demonstrations > 0
    assert trained.actor.policy.version > 5
    episodes = [row for _, row in trained.metrics.rows_of(EpisodeRow)]
    assert sum(row.length for row in episodes) <= progress.received
    assert any(row.human_steps for row in episodes)
    last = [n for n, record in enumerate(trained.log) if isinstance(record, End)][len(episodes) - 1]
    counts = [sum(getattr(row, name) for row in episodes) for name in ("length", "interventions")]
    assert ActorHistory.of(7, trained.log[: last + 1]) == (7, *counts)
    versions = [record.policy_version for record in trained.log if isinstance(record, Step)]
    assert versions == sorted(versions)
    assert versions[0] == 1


def test_trainings_with_equal_seed_are_bit_identical(trained: Training) -> None:
    again = Training(CONFIG).run(60)
    assert_equal(trained.weights(), again.weights())
    for first, second in zip(trained.log, again.log, strict=True):
        if isinstance(first, Step) and isinstance(second, Step):
            np.testing.assert_array_equal(first.action, second.action)
            assert first.source is second.source


def test_trainings_with_different_seeds_differ(trained: Training) -> None:
    other = Training(CONFIG.model_copy(update={"seed": 4})).run(1)
    step, its = trained.log[0], other.log[0]
    assert isinstance(step, Step)
    assert isinstance(its, Step)
    assert not np.array_equal(step.action, its.action)


def test_resumed_training_continues_from_checkpoint(trained: Training) -> None:
    second = Training(CONFIG, before=trained)
    assert_equal(trained.weights(), second.weights())
    assert second.learner.progress.trained == trained.learner.progress.trained
    online = [r for r in second.log if isinstance(r, Step)]
    open_steps = second.learner.progress.received - second.learner.replay.online
    assert 0 <= open_steps <= 1
    assert second.learner.progress.received <= len(online)
    second.run(80)
    assert second.learner.progress.steps == 80
    assert second.actor.policy.version > trained.actor.policy.version
    keys = [record.key for record in second.log]
    assert len(set(keys)) == len(keys)


def test_vice_training_runs_without_operator_and_resumes() -> None:
    learned = {"reward": RewardConfig(kind="vice"), "intervention": "none"}
    config = CONFIG.model_copy(update=learned)
    first = Training(config).run(30)
    steps = [record for record in first.log if isinstance(record, Step)]
    assert {(step.reward, step.reward_provenance) for step in steps} == {(0.0, "vice")}
    assert not any(step.terminated for step in steps), "only the time limit may end an episode"
    assert any(name.startswith("vice.") for name in first.weights())
    assert_equal(first.weights(), Training(config, before=first).weights())


EVALUATED: dict[str, Any] = {
    "feedback": {"weight": 0.1},
    "intervention": "evaluator",
    "human": {"progress_step": 0.01},
}


def test_training_with_evaluations_resumes_bit_identically() -> None:
    at_60 = {"learner": {"checkpoint_every": 60}}
    config = resolve(CONFIG.model_dump(exclude={"human"}), EVALUATED, at_60)
    whole = Training(config).run(100)
    steps = [record for record in whole.log if isinstance(record, Step)]
    assert {feedback_of(step.reward_provenance) for step in steps} == {-1, 0, 1}
    assert {step.source for step in steps} == {ActionSource.POLICY}
    assert {step.reward for step in steps} <= {0.0, 1.0}, (
        "evaluations must not change recorded rewards"
    )
    assert whole.weights()["feedback.head.1.weight"].any(), (
        "the feedback head must have been trained"
    )
    checkpoint = whole.saved[0]
    assert checkpoint.step == 60
    again: Learner = make_learner(
        config,
        InProcess(),
        whole.metrics,
        lambda *saved: None,
        whole.demonstrations,
        checkpoint,
        list(whole.log),
        restore_progress(checkpoint.info).taken.total(),
    )
    while again.progress.steps < 100:
        assert again.step()
    assert_equal(whole.weights(), again.agent.state_dict())


def test_return_bounds_are_widened_by_evaluation_weight() -> None:
    settings = {"agent": {"return_bounds": [0.0, 1.0], "discount": 0.9}}
    config = resolve(CONFIG.model_dump(exclude={"human"}), EVALUATED, settings)
    spec = make_spec(make_task(config))
    agent: Any = make_agent(config, spec, 0)
    assert agent.config.return_bounds == pytest.approx((-1.0, 2.0))
    config = resolve(config.model_dump(), {"agent": {"discount": 1.0}})
    agent = make_agent(config, spec, 0)
    assert agent.config.return_bounds is None


PIXELS: dict[str, Any] = {
    "task": "pick_cube",
    "observe": "pixels",
    "task_config": {"views": {name: {"width": 16, "height": 16} for name in ("front", "wrist")}},
}


def test_vice_shifts_success_images_like_all_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the classifier could detect successes by the size of their shift."""
    found: list[int] = []

    def record_batch(images: Image, rows: Any, most_px: int, rng: np.random.Generator) -> Image:
        found.append(most_px)
        return random_shift(images, rows, most_px, rng)

    monkeypatch.setattr("serl.agents.vice.random_shift", record_batch)
    pixels = resolve(CONFIG.model_dump(), PIXELS, {"intervention": "none"})
    shown = demonstrations(pixels, 1)
    for crop_px, shift in ((None, 2), (3, 3)):
        found.clear()
        vice = {"reward": {"kind": "vice"}, "vice": {"crop_px": crop_px}}
        config = resolve(pixels.model_dump(), vice, {"learner": {"crop_px": 2}})
        learner = make_learner(config, InProcess(), MemoryMetrics(), lambda *saved: None, shown)
        state = learner.agent.state_dict()
        assert any(name.startswith("vice.encoder.wrist.") for name in state)
        assert set(found) == {shift}
        assert learner.replay.sample(8).images["wrist"].shape == (8, 16, 16, 3)


CACHED = resolve(
    CONFIG.model_dump(),
    {
        "task": "pick_cube",
        "observe": "pixels",
        "agent": {"cached_features": True, "encoder_weights": "tabletop"},
        "intervention": "none",
        "learner": {"warm_up": 0},
    },
)


@pytest.fixture(scope="module")
def shown() -> list[Record]:
    """Return a demonstration of pick_cube from images."""
    return demonstrations(CACHED, 1)


def test_cached_features_match_encoder_of_resumed_run(
    shown: list[Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("serl.training.frames._WAITING", 1)  # encode each frame on arrival
    first = Training(CACHED, shown=shown).run(3)
    again = Training(CACHED, before=first)
    assert_equal(first.weights(), again.weights())
    mine, resumed = (run.learner.replay.sample(8).images for run in (first, again))
    assert mine.keys() == {"front", "wrist"}
    for name, features in mine.items():
        assert features.shape == (8, 64)
        np.testing.assert_array_equal(features, resumed[name])


def test_cached_features_match_inherited_encoder(
    shown: list[Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("serl.training.frames._WAITING", 1)

    def learner(inherited: State | None) -> Learner:
        metrics = MemoryMetrics()
        return make_learner(
            CACHED, InProcess(), metrics, lambda *saved: None, shown, inherited=inherited
        )

    plain = learner(None)
    begun = plain.agent.state_dict()
    other = {name: begun[name] + np.float32(0.1) for name in _CAMERAS}
    heir = learner(other)
    assert_equal(other, {name: heir.agent.state_dict()[name] for name in _CAMERAS})
    frames = heir.replay.sample(8).images
    encoder = frame_encoder(heir.agent)
    assert encoder is not None
    seen = [
        encoder.encode(record.observation.images)["wrist"].tobytes()
        for record in shown
        if not isinstance(record, LostRecord)
    ]
    assert {row.tobytes() for row in frames["wrist"]} <= set(seen)
    assert not np.array_equal(frames["wrist"], plain.replay.sample(8).images["wrist"])


_CAMERAS = [
    f"encoder.{camera}.{part}"
    for camera in ("front", "wrist")
    for part in ("0.weight", "1.bias", "head.weight", "head.norm.shift")
]


def test_vice_reward_requires_demonstrations() -> None:
    with pytest.raises(BadInput, match="reward vice: expected demonstrations"):
        resolve({"reward": {"kind": "vice"}, "demos": 0})
    resolve({"reward": {"kind": "vice"}, "demos": 0, "vice": {"positives": ["x"]}})


def test_bc_training_with_takeovers_learns_only_human_actions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """HG-DAgger: the policy drives, and its own actions are not learned."""
    taught: list[Batch] = []
    update = BC.update

    def record_batch(agent: BC, batch: Batch) -> dict[str, float]:
        taught.append(batch)
        return update(agent, batch)

    monkeypatch.setattr(BC, "update", record_batch)
    clones = {"agent": {"algorithm": "bc", "learning_rate": 3e-3}, "steps": 150}
    training = Training(resolve(CONFIG.model_dump(), clones))
    before = training.weights()
    training.run(150)
    steps = [record for record in training.log if isinstance(record, Step)]
    corrected = [step for step in steps if step.source is ActionSource.HUMAN]
    driven = {step.requested.tobytes() for step in steps if step.source is ActionSource.POLICY}
    assert len(corrected) >= 10
    assert len(driven) >= 50
    assert training.actor.policy.version > 5, "the driving policy must receive new weights"
    shown = {r.action.tobytes() for r in training.demonstrations if isinstance(r, Step)}
    corrections = {step.action.tobytes() for step in corrected}
    learned = {action.tobytes() for batch in taught for action in batch.action}
    assert all(batch.prior.all() for batch in taught)
    assert learned <= shown | corrections
    assert learned & corrections
    assert not learned & (driven - corrections)
    after = training.weights()
    assert_equal(*({n: w[n] for n in w if n.startswith("critic.")} for w in (before, after)))
    agent = training.learner.agent
    errors = []
    for weights in (before, after):
        agent.load_state_dict(weights)
        acted = [agent.act(step.observation, explore=False) for step in corrected]
        errors.append(
            float(np.mean([np.abs(a - s.action) for a, s in zip(acted, corrected, strict=True)]))
        )
    assert errors[1] < 0.5 * errors[0]


def test_intervention_none_makes_no_human() -> None:
    task = make_task(CONFIG)
    with plugins.make_simulation(task) as robot:
        without_operator = CONFIG.model_copy(update={"intervention": "none"})
        assert make_human(without_operator, task, robot, "actor0") is None
        assert make_human(CONFIG, task, robot, "actor0") is not None


@pytest.mark.parametrize("simulated", [True, False])
def test_actor_observers_are_log_monitor_operator_and_others_in_order(
    simulated: bool, tmp_path: Path
) -> None:
    given = [Observer(), Observer()]
    arm = DrivenArm(FakeCameraArm(), VirtualClock(lambda dt_s: None, 10.0), simulated=simulated)
    key = EpisodeKey("run", "actor0", 1, 0)
    actor = make_actor(CONFIG, key, InProcess(), given, arm, folder=tmp_path)
    log, monitor, person, other, *_ = actor.observers
    assert [log, other] == given
    assert isinstance(monitor, CameraMonitor)
    assert isinstance(person, TeleopMux)
    assert notice_frozen_camera(actor.observers) == (not simulated)


def test_changed_action_scale_or_frame_changes_spec() -> None:
    """Demonstrations with another action scale or frame would teach wrong actions."""
    mine = make_spec(make_task(CONFIG))
    for motion, what in (({"translation_m": 0.005}, "0.005 m"), ({"frame": "tool"}, "tool frame")):
        other = make_spec(make_task(resolve({"task": "reach", "task_config": {"motion": motion}})))
        assert other.difference(mine).startswith('motion: "')
        assert what in other.difference(mine)


def test_replay_capacity_respects_image_and_memory_limits(tmp_path: Path) -> None:
    def replay(**learner: int) -> Replay:
        config = resolve({"task": "pick_cube", "observe": "pixels", "learner": learner})
        return make_replay(config, make_spec(make_task(config)), tmp_path)

    frame = 2 * 64**2 * 3
    assert replay(capacity=50, image_bytes=20 * frame).capacity == 20
    assert not list(tmp_path.iterdir())
    assert replay(capacity=50, memory_bytes=49 * frame).capacity == 50


def test_learner_uses_processors_that_its_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {8, 9, 10, 11})
    monkeypatch.setattr(assembly, "_agent", lambda spec, config, seed: config.threads)
    free = CONFIG.model_copy(update={"agent": CONFIG.agent.model_copy(update={"threads": None})})
    assert str(make_agent(free, make_spec(make_task(free)), 0)) == "3"
