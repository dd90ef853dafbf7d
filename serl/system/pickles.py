"""Pickled trees of numpy arrays, read without running any code from the file.

The unpickler of the standard library, with three restrictions: it knows only the instructions that
build plain values and arrays, each name in the file stands for a function of this module, and the
numbers of instructions, values and bytes are bounded. Nothing is imported or called by its name.
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from serl.errors import BadInput, CorruptData
from serl.system.files import read_bounded
from serl.system.json_fields import printable, short

MAX_PICKLE_BYTES = 4 << 30
MAX_STEPS = 10_000_000
"""Largest number of instructions of a file, and of values in its tree."""
MAX_DEPTH = 64
MAX_ARRAY_BYTES = 16 << 30
"""Largest size of all arrays of a tree; repeated arrays count each time, as they do in a copy."""

_NUMBERS = {"b1", *(f"{kind}{size}" for kind in "iu" for size in (1, 2, 4, 8)), "f2", "f4", "f8"}
_MAX_AXES = 32
_MAX_DTYPE_STATE = 9
"""Largest number of entries of the state that numpy writes for a data type."""
_MAX_INTEGER_BYTES = 8  # equal hashes of longer ones make the time of a dict quadratic
_INSTRUCTIONS = (
    b"\x80\x95.N\x88\x89KMJ\x8aG\x8cX\x8dCB\x8e\x96()\x85\x86\x87t]ae}suqr\x94hjc\x93Rb"
    # PROTO FRAME STOP, None and bool, numbers, text, bytes, tuple, list, dict, memo, names, calls
)

Array = np.ndarray[Any, Any]


def read_pickle(path: Path, max_bytes: int = MAX_PICKLE_BYTES) -> Any:
    """Return the tree in a pickled file; see `decode_pickle`.

    Raises:
        BadInput: the file cannot be read.
        CorruptData: the file is larger than `max_bytes`, or is not such a pickle.
    """
    try:
        data = read_bounded(path, max_bytes)
    except OSError as error:
        raise BadInput(f"{path}: cannot be read: {error.strerror}") from error
    return decode_pickle(data, str(path))


def decode_pickle(data: bytes, subject: str = "pickle") -> Any:
    """Return the tree in pickled bytes: dicts, lists and tuples of plain values and arrays.

    Plain values are text, bytes, numbers and None. Keys are text or integers. Arrays hold booleans,
    integers or floats and are read-only; jax arrays become numpy's, ordered and frozen dicts become
    dicts. An array, dict, list or tuple that the file mentions twice is one object.

    Args:
        data: one pickle of protocol 2 to 5, and nothing after it.
        subject: name of the data in errors.

    Raises:
        CorruptData: the data are anything else, or exceed the bounds.
    """
    try:
        if data[:1] != b"\x80" or data[1:2] not in (b"\2", b"\3", b"\4", b"\5"):
            raise ValueError("no pickle of protocol 2 to 5")
        return _Plain().of(_Unpickler(data).load())
    except Exception as error:  # `pickle` declares no list of what damaged data raise
        line = printable(str(error) or type(error).__name__, 200)
        raise CorruptData(f"{subject}: {line}") from error


class _Dtype:
    """A numpy data type, which receives its byte order after it was made."""

    def __init__(self, code: Any, _align: Any, _copy: Any) -> None:
        if type(code) is not str or code not in _NUMBERS:
            raise ValueError(f"arrays of {short(code)}, allowed {sorted(_NUMBERS)}")
        self.dtype = np.dtype(code)
        self.filled = False

    def fill(self, state: Any) -> None:
        if self.filled or type(state) is not tuple or len(state) > _MAX_DTYPE_STATE:
            raise ValueError("expected one state of a data type, not longer than numpy's")
        self.filled = True
        _, order, *fields = state
        if order not in ("<", ">", "|") or fields[:3] != [None, None, None]:
            raise ValueError("a data type with fields, expected a number")
        self.dtype = self.dtype.newbyteorder(order)


class _Array:
    """A numpy array, which receives its values after it was made.

    Args:
        kind: the class that the array had, `_Array`; a subclass of it is refused.
    """

    array: Array

    def __init__(self, kind: Any, _shape: Any, _code: Any) -> None:
        if kind is not _Array:
            raise ValueError("an array of another class, expected numpy.ndarray")
        self.filled = False

    def fill(self, state: Any) -> None:
        if self.filled:
            raise ValueError("a second state for an array")
        self.filled = True
        _, shape, kind, fortran, values = state
        self.array = _view(values, kind, shape, "F" if fortran else "C")


class _Copy(NamedTuple):
    """A copied container, and the numbers of values, bytes and levels in it."""

    container: Any
    values: int
    array_bytes: int
    levels: int


class _Plain:
    """A copy of a tree with the arrays themselves, within the bounds of this module.

    A repeated container is copied once, but its content counts each time.
    """

    def __init__(self) -> None:
        self._values = self._array_bytes = 0
        self._deepest = 0  # level reached in the container that is being copied
        self._copies: dict[int, _Copy] = {}  # by the identity of the original

    def of(self, value: Any, depth: int = 0) -> Any:
        if known := self._copies.get(id(value)):
            self._count(known.values, known.array_bytes, depth + known.levels)
            return known.container
        if isinstance(value, _Array):
            value = value.array
        self._count(1, value.nbytes if isinstance(value, np.ndarray) else 0, depth)
        if isinstance(value, dict | list | tuple):
            return self._container(value, depth)
        if not isinstance(value, str | bytes | int | float | None | np.ndarray | np.generic):
            raise ValueError(f"{type(value).__name__} instead of a value")
        return value

    def _container(self, value: Any, depth: int) -> Any:
        values, array_bytes, deepest = self._values - 1, self._array_bytes, self._deepest
        self._deepest = depth
        copy: Any
        if isinstance(value, dict):
            copy = {key: self.of(each, depth + 1) for key, each in value.items()}
        else:
            copy = type(value)(self.of(each, depth + 1) for each in value)
        self._copies[id(value)] = _Copy(
            copy, self._values - values, self._array_bytes - array_bytes, self._deepest - depth
        )
        self._deepest = max(self._deepest, deepest)
        return copy

    def _count(self, values: int, array_bytes: int, depth: int) -> None:
        self._values += values
        self._array_bytes += array_bytes
        self._deepest = max(self._deepest, depth)
        if self._values > MAX_STEPS or self._array_bytes > MAX_ARRAY_BYTES:
            raise ValueError(f"over {MAX_STEPS:,} values or {MAX_ARRAY_BYTES:,} bytes of arrays")
        if depth > MAX_DEPTH:
            raise ValueError(f"nested deeper than {MAX_DEPTH}, or in itself")


class _Unpickler(pickle._Unpickler):
    """The unpickler in Python, whose instructions can be restricted."""

    stack: list[Any]
    metastack: list[list[Any]]
    pop_mark: Callable[[], list[Any]]
    read: Callable[[int], bytes]
    dispatch: dict[int, Callable[[Any], None]]  # type: ignore[misc]

    def __init__(self, data: bytes) -> None:
        self._stream = BytesIO(data)
        super().__init__(self._stream)
        self.dispatch = _Dispatch(self.dispatch)
        self.dispatch |= {
            pickle.BUILD[0]: _Unpickler._fill,
            pickle.LONG1[0]: _Unpickler._integer,
            pickle.SETITEM[0]: _Unpickler._set_item,
            pickle.SETITEMS[0]: _Unpickler._set_items,
            pickle.BYTEARRAY8[0]: self.dispatch[pickle.BINBYTES8[0]],  # allocates what is there
        }
        self._encodable_bytes = self._size = len(data)

    def load(self) -> Any:
        tree = super().load()
        if self.stack or self.metastack or self._stream.tell() < self._size:
            raise ValueError("values left over, or bytes after the end")
        return tree

    def find_class(self, module: str, name: str) -> Callable[..., Any]:
        """Return the function of this module for a name of a file; nothing is imported."""
        path = f"{module}.{name}"
        if path == "_codecs.encode":
            return self._encode
        if path not in _NAMES:
            raise ValueError(f"the name {path[:80]!r}, which no array needs")
        return _NAMES[path]

    def _encode(self, text: str, encoding: str) -> bytes:
        """Return the bytes of a text: protocol 2 has no bytes, and writes them as text."""
        self._encodable_bytes -= len(text)
        if encoding != "latin1" or self._encodable_bytes < 0:
            raise ValueError("expected text in latin1, not longer than the file")
        return text.encode("latin-1")

    def _fill(self) -> None:
        state = self.stack.pop()
        if not isinstance(self.stack[-1], _Array | _Dtype):
            raise ValueError(f"a state for {type(self.stack[-1]).__name__}, expected an array")
        self.stack[-1].fill(state)

    def _integer(self) -> None:
        size = self.read(1)[0]
        if size > _MAX_INTEGER_BYTES:
            raise ValueError(f"an integer of {size} bytes, allowed {_MAX_INTEGER_BYTES}")
        self.stack.append(pickle.decode_long(self.read(size)))

    def _set_item(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self._add_pairs([key, value])

    def _set_items(self) -> None:
        self._add_pairs(self.pop_mark())

    def _add_pairs(self, values: list[Any]) -> None:
        """Add pairs to the dict on the stack; the hash of a nested key could exhaust the stack."""
        if type(self.stack[-1]) is not dict:
            raise ValueError(f"items of {type(self.stack[-1]).__name__}, expected a dict")
        for key, value in zip(values[::2], values[1::2], strict=True):
            if type(key) not in (str, int):
                raise ValueError(f"a key of the type {type(key).__name__}, allowed str and int")
            self.stack[-1][key] = value


class _Dispatch(dict[int, Callable[[Any], None]]):
    """The permitted instructions; each look-up counts as one instruction."""

    def __init__(self, instructions: dict[int, Callable[[Any], None]]) -> None:
        super().__init__({code: instructions[code] for code in _INSTRUCTIONS})
        self._steps = 0

    def __getitem__(self, code: int) -> Callable[[Any], None]:
        self._steps += 1
        if self._steps > MAX_STEPS:
            raise ValueError(f"more than {MAX_STEPS:,} instructions")
        if code not in self:
            raise ValueError(f"the instruction {bytes([code])!r}, which no array needs")
        return super().__getitem__(code)


def _view(values: Any, kind: Any, shape: Any, order: Any) -> Array:
    """Return bytes as a read-only array without memory of its own."""
    if type(values) is not bytes or type(kind) is not _Dtype or type(shape) is not tuple:
        raise ValueError("an array without bytes, a data type or a shape")
    if len(shape) > _MAX_AXES or not all(type(size) is int and size >= 0 for size in shape):
        raise ValueError(f"an array of the shape {short(shape)}, expected up to {_MAX_AXES} sizes")
    if math.prod(shape) * kind.dtype.itemsize != len(values):
        raise ValueError(f"an array of {kind.dtype} {short(shape)} in {len(values)} bytes")
    return np.frombuffer(values, kind.dtype).reshape(shape, order=order)


def _ordered_array(values: Any, kind: Any, shape: Any, order: Any, axes: Any = None) -> Array:
    """Return an array of protocol 5; the order "K" is "C" followed by a permutation of axes."""
    if order != "K":
        return _view(values, kind, shape, order)
    return _view(values, kind, shape, "C").transpose(axes)


def _jax_array(make: Any, arguments: Any, state: Any, _jax: Any) -> _Array:
    """Return the numpy array inside a JAX array, without JAX's additions such as a weak type."""
    if make is not _Array:
        raise ValueError("a jax array of another kind than numpy's")
    array = _Array(*arguments)
    array.fill(state)
    return array


def _names() -> Iterator[tuple[str, Callable[..., Any]]]:
    for core in ("core", "_core"):  # numpy 2 renamed `core` to `_core`
        yield f"numpy.{core}.multiarray._reconstruct", _Array
        yield f"numpy.{core}.multiarray.scalar", lambda kind, data: _view(data, kind, (1,), "C")[0]
        yield f"numpy.{core}.numeric._frombuffer", _ordered_array
    yield "numpy.ndarray", _Array
    yield "numpy.dtype", _Dtype
    yield "jax._src.array._reconstruct_array", _jax_array
    yield "jax._src.device_array.reconstruct_device_array", _jax_array  # until 2022
    yield "flax.core.frozen_dict.FrozenDict", lambda items: items
    yield "collections.OrderedDict", lambda: {}
    yield "__builtin__.bytes", lambda: b""  # in protocol 2


_NAMES = dict(_names())
