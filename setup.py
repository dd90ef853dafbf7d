"""The way in for colcon, which builds a workspace by `setup.py`: `pyproject.toml` says the rest."""

import os
from pathlib import Path
from typing import Any

from setuptools import Distribution, setup


class _Distribution(Distribution):
    """A distribution whose attributes colcon can read: it evaluates the text of their `repr`."""

    def parse_config_files(self, *args: Any, **kwargs: Any) -> None:
        super().parse_config_files(*args, **kwargs)
        self.python_requires = self.metadata.python_requires = str(self.python_requires)


# `colcon build --symlink-install` runs a link to this file, from a folder without pyproject.toml.
os.chdir(Path(__file__).resolve().parent)
setup(distclass=_Distribution)
