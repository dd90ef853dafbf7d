"""Tasks that reset each other: each starts where the previous one has succeeded.

A run with stages contains a run for each of them, under `stages/`, with its own settings, episodes,
checkpoints, replay, report and learner process; all commands for runs work on a stage.

All stages share one arm, and one process holds their actors. Another stage follows after a success,
and after several failures in a row. The simulation places the scene once; from then on `Task.reset`
bridges the gap between the end of one episode and the start of the next, and completes the work of
a stage that has failed. A stage whose steps are done continues to act for the others; its further
steps are logged and not trained on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import Field

from serl.loop import Result
from serl.training.actor import Actor
from serl.types import FrozenModel


def take_turns(
    actors: Mapping[str, Actor], stages: Mapping[str, Stage]
) -> Iterator[tuple[str, Result]]:
    """Run episodes, starting with the first stage, until a stage's actor is stopping.

    Args:
        actors: actors by stage; they drive the same robot.
        stages: successors of each stage; a single actor needs none.

    Yields:
        The stage of an episode, and its result.
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


class Stage(FrozenModel):
    """One task of several that reset each other.

    Attributes:
        then: the stage that follows on success.
        tries: failures in a row after which `otherwise` follows, after its own reset.
        otherwise: the stage that follows after `tries` failures; None for `then`.
        config: settings that differ from those of the run, such as the task's direction.
    """

    then: str
    tries: int = Field(3, ge=1, le=1000)
    otherwise: str | None = None
    config: dict[str, Any] = Field({})
