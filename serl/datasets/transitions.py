"""Transitions of SERL and HIL-SERL: pickled lists of dicts, read by `serl.system.pickles` alone."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from serl.errors import CorruptData
from serl.system.json_fields import short
from serl.system.pickles import read_pickle

Values = np.ndarray[Any, Any]

_NEEDED = {"observations", "actions", "next_observations", "rewards", "dones"}


class Transition(NamedTuple):
    """One of them.

    Attributes:
        observation: arrays by path, such as "state" or "images/wrist".
        action: what was executed.
        reward: of the step.
        done: the episode ended.
        mask: 0 says that nothing is to be expected after it.
        successor: the next observation.
    """

    observation: Mapping[str, Values]
    action: Values
    reward: float
    done: bool
    mask: float
    successor: Mapping[str, Values]


class Run(NamedTuple):
    """Transitions that follow each other.

    Attributes:
        transitions: at least one.
        terminated: the task ended with the last one; else the episode was cut after it.
        reason: why it ended.
    """

    transitions: Sequence[Transition]
    terminated: bool
    reason: str

    @property
    def success(self) -> bool:
        """The task was solved: rewards of both are 0 until it is."""
        return self.transitions[-1].done and self.transitions[-1].reward > 0


def read_transitions(path: Path) -> list[Transition]:
    """All transitions of a file; one that cannot be meant is refused.

    Raises:
        BadInput: the file cannot be read.
        CorruptData: it is no pickle of arrays alone, or holds no list of transitions.
    """
    tree = read_pickle(path)
    if not isinstance(tree, list | tuple) or not tree:
        raise CorruptData(f"{path}: expected a list of transitions, found {type(tree).__name__}")
    return [_transition(item, f"{path}: transition {index}") for index, item in enumerate(tree)]


def runs(transitions: Sequence[Transition]) -> Iterator[Run]:
    """Cut at each end, and where an observation does not follow from the one before.

    SERL marks a time limit as it marks a failure, `done` with mask 0. Its tasks know no failure
    that ends them: without a reward the end is taken for the time limit, so that nobody learns
    that the world ends there.
    """
    begin = 0
    for index, item in enumerate(transitions):
        last = index + 1 == len(transitions)
        if item.done:
            won = item.reward > 0
            reason = "success" if won else "time limit"
            yield Run(transitions[begin : index + 1], won and item.mask == 0, reason)
        elif last or not _same(item.successor, transitions[index + 1].observation):
            reason = "cut: the file ends" if last else "cut: transitions are missing after it"
            yield Run(transitions[begin : index + 1], False, reason)
        else:
            continue
        begin = index + 1


def _transition(item: Any, where: str) -> Transition:
    if not isinstance(item, dict) or not item.keys() >= _NEEDED:
        found = sorted(map(str, item)) if isinstance(item, dict) else type(item).__name__
        raise CorruptData(f"{where}: expected {sorted(_NEEDED)}, found {found}")
    done = bool(_number(item["dones"], f"{where}: dones"))
    mask = _number(item.get("masks", 0.0 if done else 1.0), f"{where}: masks")
    if mask not in (0.0, 1.0) or (mask == 0.0 and not done):
        raise CorruptData(f"{where}: mask {mask:g} with done {done}, expected 1, or 0 at an end")
    action = np.asarray(item["actions"])
    if action.dtype.kind not in "fiu" or not np.isfinite(action).all():
        raise CorruptData(f"{where}: actions: expected numbers, found {short(action.tolist())}")
    return Transition(
        _arrays(item["observations"], f"{where}: observations"),
        action.reshape(-1),
        _number(item["rewards"], f"{where}: rewards"),
        done,
        mask,
        _arrays(item["next_observations"], f"{where}: next_observations"),
    )


def _number(value: Any, where: str) -> float:
    array = np.asarray(value)
    if array.size != 1 or array.dtype.kind not in "fiub" or not math.isfinite(array.item()):
        raise CorruptData(f"{where}: expected one finite number, found {short(array.tolist())}")
    return float(array.item())


def _arrays(tree: Any, where: str, prefix: str = "") -> dict[str, Values]:
    """The leaves of an observation by their path; a bare array is the state."""
    if isinstance(tree, dict):
        return {
            path: leaf
            for name, value in tree.items()
            for path, leaf in _arrays(value, where, f"{prefix}/{name}" if prefix else name).items()
        }
    array = np.asarray(tree)
    if array.dtype.kind not in "fiub":
        raise CorruptData(f"{where}: {prefix or 'state'}: expected an array of numbers")
    return {prefix or "state": array}


def _same(one: Mapping[str, Values], other: Mapping[str, Values]) -> bool:
    return one.keys() == other.keys() and all(
        np.array_equal(one[name], other[name]) for name in one
    )
