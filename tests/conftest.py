"""Settings of all tests and of their processes: audited, and forked after their imports.

See `audit/sitecustomize.py` and `support/preloaded.py`.
"""

from __future__ import annotations

import gc
import os
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import serl.sim  # noqa: F401 (says by which library to draw; before any test imports MuJoCo)

from .support.preloaded import preloading

SHARED = ("module", "class")
_AUDIT = Path(__file__).with_name("audit")

runpy.run_path(str(_AUDIT / "sitecustomize.py"))
# Some hundred processes would compile the package anew, and pytest its tests, where this is set.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# Two workers on two cores: threads of OpenMP that wait for each other only burn time.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["PYTHONPATH"] = os.pathsep.join(
    filter(None, [str(_AUDIT), os.environ.get("PYTHONPATH")])
)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give tests that share a fixture of their file or class to one worker, which makes it once."""
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
    """Spare what was imported and collected from all further searches for garbage."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _preloading() -> Iterator[None]:
    with preloading():
        yield
