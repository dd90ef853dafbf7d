"""Faults of a host's wall clock: it is set while processes move an arm, and they continue."""

from __future__ import annotations

import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from serl.ros.testing.processes import eventually

from ..ros.support.guard_bench import GuardBench
from .motion import bench_in
from .registry import REGISTRY, Level, Recipe

_SOURCE = Path(__file__).with_name("clock_step.c")


class HostClock:
    """Adjustable wall clock of all processes started with its environment variables."""

    def __init__(self, folder: Path) -> None:
        library, self._step = folder / "clock_step.so", folder / "clock_step"
        self.set_s(0)
        command = ("cc", "-shared", "-fPIC", "-O2", "-o", library, _SOURCE, "-ldl")
        subprocess.run(command, check=True)
        self.variables = {"LD_PRELOAD": str(library), "CLOCK_STEP": str(self._step)}

    def set_s(self, ahead_s: int) -> None:
        """Set the clock at once to `ahead_s` seconds ahead of the true time."""
        with self._step.open("r+b" if self._step.exists() else "wb") as file:
            file.write(struct.pack("q", ahead_s))


@contextmanager
def moving_by(folder: Path) -> Iterator[tuple[GuardBench, HostClock]]:
    """Start a guard, an arm and an actor that moves it, on a host with an adjustable clock."""
    clock = HostClock(folder)
    with bench_in(folder) as bench:
        bench.environment |= clock.variables
        bench.start_all()
        yield bench, clock


def _goes_on(bench: GuardBench) -> None:
    """Check that the arm moves and that soon no message is refused for a second."""

    def refused() -> dict[str, float]:
        return {name: count for name, count in bench.counts.items() if ": " in name}

    def is_quiet() -> bool:
        before, seen = refused(), len(bench.states)
        eventually(lambda: len(bench.states) > seen + 10)
        return refused() == before and bench.state.startswith("policy") and bench.is_moving()

    eventually(is_quiet, found=lambda: f"{bench.state}, {refused()}")


@REGISTRY.fault(
    46,
    "Host's clock is set while the arm moves",
    injected="the wall clock of guard, arm and actor is set by an hour: ahead, then back",
    required="the arm continues; the guard still names another node that commands the arm, and "
    "writes a stop to the disk",
    level=Level.PROCESSES,
    needs=(Recipe.COMPILER,),
)
def host_clock_set(folder: Path) -> None:
    with moving_by(folder) as (bench, clock):
        for ahead_s in (3600, 0):
            clock.set_s(ahead_s)
            _goes_on(bench)  # without an operator's help after a stop
        with bench.second_publisher():
            bench.until("protective stop: others publish")
        eventually(lambda: bench.call("ack")[0])
        bench.until_driven()
        press = bench.estop_button()
        stopped = "serl latch: estop\nthe topic estop\n"
        eventually(lambda: press() and bench.latch.read_text() == stopped)
