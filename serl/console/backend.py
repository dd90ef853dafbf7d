"""Interface between the console and a run, implemented over ROS 2 and by fakes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from serl.console.messages import Order
from serl.teleop.mapping import Wish


class Picture(NamedTuple):
    """One frame of a camera.

    Attributes:
        serial: number that increases with every new frame.
        jpeg: the frame, compressed.
    """

    name: str
    serial: int
    jpeg: bytes


class ConsoleBackend(Protocol):
    """Interface to a run and its robot. No method blocks; `execute` and `obey` are awaited."""

    def drive(self, operator_input: Wish) -> None:
        """Apply one heartbeat of the operator with the requested motion."""
        ...

    async def execute(self, command: str) -> str:
        """Execute a command of `messages.COMMANDS`; return its result, or raise `SerlError`."""
        ...

    async def obey(self, order: Order) -> str:
        """Carry out an order of the operator; return its result, or raise `SerlError`.

        A confirmation counts only for the question that the guard asks.
        """
        ...

    def state(self) -> Mapping[str, Any]:
        """Return the active controller, or why the robot holds; called several times a second."""
        ...

    def progress(self) -> Mapping[str, Any]:
        """Return the progress of the training; called once a second, in a thread of its own."""
        ...

    def pictures(self) -> list[Picture]:
        """Return the newest frame of each camera; frames are drawn only while this is called."""
        ...

    def film(self, episode: str) -> bytes | None:
        """Return the film of a recorded episode (`serl.console.films`); None without one."""
        ...

    def report(self) -> Path | None:
        """Return the path of the run's report; None while there is none."""
        ...
