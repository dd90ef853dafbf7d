"""The folder of a training run: its layout, its configuration, and the lock of its learner."""

from __future__ import annotations

import errno
import os
import platform
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from serl import plugins
from serl.arm_profile import is_real
from serl.errors import BadInput, CorruptData
from serl.log.metrics import EvaluationRow, read_metrics
from serl.log.wire import decode_hello
from serl.runs import checkpoint
from serl.runs.config import DATA_ONLY, TrainConfig, stage_configs
from serl.system.authentication import RUN_KEY, new_key
from serl.system.files import (
    FileLock,
    check_utf8,
    checked_name,
    make_folder,
    read_bounded,
    sync,
    write_atomic,
)
from serl.system.json_fields import MAX_JSON_BYTES, short
from serl.system.settings_file import read_yaml
from serl.training.link import HELLO
from serl.types import FrozenModel
from serl.version import commit

FORMAT = 1
"""Version of the layout of a run's folder."""
CONFIG = "config.yaml"
"""Name of the file of settings in the folder of a run."""
STAGES = "stages"
"""Name of the folder of the stages' runs in the folder of a run."""
LEARNER_LOCK, PROCESSES_LOCK = "learner.lock", "processes.lock"
"""Names of the files that a run's learner, and the command that started it, hold locked."""
_VERSIONED = ("serl", "numpy", "torch", "mujoco")


class RunInfo(FrozenModel):
    """The content of `config.yaml`.

    Attributes:
        format: version of the folder's layout.
        created: local time at which the run was made.
        versions: versions of serl (with its commit, where known), Python and the packages that
            results depend on.
        config: the resolved configuration.
    """

    format: int = FORMAT
    created: datetime
    versions: dict[str, str]
    config: TrainConfig


class RunFolder:
    """Paths and files of one run. Made by `create` or `open`.

    Attributes:
        demonstrations: folder of the demonstrations that the run starts from.
        inherited: folder of the episodes of another run that this run starts with, by actor.
        checkpoints: folder of the checkpoints; see `serl.runs.checkpoint`.
        videos: folder of the videos of evaluations.
        index: database of the records that the learner accepted, in order; see `serl.log.index`.
        metrics: file with rows of metrics; see `serl.log.metrics`.
        report: file of the self-contained report.
        log: folder of the output of the processes, and of ROS's own logs.
    """

    def __init__(self, path: Path, info: RunInfo, data_only: bool = False) -> None:
        self.path = path
        self.info = info
        self._data_only = data_only
        self.demonstrations, self.inherited = path / "demonstrations", path / "inherited"
        self.checkpoints, self.videos = path / "checkpoints", path / "videos"
        self.index, self.metrics = path / "index.sqlite", path / "metrics.jsonl"
        self.report, self.log = path / "report.html", path / "log"

    @classmethod
    def create(cls, root: Path, config: TrainConfig, now: datetime) -> RunFolder:
        """Make a new folder `root/<task>/<stamp>`.

        A number is added to a stamp that is in use, also if another task uses it: the folder's
        name is the run's namespace in ROS 2.

        Raises:
            BadInput: the folder cannot be made.
        """
        task = checked_name(plugins.stem(config.task), "task")
        stamp = now.strftime("%Y-%m-%d_%H-%M-%S")
        numbered = (stamp, *(f"{stamp}-{number}" for number in range(2, 1000)))
        free = next((name for name in numbered if not any(root.glob(f"*/{name}"))), stamp)
        return cls.make(root / task, free, config, now)._with_stages(now)

    @classmethod
    def create_at(cls, path: Path, config: TrainConfig, now: datetime) -> RunFolder:
        """Make the folder at exactly this path, which must not exist or must be empty.

        Raises:
            BadInput: the folder cannot be made.
        """
        run = cls.make(path.parent, path.name, config, now)
        if run.path != path:
            raise BadInput(f"{path}: another process has just made it; kept as {run.path}")
        return run._with_stages(now)

    def _with_stages(self, now: datetime) -> RunFolder:
        """Make the folders of the stages; return the run."""
        for name, each in stage_configs(self.config).items():
            self.make(self.path / STAGES, name, each, now)
        return self

    @classmethod
    def make(cls, parent: Path, name: str, config: TrainConfig, now: datetime) -> RunFolder:
        """Make the folder `parent/<name>`; a number is added to a name already in use.

        Raises:
            BadInput: the folder cannot be made, or its path is not UTF-8.
        """
        check_utf8(os.path.realpath(parent / name))
        info = RunInfo(created=now, versions=versions(), config=config)
        text = yaml.safe_dump(info.model_dump(mode="json"), sort_keys=False)
        try:
            path = _new_folder(parent, name, text.encode())
        except OSError as error:
            where = f"{error.filename}: " if error.filename else ""
            raise BadInput(f"cannot make a run in {parent}: {where}{error.strerror}") from error
        return cls(path, info)

    @classmethod
    def open(cls, path: Path, data_only: bool = False) -> RunFolder:
        """Open an existing run.

        Args:
            path: folder of the run.
            data_only: execute no plug-in that the configuration names by a path or an entry point,
                for folders of untrusted origin; the settings of these plug-ins are then defaults.

        Raises:
            BadInput: the folder does not exist, or is not a run.
            CorruptData: `config.yaml` is damaged, or of another version.
        """
        file = path / CONFIG
        if not file.is_file():
            found = f"no {CONFIG}" if path.is_dir() else "a file" if path.exists() else "no folder"
            raise BadInput(f"{path}: expected the folder of a run, found {found}{_nearest(path)}")
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
        """Return the run itself; raise `BadInput` if its folder is not writable, or was renamed."""
        if not os.access(self.path, os.W_OK | os.X_OK):
            raise BadInput(
                f"{self.path}: cannot be written; to go on with it, copy it as a whole, under the "
                "same name, to where it can be (serl verify, replay and eval work as it is)"
            )
        for path in sorted(self.path.glob(f"link/*/{HELLO}")):
            if (name := decode_hello(read_bounded(path, MAX_JSON_BYTES)).run) != self.name:
                raise BadInput(
                    f"{self.path}: its episodes are those of the run {name[:80]!r}; to go on with "
                    "it, give the folder this name again"
                )
        return self

    def parts(self) -> dict[str, RunFolder]:
        """Return the run of each stage by its name; {"": self} for a run without stages.

        Raises:
            BadInput: a stage's folder does not exist, or is not a run.
        """
        if self.config.stages is None:
            return {"": self}
        stages = self.path / STAGES
        return {name: self.open(stages / name, self._data_only) for name in self.config.stages}

    def is_trained(self) -> bool:
        """Return whether all steps are trained on, and a checkpoint exists, also for 0 steps."""
        saved = checkpoint.checkpoint_paths(self.checkpoints)
        return bool(saved) and int(saved[-1].name) >= self.config.steps

    def is_finished(self) -> bool:
        """Return whether the final trials of the run, or of each of its stages, are done.

        Those of a clone as the baseline belong to them. Trials that ended early are to be repeated
        on an arm; simulated ones would end so again. Without trials, the training has to be done.
        """
        return all(part._is_concluded() for part in self.parts().values())

    def _is_concluded(self) -> bool:
        if not self.config.trials:
            return self.is_trained()
        repeats = is_real(self.config.robot)
        awaited = {"final", "clone"} if self.config.baseline == "clone" else {"final"}
        return awaited <= {
            str(row.get("purpose"))
            for row in read_metrics(self.metrics)
            if row["kind"] == EvaluationRow.kind and not (repeats and row.get("early_end"))
        }

    @property
    def name(self) -> str:
        """The run's name: its stamp."""
        return self.path.resolve().name

    @property
    def config(self) -> TrainConfig:
        """The resolved configuration."""
        return self.info.config

    def episodes(self, actor: str) -> Path:
        """Return the folder of an actor's episode files; see `serl.log.episode_log`."""
        return self.path / "episodes" / checked_name(actor, "actor")

    def actors(self) -> list[str]:
        """Return the names of the actors that have a folder of episodes, sorted."""
        return sorted(folder.name for folder in self.path.glob("episodes/*") if folder.is_dir())

    def link(self, actor: str) -> Path:
        """Return the folder that an actor shares with its link process: hello and weights."""
        return self.path / "link" / checked_name(actor, "actor")

    def save_checkpoint(
        self, step: int, arrays: Mapping[str, checkpoint.Arrays], info: Mapping[str, Any]
    ) -> Path:
        """Save a checkpoint; keep as many as the choice of the best one compares, at least 3."""
        keep = max(3, self.config.selection_checkpoints)
        return checkpoint.save(self.checkpoints, step, arrays, info, keep)

    def lock_learner(self) -> FileLock:
        """Take the lock of the run's only learner, until it is closed.

        Raises:
            BadInput: the run has a learner, whose process id the message names; or the lock cannot
                be written.
        """
        path = self.path / LEARNER_LOCK
        try:
            return FileLock(path, f"the run {self.path}: its learner")
        except OSError as error:
            raise BadInput(f"{path}: cannot be written: {error.strerror}") from error


def _nearest(path: Path) -> str:
    """Return the end of an error message that suggests the newest run in a folder, or in runs/."""
    for folder in (path, Path("runs") / path, Path("runs")):
        found = [*folder.glob(f"*/{CONFIG}"), *folder.glob(f"*/*/{CONFIG}")]
        if newest := max((file.parent for file in found), key=lambda run: run.name, default=None):
            return f"; the newest in {folder} is {newest}"
    return "; `serl train` makes runs/TASK/DATE_TIME"


def _new_folder(parent: Path, stamp: str, config: bytes) -> Path:
    """Make a folder atomically, with its configuration and its key in it; return its path."""
    make_folder(parent)
    scratch = Path(tempfile.mkdtemp(prefix=".new-", dir=parent))
    try:
        new_key(scratch / RUN_KEY)
        write_atomic(scratch / CONFIG, config)
        for number in range(1, 1000):
            path = parent / (stamp if number == 1 else f"{stamp}-{number}")
            with suppress(OSError):  # a folder that holds something is not replaced
                scratch.rename(path)
                sync(parent)
                return path
    finally:
        shutil.rmtree(scratch, ignore_errors=True)  # it is gone, unless there was an error
    raise FileExistsError(errno.EEXIST, "this and 998 more exist", str(parent / stamp))


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that results depend on."""
    found = {"python": platform.python_version()}
    for package in _VERSIONED:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    if made_with := commit():
        found["commit"] = made_with
    return found
