from __future__ import annotations

import numpy as np
import pytest
from pydantic import ValidationError

from serl.camera import View, image_specs
from serl.errors import SpecMismatch


def picture(width: int, height: int) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    return np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8)


def test_view_without_crop_returns_copy_of_picture() -> None:
    view = View(camera="front", width=20, height=10)
    assert view.capture_size == (20, 10)
    seen = picture(20, 10)
    cut = view.cut(seen)
    assert np.array_equal(cut, seen)
    cut[:] = 0
    assert seen.any()


def test_capture_size_is_smallest_that_covers_crop() -> None:
    view = View(camera="front", width=20, height=10, crop=(0.25, 0.5, 0.75, 1.0))
    assert view.capture_size == (40, 20)
    seen = picture(40, 20)
    assert np.array_equal(view.cut(seen), seen[10:20, 10:30])


def test_larger_picture_is_scaled_down_by_area() -> None:
    view = View(camera="front", width=8, height=8, crop=(0.0, 0.0, 0.5, 1.0), capture=(32, 16))
    seen = picture(32, 16)
    means = seen[:, :16].reshape(8, 2, 8, 2, 3).mean((1, 3))
    cut = view.cut(seen)
    assert cut.shape == view.spec.shape == (8, 8, 3)
    assert np.abs(cut - means).max() <= 0.51


@pytest.mark.parametrize("size", [(31, 16), (32, 17), (16, 32)])
def test_view_refuses_picture_of_wrong_size(size: tuple[int, int]) -> None:
    view = View(camera="wrist", width=8, height=8, capture=(32, 16))
    with pytest.raises(SpecMismatch, match=r"camera wrist: expected .*\[16, 32, 3\], got"):
        view.cut(picture(*size))


@pytest.mark.parametrize(
    "wrong",
    [
        {"crop": (0.5, 0.0, 0.5, 1.0)},
        {"crop": (0.0, 0.0, 1.1, 1.0)},
        {"crop": (0.0, 0.9, 1.0, 0.1)},
        {"crop": (0.0, 0.0, 0.001, 1.0)},
        {"capture": (4, 4)},
        {"width": 0},
        {"colour": "red"},
    ],
)
def test_invalid_view_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        View.model_validate({"camera": "front", **wrong})


def test_image_specs_match_views() -> None:
    specs = image_specs({"a": View(camera="x", width=9, height=8), "b": View(camera="x")})
    assert [(name, spec.shape) for name, spec in specs.items()] == [
        ("a", (8, 9, 3)),
        ("b", (84, 84, 3)),
    ]
    assert {spec.dtype for spec in specs.values()} == {"uint8"}
