"""Choice among checkpoints by trials one after another, no more than are needed.

Trials on an arm cost a person's time, and the arm drifts. So the candidates take turns, and one
leaves as soon as it is probably worse than the leader.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from serl.training.evaluation import max_void_trials

if TYPE_CHECKING:
    from serl.runs.deployment import TrialResult

WORSE = 0.05
"""Probability of being better than the leader below which a candidate leaves."""


def probability_above(one: tuple[int, int], other: tuple[int, int]) -> float:
    """Return the probability that one success rate is above another one.

    Each is (successes, failures); the prior of a rate is uniform. Exact, as counts are integers.
    """
    (a, b), (c, d) = ((won + 1, lost + 1) for won, lost in (one, other))
    return math.fsum(
        math.exp(_log_beta(c + i, b + d) - math.log(b + i) - _log_beta(1 + i, b) - _log_beta(c, d))
        for i in range(a)
    )


def _log_beta(a: int, b: int) -> float:
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)


class Race:
    """Trials of several checkpoints in turns, until one is left or all had the most trials.

    Args:
        candidates: steps of the checkpoints.
        most: largest number of trials of each.
    """

    def __init__(self, candidates: Sequence[int], most: int) -> None:
        self._counts = {step: (0, 0) for step in sorted(candidates)}
        self._left, self._most = set(self._counts), most

    @property
    def best(self) -> int:
        """The checkpoint with the highest estimated rate; of equals the newest."""
        return max(self._left, key=lambda step: (self._rate(step), step))

    def next(self) -> int | None:
        """Return the checkpoint of the next trial; None when the choice is made."""
        waiting = [step for step in self._left if sum(self._counts[step]) < self._most]
        if len(self._left) < 2 or not waiting:
            return None
        return min(waiting, key=lambda step: (sum(self._counts[step]), -step))

    def add(self, step: int, success: bool) -> None:
        """Add the result of a trial; candidates that are probably worse than the leader leave."""
        won, lost = self._counts[step]
        self._counts[step] = (won + success, lost + (not success))
        leader = self._counts[self.best]
        self._left = {
            each
            for each in self._left
            if each == self.best or probability_above(self._counts[each], leader) >= WORSE
        }

    def _rate(self, step: int) -> float:
        won, lost = self._counts[step]
        return (won + 1) / (won + lost + 2)


class TrialPlan:
    """The order of a policy's trials on an arm: a race of checkpoints, then trials of its winner.

    Void trials are repeated, but only `max_void_trials` of them. A trial in which a person drove
    counts neither as a success nor as a failure of its checkpoint: in the race it is repeated, up
    to the same number, and among the trials of the winner it takes the place of one. After more,
    no trial follows. The first trial of the winner settles the choice: later corrections of results
    change it no more.

    Args:
        candidates: steps of the checkpoints; one alone needs no race.
        most: largest number of trials of each in the race.
        trials: number of trials of the winner; None for no end.
        results: results of the trials so far, as people's labels have corrected them.
    """

    def __init__(
        self,
        candidates: Sequence[int],
        most: int,
        trials: int | None,
        results: Sequence[TrialResult] = (),
    ) -> None:
        self._race, self._trials = Race(candidates, most), trials
        self._counted, self._void, self._helped = 0, 0, 0
        self._winner: int | None = None
        for result in results:
            self._add(result)

    @property
    def purpose(self) -> str:
        """The purpose of the next trial: "selection" during the race, then "final"."""
        return "final" if self._winner is not None or self._race.next() is None else "selection"

    def next(self) -> int | None:
        """Return the checkpoint of the next trial; None when all are done, or too many repeated."""
        repeated = max(self._void, self._helped)
        if self._trials is not None and repeated > max_void_trials(self._trials):
            return None
        if self.purpose == "selection":
            return self._race.next()
        if self._trials is not None and self._counted >= self._trials:
            return None
        return self._race.best if self._winner is None else self._winner

    def _add(self, result: TrialResult) -> None:
        is_final = result.purpose == "final"
        if is_final:
            self._winner = result.checkpoint
        if result.void:
            self._void += 1
        elif is_final:
            self._counted += 1
        elif result.assisted:
            self._helped += 1
        else:
            self._race.add(result.checkpoint, result.success)
