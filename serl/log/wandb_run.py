"""The metrics of a run for Weights & Biases (`--log.wandb`), online or into files for later."""

from __future__ import annotations

import logging
import os
import secrets
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from serl.errors import BadInput, SerlError, described
from serl.system.files import make_folder, read_bounded, write_atomic

WandbMode = bool | Literal["online", "offline"]
PROJECT = "serl"
CONNECT_S, SEND_S = 20.0, 60.0  # the longest waits at the start and at the end
_REMEDY = "`wandb login` first, or --log.wandb offline"

logger = logging.getLogger(__name__)


def check_wandb(mode: WandbMode) -> None:
    """Raise `BadInput` if metrics are wanted, and `wandb` or the account to send to is missing."""
    if not mode:
        return
    if find_spec("wandb") is None:
        raise BadInput("log.wandb: wandb is not installed: pip install 'serl[wandb]'")
    if mode == "offline":
        return
    import wandb  # takes a second

    try:
        has_account, problem = wandb.login(prompt=False, verify=False), "no account"
    except Exception as error:  # such as a key of another length
        has_account, problem = False, described(error)
    if not has_account:
        raise BadInput(f"log.wandb: {problem}: {_REMEDY}")


class WandbRun:
    """A run of Weights & Biases, with the name of our run; opened again, it goes on.

    Runs of two sweeps may have one name. So the id is drawn by chance, and stored beside W&B's
    files.

    Numbers are plotted over `steps`, the online environment steps. No training waits or ends for
    its plots: without a connection at the start, the numbers go into files for `wandb sync`; once
    they cannot be logged, it goes on without them.

    Args:
        folder: folder of our run; files of W&B are stored in `wandb` there.
        mode: True or "online" to send to the server of the user's settings, "offline" for `wandb
            sync`.

    Raises:
        BadInput: the package is not installed, or it has no account.
        SerlError: the files cannot be written.
    """

    def __init__(self, folder: Path, mode: WandbMode) -> None:
        if "wandb" not in sys.modules:  # a parent's service holds the names of runs that it lost
            os.environ.pop("WANDB_SERVICE", None)
        check_wandb(mode)
        try:
            try:
                self._run = _begin(folder, "offline" if mode == "offline" else "online")
            except Exception as error:  # it fails in many ways
                if mode == "offline":
                    raise
                command = f"wandb sync {folder / 'wandb'}/offline-*"
                logger.warning("log.wandb: %s; later, send with `%s`", described(error), command)
                self._run = _begin(folder, "offline")
            self._run.define_metric("steps")
            self._run.define_metric("*", step_metric="steps")
        except Exception as error:
            raise SerlError(f"log.wandb: {described(error)}") from error
        self._failed = False

    def add(self, steps: int, scalars: Mapping[str, float]) -> None:
        """Log numbers by name at `steps` environment steps."""
        if self._failed:
            return
        try:
            self._run.log({**scalars, "steps": steps})
        except Exception as error:  # no training ends for its plots
            self._failed = True
            logger.warning("log.wandb: no more metrics: %s", error)

    def close(self) -> None:
        """Write or send buffered numbers; give up sending after a minute."""
        try:
            self._run.finish()
        except Exception as error:  # no training ends for its plots
            logger.warning("log.wandb: the last metrics may be missing: %s", described(error))


def _begin(folder: Path, mode: Literal["online", "offline"]) -> Any:
    import wandb

    name = "-".join([part for part in folder.parts if part != "stages"][-2:])
    file = folder / "wandb" / "id"
    if not file.exists():
        make_folder(file.parent)
        write_atomic(file, secrets.token_hex(8).encode())
    settings = wandb.Settings(
        console="off", silent=True, disable_git=True, init_timeout=CONNECT_S, finish_timeout=SEND_S
    )
    try:
        return wandb.init(
            project=PROJECT, id=read_bounded(file, 64).decode(), name=name, dir=str(folder),
            resume="allow", mode=mode, settings=settings,
        )  # fmt: skip
    except Exception:
        wandb.teardown()  # or its process holds the name
        raise
