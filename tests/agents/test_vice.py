"""VICE: a reward learned during training from observations of success alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from serl.agent import State
from serl.agents.config import VICEConfig
from serl.agents.sac import SAC
from serl.agents.vice import VICE
from serl.errors import BadInput, SpecMismatch
from serl.specs import ArraySpec, ObservationSpec
from serl.testing.samples import copies, equal
from serl.training.successes import Successes
from serl.types import Batch

from .conftest import ROWS, SPEC, STATE, config, make, make_batch

QUICK = VICEConfig(
    binary=False, batch_size=16, learning_rate=3e-3, latent=16, hidden=16, channels=(4, 8)
)
GOAL = 1.5  # value of every state entry at the goal


def near(count: int, centre: float, seed: int = 0) -> np.ndarray[Any, np.dtype[np.float32]]:
    spread = 0.1 * np.random.default_rng(seed).standard_normal((count, STATE))
    return (centre + spread).astype(np.float32)


def make_vice(seed: int = 0, **changes: Any) -> VICE:
    settings = QUICK.model_copy(update=changes)
    return VICE(make(threads=1), settings, Successes(near(40, GOAL), {}), seed)


def visiting(centre: float, seed: int = 0, discount: float = 0.9) -> Batch:
    """Return a batch of transitions that lead to states near a centre."""
    batch, next_state = make_batch(seed), near(2 * ROWS, centre, seed)
    return replace(batch, next_state=next_state, discount=np.full(2 * ROWS, discount, np.float32))


def ended(centre: float) -> Batch:
    """Return final transitions near a centre; their rewards are the probabilities."""
    return visiting(centre, seed=99, discount=0.0)


def trained(vice: VICE, centre: float, updates: int = 150) -> VICE:
    for seed in range(updates):
        vice._learn(visiting(centre, seed))
    return vice


@pytest.fixture(scope="module")
def learned() -> State:
    """Return the state of a classifier after visits near 0."""
    return copies(trained(make_vice(), 0.0).state_dict())


@pytest.fixture
def vice(learned: State) -> VICE:
    made = make_vice()
    made.load_state_dict(learned)
    return made


def test_vice_reward_is_high_for_states_like_success_until_visited_often(vice: VICE) -> None:
    assert vice.rewards(ended(0.0)).mean() < 0.4
    assert vice.rewards(ended(GOAL)).mean() > 0.7
    after = trained(vice, GOAL).rewards(ended(GOAL)).mean()
    assert 0.3 < after < 0.65


def test_binary_vice_reward_is_zero_or_one() -> None:
    vice = trained(make_vice(binary=True), 0.0)
    assert vice.rewards(ended(GOAL)).mean() > 0.9
    assert not vice.rewards(ended(0.0)).any()
    staying = vice.rewards(visiting(GOAL, seed=99))
    assert set(staying.tolist()) <= {0.0, float(np.float32(1.0) - np.float32(0.9))}


def test_prior_transitions_are_not_used_as_negatives() -> None:
    vice = make_vice()
    for seed in range(150):
        half, others = visiting(GOAL, seed), visiting(0.0, seed)
        half.prior[:] = np.arange(2 * ROWS) < ROWS
        half.next_state[ROWS:] = others.next_state[ROWS:]
        vice._learn(half)
    assert vice.rewards(ended(GOAL)).mean() > 0.7


def test_vice_returns_stay_between_0_and_1(vice: VICE) -> None:
    staying, ending = visiting(GOAL, seed=99), ended(GOAL)
    forever = vice.rewards(staying) / (1.0 - staying.discount)
    np.testing.assert_allclose(forever, vice.rewards(ending), rtol=1e-5)
    assert forever.max() <= 1.0


def test_agent_learns_only_from_vice_rewards() -> None:
    first, second = make_vice(), make_vice()
    batch = visiting(0.0)
    first.update(batch)
    second.update(replace(batch, reward=np.full(2 * ROWS, np.nan, np.float32)))
    assert equal(first.state_dict(), second.state_dict())
    plain = make(threads=1)
    plain.update(batch)
    assert not equal(plain.state_dict(), first._agent.state_dict())


@pytest.mark.parametrize("change", [{"mixup": False}, {"slope_weight": 0.0}, {"smoothing": 0.0}])
def test_each_regulariser_changes_the_classifier(change: dict[str, Any]) -> None:
    with_it, without = trained(make_vice(), 0.0, 2), trained(make_vice(**change), 0.0, 2)
    assert not torch.equal(with_it._head_group.flat, without._head_group.flat)


def test_gradient_penalty_keeps_slope_near_1() -> None:
    """Compare slopes; without the penalty the classifier is as steep as the data allow."""

    def steepness(vice: VICE) -> float:
        good, visited = (vice._see(near(64, centre), {}).detach() for centre in (GOAL, 0.0))
        between = torch.lerp(visited, good, torch.rand(64, 1)).requires_grad_()
        total = vice._head(vice._head_group.flat, between).sum()
        return float(torch.autograd.grad(total, between)[0].norm(dim=-1).mean())

    held = steepness(trained(make_vice(slope_weight=10.0), 0.0))
    free = steepness(trained(make_vice(slope_weight=0.0), 0.0))
    assert abs(held - 1.0) < 0.3
    assert abs(free - 1.0) > abs(held - 1.0)


def test_vice_resumes_exactly() -> None:
    vice = make_vice()
    vice.update(visiting(0.0))
    saved = copies(vice.state_dict())
    other = make_vice(seed=7)
    other.load_state_dict(saved)
    for each in (vice, other):
        each.update(visiting(0.3, seed=1))
    assert equal(vice.state_dict(), other.state_dict())
    assert vice.actor_weights().keys() == make().actor_weights().keys()


@pytest.mark.parametrize("name", ["vice.head.0.weight", "critic.0.weight", "generator.vice"])
def test_mismatched_vice_state_is_refused_without_partial_load(name: str) -> None:
    vice = make_vice()
    vice.update(visiting(0.0))
    before = copies(vice.state_dict())
    wrong = copies(make_vice(seed=3).state_dict())
    wrong[name] = wrong[name][:-1]
    with pytest.raises(SpecMismatch, match=name):
        vice.load_state_dict(wrong)
    assert equal(vice.state_dict(), before)


def test_vice_learns_from_images() -> None:
    """Use a spot at the left for visits and at the right for success; the state is constant."""
    image = ArraySpec(shape=(12, 12, 3), dtype="uint8")
    observation = ObservationSpec(state=SPEC.observation.state, images={"front": image})
    spec = SPEC.model_copy(update={"observation": observation})
    agent = SAC.create(spec, config(encoder_channels=(4, 8), latent=8, threads=1), 0)
    rng = np.random.default_rng(0)

    def spot(count: int, left: int) -> dict[str, Any]:
        images = rng.integers(0, 60, (count, 12, 12, 3), np.uint8)
        images[:, 4:8, left : left + 4] = 250
        return {"front": images}

    successes = Successes(np.zeros((30, 0), np.float32), spot(30, 7))
    vice = VICE(agent, QUICK.model_copy(update={"crop_px": 1}), successes, 0)
    rows = 2 * ROWS
    for _ in range(150):
        vice._learn(replace(make_batch(), images=spot(rows, 1), next_images=spot(rows, 1)))
    good, bad = (
        vice.rewards(replace(ended(0.0), next_images=spot(rows, left))).mean() for left in (7, 1)
    )
    assert good > 0.6 > 0.4 > bad
    vice.update(replace(make_batch(), images=spot(rows, 1), next_images=spot(rows, 1)))


def test_vice_without_successes_is_refused() -> None:
    with pytest.raises(BadInput, match="no successes to learn from"):
        VICE(make(), QUICK, Successes(np.zeros((0, STATE), np.float32), {}), 0)


def test_vice_metrics_report_success_and_visited_probabilities(vice: VICE) -> None:
    metrics = [vice.update(visiting(0.0, seed)) for seed in range(100, 102)]
    reported = next(each for each in metrics if "q" in each)
    assert reported["vice_good"] > 0.7 > 0.4 > reported["vice_visited"]
    assert reported["vice_reward"] < 0.1 * 0.4
    assert all("vice_good" in each for each in metrics if "q" in each)
