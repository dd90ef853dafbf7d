"""Replacements for the names in pickled arrays: functions of this module with the same results.

All are in the table `NAMES`. Nothing is imported, looked up or called by a name from a file.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

MAX_AXES = 32

_NUMBERS = {"b1", *(f"{kind}{size}" for kind in "iu" for size in (1, 2, 4, 8)), "f2", "f4", "f8"}

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Name:
    """A name that a pickle may mention.

    Attributes:
        path: module and member, for example "numpy.dtype".
        make: builds a value from the arguments; raises `ValueError` when they are wrong.
    """

    path: str
    make: Callable[[tuple[Any, ...]], Any]


@dataclass
class Blank:
    """A value that has not received its state yet.

    Attributes:
        fill: builds the value from its state; raises `ValueError` when the state is wrong.
        places: entries of the pickle's memo that hold the value.
        filled: whether the value got its state; a second one is refused.
    """

    fill: Callable[[Any], Any]
    places: list[int] = field(default_factory=list)
    filled: bool = False


def kind_of(value: object) -> str:
    """Return the type of a value, for an error line: the value itself may be huge."""
    if isinstance(value, Name):
        return value.path
    if type(value) is not tuple:
        return "dtype" if isinstance(value, np.dtype) else type(value).__name__
    parts = [kind_of(each) if type(each) is not tuple else "tuple" for each in value[:6]]
    return f"({', '.join(parts)}{', ...' if len(value) > len(parts) else ''})"


def _blank_type(arguments: tuple[Any, ...]) -> Blank:
    match arguments:
        case (str(code), _, _) if code in _NUMBERS:
            return Blank(partial(_type, code))
        case (str(code), *_):
            raise ValueError(f"arrays of {code[:20]!r}, allowed {sorted(_NUMBERS)}")
    raise ValueError(f"a type of {kind_of(arguments)}, expected text and two numbers")


def _type(code: str, state: Any) -> np.dtype[Any]:
    match state:
        case (int(), str(order), None, None, None, *_) if order in ("<", ">", "|"):
            return np.dtype(order + code)
    raise ValueError(f"a type with the state {kind_of(state)}, expected a byte order alone")


def _blank_array(arguments: tuple[Any, ...]) -> Blank:
    match arguments:
        case (Name(path="numpy.ndarray"), _, _):
            return Blank(_array)
    raise ValueError(f"an array of {kind_of(arguments)}, expected numpy.ndarray")


def _array(state: Any) -> Array:
    match state:
        case (int(), tuple(shape), np.dtype() as kind, bool(fortran), bytes(values)):
            return _view(values, kind, shape, "F" if fortran else "C")
    raise ValueError(
        f"an array with the state {kind_of(state)}, expected (int, tuple, dtype, bool, bytes)"
    )


def _array_in_order(arguments: tuple[Any, ...]) -> Array:
    """Build an array of protocol 5; an order "K" is "C" followed by a permutation of the axes."""
    match arguments:
        case (bytes(values), np.dtype() as kind, tuple(shape), str(order), *axes):
            if order in ("C", "F") and all(axis is None for axis in axes):
                return _view(values, kind, shape, order)
            if order == "K" and len(axes) == 1 and _is_permutation(axes[0], len(shape)):
                return _view(values, kind, shape, "C").transpose(axes[0])
    raise ValueError(f"an array of {kind_of(arguments)}, expected (bytes, dtype, tuple, order)")


def _is_permutation(axes: Any, count: int) -> bool:
    whole = type(axes) is tuple and all(type(axis) is int for axis in axes)
    return whole and sorted(axes) == list(range(count))


def _view(values: bytes, kind: np.dtype[Any], shape: tuple[Any, ...], order: Any) -> Array:
    """Return the bytes as a read-only array without memory of its own."""
    if len(shape) > MAX_AXES or not all(type(size) is int and size >= 0 for size in shape):
        raise ValueError(f"an array of the shape {kind_of(shape)}, expected up to {MAX_AXES} sizes")
    if math.prod(shape) * kind.itemsize != len(values):
        raise ValueError(f"an array of {kind}{list(shape)} in {len(values)} bytes")
    return np.frombuffer(values, kind).reshape(shape, order=order)


def _scalar(arguments: tuple[Any, ...]) -> Any:
    match arguments:
        case (np.dtype() as kind, bytes(values)):
            return _view(values, kind, (1,), "C")[0]
    raise ValueError(f"a number of {kind_of(arguments)}, expected (dtype, bytes)")


def _jax_array(arguments: tuple[Any, ...]) -> Array:
    """Build the numpy array inside a JAX array, without JAX's additions such as a weak type."""
    match arguments:
        case (Name(make=make), tuple(inner), state, _) if make is _blank_array:
            _blank_array(inner)
            return _array(state)
    raise ValueError(f"a jax array of {kind_of(arguments)}, expected one of numpy")


def _encoded(arguments: tuple[Any, ...]) -> bytes:
    """Return the bytes of a text in latin1: protocol 2 has no bytes, and writes them as text."""
    match arguments:
        case (str(text), str(encoding)) if encoding == "latin1":
            return text.encode("latin-1")
    raise ValueError(f"an encoding of {kind_of(arguments)}, expected text in latin1")


def _empty(make: Callable[[], Any], arguments: tuple[Any, ...]) -> Any:
    if arguments:
        raise ValueError(f"arguments {kind_of(arguments)}, expected none")
    return make()


def _frozen_dict(arguments: tuple[Any, ...]) -> dict[Any, Any]:
    match arguments:
        case (dict(items),):
            return items
    raise ValueError(f"a FrozenDict of {kind_of(arguments)}, expected a dict")


def _never(arguments: tuple[Any, ...]) -> Any:
    raise ValueError("an array that is made directly")


_MAKERS: dict[str, Callable[[tuple[Any, ...]], Any]] = {
    "numpy.ndarray": _never,
    "numpy.dtype": _blank_type,
    # numpy 2 renamed `core` to `_core`.
    **{f"numpy.{core}.multiarray._reconstruct": _blank_array for core in ("core", "_core")},
    **{f"numpy.{core}.multiarray.scalar": _scalar for core in ("core", "_core")},
    **{f"numpy.{core}.numeric._frombuffer": _array_in_order for core in ("core", "_core")},
    "jax._src.array._reconstruct_array": _jax_array,
    "jax._src.device_array.reconstruct_device_array": _jax_array,  # until 2022
    "flax.core.frozen_dict.FrozenDict": _frozen_dict,
    "collections.OrderedDict": partial(_empty, dict),
    "_codecs.encode": _encoded,
    "__builtin__.bytes": partial(_empty, bytes),  # b"" in protocol 2
}
NAMES = {path: Name(path, make) for path, make in _MAKERS.items()}
