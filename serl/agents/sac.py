"""RLPD (Ball et al. 2023) on soft actor-critic (Haarnoja et al. 2018), for states and images.

The losses, in `serl.agents.losses`, are pure functions of flat parameters, a batch and given
randomness. Randomness is drawn on the host from saved generators, so that a run can be repeated and
continued exactly.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from serl.agent import State
from serl.agents.config import SACConfig
from serl.agents.encoder_weights import starting_file
from serl.agents.exploration import ExplorationNoise, resolve_std
from serl.agents.losses import (
    Cloning,
    Networks,
    Tensors,
    actor_loss,
    critic_loss,
    critic_target,
    temperature_loss,
)
from serl.agents.networks import (
    Group,
    adam_tensors,
    choose_device,
    descend,
    named_views,
    set_matmul,
    split_head,
    to_device,
)
from serl.agents.pretraining import load_encoder
from serl.agents.resnet import CHANNELS, GRID, Trunk
from serl.agents.weights import copy_into, to_arrays
from serl.errors import BadInput, SpecMismatch
from serl.specs import Spec
from serl.training.frames import FrameEncoder
from serl.types import Action, Array, Batch, Features, Image, Observation

_SMALLEST_STD = 1e-3  # keeps nearly constant entries of observations from being amplified
NORMALISED_RANGE = 10.0
"""Bound of normalised observations, in standard deviations."""
_ACTOR_HEAD = 0.01  # the first policy is centred and wide for every observation


def actor_terms(config: SACConfig, updates: int) -> tuple[float, float]:
    """Return the weights of improvement and cloning in the actor's loss after `updates` updates."""
    since = updates - config.bc_warm_start
    if since < 0:
        return 0.0, 1.0
    left = max(0.0, 1.0 - since / config.bc_steps) if config.bc_steps else 0.0
    return 1.0, left * config.bc_weight + (1.0 - left) * config.bc_final_weight


class SAC:
    """The SAC agent; see `serl.agent.Agent`. Create it with `SAC.create`."""

    _INITIAL_STD = 1.0

    def __init__(self, spec: Spec, config: SACConfig, seed: int) -> None:
        if config.subset > config.critics:
            raise BadInput(f"subset {config.subset} is larger than critics {config.critics}")
        if config.threads is not None:
            torch.set_num_threads(config.threads)
        self.spec, self.config = spec, config
        self.device = choose_device(config.device)
        dtype = set_matmul(config.matmul, self.device)
        state_size, action_size = spec.observation.state_size, math.prod(spec.action.shape)
        cameras = {
            name: (image.shape[0], image.shape[1])
            for name, image in spec.observation.images.items()
        }
        self.trunk = Trunk.configured(config, dtype, self.device) if cameras else None
        if config.frames > 1 and not cameras:
            raise BadInput("agent.frames: the task has no cameras (--observe pixels)")
        if config.cached_features:
            _check_cached(config, bool(cameras), self.trunk)
        self.target_entropy = (
            config.entropy_per_dimension * action_size
            if config.target_entropy is None
            else config.target_entropy
        )
        trunk_shape = (GRID, GRID, CHANNELS) if self.trunk else None
        sizes = state_size, action_size
        self.networks = Networks.create(config, cameras, sizes, trunk_shape, dtype)
        encoder = self.networks.encoder
        self._acting = torch.Generator().manual_seed(seed)
        self._noise = ExplorationNoise(self._acting, config.noise_correlation)
        self._cloning = Cloning.create(config, spec.observation)
        self._learning = torch.Generator().manual_seed(seed + 1)
        init = torch.Generator().manual_seed(seed + 2)
        rate = config.learning_rate
        std = resolve_std(config.initial_std or self._INITIAL_STD, self.target_entropy, action_size)
        self.actor = Group(self._fresh_actor(init, std).to(self.device), rate)
        self.critic = Group(self.networks.critic.init(init).to(self.device), rate)
        self.target = self.critic.flat.detach().clone()
        flat = encoder.init(init)
        if path := starting_file(config, spec.observation.images):
            load_encoder(path, encoder, flat)
        self.encoder = Group(flat.to(self.device), rate)
        self.average = self.actor.flat.detach().clone() if config.actor_average else None
        self._critic_groups = (self.critic, self.encoder) if cameras else (self.critic,)
        for network in config.frozen:
            group = self.actor if network == "actor" else self.encoder
            group.flat.requires_grad_(False)
        if config.cached_features and not (self.trunk or state_size):
            self.encoder.flat.requires_grad_(False)  # no part of it has any input
        start = torch.tensor([math.log(config.temperature)], device=self.device)
        own = config.temperature_learning_rate
        self.temperature = Group(start, rate if own is None else own)
        self.mean = torch.zeros(state_size, device=self.device)
        self.std = torch.ones(state_size, device=self.device)
        self.updates = 0
        self.skipped = torch.zeros((), device=self.device)  # consecutive updates skipped in part
        wrap: Callable[[Any], Any] = torch.compile if config.compile else lambda function: function
        self._critic_target, self._critic_loss = wrap(critic_target), wrap(critic_loss)
        self._actor_loss = wrap(actor_loss)

    @classmethod
    def create(cls, spec: Spec, config: SACConfig, seed: int) -> SAC:
        """Create an agent; equal arguments give equal parameters.

        Raises:
            BadInput: the configuration is inconsistent, or the device does not exist.
        """
        return cls(spec, config, seed)

    def fit_normaliser(self, states: Array) -> None:
        """Set the normaliser to mean and standard deviation of `states` (N, D).

        No effect without states or with `normalise` off. Normalised values are clipped to +-10.
        """
        if self.config.normalise and len(states):
            smallest = {str(unit): std for unit, std in self.config.smallest_std.items()}
            units = self.spec.observation.state_units
            floors = np.array([smallest.get(unit, _SMALLEST_STD) for unit in units], np.float32)
            self.mean.copy_(torch.from_numpy(states.mean(0)))
            self.std.copy_(torch.from_numpy(np.maximum(states.std(0), floors)))

    def normalise(self, state: Tensor) -> Tensor:
        """Normalise state vectors (B, D) by the statistics set by `fit_normaliser`."""
        return ((state - self.mean) / self.std).clamp(-NORMALISED_RANGE, NORMALISED_RANGE)

    @torch.inference_mode()
    def act(self, observation: Observation, explore: bool) -> Action:
        """Return an action in [-1, 1], shape (A,): sampled when exploring, else the mode."""
        action: Action = (
            self.select_action(self.encode_observation(observation), explore).cpu().numpy()
        )
        return action

    def encode_observation(self, observation: Observation) -> Tensor:
        """Encode an observation as the input of actor and critics.  # (1, Z)."""
        state = to_device(self.spec.observation.flatten(observation), self.device)
        images = self._encoder_inputs(
            {name: observation.images[name][None] for name in self.networks.encoder.cameras}
        )
        return self.networks.encode(self.encoder.flat, self.normalise(state).unsqueeze(0), images)

    def select_action(self, seen: Tensor, explore: bool) -> Tensor:
        """Return the actor's action, (A,), for an encoded observation, (1, Z)."""
        head = self.networks.actor.member(self.actor.flat[0], seen)
        mean, log_std = split_head(head[0])
        if explore:
            mean = mean + log_std.exp() * self._noise.draw(mean.shape).to(self.device)
        return torch.tanh(mean)

    @torch.inference_mode()
    def modes(self, state: Array, images: Mapping[str, Image]) -> Array:
        """Return the modes of the policy for a batch of observations.  # (B, A).

        Args:
            state: state vectors.  # (B, D)
            images: stacked images by camera.  # (B, H, W, 3 * frames)
        """
        tensors = {name: to_device(image, self.device) for name, image in images.items()}
        actions: Array = self.mode(to_device(state, self.device), tensors).cpu().numpy()
        return actions

    def mode(self, state: Tensor, images: Mapping[str, Tensor]) -> Tensor:
        """Return the modes for tensors on the device; see `modes`.  # (B, A)."""
        return self.select_modes(self.encode(state, images))

    def encode(self, state: Tensor, images: Mapping[str, Tensor]) -> Tensor:
        """Encode a batch of observations as the input of actor and critics.  # (B, Z)."""
        inputs = self._inputs(images)
        return self.networks.encode(self.encoder.flat, self.normalise(state), inputs)

    def select_modes(self, seen: Tensor) -> Tensor:
        """Return the modes for encoded observations, (B, Z).  # (B, A)."""
        mean, _ = split_head(self.networks.actor.member(self.actor.flat[0], seen))
        return torch.tanh(mean)

    def frame_encoder(self) -> FrameEncoder | None:
        """Return the encoder of replay's frames if `cached_features` is set, otherwise None."""
        if not self.config.cached_features:
            return None
        trunk, latent = self.trunk, self.networks.encoder.latent

        def encode(images: Mapping[str, Image]) -> dict[str, Features]:
            writable = {name: image[None].copy() for name, image in images.items()}  # for torch
            seen = self._encoder_inputs(writable)
            return {name: each[0].half().cpu().numpy() for name, each in seen.items()}

        return FrameEncoder((GRID, GRID, CHANNELS) if trunk else (latent,), encode)

    def update(self, batch: Batch) -> dict[str, float]:
        """Take one outer step: `utd` critic updates, one of the actor, one of the temperature.

        The batch is split, in its order, into one part per critic update; actor and temperature use
        the last part. A step whose gradient is not finite is skipped, with its step of the target.
        Metrics are returned every `metrics_every` updates.

        Raises:
            SpecMismatch: the batch has not utd * batch_size rows.
        """
        config, rows = self.config, self._rows(batch)
        tensors = self._tensors(batch)
        noise, subsets = self._randomness(rows + config.batch_size, tensors.action.shape[1])
        temperature = self.temperature.flat.detach().exp()
        with torch.no_grad():  # the actor is fixed during the critic's steps
            next_action, log_probability, _ = self.networks.sample(
                self.actor.flat, tensors.next_state, noise[:rows]
            )
            bonus = -temperature * log_probability * float(config.backup_entropy)
        skipped = torch.zeros((), device=self.device)
        for step in range(config.utd):
            part = slice(step * config.batch_size, (step + 1) * config.batch_size)
            last = tensors.rows(part)
            with torch.no_grad():
                target = self._critic_target(
                    self.networks, self.target, last, next_action[part], bonus[part], subsets[step]
                )
                if config.return_bounds is not None:
                    target = target.clamp(*config.return_bounds)
            loss, seen = self._critic_loss(
                self.networks, self.critic.flat, self.encoder.flat, last, target
            )
            skipped = skipped + (skip := descend(loss, *self._critic_groups))
            with torch.no_grad():
                self.target.lerp_(self.critic.flat, config.tau * (1.0 - skip))
            skipped = skipped + self.additional_step(last, seen, part)
        objective, entropy, skip = self._update_actor(
            last._replace(state=seen), noise[rows:], temperature
        )
        skipped = skipped + skip
        self.skipped = (self.skipped + 1.0) * skipped.sign()
        self.updates += 1
        self.average_actor()
        if self.updates % config.metrics_every:
            return {"skipped": self.skipped.item()} if self.device.type == "cpu" else {}
        return {
            "skipped": self.skipped.item(),
            "critic_loss": loss.item() / config.critics,
            "actor_loss": objective.item(),
            "entropy": entropy.item(),
            "temperature": temperature.item(),
            "q": target.mean().item(),
        }

    def _update_actor(
        self, part: Tensors, noise: Tensor, temperature: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Take a step of actor and temperature; return loss, entropy, and the skipped steps."""
        terms = actor_terms(self.config, self.updates)
        own = self.config.actor_learning_rate if terms[0] else None
        self.actor.learning_rate = self.config.learning_rate if own is None else own
        weights = torch.tensor(terms, device=self.device)
        critic = self.critic.flat.detach()
        objective, entropy = self._actor_loss(
            self.networks,
            self.actor.flat,
            critic,
            part,
            noise,
            temperature,
            weights,
            self._cloning,
            self._cloning.disturbed(part.state, self._learning),
        )
        error = temperature_loss(self.temperature.flat, entropy, self.target_entropy)
        skipped = descend(objective + weights[0] * error, self.actor, self.temperature)
        return objective, entropy, skipped

    def additional_step(self, part: Tensors, seen: Tensor, rows: slice) -> Tensor:
        """Take an additional step on the same part of the batch; for subclasses with more to learn.

        Args:
            part: transitions, the next observations encoded.
            seen: their observations, encoded.  # (B, Z)
            rows: their rows in the batch.

        Returns:
            Scalar: 1 when the step was skipped, else 0.
        """
        return torch.zeros((), device=self.device)

    def average_actor(self) -> None:
        """Move the average of the actor's parameters towards them, if `actor_average` is set."""
        if self.average is not None:  # at first the mean of all, which forgets the initial ones
            share = max(1.0 - self.config.actor_average, 1.0 / self.updates)
            self.average.lerp_(self.actor.flat.detach(), share)

    def actor_weights(self) -> State:
        """Return copies of the actor's parameters and the normaliser, by name.

        With `actor_average` the parameters are the averaged ones.
        """
        return to_arrays(self._actor_tensors(self.average))

    def load_actor_weights(self, weights: State) -> None:
        """Load `actor_weights` of an agent of equal spec and config, whole or not at all.

        Raises:
            SpecMismatch: a name, shape or type differs or a value is not finite.
        """
        copy_into(self._actor_tensors(), weights)
        if self.average is not None:
            self.average.copy_(self.actor.flat.detach())

    def state_dict(self) -> State:
        """Return all state needed for an exact continuation, by name."""
        return to_arrays(self._all_tensors())

    def load_state_dict(self, state: State) -> None:
        """Restore `state_dict` of an agent of equal spec and config, whole or not at all.

        Raises:
            SpecMismatch: a name, shape or type differs or a value is not finite.
        """
        tensors = self._all_tensors()
        copy_into(tensors, state)
        self.updates = int(tensors["updates"])
        self._acting.set_state(tensors["generator.acting"])
        self._learning.set_state(tensors["generator.learning"])

    def _fresh_actor(self, generator: torch.Generator, std: float) -> Tensor:
        """Create the actor's parameters: the mode near zero, the std before tanh near `std`."""
        network = self.networks.actor
        flat = network.init(generator, _ACTOR_HEAD)
        bias = network.views(flat)[f"{len(network.sizes) - 2}.bias"][0]
        bias[len(bias) // 2 :] = math.log(std)
        return flat

    def _rows(self, batch: Batch) -> int:
        """Return the transitions per update; raises `SpecMismatch` if the batch size differs."""
        rows = self.config.utd * self.config.batch_size
        if len(batch.reward) != rows:
            raise SpecMismatch(f"batch: expected {rows} transitions, got {len(batch.reward)}")
        return rows

    def _tensors(self, batch: Batch) -> Tensors:
        """Move the batch to the device; encode next observations once for all critic updates."""
        state, next_state = (
            self.normalise(to_device(rows, self.device)) for rows in (batch.state, batch.next_state)
        )
        images, next_images = (
            self._encoder_inputs(batch.images),
            self._encoder_inputs(batch.next_images),
        )
        with torch.no_grad():
            seen_next = self.networks.encode(self.encoder.flat, next_state, next_images)
        action, reward, discount, prior = (
            to_device(np.asarray(rows, np.float32), self.device)
            for rows in (batch.action, batch.reward, batch.discount, batch.prior)
        )
        return Tensors(state, action, reward, discount, seen_next, prior, images)

    def _encoder_inputs(self, images: Mapping[str, Image | Features]) -> dict[str, Tensor]:
        """Return the encoder's inputs: images on the device, or features computed from them."""
        return self._inputs({name: to_device(image, self.device) for name, image in images.items()})

    def _inputs(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the encoder's inputs for images on the device."""
        if self.trunk is None and not self.config.cached_features:
            return dict(tensors)
        return {name: self._features(name, each) for name, each in tensors.items()}

    @torch.no_grad()
    def _features(self, camera: str, images: Tensor) -> Tensor:
        """Return image features from the trunk or the fixed encoder; features pass unchanged."""
        if images.dtype != torch.uint8:
            return images.float()
        if self.trunk is None:
            features = self.networks.encoder.camera_features(self.encoder.flat, camera, images)
        else:
            frames = torch.split(images, 3, dim=-1)
            features = torch.cat([self.trunk(frame.contiguous()) for frame in frames], dim=-1)
        return features.half().float() if self.config.cached_features else features.float()

    def _randomness(self, rows: int, action_size: int) -> tuple[Tensor, Tensor]:
        """Draw standard normal noise (rows, A) and the subsets of target critics (utd, M)."""
        noise = torch.randn(rows, action_size, generator=self._learning)
        scores = torch.rand(self.config.utd, self.config.critics, generator=self._learning)
        subsets = scores.topk(self.config.subset, sorted=False).indices
        return noise.to(self.device), subsets.to(self.device)

    def _actor_tensors(self, average: Tensor | None = None) -> dict[str, Tensor]:
        encoder = self.networks.encoder
        flat = self.actor.flat if average is None else average
        return {
            **named_views("actor", self.networks.actor, flat),
            **(named_views("encoder", encoder, self.encoder.flat) if encoder.cameras else {}),
            "normaliser.mean": self.mean,
            "normaliser.std": self.std,
        }

    def _all_tensors(self) -> dict[str, Tensor]:
        actor, critic, encoder = self.networks.actor, self.networks.critic, self.networks.encoder
        return {
            **self._actor_tensors(),
            **named_views("critic", critic, self.critic.flat),
            **named_views("target", critic, self.target),
            **({} if self.average is None else named_views("average", actor, self.average)),
            "temperature.log": self.temperature.flat.detach(),
            **adam_tensors("", "actor", actor, self.actor),
            **adam_tensors("", "critic", critic, self.critic),
            **(adam_tensors("", "encoder", encoder, self.encoder) if encoder.cameras else {}),
            "adam.temperature.moment": self.temperature.moment,
            "adam.temperature.square": self.temperature.square,
            "adam.temperature.steps": self.temperature.steps,
            "updates": torch.tensor(self.updates),
            "skipped": self.skipped,
            "generator.acting": self._acting.get_state(),
            "generator.learning": self._learning.get_state(),
        }


def _check_cached(config: SACConfig, has_cameras: bool, trunk: Trunk | None) -> None:
    if not has_cameras:
        raise BadInput("agent.cached_features: the task has no cameras (--observe pixels)")
    if trunk is None and config.encoder != "small":
        raise BadInput("agent.cached_features: needs the ResNet-10 (serl encoder import FILE)")
    if trunk is None and config.frames > 1:
        raise BadInput("agent.cached_features: the small encoder sees agent.frames 1 at a time")


agent = SAC
