"""A reward for a tool that is high."""

from __future__ import annotations

from pydantic import Field

from serl.reward import Judgement, RewardConfig
from serl.task import SimulatedTask
from serl.types import Observation


class HighConfig(RewardConfig):
    """Numbers.

    Attributes:
        height_m: the tool is at a success above this, m, base frame.
    """

    height_m: float = Field(0.25, ge=0, le=2)


class High:
    """A reward; see `serl.reward.Reward`."""

    Config = HighConfig
    provenance = "high"

    def __init__(self, height_m: float) -> None:
        self._height_m = height_m

    @classmethod
    def create(cls, config: RewardConfig, task: SimulatedTask) -> High:
        assert isinstance(config, HighConfig)
        return cls(config.height_m)

    def begin(self, reading: Observation) -> None:
        pass

    def __call__(self, reading: Observation) -> Judgement:
        high = float(reading.state["tcp_pose"][2]) > self._height_m
        return Judgement(float(high), high)


reward = High
