"""Fake gamepad that rests, pushes and reports success in a cycle until it is unplugged."""

from __future__ import annotations

import time
from pathlib import Path

from pydantic import Field

from serl.errors import BadInput
from serl.intervention import Event
from serl.teleop.device import DeviceLost, DeviceReport
from serl.teleop.mapping import Axis, MappingConfig, Scale


class PadConfig(MappingConfig):
    """Mapping of the pad and the number of reads until it is unplugged.

    Attributes:
        looks: number of reads after which the pad is unplugged.
    """

    axes: dict[str, tuple[Axis, Scale]] = Field({"stick": ("x", 1.0)})
    deadman: str | None = "hold"
    events: dict[str, Event] = Field({"yes": Event.SUCCESS})
    looks: int = Field(1_000_000, ge=1, le=1_000_000)


class Pad:
    """Fake gamepad; see `serl.teleop.device.Device`."""

    Config = PadConfig
    name = "a pad from outside"

    def __init__(self, looks: int) -> None:
        self._left, self._turn = looks, -1

    @classmethod
    def open(cls, path: Path | None, config: MappingConfig) -> Pad:
        assert isinstance(config, PadConfig)
        if path is not None:
            raise BadInput(f"{path}: no pad")
        return cls(config.looks)

    def read(self) -> DeviceReport | None:
        self._left -= 1
        if self._left < 0:
            raise DeviceLost("the pad is unplugged")
        self._turn = (self._turn + 1) % 10
        held = frozenset({"hold"} if self._turn >= 4 else ())
        presses = {4: ("hold",), 9: ("yes",)}.get(self._turn, ())
        return DeviceReport({"stick": 1.0}, held, presses, time.monotonic())

    def close(self) -> None:
        pass


device = Pad
