"""Reward for lifting the tool above a height."""

from __future__ import annotations

from pydantic import Field

from serl.reward import Judgement, RewardConfig
from serl.task import SimulatedTask
from serl.types import Observation


class HighConfig(RewardConfig):
    """Settings of the reward.

    Attributes:
        height_m: tool height in the base frame above which the task succeeds, m.
    """

    height_m: float = Field(0.25, ge=0, le=2)


class High:
    """Reward for a high tool; see `serl.reward.Reward`."""

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
