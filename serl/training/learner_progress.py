"""How far a learner has come: counters that every checkpoint keeps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from serl.errors import CorruptData
from serl.system.json_fields import check_fields
from serl.log.index import Stream

_TAKEN_FIELDS = {"actor": str, "epoch": int, "records": int}


@dataclass
class Progress:
    """Counters of a learner; saved with each checkpoint.

    Attributes:
        taken: records taken, those of scripts and lost ones included, by actor and epoch.
        received: online steps among them (of policy and human).
        trained: online steps trained on, by actor.
        version: of the newest published weights.
    """

    taken: Counter[Stream] = field(default_factory=Counter)
    received: int = 0
    trained: Counter[str] = field(default_factory=Counter)
    version: int = 0

    def info(self) -> dict[str, Any]:
        """What a checkpoint keeps of them; see `restore_progress`."""
        return {
            "taken": [[*stream, count] for stream, count in sorted(self.taken.items())],
            "trained": dict(self.trained),
            "version": self.version,
        }

    @property
    def steps(self) -> int:
        """Online steps trained on."""
        return self.trained.total()


def restore_progress(info: Mapping[str, Any]) -> Progress:
    """Counters from a checkpoint's information; raises `CorruptData` when they are damaged."""
    try:
        taken = [dict(zip(_TAKEN_FIELDS, entry, strict=True)) for entry in info["taken"]]
        trained, version = info["trained"], info["version"]
        actors = dict.fromkeys(trained, int)
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptData("checkpoint: expected the counters taken, trained, version") from error
    for entry in taken:
        check_fields(entry, _TAKEN_FIELDS, "checkpoint: taken")
    check_fields(trained, actors, "checkpoint: trained")
    check_fields({"version": version}, {"version": int}, "checkpoint:")
    return Progress(
        taken=Counter({(entry["actor"], entry["epoch"]): entry["records"] for entry in taken}),
        trained=Counter(trained),
        version=version,
    )
