"""Hyper-parameters of the agents. Free of torch, so that the core can check them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from serl.agent import AgentConfig, Channels
from serl.geometry import Vector

Width = Annotated[int, Field(ge=1, le=4096)]


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
