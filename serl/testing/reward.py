"""Conformance tests of rewards."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

from serl.reward import Judgement, Reward
from serl.testing.samples import contents, equal
from serl.types import Observation


class RewardSuite(ABC):
    """Conformance tests of `serl.reward.Reward`.

    Attributes:
        succeeds: whether the last reading of `readings` is a success.
    """

    succeeds = True

    @abstractmethod
    def make(self) -> Reward:
        """Return a new reward."""

    @abstractmethod
    def readings(self) -> Sequence[Observation]:
        """Return the readings of an episode: the one at its start, then one per step."""

    def judge(self, reward: Reward) -> list[Judgement]:
        """Return the judgements of an episode."""
        first, *later = self.readings()
        reward.begin(first)
        return [reward(reading) for reading in later]

    def test_it_names_its_provenance(self) -> None:
        """Check that the provenance, which every step records, is a word."""
        provenance = self.make().provenance
        assert isinstance(provenance, str)
        assert provenance

    def test_judgements_are_numbers(self) -> None:
        """Check that every reward is a finite float, and every success a bool."""
        for reward, success in self.judge(self.make()):
            assert type(reward) is float, f"expected a float, got {reward!r}"
            assert math.isfinite(reward), f"expected a finite number, got {reward}"
            assert type(success) is bool, f"expected a bool, got {success!r}"

    def test_the_last_reading_ends_the_episode_as_expected(self) -> None:
        """Check that the episode ends with a success at its last reading, or without one."""
        *before, last = (success for _, success in self.judge(self.make()))
        assert not any(before), "a success before the last reading, which would end the episode"
        assert last == self.succeeds

    def test_an_episode_begins_anew(self) -> None:
        """Check that `begin` forgets the episode before, a complete one or half of one."""
        reward = self.make()
        expected = self.judge(reward)
        assert self.judge(reward) == expected, "the same episode was judged otherwise"
        first, *later = self.readings()
        reward.begin(first)
        for reading in later[: len(later) // 2]:
            reward(reading)
        assert self.judge(reward) == expected, "half an episode changed the judgement of the next"

    def test_a_reading_is_only_read(self) -> None:
        """Check that no reading is modified."""
        readings = self.readings()
        before = [contents(each) for each in readings]
        reward = self.make()
        reward.begin(readings[0])
        for reading in readings:
            reward(reading)
        for reading, kept in zip(readings, before, strict=True):
            assert equal(contents(reading), kept), "the reward changed a reading"
