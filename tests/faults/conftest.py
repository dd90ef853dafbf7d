"""Session stage of the faults, closed before a test of another folder begins.

`tests/ros` ends all remaining processes after each of its files, including those of an open scene.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .registry import Stage

_STAGE = pytest.StashKey[Stage]()


@pytest.fixture(scope="session")  # not "module": one worker would run all faults
def stage(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stage]:
    """Return the stage of this worker; each scene gets a folder."""
    stage = request.session.stash[_STAGE] = Stage(tmp_path_factory.mktemp("scenes"))
    yield stage
    stage.close()


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Close the stage after the last test of this folder in a row."""
    stage = item.session.stash.get(_STAGE, None)
    if stage is not None and (nextitem is None or nextitem.path.parent != item.path.parent):
        stage.close()
