"""Starting from another run: with its networks, their scale of observations, and its updates.

The scale belongs to the networks, whatever `agent.normalise` says; their updates count on, so that
an annealed cloning term goes on where it was. From simulation to a real arm, or from an old task to
a new one that is seen and driven alike.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from serl.agents.agent import State
from serl.assembly import make_spec, make_task
from serl.checkpoint import best, load, load_latest
from serl.errors import SpecMismatch
from serl.run_folder import RunFolder
from serl.specs import Spec

_OWN = ("adam.", "generator.", "skipped")
"""What a new run begins anew: optimiser and random numbers."""


class Inheritance(NamedTuple):
    """What another run leaves.

    Attributes:
        state: arrays of the agent by name.
        text: what it is, for people.
    """

    state: State
    text: str


def inherit(path: Path, spec: Spec) -> Inheritance:
    """Read what the run in `path` leaves: its best checkpoint, or its newest if none was chosen.

    Raises:
        BadInput: not a run, or one without a checkpoint.
        CorruptData: the checkpoint is damaged.
        SpecMismatch: it was trained on other observations or actions; the line says which.
    """
    run = RunFolder.open(path)
    theirs = make_spec(make_task(run.config))
    if difference := theirs.model_copy(update={"task": spec.task}).difference(spec):
        raise SpecMismatch(f"{path}: cannot start from it, its spec != this task's: {difference}")
    chosen = best(run.checkpoints)
    checkpoint = load(chosen) if chosen else load_latest(run.checkpoints)[0]
    state = {
        name: array
        for name, array in checkpoint.arrays["agent"].items()
        if not name.startswith(_OWN)
    }
    text = (
        "starts with encoder, actor, critics, targets, temperature and scale of observations of "
        f"{path}, {checkpoint.step:,} steps of {theirs.task}; optimiser and random numbers are "
        "new, updates count on, there is no warm-up"
    )
    return Inheritance(state, text)
