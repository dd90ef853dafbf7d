"""The profile of one arm in one cell, as a YAML file that `--robot FILE` loads."""

from __future__ import annotations

import os
from pathlib import Path

import yaml

from serl import plugins
from serl.arm_profile import ArmProfile
from serl.errors import BadInput
from serl.system.files import make_folder, write_atomic
from serl.system.settings_file import checked, read_yaml


def load_robot(robot: str) -> ArmProfile:
    """Load the profile of a known name, of a `.py` file or of a `.yaml` file.

    Raises:
        BadInput: as `plugins.load` and `read_robot`, or the plug-in is no profile.
    """
    if robot.endswith(".yaml"):
        return read_robot(Path(robot))
    profile = plugins.load("robot", robot)
    if not isinstance(profile, ArmProfile):
        raise BadInput(f"robot {robot}: expected an ArmProfile, got {type(profile).__name__}")
    return profile


def read_robot(path: Path) -> ArmProfile:
    """The profile of a file.

    Raises:
        BadInput: it is absent, damaged, or no profile; in one line with the name of the key.
    """
    try:
        return checked(ArmProfile, read_yaml(path))
    except BadInput as error:
        text = str(error)
        raise BadInput(text if text.startswith(str(path)) else f"{path}: {text}") from None


def write_robot(path: Path, profile: ArmProfile) -> None:
    """Replace the file, or make it."""
    make_folder(path.absolute().parent)
    values = profile.model_dump(mode="json")
    write_atomic(path, yaml.safe_dump(values, sort_keys=False, default_flow_style=None).encode())


def latch_path(robot: str, profile: ArmProfile, namespace: str) -> Path:
    """The file of an arm's latch, one for all commands and runs that move this arm.

    Beside the profile's file, or with the state of this user's programs for an arm by name. Where
    the profile does not name the arm's topics from the root, each namespace is another arm:
    `right.latch`, `franka.latch` at the root, `franka@left.latch` in /left.
    """
    place = "" if profile.target.name.startswith("/") else namespace.strip("/").replace("/", ".")
    name = f"@{place}.latch" if place else ".latch"
    if robot.endswith((".yaml", ".py")):
        file = Path(robot).resolve()
        return file.with_name(f"{file.stem}{name}")
    home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(home) / "serl" / f"{robot}{name}"
