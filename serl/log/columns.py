"""Columns of recorded episodes: the numbers of all steps as arrays, without their images.

Reading them costs a small fraction of `serl.log.episode_reader.read_episode`, which builds and
checks an object for each step.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from contextlib import closing, suppress
from functools import lru_cache
from itertools import chain
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from mcap.opcode import Opcode

from serl.errors import CorruptData
from serl.log.episode_reader import EpisodeFile, Message, open_episode
from serl.log.mcap_reader import CHUNK_HEAD_BYTES, HEAD, INDEX_BYTES
from serl.log.wire import END, STEP
from serl.specs import Spec
from serl.types import Array, Key


class _Scalars(msgspec.Struct):
    """The fields of a step in its JSON text after the arrays; other fields are skipped."""

    reward: float
    reward_provenance: str
    terminated: bool
    truncated: bool
    source: str
    policy_version: int
    monotonic_s: float
    wall_s: float


class _StepText(_Scalars):
    """The fields of a step in its JSON text; other fields are skipped."""

    state: dict[str, list[float]]
    requested: list[float]
    action: list[float]


class _EndText(msgspec.Struct):
    """The fields of the end of an episode in its JSON text; other fields are skipped."""

    state: dict[str, list[float]]
    success: bool
    reason: str


_step_decoder = msgspec.json.Decoder(_StepText)
_end_decoder = msgspec.json.Decoder(_EndText)
_scalars_decoder = msgspec.json.Decoder(list[_Scalars])
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
_AFTER_ARRAYS = b'"key":{'  # in the JSON text of a step; names of arrays have their quotes escaped
_AT_ONCE_BYTES = 256 << 20
_REFUSALS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class EpisodeColumns(NamedTuple):
    """The numbers of one episode.

    Attributes:
        key: identity; `index` is the number of steps, N.
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


class _Rows(NamedTuple):
    """The records of a file: arrays of the steps side by side, their scalars, and the end."""

    numbers: Array  # (N, state + requested + action, or more)
    scalars: list[Any]  # of `_Scalars`
    end: _EndText | None


def read_columns(path: Path) -> EpisodeColumns:
    """Read the numbers of one sealed episode file, after a check of every byte of it.

    Raises:
        CorruptData: the file is damaged, or not sealed; the line names the file and the byte.
    """
    with closing(open_episode(path)) as file:
        first, rows = file.next_message(), None
        if first is not None and file.messages is not None:
            with suppress(CorruptData, ValueError, IndexError, *_REFUSALS):  # named below
                rows = _rows_at_once(file, first)
        try:
            if rows is None:
                rows = _rows(file, chain(filter(None, [first]), file.whole()))
            return _columns(file, rows)
        except (KeyError, ValueError, OverflowError) as error:
            raise CorruptData(f"{path}: a record does not fit the spec: {error}") from error


def _columns(file: EpisodeFile, rows: _Rows) -> EpisodeColumns:
    """Return the columns of a file; raise `KeyError` or `ValueError` if its end does not fit."""
    assert file.spec is not None
    spec, end, count = file.spec, rows.end, len(rows.scalars)
    arrays, start = list[Array](), 0
    shapes = {name: array.shape for name, array in spec.observation.state.items()}
    for shape in (*shapes.values(), spec.action.shape, spec.action.shape):
        size = prod(shape)
        arrays.append(rows.numbers[:, start : start + size].reshape(count, *shape))
        start += size
    return EpisodeColumns(
        key=file.key(count),
        spec=spec,
        state=dict(zip(shapes, arrays, strict=False)),
        requested=arrays[-2],
        action=arrays[-1],
        scalars={
            name: np.array([getattr(each, name) for each in rows.scalars], dtype)
            for name, dtype in _SCALARS.items()
        },
        final=None
        if end is None
        else {n: _array([end.state[n]], prod(s)).reshape(s) for n, s in shapes.items()},
        success=end is not None and end.success,
        reason=end.reason if end else "",
    )


def _rows(file: EpisodeFile, messages: Iterable[Message]) -> _Rows:
    """Return the records of a file, each decoded from its JSON text.

    Raises:
        CorruptData: the file is damaged; the line names the byte.
        KeyError: an array is missing.
        ValueError: an array has another size than in the spec.
    """
    steps, end = list[_StepText](), None
    for message in messages:
        try:
            if message.kind == STEP:
                steps.append(_step_decoder.decode(message.text))
            else:
                end = _end_decoder.decode(message.text)
        except _REFUSALS as error:
            raise CorruptData(f"{file.path}: byte {message.offset}: {error}") from error
    if file.spec is None:
        raise CorruptData(f"{file.path}: holds no records")
    state, (actions,) = file.spec.observation.state, file.spec.action.shape
    parts = [_array([step.state[n] for step in steps], prod(a.shape)) for n, a in state.items()]
    parts += [_array([step.requested for step in steps], actions)]
    parts += [_array([step.action for step in steps], actions)]
    return _Rows(np.concatenate(parts, axis=1), list(steps), end)


def _array(rows: list[list[float]], size: int) -> Array:
    """Return lists of `size` numbers as the rows of a matrix.  # (N, size)."""
    return np.array(rows, np.float32).reshape(len(rows), size)


def _rows_at_once(file: EpisodeFile, first: Message) -> _Rows | None:
    """Return the records of a sealed file that is as serl writes it; None if it is not.

    The file has one checksum for all its data. The arrays are copied from where they lie in the
    messages, and the JSON texts are decoded together, without their arrays.
    """
    assert file.spec is not None
    assert file.messages is not None
    data = file.checked_data(_AT_ONCE_BYTES)
    if data is None:
        return None
    channels = 1 + len(file.spec.observation.images) + len(file.messages.standard)
    places = _places(data, first.offset, channels)
    heads = {kind: _head(count) for kind, count in file.messages.numbers.items()}
    if not places or len(places) != file.count():
        return None
    end, last = None, np.frombuffer(data[places[-1] :][: heads[END].itemsize], heads[END])
    if last["channel"] == END:
        start = places.pop() + heads[END].itemsize
        end = _end_decoder.decode(data[start : start + int(last["text"][0]) - 1])
    head = heads[STEP]
    steps = np.frombuffer(b"".join([data[at : at + head.itemsize] for at in places]), head)
    fits = (steps["opcode"] == Opcode.MESSAGE) & (steps["channel"] == STEP)
    fits &= steps["sequence"] == np.arange(len(places))
    fits &= steps["length"] + HEAD.size == head.itemsize + steps["text"]
    texts = []
    for at, size in zip(places, steps["text"].tolist(), strict=True):
        start = at + head.itemsize
        after = data.find(_AFTER_ARRAYS, start, start + size)
        texts.append(data[after : start + size - 1] if after > 0 else b"")
    if not fits.all() or not all(texts):
        return None
    scalars = _scalars_decoder.decode(b"[{%b]" % b",{".join(texts))
    return _Rows(steps["numbers"], scalars, end) if len(scalars) == len(places) else None


def _places(data: bytes, place: int, channels: int) -> list[int]:
    """Return where the records' messages start in their chunks; none if the file does not end so.

    Args:
        data: bytes of a file up to its summary.
        place: byte at which the first chunk starts.
        channels: number of messages of a chunk, each of which has an index after the chunk.
    """
    places, length = [], struct.Struct("<Q").unpack_from
    while place < len(data) - CHUNK_HEAD_BYTES:
        places.append(place + CHUNK_HEAD_BYTES)
        place += HEAD.size + length(data, place + 1)[0] + channels * INDEX_BYTES
    while places and data[places[0]] != Opcode.MESSAGE:  # the first chunk declares the channels
        places[0] += HEAD.size + length(data, places[0] + 1)[0]
    return places if place == len(data) else []


@lru_cache
def _head(numbers: int) -> np.dtype[Any]:
    """Return the layout of a record's message up to its text, with this count of numbers."""
    return np.dtype(
        [
            *(("opcode", "u1"), ("length", "<u8"), ("channel", "<u2"), ("sequence", "<u4")),
            *(("times", "<u8", 2), ("cdr", "u1", 4), ("stamp", "<u4", 2)),
            *(("numbers", "<f4", (numbers,)), ("text", "<u4")),
        ]
    )
