"""Scenes that an arm cannot restore by itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from serl import plugins
from serl.agent import Agent
from serl.clock import VirtualClock
from serl.errors import NeedsPerson
from serl.loop import EpisodeKey, RecordCallback
from serl.policy import ZeroPolicy
from serl.runs.config import resolve
from serl.runs.task_setup import make_task
from serl.testing import InProcess
from serl.training.actor import Actor, ActorConfig
from serl.training.learned_policy import LearnedPolicy
from serl.types import Action, ActionSource, End, Observation, Record, Step

from ..support.acting import FakeSite
from .registry import REGISTRY, Level

_STUCK_KG = 500.0
_ATTEMPT_S = 6.0


class _Still(LearnedPolicy):
    """A policy that does nothing."""

    def __init__(self, hold: ZeroPolicy) -> None:
        agent: Any = Agent
        super().__init__(agent, InProcess())
        self._hold = hold

    def __call__(self, observation: Observation) -> Action:
        return self._hold(observation)


@REGISTRY.fault(
    53,
    "A reset fails repeatedly",
    injected="a cube beside its field that nothing can lift",
    required="3 scripted attempts, each within its time limit and logged; then the arm is stopped "
    "and holds, and a person is asked once; training goes on once the scene is restored, "
    "and without one the actor ends there",
    level=Level.COMPONENT,
)
def blocked_reset(folder: Path) -> None:
    robot, actor, records, site = _stuck()
    heard: list[tuple[str, str | None]] = []

    def help_out(reason: str) -> None:
        heard.append((reason, robot.stop_reason))
        robot.reset(1)
        robot.model.body("cube").mass[0] = 0.1

    site.person = help_out
    result = actor.episode()
    said = "a person is needed: the reset failed 3 times"
    assert heard == [(said, said)]
    assert result is not None
    assert robot.stop_reason is None
    ends = [record for record in records if isinstance(record, End)]
    assert [end.text for end in ends] == ["time limit"] * 3 + [said, "time limit"]
    scripted = [r for r in records if isinstance(r, Step) and r.source is ActionSource.SCRIPT]
    assert len(scripted) == 3 * round(_ATTEMPT_S * 10) + 1

    robot, actor, _, _ = _stuck()
    with pytest.raises(NeedsPerson, match=said):
        actor.episode()
    assert robot.stop_reason == said
    robot.advance(1.0)
    before = robot.truth()["tcp_pose"]
    robot.act(np.array((1.0, 0.0, 1.0, 0.0, 0.0), np.float32))
    robot.advance(1.0)
    assert np.abs(robot.truth()["tcp_pose"] - before).max() < 1e-3, "it does not hold"


def _stuck() -> tuple[Any, Actor, list[Record], FakeSite]:
    """An arm, an actor that has it restore its scene, and what is recorded."""
    task = make_task(resolve({"task": "pick_cube", "task_config": {"auto_reset": True}}))
    robot: Any = plugins.make_simulation(task)
    robot.reset(0)
    robot.model.body("cube").mass[0] = _STUCK_KG
    address = robot.model.jnt_qposadr[robot.model.body("cube").jntadr[0]]
    robot.data.qpos[address : address + 3] = (0.63, 0.22, 0.02)
    robot.advance(0.3)
    records: list[Record] = []
    site = FakeSite()
    actor = Actor(
        EpisodeKey("run", "actor0", 1, 0),
        robot,
        task,
        _Still(ZeroPolicy(robot.action_spec)),
        VirtualClock(robot.advance, task.config.rate_hz),
        [RecordCallback(records.append)],
        site,
        ActorConfig(reset_time_limit_s=_ATTEMPT_S),
    )
    return robot, actor, records, site
