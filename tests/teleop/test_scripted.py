from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest

from serl.clock import VirtualClock
from serl.intervention import Event, PersonContext
from serl.loop import EpisodeKey, RecordCallback, run
from serl.policy import Policy, ZeroPolicy
from serl.robot import Truth
from serl.teleop.evaluator import Evaluator, EvaluatorConfig
from serl.teleop.scripted import Budget, ScriptedHuman, ScriptedHumanConfig
from serl.testing import FakeRobot, FakeTask
from serl.types import Action, ActionSource, Record, Step

FULL = ScriptedHumanConfig(patience_steps=4, reaction_steps=2, hold_steps=3, max_hold_steps=6)
MANY_STEPS = 10**9


class ProgressTask(FakeTask):
    """Task whose progress the test sets, with an expert that moves to the lower right."""

    now = 0.0

    def progress(self, truth: Truth) -> float:
        return self.now

    def expert(self, truth: Callable[[], Truth], seed: int) -> Policy:
        return lambda observation: np.array([1.0, -1.0], np.float32)


class Bench:
    """Scripted human that watches a progress set by the test."""

    def __init__(self, config: ScriptedHumanConfig = FULL, planned_steps: int = MANY_STEPS) -> None:
        self.robot, self.task = FakeRobot(), ProgressTask()
        self.human = ScriptedHuman(config, self.task, self.robot, planned_steps, seed=0)

    def watch(self, steps: int, gain: float = 0.0) -> list[bool]:
        """Return for each of `steps` steps whether the human drove."""
        driving = []
        for _ in range(steps):
            driving.append(self.human() is not None)
            self.task.now += gain
        return driving


def steps_until_takeover(bench: Bench, action: tuple[float, float]) -> int:
    """Count the steps until the human takes over from a policy of constant action."""
    for step in range(100):
        if bench.human() is not None:
            return step
        bench.robot.act(np.array(action, np.float32))
        bench.robot.advance(0.1)
    raise AssertionError("the human never took over")


def placed_at(bench: Bench, x: float, y: float) -> Bench:
    """Move the robot of a bench to this point; return the bench."""
    bench.robot.place(x, y)
    return bench


def test_scripted_human_takes_over_sooner_at_border_of_box() -> None:
    habits = ScriptedHumanConfig(patience_steps=30, border_patience_steps=4, reaction_steps=1)
    early = 4 + 1  # as for a policy that is at the border already
    assert steps_until_takeover(placed_at(Bench(habits), 0.15, 0.0), (1.0, 0.0)) == early
    assert steps_until_takeover(placed_at(Bench(habits), 0.15, 0.0), (0.0, 0.0)) == 30 + 1
    assert steps_until_takeover(placed_at(Bench(habits), 0.0, -0.2), (0.0, 0.0)) == early
    assert steps_until_takeover(placed_at(Bench(habits), 0.15, 0.0), (-0.1, 0.0)) == 30 + 1


def test_scripted_human_lets_progressing_policy_reach_border() -> None:
    habits = ScriptedHumanConfig(border_patience_steps=1, reaction_steps=0)
    bench = placed_at(Bench(habits), 0.2, 0.2)
    assert not any(bench.watch(100, gain=2 * habits.progress_step))


def test_scripted_human_takes_over_after_patience_and_reaction() -> None:
    bench = Bench()
    idle = FULL.patience_steps + FULL.reaction_steps  # the first step sets the reference progress
    assert bench.watch(idle + 2) == [False] * idle + [True] * 2


def test_scripted_human_stays_off_while_policy_progresses() -> None:
    assert not any(Bench().watch(100, gain=2 * FULL.progress_step))


def test_progress_during_reaction_prevents_takeover() -> None:
    bench = Bench()
    bench.watch(1 + FULL.patience_steps)
    bench.task.now += 2 * FULL.progress_step
    assert not any(bench.watch(FULL.patience_steps))


def test_regress_causes_takeover_without_patience() -> None:
    bench = Bench()
    bench.task.now = 0.5
    bench.watch(1)
    bench.task.now = 0.5 - FULL.regress - 0.01
    assert bench.watch(4) == [False] * FULL.reaction_steps + [True] * 2


def test_takeover_ends_after_progress_and_minimum_hold() -> None:
    bench = Bench()
    until_on = bench.watch(50).index(True)
    bench = Bench()
    bench.watch(until_on)
    assert bench.watch(6, gain=FULL.gain) == [True] * FULL.hold_steps + [False] * 3


def test_takeover_without_progress_ends_at_maximum_hold() -> None:
    driving = Bench().watch(50)
    first = driving.index(True)
    assert driving[first:].index(False) == FULL.max_hold_steps
    assert any(driving[first + FULL.max_hold_steps :]), "the human did not take over again"


def test_new_episode_starts_with_hands_off() -> None:
    bench = Bench()
    while bench.human() is None:
        pass
    bench.human.begin()
    assert not any(bench.watch(FULL.patience_steps))


def test_scripted_human_actions_are_noisy_and_in_range() -> None:
    bench = Bench()
    actions = [action for _ in range(200) if (action := bench.human()) is not None]
    assert len({action.tobytes() for action in actions}) > len(actions) / 2
    assert all(action.dtype == np.float32 and np.abs(action).max() <= 1.0 for action in actions)
    assert np.abs(np.mean(actions, 0) - [1.0, -1.0]).max() < 0.3


class UnsolvableTask(FakeTask):
    """Task whose expert does nothing."""

    def expert(self, truth: Callable[[], Truth], seed: int) -> Policy:
        return ZeroPolicy(FakeRobot.action_spec)


def drive(config: ScriptedHumanConfig, planned: int, seed: int = 0) -> list[Step]:
    """Run a training in which no episode succeeds; return its first `planned` steps."""
    robot, task = FakeRobot(), UnsolvableTask()
    human = ScriptedHuman(config, task, robot, planned_steps=planned, seed=seed)
    records: list[Record] = []
    steps: list[Step] = []
    episode = 0
    while len(steps) < planned:
        robot.reset(episode)
        key = EpisodeKey("run", "actor", 1, episode)
        clock = VirtualClock(robot.advance, task.config.rate_hz)
        run(
            robot,
            task,
            ZeroPolicy(robot.action_spec),
            clock,
            key,
            [RecordCallback(records.append)],
            teleop=human,
        )
        steps = [record for record in records if isinstance(record, Step)]
        episode += 1
    assert human.budget.used == sum(step.source is ActionSource.HUMAN for step in steps)
    return steps[:planned]


def share(steps: list[Step]) -> float:
    return sum(step.source is ActionSource.HUMAN for step in steps) / len(steps)


@pytest.fixture(scope="module")
def training() -> list[Step]:
    return drive(ScriptedHumanConfig(), 2400)


def test_scripted_human_keeps_budget_if_policy_never_succeeds(training: list[Step]) -> None:
    quarters = [share(training[600 * part : 600 * (part + 1)]) for part in range(4)]
    assert 0.1 < share(training) <= 0.30
    assert quarters[3] <= 0.05
    assert quarters == sorted(quarters, reverse=True)


def test_scripted_human_labels_success_only_if_asked_to() -> None:
    robot, task = FakeRobot(), FakeTask()
    unlabelled, labelled = (
        ScriptedHuman(FULL, task, robot, 1000, seed=0, labels=labels) for labels in (False, True)
    )
    assert labelled.events() == ()
    robot.place(0.0, 0.0)
    assert labelled.events() == (Event.SUCCESS,)
    assert unlabelled.events() == ()


def test_default_budget_averages_below_one_quarter() -> None:
    """Compute the mean share: linear to `final_share` at three quarters, then constant."""
    config = ScriptedHumanConfig()
    mean = 0.75 * (config.share + config.final_share) / 2 + 0.25 * config.final_share
    assert mean <= 0.25
    assert config.final_share <= 0.05


def test_budget_share_follows_steps_of_all_actors() -> None:
    """Check that the share of one human falls with the trained steps of all actors."""
    trained = 0
    budget = Budget(ScriptedHumanConfig(), 1000, trained=lambda: trained)
    assert budget.share() == ScriptedHumanConfig().share
    trained = 750
    assert budget.share() == pytest.approx(ScriptedHumanConfig().final_share)


def test_restart_does_not_refill_budget() -> None:
    assert not Budget(ScriptedHumanConfig(), 1000, steps_before=1).allows(1)


def test_scripted_human_with_zero_share_never_drives() -> None:
    assert share(drive(ScriptedHumanConfig(share=0.0, final_share=0.0), 300)) == 0.0


@pytest.mark.parametrize("most", [0, 2, None])
def test_scripted_human_respects_max_takeovers(most: int | None) -> None:
    driving = [False]
    bench = Bench(FULL.model_copy(update={"max_takeovers": most}))
    for _ in range(3):
        bench.human.begin()
        driving += bench.watch(30)
    takeovers = sum(now and not before for before, now in itertools.pairwise(driving))
    assert takeovers == most if most is not None else takeovers > 3
    bench.human = ScriptedHuman(
        bench.human.config, bench.task, bench.robot, MANY_STEPS, seed=0, takeovers_before=takeovers
    )
    assert any(bench.watch(30)) is (most is None), "a restart gives no more help"


def test_scripted_human_depends_only_on_seed(training: list[Step]) -> None:
    def actions(steps: list[Step]) -> list[Action]:
        return [step.action for step in steps[:300]]

    again = drive(ScriptedHumanConfig(), 2400)
    np.testing.assert_array_equal(actions(training), actions(again))
    other = drive(ScriptedHumanConfig(), 300, seed=1)
    assert not np.array_equal(actions(training), actions(other))


def test_restarted_scripted_human_resumes_with_current_budget() -> None:
    bench = Bench(planned_steps=1000)
    late = ScriptedHuman(
        FULL, ProgressTask(), FakeRobot(), planned_steps=1000, seed=0, steps_before=800
    )
    assert bench.human.budget.share() == FULL.share
    assert late.budget.share() == pytest.approx(FULL.final_share)
    assert not late.budget.allows(FULL.hold_steps)


def test_evaluator_presses_with_delay_and_interval_and_never_drives() -> None:
    robot, task = FakeRobot(), ProgressTask()
    config = EvaluatorConfig(progress_step=0.1, interval_s=0.4, delay_s=0.2)
    person = Evaluator.create(config, PersonContext(task, robot, MANY_STEPS, seed=0))
    for _ in range(2):  # the second episode starts from a clean state
        task.now = 0.0
        person.begin()
        keys: dict[int, tuple[Event, ...]] = {}
        for step in range(20):
            task.now = {3: 0.5, 4: 0.7, 12: 0.65, 13: 0.1}.get(step, task.now)
            assert person() is None
            if found := person.events():
                keys[step] = found
        good, bad = (Event.REWARD,), (Event.PENALTY,)
        assert keys == {
            5: good,
            9: good,
            15: bad,
        }  # 0.7 was due at step 6, and 0.65 is no change


def test_evaluator_labels_success_if_asked_to() -> None:
    robot, task = FakeRobot(), FakeTask()
    training = PersonContext(task, robot, MANY_STEPS, seed=0, labels=True)
    person = Evaluator(EvaluatorConfig(), training)
    assert person.events() == ()
    robot.place(0.0, 0.0)
    assert person.events() == (Event.SUCCESS,)
