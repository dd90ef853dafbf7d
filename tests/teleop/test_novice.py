from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from serl.clock import VirtualClock
from serl.errors import BadInput
from serl.intervention import Event
from serl.loop import EpisodeKey, run
from serl.policy import Policy, ZeroPolicy
from serl.robot import Truth
from serl.runs.assembly import make_human
from serl.runs.config import resolve
from serl.sim.arm import SimArm
from serl.tasks.reach import Reach
from serl.teleop.novice import NoviceConfig, NoviceHuman, ViewConfig
from serl.testing import FakeRobot, FakeTask
from serl.types import Action, Observation

ALWAYS = {
    **{"patience_steps": 1, "reaction_steps": 0, "hold_steps": 1000, "max_hold_steps": 1000},
    **{"gain": 1000.0, "progress_step": 1000.0, "bucket_steps": 10**6},
}


EXACT = dict.fromkeys(ViewConfig.model_fields, 0.0)


class RecordingReach(Reach):
    """Reach task whose expert records the truth it gets and always moves up."""

    def __init__(self) -> None:
        super().__init__()
        self.shown: list[Truth] = []

    def expert(self, truth: Callable[[], Truth], seed: int) -> Policy:
        def act(observation: Observation) -> Action:
            self.shown.append(truth())
            return np.array([0.0, 0.0, 1.0], np.float32)

        return act


def drive(view: ViewConfig, steps: int = 12) -> tuple[list[Truth], list[Truth]]:
    """Let a novice drive; return the truths that it was shown and the actual ones."""
    task = RecordingReach()
    arm = SimArm(task.scene, task.config)
    arm.reset(3)
    human = NoviceHuman(NoviceConfig(**ALWAYS, view=view), task, arm, 10**9, seed=0)
    known: list[Truth] = []
    for _ in range(steps):
        known.append(arm.truth())
        action = human()
        arm.act(np.zeros(3, np.float32) if action is None else action)
        arm.advance(0.1)
    return task.shown, known[steps - len(task.shown) :]


def test_novice_sees_arm_late_and_its_own_command_at_once() -> None:
    shown, known = drive(ViewConfig(**(EXACT | {"delay_s": 0.25})))
    assert len(shown) > 8
    for now in range(4, len(shown)):
        assert np.array_equal(shown[now]["tcp_pose"], known[now - 3]["tcp_pose"])
        assert np.array_equal(shown[now]["target_pose"], known[now]["target_pose"])
    assert known[-1]["tcp_pose"][2] > known[-4]["tcp_pose"][2] + 0.005, "the arm did not move"


def test_novice_sees_goal_with_bias_and_arm_without() -> None:
    shown, known = drive(ViewConfig(**(EXACT | {"bias_m": 0.004})))
    for seen, true in zip(shown, known, strict=True):
        error = seen["goal_pose"][:3] - true["goal_pose"][:3]
        assert np.linalg.norm(error) == pytest.approx(0.004, abs=1e-5)
        assert np.array_equal(seen["tcp_pose"], true["tcp_pose"])


def test_novice_is_selected_by_name_with_its_own_settings() -> None:
    config = resolve({"intervention": "novice", "human": {"view": {"delay_s": 0.2}, "gain": 0.4}})
    assert isinstance(config.human, NoviceConfig)
    assert (config.human.view.delay_s, config.human.view.bias_m) == (0.2, 0.0005)
    assert config.human.gain == 0.4
    task = Reach()
    made = make_human(config, task, SimArm(task.scene, task.config), "actor")
    assert isinstance(made, NoviceHuman)


def test_novice_completes_task_for_idle_policy() -> None:
    task = Reach()
    arm = SimArm(task.scene, task.config)
    human = NoviceHuman(NoviceConfig(**ALWAYS), task, arm, 10**9, seed=0)
    clock, helped = VirtualClock(arm.advance, task.config.rate_hz), 0
    for seed in range(5):
        arm.reset(seed)
        idle, key = ZeroPolicy(arm.action_spec), EpisodeKey("run", "actor", 1, seed)
        helped += run(arm, task, idle, clock, key, [], teleop=human).success
    assert helped >= 4


def test_novice_labels_only_true_success() -> None:
    robot, task = FakeRobot(), FakeTask()
    human = NoviceHuman(NoviceConfig(), task, robot, 10**9, seed=0, labels=True)
    robot.place(0.1, 0.1)
    human()
    assert human.events() == ()
    robot.place(0.0, 0.0)
    assert human.events() == (Event.SUCCESS,)


def test_novice_refuses_wrench_actions() -> None:
    task = FakeTask()
    motion = task.config.motion.model_copy(update={"action_mode": "wrench"})
    task.config = task.config.model_copy(update={"motion": motion})
    with pytest.raises(BadInput, match="moves tools only"):
        NoviceHuman(NoviceConfig(), task, FakeRobot(), 10**9, seed=0)
