"""What a checkpoint was made with: the spec, the settings of the learner, and the code."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from serl import __version__, plugins
from serl.config import TrainConfig
from serl.errors import BadInput
from serl.fields import short
from serl.specs import Spec

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
        "code": f"{__version__}+{_code_digest(config)}",
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
    if info.get("code") != expected["code"]:
        return f"checkpoint: made by serl {short(info.get('code'))}, this is {expected['code']}"
    return ""


def _code_digest(config: TrainConfig) -> str:
    """A digest of serl, of folders that an editable install has beside it, and of plug-in files.

    Those are the files of the task, the algorithm and the reward, which parameters depend on.
    """
    digest = hashlib.sha256()
    for folder in sorted({Path(__file__).parent, *map(Path, plugins.folders())}):
        for path in sorted(folder.rglob("*.py")):
            digest.update(f"{folder.name}/{path.relative_to(folder)}\0".encode())
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    for plugin in (config.task, config.agent.algorithm, config.reward.kind):
        if plugin.endswith(".py"):
            digest.update(Path(plugin).read_bytes())
    return digest.hexdigest()[:12]


def _differences(
    saved: Mapping[str, Any], mine: Mapping[str, Any], prefix: str = ""
) -> Iterator[str]:
    for name in sorted(saved.keys() | mine.keys()):
        theirs, ours = saved.get(name), mine.get(name)
        if isinstance(theirs, dict) and isinstance(ours, dict):
            yield from _differences(theirs, ours, f"{prefix}{name}.")
        elif theirs != ours:
            yield f"{prefix}{name}: {short(theirs)} != {short(ours)}"
