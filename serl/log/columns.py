"""Columns of recorded episodes: the numbers of all steps as arrays, without their images.

Reading them costs a fraction of `serl.log.episode_reader.read_episode`, which builds and checks an
object for each step.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from serl.errors import CorruptData
from serl.log.episode_reader import open_episode
from serl.log.wire import STEP
from serl.specs import Spec
from serl.types import Array, Key


class _StepText(msgspec.Struct):
    """The fields of a step in its JSON text; other fields are skipped."""

    state: dict[str, list[float]]
    requested: list[float]
    action: list[float]
    reward: float
    reward_provenance: str
    terminated: bool
    truncated: bool
    source: str
    policy_version: int
    monotonic_s: float
    wall_s: float


class _EndText(msgspec.Struct):
    """The fields of the end of an episode in its JSON text; other fields are skipped."""

    state: dict[str, list[float]]
    success: bool
    reason: str


_step_decoder = msgspec.json.Decoder(_StepText)
_end_decoder = msgspec.json.Decoder(_EndText)
_SCALARS: Mapping[str, Any] = {
    "reward": np.float64,
    "reward_provenance": np.str_,
    "terminated": np.bool_,
    "truncated": np.bool_,
    "source": np.str_,
    "policy_version": np.int64,
    "monotonic_s": np.float64,
    "wall_s": np.float64,
}


class EpisodeColumns(NamedTuple):
    """The numbers of one episode.

    Attributes:
        key: identity; `index` is the number of steps, N.
        spec: spec of the records.
        state: state arrays of the observations before the actions, by name.  # (N, ...)
        requested: actions that the policy chose.  # (N, A)
        action: actions that were executed.  # (N, A)
        scalars: the other fields of `serl.types.Step`, by name.  # (N,)
        final: state arrays of the final observation; None if a crash cut the episode.
        success: the task was solved.
        reason: reason of the end as recorded; "" if a crash cut the episode.
    """

    key: Key
    spec: Spec
    state: Mapping[str, Array]
    requested: Array
    action: Array
    scalars: Mapping[str, np.ndarray[Any, Any]]
    final: Mapping[str, Array] | None
    success: bool
    reason: str


def read_columns(path: Path) -> EpisodeColumns:
    """Read the numbers of one sealed episode file, after a check of every byte of it.

    Raises:
        CorruptData: the file is damaged, or not sealed; the line names the file and the byte.
    """
    with closing(open_episode(path)) as file:
        steps: list[_StepText] = []
        end: _EndText | None = None
        for message in file.whole():
            try:
                if message.kind == STEP:
                    steps.append(_step_decoder.decode(message.text))
                else:
                    end = _end_decoder.decode(message.text)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                raise CorruptData(f"{path}: byte {message.offset}: {error}") from error
        if file.spec is None:
            raise CorruptData(f"{path}: holds no records")
        spec, key = file.spec, file.key(len(steps))
    shapes = {name: array.shape for name, array in spec.observation.state.items()}
    try:
        return EpisodeColumns(
            key=key,
            spec=spec,
            state={
                name: _array([step.state[name] for step in steps], shape)
                for name, shape in shapes.items()
            },
            requested=_array([step.requested for step in steps], spec.action.shape),
            action=_array([step.action for step in steps], spec.action.shape),
            scalars={
                name: np.array([getattr(step, name) for step in steps], dtype)
                for name, dtype in _SCALARS.items()
            },
            final=None
            if end is None
            else {name: _array([end.state[name]], shape)[0] for name, shape in shapes.items()},
            success=end is not None and end.success,
            reason=end.reason if end else "",
        )
    except (KeyError, ValueError, OverflowError) as error:
        raise CorruptData(f"{path}: a record does not fit the spec: {error}") from error


def _array(rows: list[list[float]], shape: tuple[int, ...]) -> Array:
    """Return rows of numbers as one array of this shape each.  # (N, *shape)."""
    return np.array(rows, np.float32).reshape(len(rows), *shape)
