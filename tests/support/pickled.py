"""Pickles as written by SERL and HIL-SERL, assembled by hand because `pickle` is forbidden.

Transitions contain arrays of numpy 1; parameter trees of SERL's release wrap these in arrays of
jax 0.4.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import numpy as np


def pickled(tree: Any) -> bytes:
    """Encode lists, dicts, text, numbers, booleans, None, numpy arrays, in protocol 4."""
    return b"\x80\x04" + _value(tree, _array) + b"."


def pickled_parameters(tree: Any) -> bytes:
    """Encode a parameter tree like `pickled`, with arrays of jax."""
    return b"\x80\x04" + _value(tree, _jax_array) + b"."


def _value(value: Any, array: Callable[[Any], bytes] | None = None) -> bytes:
    match value:
        case None:
            return b"N"
        case bool():
            return b"\x88" if value else b"\x89"
        case np.generic():
            kind, data = _kind(value.dtype), value.tobytes()
            scalar = _name("numpy.core.multiarray", "scalar")
            return scalar + kind + b"C" + bytes([len(data)]) + data + b"\x86R"
        case int():
            return b"J" + value.to_bytes(4, "little", signed=True)
        case float():
            return b"G" + struct.pack(">d", value)
        case str():
            return b"\x8c" + bytes([len(value)]) + value.encode()
        case list():
            return b"](" + b"".join(_value(each, array) for each in value) + b"e"
        case dict():
            items = b"".join(_value(k) + _value(v, array) for k, v in value.items())
            return b"}(" + items + b"u"
    assert array is not None
    return array(value)


_NEW = b"K\0\x85C\x01b\x87"


def _array(array: np.ndarray[Any, Any]) -> bytes:
    new = _name("numpy.core.multiarray", "_reconstruct") + _name("numpy", "ndarray")
    return new + _NEW + b"R" + _state(array) + b"b"


def _jax_array(array: np.ndarray[Any, Any]) -> bytes:
    new = _name("numpy.core.multiarray", "_reconstruct") + _name("numpy", "ndarray")
    weak = b"}(" + _value("weak_type") + b"\x89" + _value("named_shape") + b"}u"
    made = b"(" + new + _NEW + _state(array) + weak + b"t"
    return _name("jax._src.array", "_reconstruct_array") + made + b"R"


def _state(array: np.ndarray[Any, Any]) -> bytes:
    shape = b"(" + b"".join(b"M" + size.to_bytes(2, "little") for size in array.shape) + b"t"
    data = np.ascontiguousarray(array).tobytes()
    values = b"\x8e" + len(data).to_bytes(8, "little") + data
    return b"(K\x01" + shape + _kind(array.dtype) + b"\x89" + values + b"t"


def _kind(dtype: np.dtype[Any]) -> bytes:
    order = dtype.str[:1]
    kind = _name("numpy", "dtype") + _value(dtype.str[1:]) + b"\x89\x88\x87R"
    return kind + b"(K\x03" + _value(order) + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\0tb"


def _name(module: str, name: str) -> bytes:
    return _value(module) + _value(name) + b"\x93"
