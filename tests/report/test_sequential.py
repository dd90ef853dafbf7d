from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from serl.errors import BadInput
from serl.report.comparison import METRICS
from serl.report.outcomes import Configuration
from serl.report.sequential import LEVEL, Findings, SeedPlan, sequential_test

from . import test_comparison as comparison
from .test_comparison import outcome

SUCCESS, TIME = METRICS["auc"], METRICS["human_s"]


def configuration(name: str, **tasks: list[float]) -> Configuration:
    outcomes = [
        outcome(seed, value, math.inf, task=task, cycle_s=math.nan, human_s=abs(value))
        for task, values in tasks.items()
        for seed, value in enumerate(values)
    ]
    return comparison.configuration(name, *outcomes)


def pair(first: list[float], second: list[float], plan: SeedPlan) -> Findings:
    both = [configuration("a", reach=first), configuration("b", reach=second)]
    return sequential_test(SUCCESS, both, plan)


def test_single_look_equals_exact_permutation_test() -> None:
    rng = np.random.default_rng(3)
    outcomes = []
    for shift in np.linspace(0.0, 1.2, 25):
        a, b = rng.normal(size=5), rng.normal(size=5) + shift
        both, found = np.concatenate([b, a]), abs(b.sum() - a.sum())
        as_far = [
            abs(2 * both[list(chosen)].sum() - both.sum()) >= found - 1e-9
            for chosen in itertools.combinations(range(10), 5)
        ]
        rejected = pair(list(a), list(b), SeedPlan(5, 1)).decided == (1,)
        assert rejected == (np.mean(as_far) <= LEVEL)
        outcomes.append(rejected)
    assert 0 < sum(outcomes) < 25


def test_two_looks_match_enumeration_of_all_permutations() -> None:
    """Recompute the boundaries from every pair of permutations of two blocks of three."""
    rng = np.random.default_rng(5)
    a, b = rng.normal(size=6), rng.normal(size=6) + 1.0
    found = pair(list(a), list(b), SeedPlan(3, 2))
    sums = []
    for block in (slice(0, 3), slice(3, 6)):
        both = np.concatenate([b[block], a[block]])
        sums.append(
            [2 * both[list(c)].sum() - both.sum() for c in itertools.combinations(range(6), 3)]
        )
    paths = [(abs(x), abs(x + y)) for x in sums[0] for y in sums[1]]
    first, second = found.looks[0].boundary, found.looks[1].boundary
    assert first >= max(x for x, _ in paths)  # 2 of 20 permutations are as extreme: over 2.5 %
    beyond = [x > first or y > second for x, y in paths]
    assert LEVEL - 2 / len(paths) - 1e-9 <= np.mean(beyond) <= LEVEL
    assert found.looks[1].differences[0] == pytest.approx(b.sum() - a.sum())


def test_equal_configurations_are_rarely_found_different() -> None:
    rng = np.random.default_rng(0)
    found = [
        pair(list(rng.normal(size=12)), list(rng.normal(size=12)), SeedPlan(4, 3)).decided
        != (None,)
        for _ in range(300)
    ]
    assert 0.01 < np.mean(found) < LEVEL + 3 * math.sqrt(LEVEL * (1 - LEVEL) / 300)


def test_clear_difference_ends_test_early() -> None:
    low, high = [0.1, 0.12, 0.2, 0.15, 0.11] * 2, [0.9, 0.8, 0.95, 0.85, 0.99] * 2
    found = pair(low, high, SeedPlan(5, 4))
    assert found.decided == (1,)
    assert len(found.looks) == 1
    assert found.is_over
    assert found.looks[0].differences[0] == pytest.approx(4.49 - 0.68)


def test_sequential_test_without_difference_runs_all_blocks() -> None:
    equal_values = [0.4, 0.6, 0.5, 0.55, 0.45] * 2
    found = pair(equal_values, equal_values, SeedPlan(5, 2))
    assert (found.decided, len(found.looks), found.is_over) == ((None,), 2, True)
    assert not pair(equal_values[:9], equal_values, SeedPlan(5, 2)).is_over
    assert pair(equal_values[:4], equal_values, SeedPlan(5, 2)).looks == ()


def test_differences_of_all_tasks_are_combined() -> None:
    """Three seeds of one task cannot decide; two tasks on different scales together can."""
    fast = configuration("fast", reach=[1.0, 1.1, 0.9], drawer=[100.0, 110, 90])
    slow = configuration("slow", reach=[3.0, 3.3, 2.7], drawer=[300.0, 330, 270])
    found = sequential_test(TIME, [fast, slow], SeedPlan(3, 1))
    assert found.decided == (1,)
    assert found.looks[0].differences[0] == pytest.approx(2 * 3.0)
    one = [Configuration(each.name, {"reach": each.tasks["reach"]}) for each in (fast, slow)]
    assert sequential_test(TIME, one, SeedPlan(3, 1)).decided == (None,)


def test_each_configuration_is_tested_against_first() -> None:
    base = [0.1, 0.12, 0.2, 0.15, 0.11]
    all_of = [
        configuration("base", reach=base),
        configuration("same", reach=base[::-1]),
        configuration("good", reach=[0.9, 0.8, 0.95, 0.85, 0.99]),
    ]
    found = sequential_test(SUCCESS, all_of, SeedPlan(5, 2))
    assert found.decided == (None, 1)
    assert not found.is_over


def test_run_without_value_counts_as_worst() -> None:
    one = configuration("a", reach=[0.0] * 5)  # no cycle time
    found = sequential_test(METRICS["cycle_s"], [one, one], SeedPlan(5, 1))
    assert found.decided == (None,)
    assert found.looks[0].differences == (0.0,)


@pytest.mark.parametrize("plan", [SeedPlan(1, 2), SeedPlan(9, 2), SeedPlan(5, 0)])
def test_infeasible_sequential_plan_is_refused(plan: SeedPlan) -> None:
    with pytest.raises(BadInput, match="--block"):
        pair([0.0] * 5, [1.0] * 5, plan)
