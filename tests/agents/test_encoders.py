from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from serl.agent import Agent
from serl.agents.encoders import Encoder
from serl.agents.losses import critic_loss
from serl.agents.networks import Group, descend
from serl.agents.resnet import Trunk
from serl.agents.sac import SAC
from serl.errors import BadInput
from serl.specs import ArraySpec, ObservationSpec, Spec
from serl.testing import AgentSuite
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


class TestSACWithCameras(AgentSuite):
    rows = 2 * ROWS

    def make(self) -> tuple[Agent, Spec]:
        return make(), SPEC


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


def test_bfloat16_features_and_gradients_are_close_to_float32() -> None:
    exact, flat = encoder()
    images = {name: torch.from_numpy(frames) for name, frames in pictures(7, 0).items()}
    seen, ways = [], []
    for dtype in (torch.float32, torch.bfloat16):
        parameters = flat.clone().requires_grad_()
        features = replace(exact, dtype=dtype)(parameters, torch.ones(7, 3), images)
        (way,) = torch.autograd.grad(features.square().sum(), parameters)
        seen.append(features)
        ways.append(way[0])
    assert seen[1].dtype == ways[1].dtype == torch.float32
    assert 0.0 < (seen[0] - seen[1]).abs().max() < 0.1
    assert torch.cosine_similarity(ways[0], ways[1], dim=0) > 0.98


def test_features_concatenate_cameras_and_state() -> None:
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


def test_encoder_matches_torch_layers() -> None:
    network, flat = encoder()
    images = torch.from_numpy(pictures(3, 0)["front"])
    parts = {name: part[0] for name, part in network.views(flat).items()}
    x = images.permute(0, 3, 1, 2).float() / 255.0 - 0.5
    for layer, (fan_in, fan_out, stride) in enumerate(((3, 4, 2), (4, 8, 1))):
        conv = torch.nn.Conv2d(fan_in, fan_out, 3, stride=stride, padding=1)
        conv.load_state_dict({key: parts[f"front.{layer}.{key}"] for key in ("weight", "bias")})
        x = conv(x).relu() if stride == 2 else conv(x)
    share = x.exp() / x.exp().sum((2, 3), keepdim=True)
    rows, columns = (torch.linspace(-1, 1, size) for size in x.shape[2:])
    centres = [(share * columns).sum((2, 3)), (share * rows[:, None]).sum((2, 3))]
    x = torch.cat(centres, -1) @ parts["front.head.weight"]
    norm = torch.nn.LayerNorm(6, eps=1e-6)
    torch.testing.assert_close(
        network(flat, torch.zeros(3, 3), {"front": images, "wrist": images[:, :8, :8]})[:, :6],
        norm(x).tanh(),
    )


def test_only_critic_loss_trains_encoder() -> None:
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


def test_critic_learns_reward_visible_only_in_images() -> None:
    agent = make(utd=1, batch_size=ROWS, learning_rate=1e-2)
    batch = make_batch(ROWS)
    dark = np.arange(ROWS) % 2 == 0
    batch.images["front"][dark] //= 4
    batch.discount[:] = 0.0
    batch.reward[:] = dark
    for _ in range(60):
        agent.update(batch)
    tensors = agent._tensors(batch)
    seen = agent.networks.encode(agent.encoder.flat, tensors.state, tensors.images)
    values = agent.networks.values(agent.critic.flat, seen, tensors.action).mean(0)
    assert values[::2].min() > 0.7
    assert values[1::2].max() < 0.3


def test_parameter_groups_of_one_loss_move_or_skip_together() -> None:
    one, two = Group(torch.zeros(1, 2), 0.1), Group(torch.zeros(1, 1), 0.1)
    assert descend((one.flat.sum() - two.flat.sum()), one, two).item() == 0.0
    assert (one.flat < 0).all()
    assert (two.flat > 0).all()
    assert descend(one.flat.sum() + two.flat.sum() * torch.inf, one, two).item() == 1.0
    assert one.steps.item() == 1


def test_frozen_trunk_runs_once_per_image_and_is_not_trained(
    trunk_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = make(encoder="resnet10", trunk=trunk_file, utd=2, batch_size=1)
    assert agent.trunk is not None
    before = {name: tensor.clone() for name, tensor in agent.trunk.state_dict().items()}
    seen: list[int] = []
    forward = Trunk.forward

    def counted(trunk: Trunk, images: torch.Tensor) -> torch.Tensor:
        seen.append(len(images))
        return forward(trunk, images)

    monkeypatch.setattr(Trunk, "forward", counted)
    agent.update(make_batch(2))
    assert seen == [2] * 4, "current and next observation of two cameras"
    assert agent.encoder.steps.item() == 2
    assert all(torch.equal(before[name], now) for name, now in agent.trunk.state_dict().items())
    assert not any("trunk" in name for name in agent.actor_weights()), (
        "learner and actor load the trunk from a file"
    )
    action = agent.act(observation(), explore=False)
    assert action.shape == (ACTION,)
    assert not np.array_equal(action, agent.act(observation(3), explore=False))


def test_trunk_bottlenecks_have_serl_sizes(
    trunk_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check 256 per camera and 64 for the state with a trunk, and 64 each without one."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    serl = config(encoder="resnet10", trunk=trunk_file)
    for settings, camera, state in (
        (serl, 256, 64),
        (config(), 64, 64),
        (serl.model_copy(update={"trunk": None}), 64, 64),
        (serl.model_copy(update={"latent": 32}), 32, 32),  # as in settings of older runs
        (serl.model_copy(update={"latent": 32, "state_latent": 16}), 32, 16),
        (serl.model_copy(update={"state_latent": 16}), 256, 16),
    ):
        agent = SAC.create(SPEC, settings, 0)
        network = agent.networks.encoder
        assert (network.latent, network.state_latent) == (camera, state)
        assert agent.encode_observation(observation()).shape == (1, 2 * camera + state)


def test_camera_head_has_as_many_parameters_as_in_serl(trunk_file: Path) -> None:
    """Compare with Flax's 1,114,880, less a bias of 256 that LayerNorm's shift replaces."""
    network = SAC.create(SPEC, config(encoder="resnet10", trunk=trunk_file), 0).networks.encoder
    numbers = dict(zip(network.shapes, network.lengths, strict=True))
    for camera in CAMERAS:
        own = sum(n for name, n in numbers.items() if name.startswith(f"{camera}."))
        assert own == 4 * 4 * 512 * 8 + 512 * 8 * 256 + 2 * 256 == 1_114_880 - 256
    assert sum(n for name, n in numbers.items() if name.startswith("state.")) == 3 * 64 + 2 * 64
    assert network.length == 2 * (1_114_880 - 256) + 5 * 64


def test_cached_features_equal_features_used_for_acting(
    trunk_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = make(encoder="resnet10", trunk=trunk_file, utd=2, batch_size=1, cached_features=True)
    encoder = agent.frame_encoder()
    assert encoder is not None
    batch, looked = make_batch(2), observation()
    kept = encoder.encode(looked.images)
    assert {name: each.shape for name, each in kept.items()} == {n: (4, 4, 512) for n in CAMERAS}
    seen = agent._encoder_inputs({name: image[None] for name, image in looked.images.items()})
    for name, each in kept.items():
        assert each.dtype == np.float16
        assert np.array_equal(seen[name][0].numpy(), each.astype(np.float32))
    rows = [
        encoder.encode({n: image[row] for n, image in batch.images.items()}) for row in range(2)
    ]
    features = {name: np.stack([row[name] for row in rows]) for name in CAMERAS}
    monkeypatch.setattr(Trunk, "forward", None)  # no image is encoded again
    agent.update(replace(batch, images=features, next_images=features))
    assert agent.encoder.steps.item() == 2


def test_cached_features_need_trunk_single_frames_and_cameras(
    trunk_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert make(encoder="resnet10", trunk=trunk_file).frame_encoder() is None
    assert make().frame_encoder() is None
    with pytest.raises(BadInput, match=r"agent\.cached_features: needs the ResNet-10"):
        make(encoder="resnet10", cached_features=True)
    with pytest.raises(BadInput, match=r"cached_features: the small encoder sees agent\.frames 1"):
        make(cached_features=True, frames=2)
    blind = SPEC.model_copy(
        update={"observation": ObservationSpec(state={"a": ArraySpec(shape=(3,))})}
    )
    with pytest.raises(BadInput, match=r"agent\.cached_features: the task has no cameras"):
        SAC.create(blind, config(cached_features=True), 0)


def test_small_encoder_with_cached_features_is_not_trained() -> None:
    agent = make(utd=2, batch_size=4, cached_features=True)
    kept = agent.frame_encoder()
    assert kept is not None
    batch, looked = make_batch(8), observation()
    read_only = {name: image.copy() for name, image in looked.images.items()}
    for image in read_only.values():
        image.flags.writeable = False  # as in a message; torch would warn
    features = kept.encode(read_only)
    assert {name: each.shape for name, each in features.items()} == {n: (6,) for n in CAMERAS}
    assert {each.dtype for each in features.values()} == {np.dtype(np.float16)}
    acted_on = agent.encode_observation(looked)[0, :12].detach().numpy()
    assert np.array_equal(acted_on, np.concatenate([features[name] for name in CAMERAS]))
    rows = [kept.encode({n: image[row] for n, image in batch.images.items()}) for row in range(8)]
    seen = {name: np.stack([row[name] for row in rows]) for name in CAMERAS}
    before = agent.state_dict()
    for _ in range(3):
        agent.update(replace(batch, images=seen, next_images=seen))
    after = agent.state_dict()
    changed = {name for name in after if not np.array_equal(after[name], before[name])}
    assert not [name for name in changed if name.startswith(("encoder.front", "encoder.wrist"))]
    assert {"encoder.state.head.weight", "actor.0.weight", "critic.0.weight"} <= changed


def test_image_only_agent_with_cached_features_keeps_encoder_fixed() -> None:
    """Check an update in which the encoder has no trainable part and so no gradient."""
    cameras = SPEC.observation.model_copy(update={"state": {}})
    blind = SPEC.model_copy(update={"observation": cameras})
    agent = SAC.create(blind, config(**SEEING, cached_features=True, utd=1, batch_size=4), 0)
    nothing = np.empty((4, 0), np.float32)
    features = {camera: np.zeros((4, 6), np.float16) for camera in CAMERAS}
    batch = replace(
        make_batch(4), state=nothing, next_state=nothing, images=features, next_images=features
    )
    before = agent.state_dict()
    agent.update(batch)
    after = agent.state_dict()
    assert np.array_equal(after["encoder.front.head.weight"], before["encoder.front.head.weight"])
    assert not np.array_equal(after["critic.0.weight"], before["critic.0.weight"])


def test_spatial_weights_apply_to_trunk_features() -> None:
    network = Encoder({"front": (1, 1)}, 0, (), 6, 0, trunk=(2, 2, 3))
    flat = network.init(torch.Generator().manual_seed(0))
    parts = {name: part[0] for name, part in network.views(flat).items()}
    assert parts["front.places.weight"].shape == (2, 2, 3, 8)
    features = torch.randn(5, 2, 2, 3)
    weighted = (features.unsqueeze(-1) * parts["front.places.weight"]).sum((1, 2)).flatten(1)
    norm = torch.nn.LayerNorm(6, eps=1e-6)
    expected = norm(weighted @ parts["front.head.weight"]).tanh()
    torch.testing.assert_close(network(flat, torch.empty(5, 0), {"front": features}), expected)


def test_missing_trunk_weights_fall_back_to_small_encoder_with_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    agent = make(encoder="resnet10")
    assert agent.trunk is None
    assert "resnet10.safetensors: no weights of a ResNet-10 (serl encoder import FILE)" in (
        caplog.text
    )
    assert equal(agent.state_dict(), make().state_dict())


def test_named_but_missing_trunk_weights_are_refused(tmp_path: Path) -> None:
    line = r"agent\.trunk .*absent\.safetensors: no such file; expected weights of a ResNet-10"
    with pytest.raises(BadInput, match=line):
        make(encoder="resnet10", trunk=tmp_path / "absent.safetensors")


@pytest.mark.parametrize("trunk", [False, True])
def test_stacked_frames_are_encoded_in_order(trunk_file: Path, trunk: bool) -> None:
    encoder = "resnet10" if trunk else "small"
    agent = make(frames=2, utd=2, batch_size=1, encoder=encoder, trunk=trunk_file)
    batch = make_batch(2)
    stacked = {name: np.concatenate([i, i[::-1]], -1) for name, i in batch.images.items()}
    agent.update(replace(batch, images=stacked, next_images=stacked))
    assert agent.skipped == 0
    assert agent.encoder.steps.item() == 2
    looked, other = observation(), observation(3)
    images = {n: np.concatenate([i, other.images[n]], -1) for n, i in looked.images.items()}
    turned = {n: np.concatenate([other.images[n], i], -1) for n, i in looked.images.items()}
    seen = [
        agent.encode_observation(replace(looked, images=each)) for each in (images, images, turned)
    ]
    assert torch.equal(seen[0], seen[1])
    assert not torch.allclose(seen[0], seen[2])
