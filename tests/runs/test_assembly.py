"""A whole training in one process: the real algorithm and arm, on the in-process transport."""

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
from serl.log.metrics import EpisodeRow, Row
from serl.loop import EpisodeKey, Observer, RecordCallback
from serl.reward import RewardConfig
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
from serl.types import ActionSource, Batch, Image, LostRecord, Record, Step, feedback_of

from ..support.acting import FakeCameraArm, FakeSite, notice_frozen_camera

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
    """A learner and an actor that take turns, step by step, so that all is reproducible."""

    def __init__(self, config: TrainConfig, before: Training | None = None) -> None:
        self.rows: list[Row] = []
        self.steps: int = config.steps
        self.demonstrations: list[Record] = (
            before.demonstrations if before else demonstrations(config)
        )
        self.log: list[Record] = list(before.log) if before else []
        self.transport = InProcess()
        self.saved: list[Checkpoint] = []
        self.learner: Learner = make_learner(
            config,
            self.transport,
            self,
            self._save,
            self.demonstrations,
            before.saved[-1] if before else None,
            list(self.log),
            before.learner.progress.taken.total() if before else 0,
        )
        online = [
            r for r in self.log if isinstance(r, Step) and r.source is not ActionSource.SCRIPT
        ]
        robot = plugins.make_simulation(make_task(config))
        clock = VirtualClock(robot.advance, make_task(config).config.rate_hz)
        self.actor = make_actor(
            config,
            EpisodeKey("run", "actor0", 1 + sum(r.key.index == 0 for r in self.log), 0),
            self.transport,
            [RecordCallback(self._take)],
            DrivenArm(robot, clock),
            FakeSite(lambda: self.learner.progress.steps >= self.steps),
            ActorHistory(len({record.key.episode for record in self.log}), len(online)),
        )

    def run(self, steps: int) -> Training:
        """Until so many steps are trained on."""
        self.steps = steps
        self.learner.publish()
        for _ in self.actor.episodes():
            pass
        self.learner.checkpoint()
        return self

    def write(self, steps: int, row: Row) -> None:
        self.rows.append(row)

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


def demonstrations(config: TrainConfig) -> list[Record]:
    task = make_task(config)
    records: list[Record] = []
    with plugins.make_simulation(task) as robot:
        key = EpisodeKey("run", "expert", 1, 0)
        record_expert(robot, task, records.append, 2, config.seed, key)
    return records


def assert_equal(a: State, b: State) -> None:
    assert a.keys() == b.keys()
    for name in a:
        np.testing.assert_array_equal(a[name], b[name], err_msg=name)


@pytest.fixture(scope="module")
def trained() -> Training:
    return Training(CONFIG).run(100)


def test_a_training_runs_to_its_end(trained: Training) -> None:
    progress = trained.learner.progress
    assert progress.steps == 100
    assert trained.learner.replay.demonstrations > 0
    assert trained.actor.policy.version > 5
    episodes = [row for row in trained.rows if isinstance(row, EpisodeRow)]
    assert sum(row.length for row in episodes) <= progress.received
    assert any(row.human_steps for row in episodes)
    versions = [record.policy_version for record in trained.log if isinstance(record, Step)]
    assert versions == sorted(versions)
    assert versions[0] == 1


def test_two_trainings_of_one_seed_are_equal_to_the_bit(trained: Training) -> None:
    again = Training(CONFIG).run(100)
    assert_equal(trained.weights(), again.weights())
    for first, second in zip(trained.log, again.log, strict=True):
        if isinstance(first, Step) and isinstance(second, Step):
            np.testing.assert_array_equal(first.action, second.action)
            assert first.source is second.source


def test_another_seed_gives_another_training(trained: Training) -> None:
    other = Training(CONFIG.model_copy(update={"seed": 4})).run(20)
    step, its = trained.log[0], other.log[0]
    assert isinstance(step, Step)
    assert isinstance(its, Step)
    assert not np.array_equal(step.action, its.action)


def test_a_resumed_training_goes_on_where_it_was() -> None:
    first = Training(CONFIG).run(60)
    second = Training(CONFIG, before=first)
    assert_equal(first.weights(), second.weights())
    assert second.learner.progress.trained == first.learner.progress.trained
    online = [r for r in second.log if isinstance(r, Step)]
    open_steps = second.learner.progress.received - second.learner.replay.online
    assert 0 <= open_steps <= 1
    assert second.learner.progress.received <= len(online)
    second.run(100)
    assert second.learner.progress.steps == 100
    assert second.actor.policy.version > first.actor.policy.version
    keys = [record.key for record in second.log]
    assert len(set(keys)) == len(keys)


def test_a_reward_that_is_learned_needs_nobody_and_is_resumed_with_the_rest() -> None:
    learned = {"reward": RewardConfig(kind="vice"), "intervention": "none"}
    config = CONFIG.model_copy(update=learned)
    first = Training(config).run(60)
    steps = [record for record in first.log if isinstance(record, Step)]
    assert {(step.reward, step.reward_provenance) for step in steps} == {(0.0, "vice")}
    assert not any(step.terminated for step in steps), "only the time limit ends an episode"
    assert any(name.startswith("vice.") for name in first.weights())
    assert_equal(first.weights(), Training(config, before=first).weights())


EVALUATED: dict[str, Any] = {
    "feedback": {"weight": 0.1},
    "intervention": "evaluator",
    "human": {"progress_step": 0.01},
}


def test_a_reward_learned_from_evaluations_is_resumed_to_the_bit() -> None:
    at_60 = {"learner": {"checkpoint_every": 60}}
    config = resolve(CONFIG.model_dump(exclude={"human"}), EVALUATED, at_60)
    whole = Training(config).run(100)
    steps = [record for record in whole.log if isinstance(record, Step)]
    assert {feedback_of(step.reward_provenance) for step in steps} == {-1, 0, 1}
    assert {step.source for step in steps} == {ActionSource.POLICY}
    assert {step.reward for step in steps} <= {0.0, 1.0}, "evaluations change no recorded reward"
    assert whole.weights()["feedback.head.1.weight"].any(), "it was learned"
    checkpoint = whole.saved[0]
    assert checkpoint.step == 60
    again: Learner = make_learner(
        config,
        InProcess(),
        whole,
        lambda *saved: None,
        whole.demonstrations,
        checkpoint,
        list(whole.log),
        restore_progress(checkpoint.info).taken.total(),
    )
    while again.progress.steps < 100:
        assert again.step()
    assert_equal(whole.weights(), again.agent.state_dict())


def test_returns_have_room_for_evaluations() -> None:
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
    "task_config": {"views": {"wrist": {"camera": "wrist", "width": 16, "height": 16}}},
}


@pytest.mark.parametrize(("asked", "shift"), [(None, 2), (3, 3)])
def test_images_of_successes_are_shifted_as_all_others(
    asked: int | None, shift: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or the classifier tells success by how far images are shifted."""
    found: list[int] = []

    def noted(images: Image, rows: Any, most_px: int, rng: np.random.Generator) -> Image:
        found.append(most_px)
        return random_shift(images, rows, most_px, rng)

    monkeypatch.setattr("serl.agents.vice.random_shift", noted)
    settings = {"reward": {"kind": "vice"}, "vice": {"crop_px": asked}, "learner": {"crop_px": 2}}
    config = resolve(CONFIG.model_dump(), PIXELS, settings, {"intervention": "none"})
    training = Training(config).run(3)
    assert any(name.startswith("vice.encoder.wrist.") for name in training.weights())
    assert set(found) == {shift}
    assert training.learner.replay.sample(8).images["wrist"].shape == (8, 16, 16, 3)


CACHED: dict[str, Any] = {
    "task": "pick_cube",
    "observe": "pixels",
    "agent": {"cached_features": True, "encoder_weights": "tabletop"},
    "intervention": "none",
}


def test_features_are_those_of_the_encoder_that_a_resumed_run_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("serl.training.frames._WAITING", 1)  # each frame as it comes
    config = resolve(CONFIG.model_dump(), CACHED)
    first = Training(config).run(3)
    again = Training(config, before=first)
    assert_equal(first.weights(), again.weights())
    mine, resumed = (run.learner.replay.sample(8).images for run in (first, again))
    assert mine.keys() == {"front", "wrist"}
    for name, features in mine.items():
        assert features.shape == (8, 64)
        np.testing.assert_array_equal(features, resumed[name])
    updates = [training.learner.agent for training in (first, again)]
    assert_equal(*({n: agent.state_dict()[n] for n in _CAMERAS} for agent in updates))


def test_features_are_those_of_the_encoder_that_another_run_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("serl.training.frames._WAITING", 1)
    config = resolve(CONFIG.model_dump(), CACHED, {"learner": {"warm_up": 0}})
    records, whole = demonstrations(config), Training(config)
    saved, transport = whole.weights(), InProcess()
    other = {name: saved[name] + np.float32(0.1) for name in _CAMERAS}

    def learner(inherited: State | None) -> Learner:
        return make_learner(
            config, transport, whole, lambda *saved: None, records, inherited=inherited
        )

    heir = learner(other)
    assert_equal(other, {name: heir.agent.state_dict()[name] for name in _CAMERAS})
    frames = heir.replay.sample(8).images
    encoder = frame_encoder(heir.agent)
    assert encoder is not None
    seen = [
        encoder.encode(record.observation.images)["wrist"].tobytes()
        for record in records
        if not isinstance(record, LostRecord)
    ]
    assert {row.tobytes() for row in frames["wrist"]} <= set(seen)
    assert not np.array_equal(frames["wrist"], learner(None).replay.sample(8).images["wrist"])


_CAMERAS = [
    f"encoder.{camera}.{part}"
    for camera in ("front", "wrist")
    for part in ("0.weight", "1.bias", "head.weight", "head.norm.shift")
]


def test_a_reward_that_is_learned_needs_successes() -> None:
    with pytest.raises(BadInput, match="reward vice: expected demonstrations"):
        resolve({"reward": {"kind": "vice"}, "demos": 0})
    resolve({"reward": {"kind": "vice"}, "demos": 0, "vice": {"positives": ["x"]}})


def test_who_clones_in_a_training_with_takeovers_learns_what_a_person_corrects(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """HG-DAgger: the policy drives, and nothing it did itself is learned."""
    taught: list[Batch] = []
    update = BC.update

    def noted(agent: BC, batch: Batch) -> dict[str, float]:
        taught.append(batch)
        return update(agent, batch)

    monkeypatch.setattr(BC, "update", noted)
    clones = {"agent": {"algorithm": "bc", "learning_rate": 3e-3}, "steps": 150}
    training = Training(resolve(CONFIG.model_dump(), clones))
    before = training.weights()
    training.run(150)
    steps = [record for record in training.log if isinstance(record, Step)]
    corrected = [step for step in steps if step.source is ActionSource.HUMAN]
    driven = {step.requested.tobytes() for step in steps if step.source is ActionSource.POLICY}
    assert len(corrected) >= 10
    assert len(driven) >= 50
    assert training.actor.policy.version > 5, "the policy that drives is the one that learns"
    shown = {r.action.tobytes() for r in training.demonstrations if isinstance(r, Step)}
    told = {step.action.tobytes() for step in corrected}
    learned = {action.tobytes() for batch in taught for action in batch.action}
    assert all(batch.prior.all() for batch in taught)
    assert learned <= shown | told
    assert learned & told
    assert not learned & (driven - told)
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


def test_settings_of_a_task_are_applied_and_checked() -> None:
    task = make_task(resolve({"task": "reach", "task_config": {"tolerance_m": 0.03}}))
    assert task.config.model_dump()["tolerance_m"] == 0.03
    with pytest.raises(
        BadInput, match=r"task_config.tolerance: unknown setting; did you mean .*tolerance_m"
    ):
        make_task(resolve({"task": "reach", "task_config": {"tolerance": 0.03}}))


def test_nobody_takes_over_when_nobody_is_asked_to() -> None:
    task = make_task(CONFIG)
    with plugins.make_simulation(task) as robot:
        nobody = CONFIG.model_copy(update={"intervention": "none"})
        assert make_human(nobody, task, robot, "actor0") is None
        assert make_human(CONFIG, task, robot, "actor0") is not None


@pytest.mark.parametrize("simulated", [True, False])
def test_after_the_log_come_the_check_of_cameras_the_person_and_all_others(
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


def test_actor_and_learner_agree_on_the_spec() -> None:
    assert make_spec(make_task(CONFIG)).digest == make_spec(make_task(CONFIG)).digest
    faster = CONFIG.model_copy(update={"task_config": {"rate_hz": 20.0}})
    assert "rate_hz" in make_spec(make_task(faster)).difference(make_spec(make_task(CONFIG)))


def test_actions_that_go_further_or_elsewhere_are_another_spec() -> None:
    """Demonstrations of them would teach wrong actions."""
    mine = make_spec(make_task(CONFIG))
    for motion, what in (({"translation_m": 0.005}, "0.005 m"), ({"frame": "tool"}, "tool frame")):
        other = make_spec(make_task(resolve({"task": "reach", "task_config": {"motion": motion}})))
        assert other.difference(mine).startswith('motion: "')
        assert what in other.difference(mine)


def test_replay_keeps_to_the_bytes_that_it_may_take(tmp_path: Path) -> None:
    def replay(**learner: int) -> Replay:
        config = resolve({"task": "pick_cube", "observe": "pixels", "learner": learner})
        return make_replay(config, make_spec(make_task(config)), tmp_path)

    frame = 2 * 64**2 * 3
    assert replay(capacity=50, image_bytes=20 * frame).capacity == 20
    assert not list(tmp_path.iterdir())
    assert replay(capacity=50, memory_bytes=49 * frame).capacity == 50
