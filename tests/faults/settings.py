"""Faults of settings typed by a user."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from serl.cli import main as cli
from serl.errors import BadInput
from serl.runs.config import TrainConfig, resolve
from serl.runs.task_setup import make_task

from .refusal import refusal
from .registry import REGISTRY, Level

TASK = "pick_cube"
LINES: tuple[tuple[tuple[str, ...], str], ...] = (
    (("--agent.utdd", "8"), "agent.utdd"),
    (("--agent.utd", "many"), "agent.utd"),
    (("--agent.bc_noise", "{a: 1}"), "agent.bc_noise"),
    (("--seed", "-1"), "seed"),
    (("--task-config.rate_hz", ".nan"), "rate_hz"),
    (("--task-config.motion.box_low_m", "[1.0, 0.0, 0.0]"), "box_low_m"),
    (("--task-config.motion.limits.speed_m_s", "3.0"), "speed_m_s"),
    (("--config", "absent.yaml"), "absent.yaml"),
    (("--config", "damaged.yaml"), "damaged.yaml"),
    (("--config", "folder"), "folder"),
)


@REGISTRY.fault(
    59,
    "Bad, missing, NaN or inverted configuration",
    injected="each setting is set to NaN, infinity, and a value of each other type; damaged files",
    required="refused with one line that names the setting, before anything is created",
    level=Level.UNIT,
)
def bad_configuration(folder: Path) -> None:
    tried = 0
    for path, value in _leaves(_settings()):
        for bad in _bad(value):
            if path == ("demos",) and bad in ("many", []):
                continue  # a path of a recording, which is checked later, or None
            if path == ("teleop", "device") and isinstance(bad, dict):
                continue  # plug-in settings, which are checked when a device is opened
            if path == ("agent", "bc_noise") and isinstance(bad, dict):
                continue  # entries of the observation, which are checked with the task's (`LINES`)
            tried += 1
            message = refusal(partial(_make, _nested(path, bad)), BadInput)
            assert message, f"accepted {'.'.join(path)} = {bad!r}"
            assert path[-1] in message, message
    assert tried > 500
    (folder / "damaged.yaml").write_bytes(b"seed: [1\n\xff")
    (folder / "folder").mkdir()
    before = set(folder.rglob("*"))
    for words, name in LINES:
        given = [str(folder / word) if word == name else word for word in words]
        code = cli.main(["train", TASK, "--runs", str(folder / "runs"), *given])
        assert code == cli.BAD_INPUT, words
    assert set(folder.rglob("*")) == before


def _settings() -> dict[str, Any]:
    """Return all settings of a training run with defaults, including those of its task."""
    config = TrainConfig(task=TASK)
    task = make_task(config).config.model_dump(mode="json")
    return {**config.model_dump(mode="json"), "task_config": task}


def _leaves(tree: Mapping[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[Any, Any]]:
    for name, value in tree.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, (*above, name))
        else:
            yield (*above, name), value


def _bad(value: object) -> list[object]:
    """Return values that are invalid in place of `value` for any setting."""
    for_any: list[object] = [math.nan, {"a": 1}]
    match value:
        case bool():
            return [*for_any, [], "perhaps", 7]
        case int() | float():
            return [*for_any, [], "many", math.inf, -math.inf]
        case list():
            return [*for_any, [[{}]], "many", [math.nan]]
    return [*for_any, [[{}]], math.inf]


def _nested(path: tuple[str, ...], value: object) -> dict[str, Any]:
    for name in reversed(path):
        value = {name: value}
    assert isinstance(value, dict)
    return value


def _make(layer: Mapping[str, Any]) -> None:
    make_task(resolve({"task": TASK}, layer))
