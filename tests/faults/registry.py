"""Registry of faults: injectors with the required behaviour, collected by `catalogue.py`.

One registry drives the tests (`test_faults.py`), the chaos of `make soak`
(`tests/soak/test_chaos.py`) and the tables in `docs/faults.md` (`python -m tests.faults`).
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from serl.errors import SerlError

Trial = Callable[[Any], None]
"""Inject a fault and fail unless the required behaviour follows.

The argument is the object of the fault's scene, or an empty folder.
"""

Strike = Callable[[Any, Random], str]
"""Inject a fault into a running `tests.faults.system.System`; return a description."""


@dataclass(frozen=True)
class Scene:
    """Processes shared by several faults that are injected in sequence.

    Attributes:
        start: starts the processes in an empty folder.
        check: called after each fault; fails if the processes are not in the required state.
    """

    start: Callable[[Path], AbstractContextManager[Any]]
    check: Callable[[Any], None] = lambda scene: None

    @property
    def name(self) -> str:
        """Unique name of the scene: the name of its start function."""
        return self.start.__name__


class Level(StrEnum):
    """Part of the product that a trial runs."""

    UNIT = "U"
    COMPONENT = "C"
    PROCESSES = "S"
    SOAK = "K"


class Recipe(StrEnum):
    """Means of injection that may be missing on a machine."""

    STRACE = "strace"
    NAMESPACES = "namespaces"
    NFTABLES = "nftables"
    ROOT = "root"
    COMPILER = "a C compiler"

    @property
    def missing(self) -> str:
        """Reason why this machine lacks the means; empty if it is available."""
        return _missing(self)


@dataclass(frozen=True)
class Fault:
    """Entry of the fault catalogue.

    Attributes:
        number: in the catalogue of faults; an entry may have several trials.
        title: short description of the fault.
        injected: how the fault is injected.
        required: required behaviour with its limits.
        level: part of the product that the trial runs.
        trial: injects the fault and fails unless the required behaviour follows.
        needs: means of injection; if one is missing, the trial is skipped with a message.
        scene: processes shared with other faults; None for a fault with its own processes.
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
        """Unique name of the fault: number and trial."""
        return f"{self.number:02d}-{self.trial.__name__}"

    @property
    def missing(self) -> str:
        """Reason why the fault cannot be injected on this machine; empty if it can."""
        return "; ".join(reason for need in self.needs if (reason := need.missing))


class Registry:
    """Registry of all faults by number, and of strikes for a running system."""

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
        """Register the decorated trial."""

        def enter(trial: Trial) -> Trial:
            self._faults.append(
                Fault(number, title, injected, required, level, trial, needs, scene)
            )
            return trial

        return enter

    def longer(self, trial: Trial, injected: str) -> Callable[[Trial], Trial]:
        """Register the decorated trial as a longer one of another trial's fault."""
        (fault,) = (each for each in self._faults if each.trial is trial)

        def enter(longer: Trial) -> Trial:
            changes: dict[str, Any] = {"injected": injected, "trial": longer, "scene": None}
            self._faults.append(replace(fault, level=Level.SOAK, **changes))
            return longer

        return enter

    def strike(self, strike: Strike) -> Strike:
        """Register the decorated function as a strike of the chaos test, under its name."""
        self.strikes[strike.__name__] = strike
        return strike


REGISTRY = Registry()


class Stage:
    """Runner of fault trials; keeps a scene open until another scene's fault or a failure.

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
        """Close the open scene, which runs its final checks.

        A node suspended for 1 s on a busy machine receives nothing more (`serl.ros.ports`);
        that is not a failure of the earlier faults.
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
