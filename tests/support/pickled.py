"""Pickles of parameter trees, put together by hand: `import pickle` is for nobody here.

In the layout of SERL's release: protocol 4, arrays of jax 0.4 around arrays of numpy 1.
"""

from __future__ import annotations

from typing import Any

import numpy as np


def pickled(tree: Any) -> bytes:
    """A pickle of dicts, float32 arrays, text and None."""
    return b"\x80\x04" + _value(tree) + b"."


def _value(value: Any) -> bytes:
    if value is None:
        return b"N"
    if isinstance(value, str):
        return b"\x8c" + bytes([len(value)]) + value.encode()
    if isinstance(value, dict):
        items = b"".join(_value(key) + _value(each) for key, each in value.items())
        return b"}(" + items + b"u"
    return _jax_array(value)


def _jax_array(array: np.ndarray[Any, Any]) -> bytes:
    new = _name("numpy.core.multiarray", "_reconstruct")
    arguments = _name("numpy", "ndarray") + b"K\0\x85C\x01b\x87"
    weak = b"}(" + _value("weak_type") + b"\x89" + _value("named_shape") + b"}u"
    return (
        _name("jax._src.array", "_reconstruct_array")
        + (b"(" + new + arguments + _state(array) + weak + b"t")
        + b"R"
    )


def _state(array: np.ndarray[Any, Any]) -> bytes:
    shape = b"(" + b"".join(b"M" + size.to_bytes(2, "little") for size in array.shape) + b"t"
    kind = _name("numpy", "dtype") + _value(array.dtype.str[1:]) + b"\x89\x88\x87R"
    kind += b"(K\x03" + _value(array.dtype.str[:1]) + b"NNNK\0K\0K\0tb"
    values = np.ascontiguousarray(array).tobytes()
    return (
        b"(K\x01" + shape + kind + b"\x89\x8e" + len(values).to_bytes(8, "little") + values + b"t"
    )


def _name(module: str, name: str) -> bytes:
    return _value(module) + _value(name) + b"\x93"
