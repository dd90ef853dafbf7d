"""The folder of a training run: what lies where, its configuration, and who may learn in it."""

from __future__ import annotations

import os
import platform
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from serl.errors import BadInput, CorruptData
from serl.runs import checkpoint
from serl.runs.config import DATA_ONLY, TrainConfig, stage_configs
from serl.system.authentication import RUN_KEY, new_key
from serl.system.files import FileLock, checked_name, make_folder, sync_folder, write_atomic
from serl.system.git import commit
from serl.system.json_fields import short
from serl.system.settings_file import read_yaml

FORMAT = 1
CONFIG = "config.yaml"
STAGES = "stages"
LEARNER_LOCK = "learner.lock"
_VERSIONED = ("serl", "numpy", "torch", "mujoco")


class RunInfo(BaseModel):
    """The content of `config.yaml`.

    Attributes:
        format: version of the layout of the folder.
        created: local time at which the run was made.
        versions: of serl (its commit, too, where there is one), Python and the packages that
            results depend on.
        config: the resolved configuration.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: int = FORMAT
    created: datetime
    versions: dict[str, str]
    config: TrainConfig


class RunFolder:
    """Paths and files of one run. Made by `create` or `open`."""

    def __init__(self, path: Path, info: RunInfo, data_only: bool = False) -> None:
        self.path = path
        self.info = info
        self._data_only = data_only

    @classmethod
    def create(cls, root: Path, config: TrainConfig, now: datetime) -> RunFolder:
        """Make a new folder `root/<task>/<stamp>`; a stamp that is taken gets a number.

        Raises:
            BadInput: the folder cannot be made.
        """
        task = checked_name(Path(config.task).stem, "task")
        stamp = now.strftime("%Y-%m-%d_%H-%M-%S")
        run = cls.make(root / task, stamp, config, now)
        for name, each in stage_configs(config).items():
            cls.make(run.path / STAGES, name, each, now)
        return run

    @classmethod
    def create_at(cls, path: Path, config: TrainConfig, now: datetime) -> RunFolder:
        """Make exactly this folder, which does not exist, or is empty.

        Raises:
            BadInput: the folder cannot be made.
        """
        run = cls.make(path.parent, path.name, config, now)
        if run.path != path:
            raise BadInput(f"{path}: somebody else has just made it; kept as {run.path}")
        return run

    @classmethod
    def make(cls, parent: Path, name: str, config: TrainConfig, now: datetime) -> RunFolder:
        """Make the folder `parent/<name>`; a name that is taken gets a number.

        Raises:
            BadInput: the folder cannot be made.
        """
        info = RunInfo(created=now, versions=versions(), config=config)
        text = yaml.safe_dump(info.model_dump(mode="json"), sort_keys=False)
        try:
            path = _new_folder(parent, name, text.encode())
        except OSError as error:
            raise BadInput(f"cannot make a run in {parent}: {error}") from error
        return cls(path, info)

    @classmethod
    def open(cls, path: Path, data_only: bool = False) -> RunFolder:
        """Open an existing run.

        Args:
            path: of its folder.
            data_only: execute no plug-in that its configuration names by a path or an entry point,
                as the folder may be of others; the settings of such plug-ins are then the defaults.

        Raises:
            BadInput: there is no such folder, or it is none of ours.
            CorruptData: `config.yaml` is damaged, or of another version.
        """
        if not path.is_dir():
            raise BadInput(f"{path}: expected the folder of a run, found no folder")
        file = path / CONFIG
        if not file.is_file():
            found = ", ".join(sorted(child.name for child in path.iterdir())[:5]) or "nothing"
            raise BadInput(f"{path}: expected the folder of a run with {CONFIG}, found {found}")
        values = read_yaml(file)
        if values.get("format") != FORMAT:
            found = short(values.get("format"))
            raise CorruptData(f"{file}: expected format {FORMAT}, found {found}")
        try:
            info = RunInfo.model_validate(values, context=DATA_ONLY if data_only else None)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise CorruptData(
                f"{file}: {where}: {first['msg']}, found {short(first['input'])}"
            ) from error
        return cls(path, info, data_only)

    def writable(self) -> RunFolder:
        """The run itself; raises `BadInput` when nothing can be written into its folder."""
        if not os.access(self.path, os.W_OK | os.X_OK):
            raise BadInput(
                f"{self.path}: cannot be written; to go on with it, copy it as a whole to where it "
                "can be (serl verify, replay and eval work as it is)"
            )
        return self

    def parts(self) -> dict[str, RunFolder]:
        """The run of each stage by its name; of one task alone it is the run itself, without one.

        Raises:
            BadInput: as `open`.
        """
        if self.config.stages is None:
            return {"": self}
        stages = self.path / STAGES
        return {name: self.open(stages / name, self._data_only) for name in self.config.stages}

    @property
    def name(self) -> str:
        """The run's name: its stamp."""
        return self.path.resolve().name

    @property
    def config(self) -> TrainConfig:
        """The resolved configuration."""
        return self.info.config

    @property
    def demonstrations(self) -> Path:
        """Episodes of the demonstrations that the run starts from."""
        return self.path / "demonstrations"

    @property
    def inherited(self) -> Path:
        """Episodes of another run that this one starts with, by actor."""
        return self.path / "inherited"

    @property
    def checkpoints(self) -> Path:
        """See `serl.runs.checkpoint`."""
        return self.path / "checkpoints"

    @property
    def videos(self) -> Path:
        """Videos of evaluations."""
        return self.path / "videos"

    @property
    def index(self) -> Path:
        """Which records the learner accepted, in order; see `serl.log.index`."""
        return self.path / "index.sqlite"

    @property
    def metrics(self) -> Path:
        """Rows of measurements; see `serl.log.metrics`."""
        return self.path / "metrics.jsonl"

    @property
    def report(self) -> Path:
        """The self-contained report."""
        return self.path / "report.html"

    @property
    def log(self) -> Path:
        """What the processes print, and ROS's own logs."""
        return self.path / "log"

    def episodes(self, actor: str) -> Path:
        """The folder of an actor's episode files; see `serl.log.episode_log`."""
        return self.path / "episodes" / checked_name(actor, "actor")

    def actors(self) -> list[str]:
        """Names of the actors that recorded something."""
        return sorted(folder.name for folder in self.path.glob("episodes/*") if folder.is_dir())

    def link(self, actor: str) -> Path:
        """The folder in which an actor and its link process meet: hello and weights."""
        return self.path / "link" / checked_name(actor, "actor")

    def save_checkpoint(
        self, step: int, arrays: Mapping[str, checkpoint.Arrays], info: Mapping[str, Any]
    ) -> Path:
        """Save a checkpoint; as many remain as the choice of the best one compares."""
        keep = max(3, self.config.selection_checkpoints)
        return checkpoint.save(self.checkpoints, step, arrays, info, keep)

    def lock_learner(self) -> FileLock:
        """Become the run's learner until the lock is closed.

        Raises:
            BadInput: the run has one; the line names its process id. Or the lock cannot be written.
        """
        path = self.path / LEARNER_LOCK
        try:
            return FileLock(path, f"the run {self.path}: its learner")
        except OSError as error:
            raise BadInput(f"{path}: cannot be written: {error.strerror}") from error


def _new_folder(parent: Path, stamp: str, config: bytes) -> Path:
    """A folder that appears with its configuration and its key in it."""
    make_folder(parent)
    scratch = Path(tempfile.mkdtemp(prefix=".new-", dir=parent))
    new_key(scratch / RUN_KEY)
    write_atomic(scratch / CONFIG, config)
    for number in range(1, 1000):
        path = parent / (stamp if number == 1 else f"{stamp}-{number}")
        with suppress(OSError):  # a folder that holds something is not replaced
            scratch.rename(path)
            sync_folder(parent)
            return path
    raise FileExistsError(f"{parent / stamp} and 998 more exist")


def versions() -> dict[str, str]:
    """Of Python and the packages that results depend on."""
    found = {"python": platform.python_version()}
    for package in _VERSIONED:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    if made_with := commit():
        found["commit"] = made_with
    return found
