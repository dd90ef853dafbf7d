from __future__ import annotations

import errno
import os
import struct
import time
import zlib
from collections.abc import Callable
from contextlib import closing
from io import BytesIO
from pathlib import Path
from typing import Any, Literal

import cv2
import numpy as np
import pytest
from mcap.reader import make_reader
from PIL import Image

from serl.errors import BadInput, CorruptData, SerlError
from serl.log.compression import Compactor, compact
from serl.log.episode_log import LogConfig
from serl.log.episode_reader import PART, EpisodeFile, read_episode, read_records
from serl.log.images import compress, decode
from serl.log.manifest import read_entries
from serl.log.recovery import recover
from serl.log.ros_messages import ENCODINGS, image_head
from serl.log.tail import Tail
from serl.specs import ArraySpec, ObservationSpec
from serl.system.files import FileLock, sha256_of
from serl.testing.samples import (
    BLIND,
    CONFIG,
    EPOCH,
    SPEC,
    encoded,
    leave_open,
    open_log,
    random_records,
    write_log,
)

from ..support.mutations import flip

UNLIMITED = 1 << 40
FULL = CONFIG.model_copy(update={"min_free_bytes": 1 << 60})
SHAPE = (24, 32, 3)
CAMERAS = ObservationSpec(
    state={}, images={name: ArraySpec(shape=SHAPE, dtype="uint8") for name in ("a", "b")}
)
SEEING = SPEC.model_copy(update={"observation": CAMERAS})


def config(images: Literal["raw", "png", "jpeg"]) -> LogConfig:
    return CONFIG.model_copy(update={"images": images})


def test_png_compaction_is_lossless(tmp_path: Path) -> None:
    items = random_records(3, 2)
    paths = write_log(tmp_path, items)
    assert [compact(path, config("png")) for path in paths] == [True, True]
    assert encoded(read_records(tmp_path, SPEC)) == encoded(items)
    with closing(Tail(tmp_path, EPOCH, 2)) as tail:
        assert tail.read(UNLIMITED) == encoded(items)[2:]
    assert not compact(paths[0], config("png"))
    with closing(EpisodeFile(paths[0])) as file:
        file.next_message()
        assert file.metadata["images"] == "png"
    assert {path.suffix for path in tmp_path.iterdir()} == {".mcap", ".jsonl", ".lock"}


def test_tail_continues_while_files_are_compacted(tmp_path: Path) -> None:
    items = random_records(3, 2)
    paths = write_log(tmp_path, items)
    tail = Tail(tmp_path, EPOCH)
    found = tail.read(1)
    for path in paths:
        compact(path, config("png"))
        found += tail.read(1)
    assert found + tail.read(UNLIMITED) == encoded(items)
    tail.close()


def test_smooth_images_become_smaller(tmp_path: Path) -> None:
    (path,) = write_log(tmp_path, random_records(3, spec=SEEING), spec=SEEING)
    rows = np.arange(24, dtype=np.uint8)[:, None, None]
    smooth = np.broadcast_to(rows, SHAPE).tobytes()
    for encoding in (ENCODINGS["png"], ENCODINGS["jpeg"]):
        assert len(compress(smooth, SHAPE, encoding, 95)) < len(smooth) / 3
    before = path.stat().st_size
    compact(path, config("jpeg"))
    assert path.stat().st_size < before


def test_jpeg_images_are_close_to_raw_ones(tmp_path: Path) -> None:
    colour = np.zeros(SHAPE, np.uint8)
    colour[..., 0], colour[..., 2] = 200, 50  # detects swapped red and blue
    data = compress(colour.tobytes(), SHAPE, "jpeg", 95)
    message = memoryview(image_head("jpeg", "a", SHAPE, len(data), 0) + data)
    found = np.frombuffer(decode(message, "jpeg", "a", SHAPE), np.uint8).reshape(SHAPE)
    assert np.abs(found.astype(int) - colour).max() < 5


def test_compacted_file_is_mcap_with_ros_images(tmp_path: Path) -> None:
    (path,) = write_log(tmp_path, items := random_records(2))
    compact(path, config("png"))
    with path.open("rb") as file:
        messages = list(make_reader(file, validate_crcs=True).iter_messages(["/image/front"]))
    assert len(messages) == 3
    for item, (schema, channel, message) in zip(items, messages, strict=True):
        assert schema is not None
        assert (schema.name, schema.encoding) == ("sensor_msgs/msg/CompressedImage", "ros2msg")
        assert channel.message_encoding == "cdr"
        start = message.data.index(b"\x89PNG")
        (length,) = struct.unpack_from("<I", message.data, start - 4)
        assert length == len(message.data) - start
        found = cv2.imdecode(np.frombuffer(message.data[start:], np.uint8), cv2.IMREAD_COLOR)
        pixels = cv2.cvtColor(found, cv2.COLOR_BGR2RGB)
        assert np.array_equal(pixels, item.observation.images["front"])


def test_manifest_lists_raw_and_compacted_content(tmp_path: Path) -> None:
    leave_open(tmp_path, random_records(2)[:2])
    (path,) = recover(tmp_path)
    before = sha256_of(path)
    compact(path, config("png"))
    raw, make_png = read_entries(tmp_path)[path.name]
    assert (raw.sha256, make_png.sha256) == (before, sha256_of(path))
    assert (make_png.records, make_png.ended, make_png.recovered) == (2, False, True)


@pytest.mark.parametrize("left", ["raw wanted", "no images"])
def test_file_without_need_for_compression_is_unchanged(tmp_path: Path, left: str) -> None:
    spec = BLIND if left == "no images" else SPEC
    (path,) = write_log(tmp_path, random_records(2, spec=spec), spec=spec)
    wanted = config("raw" if left == "raw wanted" else "png")
    before = path.read_bytes()
    assert not compact(path, wanted)
    assert path.read_bytes() == before


def test_compaction_is_refused_on_nearly_full_disk(tmp_path: Path) -> None:
    (path,) = write_log(tmp_path, random_records(2))
    before = path.read_bytes()
    with pytest.raises(SerlError, match="nearly full"):
        compact(path, FULL)
    assert path.read_bytes() == before


def test_concurrent_compaction_is_refused(tmp_path: Path) -> None:
    (path,) = write_log(tmp_path, random_records(1))
    with FileLock(tmp_path / "compaction.lock", "test"), pytest.raises(BadInput, match="in use"):
        compact(path, config("png"))


@pytest.mark.parametrize("call", ["open", "writev", "fsync", "rename"])
def test_failed_compaction_leaves_old_or_new_file(
    tmp_path: Path, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    items = random_records(2)
    for number in range(20):
        folder = tmp_path / str(number)
        (path,) = write_log(folder, items)
        with monkeypatch.context() as patch:
            patch.setattr(os, call, failing_call(getattr(os, call), number))
            error = ""
            try:
                compact(path, config("png"))
            except SerlError as raised:
                error = str(raised)
        assert encoded(read_records(folder, SPEC)) == encoded(items)
        assert not list(folder.glob("*.compact"))
        assert sha256_of(path) in {entry.sha256 for entry in read_entries(folder)[path.name]}
        compact(path, config("png"))
        assert encodings(folder) == ["png"]
        assert encoded(read_records(folder, SPEC)) == encoded(items)
        if not error:
            assert number > 0
            return
        assert "No space left" in error
    raise AssertionError("compaction never succeeded")


def failing_call(real: Callable[..., Any], after: int) -> Callable[..., Any]:
    left = after

    def call(*arguments: Any) -> Any:
        nonlocal left
        left -= 1
        if left == -1:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(*arguments)

    return call


def make_png(width: int, height: int, colour: int = 2) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        checksum = struct.pack(">I", zlib.crc32(kind + data))
        return struct.pack(">I", len(data)) + kind + data + checksum

    header = struct.pack(">IIBBBBB", width, height, 8, colour, 0, 0, 0)
    rows = zlib.compress(bytes((1 + 3 * 32) * 24))
    end = chunk(b"IDAT", rows) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + end


def make_jpeg(height: int, width: int) -> bytes:
    return cv2.imencode(".jpg", np.zeros((height, width, 3), np.uint8))[1].tobytes()


def image_message(data: bytes, encoding: str) -> memoryview:
    return memoryview(image_head(ENCODINGS[encoding], "a", SHAPE, len(data), 0) + data)


def test_image_of_declared_shape_is_decoded() -> None:
    assert decode(image_message(make_png(32, 24), "png"), "png", "a", SHAPE) == bytes(24 * 32 * 3)
    assert len(decode(image_message(make_jpeg(24, 32), "jpeg"), "jpeg", "a", SHAPE)) == 24 * 32 * 3


@pytest.mark.parametrize(
    ("data", "encoding"),
    [
        (make_png(60_000, 60_000), "png"),
        (make_png(24, 32), "png"),
        (make_png(32, 24, colour=3), "png"),
        (make_png(32, 24)[:40], "png"),
        (make_png(32, 24)[:-12], "png"),
        (make_png(32, 24) + b"more", "png"),
        (b"", "png"),
        (make_jpeg(24, 32), "png"),
        (make_png(32, 24), "jpeg"),
        (make_jpeg(32, 24), "jpeg"),
        (make_jpeg(24, 32)[:-2], "jpeg"),
        (make_jpeg(24, 32)[:60], "jpeg"),
        (make_jpeg(24, 32).replace(b"\xff\xc0", b"\xff\xc2"), "jpeg"),
        (b"", "jpeg"),
        (bytes(24 * 32 * 3 - 1), "raw"),
        (bytes(24 * 32 * 3 + 1), "raw"),
    ],
)
def test_invalid_image_is_refused(data: bytes, encoding: str) -> None:
    with pytest.raises(CorruptData, match="image a: "):
        decode(image_message(data, encoding), ENCODINGS[encoding], "a", SHAPE)


@pytest.mark.parametrize("encoding", ["png", "jpeg"])
def test_mutated_image_decodes_or_raises_corrupt_data(encoding: str) -> None:
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, SHAPE, np.uint8)
    good = image_message(compress(pixels.tobytes(), SHAPE, ENCODINGS[encoding], 95), encoding)
    refused = 0
    for _ in range(500):
        data = bytearray(good)
        place = int(rng.integers(len(data)))
        data[place : place + int(rng.integers(1, 5))] = rng.bytes(int(rng.integers(5)))
        try:
            found = decode(memoryview(data), ENCODINGS[encoding], "a", SHAPE)
            assert len(found) == pixels.size
        except CorruptData:
            refused += 1
    assert refused > 100


def run_steps(compactor: Compactor, count: int = 4) -> None:
    """Run steps, each to its end."""
    for _ in range(count):
        compactor.step()
        compactor.close()


def test_compactor_compacts_sealed_files_one_by_one(tmp_path: Path) -> None:
    compactor = Compactor(tmp_path / "log", config("png"))
    compactor.step()  # the folder does not exist yet
    items = random_records(2, 2, 2)
    with open_log(tmp_path / "log") as log:
        for item in items[:-1]:
            log.append(item)
    run_steps(compactor)
    assert encodings(tmp_path / "log") == ["png", "png", "png"]
    write_log(tmp_path / "log", random_records(1, epoch=EPOCH + 1), EPOCH + 1)
    run_steps(compactor, 1)
    assert encodings(tmp_path / "log") == ["png"] * 4


def test_compactor_leaves_open_and_damaged_files(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    part = leave_open(tmp_path, random_records(2, 1)[:2])
    first, second = write_log(tmp_path, random_records(1, 1, epoch=EPOCH + 1), EPOCH + 1)
    flip(first, -200)
    damaged = first.read_bytes()
    compactor = Compactor(tmp_path, config("png"))
    run_steps(compactor)
    assert first.read_bytes() == damaged
    assert not list(tmp_path.glob("*.compact"))
    assert part.name.endswith(PART)
    assert len(caplog.messages) == 1
    assert first.name in caplog.messages[0]
    assert len(read_episode(second, SPEC).steps) == 1


def test_compactor_retries_after_disk_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_log(tmp_path, random_records(2, 1))
    lock = tmp_path / "compaction.lock"
    lock.mkdir()  # simulates a disk error
    now_s = 0.0
    compactor = Compactor(tmp_path, config("png"), lambda: now_s)

    def steps() -> list[str]:
        run_steps(compactor)
        return encodings(tmp_path)

    assert steps() == ["raw", "raw"]
    now_s = 61.0
    assert steps() == ["raw", "raw"]
    lock.rmdir()
    assert steps() == ["raw", "raw"]
    now_s = 122.0
    assert steps() == ["png", "png"]
    assert len(caplog.messages) == 1


def test_compactor_does_not_retry_deleted_file(tmp_path: Path) -> None:
    first, second = write_log(tmp_path, random_records(2, 1))
    lock = tmp_path / "compaction.lock"
    lock.mkdir()
    now_s = 0.0
    compactor = Compactor(tmp_path, config("png"), lambda: now_s)
    run_steps(compactor, 1)
    lock.rmdir()
    first.unlink()
    now_s = 61.0
    write_log(tmp_path, random_records(1, epoch=EPOCH + 1), EPOCH + 1)
    run_steps(compactor)
    assert second.exists()
    assert encodings(tmp_path) == ["png", "png"]


def test_compactor_removes_leftovers_of_killed_one(tmp_path: Path) -> None:
    left = tmp_path / f"{EPOCH}-000000.compact"
    left.write_bytes(bytes(100))
    Compactor(tmp_path, FULL)
    assert not left.exists()


def test_compactor_sees_file_sealed_within_same_clock_tick(tmp_path: Path) -> None:
    """The folder's modification time is equal before and after, and in the future."""
    compactor = Compactor(tmp_path, config("png"))
    tick_ns = time.time_ns() + 60_000_000_000
    for epoch in (EPOCH, EPOCH + 1):
        write_log(tmp_path, random_records(1, epoch=epoch), epoch)
        os.utime(tmp_path, ns=(tick_ns, tick_ns))
        run_steps(compactor, 1)
    assert encodings(tmp_path) == ["png"] * 2


def encodings(folder: Path) -> list[str]:
    found = []
    for path in sorted(folder.glob("*.mcap")):
        with closing(EpisodeFile(path)) as file:
            file.next_message()
            found.append(file.metadata["images"])
    return found


def _other_images() -> dict[str, tuple[Literal["png", "jpeg"], bytes]]:
    deep = cv2.imencode(".png", np.zeros(SHAPE, np.uint16))[1].tobytes()
    frames = [Image.new("RGB", (32, 24), colour) for colour in ("red", "blue")]
    found: dict[str, tuple[Literal["png", "jpeg"], bytes]] = {"16 bits": ("png", deep)}
    for name, encoding, form in (("animated", "png", "PNG"), ("several", "jpeg", "MPO")):
        file = BytesIO()
        frames[0].save(file, form, save_all=True, append_images=frames[1:])
        found[name] = ("png" if encoding == "png" else "jpeg", file.getvalue())
    return found


@pytest.mark.parametrize("kind", ["16 bits", "animated", "several"])
def test_image_with_16_bits_or_several_frames_is_refused(kind: str) -> None:
    encoding, data = _other_images()[kind]
    message = memoryview(image_head(encoding, "a", SHAPE, len(data), 0) + data)
    with pytest.raises(CorruptData, match=r"16 bits a channel|more than one image"):
        decode(message, encoding, "a", SHAPE)
