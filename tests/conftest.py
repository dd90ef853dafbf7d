"""Setup of all tests and their processes: audit hooks, and forks after the imports.

See `audit/sitecustomize.py` and `support/preloaded.py`.
"""

from __future__ import annotations

import gc
import os
import runpy
import sys
from collections.abc import Generator, Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

import serl.sim  # noqa: F401 (selects the rendering backend before any test imports MuJoCo)

from .support.preloaded import preloading

SHARED = ("module", "class")
PRIORITY, HASTE = os.getpriority(os.PRIO_PROCESS, 0), -10
_AUDIT = Path(__file__).with_name("audit")

runpy.run_path(str(_AUDIT / "sitecustomize.py"))
# With this set, hundreds of processes would recompile the package, and pytest its tests.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# Two workers share two cores: more OpenMP threads would only wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["PYTHONPATH"] = os.pathsep.join(
    filter(None, [str(_AUDIT), os.environ.get("PYTHONPATH")])
)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Group tests that share a module or class fixture, so that one worker creates it once."""
    for item in items:
        made = item._fixtureinfo.name2fixturedefs.values()  # type: ignore[attr-defined]
        shared = {
            each.baseid if ".py" in each.baseid else item.nodeid.partition("::")[0]
            for fixtures in made
            for each in fixtures
            if each.scope in SHARED and not each._autouse
        }
        for place in shared:
            if item.get_closest_marker("xdist_group") is None:
                item.add_marker(pytest.mark.xdist_group(place))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Exclude imported and collected objects from later garbage collections."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Run tests of moving arms with priority over those beside them, where the user may set it.

    Their guards stop an arm whose messages are 0.1 s late.
    """
    group = item.get_closest_marker("xdist_group")
    moves = group is not None and group.args == ("moving_arm",)
    with suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, PRIORITY + (HASTE if moves else 0))
    return (yield)


class _Undrawn:
    """Renderer of black images, which takes no time."""

    def frame(self, camera: str, width: int, height: int) -> np.ndarray:
        return np.zeros((height, width, 3), np.uint8)

    def close(self) -> None:
        pass


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make all pictures for people black, in tests that do not look at them."""
    monkeypatch.setattr("serl.plugins.make_renderer", lambda *given, **options: _Undrawn())


@pytest.fixture(scope="session", autouse=True)
def _preloading() -> Iterator[None]:
    with preloading():
        yield
