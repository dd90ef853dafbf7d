"""What a run starts with of another one, as its configuration says."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, model_validator

Part = Literal["actor", "critics", "encoder", "normaliser"]


class OriginConfig(BaseModel):
    """Another run, and what is taken of it. The path alone stands for the defaults.

    Attributes:
        run: its folder; None to start from nothing.
        load: which of its parts; None for all that fit, the actor at least. The normaliser is the
            scale of observations: without it this run's demonstrations give a new one.
        data: what enters replay of what it recorded: nothing, its successful episodes as
            demonstrations, or all its online steps beside those of this run.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    run: Path | None = None
    load: tuple[Part, ...] | None = None
    data: Literal["none", "successes", "steps"] = "none"

    @model_validator(mode="before")
    @classmethod
    def _of_path(cls, value: Any) -> Any:
        return {"run": value} if value is None or isinstance(value, str | Path) else value

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.run is None and (self.load or self.data != "none"):
            raise ValueError("run: expected the folder of a run to load or take data from")
        return self

    def loads(self, part: Part) -> bool:
        """Whether this part is asked for; where nothing is said, it is if it fits."""
        return self.run is not None and (self.load is None or part in self.load)
