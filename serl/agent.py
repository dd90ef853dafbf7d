"""Contract of a learning algorithm; imports no torch, so that the core can refer to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Protocol

import numpy as np
from pydantic import BeforeValidator, Field

from serl.plugins import PluginName
from serl.specs import Spec
from serl.system.settings_file import HomePath
from serl.types import Action, Array, Batch, FrozenModel, Observation

State = Mapping[str, np.ndarray[Any, Any]]
"""Arrays by dotted name, in a form that safetensors can store."""


class Agent(Protocol):
    """An off-policy algorithm: acts, learns from batches, and can be saved and restored."""

    def act(self, observation: Observation, explore: bool) -> Action:
        """Return an action in [-1, 1], shape (A,): sampled when exploring, else the mode."""
        ...

    def fit_normaliser(self, states: Array) -> None:
        """Scale all later observations by the statistics of these state vectors, (N, D)."""
        ...

    def update(self, batch: Batch) -> dict[str, float]:
        """Run `utd` critic updates on equal parts of the batch, then one actor update.

        A non-finite update changes no weights. Returns metrics when they are due (reading one
        costs a device sync); "skipped" counts the consecutive non-finite updates up to this one.
        """
        ...

    def actor_weights(self) -> State:
        """Return copies of the arrays needed for acting, including the normaliser."""
        ...

    def load_actor_weights(self, weights: State) -> None:
        """Load the `actor_weights` of an equal agent, either completely or not at all.

        Raises `SpecMismatch` when a name, shape or type differs or a value is not finite.
        """
        ...

    def state_dict(self) -> State:
        """Return all state needed to continue exactly: networks, optimisers, random generators."""
        ...

    def load_state_dict(self, state: State) -> None:
        """Continue from `state_dict`; raises `SpecMismatch` and changes nothing on a mismatch."""
        ...


class Algorithm(Protocol):
    """Factory that a module exports as `agent`; in a class, `create` is a class method.

    Attributes:
        Config: model of the settings `agent.*`; if absent, `SACConfig` is used.
    """

    Config: ClassVar[type[AgentConfig]]

    def create(self, spec: Spec, config: AgentConfig, seed: int) -> Agent:
        """Return a new agent; equal arguments give equal parameters.

        Args:
            spec: spec of the observations and actions.
            config: an instance of `Config`.
            seed: seed of all random numbers in the agent.

        Raises:
            BadInput: the configuration contradicts itself or does not fit the spec.
        """
        ...


Network = Literal["actor", "encoder"]


Channels = Annotated[int, Field(ge=1, le=1024)]


PackagedEncoder = Literal["tabletop", "insertion", "side"]
"""Encoders shipped with the package: for a front and a wrist camera ("tabletop"), for two cameras
at the hand ("insertion"), and for a side and a wrist camera ("side"). They are privileged: trained
on the simulator's truth, on images of the scenes of serl's own tasks."""


EncoderWeights = Annotated[
    Literal["auto"] | PackagedEncoder | HomePath | None,
    BeforeValidator(lambda value: None if value == "none" else value),
]


class AgentConfig(FrozenModel):
    """Settings common to all algorithms; other parts of serl rely on them.

    An algorithm with further settings subclasses this model as its `Config`.

    Attributes:
        algorithm: "sac"; "hybrid", SAC with an additional discrete critic for the grippers that the
            action commands (one arm or two), equal to "sac" if the action commands none; "bc",
            behaviour cloning of demonstrations and human steps only; the name of an algorithm
            from an installed package; or the path of a .py file.
        discount: discount factor gamma; used by the replay.
        batch_size: transitions per critic step.
        utd: critic steps per `update`; the actor and the temperature take one step.
        encoder: image encoder: a small trained one, or SERL's frozen ResNet-10 followed by a small
            trained one; see `serl encoder import`.
        trunk: file of the ResNet-10's weights; None for the path used by `serl encoder import`.
        trunk_sha256: hash of that file when the run was created; None to skip the check.
        cached_features: replay stores the frozen network's features of each frame once, in float16,
            instead of the images; batches then get no random shifts. With the ResNet-10 these are
            16 KiB per camera, and the layers above it are trained as usual; the effect on learning
            is not known there, as SERL's weights were not available. The small encoder keeps its
            pretrained weights for each camera, and an update costs about as much as one from state.
            None enables the cache in simulation, for a task that has settings for it and shows
            scenes that a packaged encoder was pretrained on, and where the run named by `init_from`
            used it.
        encoder_weights: initial weights of the small encoder: a file written by
            `serl encoder pretrain`, the name of a packaged encoder, or "none" for random weights;
            "auto" takes the first packaged encoder that fits the cameras, their sizes and this
            network, in simulation only.
        encoder_sha256: hash of that file when the run was created; None to skip the check.
        frozen: networks that keep their loaded weights; no update changes them.
        encoder_channels: channels of the small encoder's convolutions; all but the last have
            stride 2.
        latent: features per camera; None for 64 with the small encoder and for 256 with the
            ResNet-10, as in SERL.
        state_latent: features of the state vector; None for the value of `latent` if set, else 64.
        frames: number of the episode's latest images in an observation; more than one shows speeds.
        compile: compile the losses (10 to 30 s at the first update).
        device: torch device; "auto" for CUDA where available.
        threads: torch threads of the learner; None for the number of processors less one for each
            actor. An actor has one.
    """

    algorithm: PluginName = "sac"
    discount: float = Field(0.97, gt=0.0, le=1.0)
    batch_size: int = Field(256, ge=1, le=65_536)
    utd: int = Field(4, ge=1, le=1000)
    encoder: Literal["small", "resnet10"] = "small"
    trunk: HomePath | None = None
    trunk_sha256: str | None = None
    cached_features: bool | None = None
    encoder_weights: EncoderWeights = "auto"
    encoder_sha256: str | None = None
    frozen: tuple[Network, ...] = ()
    encoder_channels: tuple[Channels, ...] = Field((16, 32, 32), min_length=1, max_length=8)
    latent: int | None = Field(None, ge=1, le=4096)
    state_latent: int | None = Field(None, ge=1, le=4096)
    frames: int = Field(1, ge=1, le=8)
    compile: bool = False
    device: str = "auto"
    threads: int | None = Field(None, ge=1, le=1024)

    def latents(self, trunk: bool) -> tuple[int, int]:
        """Return the number of features per camera, with or without a trunk, and of the state.

        Earlier runs set one number, `latent`, for both; their networks keep their sizes.
        """
        return self.latent or (256 if trunk else 64), self.state_latent or self.latent or 64
