from __future__ import annotations

import numpy as np
import pytest
import torch

from serl.agents.encoders import Encoder
from serl.agents.networks import Group
from serl.agents.sac import SAC, critic_loss
from serl.errors import SpecMismatch
from serl.specs import ArraySpec, ObservationSpec, Spec
from serl.types import Batch, Observation

from .conftest import ACTION, ROWS, config, equal

PX = (12, 10)
CAMERAS = {"front": PX, "wrist": (8, 8)}
SPEC = Spec(
    task="test",
    observation=ObservationSpec(
        state={"a": ArraySpec(shape=(3,))},
        images={name: ArraySpec(shape=(*px, 3), dtype="uint8") for name, px in CAMERAS.items()},
    ),
    action=ArraySpec(shape=(ACTION,), low=-1, high=1),
    rate_hz=10,
)
SEEING = {"encoder_channels": (4, 8), "latent": 6}


def make(seed: int = 0, **settings: object) -> SAC:
    return SAC.create(SPEC, config(**SEEING, **settings), seed)


def pictures(rows: int, seed: int) -> dict[str, np.ndarray[tuple[int, ...], np.dtype[np.uint8]]]:
    rng = np.random.default_rng(seed)
    return {name: rng.integers(0, 256, (rows, *px, 3), np.uint8) for name, px in CAMERAS.items()}


def make_batch(rows: int, seed: int = 0) -> Batch:
    rng = np.random.default_rng(seed)
    return Batch(
        state=rng.standard_normal((rows, 3)).astype(np.float32),
        action=rng.uniform(-1, 1, (rows, ACTION)).astype(np.float32),
        reward=rng.random(rows).astype(np.float32),
        discount=np.full(rows, 0.9, np.float32),
        next_state=rng.standard_normal((rows, 3)).astype(np.float32),
        prior=rng.random(rows) < 0.5,
        images=pictures(rows, seed + 1),
        next_images=pictures(rows, seed + 2),
    )


def observation(seed: int = 0) -> Observation:
    images = {name: frames[0] for name, frames in pictures(1, seed).items()}
    return Observation({"a": np.ones(3, np.float32)}, images)


def encoder() -> tuple[Encoder, torch.Tensor]:
    made = Encoder(CAMERAS, 3, (4, 8), 6, 5)
    return made, made.init(torch.Generator().manual_seed(0))


def test_features_are_those_of_each_camera_and_of_the_state() -> None:
    network, flat = encoder()
    images = {name: torch.from_numpy(frames) for name, frames in pictures(7, 0).items()}
    state = torch.randn(7, 3)
    features = network(flat, state, images)
    assert features.shape == (7, network.size) == (7, 6 + 6 + 5)
    assert features.abs().max() <= 1.0
    for place, name in ((slice(0, 6), "front"), (slice(6, 12), "wrist")):
        other = network(flat, state, {**images, name: images[name].flip(0)})
        changed = (other != features).any(0)
        assert changed[place].all()
        assert changed.sum() == 6
    assert (network(flat, -state, images) != features).any(0).tolist() == [False] * 12 + [True] * 5


def test_it_matches_torch_layers() -> None:
    network, flat = encoder()
    images = torch.from_numpy(pictures(3, 0)["front"])
    parts = {name: part[0] for name, part in network.views(flat).items()}
    x = images.permute(0, 3, 1, 2).float() / 255.0 - 0.5
    for layer, (fan_in, fan_out) in enumerate(((3, 4), (4, 8))):
        conv = torch.nn.Conv2d(fan_in, fan_out, 3, stride=2, padding=1)
        conv.load_state_dict({key: parts[f"front.{layer}.{key}"] for key in ("weight", "bias")})
        x = conv(x).relu()
    x = x.permute(0, 2, 3, 1).flatten(1) @ parts["front.head.weight"]
    norm = torch.nn.LayerNorm(6, eps=1e-6)
    torch.testing.assert_close(
        network(flat, torch.zeros(3, 3), {"front": images, "wrist": images[:, :8, :8]})[:, :6],
        norm(x).tanh(),
    )


def test_only_the_critics_loss_trains_it() -> None:
    agent = make()
    moved: list[str] = []
    groups = {"actor": agent.actor, "critic": agent.critic, "encoder": agent.encoder}
    agent.update(make_batch(ROWS * agent.config.utd))
    moved = [name for name, group in groups.items() if group.steps.item()]
    assert moved == ["actor", "critic", "encoder"]
    assert agent.encoder.steps.item() == agent.critic.steps.item() == agent.config.utd
    assert agent.actor.steps.item() == 1
    tensors = agent._tensors(make_batch(4))
    loss, seen = critic_loss(
        agent.networks, agent.critic.flat, agent.encoder.flat, tensors, torch.zeros(4)
    )
    assert not seen.requires_grad
    (gradient,) = torch.autograd.grad(loss, agent.encoder.flat)
    parts = agent.networks.encoder.views(gradient)
    assert all(part.any() for name, part in parts.items() if name.endswith("weight"))


def test_an_update_that_is_not_finite_moves_no_encoder() -> None:
    agent = make()
    before = agent.state_dict()
    batch = make_batch(ROWS * agent.config.utd)
    batch.reward[:] = np.nan
    agent.update(batch)
    after = agent.state_dict()
    names = [name for name in before if name.startswith(("encoder", "critic", "target"))]
    assert equal({n: before[n] for n in names}, {n: after[n] for n in names})


def test_it_learns_what_only_images_tell() -> None:
    agent = make(utd=1, batch_size=ROWS, learning_rate=3e-3)
    batch = make_batch(ROWS)
    dark = np.arange(ROWS) % 2 == 0
    batch.images["front"][dark] //= 4
    batch.discount[:] = 0.0
    batch.reward[:] = dark
    for _ in range(150):
        agent.update(batch)
    tensors = agent._tensors(batch)
    seen = agent.networks.encode(agent.encoder.flat, tensors.state, tensors.images)
    values = agent.networks.values(agent.critic.flat, seen, tensors.action).mean(0)
    assert values[::2].min() > 0.7
    assert values[1::2].max() < 0.3


def test_actors_get_the_encoder_with_their_weights() -> None:
    learner, actor = make(seed=0), make(seed=1)
    seen = observation()
    assert not np.array_equal(learner.act(seen, False), actor.act(seen, False))
    weights = learner.actor_weights()
    assert {name.split(".")[0] for name in weights} == {"actor", "encoder", "normaliser"}
    actor.load_actor_weights(weights)
    assert np.array_equal(learner.act(seen, False), actor.act(seen, False))
    assert not np.array_equal(actor.act(seen, False), actor.act(observation(5), False))


def test_it_continues_to_the_bit() -> None:
    straight, first, second = make(), make(), make(seed=9)
    batches = [make_batch(ROWS * straight.config.utd, seed) for seed in range(4)]
    for batch in batches:
        straight.update(batch)
    for batch in batches[:2]:
        first.update(batch)
    second.load_state_dict(first.state_dict())
    for batch in batches[2:]:
        second.update(batch)
    assert equal(straight.state_dict(), second.state_dict())


def test_weights_for_other_cameras_are_refused() -> None:
    images = {"front": SPEC.observation.images["front"]}
    spec = SPEC.model_copy(
        update={"observation": SPEC.observation.model_copy(update={"images": images})}
    )
    other = SAC.create(spec, config(**SEEING), 0)
    with pytest.raises(SpecMismatch, match="wrist"):
        make().load_actor_weights(other.actor_weights())


def test_groups_that_share_a_loss_move_together() -> None:
    from serl.agents.networks import descend

    one, two = Group(torch.zeros(1, 2), 0.1), Group(torch.zeros(1, 1), 0.1)
    assert descend((one.flat.sum() - two.flat.sum()), one, two).item() == 0.0
    assert (one.flat < 0).all()
    assert (two.flat > 0).all()
    assert descend(one.flat.sum() + two.flat.sum() * torch.inf, one, two).item() == 1.0
    assert one.steps.item() == 1
