"""Unassisted trials: seeds of their starts, and the statistics of their results."""

from __future__ import annotations

import hashlib
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from serl.errors import BadInput
from serl.types import EndReason


class Purpose(StrEnum):
    """Purpose of an episode's start; two purposes never share a start."""

    DEMONSTRATION = "demonstration"
    TRAINING = "training"
    SELECTION = "selection"
    FINAL = "final"
    REWARD = "reward"


_DIGEST_BITS = 48


def start_seed(purpose: Purpose, run_seed: int, actor: str, episode: int) -> int:
    """Return the seed of an episode's start, below 2^53 (exact in JSON and in a float64).

    The purpose is in the top bits, so that seeds of different purposes differ by construction;
    the lower 48 bits are a digest of the other arguments.
    """
    digest = hashlib.sha256(f"{run_seed}/{actor}/{episode}".encode()).digest()
    number = int.from_bytes(digest[: _DIGEST_BITS // 8], "big")
    return ((list(Purpose).index(purpose) + 1) << _DIGEST_BITS) | number


def evaluation_seeds(purpose: Purpose, run_seed: int, trials: int) -> tuple[int, ...]:
    """Return the seeds of an evaluation's starts; more trials extend the seeds of fewer."""
    return tuple(start_seed(purpose, run_seed, "evaluation", trial) for trial in range(trials))


def wilson(successes: int, trials: int, z: float = 1.96) -> tuple[float, float]:
    """Return Wilson's score interval of a success rate; (0, 1) without trials.

    Wilson (1927), Probable inference, the law of succession, and statistical inference. JASA 22.

    Args:
        successes: number of successes, from 0 to `trials`.
        trials: number of independent trials.
        z: quantile of the normal distribution; 1.96 for 95 %.

    Raises:
        BadInput: the counts are impossible.
    """
    if not 0 <= successes <= trials:
        raise BadInput(f"successes must be from 0 to the {trials} trials, got {successes}")
    if trials == 0:
        return 0.0, 1.0
    rate, spread = successes / trials, z**2 / trials
    centre = (rate + spread / 2) / (1 + spread)
    half = z * math.sqrt(rate * (1 - rate) / trials + spread / (4 * trials)) / (1 + spread)
    return max(0.0, centre - half), min(1.0, centre + half)


_SOURCES = {"reward:": "reward", "reward ": "reward", "gymnasium:": "environment"}
"""Causes by the text with which a fault begins."""

_CAMERA = re.compile(r"camera|picture|image", re.IGNORECASE)
_OF_POLICY = re.compile(
    r"(force|torque) \d|contact|not follow|joint \d+ (is .* from its limit|turns faster)"
    r"|the arm reports (?!that its user stopped it)|estop: the service estop",
    re.IGNORECASE,
)
"""Causes of stops that a policy can bring about.

After a contact, xArm and Kinova report an error, and the program of a UR ends. The console's STOP
calls the guard's service `estop`.
"""


def void_cause(reason: EndReason, fault: str = "") -> str:
    """Return why an episode is void as a trial, in a word; empty if it counts.

    An episode is void if the operator discarded it, or a fault of the machine ended it: late or
    frozen cameras, a silent arm, guard or source of rewards, a lost device, numbers of an
    environment of Gymnasium that are not finite. It is not void after a contact, at the limit of a
    joint, after an error that the arm reports, if the arm does not follow, or after a STOP of the
    operator, as the policy may have caused these stops.
    """
    if reason in (EndReason.DISCARDED, EndReason.INTERRUPTED, EndReason.DEVICE_LOST):
        return reason.value
    if reason is EndReason.NEEDS_PERSON:
        return "scene"
    if reason is not EndReason.FAULT:
        return ""
    for source, cause in _SOURCES.items():
        if fault.startswith(source):
            return cause
    if _CAMERA.search(fault):
        return "camera"
    if _OF_POLICY.search(fault):
        return ""
    return "guard" if "guard" in fault else "arm"


def max_void_trials(trials: int) -> int:
    """Return the number of void trials that are repeated; after one more an evaluation ends."""
    return 3 + trials // 5


def describe_early_end(void: Sequence[str], valid: int, planned: int, helped: int = 0) -> str:
    """Return a line about an evaluation that ended before all its trials were valid.

    Args:
        void: the cause of each void trial.
        valid: number of trials that count.
        planned: number of trials that were to count.
        helped: number of repeated trials in which a person drove.
    """
    after = "early"
    if helped > max_void_trials(planned):
        after = f"after {helped} selection trials with a person's help"
    if len(void) > max_void_trials(planned):
        after = f"after {len(void)} void trials ({', '.join(sorted(set(void)))})"
    return f"ended {after}: {valid} of {planned} valid"


@dataclass(frozen=True, slots=True)
class Trial:
    """One unassisted episode.

    Attributes:
        success: True if the task was solved, by the ground truth.
        steps: length in steps.
        duration_s: task time.
        reason: reason why the episode ended.
        void: why the trial does not count, see `void_cause`; empty if it counts.
    """

    seed: int
    success: bool
    steps: int
    duration_s: float
    reason: str
    void: str = ""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Trials of one policy, each from a different start.

    Attributes:
        trials: the trials that count.
        void: the trials that a fault ended, which do not.
        early_end: see `describe_early_end`; empty if all planned trials were run.
    """

    trials: tuple[Trial, ...]
    void: tuple[Trial, ...] = ()
    early_end: str = ""

    @property
    def successes(self) -> int:
        """The number of trials that solved the task."""
        return sum(trial.success for trial in self.trials)

    @property
    def success_rate(self) -> float:
        """The share of trials that solved the task."""
        return self.successes / len(self.trials) if self.trials else 0.0

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % Wilson interval of the success rate."""
        return wilson(self.successes, len(self.trials))

    @property
    def cycle_time_s(self) -> float | None:
        """The mean task time of the successes; None without any."""
        times_s = [trial.duration_s for trial in self.trials if trial.success]
        return sum(times_s) / len(times_s) if times_s else None

    @property
    def void_text(self) -> str:
        """The number of void trials and their causes, as "2 void (camera)"; empty without any."""
        causes = Counter(trial.void for trial in self.void)
        return f"{len(self.void)} void ({', '.join(sorted(causes))})" if causes else ""

    def summary(self) -> str:
        """Return the result as one line of text."""
        if self.early_end and not self.trials:
            return self.early_end
        low, high = self.interval
        void = f", {self.void_text}" if self.void else ""
        cycle = "" if self.cycle_time_s is None else f", mean cycle time {self.cycle_time_s:.1f} s"
        result = f"{self.successes} of {len(self.trials)} trials succeeded{void}"
        if self.early_end:
            result = f"{self.early_end}, of which {self.successes} succeeded"
        return f"{result}: {self.success_rate:.1%} (95 % interval {low:.1%} to {high:.1%}){cycle}"


def evaluate(
    run_episode: Callable[[int], Trial], seeds: Iterable[int], trials: int | None = None
) -> Evaluation:
    """Run one trial per seed, until `trials` of them count; None for all seeds.

    Raises:
        BadInput: no seed is given, or one twice (the interval assumes independent trials).
    """
    seeds = tuple(seeds)
    if not seeds:
        raise BadInput("an evaluation needs at least one trial, got none")
    if len(set(seeds)) < len(seeds):
        raise BadInput(f"an evaluation needs {len(seeds)} different seeds, got {len(set(seeds))}")
    done: list[Trial] = []
    for seed in seeds:
        if trials is not None and sum(not trial.void for trial in done) == trials:
            break
        done.append(run_episode(seed))
    counted = tuple(trial for trial in done if not trial.void)
    void = tuple(trial for trial in done if trial.void)
    if trials is None or len(counted) == trials:
        return Evaluation(counted, void)
    ended = describe_early_end([trial.void for trial in void], len(counted), trials)
    return Evaluation(counted, void, ended)
