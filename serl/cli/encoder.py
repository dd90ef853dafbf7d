"""`serl encoder`: import SERL's pretrained image trunk, or pretrain the small encoder."""

from __future__ import annotations

import argparse
import json
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from serl import plugins
from serl.agent import AgentConfig
from serl.agents.config import PretrainingConfig
from serl.agents.encoder_weights import views_of
from serl.cli.arguments import add_model_out, add_task, check_model_out, quoted
from serl.report.display import Display
from serl.runs.config import parse_overrides, resolve
from serl.runs.folder import versions
from serl.specs import ArraySpec
from serl.system.settings_file import checked


def import_file_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `serl encoder import`."""
    parser.add_argument("file", type=Path, metavar="FILE", help="SERL's resnet10_params.pkl")
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="file to write, else one in the cache folder"
    )


def import_file(options: argparse.Namespace) -> int:
    """Convert the trunk of SERL, and print its summary."""
    from serl.agents import trunk_weights

    out = options.out or trunk_weights.default_path()
    with Display().working(f"converting {options.file}"):
        summary = trunk_weights.import_trunk(options.file, out).summary()
    print(f"trunk: {out}\n{summary}")
    return 0


def pretrain_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `serl encoder pretrain`."""
    add_task(parser, nargs="+")
    add_model_out(parser, "encoder")


def pretrain(options: argparse.Namespace) -> int:
    """Train the encoder on simulated images of tasks, and print its errors on held-out images."""
    from serl.agents.pretraining import collect_images, pretrain, save_encoder
    from serl.runs.task_setup import make_task

    overrides = parse_overrides(options.overrides)
    task_config = overrides.pop("task_config", {})
    config = checked(PretrainingConfig, overrides)
    check_model_out(options.out)
    shared = {"observe": "pixels", "task_config": task_config}
    tasks = {name: make_task(resolve({"task": name, **shared})) for name in options.task}
    targets, seen = {}, {}
    for name, task in tasks.items():
        from_state = make_task(resolve({"task": name, **shared, "observe": "state"}))
        targets[name] = from_state.observation_spec.state
        with (
            plugins.make_simulation(task) as robot,
            Display().counting(f"images of {name}", config.samples) as on_image,
        ):
            seen[name] = collect_images(robot, task, from_state, config, on_image)
    with Display().counting("epochs", config.epochs) as on_epoch:
        made = pretrain(seen, config, on_epoch)
    words = ["serl", "encoder", "pretrain", *options.task, *options.overrides]
    metadata = {
        "command": shlex.join([*words, "--out", options.out.name]),
        "privileged": True,
        "versions": versions(),
        "views": {name: views_of(task) for name, task in tasks.items()},
        "task_config": task_config,
        "config": config.model_dump(mode="json"),
    }
    save_encoder(options.out, made, metadata)
    size = options.out.stat().st_size
    print(f"{options.out}: {size:,} bytes, sees {', '.join(made.sizes)}")
    print("privileged: trained on the simulator's ground truth, which a real camera does not give")
    for name, errors in made.errors.items():
        off = ", ".join(
            f"{key} {error:.2g} {_unit(targets[name][key])}".rstrip()
            for key, error in errors.items()
        )
        print(f"{name}: median errors on held-out images: {off}")
    fitting = _training_options(options.out, config, task_config)
    print(f"next: serl train {options.task[0]} --observe pixels {fitting}")
    return 0


def _training_options(path: Path, config: PretrainingConfig, task_config: Mapping[str, Any]) -> str:
    """Return the options of a training with the encoder in a file."""
    words, usual = f"--agent.encoder_weights {quoted(path)}", AgentConfig()
    words += " --agent.cached_features true"
    if config.channels != usual.encoder_channels:
        words += f" --agent.encoder_channels {shlex.quote(json.dumps(config.channels))}"
    if config.latent != usual.latents(trunk=False)[0]:
        words += f" --agent.latent {config.latent}"
    if views := task_config.get("views"):
        words += f" --task_config.views {shlex.quote(json.dumps(views))}"
    return words


def _unit(spec: ArraySpec) -> str:
    """Return the unit at the start of a spec's text, such as `m` of "m, base frame", or ""."""
    word = re.split(r"[ ,]", spec.unit, maxsplit=1)[0]
    return word if word in ("m", "rad", "m/s", "rad/s", "N") else ""
