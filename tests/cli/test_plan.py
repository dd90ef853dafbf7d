"""`serl plan`: the estimate of durations and the measured rates."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest

from serl.cli import main as cli
from serl.cli.plan import Conditions, Plan, Rates, make_plan, measure
from serl.runs.config import resolve

RATES = Rates(env_steps_per_s=1000.0, updates_per_s=50.0, act_s=0.001, expert_steps=40.0)
CONDITIONS = Conditions(rate_hz=10.0, max_steps=50, processors=4)
TINY = {
    "task": "reach",
    "agent": {"hidden": [8, 8], "device": "cpu", "threads": 1, "batch_size": 8, "utd": 1},
    "task_config": {"time_limit_s": 1.0},
}


def plan_of(rates: Rates = RATES, conditions: Conditions = CONDITIONS, **settings: object) -> Plan:
    return make_plan(resolve({"task": "reach", "steps": 1000}, settings), rates, conditions)


def part(plan: Plan, name: str) -> tuple[float, float]:
    found = next(part for part in plan.parts if part.name == name)
    return found.simulation_s, found.arm_s


def test_plan_takes_slowest_part_as_training_time() -> None:
    plan = plan_of()
    assert part(plan, "training") == (1000 / 50, 1000 / 10)
    assert plan.simulation_bottleneck == "the learner's updates"
    assert plan.arm_bottleneck == "the control rate of the arm"
    slow = RATES.model_copy(update={"updates_per_s": 4.0})
    assert part(plan_of(slow), "training") == (250.0, 250.0)
    assert plan_of(slow).arm_bottleneck == "the learner's updates"


@pytest.mark.parametrize(
    ("changed", "conditions", "bottleneck"),
    [
        ({"env_steps_per_s": 20.0}, {}, "the simulation"),
        ({"env_steps_per_s": 60.0}, {"processors": 1}, "the processors, 1 for 2 processes"),
        ({"env_steps_per_s": 60.0}, {"processors": 1, "gpu": True}, "the learner's updates"),
    ],
)
def test_plan_names_bottleneck_in_simulation(
    changed: dict[str, float], conditions: dict[str, int], bottleneck: str
) -> None:
    rates, given = RATES.model_copy(update=changed), CONDITIONS.model_copy(update=conditions)
    assert plan_of(rates, given).simulation_bottleneck == bottleneck


def test_plan_names_slow_policy_as_bottleneck_on_arm() -> None:
    plan = plan_of(RATES.model_copy(update={"act_s": 0.2}))
    assert plan.arm_bottleneck == "the policy, which is slower than the control rate"
    assert part(plan, "training")[1] == pytest.approx(1000 / 5)


def test_plan_of_real_arm_has_its_trials_on_the_arm() -> None:
    trial_s = 50 / 10 + 5.0
    alone = plan_of(robot="ur5e", trials=20)
    assert part(alone, "selection and trials")[1] == pytest.approx(20 * trial_s)
    compared = plan_of(robot="ur5e", trials=20, arm_selection_trials=10, selection_checkpoints=5)
    assert part(compared, "selection and trials")[1] == pytest.approx((20 + 5 * 10) * trial_s)


@pytest.mark.parametrize(
    ("settings", "trials"),
    [
        ({}, 5 * 30 + 2 * 20),  # the last checkpoint is tried, too, if another one is chosen
        ({"learner": {"warm_up": 9}}, (5 + 1) * 30 + 2 * 20),
        ({"steps": 2500}, 3 * 30 + 2 * 20),  # a checkpoint each 1,000 steps, and at the end
        ({"steps": 800}, 30 + 20),
        ({"steps": 0, "learner": {"warm_up": 9}}, 30 + 20),
        ({"baseline": "clone"}, 5 * 30 + 2 * 20 + 3 * 30 + 20),
    ],
)
def test_plan_counts_trials_of_all_compared_policies(settings: dict[str, Any], trials: int) -> None:
    steps: dict[str, Any] = {"steps": 20_000, "learner": {"warm_up": 0}}
    plan = plan_of(**{"trials": 20, "selection_trials": 30, **steps, **settings})
    (found,) = (p for p in plan.parts if p.name == "selection and trials")
    assert found.amount == f"{trials} episodes"
    assert found.simulation_s == found.arm_s == pytest.approx(trials * 50 / 1000)


def test_more_actors_shorten_plan_until_learner_limits() -> None:
    assert part(plan_of(actors=2), "training")[1] == pytest.approx(50.0)
    assert part(plan_of(actors=8), "training")[1] == pytest.approx(1000 / 50)
    one, two = part(plan_of(), "resets")[1], part(plan_of(actors=2), "resets")[1]
    assert (one, two) == (1000 / 50 * 5.0, 1000 / 50 * 5.0 / 2)


def test_plan_without_demonstrations_needs_no_time_for_them_and_sums_parts() -> None:
    assert part(plan_of(demos=0), "demonstrations") == (0.0, 0.0)
    plan = plan_of(demos=10)
    assert part(plan, "demonstrations") == (0.4, 10 * 40 / 10 + 10 * 5.0)
    assert plan.arm_s == pytest.approx(sum(each.arm_s for each in plan.parts))


def test_measured_rates_follow_clock() -> None:
    ticks = count()
    parts = list[str]()
    rates, gpu = measure(resolve(TINY), 1.0, lambda: 0.01 * next(ticks), parts.append)
    assert not gpu
    assert [part.rpartition(" (")[2] for part in parts] == ["1 of 3)", "2 of 3)", "3 of 3)"]
    assert rates.act_s == pytest.approx(0.01)  # between two reads of the clock
    assert 20 < rates.env_steps_per_s < 50  # two reads per step, one more per episode
    assert rates.updates_per_s == pytest.approx(100.0, rel=0.02)
    assert 1 <= rates.expert_steps <= 10


def test_task_without_expert_is_measured_without_demonstrations() -> None:
    ticks = count()
    pendulum = resolve(TINY, {"task": "gymnasium:Pendulum-v1", "demos": 0, "intervention": "none"})
    rates, _ = measure(pendulum, 1.0, lambda: 0.01 * next(ticks))
    assert rates.updates_per_s == pytest.approx(100.0, rel=0.02)


def test_plan_command_prints_table(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--seconds", "0.2", "--agent.hidden", "[8,8]", "--agent.device", "cpu"]
    assert cli.main(["plan", "reach", *words]) == cli.DONE
    out = capsys.readouterr().out
    for text in (
        "measured: ",
        "training",
        "15,000 steps",
        "minutes at 10 Hz",
        "bottleneck in simulation: ",
    ):
        assert text in out, out
