"""What a checkpoint was made with: the spec, the settings of the learner, and the code."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from serl.runs.config import TrainConfig
from serl.errors import BadInput
from serl.system.json_fields import short
from serl.specs import Spec
from serl.version import __version__

_SETTINGS = {
    "task",
    "task_config",
    "observe",
    "seed",
    "demos",
    "demo_paths",
    "init_from",
    "agent",
    "learner",
}


def provenance(config: TrainConfig, spec: Spec) -> dict[str, Any]:
    """What parameters depend on besides the records, as JSON can hold it."""
    return {
        "spec": spec.digest,
        "settings": config.model_dump(mode="json", include=_SETTINGS),
        "code": _code(config),
    }


def check_provenance(info: Mapping[str, Any], expected: Mapping[str, Any]) -> str:
    """Compare a checkpoint's information with `provenance` of today.

    Returns:
        A warning when the code differs: parameters will not repeat to the bit. Else "".

    Raises:
        BadInput: spec or settings differ.
    """
    if info.get("spec") != expected["spec"]:
        found = short(info.get("spec"))
        raise BadInput(f"checkpoint: made for the spec {found}, the task's is {expected['spec']!r}")
    saved = info.get("settings")
    differences = list(_differences(saved if isinstance(saved, dict) else {}, expected["settings"]))
    if differences:
        raise BadInput(f"checkpoint: made with other settings: {'; '.join(differences)}")
    # Versions before 0.1.0 was released append a digest of their sources.
    if not str(info.get("code")).startswith(expected["code"]):
        return f"checkpoint: made by serl {short(info.get('code'))}, this is {expected['code']}"
    return ""


def _code(config: TrainConfig) -> str:
    """Return the version of serl, with a digest of plug-in files where there are some.

    Those are the files of the task, the algorithm and the reward, which parameters depend on.
    """
    plugins = (config.task, config.agent.algorithm, config.reward.kind)
    files = [Path(plugin).read_bytes() for plugin in plugins if plugin.endswith(".py")]
    digest = f"+{hashlib.sha256(b''.join(files)).hexdigest()[:12]}" if files else ""
    return f"{__version__}{digest}"


def _differences(
    saved: Mapping[str, Any], mine: Mapping[str, Any], prefix: str = ""
) -> Iterator[str]:
    for name in sorted(saved.keys() | mine.keys()):
        theirs, ours = saved.get(name), mine.get(name)
        if isinstance(theirs, dict) and isinstance(ours, dict):
            yield from _differences(theirs, ours, f"{prefix}{name}.")
        elif theirs != ours:
            yield f"{prefix}{name}: {short(theirs)} != {short(ours)}"
