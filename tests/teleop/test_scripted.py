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
GREAT = 10**9


class Watched(FakeTask):
    """A task whose progress the test sets, with an expert that goes to the lower right."""

    now = 0.0

    def progress(self, truth: Truth) -> float:
        return self.now

    def expert(self, truth: Callable[[], Truth], seed: int) -> Policy:
        return lambda observation: np.array([1.0, -1.0], np.float32)


class Bench:
    """A human who watches a progress that the test sets."""

    def __init__(self, config: ScriptedHumanConfig = FULL, planned_steps: int = GREAT) -> None:
        self.robot, self.task = FakeRobot(), Watched()
        self.human = ScriptedHuman(config, self.task, self.robot, planned_steps, seed=0)

    def watch(self, steps: int, gain: float = 0.0) -> list[bool]:
        """Who drove in each of so many steps."""
        drove = []
        for _ in range(steps):
            drove.append(self.human() is not None)
            self.task.now += gain
        return drove


def steps_until_hands_are_on(bench: Bench, action: tuple[float, float]) -> int:
    """Of a policy that always does the same, and never comes nearer."""
    for step in range(100):
        if bench.human() is not None:
            return step
        bench.robot.act(np.array(action, np.float32))
        bench.robot.advance(0.1)
    raise AssertionError("it never took over")


def at(bench: Bench, x: float, y: float) -> Bench:
    """The same, with its robot's point elsewhere."""
    bench.robot.place(x, y)
    return bench


def test_who_heads_out_of_the_box_gets_less_patience() -> None:
    habits = ScriptedHumanConfig(patience_steps=30, border_patience_steps=4, reaction_steps=1)
    early = 4 + 1  # as of a policy that is at the side already
    assert steps_until_hands_are_on(at(Bench(habits), 0.15, 0.0), (1.0, 0.0)) == early
    assert steps_until_hands_are_on(at(Bench(habits), 0.15, 0.0), (0.0, 0.0)) == 30 + 1
    assert steps_until_hands_are_on(at(Bench(habits), 0.0, -0.2), (0.0, 0.0)) == early
    assert steps_until_hands_are_on(at(Bench(habits), 0.15, 0.0), (-0.1, 0.0)) == 30 + 1


def test_who_comes_forward_may_go_to_the_border() -> None:
    habits = ScriptedHumanConfig(border_patience_steps=1, reaction_steps=0)
    bench = at(Bench(habits), 0.2, 0.2)
    assert not any(bench.watch(100, gain=2 * habits.progress_step))


def test_hands_are_on_after_patience_and_reaction() -> None:
    bench = Bench()
    idle = FULL.patience_steps + FULL.reaction_steps  # the first look sets the mark
    assert bench.watch(idle + 2) == [False] * idle + [True] * 2


def test_hands_stay_off_while_there_is_progress() -> None:
    assert not any(Bench().watch(100, gain=2 * FULL.progress_step))


def test_progress_while_reacting_keeps_hands_off() -> None:
    bench = Bench()
    bench.watch(1 + FULL.patience_steps)
    bench.task.now += 2 * FULL.progress_step
    assert not any(bench.watch(FULL.patience_steps))


def test_a_step_back_is_noticed_without_patience() -> None:
    bench = Bench()
    bench.task.now = 0.5
    bench.watch(1)
    bench.task.now = 0.5 - FULL.regress - 0.01
    assert bench.watch(4) == [False] * FULL.reaction_steps + [True] * 2


def test_hands_go_off_once_it_helped_but_not_at_once() -> None:
    bench = Bench()
    until_on = bench.watch(50).index(True)
    bench = Bench()
    bench.watch(until_on)
    assert bench.watch(6, gain=FULL.gain) == [True] * FULL.hold_steps + [False] * 3


def test_hands_go_off_when_it_does_not_help() -> None:
    drove = Bench().watch(50)
    first = drove.index(True)
    assert drove[first:].index(False) == FULL.max_hold_steps
    assert any(drove[first + FULL.max_hold_steps :]), "it tries again"


def test_an_episode_starts_with_hands_off() -> None:
    bench = Bench()
    while bench.human() is None:
        pass
    bench.human.begin()
    assert not any(bench.watch(FULL.patience_steps))


def test_its_actions_are_imperfect_and_in_range() -> None:
    bench = Bench()
    actions = [action for _ in range(200) if (action := bench.human()) is not None]
    assert len({action.tobytes() for action in actions}) > len(actions) / 2
    assert all(action.dtype == np.float32 and np.abs(action).max() <= 1.0 for action in actions)
    assert np.abs(np.mean(actions, 0) - [1.0, -1.0]).max() < 0.3


class Hopeless(FakeTask):
    """A task that not even its expert brings forward."""

    def expert(self, truth: Callable[[], Truth], seed: int) -> Policy:
        return ZeroPolicy(FakeRobot.action_spec)


def drive(config: ScriptedHumanConfig, planned: int, seed: int = 0) -> list[Step]:
    """A whole training in which nothing ever succeeds, the human's help included."""
    robot, task = FakeRobot(), Hopeless()
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


def test_it_keeps_its_budget_even_when_the_policy_never_succeeds(training: list[Step]) -> None:
    quarters = [share(training[600 * part : 600 * (part + 1)]) for part in range(4)]
    assert 0.1 < share(training) <= 0.30
    assert quarters[3] <= 0.05
    assert quarters == sorted(quarters, reverse=True)


def test_it_says_of_a_success_that_it_is_one_where_nothing_else_does() -> None:
    robot, task = FakeRobot(), FakeTask()
    silent, asked = (
        ScriptedHuman(FULL, task, robot, 1000, seed=0, labels=labels) for labels in (False, True)
    )
    assert asked.events() == ()
    robot.place(0.0, 0.0)
    assert asked.events() == (Event.SUCCESS,)
    assert silent.events() == ()


def test_the_default_budget_holds_by_arithmetic() -> None:
    """The line from `share` to `final_share` at three quarters, and a bucket that shrinks."""
    config = ScriptedHumanConfig()
    mean = 0.75 * (config.share + config.final_share) / 2 + 0.25 * config.final_share
    assert mean <= 0.25
    assert config.final_share <= 0.05


def test_the_humans_of_several_actors_share_one_budget() -> None:
    """What one may do falls with the steps of all, however few of them are its own."""
    trained = 0
    budget = Budget(ScriptedHumanConfig(), 1000, trained=lambda: trained)
    assert budget.share() == ScriptedHumanConfig().share
    trained = 750
    assert budget.share() == pytest.approx(ScriptedHumanConfig().final_share)


def test_a_restart_does_not_fill_the_bucket() -> None:
    assert not Budget(ScriptedHumanConfig(), 1000, steps_before=1).allows(1)


def test_without_a_share_it_never_drives() -> None:
    assert share(drive(ScriptedHumanConfig(share=0.0, final_share=0.0), 300)) == 0.0


@pytest.mark.parametrize("most", [0, 2, None])
def test_it_takes_over_no_more_often_than_it_may(most: int | None) -> None:
    drove = [False]
    bench = Bench(FULL.model_copy(update={"max_takeovers": most}))
    for _ in range(3):
        bench.human.begin()
        drove += bench.watch(30)
    takeovers = sum(now and not before for before, now in itertools.pairwise(drove))
    assert takeovers == most if most is not None else takeovers > 3


def test_equal_seeds_drive_equally(training: list[Step]) -> None:
    def actions(steps: list[Step]) -> list[Action]:
        return [step.action for step in steps[:300]]

    again = drive(ScriptedHumanConfig(), 2400)
    np.testing.assert_array_equal(actions(training), actions(again))
    other = drive(ScriptedHumanConfig(), 300, seed=1)
    assert not np.array_equal(actions(training), actions(other))


def test_a_restarted_one_goes_on_with_the_budget_of_the_moment() -> None:
    bench = Bench(planned_steps=1000)
    late = ScriptedHuman(FULL, Watched(), FakeRobot(), planned_steps=1000, seed=0, steps_before=800)
    assert bench.human.budget.share() == FULL.share
    assert late.budget.share() == pytest.approx(FULL.final_share)
    assert not late.budget.allows(FULL.hold_steps)


def test_an_evaluator_presses_late_and_not_too_often_and_never_drives() -> None:
    robot, task = FakeRobot(), Watched()
    config = EvaluatorConfig(progress_step=0.1, interval_s=0.4, delay_s=0.2)
    person = Evaluator.create(config, PersonContext(task, robot, GREAT, seed=0))
    for _ in range(2):  # an episode begins anew
        task.now = 0.0
        person.begin()
        keys: dict[int, tuple[Event, ...]] = {}
        for step in range(20):
            task.now = {3: 0.5, 4: 0.7, 12: 0.65, 13: 0.1}.get(step, task.now)
            assert person() is None
            if found := person.events():
                keys[step] = found
        good, bad = (Event.REWARD,), (Event.PENALTY,)
        assert keys == {5: good, 9: good, 15: bad}  # 0.7 was due at step 6, and 0.65 is no change


def test_an_evaluator_labels_where_no_other_source_does() -> None:
    robot, task = FakeRobot(), FakeTask()
    training = PersonContext(task, robot, GREAT, seed=0, labels=True)
    person = Evaluator(EvaluatorConfig(), training)
    assert person.events() == ()
    robot.place(0.0, 0.0)
    assert person.events() == (Event.SUCCESS,)
