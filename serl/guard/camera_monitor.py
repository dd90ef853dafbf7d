"""A camera's pictures that stay the same, though each has a new stamp."""

from __future__ import annotations

from isal.isal_zlib import crc32

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
