from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serl.errors import SerlError
from serl.specs import ArraySpec
from serl.training.frames import FrameStore, frame_bytes, random_shift

CAMERAS = {
    "front": ArraySpec(shape=(9, 7, 3), dtype="uint8"),
    "wrist": ArraySpec(shape=(8, 8, 3), dtype="uint8"),
}


def noise(*shape: int, seed: int = 0) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


def padded_crop(
    image: np.ndarray[tuple[int, ...], np.dtype[np.uint8]], most: int, dy: int, dx: int
) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """Pad by repeating the edges, then crop to the original size (reference implementation)."""
    padded = np.pad(image, ((most, most), (most, most), (0, 0)), mode="edge")
    top, left = most - dy, most - dx
    return padded[top : top + image.shape[0], left : left + image.shape[1]]


@settings(deadline=None)
@given(most=st.integers(0, 4), seed=st.integers(0, 100))
def test_random_shift_equals_random_crop_of_padded_image(most: int, seed: int) -> None:
    frames, slots = noise(5, 9, 7, 3), np.array([4, 0, 4, 2])
    out = random_shift(frames, slots, most, np.random.default_rng(seed))
    every = [
        [
            padded_crop(frames[slot], most, dy, dx)
            for dy in range(-most, most + 1)
            for dx in range(-most, most + 1)
        ]
        for slot in slots
    ]
    for image, possible in zip(out, every, strict=True):
        assert any(np.array_equal(image, crop) for crop in possible)


@pytest.mark.parametrize("on_disk", [False, True])
def test_frame_store_shifts_like_random_shift(on_disk: bool, tmp_path: Path) -> None:
    frames, slots = noise(5, 9, 7, 3), np.array([4, 0, 4, 2])
    store = FrameStore({"front": CAMERAS["front"]}, 5, 4, tmp_path if on_disk else None)
    for slot, image in enumerate(frames):
        store.put(slot, {"front": image})
    taken = store.take(slots[:, None], np.random.default_rng(3))["front"]
    assert np.array_equal(taken, random_shift(frames, slots, 4, np.random.default_rng(3)))


def test_random_shift_uses_the_drawn_offsets() -> None:
    """Check that the first drawn number shifts down and the second right, so runs can repeat."""
    frames = noise(1, 9, 7, 3)
    out = random_shift(frames, np.zeros(40, np.int64), 3, np.random.default_rng(5))
    drawn = np.random.default_rng(5).integers(-3, 4, (40, 2)).tolist()
    for image, (down, right) in zip(out, drawn, strict=True):
        assert np.array_equal(image, padded_crop(frames[0], 3, down, right))


def test_each_sample_and_camera_gets_its_own_shift() -> None:
    frames = np.repeat(noise(1, 8, 8, 3), 2, 0)
    store = FrameStore({"a": CAMERAS["wrist"], "b": CAMERAS["wrist"]}, 2, shift_px=3)
    store.put(0, {"a": frames[0], "b": frames[1]})
    taken = store.take(np.zeros((40, 1), np.int64), np.random.default_rng(0))
    kinds = [{image.tobytes() for image in images} for images in taken.values()]
    assert min(map(len, kinds)) > 15
    assert any(not np.array_equal(a, b) for a, b in zip(taken["a"], taken["b"], strict=True))
    again = store.take(np.zeros((40, 1), np.int64), np.random.default_rng(0))
    assert all(np.array_equal(taken[name], again[name]) for name in taken)


@pytest.mark.parametrize("on_disk", [False, True])
def test_frame_store_returns_stored_frames_unchanged(on_disk: bool, tmp_path: Path) -> None:
    store = FrameStore(CAMERAS, 6, 0, tmp_path / "replay" if on_disk else None)
    frames = [
        {name: noise(*c.shape, seed=slot) for name, c in CAMERAS.items()} for slot in range(6)
    ]
    for slot, images in enumerate(frames):
        store.put(slot, images)
    store.put(2, frames[5])
    taken = store.take(np.array([[0], [2], [5], [1]]), np.random.default_rng(0))
    for row, slot in enumerate((0, 5, 5, 1)):
        assert all(np.array_equal(taken[name][row], frames[slot][name]) for name in CAMERAS)
    taken["front"][:] = 0
    assert store.take(np.array([[0]]), np.random.default_rng(0))["front"].any(), "a copy"
    assert not list(tmp_path.glob("replay/*")), "the file has no name"


def test_full_disk_gives_one_line_error(tmp_path: Path) -> None:
    with pytest.raises(SerlError, match=r"replay: [\d,]+ bytes in .*replay: (No space|File too)"):
        FrameStore(CAMERAS, 1 << 50, 0, tmp_path / "replay")


def test_frame_bytes_sums_cameras() -> None:
    assert frame_bytes(CAMERAS) == 9 * 7 * 3 + 8 * 8 * 3
    assert frame_bytes({}) == 0


def test_stacked_frames_share_one_shift() -> None:
    frame = noise(1, 9, 7, 3)[0]
    store = FrameStore({"front": CAMERAS["front"]}, 2, shift_px=2)
    store.put(0, {"front": frame})
    store.put(1, {"front": 255 - frame})
    pairs = np.array([[0, 1]] * 30)
    taken = store.take(pairs, np.random.default_rng(0))["front"]
    assert taken.shape == (30, 9, 7, 6)
    assert np.array_equal(taken[..., 3:], 255 - taken[..., :3])
    assert len({image.tobytes() for image in taken}) > 10, "each row has its own shift"
    still = FrameStore({"front": CAMERAS["front"]}, 2)
    still.put(1, {"front": frame})
    taken = still.take(np.array([[0, 1]]), np.random.default_rng(0))["front"]
    assert np.array_equal(taken[0], np.concatenate([np.zeros_like(frame), frame], -1))
