"""Test that real pickles are read exactly and hostile or damaged ones refused in one line.

`data/numpy1_*` are `TREE` as numpy 1.26.4 pickles it, `data/numpy2_*` as 2.4.6 does; `data/jax1_*`
are a `FrozenDict` of flax 0.7.0 with arrays of jax 0.4.13, `data/jax2_*` a dict of jax 0.10.2.
"""

from __future__ import annotations

import struct
import tracemalloc
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from serl.errors import BadInput, CorruptData
from serl.system import pickles
from serl.system.pickles import _NAMES as NAMES
from serl.system.pickles import decode_pickle, read_pickle

FILES = sorted((Path(__file__).parents[1] / "data").glob("*.pkl"))
PROGRAMS = 1_000
GRID = np.arange(6, dtype=np.float32).reshape(2, 3)
SEEN = {
    "state": np.array([0.5, -1.5]),
    "wrist": np.arange(24, dtype=np.uint8).reshape(2, 4, 3),
}
TREE = {
    "plain": [
        *(None, True, False, 0, 255, 65535, -1, 2**40, -(2**63), 0.1),
        *("é\n", "", b"\x00\xff", b""),
    ],
    "tuples": ((), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4)),
    "long": ["x" * 300, b"y" * 300, [0, 1, 2], {1: {2: {}}}],
    "arrays": [
        *(GRID, GRID.T, GRID, GRID[:, ::2], GRID.astype(">f4"), np.array(3.5)),
        np.zeros((0, 3), np.float16),
        np.array([True, False]),
        np.array([2**64 - 1], np.uint64),
        np.arange(24, dtype=np.int16).reshape(2, 3, 4).transpose(1, 2, 0),
    ],
    "numbers": [np.float32(0.1), np.float64(0.1), np.int64(-7), np.uint8(7), np.bool_(True)],
    "ordered": {"b": 1, "a": 2},
    "steps": [{"observations": SEEN, "rewards": 0.0}, {"observations": SEEN, "rewards": 1.0}],
}
LAYER = {"kernel": GRID, "bias": np.zeros(2, np.int32)}
PARAMETERS = {"params": {"layer": LAYER, "again": LAYER}, "scale": np.array(2.0, np.float32)}

SMALL = b"\x80\x04"
TYPE = b"cnumpy\ndtype\n(X\x02\0\0\0f4\x89\x88tR(K\x03X\x01\0\0\0<NNNK\0K\0K\0tb"
NEW = b"cnumpy._core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\0\x85C\x01b\x87R"


def same(left: Any, right: Any) -> bool:
    """Return whether two trees are equal in values and types."""
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, np.ndarray):
        return left.dtype == right.dtype and np.array_equal(left, right)
    return bool(left == right)


def refusal(data: bytes) -> str:
    """Return the one-line message with which `decode_pickle` refuses the bytes."""
    with pytest.raises(CorruptData) as refused:
        decode_pickle(data)
    line = str(refused.value)
    assert "\n" not in line
    assert len(line) < 400
    return line


def pickled_array(shape: bytes, kind: bytes = TYPE, values: bytes = b"C\x08" + bytes(8)) -> bytes:
    """Return a pickled array with the given opcodes for its shape, dtype and values."""
    return SMALL + NEW + b"(K\x01" + shape + kind + b"\x89" + values + b"tb."


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_pickle_is_read_exactly(path: Path) -> None:
    expected: dict[str, Any] = TREE if path.stem.startswith("numpy") else PARAMETERS
    assert same(read_pickle(path), expected)


def test_ordered_dict_keeps_its_order() -> None:
    for path in FILES[-8:]:
        assert list(read_pickle(path)["ordered"]) == ["b", "a"]


def test_data_covers_all_versions_and_protocols() -> None:
    numpy = {
        f"numpy{version}_protocol{protocol}" for version in (1, 2) for protocol in (2, 3, 4, 5)
    }
    jax = {f"jax{version}_protocol{protocol}" for version in (1, 2) for protocol in (2, 4)}
    assert {path.stem for path in FILES} == numpy | jax


def test_array_referenced_twice_is_one_object() -> None:
    first, second = read_pickle(FILES[-1])["steps"]
    assert first["observations"]["wrist"] is second["observations"]["wrist"]
    assert first["observations"] is second["observations"]


def test_decoded_arrays_are_read_only() -> None:
    with pytest.raises(ValueError, match="read-only"):
        read_pickle(FILES[-1])["arrays"][0][0, 0] = 1


@pytest.mark.parametrize(
    ("data", "part"),
    [
        # Pickles that run a command in `pickle.loads`.
        (b"\x80\x02cposix\nsystem\nX\x02\0\0\0id\x85R.", "'posix.system'"),
        (b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x02id\x85R.", "'os.system'"),
        (b"\x80\x02(X\x02\0\0\0idios\nsystem\n.", "b'i'"),
        (b"\x80\x02(cos\nsystem\nX\x02\0\0\0ido.", "'os.system'"),
        (b"\x80\x04csubprocess\nPopen\n\x8c\x02id\x85\x81.", "'subprocess.Popen'"),
        (b"\x80\x04cnumpy\ndtype\n)\x81.", r"b'\x81'"),
        (b"\x80\x04cnumpy\ndtype\n)}\x92.", r"b'\x92'"),
        (b"\x80\x02\x82\x01.", r"b'\x82'"),
        (b"\x80\x02Pos.system\n.", "b'P'"),
        (b"\x80\x02X\x02\0\0\0osQ.", "b'Q'"),
        (b"\x80\x04cnumpy.lib.npyio\nload\n.", "'numpy.lib.npyio.load'"),
        # States for non-array values, which could change a function or a class.
        (b"\x80\x04}}b.", "a state for dict"),
        (b"\x80\x04ccollections\nOrderedDict\nN}\x86b.", "a state for function"),
        (b"\x80\x04cnumpy\ndtype\nN}\x86b.", "a state for type"),
        # Allowed names in the wrong position.
        (b"\x80\x04cnumpy\ndtype\n\x85.", "type instead of a value"),
        (SMALL + TYPE + b".", "instead of a value"),
        (SMALL + NEW + b".", "no attribute 'array'"),
        (b"\x80\x04cnumpy\nndarray\n)R.", "missing 3 required"),
        (b"\x80\x04]K\x01\x85R.", "not callable"),
        (b"\x80\x04ccollections\nOrderedDict\nK\x01\x85R.", "takes 0 positional"),
        (b"\x80\x02c_codecs\nencode\nX\1\0\0\0aX\5\0\0\0rot13\x86R.", "text in latin1"),
        (b"\x80\x04cjax._src.array\n_reconstruct_array\n(c_codecs\nencode\n))}tR.", "jax array"),
        # Data that is no pickle of these protocols, or has more after it.
        (b"", "no pickle of protocol 2 to 5"),
        (b"(lp0\n.", "no pickle of protocol 2 to 5"),
        (b"\x80\x06N.", "no pickle of protocol 2 to 5"),
        (b"<!DOCTYPE html>", "no pickle of protocol 2 to 5"),
        (b"\x80\x04N.N.", "bytes after the end"),
        (b"\x80\x04NN.", "values left over"),
        (b"\x80\x04N(a.", "pop from empty list"),
        (b"\x80\x04]e.", "pop from empty list"),
        (b"\x80\x04h\x07.", "Memo value not found at index 7"),
        (b"\x80\x04}]K\x01s.", "a key of the type list"),
        (b"\x80\x04}" + b"N" + b"\x85" * 200_000 + b"K\x01s.", "a key of the type tuple"),
        (b"\x80\x04}(K\x01u.", "zip() argument"),
        (b"\x80\x04}K\x01a.", "no attribute 'append'"),
        (b"\x80\x04\x8c\x01\xff.", "utf-8"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_hostile_or_unsupported_pickle_is_refused(data: bytes, part: str) -> None:
    assert part in refusal(data)


@pytest.mark.parametrize(
    ("data", "part"),
    [
        (b"X\xff\xff\xff\xff", ""),
        (b"\x8d\xff\xff\xff\xff\xff\xff\xff\xff", ""),
        (b"\x8e\xff\xff\xff\xff\xff\xff\xff\x7f", ""),
        (b"\x96\xff\xff\xff\xff\xff\xff\xff\x7f", ""),
        (b"\x96\0\0\0\0\4\0\0\0", ""),
        (b"Nr\xff\xff\xff\xffN.", "values left over"),
        (b"c" + b"x" * 100_000, ""),
        (b"\x8a\xff" + bytes(255) + b".", "an integer of 255 bytes, allowed 8"),
        (b"\x8a\x09" + bytes(9) + b".", "an integer of 9 bytes, allowed 8"),
        (b"]\x94(h\0h\0h\0e.", "nested deeper than 64, or in itself"),
        (b"]" * 20_000 + b"a" * 19_999 + b".", "nested deeper than 64"),
        (b"N" + b"\x85" * 20_000 + b".", "nested deeper than 64"),
        (b"]\x94h\0a.", "nested deeper than 64, or in itself"),
        (b"}\x94K\x01h\0s.", "nested deeper than 64, or in itself"),
    ],
    ids=lambda value: str(value)[:20],
)  # fmt: skip
def test_oversized_pickle_is_refused_before_allocation(data: bytes, part: str) -> None:
    tracemalloc.start()
    line = refusal(SMALL + data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert part in line
    assert peak < 32 << 20


def test_decoder_limits_instructions_values_and_bytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pickles, "MAX_STEPS", 10_000)
    assert "more than 10,000 instructions" in refusal(SMALL + b"N" * 20_000)
    ten = [b"(" + b"h%c" % level * 10 + b"t\x94" for level in range(20)]
    assert "over 10,000 values" in refusal(SMALL + b"(N\x94" + b"".join(ten) + b"t.")
    assert decode_pickle(SMALL + b"(N\x94" + b"".join(ten[:3]) + b"t.")[0] is None
    text = b"X" + struct.pack("<I", 1 << 20) + b"x" * (1 << 20) + b"\x94X\x06\0\0\0latin1\x94"
    again = b"c_codecs\nencode\nh\0h\x01\x86R" * 1000
    assert "not longer than the file" in refusal(SMALL + text + again + b".")
    monkeypatch.setattr(pickles, "MAX_ARRAY_BYTES", 30)
    four = SMALL + pickled_array(b"K\x02\x85")[2:-1] + b"\x94(h\0h\0h\0t\x86."
    assert "or 30 bytes of arrays" in refusal(four)


@pytest.mark.parametrize("name", ["_codecs.encode", *NAMES])
def test_call_with_many_arguments_is_refused(name: str) -> None:
    """Many calls that refer to one long tuple would otherwise each scan all of it."""
    call, many = "c{}\n{}\n".format(*name.rsplit(".", 1)).encode(), b"(" + b"N" * 1000 + b"t"
    assert "were given" in refusal(SMALL + call + many + b"R.")
    jax = b"cjax._src.array\n_reconstruct_array\n(cnumpy\nndarray\n" + many + b"NNtR."
    assert "were given" in refusal(SMALL + jax)


@pytest.mark.parametrize("ending", [b"t", b"e"])
def test_repeated_container_is_copied_once(ending: bytes) -> None:
    start = b"(" if ending == b"t" else b"]("
    ten = [start + b"h%c" % level * 10 + ending + b"\x94" for level in range(5)]
    data = SMALL + b"(N\x94" + b"".join(ten) + b"t."
    decode_pickle(data)
    tracemalloc.start()
    decode_pickle(data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 17


def test_repeated_container_counts_its_depth_at_each_use() -> None:
    deep = b"N" + b"\x85" * 40 + b"\x940"
    with_it = b"h\0" + b"\x85" * 20
    assert decode_pickle(SMALL + b"(" + deep[:-1] + with_it + b"t.")
    too_deep = b"h\0" + b"\x85" * 30
    assert "nested deeper than 64" in refusal(SMALL + b"(" + deep[:-1] + too_deep + b"t.")


def test_second_state_of_value_is_refused() -> None:
    """Applying many states to many values took two seconds for 144 kB."""
    kind, _, state = TYPE.partition(b"(K\x03")
    once = b"(K\x03" + state
    assert "expected one state" in refusal(pickled_array(b"K\x02\x85", kind=kind + once + once))
    longer = b"(K\x03X\x01\0\0\0<NNN" + b"K\0" * 5 + b"tb"
    assert "expected one state" in refusal(pickled_array(b"K\x02\x85", kind=kind + longer))
    assert "a second state" in refusal(pickled_array(b"K\x02\x85")[:-1] + b"Nb.")
    again = NEW + b"(K\x01)" + kind + b"\x94" + once + b"\x89C\x04" + bytes(4) + b"tb"
    other = NEW + b"(K\x01)h\0\x89C\x04" + bytes(4) + b"tb"
    expected = (np.zeros((), np.float32),) * 2
    assert same(decode_pickle(SMALL + again + other + b"\x86."), expected)


def pickled_integer(number: int) -> bytes:
    return b"\x8a\x08" + number.to_bytes(8, "little", signed=True)


@pytest.mark.parametrize(
    ("data", "part"),
    [
        (pickled_array(b"K\x03\x85"), "float32 (3,) in 8 bytes"),
        (pickled_array(pickled_integer(-1) + pickled_integer(-2) + b"\x86"), "of the shape"),
        (pickled_array(b"\x88K\x02\x86"), "of the shape"),
        (pickled_array(b"G" + bytes(8) + b"\x85"), "of the shape"),
        (
            pickled_array(
                pickled_integer(2**31) + pickled_integer(2**31) + pickled_integer(4) + b"\x87"
            ),
            "in 8 bytes",
        ),
        (
            pickled_array(
                b"K\0" + pickled_integer(2**62) + pickled_integer(2**62) + b"\x87", values=b"C\0"
            ),
            "too big",
        ),
        (pickled_array(b"(" + b"K\x01" * 33 + b"t"), "up to 32 sizes"),
        (pickled_array(b"]"), "without bytes, a data type or a shape"),
        (pickled_array(b"K\x02\x85", kind=b"N"), "without bytes, a data type or a shape"),
        (pickled_array(b"K\x02\x85", values=b"]"), "without bytes, a data type or a shape"),
        (
            pickled_array(b"K\x02\x85", kind=TYPE.replace(b"f4", b"O8"), values=b"]"),
            "arrays of 'O8'",
        ),
        (pickled_array(b"K\x02\x85", kind=TYPE.replace(b"f4", b"V4")), "arrays of 'V4'"),
        (pickled_array(b"K\x02\x85", kind=TYPE.replace(b"<NNN", b"|N]N")), "with fields"),
        (pickled_array(b"K\x02\x85", kind=TYPE.replace(b"\0<", b"\0?")), "with fields"),
        (SMALL + NEW.replace(b"ndarray", b"dtype") + b".", "expected numpy.ndarray"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_inconsistent_array_is_refused(data: bytes, part: str) -> None:
    assert same(decode_pickle(pickled_array(b"K\x02\x85")), np.zeros(2, np.float32))
    assert part in refusal(data)


@pytest.mark.parametrize("path", [*FILES[:4], FILES[-5], FILES[-1]], ids=lambda path: path.stem)
def test_truncated_or_extended_pickle_is_refused(path: Path) -> None:
    data = path.read_bytes()
    for cut in range(0, len(data), 3):
        refusal(data[:cut])
    refusal(data + b"\0")


def test_read_pickle_refuses_missing_or_too_large_file(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"absent\.pkl: cannot be read: No such file"):
        read_pickle(tmp_path / "absent.pkl")
    with pytest.raises(BadInput, match="folder"):
        read_pickle(tmp_path)
    with pytest.raises(CorruptData, match="bytes, allowed 100"):
        read_pickle(FILES[0], max_bytes=100)
    (tmp_path / "cut.pkl").write_bytes(FILES[0].read_bytes()[:-9])
    with pytest.raises(CorruptData, match=r"cut\.pkl: "):
        read_pickle(tmp_path / "cut.pkl")


PIECES = [
    *(b"N", b"\x88", b"\x89", b"K\x00", b"K\x02", b"M\xff\xff", b"J" + bytes(4), b"G" + bytes(8)),
    *(b")", b"]", b"}", b"(", b"t", b"e", b"u", b"a", b"s", b"\x85", b"\x86", b"\x87", b"\x94"),
    *(b"h\x00", b"h\x01", b"h\x02", b"j\x03\0\0\0", b"q\x00", b"r\xff\xff\xff\xff", b"R", b"b"),
    *(b"\x8c\x01a", b"X\x02\0\0\0f4", b"X\x01\0\0\0<", b"X\x06\0\0\0latin1", b"C\x08" + bytes(8)),
    *(b"\x8e\x04" + bytes(11), b"\x96\x08" + bytes(15), b"\x8d\xff\xff\xff\xff\0\0\0\0", b"\x97"),
    *(b"\x8a\x08" + b"\xff" * 7 + b"\x7f", b"\x8a\x08" + bytes(7) + b"\x80", b"\x8a\x00", b"\x93"),
    *("c{}\n{}\n".format(*path.rsplit(".", 1)).encode() for path in NAMES),
    *(TYPE, NEW, pickled_array(b"K\x02\x85")[2:-1]),
    pickled_array(pickled_integer(2**62) + b"\x85")[2:-1],
]  # fmt: skip


def test_random_opcode_programs_decode_or_raise_corrupt_data() -> None:
    """Random programs reach keys, counts, references and states that byte flips do not."""
    rng, read, refused = Random(2), 0, []
    tracemalloc.start()
    for _ in range(PROGRAMS):
        program = b"".join(rng.choices(PIECES, k=rng.choice((2, 4, 8, 16, 32))))
        for start, ending in ((b"", b"."), (b"(", b"t."), (b"}(", b"u."), (b"N", b"\x86.")):
            try:
                decode_pickle(SMALL + start + program + ending)
                read += 1
            except CorruptData as error:
                refused.append(str(error))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert read > PROGRAMS // 100
    assert not any("\n" in line or len(line) > 400 for line in refused)
    assert peak < 8 << 20
