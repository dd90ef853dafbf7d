"""The contract of a learning algorithm. Free of torch, so that the core can name it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Protocol

import numpy as np
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from serl.plugins import PluginName
from serl.specs import Spec
from serl.types import Action, Array, Batch, Observation

State = Mapping[str, np.ndarray[Any, Any]]
"""Arrays by dotted name: what safetensors can hold."""


class Agent(Protocol):
    """An off-policy algorithm: acts, learns from batches, and can be saved and restored."""

    def act(self, observation: Observation, explore: bool) -> Action:
        """Action in [-1, 1], shape (A,): sampled when exploring, else the mode."""
        ...

    def fit_normaliser(self, states: Array) -> None:
        """Scale observations by the statistics of these state vectors, from now on.  # (N, D)."""
        ...

    def update(self, batch: Batch) -> dict[str, float]:
        """One outer step: `utd` critic updates on equal parts of the batch, one actor update.

        What is not finite changes nothing. Returns metrics when they are due (reading one costs a
        device sync); "skipped" are the updates in a row, this one last, that were not finite.
        """
        ...

    def actor_weights(self) -> State:
        """Copies of the arrays that acting needs, the normaliser included."""
        ...

    def load_actor_weights(self, weights: State) -> None:
        """Take over `actor_weights` of an equal agent, whole or not at all.

        Raises `SpecMismatch` when a name, shape or type differs or a value is not finite.
        """
        ...

    def state_dict(self) -> State:
        """Everything that exact continuation needs: all networks, optimisers, generators."""
        ...

    def load_state_dict(self, state: State) -> None:
        """Continue from `state_dict`; raises `SpecMismatch` and changes nothing on a mismatch."""
        ...


class Algorithm(Protocol):
    """What a module names as its `agent`; a class has `create` as a class method.

    Attributes:
        Config: its settings, `agent.*`; without it they are those of `SACConfig`.
    """

    Config: ClassVar[type[AgentConfig]]

    def create(self, spec: Spec, config: AgentConfig, seed: int) -> Agent:
        """A fresh agent; equal arguments give equal parameters.

        Args:
            spec: what it sees and does.
            config: an instance of `Config`.
            seed: of everything random in it.

        Raises:
            BadInput: the configuration contradicts itself or does not fit the spec.
        """
        ...


Network = Literal["actor", "encoder"]


Channels = Annotated[int, Field(ge=1, le=1024)]


Packaged = Literal["tabletop", "insertion", "side"]
"""The encoders that come with the package: of a camera in front and one at the wrist, of two at the
hand, and of one from the side and one at the wrist."""


EncoderWeights = Annotated[
    Literal["auto"] | Packaged | Path | None,
    BeforeValidator(lambda given: None if given == "none" else given),
]


class AgentConfig(BaseModel):
    """Settings of every algorithm: those that other parts of serl read.

    An algorithm with settings of its own subclasses this, and names the subclass `Config`.

    Attributes:
        algorithm: "sac"; "hybrid", with a discrete critic beside it of the grippers that the action
            moves, of one arm or two, and the same as "sac" where it moves none; "bc", to clone
            demonstrations and human steps and learn nothing else; the name of one that an installed
            package brings; or the path of a .py file.
        discount: gamma; used by the replay.
        batch_size: transitions per critic step.
        utd: critic steps per `update`; the actor and the temperature take one.
        encoder: of images: a small one that is trained, or SERL's frozen ResNet-10 below a small
            trained one; see `serl encoder import`.
        trunk: file of the ResNet-10's weights; None for where `serl encoder import` puts them.
        trunk_sha256: what it held when the run was made; None for anything.
        cached_features: replay keeps what is frozen makes of each frame, once and in float16, and
            not its images; batches are then not shifted at random. Of a ResNet-10 that is 16 KiB a
            camera, and what is above it is trained as ever; what it costs there is not known, as it
            takes SERL's weights, which were not at hand. The small encoder stays as it was
            pretrained, for each camera, and an update costs about what one from state does. None
            keeps them in a simulation of a task that has settings for that and shows what an
            encoder that comes with serl was pretrained on, and where the run that `init_from` names
            did.
        encoder_weights: what the small one starts from: a file that `serl encoder pretrain` wrote,
            the name of one that comes with serl, or "none" for random weights; "auto" takes the
            first that comes with serl and is for these cameras, their sizes and this network.
        encoder_sha256: what that file held when the run was made; None for anything.
        frozen: networks that no update changes, since they were loaded.
        encoder_channels: of the small encoder's convolutions, of stride 2 but the last.
        latent: features of each camera; None for 64 of the small encoder, and for 256 behind the
            ResNet-10, as in SERL.
        state_latent: features of the state beside them; None for as many as `latent` says, else 64.
        frames: the last so many images of an episode are seen, so that speeds are.
        compile: compile the losses (10 to 30 s at the first update).
        device: "auto" for CUDA where there is one.
        threads: of torch, for this process; None leaves them alone.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    algorithm: PluginName = "sac"
    discount: float = Field(0.97, gt=0.0, le=1.0)
    batch_size: int = Field(256, ge=1, le=65_536)
    utd: int = Field(4, ge=1, le=1000)
    encoder: Literal["small", "resnet10"] = "small"
    trunk: Path | None = None
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
        """Features of each camera, behind a frozen trunk or of the small encoder, and of the state.

        Until one number was both, runs named it `latent`; their networks are as they were.
        """
        return self.latent or (256 if trunk else 64), self.state_latent or self.latent or 64
