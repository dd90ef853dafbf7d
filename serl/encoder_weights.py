"""The weights that a small image encoder starts from: a file, or those that the package brings.

`serl encoder pretrain` made them all; the card in a file says how.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from safetensors import safe_open

from serl.agents.config import PACKAGED, SACConfig
from serl.errors import BadInput
from serl.files import digest_of
from serl.specs import ArraySpec

Cameras = Mapping[str, ArraySpec]


def weights_file(chosen: Path | str) -> Path:
    """Where the weights are that `agent.encoder_weights` names."""
    if isinstance(chosen, Path):
        return chosen
    return Path(__file__).parent / "agents" / f"{chosen}.safetensors"


def starting_file(config: SACConfig, cameras: Cameras) -> Path | None:
    """What the encoder of a fresh agent starts from; None for random weights.

    Raises:
        BadInput: the task has no cameras, or the file is not the one that the run was made with.
    """
    chosen = config.encoder_weights
    if chosen == "auto":
        return None if misfit(config, cameras) else weights_file(PACKAGED)
    if chosen is None:
        return None
    if not cameras:
        raise BadInput("agent.encoder_weights: the task has no cameras (--observe pixels)")
    path = weights_file(chosen)
    if config.encoder_sha256 is not None and digest_of(path) != config.encoder_sha256:
        raise BadInput(f"{path}: holds another encoder than when the run was made")
    return path


def misfit(config: SACConfig, cameras: Cameras) -> str:
    """Why an agent of these cameras cannot start from the packaged weights; empty where it can."""
    if not cameras or config.encoder != "small":
        return "there is no small encoder"
    card = _card(PACKAGED)
    sizes = {name: list(image.shape[:2]) for name, image in cameras.items()}
    if not card["sizes"].items() >= sizes.items():
        return f"{PACKAGED} is for cameras {_listed(card['sizes'])}, here are {_listed(sizes)}"
    made = card["config"]
    for name, mine, theirs in (
        ("agent.frames", config.frames, 1),
        ("agent.encoder_channels", list(config.encoder_channels), made["channels"]),
        ("agent.latent", config.latents(trunk=False)[0], made["latent"]),
    ):
        if mine != theirs:
            return f"{PACKAGED} has {name} {theirs}, here it is {mine}"
    return ""


def with_encoder(
    config: SACConfig, cameras: Sequence[Cameras], inherited: bool = False
) -> SACConfig:
    """A configuration that names the weights, and what is in them; "auto" is settled.

    Args:
        config: of the agent.
        cameras: of each agent that it is for; the packaged weights must fit all.
        inherited: the encoder comes from another run.

    Raises:
        BadInput: there is no such file.
    """
    chosen = config.encoder_weights
    if chosen == "auto":
        chosen = None if inherited or any(misfit(config, each) for each in cameras) else PACKAGED
    if isinstance(chosen, Path):
        chosen = chosen.resolve()
    sha256 = None if chosen is None else digest_of(weights_file(chosen))
    return config.model_copy(update={"encoder_weights": chosen, "encoder_sha256": sha256})


def told(config: SACConfig, cameras: Cameras) -> str:
    """A line on what an encoder starts from, if there is one, of a settled configuration.

    Behind a frozen ResNet-10 it says what is given up where its features are kept.
    """
    if cameras and config.cached_features:
        return (
            "agent.cached_features: batches are not shifted at random, whatever learner.crop_px "
            "says; what that costs behind a ResNet-10 nobody has measured yet"
        )
    if not cameras or config.encoder != "small":
        return ""
    if isinstance(config.encoder_weights, Path):
        return f"the encoder starts from {config.encoder_weights}"
    if config.encoder_weights is not None:
        return (
            f"the encoder starts pretrained, from {config.encoder_weights} that comes with serl "
            "(without: --agent.encoder_weights none)"
        )
    reason = misfit(config, cameras) or "as agent.encoder_weights says"
    return f"the encoder starts untrained: {reason}"


@cache
def _card(packaged: str) -> Mapping[str, Any]:
    with safe_open(weights_file(packaged), framework="numpy") as file:
        card: dict[str, Any] = json.loads(file.metadata()["card"])
        return card


def _listed(sizes: Mapping[str, Sequence[int]]) -> str:
    return ", ".join(f"{name} {size[0]} x {size[1]}" for name, size in sizes.items())
