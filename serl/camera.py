"""Views: cropped and resized camera images for policies and reward models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Self

import numpy as np
from pydantic import AfterValidator, Field, model_validator

from serl.errors import SpecMismatch
from serl.specs import ArraySpec
from serl.types import FrozenModel, Image

REAL = "camera"
"""Value used in place of a renderer for images of real cameras."""


def check_crop(crop: tuple[float, float, float, float]) -> tuple[float, float, float, float]:
    """Return a crop; raise `ValueError` unless it is within the picture and not empty."""
    left, top, right, bottom = crop
    if not (0.0 <= left < right <= 1.0 and 0.0 <= top < bottom <= 1.0):
        raise ValueError(f"crop {crop}: expected 0 <= left < right <= 1 and 0 <= top < bottom <= 1")
    return crop


Crop = Annotated[tuple[float, float, float, float], AfterValidator(check_crop)]
"""Left, top, right and bottom edge of a crop, as fractions of the picture."""

MOST_PX = 1024
"""Largest width and height of a view, pixels."""

WHOLE: Crop = (0.0, 0.0, 1.0, 1.0)
"""The crop that keeps the whole picture."""


class View(FrozenModel):
    """A crop of a camera's picture, resized; several views may share a camera.

    Attributes:
        camera: name of the camera.
        width: width of the view, pixels.
        height: height of the view, pixels.
        crop: left, top, right and bottom edge of the crop, as fractions of the picture.
        capture: width and height of the full picture; None for the smallest that the crop needs.
    """

    camera: str
    width: int = Field(84, ge=8, le=MOST_PX)
    height: int = Field(84, ge=8, le=MOST_PX)
    crop: Crop = WHOLE
    capture: tuple[int, int] | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if max(self.capture_size) > 4096 or min(self.capture_size) < 8:
            raise ValueError(f"capture {self.capture_size}: expected 8 to 4096 pixels each way")
        return self

    @property
    def capture_size(self) -> tuple[int, int]:
        """Width and height of the picture from which the view is cut, pixels."""
        left, top, right, bottom = self.crop
        least = round(self.width / (right - left)), round(self.height / (bottom - top))
        return self.capture or least

    @property
    def spec(self) -> ArraySpec:
        """Shape and dtype of the view's image."""
        return ArraySpec(shape=(self.height, self.width, 3), dtype="uint8", unit="RGB")

    def cut(self, picture: Image) -> Image:
        """Return the view of a picture of the capture size, (H, W, 3) uint8, as a new array.

        Raises:
            SpecMismatch: the picture has another size.
        """
        width, height = self.capture_size
        if picture.shape != (height, width, 3):
            raise SpecMismatch(
                f"camera {self.camera}: expected a picture of {[height, width, 3]}, "
                f"got {list(picture.shape)}"
            )
        part = crop_picture(picture, self.crop)
        if part.shape[:2] == (self.height, self.width):
            return part.copy()
        import cv2  # takes half a second, needed only to resize

        resized: Image = cv2.resize(
            np.ascontiguousarray(part), (self.width, self.height), interpolation=cv2.INTER_AREA
        )
        return resized


def image_specs(views: Mapping[str, View]) -> dict[str, ArraySpec]:
    """Return the specs of the views' images, by name."""
    return {name: view.spec for name, view in views.items()}


def crop_picture(picture: Image, crop: Crop) -> Image:
    """Return the crop of a picture, (H, W, 3); never empty."""
    height, width, _ = picture.shape
    left, top, right, bottom = crop
    rows = slice(round(top * height), max(round(bottom * height), round(top * height) + 1))
    columns = slice(round(left * width), max(round(right * width), round(left * width) + 1))
    return picture[rows, columns]
