from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from serl.agents.hybrid import Grippers, HybridSAC, grasp_loss, grasp_target, margin_loss
from serl.agents.networks import EnsembleMLP
from serl.runs.assembly import make_agent
from serl.runs.config import resolve
from serl.specs import ArraySpec, ObservationSpec, Spec
from serl.testing import arm_spec, random_batch, random_observation
from serl.types import Batch, Observation

from .conftest import ROWS, SMALL, config

NAMES = "x left_gripper y z right_gripper"
ONE = "x y gripper"


def make_spec(names: str = ONE) -> Spec:
    grippers = names.count("gripper")
    return Spec(
        task="test",
        observation=ObservationSpec(
            state={"a": ArraySpec(shape=(3,)), "gripper": ArraySpec(shape=(grippers,))}
        ),
        action=ArraySpec(shape=(len(names.split()),), low=-1.0, high=1.0, unit=names),
        rate_hz=10.0,
    )


def make(names: str = ONE, seed: int = 0, **settings: object) -> HybridSAC:
    made = HybridSAC.create(make_spec(names), config(algorithm="hybrid", **settings), seed)
    assert isinstance(made, HybridSAC)
    return made


def make_batch(rows: int, names: str = ONE, seed: int = 0) -> Batch:
    rng, spec = np.random.default_rng(seed), make_spec(names)
    size = spec.observation.state_size
    return Batch(
        state=rng.standard_normal((rows, size)).astype(np.float32),
        action=rng.uniform(-1, 1, (rows, *spec.action.shape)).astype(np.float32),
        reward=rng.random(rows).astype(np.float32),
        discount=np.full(rows, 0.9, np.float32),
        next_state=rng.standard_normal((rows, size)).astype(np.float32),
        prior=rng.random(rows) < 0.5,
    )


def observation(names: str = ONE) -> Observation:
    spec = make_spec(names).observation.state
    return Observation({name: np.ones(array.shape, np.float32) for name, array in spec.items()})


def test_grasp_choices_convert_to_actions_and_back() -> None:
    grippers = Grippers.of(make_spec(NAMES))
    assert (grippers.places, grippers.arm, grippers.openings) == ((1, 4), (0, 2, 3), (3, 4))
    assert grippers.choices == 9
    arm, choices = torch.arange(27.0).reshape(9, 3), torch.arange(9)
    actions = grippers.put(arm, choices)
    assert torch.equal(actions[:, [0, 2, 3]], arm)
    assert set(actions[:, [1, 4]].flatten().tolist()) == {-1.0, 0.0, 1.0}
    assert torch.equal(grippers.choices_of(actions), choices)
    within = torch.tensor([[0.0, 0.5, 0.0, 0.0, -0.5], [0.0, 0.51, 0.0, 0.0, -0.51]])
    assert grippers.choices_of(within).tolist() == [4, 2]


def test_switch_is_a_command_that_differs_from_gripper_opening() -> None:
    grippers = Grippers.of(make_spec(ONE))
    action = torch.tensor([[0.0, 0.0, grip] for grip in (-1.0, -1.0, 1.0, 1.0, 0.0)])
    state = torch.tensor([[0.0, 0.0, 0.0, opening] for opening in (1.0, 0.6, 1.0, 0.6, 1.0)])
    assert grippers.switches(action, state).tolist() == [1.0, 0.0, 0.0, 1.0, 0.0]
    blind = replace(grippers, openings=())
    assert blind.switches(action, state).tolist() == [0.0] * 5


def test_double_dqn_selects_online_and_evaluates_with_target() -> None:
    network = EnsembleMLP(1, (1, 3), layer_norm=False)
    online, target = torch.zeros(1, network.length), torch.zeros(1, network.length)
    network.views(online)["0.bias"][0] = torch.tensor([0.0, 5.0, 1.0])
    network.views(target)["0.bias"][0] = torch.tensor([9.0, 2.0, 7.0])
    reward, discount = torch.tensor([0.5, 1.0]), torch.tensor([0.9, 0.0])
    expected_warning = grasp_target(network, online, target, reward, discount, torch.zeros(2, 1))
    torch.testing.assert_close(expected_warning, torch.tensor([0.5 + 0.9 * 2.0, 1.0]))
    values = network.member(online[0], torch.zeros(2, 1))
    loss = grasp_loss(values, torch.tensor([1, 2]), torch.zeros(2))
    assert loss.item() == pytest.approx((25 + 1) / 2)


def test_margin_loss_keeps_other_choices_below_demonstrated_choice() -> None:
    values = torch.tensor([[0.5, 0.2, 0.3], [0.5, 0.48, 0.1], [0.1, 0.9, 0.2], [0.0, 0.0, 9.0]])
    choice, prior = torch.tensor([0, 0, 0, 0]), torch.tensor([1.0, 1.0, 1.0, 0.0])
    loss = margin_loss(values, choice, prior, 0.1)
    assert loss.item() == pytest.approx((0.0 + 0.08 + 0.9) / 3)
    assert margin_loss(values, choice, torch.zeros(4), 0.1).item() == 0.0


@pytest.mark.parametrize("weight", [0.0, 1.0])
def test_margin_raises_demonstrated_choice_above_untried_ones(weight: float) -> None:
    agent = make(
        utd=1, learning_rate=1e-2, grasp_penalty=0.0, grasp_margin_weight=weight, grasp_margin=0.1
    )
    batch = make_batch(ROWS)
    batch.prior[:], batch.reward[:], batch.discount[:] = True, 0.2, 0.0
    batch.action[:, 2] = -1.0  # always close
    for _ in range(60):
        agent.update(batch)
    seen = agent.normalise(torch.from_numpy(batch.state))
    values = agent.grasp_network.member(agent.grasp.flat[0], seen)
    ahead = values[:, :1] - values[:, 1:]
    assert (ahead.min().item() > 0.05) == bool(weight)


def test_grasp_critic_targets_respect_return_bounds() -> None:
    batch = make_batch(ROWS)
    batch.discount[:] = 0.0
    critics = []
    for bounds, reward in (((0.0, 1.0), 7.0), (None, 1.0), (None, 7.0)):
        agent = make(utd=1, grasp_penalty=0.0, return_bounds=bounds)
        agent.update(replace(batch, reward=np.full(ROWS, reward, np.float32)))
        critics.append(agent.grasp.flat)
    bounded, at_bound, free = critics
    assert torch.equal(bounded, at_bound)
    assert not torch.equal(bounded, free)


def test_exploring_agent_takes_share_of_random_grasp_choices() -> None:
    agent, seen = make(grasp_epsilon=0.6), observation()
    greedy = agent.act(seen, explore=False)[2]
    grips = np.array([agent.act(seen, explore=True)[2] for _ in range(300)])
    assert (grips != greedy).mean() == pytest.approx(0.4, abs=0.1)
    assert all(agent.act(seen, explore=False)[2] == greedy for _ in range(50))


def test_arm_critics_do_not_see_the_gripper_action() -> None:
    one, two = make(utd=1), make(utd=1)
    batch = make_batch(ROWS)
    flipped = replace(batch, action=batch.action * np.array([1, 1, -1], np.float32))
    one.update(batch)
    two.update(flipped)
    assert torch.equal(one.critic.flat, two.critic.flat)
    assert not torch.equal(one.grasp.flat, two.grasp.flat)


def test_switching_the_gripper_costs_the_grasp_critic_but_not_the_arm_critics() -> None:
    costly, free = make(utd=1, grasp_penalty=0.1), make(utd=1, grasp_penalty=0.0)
    batch = make_batch(ROWS)
    batch.action[:, 2] = [-1.0, 0.0, 1.0, -1.0, 0.0, 1.0, -1.0, 1.0]
    batch.state[:, 3] = 1.0  # open
    costs = np.float32(0.1) * (batch.action[:, 2] == -1.0)
    costly.update(batch)
    free.update(replace(batch, reward=(batch.reward - costs).astype(np.float32)))
    torch.testing.assert_close(costly.grasp.flat, free.grasp.flat)
    assert not torch.allclose(costly.critic.flat, free.critic.flat)


def test_ineffective_grasp_penalty_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    one = make_spec(ONE).observation
    spec = make_spec(NAMES).model_copy(update={"observation": one})
    expected_warning = (
        "agent.grasp_penalty 0.1: costs nothing: the state has no opening of each of 2 "
    )
    batch = make_batch(ROWS, NAMES)
    batch = replace(batch, state=batch.state[:, :4], next_state=batch.next_state[:, :4])
    settings = config(algorithm="hybrid", utd=1, grasp_penalty=0.1)
    for _ in range(2):
        agent = HybridSAC.create(spec, settings, 0)
        assert isinstance(agent, HybridSAC)
        assert not caplog.messages, "an acting agent logs nothing"
    for _ in range(2):
        agent.update(batch)
    (line,) = caplog.messages
    assert line.startswith(expected_warning)
    caplog.clear()
    HybridSAC.create(spec, settings.model_copy(update={"grasp_penalty": 0.0}), 0).update(batch)
    make(NAMES, utd=1).update(make_batch(ROWS, NAMES))
    assert not caplog.messages


@pytest.mark.parametrize("arms", [1, 2])
@pytest.mark.parametrize("fixed", [True, False])
def test_one_or_two_arms_with_fixed_or_learned_grippers_are_one_algorithm(
    arms: int, fixed: bool
) -> None:
    spec = arm_spec(gripper=not fixed, arms=arms)
    settings = resolve({"agent": {**SMALL.model_dump(), "algorithm": "hybrid"}})
    agent, rng = make_agent(settings, spec, 0), np.random.default_rng(0)
    learned = {n for n in agent.actor_weights() if n.startswith("grasp.")}
    assert bool(learned) != fixed
    if learned:
        assert agent.actor_weights()["grasp.2.bias"].shape == (1, 3**arms)
    for _ in range(2):
        agent.update(random_batch(spec, 2 * ROWS, rng))
    state = agent.state_dict()
    assert state.get("adam.grasp.steps", 2 * 2) == state["adam.critic.steps"] == 2 * 2
    action = agent.act(random_observation(spec.observation, rng), explore=True)
    spec.action.validate_array(action, "action")
    grips = [action[i] for i, name in enumerate(spec.action_names) if name.endswith("gripper")]
    assert len(grips) == (0 if fixed else arms)
    assert set(grips) <= {-1.0, 0.0, 1.0}
    sac = make_agent(resolve({"agent": SMALL.model_dump()}), spec, 0)
    assert (agent.state_dict().keys() == sac.state_dict().keys()) == fixed
