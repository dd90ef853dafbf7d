"""Results of `serl setup` for an arm: workspace, cameras and setup steps."""

from __future__ import annotations

import math
from typing import Annotated, Self

from pydantic import Field, model_validator

from serl.camera import WHOLE, Crop
from serl.geometry import UnitQuaternion, Vector, is_in_box
from serl.motion import Box
from serl.types import FrozenModel

LEAST_SIDE_M, LARGEST_SIDE_M = 0.04, 1.5
_AXES = "xyz"

CameraName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,31}$")]


class Workspace(FrozenModel):
    """The allowed positions and orientations of the tool, in the base frame.

    Attributes:
        low_m: lowest corner of the box of allowed positions.
        high_m: highest corner of the box.
        home_m: position of the tool with the joints at home, inside the box.
        reference: orientation of the tool at home (xyzw); rotations are limited about it.
        max_rotation_rad: largest rotation of the tool from `reference`.
        keep_out: boxes within the workspace that the tool must not enter.
    """

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
            if is_in_box(self.home_m, box.low_m, box.high_m):
                raise ValueError(f"home is in keep_out.{number}: {self.home_m} m")
        return self

    def allows(self, position: Vector) -> bool:
        """Return whether the tool may be at a position: in the box, and in no keep-out box."""
        rows = zip(self.low_m, position, self.high_m, strict=True)
        kept_out = any(is_in_box(position, box.low_m, box.high_m) for box in self.keep_out)
        return not kept_out and all(low <= at <= high for low, at, high in rows)


class CellCamera(FrozenModel):
    """A camera of the robot cell.

    Attributes:
        topic: absolute name to which `/image_raw` is appended, for example /front.
        compressed: the images are JPEG or PNG.
        crop: the part of the picture used by tasks.
        rate_hz: measured frame rate.
    """

    topic: str = Field(pattern=r"^(/[A-Za-z][A-Za-z0-9_]*)+$")
    compressed: bool = False
    crop: Crop = WHOLE
    rate_hz: float = Field(gt=0)


class SetupResult(FrozenModel):
    """The result of one step of `serl setup`.

    Attributes:
        at: date and time.
        found: measured values, in one line.
        skipped: reason given by the person for skipping the step; empty if it was done.
    """

    at: str
    found: str = ""
    skipped: str = ""
