"""Faults of resets: scenes that an arm cannot restore by itself."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from serl import plugins
from serl.clock import VirtualClock
from serl.errors import NeedsPerson
from serl.intervention import Event
from serl.loop import EpisodeKey, RecordCallback
from serl.policy import Policy, ZeroPolicy
from serl.runs.config import resolve
from serl.runs.scene_reset import make_scene_reset
from serl.runs.task_setup import make_task
from serl.training.actor import Actor, ActorConfig
from serl.training.arm_reset import ArmReset
from serl.training.resets import SceneReset
from serl.types import Action, ActionSource, End, Observation, Record, Step

from ..support.acting import DelegatingPolicy, FakeSite
from .registry import REGISTRY, Level

_STUCK_KG = 500.0
_ATTEMPT_S = 6.0


@REGISTRY.fault(
    53,
    "A reset fails repeatedly",
    injected="a cube beside its field that the arm cannot lift",
    required="three scripted attempts, each logged and within its time limit; then the arm holds, "
    "and a person is asked once; training continues once the scene is restored; without a person "
    "the actor ends",
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
    """Return an arm, an actor with scripted resets, its records and its site."""
    task = make_task(resolve({"task": "pick_cube", "task_config": {"auto_reset": True}}))
    robot: Any = plugins.make_simulation(task)
    robot.reset(0)
    robot.model.body("cube").mass[0] = _STUCK_KG
    address = robot.model.jnt_qposadr[robot.model.body("cube").jntadr[0]]
    robot.data.qpos[address : address + 3] = (0.63, 0.22, 0.02)
    robot.advance(0.3)
    actor, records = _actor(robot, task, ActorConfig(reset_time_limit_s=_ATTEMPT_S))
    return robot, actor, records, cast(FakeSite, actor.site)


def _actor(
    robot: Any,
    task: Any,
    config: ActorConfig | None = None,
    reset: SceneReset | None = None,
    policy: Policy | None = None,
) -> tuple[Actor, list[Record]]:
    """Return an actor, by default with a zero policy, and its list of records."""
    records: list[Record] = []
    actor = Actor(
        EpisodeKey("run", "actor0", 1, 0),
        robot,
        task,
        DelegatingPolicy(policy or ZeroPolicy(robot.action_spec)),
        VirtualClock(robot.advance, task.config.rate_hz),
        [RecordCallback(records.append)],
        FakeSite(),
        config or ActorConfig(),
        reset,
    )
    return actor, records


def _slip_when(robot: Any, lifted: Callable[[], bool]) -> list[float]:
    """Drop the held part once `lifted` holds, until the gripper opens; return the times."""
    advance, slipped = robot.advance, list[float]()

    def advance_slipping(dt_s: float) -> None:
        advance(dt_s)
        if not slipped and lifted():
            slipped.append(robot.time_s)
            robot.slip(True)
        elif slipped and robot.observe().state["gripper"][0] > 0.9:
            robot.slip(False)

    robot.advance = advance_slipping
    return slipped


@REGISTRY.fault(
    61,
    "Gripper slips while a scripted reset carries a part",
    injected="finger pads without friction once the part is 6 cm high, until the gripper opens "
    "again",
    required="the part is fetched again in the same or the next attempt, without a person; the "
    "next episode begins with the part in its bin",
    level=Level.COMPONENT,
)
def slip_while_carrying(folder: Path) -> None:
    settings = {"direction": "backward", "auto_reset": True, "time_limit_s": 1.0}
    task = make_task(resolve({"task": "bin_relocation", "task_config": settings}))
    opposite = settings | {"direction": "forward"}
    start = make_task(resolve({"task": "bin_relocation", "task_config": opposite}))
    robot: Any = plugins.make_simulation(start)
    robot.reset(0)
    slipped = _slip_when(robot, lambda: robot.truth()["part_pose"][2] > 0.06)
    actor, records = _actor(robot, task)
    assert actor.episode() is not None
    assert len(slipped) == 1
    steps = [record for record in records if isinstance(record, Step)]
    first = next(step for step in steps if step.source is ActionSource.POLICY)
    carried = {step.key.episode for step in steps if step.source is ActionSource.SCRIPT}
    assert carried
    assert max(carried) < first.key.episode
    assert np.abs(robot.truth()["part_pose"][:2] - (0.47, -0.12)).max() < 0.09, "in its bin"
    assert robot.truth()["part_pose"][2] < 0.03


@REGISTRY.fault(
    61,
    "Gripper slips while the tool returns home with a part that it should keep",
    injected="finger pads without friction during the motion",
    required="the reset ends at once, and a person is asked for the part; no episode begins "
    "without it",
    level=Level.COMPONENT,
)
def slip_on_the_way_home(folder: Path) -> None:
    settings = {"kind": "home", "home_m": (0.42, -0.08, 0.25), "gripper": "keep"}
    config = resolve({"task": "pick_cube", "reset": settings})
    task = make_task(config)
    robot: Any = plugins.make_simulation(task)
    robot.reset(0)
    reset = make_scene_reset(config, task, robot, "actor0", 0)
    actor, _ = _actor(robot, task, policy=task.expert(robot.truth, 0))
    result = actor.episode()
    assert result is not None
    assert result.success
    slipped = _slip_when(robot, lambda: True)
    site, asked = cast(FakeSite, actor.site), list[str]()
    site.person, site.stopping = asked.append, lambda: bool(asked)
    again, records = _actor(robot, task, reset=reset)
    again.site = site
    assert again.episode() is None
    assert slipped
    (reason,) = asked
    assert reason.startswith("a person is needed: the gripper holds nothing")
    assert reason.endswith("the part slipped or was let go")
    assert {step.source for step in records if isinstance(step, Step)} == {ActionSource.SCRIPT}
    assert robot.stop_reason == reason


class _StopPresser:
    """Operator input that stops the robot at a step of a reset and never drives."""

    def __init__(self, at: int) -> None:
        self._left = at

    def begin(self) -> None: ...

    def __call__(self) -> Action | None:
        return None

    def events(self) -> tuple[Event, ...]:
        self._left -= 1
        return (Event.STOP,) if self._left == 0 else ()


@REGISTRY.fault(
    62,
    "A person presses the stop in a reset",
    injected="the stop of a device, 8 steps after the beginning of a return home",
    required="the arm brakes and holds, and its gains do not change; once the person has ended the "
    "stop, the reset begins again from there; the episode begins within 3 mm of its start",
    level=Level.COMPONENT,
)
def stop_in_a_reset(folder: Path) -> None:
    settings = {"kind": "home", "home_m": (0.45, 0.0, 0.2)}
    limits = {"time_limit_s": 1.0}
    config = resolve({"task": "pick_cube", "reset": settings, "task_config": limits})
    task = make_task(config)
    robot: Any = plugins.make_simulation(task)
    robot.reset(3)
    gains: list[str | None] = []
    robot.modes, robot.gains, robot.switch = ("precision",), None, gains.append
    reset = make_scene_reset(config, task, robot, "actor0", 0)
    assert isinstance(reset, ArmReset)
    actor, records = _actor(robot, task, reset=reset)
    site, seen = cast(FakeSite, actor.site), list[tuple[str, list[str | None]]]()
    site.teleop = _StopPresser(8)

    def released() -> bool:
        if robot.stop_reason is None:
            return False
        seen.append((robot.stop_reason, list(gains)))
        robot.advance(1.0)
        before = robot.truth()["tcp_pose"]
        robot.advance(1.0)
        assert np.abs(robot.truth()["tcp_pose"] - before).max() < 1e-3, "it does not hold"
        return True

    site.held = released
    starts: list[Observation] = []
    policy: Any = actor.policy
    policy.begin = lambda: starts.append(robot.observe())
    assert actor.episode() is not None
    assert seen == [("stopped", ["precision"])], "nothing softens a stopped arm"
    assert gains == ["precision", None]
    ends = [record for record in records if isinstance(record, End)]
    assert [end.text for end in ends] == ["stopped", "success", "time limit"]
    (start,) = starts
    assert 1e3 * math.dist(start.state["tcp_pose"][:3].tolist(), reset.start.position) < 3.0
