"""What a person taught an arm on its first day: where it may go, what sees it, what was tried."""

from __future__ import annotations

import math
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from serl.geometry import UnitQuaternion, Vector, is_between
from serl.motion import Box

LEAST_SIDE_M, LARGEST_SIDE_M = 0.04, 1.5
_AXES = "xyz"

Crop = tuple[float, float, float, float]
"""Left, top, right and bottom of a part, as shares of a picture."""

WHOLE: Crop = (0.0, 0.0, 1.0, 1.0)
CameraName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,31}$")]


class Workspace(BaseModel):
    """Where the tool may be, in the base frame.

    Attributes:
        low_m: lowest corner of a box.
        high_m: highest corner.
        home_m: where the tool is when the joints are at home, inside the box.
        reference: orientation of the tool there (xyzw); turns are limited about it.
        max_rotation_rad: how far the tool may turn from it.
        keep_out: boxes in it that the tool must not enter.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    low_m: Vector
    high_m: Vector
    home_m: Vector
    reference: UnitQuaternion
    max_rotation_rad: float = Field(0.5, gt=0, le=math.pi)
    keep_out: tuple[Box, ...] = Field((), max_length=64)

    @model_validator(mode="after")
    def _check(self) -> Self:
        rows = zip(_AXES, self.low_m, self.home_m, self.high_m, strict=True)
        for axis, low, home, high in rows:
            if high < low:
                raise ValueError(
                    f"the box is inverted along {axis}: its low corner is at {low:.3f} m, its "
                    f"high one at {high:.3f} m"
                )
            if not LEAST_SIDE_M <= high - low <= LARGEST_SIDE_M:
                raise ValueError(
                    f"the box is {high - low:.3f} m along {axis}: expected "
                    f"{LEAST_SIDE_M:g} to {LARGEST_SIDE_M:g} m"
                )
            if not low <= home <= high:
                raise ValueError(
                    f"home is outside the box along {axis}: {home:.3f} m, expected {low:.3f} to "
                    f"{high:.3f} m"
                )
        for number, box in enumerate(self.keep_out):
            if is_between(self.home_m, box.low_m, box.high_m):
                raise ValueError(f"home is in keep_out.{number}: {self.home_m} m")
        return self


class CellCamera(BaseModel):
    """A camera of the cell.

    Attributes:
        topic: what `image_raw` is below, from the root, such as /front.
        compressed: its pictures are JPEG or PNG.
        crop: the part that tasks see.
        rate_hz: as it was measured.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    topic: str = Field(pattern=r"^(/[A-Za-z][A-Za-z0-9_]*)+$")
    compressed: bool = False
    crop: Crop = WHOLE
    rate_hz: float = Field(gt=0)

    @model_validator(mode="after")
    def _check(self) -> Self:
        left, top, right, bottom = self.crop
        if not (0.0 <= left < right <= 1.0 and 0.0 <= top < bottom <= 1.0):
            raise ValueError(
                f"crop {self.crop}: expected 0 <= left < right <= 1, and so top, bottom"
            )
        return self


class SetupResult(BaseModel):
    """What came of a step of the first day.

    Attributes:
        at: date and time.
        found: what was measured, in one line.
        skipped: why it was not done, in the person's words; empty when it was.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    at: str
    found: str = ""
    skipped: str = ""
