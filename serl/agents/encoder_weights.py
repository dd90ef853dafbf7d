"""Initial weights of a small image encoder: from a file, or packaged with serl.

All are made by `serl encoder pretrain`; the card in a file documents its training. They are
privileged: trained on simulated images with the simulator's ground truth.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, get_args

from safetensors import safe_open

from serl import plugins
from serl.agent import AgentConfig, PackagedEncoder
from serl.camera import image_specs
from serl.errors import BadInput
from serl.specs import ArraySpec
from serl.system.files import digest_of
from serl.task import Task, TaskConfig

Cameras = Mapping[str, ArraySpec]
_TRUNK_CACHED = (
    "agent.cached_features: batches are not shifted at random, even with learner.crop_px; the "
    "cost behind a ResNet-10 is not measured"
)
PACKAGED: tuple[PackagedEncoder, ...] = get_args(PackagedEncoder)


def weights_file(chosen: Path | str) -> Path:
    """Return the path of the weights that `agent.encoder_weights` names."""
    if isinstance(chosen, Path):
        return chosen
    return Path(__file__).with_name(f"{chosen}.safetensors")


def starting_file(config: AgentConfig, cameras: Cameras) -> Path | None:
    """Return the file of a fresh agent's encoder weights; None for random weights.

    Raises:
        BadInput: the task has no cameras, or the file has changed since the run was made.
    """
    chosen = config.encoder_weights
    if chosen == "auto":
        chosen = fitting_weights(config, [cameras])
    if chosen is None:
        return None
    if not cameras:
        raise BadInput("agent.encoder_weights: the task has no cameras (--observe pixels)")
    path = weights_file(chosen)
    if config.encoder_sha256 is not None and digest_of(path) != config.encoder_sha256:
        raise BadInput(f"{path}: holds another encoder than when the run was made")
    return path


def fitting_weights(config: AgentConfig, cameras: Sequence[Cameras]) -> PackagedEncoder | None:
    """Return the first packaged weights that fit agents with all these cameras."""
    fits = (name for name in PACKAGED if not any(misfit(name, config, each) for each in cameras))
    return next(fits, None)


def is_pretrained_on(task: Task, config: AgentConfig) -> bool:
    """Return whether the packaged weights were trained on the images of this task.

    The task must come with serl, with default settings of its scene and cameras.
    """
    name = fitting_weights(config, [image_specs(task.config.policy_views)])
    ours = task.name in plugins.names("task")
    if name is None or not ours or type(task) is not plugins.load("task", task.name):
        return False
    card, default = _card(name), type(task)().config
    randomizations = ("none", card["task_config"].get("randomize", "none"))
    visible = {"renderer", *(type(default).model_fields.keys() - TaskConfig.model_fields.keys())}
    unchanged = all(getattr(task.config, each) == getattr(default, each) for each in visible)
    same_views = card["views"].get(task.name) == views_of(task)
    return unchanged and same_views and task.config.randomize in randomizations


def views_of(task: Task) -> dict[str, Any]:
    """Return a policy's camera views in the format of encoder cards."""
    views = task.config.policy_views
    return {name: view.model_dump(mode="json") for name, view in views.items()}


def misfit(packaged: PackagedEncoder, config: AgentConfig, cameras: Cameras) -> str:
    """Explain why packaged weights do not fit an agent with these cameras; empty if they do."""
    if not cameras or config.encoder != "small":
        return "there is no small encoder"
    card = _card(packaged)
    sizes = {name: list(image.shape[:2]) for name, image in cameras.items()}
    if not card["sizes"].items() >= sizes.items():
        return (
            f"{packaged} is for cameras {_list_sizes(card['sizes'])}, here are {_list_sizes(sizes)}"
        )
    made = card["config"]
    for name, mine, theirs in (
        ("agent.frames", config.frames, 1),
        ("agent.encoder_channels", list(config.encoder_channels), made["channels"]),
        ("agent.latent", config.latents(trunk=False)[0], made["latent"]),
    ):
        if mine != theirs:
            return f"{packaged} has {name} {theirs}, here it is {mine}"
    return ""


def with_encoder(
    config: AgentConfig, cameras: Sequence[Cameras], inherited: bool = False, real: bool = False
) -> AgentConfig:
    """Return a configuration with the encoder's weights and their sha256 resolved.

    Args:
        config: configuration of the agent.
        cameras: cameras of each agent it is for; packaged weights must fit all.
        inherited: True if the encoder comes from another run.
        real: True if the images are of a real arm, for which "auto" takes no packaged weights.

    Raises:
        BadInput: the file does not exist, or features of an untrained encoder are to be cached.
    """
    chosen = config.encoder_weights
    if chosen == "auto":
        chosen = None if inherited or real else fitting_weights(config, cameras)
    if config.cached_features and not all(cameras):
        raise BadInput("agent.cached_features: the task has no cameras (--observe pixels)")
    if config.cached_features and config.encoder == "small" and not (inherited or chosen):
        reason = _why(config, cameras, real)
        raise BadInput(
            f"agent.cached_features: the encoder would stay untrained ({reason}); "
            "expected agent.encoder_weights FILE, which serl encoder pretrain makes, or "
            "agent.cached_features false"
        )
    if isinstance(chosen, Path):
        chosen = chosen.resolve()
    sha256 = None if chosen is None else digest_of(weights_file(chosen))
    kept = bool(config.cached_features)
    found = {"encoder_weights": chosen, "encoder_sha256": sha256, "cached_features": kept}
    return config.model_copy(update=found)


def describe_encoder(config: AgentConfig, cameras: Cameras, real: bool = False) -> str:
    """Describe the initial encoder weights of a resolved configuration in one line, if any.

    With a frozen ResNet-10 and cached features, it names the drawback of caching. With `real`, the
    cameras are of a real arm.
    """
    if not cameras:
        return ""
    if config.encoder != "small":
        return _TRUNK_CACHED if config.cached_features else ""
    named, own = config.encoder_weights, isinstance(config.encoder_weights, Path)
    if named is not None and config.cached_features:
        whose = named if own else f"{named}, {_PRIVILEGED}"
        return f"the encoder is {whose}; no update changes it (else: --agent.cached_features false)"
    if own:
        return f"the encoder starts from {named}"
    if named is not None:
        return (
            f"the encoder starts from {named}, {_PRIVILEGED}; without: --agent.encoder_weights none"
        )
    return f"the encoder starts untrained: {_why(config, [cameras], real)}"


def _why(config: AgentConfig, cameras: Sequence[Cameras], real: bool) -> str:
    """Explain why no weights are used: the misfit of packaged ones with the same cameras."""
    if real:
        return _NOT_REAL
    for each in cameras:
        reasons = {name: misfit(name, config, each) for name in PACKAGED}
        alike = [name for name in PACKAGED if _card(name)["sizes"].keys() >= each.keys()]
        if reason := reasons[(alike or PACKAGED)[0]]:
            return reason
    no_common = config.encoder_weights == "auto"  # each task has fitting weights, but not all
    return "none that comes with serl is for all of these tasks" if no_common else _AS_ASKED


_AS_ASKED = "as in agent.encoder_weights"
_PRIVILEGED = "which comes with serl and is privileged (trained on the simulator's truth)"
_NOT_REAL = (
    "those that come with serl are privileged (trained on the truth of its simulation), and a real "
    "arm takes one only where agent.encoder_weights names it"
)


@cache
def _card(packaged: str) -> Mapping[str, Any]:
    with safe_open(weights_file(packaged), framework="numpy") as file:
        card: dict[str, Any] = json.loads(file.metadata()["card"])
        return card


def _list_sizes(sizes: Mapping[str, Sequence[int]]) -> str:
    return ", ".join(f"{name} {size[0]} x {size[1]}" for name, size in sizes.items())
