"""What a fault is: an injector with what must hold. `catalogue.py` collects all of them.

One registry drives the tests (`test_faults.py`), the chaos of `make soak`
(`tests/soak/test_chaos.py`) and the tables in `docs/faults.md` (`python -m tests.faults`).
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from serl.errors import SerlError

Trial = Callable[[Any], None]
"""Injects a fault, and fails unless the required behaviour follows.

Its argument is the object of the fault's scene, or an empty folder.
"""

Strike = Callable[[Any, Random], str]
"""Injects a fault into a living `tests.faults.system.System`; says in words what it did."""


@dataclass(frozen=True)
class Scene:
    """Processes in which several faults are injected one after the other.

    Attributes:
        start: starts them in an empty folder.
        check: fails unless a fault left them as all faults must; called after each.
    """

    start: Callable[[Path], AbstractContextManager[Any]]
    check: Callable[[Any], None] = lambda scene: None

    @property
    def name(self) -> str:
        """Unique: the name of the function that starts it."""
        return self.start.__name__


class Level(StrEnum):
    """How much of the product a trial runs."""

    UNIT = "U"
    COMPONENT = "C"
    PROCESSES = "S"
    SOAK = "K"


class Recipe(StrEnum):
    """A means of injection that not every machine has."""

    STRACE = "strace"
    NAMESPACES = "namespaces"
    NFTABLES = "nftables"
    ROOT = "root"
    COMPILER = "a C compiler"

    @property
    def missing(self) -> str:
        """Why this machine cannot do it; empty when it can."""
        return _missing(self)


@dataclass(frozen=True)
class Fault:
    """One entry of the catalogue.

    Attributes:
        number: in the catalogue of faults; an entry may have several trials.
        title: what happens.
        injected: how.
        required: what must hold, with its numbers.
        level: how much runs.
        trial: injects it, and fails unless what is required holds.
        needs: means of injection; without one of them the trial is skipped, loudly.
        scene: the processes that the fault shares with others; None for a fault on its own.
    """

    number: int
    title: str
    injected: str
    required: str
    level: Level
    trial: Trial
    needs: tuple[Recipe, ...] = ()
    scene: Scene | None = None

    @property
    def name(self) -> str:
        """Unique: number and trial."""
        return f"{self.number:02d}-{self.trial.__name__}"

    @property
    def missing(self) -> str:
        """Why it cannot be injected on this machine; empty when it can."""
        return "; ".join(reason for need in self.needs if (reason := need.missing))


class Registry:
    """All faults, by number, and the strikes of them that a living system can be dealt."""

    def __init__(self) -> None:
        self._faults: list[Fault] = []
        self.strikes: dict[str, Strike] = {}

    def __iter__(self) -> Iterator[Fault]:
        return iter(sorted(self._faults, key=lambda fault: (fault.number, fault.name)))

    def fault(
        self,
        number: int,
        title: str,
        *,
        injected: str,
        required: str,
        level: Level,
        needs: tuple[Recipe, ...] = (),
        scene: Scene | None = None,
    ) -> Callable[[Trial], Trial]:
        """Enter the decorated trial."""

        def enter(trial: Trial) -> Trial:
            self._faults.append(
                Fault(number, title, injected, required, level, trial, needs, scene)
            )
            return trial

        return enter

    def strike(self, strike: Strike) -> Strike:
        """Enter the decorated function into chaos, under its name."""
        self.strikes[strike.__name__] = strike
        return strike


REGISTRY = Registry()


class Stage:
    """Runs the trials of faults; a scene stays open until a fault of another one, or a failure.

    Args:
        root: folder in which each scene gets a folder.
    """

    def __init__(self, root: Path) -> None:
        self._root, self._count = root, 0
        self._scene: Scene | None = None
        self._open: Any = None
        self._stack = ExitStack()

    def run(self, fault: Fault, folder: Path) -> None:
        """Run a fault's trial in its scene, or in `folder`; a failed trial closes the scene."""
        if fault.scene is None:
            fault.trial(folder)
            return
        if fault.scene is not self._scene:
            self.close()
            self._count += 1
            (place := self._root / f"scene{self._count}").mkdir()
            self._open = self._stack.enter_context(fault.scene.start(place))
            self._scene = fault.scene
        try:
            fault.trial(self._open)
            fault.scene.check(self._open)
        except BaseException as error:
            self._scene = None
            if not self._stack.__exit__(type(error), error, error.__traceback__):
                raise

    def close(self) -> None:
        """Close the open scene, which checks what must hold at its end.

        A node of the scene that stood still for 1 s on a busy machine is deaf (`serl.ros.ports`):
        that is no failure of the faults before.
        """
        self._scene = None
        try:
            self._stack.close()
        except SerlError as error:
            if "deaf: another process removed" not in str(error):
                raise


@cache
def _missing(recipe: Recipe) -> str:
    match recipe:
        case Recipe.STRACE:
            works = _runs("strace", "-f", "-qq", "-o", "/dev/null", "true")
            return "" if works else "strace is missing or may not trace (apt-get install strace)"
        case Recipe.NAMESPACES:
            works = _runs("unshare", "-rmn", "true") and shutil.which("ip") is not None
            return "" if works else "unprivileged namespaces (unshare -rmn) or iproute2 are missing"
        case Recipe.NFTABLES:
            works = _runs("unshare", "-rn", "nft", "list", "ruleset")
            return "" if works else "nft is missing or may not be used (apt-get install nftables)"
        case Recipe.ROOT:
            return "" if os.getuid() == 0 else "not root: cannot act as another user"
        case Recipe.COMPILER:
            return "" if shutil.which("cc") else "no C compiler: cc (apt-get install gcc)"


def _runs(*command: str) -> bool:
    if shutil.which(command[0]) is None:
        return False
    return subprocess.run(command, capture_output=True, check=False).returncode == 0
