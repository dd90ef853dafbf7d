"""Detection of stale, frozen, black or missing camera images."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from zlib import crc32

from pydantic import Field

from serl.errors import Silent
from serl.loop import Observer
from serl.specs import ArraySpec
from serl.types import ActionSource, FrozenModel, Image, Observation

logger = logging.getLogger(__name__)

_EQUAL, _EQUAL_S = 3, 0.15


class FrozenDetector:
    """A counter of consecutive images that are equal byte by byte, as no two of a noisy sensor are.

    Attributes:
        count: number of equal images in a row so far.
        stamp_s: stamp of the newest image; NaN if unknown.
    """

    def __init__(self) -> None:
        self.count, self.stamp_s = 0, math.nan
        self._checksum = -1
        self._since_s = math.nan

    def add(self, data: bytes | memoryview, stamp_s: float) -> None:
        """Add the bytes of the next image."""
        checksum = crc32(data)
        if checksum != self._checksum:
            self._checksum, self.count, self._since_s = checksum, 0, stamp_s
        self.count, self.stamp_s = self.count + 1, stamp_s

    @property
    def frozen(self) -> bool:
        """Whether the camera is frozen: at least 3 equal images whose stamps span 0.15 s or more.

        This is longer than a driver repeats an image, and is detected within 300 ms at 10 Hz.
        """
        return self.count >= _EQUAL and self.stamp_s - self._since_s >= _EQUAL_S


class CameraFault(Silent):
    """An error for an image that cannot be trusted; later images may be valid again."""


class CameraMonitorConfig(FrozenModel):
    """Limits beyond which images are rejected.

    Attributes:
        max_age_s: age above which an image is stale, by its stamp and the robot's.
        frozen_readings: number of images in a row, equal byte by byte, at which a camera counts as
            frozen: sensors are noisy. An image read again with an unchanged stamp is not counted.
            0 for simulated cameras, which are not noisy.
        darkest: an image without any value brighter than this is black.
        max_skew_s: time between the cameras' stamps above which a warning is logged, once per
            episode.
        stamped: whether images without a stamp are rejected, because they may be of any time; False
            for simulations in this process, whose images are rendered at the instant of the call.
    """

    max_age_s: float = Field(0.2, gt=0)
    frozen_readings: int = Field(5, ge=0)
    darkest: int = Field(8, ge=0, le=255)
    max_skew_s: float = Field(0.1, gt=0)
    stamped: bool = True


class CameraMonitor(Observer):
    """A check of the camera images of consecutive readings.

    Args:
        images: specs of the images that each reading must contain, by camera.

    Attributes:
        skewed: number of readings whose cameras were too far apart in time.
    """

    def __init__(
        self, images: Mapping[str, ArraySpec], config: CameraMonitorConfig | None = None
    ) -> None:
        self.skewed = 0
        self._images, self._config = images, config or CameraMonitorConfig()
        self._frozen: dict[str, FrozenDetector] = {}
        self._warned = False

    def on_begin(self, chosen_by: ActionSource) -> None:
        """Reset the check at the start of an episode."""
        self._warned = False
        self._frozen.clear()

    def on_reading(self, reading: Observation) -> None:
        """Check a reading, and begin anew after a fault; raise as `check` does."""
        try:
            self.check(reading)
        except CameraFault:
            self._frozen.clear()
            raise

    def check(self, reading: Observation) -> None:
        """Raise `CameraFault`, naming the camera, when one of the images cannot be trusted."""
        if self._config.stamped and self._images and "robot" not in reading.stamps:
            raise CameraFault("robot: its reading has no stamp, the age of its images is unknown")
        now_s = reading.stamps.get("robot", 0.0)
        for name, spec in self._images.items():
            if name not in reading.images:
                raise CameraFault(f"camera {name}: gone, no image")
            if self._config.stamped and name not in reading.stamps:
                raise CameraFault(f"camera {name}: its image has no stamp, it may be of any time")
            image, age_s = reading.images[name], now_s - reading.stamps.get(name, now_s)
            if image.shape != spec.shape:
                shapes = f"expected {list(spec.shape)}, got {list(image.shape)}"
                raise CameraFault(f"camera {name}: another size: {shapes}")
            if image.dtype != spec.dtype:
                types = f"expected {spec.dtype}, got {image.dtype}"
                raise CameraFault(f"camera {name}: another type: {types}")
            limit_s = self._config.max_age_s
            if not age_s >= -limit_s:  # also true for NaN
                raise CameraFault(f"camera {name}: its image is from the future, {-age_s:.2f} s")
            if age_s > limit_s:
                raise CameraFault(
                    f"camera {name}: its image is {age_s:.2f} s old, over {limit_s} s"
                )
            if int(image.max()) <= self._config.darkest:
                raise CameraFault(f"camera {name}: black")
            self._check_frozen(name, image, reading.stamps.get(name, math.nan))
        self._check_skew(reading)

    def _check_frozen(self, name: str, image: Image, stamp_s: float) -> None:
        detector = self._frozen.setdefault(name, FrozenDetector())
        if not self._config.frozen_readings or stamp_s == detector.stamp_s:
            return  # a stamp that is unknown, NaN, equals none
        detector.add(image.data if image.flags.c_contiguous else image.tobytes(), stamp_s)
        if detector.count >= self._config.frozen_readings:
            raise CameraFault(f"camera {name}: frozen, {detector.count} equal images in a row")

    def _check_skew(self, reading: Observation) -> None:
        stamps = [reading.stamps[name] for name in self._images if name in reading.stamps]
        skew_s = max(stamps) - min(stamps) if stamps else 0.0
        if skew_s <= self._config.max_skew_s:
            return
        self.skewed += 1
        if not self._warned:
            self._warned = True
            logger.warning("cameras are %.2f s apart, over %g s", skew_s, self._config.max_skew_s)
