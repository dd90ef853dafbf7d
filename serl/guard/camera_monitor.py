"""A camera's pictures that stay the same, though each has a new stamp."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import NamedTuple, Self

from isal.isal_zlib import crc32
from pydantic import BaseModel, ConfigDict, Field

from serl.errors import Silent
from serl.robot import Guarded, Robot
from serl.specs import ArraySpec, ObservationSpec
from serl.types import Action, ActionSource, Image, Observation

_ALIKE, _ALIKE_S = 3, 0.15


class Alike:
    """Counts pictures that are equal, byte by byte, as no two of a sensor with its noise are.

    Attributes:
        count: of equal pictures in a row, so far.
    """

    def __init__(self) -> None:
        self.count = 0
        self._checksum = -1
        self._since_s = self._until_s = 0.0

    def add(self, data: bytes, stamp_s: float) -> None:
        """Take the bytes of the next picture."""
        checksum = crc32(data)
        if checksum != self._checksum:
            self._checksum, self.count, self._since_s = checksum, 0, stamp_s
        self.count, self._until_s = self.count + 1, stamp_s

    @property
    def frozen(self) -> bool:
        """Equal for longer than a driver repeats a picture, and sooner than 300 ms at 10 Hz."""
        return self.count >= _ALIKE and self._until_s - self._since_s >= _ALIKE_S


logger = logging.getLogger(__name__)


class CameraFault(Silent):
    """An image cannot be trusted; those that follow may be."""


class CameraWatchConfig(BaseModel):
    """When images are no longer believed.

    Attributes:
        max_age_s: an image older than this, by its stamp and the robot's, is stale.
        frozen_readings: so many equal images in a row, byte by byte, are a frozen camera: sensors
            are noisy. One that is read again, with the stamp that it had, is no other image. 0 for
            cameras of a simulation, which are not noisy.
        darkest: an image without any brighter value than this is black.
        max_skew_s: cameras further apart in time are told of, once an episode.
        stamped: an image without a stamp is not believed, for it may be of any time; False for
            simulations in this process, whose images are of the instant at which they are asked.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    max_age_s: float = Field(0.2, gt=0)
    frozen_readings: int = Field(5, ge=0)
    darkest: int = Field(8, ge=0, le=255)
    max_skew_s: float = Field(0.1, gt=0)
    stamped: bool = True


class CameraWatch:
    """Looks at one reading after the other.

    Args:
        images: what readings are to carry.
        config: see `CameraWatchConfig`.

    Attributes:
        skewed: readings whose cameras were too far apart in time.
    """

    def __init__(
        self, images: Mapping[str, ArraySpec], config: CameraWatchConfig | None = None
    ) -> None:
        self.skewed = 0
        self._images, self._config = images, config or CameraWatchConfig()
        self._newest: dict[str, _Newest] = {}
        self._told = False

    def begin(self) -> None:
        """An episode starts."""
        self._told = False
        self._newest.clear()

    def check(self, reading: Observation) -> None:
        """Raise `CameraFault`, naming the camera, when one of the images cannot be trusted."""
        if self._config.stamped and self._images and "robot" not in reading.stamps:
            raise CameraFault("robot: its reading has no stamp, images cannot be told to be fresh")
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
            if not age_s >= -limit_s:  # also where it is no number
                raise CameraFault(f"camera {name}: its image is from the future, {-age_s:.2f} s")
            if age_s > limit_s:
                raise CameraFault(
                    f"camera {name}: its image is {age_s:.2f} s old, over {limit_s} s"
                )
            if int(image.max()) <= self._config.darkest:
                raise CameraFault(f"camera {name}: black")
            self._check_frozen(name, image, reading.stamps.get(name))
        self._check_skew(reading)

    def _check_frozen(self, name: str, image: Image, stamp_s: float | None) -> None:
        before = self._newest.get(name)
        read_again = before is not None and stamp_s is not None and stamp_s == before.stamp_s
        if not self._config.frozen_readings or read_again:
            return
        checksum = crc32(image.data if image.flags.c_contiguous else image.tobytes())
        equal = before.equal + 1 if before and before.checksum == checksum else 1
        self._newest[name] = _Newest(stamp_s, checksum, equal)
        if equal >= self._config.frozen_readings:
            raise CameraFault(f"camera {name}: frozen, {equal} equal images in a row")

    def _check_skew(self, reading: Observation) -> None:
        stamps = [reading.stamps[name] for name in self._images if name in reading.stamps]
        skew_s = max(stamps) - min(stamps) if stamps else 0.0
        if skew_s <= self._config.max_skew_s:
            return
        self.skewed += 1
        if not self._told:
            self._told = True
            logger.warning("cameras are %.2f s apart, over %g s", skew_s, self._config.max_skew_s)


class _Newest(NamedTuple):
    """The newest image of a camera, and how many equal ones there were, it included."""

    stamp_s: float | None
    checksum: int
    equal: int


class WatchedRobot:
    """A robot whose readings pass a `CameraWatch`.

    Args:
        robot: what is driven.
        watch: looks at its readings.
        told: of each that it lets pass.
    """

    def __init__(
        self,
        robot: Robot,
        watch: CameraWatch,
        told: Callable[[Observation], object] = lambda reading: None,
    ) -> None:
        self._robot, self._watch, self._told = robot, watch, told

    @property
    def observation_spec(self) -> ObservationSpec:
        """As the robot."""
        return self._robot.observation_spec

    @property
    def action_spec(self) -> ArraySpec:
        """As the robot."""
        return self._robot.action_spec

    @property
    def stop_reason(self) -> str | None:
        """As the robot."""
        return self._robot.stop_reason

    def observe(self) -> Observation:
        """The robot's reading; stops it and raises `CameraFault` when images cannot be trusted."""
        reading = self._robot.observe()
        try:
            self._watch.check(reading)
        except CameraFault as error:
            self._robot.stop(str(error))
            raise
        self._told(reading)
        return reading

    def act(self, action: Action) -> Action:
        """As the robot."""
        return self._robot.act(action)

    def drive_as(self, source: ActionSource) -> None:
        """As the robot, where it has a guard."""
        if isinstance(self._robot, Guarded):
            self._robot.drive_as(source)

    def stop(self, reason: str) -> None:
        """As the robot."""
        self._robot.stop(reason)

    def recover(self) -> None:
        """As the robot; images before it are forgotten."""
        self._watch.begin()
        self._robot.recover()

    def __enter__(self) -> Self:
        self._robot.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._robot.__exit__(kind, error, trace)
