"""Hyper-parameters of the agents. Free of torch, so that the core can check them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from serl.plugins import PluginName
from serl.vectors import Vector

Network = Literal["actor", "encoder"]
Width = Annotated[int, Field(ge=1, le=4096)]
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


class SACConfig(AgentConfig):
    """Hyper-parameters of `SAC`, and of `BC`, which has its actor.

    Attributes:
        hidden: widths of the hidden layers of actor and critics.
        critics: size of the critic ensemble; 10 is worth it on a GPU.
        subset: how many target critics, drawn anew per step, the minimum is over (REDQ).
        tau: share of the critic that its target takes over per critic step.
        learning_rate: of Adam, for actor, critic and temperature.
        temperature: initial weight of the entropy.
        target_entropy: in nats; None for minus half the size of the action.
        return_bounds: least and greatest possible return; the critic's target is clipped to it.
        backup_entropy: count the entropy of the next action in the critic's target.
        layer_norm: LayerNorm in actor and critics.
        normalise: scale observations by the statistics given to `fit_normaliser`.
        bc_weight: weight of the squared error to actions of demonstrations and humans in the
            actor's loss; changes linearly to `bc_final_weight` over `bc_steps` updates.
        bc_final_weight: see `bc_weight`.
        bc_steps: see `bc_weight`.
        grasp_penalty: what it costs the grasp critic to switch a gripper.
        bc_warm_start: so many first updates train the actor by cloning alone.
        metrics_every: updates between two reports of metrics.
        matmul: products in float32, or in bfloat16 (TF32 on CUDA); "auto" for the latter where
            the processor has units for it.
    """

    hidden: tuple[Width, ...] = Field((256, 256), min_length=1, max_length=8)
    critics: int = Field(2, ge=1, le=100)
    subset: int = Field(2, ge=1, le=100)
    tau: float = Field(0.005, gt=0.0, le=1.0)
    learning_rate: float = Field(3e-4, gt=0.0, le=1.0)
    temperature: float = Field(0.01, gt=0.0, le=1000.0)
    target_entropy: float | None = None
    return_bounds: tuple[float, float] | None = None
    backup_entropy: bool = False
    layer_norm: bool = True
    normalise: bool = True
    bc_weight: float = Field(0.0, ge=0.0, le=1e6)
    bc_final_weight: float = Field(0.0, ge=0.0, le=1e6)
    bc_steps: int = Field(0, ge=0)
    grasp_penalty: float = Field(0.02, ge=0, le=1000)
    bc_warm_start: int = Field(0, ge=0)
    metrics_every: int = Field(50, ge=1)
    matmul: Literal["auto", "float32", "bfloat16"] = "auto"


class ClassifierConfig(BaseModel):
    """How a classifier is trained.

    Attributes:
        epochs: how often it sees each sample.
        batch_size: samples per step.
        learning_rate: of Adam; falls to zero along half a cosine.
        crop_px: images are shifted at random by up to so many pixels.
        brightness: ... and made brighter or darker by up to this share.
        dropout: share of an image's features that a step does not see.
        smoothing: of the labels: so much of each is spread over the other classes.
        calibration: share of the episodes that temperature and threshold are chosen on.
        held_out: share of the episodes that it is measured on: neither trained nor chosen on.
        false_positives: the share of each label's samples that the threshold may let pass for more
            than they are, in calibration.
        encoder: of images: a small one that is trained, or the frozen ResNet-10 that
            `serl encoder import` has put into the folder of caches, below a small trained one.
        copies: so many differently shifted and lit copies of each image the ResNet-10 sees; each
            once, so that a CPU has it done in a minute.
        tool_low_m: lowest corner of where the tool is at a success, base frame; what is elsewhere
            is no success, whatever it looks like, so that the threshold need not tell it ...
        tool_high_m: ... and the highest; None for anywhere.
        seed: of everything random.
        threads: of torch; None leaves them alone.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    epochs: int = Field(60, ge=1, le=100_000)
    batch_size: int = Field(64, ge=2, le=65_536)
    learning_rate: float = Field(1e-3, gt=0, le=1)
    crop_px: int = Field(2, ge=0, le=7)
    brightness: float = Field(0.15, ge=0, lt=1)
    dropout: float = Field(0.1, ge=0, lt=1)
    smoothing: float = Field(0.02, ge=0, lt=1)
    calibration: float = Field(0.2, gt=0, lt=0.5)
    held_out: float = Field(0.2, gt=0, lt=0.5)
    false_positives: float = Field(0.001, ge=0, lt=1)
    encoder: Literal["small", "resnet10"] = "small"
    copies: int = Field(4, ge=1, le=64)
    tool_low_m: Vector | None = None
    tool_high_m: Vector | None = None
    seed: int = Field(0, ge=0, lt=2**32)
    threads: int | None = Field(None, ge=1, le=1024)


class VICEConfig(BaseModel):
    """How a classifier is trained beside the agent, see `serl.agents.vice`.

    Attributes:
        binary: the reward is all or nothing, and not how probable a success is.
        positives: collections or runs whose labelled successes count as well: the highest label of
            each, and not 0.
        last_frames: so many of the last observations of each demonstration are successes.
        batch_size: successes, and observations of the policy, per step; a step an update.
        learning_rate: of Adam.
        crop_px: images of successes are shifted at random by up to so many pixels; None for as many
            as the others are (`learner.crop_px`), or the shift alone would tell the two apart.
        smoothing: of the labels: successes are taken for 1 less this, the others for this.
        mixup: learn on mixtures of features and labels (Zhang et al. 2018).
        slope_weight: how much it counts that the slope between successes and others is not 1.
        channels: of the convolutions.
        latent: features of each camera, or of the state.
        hidden: width of the hidden layer.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    binary: bool = True
    positives: tuple[Path, ...] = ()
    last_frames: int = Field(3, ge=1, le=10_000)
    batch_size: int = Field(64, ge=2, le=65_536)
    learning_rate: float = Field(3e-4, gt=0, le=1)
    crop_px: int | None = Field(None, ge=0, le=7)
    smoothing: float = Field(0.1, ge=0, lt=0.5)
    mixup: bool = True
    slope_weight: float = Field(1.0, ge=0, le=1e6)
    channels: tuple[Channels, ...] = Field((16, 32, 32), min_length=1, max_length=8)
    latent: int = Field(64, ge=1, le=4096)
    hidden: int = Field(128, ge=1, le=4096)


class PretrainingConfig(BaseModel):
    """How an encoder is pretrained.

    Attributes:
        samples: pictures of each camera.
        epochs: how often each is seen.
        batch_size: samples per step.
        learning_rate: of Adam; falls to zero along half a cosine.
        crop_px: images are shifted at random by up to so many pixels.
        brightness: ... and made brighter or darker by up to this share.
        noise: largest standard deviation of what the expert that drives is disturbed by; each of
            its ways has one of its own, from none to this.
        channels: of the encoder's convolutions.
        latent: features of each camera.
        seed: of everything random.
        threads: of torch; None leaves them alone.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    samples: int = Field(4000, ge=100, le=1_000_000)
    epochs: int = Field(20, ge=1, le=100_000)
    batch_size: int = Field(64, ge=2, le=65_536)
    learning_rate: float = Field(1e-3, gt=0, le=1)
    crop_px: int = Field(2, ge=0, le=7)
    brightness: float = Field(0.15, ge=0, lt=1)
    noise: float = Field(0.5, ge=0, le=10)
    channels: tuple[Channels, ...] = Field((16, 32, 32), min_length=1, max_length=8)
    latent: int = Field(64, ge=1, le=4096)
    seed: int = Field(0, ge=0, lt=2**32)
    threads: int | None = Field(None, ge=1, le=1024)
