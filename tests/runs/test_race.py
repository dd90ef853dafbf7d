"""Test the choice of a checkpoint by trials on an arm, and its number of trials."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

from serl.runs.deployment import TrialResult
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


Outcome = Callable[[list[TrialResult], TrialResult], TrialResult]


def run_trials(
    candidates: list[int], most: int, trials: int | None, outcome: Outcome
) -> list[TrialResult]:
    """Run all trials of a plan, at most 100; each lost trial is passed to `outcome`."""
    results: list[TrialResult] = []
    while len(results) < 100:
        plan = TrialPlan(candidates, most, trials, results)
        if (step := plan.next()) is None:
            break
        lost = TrialResult(len(results), False, False, 9, 0.9, "", "", 0, step, plan.purpose)
        results.append(outcome(results, lost))
    return results


def test_trial_plan_gives_winner_final_trials_and_repeats_void_ones() -> None:
    def outcome(before: list[TrialResult], lost: TrialResult) -> TrialResult:
        is_first = lost.purpose not in {each.purpose for each in before}
        return lost._replace(success=lost.checkpoint == 100, void="camera" * is_first)

    done = [
        (each.checkpoint, each.purpose, bool(each.void))
        for each in run_trials([100, 200], 3, 2, outcome)
    ]
    assert done[:2] == [(200, "selection", True), (200, "selection", False)]
    finals = [(step, void) for step, purpose, void in done if purpose == "final"]
    assert finals == [(100, True), (100, False), (100, False)]


def test_corrected_results_choose_the_checkpoint_until_its_first_trial() -> None:
    def outcome(before: list[TrialResult], lost: TrialResult) -> TrialResult:
        return lost._replace(success=lost.checkpoint == 100)

    results = run_trials([100, 200], 3, 2, outcome)
    corrected = [each._replace(success=each.checkpoint == 200) for each in results]
    raced = [each for each in corrected if each.purpose == "selection"]
    assert TrialPlan([100, 200], 3, 2).next() == 200, "the newest comes first"
    assert TrialPlan([100, 200], 3, 2, results[: len(raced)]).next() == 100
    assert TrialPlan([100, 200], 3, 2, raced).next() == 200
    begun = TrialPlan([100, 200], 3, 2, corrected[: len(raced) + 1])
    assert (begun.next(), begun.purpose) == (100, "final")
    valid_again = [each._replace(void="") for each in [results[-1]._replace(void="arm")] * 3]
    assert TrialPlan([100], 0, 2, valid_again).next() is None


def test_trial_plan_limits_repetitions_of_void_trials() -> None:
    def outcome(before: list[TrialResult], lost: TrialResult) -> TrialResult:
        return lost._replace(void="arm")

    assert len(run_trials([100], 0, 10, outcome)) == max_void_trials(10) + 1 == 6
    endless = run_trials([100], 0, None, outcome)
    assert [each.checkpoint for each in endless] == [100] * 100


def test_trial_plan_limits_repetitions_of_trials_with_help_in_the_race() -> None:
    def outcome(before: list[TrialResult], lost: TrialResult) -> TrialResult:
        return lost._replace(success=True, assisted=True)

    results = run_trials([100, 200], 3, 10, outcome)
    assert len(results) == max_void_trials(10) + 1 == 6
    assert {each.purpose for each in results} == {"selection"}


def test_trial_with_help_says_nothing_about_a_checkpoint_and_is_repeated_in_the_race() -> None:
    def outcome(before: list[TrialResult], lost: TrialResult) -> TrialResult:
        assisted = len(before) in (0, 2, 4) or (lost.purpose, len(before)) == ("final", 9)
        return lost._replace(success=True, assisted=assisted)

    results = run_trials([100, 200], 3, 2, outcome)
    counts = Counter((each.checkpoint, each.purpose) for each in results)
    assert counts[200, "selection"] + counts[100, "selection"] == 6 + 3
    assert counts[200, "final"] == 2, "equal candidates: help must not count against the newest"
