import itertools

import pytest

from serl.errors import BadInput
from serl.training.evaluation import (
    Evaluation,
    Purpose,
    Trial,
    evaluate,
    evaluation_seeds,
    max_void_trials,
    start_seed,
    void_cause,
    wilson,
)
from serl.types import EndReason


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    [  # Newcombe (1998), Statistics in Medicine 17, table I, method 3; and the formula's ends
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
        (20, 20, 0.8389, 1.0),
    ],
)
def test_wilson_gives_published_values(
    successes: int, trials: int, low: float, high: float
) -> None:
    assert wilson(successes, trials) == pytest.approx((low, high), abs=1e-4)


def test_wilson_is_symmetric_and_holds_the_rate() -> None:
    for successes in range(51):
        low, high = wilson(successes, 50)
        mirrored_low, mirrored_high = wilson(50 - successes, 50)
        assert 0 <= low <= successes / 50 <= high <= 1
        assert (low, high) == pytest.approx((1 - mirrored_high, 1 - mirrored_low))


def test_wilson_interval_without_trials_is_zero_to_one() -> None:
    assert wilson(0, 0) == (0.0, 1.0)


@pytest.mark.parametrize(("successes", "trials"), [(-1, 5), (6, 5), (1, 0)])
def test_wilson_refuses_impossible_counts(successes: int, trials: int) -> None:
    with pytest.raises(BadInput, match=f"got {successes}"):
        wilson(successes, trials)


def test_starts_of_different_purposes_differ_for_equal_arguments() -> None:
    seeds = {
        purpose: {
            start_seed(purpose, run, actor, episode)
            for run in range(3)
            for actor in ("actor-0", "evaluation")
            for episode in range(300)
        }
        for purpose in Purpose
    }
    for one, other in itertools.combinations(Purpose, 2):
        assert not seeds[one] & seeds[other]
        assert max(seeds[one]) < min(seeds[other])  # the ranges are disjoint by construction
    assert all(len(of_purpose) == 3 * 2 * 300 for of_purpose in seeds.values())


def test_seeds_survive_json_and_stay_fixed_between_versions() -> None:
    seed = start_seed(Purpose.TRAINING, 7, "actor-0", 3)
    assert int(float(seed)) == seed < 2**53
    assert seed == 711606424756520


def test_longer_evaluation_starts_with_seeds_of_shorter_one() -> None:
    long = evaluation_seeds(Purpose.FINAL, 1, 50)
    assert long[:10] == evaluation_seeds(Purpose.FINAL, 1, 10)
    assert len(set(long)) == 50


def trial(seed: int) -> Trial:
    return Trial(seed, seed != 2, 10 * seed, float(seed), "success" if seed != 2 else "time limit")


def test_evaluation_counts_and_averages_successes_only() -> None:
    result = evaluate(trial, [1, 2, 3, 4])
    assert [one.seed for one in result.trials] == [1, 2, 3, 4]
    assert (result.successes, result.success_rate) == (3, 0.75)
    assert result.interval == wilson(3, 4)
    assert result.cycle_time_s == pytest.approx((1 + 3 + 4) / 3)
    assert result.summary() == (
        "3 of 4 trials succeeded: 75.0% (95 % interval 30.1% to 95.4%), mean cycle time 2.7 s"
    )


def test_evaluation_without_a_success_has_no_cycle_time() -> None:
    result = Evaluation((trial(2),))
    assert result.cycle_time_s is None
    assert result.summary() == "0 of 1 trials succeeded: 0.0% (95 % interval 0.0% to 79.3%)"


@pytest.mark.parametrize(("seeds", "message"), [([], "at least one"), ([1, 2, 1], "3 different")])
def test_evaluate_refuses_no_seeds_and_repeated_seeds(seeds: list[int], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        evaluate(trial, seeds)


GUARD = "the guard stopped the arm: protective stop"


@pytest.mark.parametrize(
    ("reason", "fault", "cause"),
    [
        (EndReason.FAULT, "/arm/wrist/image_raw: frozen: 5 equal pictures in a row", "camera"),
        (EndReason.FAULT, "the guard stopped the arm: protective stop: arm silent", "guard"),
        (EndReason.FAULT, "current_pose: newest message is 0.2 s old", "arm"),
        (EndReason.FAULT, "the guard stopped the arm: protective stop: force 31 N", ""),
        (EndReason.FAULT, "the guard stopped the arm: the arm does not follow", ""),
        (
            EndReason.FAULT,
            f"{GUARD}: gripper: commanded to open 2.0 s ago, and does not move",
            "guard",
        ),
        (EndReason.FAULT, f"{GUARD}: joint 4 is 0.05 rad from its limit", ""),
        (EndReason.FAULT, f"{GUARD}: joint 4 turns faster than 2 rad/s, and goes on", ""),
        (EndReason.FAULT, f"{GUARD}: the arm reports that its user stopped it", "guard"),
        (EndReason.FAULT, f"{GUARD}: the arm reports that its program does not run", ""),
        (EndReason.FAULT, "the guard stopped the arm: estop: the service estop", ""),
        (EndReason.STOPPED, "", ""),
        (EndReason.FAULT, "camera contact_cam: its image is 0.3 s old", "camera"),
        (EndReason.FAULT, "/force_torque/wrench: newest message is 0.3 s old", "arm"),
        (EndReason.FAULT, "reward: /camera/done: no message", "reward"),
        (EndReason.FAULT, "reward 2000000.0: expected at most 1e+06 either way", "reward"),
        (EndReason.FAULT, "rewarded/wrench: no message", "arm"),
        (EndReason.FAULT, "gymnasium:Walk-v0: state camera: not finite: [nan]", "environment"),
        (EndReason.STUCK, "stuck: 10 s without motion", ""),
        (EndReason.NEEDS_PERSON, "needs a person: the part is lost", "scene"),
        (EndReason.DISCARDED, "", "discarded"),
        (EndReason.TIME_LIMIT, "", ""),
    ],
)
def test_fault_voids_trial_unless_policy_may_have_caused_it(
    reason: EndReason, fault: str, cause: str
) -> None:
    assert void_cause(reason, fault) == cause


def test_void_trials_are_repeated_from_further_starts_and_not_counted() -> None:
    def run_episode(seed: int) -> Trial:
        void = "camera" if seed in (1, 4) else ""
        return Trial(seed, seed % 2 == 0 and not void, 10, 1.0, "", void)

    evaluation = evaluate(run_episode, range(20), trials=5)
    assert [trial.seed for trial in evaluation.trials] == [0, 2, 3, 5, 6]
    assert [trial.seed for trial in evaluation.void] == [1, 4]
    assert evaluation.summary().startswith("3 of 5 trials succeeded, 2 void (camera): 60.0% (95 %")
    assert evaluation.interval == wilson(3, 5)
    hopeless = evaluate(lambda seed: Trial(seed, False, 1, 0.1, "", "arm"), range(9), trials=5)
    assert (len(hopeless.trials), len(hopeless.void), hopeless.success_rate) == (0, 9, 0.0)


def test_evaluation_that_void_trials_end_is_partial() -> None:
    def run_episode(seed: int) -> Trial:
        return Trial(seed, seed == 0, 10, 1.0, "", "" if seed < 2 else ("arm", "camera")[seed % 2])

    partial = evaluate(run_episode, range(5 + max_void_trials(5)), trials=5)
    ended = "ended after 7 void trials (arm, camera): 2 of 5 valid"
    assert partial.early_end == ended
    assert partial.summary().startswith(f"{ended}, of which 1 succeeded: 50.0% (95 % interval")
    hopeless = evaluate(lambda seed: Trial(seed, False, 1, 0.1, "", "arm"), range(9), trials=5)
    assert hopeless.summary() == "ended after 9 void trials (arm): 0 of 5 valid"
    assert not evaluate(run_episode, range(9), trials=2).early_end
