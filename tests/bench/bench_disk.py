"""Benchmark of replay images in a file, compared with images in memory, and check of equality.

    python tests/bench/bench_disk.py [--gb 6] [--folder DIR]

The file has no name and vanishes with the process. Its pages are evicted from memory, as on a
machine with too little memory: `cold` is read from the disk, `warm` from the page cache.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from serl.specs import ArraySpec
from serl.training.frames import FrameStore, Slots, frame_bytes
from serl.types import Image

PX, BATCH, ROUNDS, MEMORY_SLOTS = 128, 128, 20, 4000
CAMERAS = {
    name: ArraySpec(shape=(PX, PX, 3), dtype="uint8", unit="RGB") for name in ("front", "wrist")
}
FREE_GB = 4.0
"""Space left free on the disk."""

_PAGE_OUT = 21  # MADV_PAGEOUT of Linux 5.4, which Python has no name for


def main() -> None:
    """Fill, compare, and sample."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gb", type=float, default=6.0)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    options = parser.parse_args()
    free_gb = shutil.disk_usage(options.folder).free / 1e9
    if free_gb < options.gb + FREE_GB:
        parser.error(f"{options.folder}: {free_gb:.1f} GB are free, needs {options.gb + FREE_GB}")
    slots = int(options.gb * 1e9) // frame_bytes(CAMERAS)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        memory, disk = (
            FrameStore(CAMERAS, MEMORY_SLOTS),
            FrameStore(CAMERAS, slots, 0, Path(folder)),
        )
        fill(memory, MEMORY_SLOTS)
        start_s = time.perf_counter()
        fill(disk, slots)
        took_s = time.perf_counter() - start_s
        print(f"{slots} frames of 2 x {PX} px, {options.gb:.1f} GB, written in {took_s:.0f} s")
        print(f"memory of this process that is in no file: {anonymous_mb():.0f} MB")
        compare(memory, disk, slots)
        check(disk, slots)


def frame(slot: int) -> dict[str, Image]:
    """Return the images of a slot: noise and the slot's number."""
    images = {}
    for camera, name in enumerate(CAMERAS):
        image = np.roll(_NOISE, slot % 97, axis=0)
        image.reshape(-1)[:8] = np.array([slot * 2 + camera], np.int64).view(np.uint8)
        images[name] = image
    return images


def fill(store: FrameStore, slots: int) -> None:
    """Write each slot once."""
    for slot in range(slots):
        store.put(slot, frame(slot))


def compare(memory: FrameStore, disk: FrameStore, slots: int) -> None:
    """Print the speeds of sampling batches; the stores take turns."""
    rng = np.random.default_rng(0)
    seconds: dict[str, list[float]] = {"memory": [], "file, warm": [], "file, cold": []}
    for _ in range(ROUNDS):
        seconds["memory"].append(timed(memory, rng.integers(MEMORY_SLOTS, size=(BATCH, 1))))
        asked = rng.integers(slots, size=(BATCH, 1))
        page_out(disk)
        seconds["file, cold"].append(timed(disk, asked))
        seconds["file, warm"].append(timed(disk, asked))
    size_gb = BATCH * frame_bytes(CAMERAS) / 1e9
    print(f"| batches of {BATCH} frames, two cameras | ms | GB/s | of memory |\n|---|---|---|---|")
    own_s = {name: statistics.median(each) for name, each in seconds.items()}
    for name, took_s in own_s.items():
        ratio = own_s["memory"] / took_s
        print(f"| {name} | {1e3 * took_s:.1f} | {size_gb / took_s:.2f} | {ratio:.2f} |", flush=True)


def check(disk: FrameStore, slots: int, count: int = 2000) -> None:
    """Compare random frames byte by byte, whether in memory or on disk."""
    rng = np.random.default_rng(1)
    page_out(disk)
    for slot in rng.integers(slots, size=count).tolist():
        found, expected = disk.take(np.array([[slot]]), rng), frame(slot)
        if not all(np.array_equal(found[name][0], expected[name]) for name in CAMERAS):
            raise SystemExit(f"slot {slot}: holds another frame")
    print(f"{count} frames at random are what was written")


def timed(store: FrameStore, slots: Slots) -> float:
    """Return the seconds for one batch."""
    start_s = time.perf_counter()
    store.take(slots, np.random.default_rng(0))
    return time.perf_counter() - start_s


def page_out(store: FrameStore) -> None:
    """Evict the file's pages from memory."""
    for frames in store._images.values():
        mapped: Any = frames.base
        mapped.base.madvise(_PAGE_OUT)


def anonymous_mb() -> float:
    """Return the anonymous memory of this process, MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) / 1e3


_NOISE = np.random.default_rng(0).integers(0, 256, (PX, PX, 3), np.uint8)

if __name__ == "__main__":
    main()
