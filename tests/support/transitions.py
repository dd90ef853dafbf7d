"""Pickles of transitions as SERL and HIL-SERL write them, put together by hand."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np


def pickled(tree: Any) -> bytes:
    """Protocol 4: lists, dicts, text, numbers, booleans, None, and numpy's arrays and scalars."""
    return b"\x80\x04" + _value(tree) + b"."


def _value(value: Any) -> bytes:
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
            return b"](" + b"".join(map(_value, value)) + b"e"
        case dict():
            return b"}(" + b"".join(_value(k) + _value(v) for k, v in value.items()) + b"u"
    return _array(value)


def _array(array: np.ndarray[Any, Any]) -> bytes:
    new = _name("numpy.core.multiarray", "_reconstruct")
    arguments = _name("numpy", "ndarray") + b"K\0\x85C\x01b\x87R"
    shape = b"(" + b"".join(b"M" + size.to_bytes(2, "little") for size in array.shape) + b"t"
    data = np.ascontiguousarray(array).tobytes()
    values = b"\x8e" + len(data).to_bytes(8, "little") + data
    return new + arguments + b"(K\x01" + shape + _kind(array.dtype) + b"\x89" + values + b"tb"


def _kind(dtype: np.dtype[Any]) -> bytes:
    order = dtype.str[:1]
    kind = _name("numpy", "dtype") + _value(dtype.str[1:]) + b"\x89\x88\x87R"
    return kind + b"(K\x03" + _value(order) + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\0tb"


def _name(module: str, name: str) -> bytes:
    return _value(module) + _value(name) + b"\x93"
