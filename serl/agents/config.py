"""Hyper-parameters of the agents. Free of torch, so that the core can validate them."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from serl.agent import AgentConfig, Channels
from serl.geometry import Vector
from serl.system.settings_file import HomePath
from serl.types import FrozenModel

Width = Annotated[int, Field(ge=1, le=4096)]
Activation = Literal["relu", "tanh"]
ScaledUnit = Literal["m", "rad", "m/s", "rad/s", "N", "Nm"]
Std = Annotated[float, Field(ge=1e-4, le=7.0)]  # within `serl.agents.networks.LOG_STD`

_LONGEST_DELAY_S = 60.0


class SACConfig(AgentConfig):
    """Hyper-parameters of `SAC`, and of `BC`, which uses its actor.

    Attributes:
        hidden: widths of the hidden layers of actor and critics.
        actor_hidden: widths of the actor's hidden layers; None for `hidden`.
        activation: activation of the hidden layers of actor and critics.
        actor_activation: activation of the actor's hidden layers; None for `activation`.
        critics: size of the critic ensemble; use 10 only on a GPU.
        subset: number of target critics, drawn anew per step, of which the minimum is taken (REDQ).
        tau: share of the critic that its target takes over per critic step.
        learning_rate: learning rate of Adam, for actor, critic and temperature.
        actor_learning_rate: learning rate of the actor after `bc_warm_start`; None for
            `learning_rate`. A slower actor leaves the critics time to learn the values of its
            actions.
        temperature: initial weight of the entropy.
        temperature_learning_rate: learning rate of the temperature; None for `learning_rate`; 0
            keeps the temperature, whatever the entropy.
        target_entropy: target entropy in nats; None for `entropy_per_dimension`.
        entropy_per_dimension: target entropy for each entry of the action, in nats.
        initial_std: standard deviation before tanh that the policy begins with, which cloning by
            "mse" does not change; "target" for that of the target entropy; None for 1, and with
            "bc" 0.05.
        noise_correlation: correlation of the noise of successive steps in training; see
            `serl.agents.exploration`.
        return_bounds: least and greatest possible return, without the shaping of the reward
            "progress" and without `feedback`; the critic's target is clipped to it.
        backup_entropy: count the entropy of the next action in the critic's target.
        layer_norm: LayerNorm in actor and critics.
        actor_layer_norm: LayerNorm in the actor; None for `layer_norm`.
        actor_average: decay, per update, of an exponential average of the actor's parameters, which
            acts instead of them; 0 for none. A clone of few demonstrations varies less from one
            update to the next with it.
        normalise: scale observations by the statistics given to `fit_normaliser`.
        smallest_std: least standard deviation by which entries are scaled, by their unit; 0.001 for
            units that are not named. Scaled values are clipped to +-10, so that entries which
            demonstrations hardly move soon saturate.
        bc_weight: weight of cloning actions of the prior data (demonstrations, humans and, with
            `learner.imitate_successes`, the policy's own successes) in the actor's loss; changes
            linearly to `bc_final_weight` over the first `bc_steps` updates after `bc_warm_start`,
            and is `bc_final_weight` from then on: always if `bc_steps` is 0.
        bc_final_weight: see `bc_weight`; 0 ends the pull towards the demonstrator.
        bc_steps: see `bc_weight`.
        bc_loss: "mse", the squared error of the mode, or "nll", the negative log-likelihood, which
            learns the standard deviation as well; see `serl.agents.losses.Cloning`.
        bc_filter: "q" to clone, after `bc_warm_start`, only actions that the critics value above
            the policy's mode (Nair et al. 2018); "none" to clone all.
        bc_noise: noise on observations while they are cloned, by entry of the observation, in
            standard deviations of the data; see `serl.agents.losses.Cloning`.
        grasp_penalty: cost of switching a gripper, for the grasp critic.
        grasp_margin: margin by which the grasp critic values the choices of the prior data
            above others; see `serl.agents.hybrid.margin_loss`.
        grasp_margin_weight: weight of that loss; 0 for none.
        grasp_epsilon: share of a gripper's choices in training that are random.
        bc_warm_start: number of first updates that train the actor by cloning alone.
        metrics_every: updates between two reports of metrics.
        matmul: "float32"; "bfloat16" for convolutions of encoders and for frozen trunks, with
            matrix products in TF32 on CUDA and left to oneDNN on a CPU, which computes them in
            float32 on a processor with AVX-512 and without AMX (error 4e-5 against float64, 0.17
            if rounded); "auto" for "bfloat16" on CUDA and where the processor has units for it.
    """

    hidden: tuple[Width, ...] = Field((256, 256), min_length=1, max_length=8)
    actor_hidden: tuple[Width, ...] | None = Field(None, min_length=1, max_length=8)
    activation: Activation = "relu"
    actor_activation: Activation | None = None
    critics: int = Field(2, ge=1, le=100)
    subset: int = Field(2, ge=1, le=100)
    tau: float = Field(0.005, gt=0.0, le=1.0)
    learning_rate: float = Field(3e-4, gt=0.0, le=1.0)
    actor_learning_rate: float | None = Field(None, gt=0.0, le=1.0)
    temperature: float = Field(0.01, gt=0.0, le=1000.0)
    temperature_learning_rate: float | None = Field(None, ge=0.0, le=1.0)
    target_entropy: float | None = None
    entropy_per_dimension: float = Field(-0.5, ge=-100.0, le=100.0)
    initial_std: Std | Literal["target"] | None = None
    noise_correlation: float = Field(0.0, ge=0.0, lt=1.0)
    return_bounds: tuple[float, float] | None = None
    backup_entropy: bool = False
    layer_norm: bool = True
    actor_layer_norm: bool | None = None
    actor_average: float = Field(0.0, ge=0.0, lt=1.0)
    normalise: bool = True
    smallest_std: dict[ScaledUnit, Annotated[float, Field(gt=0.0, le=1e6)]] = Field({})
    bc_weight: float = Field(0.0, ge=0.0, le=1e6)
    bc_final_weight: float = Field(0.0, ge=0.0, le=1e6)
    bc_steps: int = Field(0, ge=0)
    bc_loss: Literal["mse", "nll"] = "mse"
    bc_filter: Literal["none", "q"] = "none"
    bc_noise: dict[str, Annotated[float, Field(gt=0.0, le=100.0)]] = Field({})
    grasp_penalty: float = Field(0.02, ge=0, le=1000)
    grasp_margin: float = Field(0.05, ge=0, le=1000)
    grasp_margin_weight: float = Field(0.0, ge=0, le=1e6)
    grasp_epsilon: float = Field(0.0, ge=0, le=1)
    bc_warm_start: int = Field(0, ge=0)
    metrics_every: int = Field(50, ge=1)
    matmul: Literal["auto", "float32", "bfloat16"] = "auto"

    @model_validator(mode="after")
    def _check_bounds(self) -> Self:
        if self.return_bounds is not None and not self.return_bounds[0] < self.return_bounds[1]:
            low, high = self.return_bounds
            raise ValueError(f"return_bounds: {low:g}, {high:g}: expected the smaller one first")
        return self


class SupervisedConfig(FrozenModel):
    """Hyper-parameters of supervised training on images.

    Attributes:
        epochs: number of passes over the samples.
        batch_size: samples per step.
        learning_rate: learning rate of Adam; falls to zero along half a cosine.
        crop_px: largest random shift of images, in pixels.
        brightness: largest random change of an image's brightness, as a share.
        seed: seed of all randomness.
        threads: threads of torch; None leaves them unchanged.
    """

    epochs: int = Field(60, ge=1, le=100_000)
    batch_size: int = Field(64, ge=2, le=65_536)
    learning_rate: float = Field(1e-3, gt=0, le=1)
    crop_px: int = Field(2, ge=0, le=7)
    brightness: float = Field(0.15, ge=0, lt=1)
    seed: int = Field(0, ge=0, lt=2**32)
    threads: int | None = Field(None, ge=1, le=1024)


class ClassifierConfig(SupervisedConfig):
    """Hyper-parameters of classifier training.

    Attributes:
        dropout: share of an image's features that is dropped per step.
        smoothing: label smoothing: share of each label that is spread over the other classes.
        calibration: share of the episodes on which temperature and threshold are chosen.
        held_out: share of the episodes for measurement only, unused in training and calibration.
        false_positives: largest share of each label's calibration samples that the threshold
            accepts as a higher class.
        encoder: image encoder: a small one that is trained, or the frozen ResNet-10 imported by
            `serl encoder import` into the cache directory, below a small trained one.
        copies: number of differently augmented copies of each image for the ResNet-10, each
            processed once, which takes a CPU a minute.
        tool_low_m: lowest corner of the tool's positions at a success, base frame; positions
            outside are no success, whatever the image, so that the threshold need not exclude them.
        tool_high_m: highest corner of the tool's positions at a success; None for anywhere.
    """

    dropout: float = Field(0.1, ge=0, lt=1)
    smoothing: float = Field(0.02, ge=0, lt=1)
    calibration: float = Field(0.2, gt=0, lt=0.5)
    held_out: float = Field(0.2, gt=0, lt=0.5)
    false_positives: float = Field(0.001, ge=0, lt=1)
    encoder: Literal["small", "resnet10"] = "small"
    copies: int = Field(4, ge=1, le=64)
    tool_low_m: Vector | None = None
    tool_high_m: Vector | None = None


class TimeToGoConfig(SupervisedConfig):
    """Hyper-parameters of time-to-go models, see `serl.agents.progress`.

    Attributes:
        held_out: share of the demonstrations for measurement only.
        encoder: "none" to see the state alone; "resnet10" to see the images as well, by the frozen
            ResNet-10 imported by `serl encoder import`.
        copies: number of differently augmented copies of each image.
        latent: features of each camera.
        hidden: widths of the layer of the state and of the hidden layer.
    """

    epochs: int = Field(200, ge=1, le=100_000)
    held_out: float = Field(0.2, gt=0, lt=0.5)
    encoder: Literal["none", "resnet10"] = "none"
    copies: int = Field(4, ge=1, le=64)
    latent: Width = 64
    hidden: Width = 128


class LearnedRewardConfig(FrozenModel):
    """Hyper-parameters of the networks of a reward that is learned beside the agent.

    Attributes:
        learning_rate: learning rate of Adam.
        channels: channels of the convolutions.
        latent: features of each camera, or of the state.
        hidden: width of the hidden layer.
    """

    learning_rate: float = Field(3e-4, gt=0, le=1)
    channels: tuple[Channels, ...] = Field((16, 32, 32), min_length=1, max_length=8)
    latent: Width = 64
    hidden: Width = 128


class FeedbackConfig(LearnedRewardConfig):
    """Settings of a model of a person's evaluations, see `serl.agents.feedback`.

    Attributes:
        weight: addition to the reward of a step whose predicted evaluation is 1; 0 for no model:
            then rewards and penalties of an operator change the reward of the step in which they
            arrive.
        delay_s: least and largest time from a step to a person's evaluation of it.
    """

    weight: float = Field(0.0, ge=0, le=1000)
    delay_s: tuple[float, float] = (0.2, 4.0)

    @model_validator(mode="after")
    def _check(self) -> Self:
        shortest_s, longest_s = self.delay_s
        if not 0 <= shortest_s < longest_s <= _LONGEST_DELAY_S:
            limit = f"0 <= first < second <= {_LONGEST_DELAY_S:g}"
            raise ValueError(f"delay_s: {shortest_s:g}, {longest_s:g}: expected {limit}")
        return self


class VICEConfig(LearnedRewardConfig):
    """Hyper-parameters of a classifier trained beside the agent, see `serl.agents.vice`.

    Attributes:
        binary: the reward is all or nothing, instead of the probability of success.
        positives: collections or runs whose labelled successes are added: the steps of the highest
            label of each, unless that is 0.
        last_frames: number of the last observations of each demonstration that are successes.
        batch_size: successes, and observations of the policy, per step; one step per update.
        crop_px: largest random shift of images of successes, in pixels; None for that of the other
            images (`learner.crop_px`), as a different shift would distinguish the two.
        smoothing: label smoothing: the target is 1 less this for successes, this for the others.
        mixup: train on mixtures of features and labels (Zhang et al. 2018).
        slope_weight: weight of the penalty that keeps the slope between successes and others at 1.
    """

    binary: bool = True
    positives: tuple[HomePath, ...] = ()
    last_frames: int = Field(3, ge=1, le=10_000)
    batch_size: int = Field(64, ge=2, le=65_536)
    crop_px: int | None = Field(None, ge=0, le=7)
    smoothing: float = Field(0.1, ge=0, lt=0.5)
    mixup: bool = True
    slope_weight: float = Field(1.0, ge=0, le=1e6)


class PretrainingConfig(SupervisedConfig):
    """Hyper-parameters of encoder pretraining.

    Attributes:
        samples: images of each camera.
        epochs: number of passes over the images.
        noise: largest standard deviation of the disturbance of the driving expert; each of its
            trajectories has its own, from none to this.
        channels: channels of the encoder's convolutions.
        latent: features of each camera.
    """

    samples: int = Field(4000, ge=100, le=1_000_000)
    epochs: int = Field(20, ge=1, le=100_000)
    noise: float = Field(0.5, ge=0, le=10)
    channels: tuple[Channels, ...] = Field((16, 32, 32), min_length=1, max_length=8)
    latent: int = Field(64, ge=1, le=4096)
