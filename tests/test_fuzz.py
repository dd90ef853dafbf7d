"""Mutated bytes for every decoder: each is refused as declared, or decodes; nothing else happens.

A mutant with a wrong checksum never gets far, so most checksums are made right again.
"""

from __future__ import annotations

import hashlib
import json
import re
import struct
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import cache
from itertools import cycle, islice
from pathlib import Path
from random import Random
from typing import NamedTuple

import numpy as np
import psutil
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from isal.isal_zlib import crc32

from serl import checkpoint
from serl.authentication import TAG_BYTES, load_key, sign, verify
from serl.compaction import Compactor
from serl.config import TrainConfig, checked, read_yaml
from serl.episodes import EpisodeFile, metadata_crc, read_episode
from serl.errors import BadInput
from serl.fields import MAX_JSON_BYTES, dump_object, parse_object
from serl.files import read_bounded
from serl.manifest import MANIFEST, read_entries
from serl.mcap import BLOCK, CHUNK, U32, Opcode
from serl.mcap_reader import read_chunk, read_metadata
from serl.recording import LogConfig
from serl.snapshots import decode_snapshot, encode_snapshot
from serl.testing.logs import EPOCH, SPEC, leave_open, random_records, write_log
from serl.transport import Snapshot
from serl.wire import (
    Frame,
    Hello,
    decode_frame,
    decode_hello,
    decode_record,
    encode_frame,
    encode_hello,
    encode_record,
)

SHORT, LONG = 8_000, 1_200_000
ALLOWED_GROWTH_MB = 50.0
KEY = bytes(range(32))
NUMBERS = [0, 1, 2**7, 2**8 - 1, 2**15, 2**16 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1]
WORDS = [
    *(b"NaN", b"-Infinity", b"1e999", b"-1", b"1e-400", b"18446744073709551616", b"9" * 400),
    *(b"null", b"true", b'""', b"[]", b"{}", b"[" * 3000, b'{"a":' * 2000, b'"\\ud800"'),
    *(b"&a [*a]", b"!!python/object:os.system x", b"? ", b"<<: ", b"0x_", b"1:2:3", b"2001-99-99"),
]
TOKEN = re.compile(rb'-?\d+(\.\d+)?(e[+-]?\d+)?|true|false|null|"[^"]*"|\[[^\[\]]*\]')


class Decoder(NamedTuple):
    """What reads bytes from outside.

    Attributes:
        samples: sound inputs.
        decode: reads an input; may raise `BadInput`.
        reseal: makes the checksums of a mutant right; None where there are none.
    """

    samples: list[bytes]
    decode: Callable[[bytes], object]
    reseal: Callable[[bytes], bytes] | None = None


@pytest.fixture
def decoders(tmp_path: Path) -> dict[str, Decoder]:
    return make_decoders(tmp_path)


@cache
def _once(factory: pytest.TempPathFactory) -> dict[str, Decoder]:
    return make_decoders(factory.mktemp("any"))


def make_decoders(folder: Path) -> dict[str, Decoder]:
    records = random_records(3)
    payloads = [encode_record(record) for record in (records[0], records[-1])]
    weights = {"w": np.ones((2, 3), np.float32), "n": np.arange(4)}
    snapshot = encode_snapshot(Snapshot(7, {"actor0": 12}, weights), SPEC.digest)
    hello = encode_hello(Hello("run", "actor0", EPOCH, SPEC, "0" * 32, "here:/runs"))
    return {
        "record": Decoder(payloads, lambda data: decode_record(data, SPEC)),
        "frame": Decoder(
            [encode_frame(Frame(5, EPOCH, 3, 0, payloads[0]))], _decode_stream, _reseal_frame
        ),
        "hello": Decoder([hello], decode_hello),
        "snapshot": Decoder(
            [snapshot], lambda data: decode_snapshot(data, SPEC.digest), _reseal_snapshot
        ),
        "signed": Decoder([sign(KEY, payloads[0])], _verify, lambda data: data),
        "object": Decoder([dump_object({"a": [1, 2.5, "x"]})], lambda d: parse_object(d, "it")),
        **_file_decoders(folder),
    }


def _file_decoders(folder: Path) -> dict[str, Decoder]:
    sealed, *_ = write_log(folder / "sealed", random_records(3))
    part = leave_open(folder / "part", random_records(3, ended=False))
    compact, *_ = write_log(folder / "png", random_records(3))
    with closing(Compactor(compact.parent, LogConfig(images="png"))) as compactor:
        while compactor.step():
            pass
    chunk, metadata = _blocks(sealed)
    point = checkpoint.save(folder / "checkpoints", 5, {"agent": {"w": np.ones(3)}}, {"n": 1})
    names = sorted(path.name for path in point.iterdir())
    settings = yaml.safe_dump({"task": "reach", "steps": 5, "agent": {"utd": 4, "tau": 0.005}})
    entries = sealed.with_name(MANIFEST)
    return {
        "sealed episode": _file(sealed, lambda path: read_episode(path, SPEC), _reseal_episode),
        "open episode": _file(part, lambda path: read_episode(path, SPEC), _reseal_episode),
        "compressed episode": _file(compact, lambda path: read_episode(path, SPEC), _reseal_episode),
        "chunk": Decoder([chunk], read_chunk, _reseal_chunk),
        "metadata": Decoder([metadata], read_metadata),
        "manifest": _file(entries, lambda path: read_entries(path.parent)),
        **{f"checkpoint {name}": _checkpoint(point, name) for name in names},
        "config": _file(_written(folder / "config.yaml", settings.encode()), _read_config),
        "key": _file(_written(folder / "key", KEY.hex().encode()), load_key),
    }


def _file(
    path: Path, read: Callable[[Path], object], reseal: Callable[[bytes], bytes] | None = None
) -> Decoder:
    def decode(data: bytes) -> object:
        path.write_bytes(data)
        return read(path)

    return Decoder([path.read_bytes()], decode, reseal)


def _checkpoint(point: Path, name: str) -> Decoder:
    """A file of a checkpoint; its hash in the manifest is made right unless it is the manifest."""
    path, manifest = point / name, point / "MANIFEST.json"
    sound = {file: file.read_bytes() for file in point.iterdir()}

    def decode(data: bytes) -> object:
        for file, content in sound.items():
            file.write_bytes(content)
        path.write_bytes(data)
        if path != manifest:
            fields = json.loads(sound[manifest])
            digest = hashlib.sha256(data).hexdigest()
            fields["files"][name] = {"bytes": len(data), "sha256": digest}
            manifest.write_text(json.dumps(fields))
        return checkpoint.load(point)

    return Decoder([sound[path]], decode)


def _written(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    path.chmod(0o600)
    return path


def _decode_stream(data: bytes) -> object:
    return decode_record(decode_frame(data).payload, SPEC)


def _verify(data: bytes) -> object:
    sound = sign(KEY, encode_record(random_records(3)[0]))
    assert (verify(KEY, data) is None) == (data != sound), "forged"
    return None


def _read_config(path: Path) -> object:
    return checked(TrainConfig, read_yaml(path))


def _reseal_frame(data: bytes) -> bytes:
    """Length and checksum fit the payload."""
    head, payload = data[:40], data[48:]
    head += U32.pack(len(payload))
    return head + U32.pack(crc32(payload, crc32(head))) + payload


def _reseal_snapshot(data: bytes) -> bytes:
    """As far as it still holds arrays, their checksum is right."""
    with pytest.MonkeyPatch.context() as patch:
        right: list[str] = []
        from serl import snapshots

        checksum = snapshots._checksum
        patch.setattr(snapshots, "_checksum", lambda *of: right.append(checksum(*of)) or right[-1])
        try:
            decode_snapshot(data, SPEC.digest)
        except BadInput:
            pass
    return re.sub(rb'"crc32":"[0-9a-f]{8}"', b'"crc32":"%s"' % right[-1].encode(), data) if right else data


def _reseal_chunk(data: bytes) -> bytes:
    if len(data) < CHUNK.size:
        return data
    first, last, *_ = CHUNK.unpack_from(data)
    rest = data[CHUNK.size :]
    return CHUNK.pack(first, last, len(rest), crc32(rest), 0, len(rest)) + rest


def _reseal_episode(data: bytes) -> bytes:
    """Checksums of chunks, metadata and data are right, as far as there are blocks."""
    pieces, place = [data[:8]], 8
    while place + BLOCK.size <= len(data):
        opcode, length = BLOCK.unpack_from(data, place)
        body = data[place + BLOCK.size : place + BLOCK.size + length]
        if len(body) < length:
            break
        if opcode == Opcode.CHUNK:
            body = _reseal_chunk(body)
        elif opcode == Opcode.METADATA:
            body = _reseal_metadata(body)
        elif opcode == Opcode.DATA_END:
            body = U32.pack(crc32(b"".join(pieces)))
        pieces.append(BLOCK.pack(opcode, len(body)) + body)
        place += BLOCK.size + length
    return b"".join(pieces) + data[place:]


def _reseal_metadata(body: bytes) -> bytes:
    try:
        _, metadata = read_metadata(body)
    except BadInput:
        return body
    found = metadata.pop("crc32", "")
    return body.replace(found.encode(), metadata_crc(metadata).encode()) if found else body


def _blocks(path: Path) -> tuple[bytes, bytes]:
    """The first chunk and the metadata of an episode."""
    bodies: dict[int, bytes] = {}
    with closing(EpisodeFile(path)) as file:
        while (block := file._reader.next_block()) is not None:
            bodies.setdefault(block.opcode, bytes(block.body))
    return bodies[Opcode.CHUNK], bodies[Opcode.METADATA]


def mutated(data: bytes, rng: Random) -> bytes:
    """One to four random changes."""
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        data = rng.choice((_flip, _number, _cut, _insert, _double, _token, _token))(data, rng)
    return data


def _flip(data: bytes, rng: Random) -> bytes:
    if not data:
        return data
    changed = bytearray(data)
    changed[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _number(data: bytes, rng: Random) -> bytes:
    """Somewhere there is a number on the edge of what its type holds, as a length may be."""
    form = rng.choice(("<B", "<H", "<I", "<Q"))
    number = struct.pack(form, rng.choice(NUMBERS) % (1 << 8 * struct.calcsize(form)))
    place = rng.randrange(max(1, len(data) - len(number)))
    return data[:place] + number + data[place + len(number) :]


def _cut(data: bytes, rng: Random) -> bytes:
    first, last = sorted(rng.randrange(len(data) + 1) for _ in range(2))
    return rng.choice((data[:first], data[first:], data[:first] + data[last:]))


def _insert(data: bytes, rng: Random) -> bytes:
    place = rng.randrange(len(data) + 1)
    return data[:place] + rng.randbytes(rng.choice((1, 2, 8, 64))) + data[place:]


def _double(data: bytes, rng: Random) -> bytes:
    first, last = sorted(rng.randrange(len(data) + 1) for _ in range(2))
    return data[:last] + data[first:]


def _token(data: bytes, rng: Random) -> bytes:
    """Another word in the place of one of a text."""
    tokens = list(islice(TOKEN.finditer(data), 400))
    if not tokens:
        return data
    token = rng.choice(tokens)
    return data[: token.start()] + rng.choice(WORDS) + data[token.end() :]


def mutants(decoder: Decoder, rng: Random) -> Iterator[bytes]:
    """As they are, and resealed, in turns."""
    for sample in cycle(decoder.samples):
        mutant = mutated(sample, rng)
        yield mutant
        if decoder.reseal is not None:
            yield decoder.reseal(mutated(sample, rng))


def attack(decoders: dict[str, Decoder], count: int, seed: int) -> Counter[str]:
    """Decode so many mutants; returns how many were let in, by decoder."""
    rng, accepted = Random(seed), Counter[str]()
    sources = {name: mutants(decoder, rng) for name, decoder in decoders.items()}
    for name in islice(cycle(decoders), count):
        mutant = next(sources[name])
        try:
            decoders[name].decode(mutant)
        except BadInput as error:
            assert "\n" not in str(error), (name, seed, mutant)
        except Exception as error:
            raise AssertionError(f"{name}, seed {seed}: {error!r} on {mutant!r}") from error
        else:
            accepted[name] += 1
    return accepted


def test_samples_are_sound(decoders: dict[str, Decoder]) -> None:
    for decoder in decoders.values():
        for sample in decoder.samples:
            decoder.decode(sample)
            if decoder.reseal is not None:
                assert decoder.reseal(sample) == sample


def test_mutants_are_refused_as_declared_or_decode(decoders: dict[str, Decoder]) -> None:
    attack(decoders, SHORT, seed=1)


@pytest.mark.slow
def test_a_million_mutants_leave_nothing_behind(decoders: dict[str, Decoder]) -> None:
    process = psutil.Process()
    attack(decoders, LONG // 20, seed=2)  # what is cached is cached
    before = process.memory_info().rss
    accepted = attack(decoders, LONG - LONG // 20, seed=3)
    growth_mb = (process.memory_info().rss - before) / 1e6
    print(f"{LONG} mutants, {accepted.total()} decoded, memory +{growth_mb:.1f} MB")  # noqa: T201
    assert growth_mb < ALLOWED_GROWTH_MB


@given(data=st.binary(max_size=300), place=st.integers(0, 100))
def test_any_bytes_anywhere(
    data: bytes, place: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    decoders = _once(tmp_path_factory)
    for name, decoder in decoders.items():
        for mutant in (data, decoder.samples[0][:place] + data):
            try:
                decoder.decode(mutant)
            except BadInput as error:
                assert "\n" not in str(error), name
