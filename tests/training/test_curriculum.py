from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from serl import plugins
from serl.clock import VirtualClock
from serl.errors import BadInput
from serl.loop import EpisodeKey, RecordCallback
from serl.policy import Policy, ZeroPolicy
from serl.runs.assembly import make_curriculum
from serl.runs.config import resolve
from serl.runs.settings import run_settings
from serl.runs.task_setup import make_task
from serl.training.actor import Actor, ActorConfig
from serl.training.curriculum import Curriculum, CurriculumConfig
from serl.types import ActionSource, End, Record, Step

from ..support.acting import DelegatingPolicy, FakeSite, FakeStarts


class Setting:
    """Curriculum whose task progress and trained share are set by the test."""

    def __init__(self, **config: float) -> None:
        self.progress = self.trained = 0.0
        self.curriculum = Curriculum(
            CurriculumConfig.model_validate(config),
            lambda: self.trained,
            lambda: self.progress,
            lambda: lambda observation: np.zeros(2, np.float32),
        )

    def add(self, *successes: bool) -> None:
        for success in successes:
            self.curriculum.add(success)


def test_curriculum_widens_starts_after_enough_recent_successes() -> None:
    world = Setting(start=0.2, window=4, success_rate=0.75)
    world.add(True, True, True)
    assert world.curriculum.share == 0.2, "too few"
    world.add(False)
    assert world.curriculum.share == pytest.approx(0.3)
    world.add(True, True, True)
    assert world.curriculum.share == pytest.approx(0.3), "the window begins anew"
    world.add(False)
    assert world.curriculum.share == pytest.approx(0.4)
    world.add(True, False, True, False, False)
    assert world.curriculum.share == pytest.approx(0.4), "half of the last four"
    for _ in range(10):
        world.add(*[True] * 4)
    assert world.curriculum.share == 1.0


def test_curriculum_widens_starts_with_trained_share_at_latest() -> None:
    world = Setting(start=0.2, until=0.5)
    for trained, share in ((0.0, 0.2), (0.25, 0.6), (0.5, 1.0), (1.0, 1.0)):
        world.trained = trained
        assert world.curriculum.share == pytest.approx(share)


def test_script_covers_task_up_to_remaining_share() -> None:
    world = Setting(start=0.5)
    world.progress = 0.1
    assert world.curriculum.script() is not None
    for progress, reached in ((0.3, False), (0.49, False), (0.51, True)):
        world.progress = progress
        assert world.curriculum.has_reached() is reached


def test_full_share_needs_no_script() -> None:
    world = Setting(start=0.2)
    world.trained = 0.7
    assert world.curriculum.script() is None


def test_curriculum_that_starts_with_nothing_is_refused() -> None:
    with pytest.raises(BadInput, match=r"curriculum\.start: expected more than 0, got 0\.0"):
        resolve({"curriculum": {"start": 0.0}})


@pytest.mark.parametrize("name", ["object_flip", "racing_car"])
def test_curriculum_of_task_that_begins_anew_is_refused(name: str) -> None:
    with pytest.raises(BadInput, match=rf"curriculum\.start: {name} begins anew"):
        run_settings(name, {}, {"curriculum": {"start": 0.3}})


def test_curriculum_is_created_only_when_configured() -> None:
    config = resolve({"task": "reach"})
    task = make_task(config)
    robot = plugins.make_simulation(task)
    assert make_curriculum(config, task, robot, lambda: 0) is None
    config = resolve({"task": "reach", "curriculum": {"start": 0.3}, "steps": 100})
    made = make_curriculum(config, task, robot, lambda: 25)
    assert made is not None
    assert made.share == pytest.approx(0.3 + 0.7 * 0.5)


def drive(
    name: str, share: float, policy: Callable[[Any, Any], Policy]
) -> tuple[Any, list[Record]]:
    """Run two curriculum episodes through the actor's loop; return the actor and its records."""
    config = resolve({"task": name, "curriculum": {"start": share, "window": 1}})
    task = make_task(config)
    robot: Any = plugins.make_simulation(task)
    records: list[Record] = []
    site = FakeSite()
    site.starts = FakeStarts(robot.reset)
    site.starts.curriculum = make_curriculum(config, task, robot, lambda: 0)
    actor = Actor(
        EpisodeKey("run", "actor", 1, 0),
        robot,
        task,
        DelegatingPolicy(policy(task, robot)),
        VirtualClock(robot.advance, task.config.rate_hz),
        [RecordCallback(records.append)],
        site,
        ActorConfig(),
    )
    for _ in range(2):
        actor.episode()
    return actor, records


@pytest.mark.parametrize("name", ["pick_cube", "peg_insertion"])
def test_script_episode_precedes_shortened_policy_episode(name: str) -> None:
    actor, records = drive(name, 0.3, lambda task, robot: task.expert(robot.truth, 0))
    steps = [record for record in records if isinstance(record, Step)]
    sources = [step.source for step in steps]
    by_policy = [s.key.episode for s in steps if s.source is ActionSource.POLICY]
    ends = {end.key.episode: end for end in records if isinstance(end, End)}
    assert sources[0] is ActionSource.SCRIPT
    assert sorted(set(by_policy)) == [1, 3], "policy episodes alternate with script episodes"
    assert all(ends[episode].success for episode in range(4))
    assert by_policy.count(1) < 0.6 * sources[: sources.index(ActionSource.POLICY)].count(
        ActionSource.SCRIPT
    )
    assert by_policy.count(3) > by_policy.count(1), "the share grows after a success"
    assert actor.site.starts.curriculum.share > 0.3


def test_curriculum_share_stays_after_failure() -> None:
    actor, records = drive("reach", 0.3, lambda task, robot: ZeroPolicy(robot.action_spec))
    assert actor.site.starts.curriculum.share == 0.3
    ends = [end for end in records if isinstance(end, End)]
    assert [end.success for end in ends] == [True, False, True, False]
