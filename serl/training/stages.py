"""Tasks that reset each other: each begins where the one before it has succeeded.

A run with stages holds a run of its own for each of them, under `stages/`: its settings, episodes,
checkpoints, replay and report, and a learner that knows of no other. So what belongs to which task
is said by where it lies, by the run and the task's name in every record, and by the digest of its
spec; everything that works on a run (resume, evaluation, verification) works on a stage. The price
is a learner process for each stage. One learner of several agents would save that and had to tell
steps, weights, cursors and checkpoints of different tasks apart in every message and file.

All stages share one arm. An actor process holds an actor for each, and they take turns by outcome:
success hands over to the next stage, anything else is tried again, a few times, and then left to
the next stage or to another one: stages are the nodes of a graph of any size. The simulation
places the scene once; from then on `Task.reset` bridges what is left between the end of one episode
and the start of the next, and does the work of a stage that has given up. A stage whose steps are
done goes on acting, for the others need it; what it does then is logged and no longer trained on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
)

from serl.loop import Result
from serl.training.actor import Actor


def take_turns(
    actors: Mapping[str, Actor], stages: Mapping[str, Stage]
) -> Iterator[tuple[str, Result]]:
    """Run episodes, of the first stage at first, until a stage's actor is stopping.

    Args:
        actors: by stage; they drive the same robot.
        stages: what follows on what; a single actor needs none.

    Yields:
        The stage that an episode was of, and its result.
    """
    stage, failures = next(iter(actors)), 0
    while (result := actors[stage].episode()) is not None:
        yield stage, result
        failures = 0 if result.success else failures + 1
        if stages and (result.success or failures >= stages[stage].tries):
            after = stages[stage]
            stage = after.then if result.success else after.otherwise or after.then
            failures = 0


StageName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,31}$")]


class Stage(BaseModel):
    """One task of several that reset each other.

    Attributes:
        then: the stage that begins where this one has succeeded.
        tries: failures in a row after which another begins all the same, after its own reset:
        otherwise: that one; None for the one that follows on a success.
        config: settings that differ from those of the run, such as the task's direction.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    then: str
    tries: int = Field(3, ge=1, le=1000)
    otherwise: str | None = None
    config: dict[str, Any] = {}
