"""Test the choice of a checkpoint by trials on an arm, and its number of trials."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from serl.runs.race import Race, TrialPlan, probability_above
from serl.training.evaluation import max_void_trials


@pytest.mark.parametrize(
    ("one", "other"), [((3, 7), (8, 2)), ((5, 0), (0, 5)), ((2, 2), (2, 2)), ((0, 6), (4, 2))]
)
def test_probability_above_matches_sampled_frequency(
    one: tuple[int, int], other: tuple[int, int]
) -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.beta(won + 1, lost + 1, 100_000) for won, lost in (one, other))
    assert probability_above(one, other) == pytest.approx(float((a > b).mean()), abs=0.006)


def drive(race: Race, rates: dict[int, float], seed: int = 0) -> list[int]:
    """Run all trials of a race between checkpoints with the given success rates."""
    rng, tried = np.random.default_rng(seed), list[int]()
    while (step := race.next()) is not None:
        race.add(step, bool(rng.random() < rates[step]))
        tried.append(step)
    return tried


def test_race_alternates_candidates_and_drops_bad_one_early() -> None:
    race = Race([100, 200, 300], 30)
    tried = drive(race, {100: 1.0, 200: 0.0, 300: 1.0})
    assert tried[:3] == [300, 200, 100], "the newest candidate comes first"
    assert tried.count(200) <= 5
    assert tried.count(100) == tried.count(300) == 30
    assert race.best == 300, "the newest of equal candidates wins"


def test_race_skips_single_candidate_and_shortens_clear_cases() -> None:
    assert drive(Race([100], 30), {100: 0.0}) == []
    lengths, right = [], 0
    for seed in range(40):
        race = Race([1, 2, 3], 30)
        lengths.append(len(drive(race, {1: 0.2, 2: 0.9, 3: 0.5}, seed)))
        right += race.best == 2
    assert right >= 36
    assert sum(lengths) / len(lengths) < 0.7 * 90, "fewer than all possible trials"


def test_trial_plan_gives_winner_final_trials_and_repeats_void_ones() -> None:
    plan = TrialPlan([100, 200], 3, 2)
    done = list[tuple[int, str, bool]]()
    while (step := plan.next()) is not None:
        purpose = plan.purpose
        void = purpose not in {each for _, each, _ in done}  # the first trial of each purpose
        plan.add(step, step == 100, False, void)
        done.append((step, purpose, void))
    assert done[:2] == [(200, "selection", True), (200, "selection", False)]
    finals = [(step, void) for step, purpose, void in done if purpose == "final"]
    assert finals == [(100, True), (100, False), (100, False)]


def test_trial_plan_limits_repetitions_of_void_trials() -> None:
    plan, episodes = TrialPlan([100], 0, 10), 0
    while (step := plan.next()) is not None:
        plan.add(step, False, False, True)
        episodes += 1
    assert episodes == max_void_trials(10) + 1 == 6
    endless = TrialPlan([100], 0, None)
    for _ in range(100):
        assert endless.next() == 100
        endless.add(100, False, False, True)


def test_trial_plan_limits_repetitions_of_trials_with_help_in_the_race() -> None:
    plan, episodes = TrialPlan([100, 200], 3, 10), 0
    while (step := plan.next()) is not None and episodes < 100:
        plan.add(step, True, True, False)
        episodes += 1
    assert episodes == max_void_trials(10) + 1 == 6
    assert plan.purpose == "selection"


def test_trial_with_help_says_nothing_about_a_checkpoint_and_is_repeated_in_the_race() -> None:
    plan, tried = TrialPlan([100, 200], 3, 2), list[tuple[int, str]]()
    while (step := plan.next()) is not None:
        purpose = plan.purpose
        assisted = len(tried) in (0, 2, 4) or (purpose, len(tried)) == ("final", 9)
        tried.append((step, purpose))
        plan.add(step, True, assisted, False)
    counts = Counter(tried)
    assert counts[200, "selection"] + counts[100, "selection"] == 6 + 3
    assert counts[200, "final"] == 2, "equal candidates: help must not count against the newest"
