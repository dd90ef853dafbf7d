from __future__ import annotations

import numpy as np
import pytest

from serl.agent import State
from serl.errors import SpecMismatch
from serl.runs.assembly import make_agent
from serl.runs.config import resolve
from serl.runs.task_setup import make_spec, make_task
from serl.runs.trials import Examiner, choose_checkpoint
from serl.training.evaluation import Evaluation, Purpose, Trial, evaluation_seeds
from serl.types import Action, Observation, Outcome

CONFIG = resolve(
    {
        "task": "reach",
        "seed": 5,
        "selection_trials": 3,
        "task_config": {"time_limit_s": 1.0},
        "agent": {"hidden": [8, 8], "threads": 1, "device": "cpu"},
    }
)


def weights(seed: int) -> State:
    return make_agent(CONFIG, make_spec(make_task(CONFIG)), seed).actor_weights()


@pytest.fixture(scope="module")
def examiner() -> Examiner:
    return Examiner(CONFIG)


def test_trials_use_seeds_of_their_purpose(examiner: Examiner) -> None:
    final = examiner.evaluate(weights(0), Purpose.FINAL, 3)
    selection = examiner.evaluate(weights(0), Purpose.SELECTION, 3)
    assert [trial.seed for trial in final.trials] == list(
        evaluation_seeds(Purpose.FINAL, CONFIG.seed, 3)
    )
    assert not {t.seed for t in final.trials} & {t.seed for t in selection.trials}
    assert all(0 < trial.steps <= 10 for trial in final.trials)
    assert all(trial.duration_s == pytest.approx(trial.steps / 10) for trial in final.trials)


@pytest.mark.parametrize("actions", ["mode", "sampled"])
def test_trials_sample_actions_when_configured(
    actions: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    examiner = Examiner(CONFIG.model_copy(update={"trial_actions": actions}))
    asked: list[bool] = []
    act = examiner._agent.act

    def record_explore(seen: Observation, explore: bool) -> Action:
        asked.append(explore)
        return act(seen, explore)

    monkeypatch.setattr(examiner._agent, "act", record_explore)
    examiner.evaluate(weights(1), Purpose.FINAL, 1)
    assert set(asked) == {actions == "sampled"}


def test_success_without_ground_truth_success_does_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Simulate a reward model with false positives."""
    examiner = Examiner(CONFIG)
    won = Outcome(reward=1.0, terminated=True, success=True)
    monkeypatch.setattr(examiner._task, "outcome", lambda reading, index: won)
    assert examiner.evaluate(weights(0), Purpose.FINAL, 2).successes == 0
    monkeypatch.setattr(examiner._task, "is_success", lambda truth: True)
    assert examiner.evaluate(weights(0), Purpose.FINAL, 2).successes == 2


def test_weights_of_another_network_are_refused(examiner: Examiner) -> None:
    broken = {name: array[..., :1] for name, array in weights(0).items()}
    with pytest.raises(SpecMismatch):
        examiner.evaluate(broken, Purpose.FINAL, 1)


def test_film_shows_every_second_step_and_end(examiner: Examiner) -> None:
    filmed = list[None]()
    examiner.on_trial = lambda: filmed.append(None)
    frames = examiner.film(weights(0), evaluation_seeds(Purpose.FINAL, CONFIG.seed, 1), (64, 48))
    assert len(filmed) == 1
    (trial,) = examiner.evaluate(weights(0), Purpose.FINAL, 1).trials
    assert len(frames) == (trial.steps + 1) // 2 + 1
    assert {frame.shape for frame in frames} == {(48, 64, 3)}
    assert {frame.dtype for frame in frames} == {np.dtype(np.uint8)}


class KnownResults(Examiner):
    """Examiner with given numbers of successes."""

    def __init__(self, successes: dict[float, int]) -> None:
        self.successes, self.asked = successes, list[tuple[Purpose, int]]()

    def evaluate(self, weights: State, purpose: Purpose, trials: int) -> Evaluation:
        self.asked.append((purpose, trials))
        won = self.successes[float(weights["w"][0])]
        return Evaluation(tuple(Trial(n, n < won, 1, 0.1, "") for n in range(trials)))


def candidates(*steps: int) -> list[tuple[int, State]]:
    return [(step, {"w": np.array([step], np.float32)}) for step in steps]


def test_checkpoint_with_most_selection_successes_is_chosen() -> None:
    judge = KnownResults({100: 1, 200: 3, 300: 2})
    results: list[tuple[int, int]] = []
    chosen = choose_checkpoint(
        CONFIG,
        judge,
        candidates(100, 200, 300),
        lambda step, e: results.append((step, e.successes)),
    )
    assert chosen == 200
    assert results == [(100, 1), (200, 3), (300, 2)]
    assert set(judge.asked) == {(Purpose.SELECTION, 3)}


def test_later_checkpoint_is_chosen_on_tie() -> None:
    assert (
        choose_checkpoint(CONFIG, KnownResults({100: 2, 200: 2, 300: 0}), candidates(100, 200, 300))
        == 200
    )
    assert choose_checkpoint(CONFIG, KnownResults({100: 0, 200: 0}), candidates(100, 200)) == 200
