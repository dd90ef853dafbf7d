"""Test aggregates against rliable 1.2.0, direct computations, and published values.

rliable itself is no dependency: with arch, pandas, seaborn, scipy and statsmodels it takes 500 MB,
and it cannot be imported with pandas 3. Its values here were computed from the same scores with
pandas 2: intervals by 50,000 draws (seed 0), those of the improvement by 20,000.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from serl.report.aggregates import (
    NOTHING,
    Group,
    SeedResults,
    Values,
    difference,
    estimate,
    interquartile_mean,
    iqm_by_task,
    log_ratio,
    mean_curve,
    mean_over_tasks,
    performance_profile,
    pooled_iqm,
    probability_of_improvement,
    reached_curve,
    restricted_mean,
    survival_curve,
)

A = [[0.96, 1.0, 0.88, 0.94, 0.98], [0.12, 0.3, 0.08, 0.52, 0.22], [0.55, 0.61, 0.48, 0.7, 0.66]]
B = [[0.98, 1.0, 0.96, 1.0, 0.92], [0.44, 0.62, 0.58, 0.36, 0.7], [0.52, 0.75, 0.73, 0.81, 0.64]]
"""Scores of five seeds in each of three tasks."""


def group(*tasks: list[float]) -> list[SeedResults]:
    return [SeedResults.of(values) for values in tasks]


def test_interquartile_mean_and_interval_match_rliable() -> None:
    for scores, value, low, high in (
        (A, 0.6266666667, 0.56, 0.68),
        (B, 0.7455555556, 0.6811111111, 0.7888888889),
    ):
        found = estimate(pooled_iqm, group(*scores), draws=50_000)
        assert found.value == pytest.approx(value)
        assert found.low == pytest.approx(low, abs=0.003)
        assert found.high == pytest.approx(high, abs=0.003)


def test_probability_of_improvement_matches_rliable() -> None:
    found = estimate(probability_of_improvement, group(*B), group(*A), draws=20_000)
    assert found == pytest.approx((0.7733333333, 0.5933333333, 0.9266666667), abs=0.01)


def test_performance_profile_matches_rliable() -> None:
    found = performance_profile(group(*B), np.array([0.0, 0.25, 0.5, 0.75, 0.95]), draws=20_000)
    assert found.values == pytest.approx([1.0, 1.0, 0.8666666667, 0.4, 0.2666666667])
    assert found.low == pytest.approx([1.0, 1.0, 0.7333333333, 0.3333333333, 0.1333333333])
    assert found.high == pytest.approx([1.0, 1.0, 1.0, 0.5333333333, 0.3333333333])


def test_interquartile_mean_omits_outer_quarters() -> None:
    assert interquartile_mean(np.array([9.0, 1, 2, 3])) == 2.5
    assert interquartile_mean(np.array([1.0, 2, 6])) == 3.0
    assert interquartile_mean(np.array([[7.0, 0, 0, 1, 2, 3, 9, 9]])) == pytest.approx([3.25])


def test_interval_of_few_seeds_equals_exact_bootstrap() -> None:
    values = [0.1, 0.4, 0.9]
    means = [np.mean(drawn) for drawn in itertools.product(values, repeat=3)]
    found = estimate(mean_over_tasks(iqm_by_task), group(values), draws=50_000)
    exact = np.percentile(means, (2.5, 97.5), method="inverted_cdf")
    assert found[1:] == pytest.approx(exact, abs=1e-9)


def test_interval_covers_variance_of_seeds_and_trials() -> None:
    """Pooling 5 x 50 trials of unequal seeds would give an interval of 0.70 to 0.81."""
    shares = [1.0, 1.0, 1.0, 0.5, 0.3]

    def mean(sampled: Group) -> Values:
        return np.asarray(sampled[0].values.mean(-1))

    by_trial = estimate(mean, [SeedResults.of(shares, [50] * 5)])
    assert by_trial.low < 0.5
    assert by_trial.high > 0.95
    exact = estimate(mean, [SeedResults.of([0.8] * 5)])
    assert exact == pytest.approx((0.8, 0.8, 0.8))
    pooled = estimate(mean, [SeedResults.of([0.8] * 5, [50] * 5)])
    rate = 40.5 / 51  # rate of each seed, with Jeffreys' prior
    half = 1.96 * math.sqrt(rate * (1 - rate) / 52 / 5)
    assert pooled == pytest.approx((0.8, rate - half, rate + half), abs=0.002)


def test_interval_of_all_successes_is_not_zero() -> None:
    found = estimate(pooled_iqm, [SeedResults.of([1.0] * 5, [50] * 5)])
    assert found.value == found.high == 1.0
    assert 0.96 < found.low < 0.99


def test_ratio_and_difference_compare_each_task_with_itself() -> None:
    slow, fast = group([8.0, 8, 8], [800.0, 800, 800]), group([4.0, 4, 4], [200.0, 200, 200])
    assert math.exp(log_ratio(iqm_by_task)(fast, slow)) == pytest.approx(math.sqrt(0.5 * 0.25))
    assert float(difference(pooled_iqm)(group([0.9]), group([0.4]))) == pytest.approx(0.5)


def test_undefined_estimate_is_nothing() -> None:
    assert estimate(pooled_iqm, group([])) is NOTHING
    assert estimate(log_ratio(iqm_by_task), group([3.0]), group([0.0])) is NOTHING


def test_draw_in_which_base_is_zero_widens_interval_of_ratio() -> None:
    found = estimate(log_ratio(iqm_by_task), group([1.0] * 5), group([0.0, 0, 10, 10, 10]))
    assert found[:2] == pytest.approx((math.log(3 / 20), math.log(1 / 10)), abs=1e-9)
    assert found.high == math.inf, "in 8.7 % of the draws"


# Remission in weeks of 21 patients with 6-mercaptopurine (Freireich et al. 1963); + is censored.
WEEKS = "6 6 6 6+ 7 9+ 10 10+ 11+ 13 16 17+ 19+ 20+ 22 23 25+ 32+ 32+ 34+ 35+"
REMISSION = SeedResults.of(
    [float(each.rstrip("+")) for each in WEEKS.split()],
    censored=[each.endswith("+") for each in WEEKS.split()],
)
PUBLISHED = {6: 0.857, 7: 0.807, 10: 0.753, 13: 0.690, 16: 0.627, 22: 0.538, 23: 0.448}


def test_survival_curve_matches_published_values() -> None:
    times, left = survival_curve(REMISSION)
    for week, share in PUBLISHED.items():
        assert left[np.flatnonzero(times == week)[-1]] == pytest.approx(share, abs=5e-4)
        found = reached_curve([REMISSION], [np.array([week - 0.1, float(week)])]).values
        assert found[1] == pytest.approx(1 - share, abs=5e-4)
        assert found[0] < found[1]


def test_restricted_mean_is_area_below_survival_curve() -> None:
    steps = [(0, 1.0), *PUBLISHED.items(), (35, 0.0)]
    area = sum(share * (end - at) for (at, share), (end, _) in itertools.pairwise(steps))
    assert float(restricted_mean(REMISSION)) == pytest.approx(area, abs=0.02)
    whole = SeedResults.of([300.0, 500, 1000, 1000], censored=[False, False, True, True])
    assert float(restricted_mean(whole)) == pytest.approx(700.0)
    drawn = whole.resampled(50, np.random.default_rng(0))
    one_by_one = [
        float(restricted_mean(SeedResults.of(values, censored=censored)))
        for values, censored in zip(drawn.values, drawn.censored, strict=True)
    ]
    assert restricted_mean(drawn) == pytest.approx(one_by_one)


def test_mean_curve_interval_covers_variance_of_seeds() -> None:
    same, apart = np.array([[0.2, 0.8]] * 4), np.array([[0.0, 1.0], [0.4, 0.6]])
    assert mean_curve([same]).low == pytest.approx([0.2, 0.8])
    found = mean_curve([apart])
    assert found.values == pytest.approx([0.2, 0.8])
    assert (found.low[0], found.high[0]) == (0.0, 0.4)
    assert mean_curve([same, apart]).values == pytest.approx([0.2, 0.8])
