"""`serl encoder`: bring SERL's image trunk here, or pretrain an encoder of our own."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from serl import plugins
from serl.command_group import group
from serl.config import checked, parse_overrides, resolve
from serl.errors import BadInput
from serl.files import check_destination

DONE = 0


def add_commands(parser: argparse.ArgumentParser) -> None:
    """Give `serl encoder` its commands."""
    command = group(parser)
    source = command("import", _import, "convert SERL's resnet10_params.pkl; nothing in it is run")
    source.add_argument("file", type=Path, metavar="FILE")
    source.add_argument("--out", type=Path, metavar="FILE", help="else in the folder of caches")
    text = "teach the small encoder where things are, on pictures of a task in simulation"
    teach = command("pretrain", _pretrain, text, True)
    teach.add_argument("task", help="name of a task or path of a .py file")
    teach.add_argument("--out", type=Path, required=True, help="file of the encoder, .safetensors")


def _import(options: argparse.Namespace) -> int:
    from serl import trunk_weights

    out = options.out or trunk_weights.default_path()
    print(f"trunk: {out}\n{trunk_weights.import_trunk(options.file, out).summary()}")
    return DONE


def _pretrain(options: argparse.Namespace) -> int:
    from serl.agents.config import PretrainingConfig
    from serl.agents.pretraining import pretrain, save_encoder, sights
    from serl.assignment import make_task

    overrides = parse_overrides(options.overrides)
    of_task: dict[str, Any] = {"task": options.task, "observe": "pixels"}
    if "task_config" in overrides:
        of_task["task_config"] = overrides.pop("task_config")
    config = checked(PretrainingConfig, overrides)
    if options.out.suffix != ".safetensors":
        raise BadInput(f"--out {options.out}: must end in .safetensors")
    check_destination(options.out)
    task = make_task(resolve(of_task))
    with plugins.make_simulation(task) as robot:
        images, targets = sights(robot, task, config)
    made = pretrain(images, targets, config, _tell)
    views = {n: view.model_dump(mode="json") for n, view in task.config.policy_views.items()}
    said = {"task": task.name, "views": views, "config": config.model_dump(mode="json")}
    save_encoder(options.out, made, {**said, "error_m": made.error_m})
    size = options.out.stat().st_size
    print(f"{options.out}: {size:,} bytes, sees {', '.join(images)}")
    print(f"on pictures that it never saw it is off by {1000 * made.error_m:.1f} mm (median)")
    print(f"next: serl train {options.task} --observe pixels --agent.encoder_weights {options.out}")
    return DONE


def _tell(epoch: int, loss: float) -> None:
    if sys.stderr.isatty():
        print(f"\repoch {epoch}, loss {loss:.4f}", end="", file=sys.stderr)
