from __future__ import annotations

import pytest

from serl.testing import InProcess
from serl.training.learned_policy import BackPressure, LearnedPolicy
from serl.types import ActionSource, Step

from ..support.acting import ActorBench, ConstantAgent, snapshot


def paced(lead: int, patience_s: float, sent_before: int = 0) -> tuple[BackPressure, InProcess]:
    weights = InProcess()
    policy = LearnedPolicy(ConstantAgent(), weights)
    return BackPressure(lead, patience_s, policy, "actor", lambda: False, sent_before), weights


def online_steps(count: int) -> list[Step]:
    stage = ActorBench()
    stage.run(2)
    return stage.steps[:count]


def test_simulation_waits_while_learner_is_behind() -> None:
    pace, weights = paced(lead=3, patience_s=60.0, sent_before=100)
    asked = 0

    def publish() -> bool:  # called while waiting
        nonlocal asked
        asked += 1
        if asked == 3:
            weights.publish(snapshot(1, 0.0, trained=100))
        return asked > 10

    pace._is_stopping = publish
    pace()
    assert asked == 3
    for step in online_steps(3):
        pace.on_step(step)
    asked = 4
    pace()
    assert asked == 4  # three steps ahead are allowed: no waiting


def test_simulation_pauses_while_learner_is_silent(
    caplog: pytest.LogCaptureFixture,
) -> None:
    pace, _ = paced(lead=1, patience_s=1e-6, sent_before=9)
    turns = iter(range(5))
    pace._is_stopping = lambda: next(turns) == 4
    pace()
    assert next(turns, None) is None
    assert [record.message for record in caplog.records] == [
        "no news from the learner for 1e-06 s: time stands still"
    ]


def test_simulation_waits_for_first_weights() -> None:
    pace, weights = paced(lead=9, patience_s=60.0)
    turns = 0

    def publish_at_the_third() -> bool:
        nonlocal turns
        turns += 1
        if turns == 3:
            weights.publish(snapshot(1, 0.0, trained=0))
        return turns > 10

    pace._is_stopping = publish_at_the_third
    pace()
    assert turns == 3


def test_script_steps_do_not_count_as_lead() -> None:
    pace, weights = paced(lead=1, patience_s=60.0)
    weights.publish(snapshot(1, 0.0, trained=0))
    pace()
    stage = ActorBench(place=False)
    stage.robot.reset(0)
    stage.robot._position[:] = 0.0
    stage.run(1)
    script = [step for step in stage.steps if step.source is ActionSource.SCRIPT]
    assert len(script) > 1
    for step in script:
        pace.on_step(step)
    pace._is_stopping = lambda: pytest.fail("waits")
    pace()
