"""Faults of size: small inputs that declare a huge size."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from serl.errors import BadInput
from serl.log.episode_reader import read_episode
from serl.log.images import decode
from serl.log.ros_messages import image_head
from serl.log.wire import (
    WireFrame,
    decode_frame,
    decode_hello,
    decode_record,
    encode_frame,
    encode_record,
)
from serl.runs.checkpoint import load, save
from serl.runs.folder import RunFolder
from serl.training.link import decode_snapshot

from .checkpoints import arrays
from .records import SPEC, episode, write_log
from .refusal import refusal
from .registry import REGISTRY, Level

ALLOWED_MB = 16.0
SHAPE = (64, 64, 3)
MANY = 1 << 60

Bomb = tuple[str, Callable[[], object]]


@REGISTRY.fault(
    55,
    "Huge or expanding message",
    injected="headers of 10 GB and more, 100,000 tensors, deep and large JSON, images and YAML "
    "that expand to gigabytes, for every decoder",
    required=f"refused as bad input; at most {ALLOWED_MB:g} MB allocated",
    level=Level.UNIT,
)
def bombs(folder: Path) -> None:
    for name, use in (*_messages(), *_images(), *_files(folder)):
        Path("/proc/self/clear_refs").write_text("5")  # reset the peak memory counter
        before_mb = _memory_mb("VmRSS")
        line = refusal(use, BadInput)
        assert 0 < len(line) < 1000, (name, line)
        grown_mb = _memory_mb("VmHWM") - before_mb
        assert grown_mb < ALLOWED_MB, f"{name}: {grown_mb:.1f} MB"


def _memory_mb(what: str) -> float:
    """Return this process's current (VmRSS) or peak (VmHWM) memory, MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith(f"{what}:"))
    return int(line.split()[1]) / 1e3


def _messages() -> Iterator[Bomb]:
    (step, *_) = episode(0, 1)
    record = encode_record(step)
    frame = b"".join(encode_frame(WireFrame(1, 1, 0, record)))
    tensor = {"dtype": "F32", "shape": [MANY, MANY], "data_offsets": [0, 4]}
    metadata = dict.fromkeys(("format", "version", "trained", "spec", "crc32"), "2")
    snapshots = {
        "header of 10 GB": _snapshot({}, length=10 << 30),
        "100,000 tensors": _snapshot({f"t{n}": 0 for n in range(100_000)}),
        "huge tensor": _snapshot({"__metadata__": metadata, "w": tensor}),
        "deep header": _snapshot({}, text=b'{"a":' * 50_000),
        "large header": _snapshot({}, text=b" " * (2 << 20)),
    }
    for name, data in snapshots.items():
        yield f"weights: {name}", partial(decode_snapshot, data, "")
    texts = (b'{"a":' * 100_000, b" " * (2 << 20), b'{"a":1e999}', b'{"a":' + b"9" * 100_000 + b"}")
    for text in texts:
        yield f"hello {text[:8]!r}", partial(decode_hello, text)
        bomb = record[:8] + struct.pack("<I", len(text)) + text
        yield f"record {text[:8]!r}", partial(decode_record, bomb, SPEC)
    claims = record[:8] + struct.pack("<I", (1 << 32) - 1) + record[12:]
    yield "record: text of 4 GB", partial(decode_record, claims, SPEC)
    yield "record: 65 MB", partial(decode_record, memoryview(_zeros), SPEC)
    yield "frame: 65 MB", partial(decode_frame, memoryview(_zeros))
    longer = bytearray(frame)
    longer[32:36] = b"\xff" * 4
    yield "frame: 4 GB", partial(decode_frame, bytes(longer))


_zeros = bytes(65 << 20)


def _snapshot(header: dict[str, object], length: int | None = None, text: bytes = b"") -> bytes:
    text = text or json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + bytes(8)


def _images() -> Iterator[Bomb]:
    def png(width: int, height: int) -> bytes:
        shape = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
        data = zlib.compress(bytes(1 << 16), 9)
        chunks = ((b"IHDR", shape), (b"IDAT", data), (b"IEND", b""))
        return b"\x89PNG\r\n\x1a\n" + b"".join(
            struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
            for kind, body in chunks
        )

    for width, height in ((50_000, 50_000), (64, 1 << 31), ((1 << 32) - 1,) * 2):
        data = png(width, height)
        message = memoryview(image_head("png", "wrist", SHAPE, len(data), 0) + data)
        yield f"png of {width} x {height}", partial(decode, message, "png", "wrist", SHAPE)


def _files(folder: Path) -> Iterator[Bomb]:
    log = write_log(folder / "log", 1, 2)[0]
    data = bytearray(log.read_bytes())
    for length in (10 << 30, MANY, (1 << 64) - 1):
        data[9:17] = struct.pack(
            "<Q", length
        )  # length field of the first block, after magic and opcode
        path = folder / f"{length}" / log.name
        path.parent.mkdir()
        path.write_bytes(data)
        yield f"log: block of {length} bytes", partial(read_episode, path, SPEC)
    files = dict.fromkeys(map(str, range(9**5)), 0)
    for name, text in {
        "large": b" " * (2 << 20),
        "deep": b'{"a":' * 100_000,
        "many": json.dumps({"format": 1, "step": 1, "files": files}).encode(),
    }.items():
        path = save(folder / name, 1, arrays(1), {})
        (path / "MANIFEST.json").write_bytes(text)
        yield f"checkpoint: {name} manifest", partial(load, path)
    yield from _configurations(folder)


def _configurations(folder: Path) -> Iterator[Bomb]:
    doubled = "\n".join(f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 9)}]" for n in range(1, 12))
    for name, text in {
        "laughs": f"l0: &l0 [ha]\n{doubled}\nformat: *l11",
        "large": "a: " + "x" * (2 << 20),
        "deep": "[" * 20_000,
    }.items():
        (run := folder / f"run-{name}").mkdir()
        (run / "config.yaml").write_text(text)
        yield f"configuration: {name}", partial(RunFolder.open, run)
