"""Pickled trees of numpy arrays, read without running any code from the file.

A pickle is a program for a machine with a stack. The machine here knows only the instructions of
protocols 2 to 5 that build dicts, lists, tuples, text, bytes, numbers and arrays; the effect of a
name is decided by `serl.system.pickled_arrays.NAMES` alone. No instruction allocates more than the
file holds.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from serl.errors import BadInput, CorruptData
from serl.system.files import read_bounded
from serl.system.pickled_arrays import NAMES, Blank, Name, kind_of

MAX_PICKLE_BYTES = 4 << 30
MAX_STEPS = 10_000_000
"""Largest number of instructions of a file, and of values in its tree."""
MAX_DEPTH = 64
MAX_ARRAY_BYTES = 16 << 30
"""Largest size of all arrays of a tree; repeated arrays count each time, as they do in a copy."""

_PROTOCOLS = range(2, 6)
_MAX_NAME = 256
_MAX_ARGUMENTS = 8  # each call looks at all of them, and may mention the same ones again
_MAX_INTEGER_BYTES = 8


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


def decode_pickle(data: bytes, what: str = "pickle") -> Any:
    """Return the tree in pickled bytes: dicts, lists and tuples of plain values and arrays.

    Plain values are text, bytes, numbers and None. Keys are text or integers. Arrays hold booleans,
    integers or floats and are read-only; jax arrays become numpy's, ordered and frozen dicts become
    dicts. A value that the file mentions twice is one object.

    Args:
        data: one pickle of protocol 2 to 5, and nothing after it.
        what: name of the data in errors.

    Raises:
        CorruptData: the data are anything else, or exceed the bounds; the line names the byte.
    """
    machine = _Machine(data)
    try:
        tree = machine.run()
        _check_tree(tree)
    except ValueError as error:
        raise CorruptData(f"{what}, byte {machine.place}: {error}") from error
    return tree


def _check_tree(tree: Any) -> None:
    """Bound size and depth of the tree: the machine bounds objects, but nesting can repeat them."""
    count = array_bytes = 0
    levels: list[Iterator[Any]] = [iter((tree,))]
    while levels:
        for value in levels[-1]:
            count += 1
            if isinstance(value, np.ndarray):
                array_bytes += value.nbytes
            if count > MAX_STEPS or array_bytes > MAX_ARRAY_BYTES:
                raise ValueError(
                    f"more than {MAX_STEPS:,} values or {MAX_ARRAY_BYTES:,} bytes of arrays"
                )
            if isinstance(value, dict | list | tuple):
                if len(levels) > MAX_DEPTH:
                    raise ValueError(f"nested deeper than {MAX_DEPTH}, or in itself")
                levels.append(iter(value.values() if isinstance(value, dict) else value))
                break
            if not isinstance(value, str | bytes | int | float | None | np.ndarray | np.generic):
                raise ValueError(f"{kind_of(value)} instead of a value")
        else:
            levels.pop()


class _Machine:
    """The stack machine that runs one pickle; each refusal is a `ValueError`.

    Attributes:
        place: byte at which the present instruction begins.
    """

    def __init__(self, data: bytes) -> None:
        self.place = 0
        self._data = data
        self._next = 0
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}
        self._encoded_bytes = 0

    def run(self) -> Any:
        if self.take(1) != b"\x80" or self.count(1) not in _PROTOCOLS:
            raise ValueError("no pickle of protocol 2 to 5")
        for _ in range(MAX_STEPS):
            self.place = self._next
            code = self.take(1)
            if code == b".":
                return self._result()
            if code not in _INSTRUCTIONS:
                raise ValueError(f"the instruction {code!r}, which no array needs")
            _INSTRUCTIONS[code](self)
        raise ValueError(f"more than {MAX_STEPS:,} instructions")

    def _result(self) -> Any:
        (tree,) = self.pop(1)
        if self._stack or self._marks:
            raise ValueError("ends with values left over")
        if rest := len(self._data) - self._next:
            raise ValueError(f"{rest} bytes after the end")
        return tree

    def take(self, count: int) -> bytes:
        """Return the next `count` bytes of the file."""
        end = self._next + count
        if end > len(self._data):
            raise ValueError(f"cut: {len(self._data)} bytes, expected at least {end}")
        piece = self._data[self._next : end]
        self._next = end
        return piece

    def count(self, size: int) -> int:
        """Return the next unsigned integer, of `size` bytes."""
        return int.from_bytes(self.take(size), "little")

    def integer(self, size: int) -> int:
        if size > _MAX_INTEGER_BYTES:
            raise ValueError(f"an integer of {size} bytes, allowed {_MAX_INTEGER_BYTES}")
        return int.from_bytes(self.take(size), "little", signed=True)

    def real(self) -> float:
        (value,) = struct.unpack(">d", self.take(8))
        return float(value)

    def line(self) -> str:
        """Return the next line of the file, without its end."""
        end = self._data.find(b"\n", self._next, self._next + _MAX_NAME)
        if end < 0:
            raise ValueError("a name without end")
        return self.take(end + 1 - self._next)[:-1].decode()

    def frame(self) -> None:
        """Check that the next frame is complete; frames otherwise only serve for reading ahead."""
        if (expected := self.count(8)) > len(self._data) - self._next:
            raise ValueError(f"cut: {len(self._data)} bytes, expected {expected} from here on")

    def push(self, value: Any) -> None:
        self._stack.append(value)

    def pop(self, count: int) -> list[Any]:
        """Remove and return the last values of the stack, not beyond a mark."""
        first = len(self._stack) - count
        if first < (self._marks[-1] if self._marks else 0):
            raise ValueError("takes values that are not there")
        values = self._stack[first:]
        del self._stack[first:]
        return values

    def mark(self) -> None:
        self._marks.append(len(self._stack))

    def pop_marked(self) -> list[Any]:
        """Remove and return all values after the last mark, and the mark."""
        if not self._marks:
            raise ValueError("takes values up to a mark that is not there")
        values = self.pop(len(self._stack) - self._marks[-1])
        self._marks.pop()
        return values

    def top(self) -> Any:
        (value,) = self.pop(1)
        self.push(value)
        return value

    def put(self, number: int) -> None:
        """Store the last value in the memo."""
        value = self.top()
        self._memo[number] = value
        if isinstance(value, Blank):
            value.places.append(number)

    def put_next(self) -> None:
        self.put(len(self._memo))

    def get(self, number: int) -> None:
        if number not in self._memo:
            raise ValueError(f"mentions the value {number}, which is not there")
        self.push(self._memo[number])

    def append(self, values: list[Any]) -> None:
        target = self.top()
        if not isinstance(target, list):
            raise ValueError(f"appends to {kind_of(target)}, expected a list")
        target.extend(values)

    def set_items(self, values: list[Any]) -> None:
        target = self.top()
        if not isinstance(target, dict) or len(values) % 2:
            raise ValueError(f"sets items of {kind_of(target)}, expected a dict and pairs")
        for key, value in zip(values[::2], values[1::2], strict=True):
            if type(key) not in (str, int):
                raise ValueError(f"a key of the type {kind_of(key)}, expected text or an integer")
            target[key] = value

    def name(self, module: Any, name: Any) -> None:
        """Look up a name in the table `NAMES`; names are never used in another way."""
        if not (type(module) is type(name) is str):
            raise ValueError(f"a name of {kind_of((module, name))}, expected two texts")
        path = f"{module}.{name}"
        if path not in NAMES:
            raise ValueError(f"the name {path[:120]!r}, which no array needs")
        self.push(NAMES[path])

    def make(self) -> None:
        """Call the function of a name with its arguments."""
        name, arguments = self.pop(2)
        if not isinstance(name, Name) or type(arguments) is not tuple:
            raise ValueError(f"calls {kind_of(name)} with {kind_of(arguments)}")
        if (count := len(arguments)) > _MAX_ARGUMENTS:
            raise ValueError(f"calls {name.path} with {count} arguments, allowed {_MAX_ARGUMENTS}")
        value = name.make(arguments)
        if isinstance(value, bytes):  # the same text, encoded again and again
            self._encoded_bytes += len(value)
            if self._encoded_bytes > len(self._data):
                raise ValueError("encodes more bytes than there are")
        self.push(value)

    def fill(self) -> None:
        """Give the last value but one its state, on the stack and in the memo."""
        blank, state = self.pop(2)
        if not isinstance(blank, Blank):
            raise ValueError(f"gives a state to {kind_of(blank)}")
        if blank.filled:  # each state would go to each place
            raise ValueError("gives a state to a value that has one")
        value, blank.filled = blank.fill(state), True
        self._memo.update(dict.fromkeys(blank.places, value))
        self.push(value)


_INSTRUCTIONS: dict[bytes, Callable[[_Machine], None]] = {
    b"\x95": _Machine.frame,
    b"N": lambda machine: machine.push(None),
    b"\x88": lambda machine: machine.push(True),
    b"\x89": lambda machine: machine.push(False),
    b"K": lambda machine: machine.push(machine.count(1)),
    b"M": lambda machine: machine.push(machine.count(2)),
    b"J": lambda machine: machine.push(machine.integer(4)),
    b"\x8a": lambda machine: machine.push(machine.integer(machine.count(1))),
    b"G": lambda machine: machine.push(machine.real()),
    b"\x8c": lambda machine: machine.push(machine.take(machine.count(1)).decode()),
    b"X": lambda machine: machine.push(machine.take(machine.count(4)).decode()),
    b"\x8d": lambda machine: machine.push(machine.take(machine.count(8)).decode()),
    b"C": lambda machine: machine.push(machine.take(machine.count(1))),
    b"B": lambda machine: machine.push(machine.take(machine.count(4))),
    b"\x8e": lambda machine: machine.push(machine.take(machine.count(8))),
    b"\x96": lambda machine: machine.push(machine.take(machine.count(8))),  # a bytearray
    b"(": _Machine.mark,
    b")": lambda machine: machine.push(()),
    b"\x85": lambda machine: machine.push(tuple(machine.pop(1))),
    b"\x86": lambda machine: machine.push(tuple(machine.pop(2))),
    b"\x87": lambda machine: machine.push(tuple(machine.pop(3))),
    b"t": lambda machine: machine.push(tuple(machine.pop_marked())),
    b"]": lambda machine: machine.push([]),
    b"a": lambda machine: machine.append(machine.pop(1)),
    b"e": lambda machine: machine.append(machine.pop_marked()),
    b"}": lambda machine: machine.push({}),
    b"s": lambda machine: machine.set_items(machine.pop(2)),
    b"u": lambda machine: machine.set_items(machine.pop_marked()),
    b"q": lambda machine: machine.put(machine.count(1)),
    b"r": lambda machine: machine.put(machine.count(4)),
    b"\x94": _Machine.put_next,
    b"h": lambda machine: machine.get(machine.count(1)),
    b"j": lambda machine: machine.get(machine.count(4)),
    b"c": lambda machine: machine.name(machine.line(), machine.line()),
    b"\x93": lambda machine: machine.name(*machine.pop(2)),
    b"R": _Machine.make,
    b"b": _Machine.fill,
}
