"""What the console shows and does; who is behind it (ROS 2, or a fake) is not its business."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from serl.teleop.mapping import Wish


class Picture(NamedTuple):
    """One frame of a camera.

    Attributes:
        name: of the camera.
        serial: grows with every new frame.
        jpeg: the frame.
    """

    name: str
    serial: int
    jpeg: bytes


class Cockpit(Protocol):
    """The run and its robot. Every method returns at once, but for `say` and `answer`."""

    def drive(self, wish: Wish) -> None:
        """One beat of the operator."""
        ...

    async def say(self, what: str) -> str:
        """One of `frames.SAYINGS`; what came of it, in words. Raises `SerlError` when nothing."""
        ...

    async def answer(self, question: str) -> str:
        """A yes to what the guard of the arm asks; raises `SerlError` when that is another one."""
        ...

    def state(self) -> Mapping[str, Any]:
        """Who drives, or why nobody does; several times a second."""
        ...

    def progress(self) -> Mapping[str, Any]:
        """How the training goes; once a second."""
        ...

    def pictures(self) -> list[Picture]:
        """The newest frame of each camera; asking keeps them coming."""
        ...

    def report(self) -> Path | None:
        """The report of the run, once there is one."""
        ...
