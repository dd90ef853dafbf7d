from __future__ import annotations

import json
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from serl.errors import BadInput, CorruptData, SpecMismatch
from serl.testing.samples import equal
from serl.training.link import MAX_TENSORS, decode_snapshot, encode_snapshot
from serl.transport import MAX_VERSION, Snapshot

SNAPSHOT = Snapshot(
    3,
    {"actor0": 120},
    {
        "a": np.arange(12, dtype=np.float32).reshape(3, 4).T,
        "half": np.ones(3, np.float16),
        "scalar": np.array(2.5),
        "count": np.array([7]),
        "none": np.zeros((0, 3), np.float32),
    },
)
DATA = encode_snapshot(SNAPSHOT, "abc")


def test_snapshot_round_trip_is_exact() -> None:
    decoded = decode_snapshot(DATA, "abc")
    assert (decoded.version, decoded.trained) == (SNAPSHOT.version, SNAPSHOT.trained)
    assert equal(decoded.weights, SNAPSHOT.weights)
    assert {n: a.shape for n, a in decoded.weights.items()} == {
        n: a.shape for n, a in SNAPSHOT.weights.items()
    }


def test_snapshot_can_be_read_by_safetensors() -> None:
    assert equal(safetensors.numpy.load(DATA), SNAPSHOT.weights)


def test_snapshot_of_another_spec_is_refused_with_both_digests() -> None:
    with pytest.raises(SpecMismatch, match=r"'abc'.*'def'"):
        decode_snapshot(DATA, "def")


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
def test_weights_that_are_not_finite_are_refused(value: float, kind: type) -> None:
    data = encode_snapshot(Snapshot(1, {}, {"w": np.array([0, value], kind)}), "abc")
    with pytest.raises(CorruptData, match="w': not finite"):
        decode_snapshot(data, "abc")


def test_unsupported_dtype_is_refused_by_encoder_and_decoder() -> None:
    with pytest.raises(BadInput, match="C64"):
        encode_snapshot(Snapshot(1, {}, {"w": np.zeros(2, np.complex64)}), "abc")
    with pytest.raises(CorruptData, match="C64"):
        decode_snapshot(edited(lambda header: header["a"].update(dtype="C64")), "abc")


def test_too_many_tensors_are_refused() -> None:
    weights = {str(number): np.zeros(1, np.float32) for number in range(MAX_TENSORS + 1)}
    with pytest.raises(BadInput, match="4097 arrays, allowed 4096"):
        encode_snapshot(Snapshot(1, {}, weights), "abc")


def edited(change: Callable[[dict[str, Any]], object]) -> bytes:
    """Return the encoded snapshot with a changed header."""
    (length,) = struct.unpack_from("<Q", DATA)
    header = json.loads(DATA[8 : 8 + length])
    change(header)
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + DATA[8 + length :]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda h: h.pop("__metadata__"), "format None, this version reads '2'"),
        (lambda h: h["__metadata__"].update(format="1"), "format '1', this version reads '2'"),
        (lambda h: h["__metadata__"].pop("crc32"), "expected the fields"),
        (lambda h: h["__metadata__"].update(extra="1"), "expected the fields"),
        (lambda h: h["__metadata__"].update(trained='{"actor0":-1}'), "actor0"),
        (lambda h: h.update(b=h.pop("a")), "checksum"),
        (lambda h: h["a"].update(shape=[3, 4]), "checksum"),
        (lambda h: h["a"].update(dtype="I32"), "checksum"),
        (lambda h: h["a"].update(shape=[2**31, 2**31]), "weights"),
        (lambda h: h["a"].update(dtype=[]), "type"),
        (lambda h: h["a"].update(data_offsets=[0, 2**62]), "weights"),
        (lambda h: h.update(a=1), "type None"),
    ],
)
def test_wrong_snapshot_header_is_refused(
    change: Callable[[dict[str, Any]], object], message: str
) -> None:
    decode_snapshot(edited(lambda header: None), "abc")
    with pytest.raises(CorruptData, match=message) as refusal:
        decode_snapshot(edited(change), "abc")
    assert "\n" not in str(refusal.value)


def test_snapshot_version_above_maximum_is_refused() -> None:
    highest = encode_snapshot(Snapshot(MAX_VERSION, {}, {}), "abc")
    assert decode_snapshot(highest, "abc").version == MAX_VERSION
    for version in (MAX_VERSION + 1, 10**15, 10**19):
        with pytest.raises(CorruptData, match="version: expected 0-1000000000"):
            decode_snapshot(encode_snapshot(Snapshot(version, {}, {}), "abc"), "abc")


def test_truncated_or_extended_snapshot_is_refused() -> None:
    for data in (*(DATA[:cut] for cut in range(len(DATA))), DATA + b"\0"):
        with pytest.raises(CorruptData):
            decode_snapshot(data, "abc")


def test_every_flipped_bit_is_detected() -> None:
    for place in range(len(DATA)):
        for bit in range(8):
            flipped = bytearray(DATA)
            flipped[place] ^= 1 << bit
            with pytest.raises((CorruptData, SpecMismatch)):
                decode_snapshot(bytes(flipped), "abc")
