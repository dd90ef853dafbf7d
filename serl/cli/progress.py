"""`serl reward progress`: train a time-to-go model on demonstrations."""

from __future__ import annotations

import argparse
import json
import shlex
from pathlib import Path
from typing import Any

from serl.cli.arguments import add_model_out, add_task, check_model_out, quoted
from serl.report.display import Display
from serl.runs.config import parse_overrides, resolve
from serl.system.settings_file import checked, leaves
from serl.types import Observation


def train_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `serl reward progress`."""
    add_task(parser)
    parser.add_argument(
        "recordings",
        type=Path,
        nargs="+",
        metavar="RECORDING",
        help="folders of demonstrations, or RUN/episodes/ACTOR; their successes are used",
    )
    add_model_out(parser)


def train(options: argparse.Namespace) -> int:
    """Train a model of the remaining time, and print its error on held-out demonstrations.

    Raises:
        BadInput: too few demonstrations, or demonstrations of another task or observation.
    """
    from serl.agents.config import TimeToGoConfig
    from serl.agents.progress import train_time_to_go
    from serl.runs.demonstrations import check_recordings, read_demonstrations, specs_of

    overrides = parse_overrides(options.overrides)
    names = [name for name in ("task_config", "observe") if name in overrides]
    seen: dict[str, Any] = {name: overrides.pop(name) for name in names}
    config = checked(TimeToGoConfig, overrides)
    run = resolve({"task": options.task, **seen})
    check_model_out(options.out)
    spec, wider = specs_of(run)
    check_recordings(options.recordings, spec, wider)
    successes: list[list[Observation]] = []
    with Display().working("reading the demonstrations"):
        for folder in options.recordings:
            for episode in read_demonstrations(folder, run):
                if episode.end is not None and episode.success:
                    seen_before = [step.observation for step in episode.steps]
                    successes.append([*seen_before, episode.end.observation])
    with Display().counting("epochs", config.epochs) as on_epoch:
        model = train_time_to_go(successes, spec, config, on_epoch)
    model.save(options.out)
    card = model.card
    seen_by = ", ".join([*card.state, *card.images])
    print(f"{options.out}: predicts the time until success from {seen_by}")
    print(
        f"mean error on {card.held_out} of {card.demonstrations} demonstrations, which it was not "
        f"trained on: {card.error_s:.2f} s (the best constant: {card.constant_s:.2f} s)"
    )
    if card.error_s >= card.constant_s:
        print("no better than a constant: it learned nothing; record more demonstrations")
    folders = [*map(str, options.recordings)]
    same = {**dict(leaves(seen)), "demos": folders if len(folders) > 1 else folders[0]}
    words = "".join(f" --{name} {_word(value)}" for name, value in same.items())
    print(
        f"next: serl train {options.task}{words} "
        f"--reward.kind progress --reward.progress.model {quoted(options.out)}"
    )
    return 0


def _word(value: Any) -> str:
    """Return a setting's value as a word of a command."""
    return shlex.quote(value if isinstance(value, str) else json.dumps(value))
