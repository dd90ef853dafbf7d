"""Recorded episodes as arrays, the common form between serl's log and the data formats of others.

`serl.datasets.export` reads episodes of a run or a recording in this form, and `write_recording`
writes a recording of episodes in this form, whose origin may be another program.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from serl.datasets.recording_session import FAILURES
from serl.datasets.serl_import import ImportMap, Mapper, Values
from serl.errors import CorruptData, SpecMismatch
from serl.log.episode_log import EpisodeLog, LogConfig
from serl.log.wire import MAX_WALL_S
from serl.runs.demonstrations import IMPORT
from serl.specs import Spec, check_reward
from serl.system.json_fields import short
from serl.task import EnvironmentStep, EnvironmentTask
from serl.transport import MAX_VERSION
from serl.types import ActionSource, End, EndReason, Key, Observation, Step, parse_reason

_SLACK = 1e-4  # actions that were clipped in float64 and stored in float32
_PROVENANCES = 1000  # characters
_TEXTS = ("source", "provenance")
_PER_STEP = ("action", "reward", "requested", "policy_version", "wall_s", *_TEXTS)
_LIMITS = {"policy_version": MAX_VERSION, "wall_s": MAX_WALL_S}


@dataclass(frozen=True)
class EpisodeArrays:
    """An episode of N steps and its final observation.

    Attributes:
        observations: state arrays and images (uint8 RGB) by name; the last row is of the final
            observation. An array named "state" may hold a whole state vector.  # (N + 1, ...)
        action: executed actions.  # (N, A)
        reward: rewards.  # (N,)
        terminated: whether the task ended with the last step; otherwise the episode was truncated.
        success: the task was solved.
        reason: reason of the end, as it is recorded.
        requested: actions of the policy; None where they are not known.  # (N, A)
        source: source of each action; None for a human.  # (N,)
        provenance: provenance of each reward; None where it is not known.  # (N,)
        policy_version: version of the weights; None for 0.  # (N,)
        wall_s: time of each action, s since 1970; None for now.  # (N,)
        info: numbers of an environment's `info` after each step by key; None for a format without
            it.  # (N,)
    """

    observations: Mapping[str, Values]
    action: Values
    reward: Values
    terminated: bool
    success: bool
    reason: str
    requested: Values | None = None
    source: Sequence[str] | None = None
    provenance: Sequence[str] | None = None
    policy_version: Values | None = None
    wall_s: Values | None = None
    info: Mapping[str, Values] | None = None

    def __len__(self) -> int:
        return len(self.action)

    @property
    def ends(self) -> tuple[Values, Values]:
        """Whether the task ended, and whether the episode was cut, with each step."""
        last = np.arange(len(self)) + 1 == len(self)
        return last & self.terminated, last & (not self.terminated)


@dataclass(frozen=True)
class SourceRobot:
    """The robot that a data set of another program was recorded with, as far as it is known.

    Attributes:
        rate_hz: control rate, as the data set gives it; None for unknown.
        actions: names of an action's entries.
        spec: spec of data that serl exported.
    """

    robot: str = ""
    rate_hz: Any = None
    actions: Sequence[str] = field(default_factory=tuple)
    spec: Spec | None = None

    def check_rate(self, where: Path) -> None:
        """Raise `CorruptData` for a rate that is no positive number."""
        rate_hz = self.rate_hz
        number = isinstance(rate_hz, int | float) and not isinstance(rate_hz, bool)
        if rate_hz is not None and (not number or not 0 < rate_hz < math.inf):
            found = short(rate_hz)
            raise CorruptData(f"{where}: rate: expected a positive number, found {found}")

    def check(
        self, spec: Spec, mapping: ImportMap, where: Path, first: EpisodeArrays | None = None
    ) -> None:
        """Raise `SpecMismatch` with all differences unless the robot is that of a task's spec.

        A mapping of actions or of the state replaces the comparison of their names.

        Args:
            spec: spec of the task.
            mapping: see `Mapper`.
            where: the data set, for the message.
            first: its first episode, whose sizes are compared.
        """
        observed = ""
        if own := self._own_difference(spec, mapping):
            lines = [own]
        else:
            lines = [self._rate_difference(spec), self._action_difference(spec, mapping, first)]
            lines = [line for line in lines if line]
            if first is not None:
                observed = _observation_difference(first, spec, mapping)
        if lines or observed:
            robot = f" ({self.robot})" if self.robot else ""
            kind = "another embodiment" if lines else "other observations"
            if self.spec is not None and self.spec.task != spec.task:
                kind, robot = f"data of the task {self.spec.task}, not {spec.task}", ""
            text = "; ".join(filter(None, (*lines, observed)))
            raise SpecMismatch(f"{where}: {kind}{robot}: {text}")

    def unnamed_actions(self, mapping: ImportMap) -> str:
        """Return a warning unless names or a mapping tell an action's entries; "" if they do."""
        if self.spec is not None or self.actions or mapping.action:
            return ""
        robot = self.robot or "an unknown robot"
        return f"the data, of {robot}, do not name the entries of an action; compared their number"

    def _own_difference(self, spec: Spec, mapping: ImportMap) -> str:
        """Return the difference of the spec of own data, without images that the task lacks."""
        if self.spec is None or mapping.state:
            return ""
        own, images = self.spec, spec.observation.images
        own = own.with_images(name for name in own.observation.images if name in images)
        return own.model_copy(update={"task": spec.task}).difference(spec)

    def _rate_difference(self, spec: Spec) -> str:
        if self.rate_hz is None or abs(self.rate_hz - spec.rate_hz) <= 1e-3:
            return ""
        return f"rate {self.rate_hz:g} Hz != {spec.rate_hz:g} Hz"

    def _action_difference(
        self, spec: Spec, mapping: ImportMap, first: EpisodeArrays | None
    ) -> str:
        """Return the difference of the names of an action's entries, else that of their number."""
        names = [name.lower() for name in self.actions]
        if names and not mapping.action and names != [n.lower() for n in spec.action_names]:
            return f"action {' '.join(self.actions)} != {' '.join(spec.action_names)}"
        if first is None:
            return ""
        return _action_misfit(math.prod(np.shape(first.action)[1:]), spec, mapping)


class Dataset(NamedTuple):
    """A data set of another format.

    Attributes:
        origin: robot that it was recorded with.
        episodes: its episodes; each is read when it is needed.
    """

    origin: SourceRobot
    episodes: Iterator[EpisodeArrays]


def _observation_difference(first: EpisodeArrays, spec: Spec, mapping: ImportMap) -> str:
    """Return which states and images of a task an episode does not have, with their sizes."""
    try:
        seen = {name: rows[0] for name, rows in first.observations.items()}
        Mapper(spec.observation, seen, mapping)
    except SpecMismatch as error:
        return str(error)
    return ""


def checked_dataset(data: Dataset, spec: Spec, mapping: ImportMap, where: Path) -> Dataset:
    """Return a data set whose first episode was read and accepted by `SourceRobot.check`."""
    data.origin.check_rate(where)
    try:
        first = next(data.episodes, None)
        if first is not None:
            _check_arrays(first, f"{where}: episode 0")
    except CorruptData:
        data.origin.check(spec, mapping, where)  # another embodiment is the better reason
        raise
    data.origin.check(spec, mapping, where, first)
    return data._replace(episodes=chain([] if first is None else [first], data.episodes))


def judged_by(task: EnvironmentTask, data: Dataset, origin: str) -> Dataset:
    """Return a data set of another program with the rewards and ends that a task gives its steps.

    Args:
        task: task of the environment that the data set was recorded in.
        data: the data set.
        origin: beginning of the provenance of the rewards.
    """
    numbered = enumerate(data.episodes)
    episodes = (_judged(task, each, f"episode {n}", origin) for n, each in numbered)
    return data._replace(episodes=episodes)


def _judged(
    task: EnvironmentTask, episode: EpisodeArrays, where: str, origin: str
) -> EpisodeArrays:
    """Return an episode as a task judges it, up to the end that the task gives it."""
    _check_arrays(episode, where)
    if not len(episode):
        return episode
    info, last = episode.info, len(episode) - 1
    terminated, truncated = episode.ends
    outcomes = list(
        task.outcomes(
            EnvironmentStep(
                float(episode.reward[index]),
                bool(terminated[index]),
                bool(truncated[index]),
                episode.success and index == last,
                None if info is None else {name: rows[index] for name, rows in info.items()},
            )
            for index in range(len(episode))
        )
    )
    count, end = len(outcomes), outcomes[-1]
    return replace(
        episode,
        observations={name: rows[: count + 1] for name, rows in episode.observations.items()},
        action=episode.action[:count],
        reward=np.array([outcome.reward for outcome in outcomes], np.float64),
        terminated=end.terminated,
        success=end.success,
        reason=success_reason(end.success, end.terminated),
        provenance=[f"{origin}: {outcome.provenance}" for outcome in outcomes],
        info=None,
    )


class Written(NamedTuple):
    """Numbers of written episodes and steps."""

    successes: int
    failures: int
    steps: int


def write_recording(
    data: Dataset,
    spec: Spec,
    mapping: ImportMap,
    folder: Path,
    origin: str,
    log_config: LogConfig | None = None,
    on_episode: Callable[[], object] = lambda: None,
) -> Written:
    """Write successes into a new folder, and failures into its subfolder.

    Args:
        data: the data set.
        spec: spec of the task.
        mapping: see `Mapper`; equal names need none.
        folder: folder to create; must hold no episodes.
        origin: provenance of rewards whose provenance is not known.
        log_config: settings of the episode log; the defaults if None.
        on_episode: called after each episode.

    Raises:
        SpecMismatch: an episode does not fit the task; if it is the first, nothing was written.
    """
    name, epoch = folder.resolve().name, time.time_ns()
    counts = {True: 0, False: 0}
    steps = 0
    with ExitStack() as stack:
        logs: dict[bool, EpisodeLog] = {}
        for number, episode in enumerate(data.episodes):
            key = Key(name, IMPORT, epoch, counts[episode.success], 0)
            records = _records(episode, key, spec, mapping, origin, f"episode {number}")
            if episode.success not in logs:
                target = folder if episode.success else folder / FAILURES
                log = EpisodeLog(target, spec, name, IMPORT, epoch, log_config)
                logs[episode.success] = stack.enter_context(log)
            for record in records:
                logs[episode.success].append(record)
            counts[episode.success] += 1
            steps += len(episode)
            on_episode()
    if not steps:
        raise CorruptData("expected episodes with steps, found none")
    return Written(counts[True], counts[False], steps)


def _records(
    episode: EpisodeArrays, key: Key, spec: Spec, mapping: ImportMap, origin: str, where: str
) -> list[Step | End]:
    """Return the records of an episode, each checked."""
    _check_arrays(episode, where)
    action = _actions(episode.action, spec, mapping, where)
    requested = action
    if episode.requested is not None:
        requested = _actions(episode.requested, spec, mapping, where)
    first = {name: rows[0] for name, rows in episode.observations.items()}
    mapper = Mapper(spec.observation, first, mapping)
    ends, cuts = episode.ends
    now_s, records = time.time(), list[Step | End]()

    def observed(row: int) -> Observation:
        raw = {name: rows[row] for name, rows in episode.observations.items()}
        seen = mapper(raw, row / spec.rate_hz)
        spec.observation.validate_observation(seen)
        return seen

    for index in range(len(episode)):
        check_reward(float(episode.reward[index]))
        source = episode.source[index] if episode.source is not None else ActionSource.HUMAN
        given = episode.provenance[index] if episode.provenance is not None else origin
        version = 0 if episode.policy_version is None else int(episode.policy_version[index])
        records.append(
            Step(
                key=Key(key.run, key.actor, key.epoch, key.episode, index),
                observation=observed(index),
                requested=requested[index],
                action=action[index],
                reward=float(episode.reward[index]),
                reward_provenance=str(given)[:_PROVENANCES],
                terminated=bool(ends[index]),
                truncated=bool(cuts[index]),
                source=_source(source, where),
                policy_version=version,
                monotonic_s=index / spec.rate_hz,
                wall_s=now_s if episode.wall_s is None else float(episode.wall_s[index]),
            )
        )
    reason, fault = parse_reason(episode.reason)
    count = len(episode)
    place = Key(key.run, key.actor, key.epoch, key.episode, count)
    final, end_s = observed(count), count / spec.rate_hz
    wall_s = records[-1].wall_s if records else now_s
    return [*records, End(place, final, episode.success, reason, end_s, wall_s, fault)]


def _check_arrays(episode: EpisodeArrays, where: str) -> None:
    """Raise `CorruptData` unless all arrays have the length of the episode, and hold numbers."""
    steps = {name: getattr(episode, name) for name in _PER_STEP}
    for name, rows in {**episode.observations, **steps}.items():
        expected = len(episode) + (name in episode.observations)
        if rows is not None and len(rows) != expected:
            raise CorruptData(f"{where}: {name}: {len(rows)} rows, expected {expected}")
        if rows is not None and name not in _TEXTS and np.asarray(rows).dtype.kind not in "fiub":
            raise CorruptData(f"{where}: {name}: expected numbers")
    for name in ("reward", *_LIMITS):
        rows, most = getattr(episode, name), _LIMITS.get(name)
        if rows is not None and np.size(rows) != len(episode):
            raise CorruptData(f"{where}: {name}: expected a number for each step")
        if rows is not None and most and not ((rows >= 0) & (rows < most)).all():
            raise CorruptData(f"{where}: {name}: expected numbers from 0 to {most}")


def _actions(rows: Values, spec: Spec, mapping: ImportMap, where: str) -> Any:
    """Return actions in the order of the task, as float32; raise `SpecMismatch` if they misfit."""
    rows = np.asarray(rows)
    rows = rows.reshape(len(rows), -1)
    if misfit := _action_misfit(rows.shape[1], spec, mapping):
        raise SpecMismatch(f"{where}: {misfit}")
    if mapping.action:
        rows = rows[:, list(mapping.action)]
    if not np.isfinite(rows).all() or np.abs(rows).max(initial=0.0) > 1.0 + _SLACK:
        raise SpecMismatch(f"{where}: an action of {np.abs(rows).max():g}, allowed 1")
    return np.clip(rows, -1.0, 1.0).astype(np.float32)


def _action_misfit(size: int, spec: Spec, mapping: ImportMap) -> str:
    """Return how actions of `size` entries misfit the actions of a task; "" if they fit."""
    if max(mapping.action, default=-1) >= size:
        return f"map: action {max(mapping.action)}: actions have {size} entries"
    found, (expected,) = len(mapping.action) or size, spec.action.shape
    names = " ".join(spec.action_names)
    return "" if found == expected else f"actions: {found} entries != {expected} ({names})"


def _source(text: str, where: str) -> ActionSource:
    try:
        return ActionSource(text)
    except ValueError as error:
        raise CorruptData(f"{where}: source {text!r}, known are {[*ActionSource]}") from error


def without_last(reward: Values, judged: bool | None = None) -> tuple[Values, bool]:
    """Return the rewards without that of the last row, and whether the episode is a success.

    The action of the last row has no next observation. As its reward may be the only one of a
    success, the last action of a success that is kept gets it, unless its own is larger or it is
    not finite.

    Args:
        reward: rewards of all rows of an episode.
        judged: whether the data declare a success; None if a positive reward at the end does.
    """
    kept = np.array(reward[:-1], np.float64)
    if not len(kept):
        return kept, False
    best = float(np.max(reward[-2:] if np.isfinite(reward[-1]).all() else reward[-2:-1]))
    success = best > 0 if judged is None else judged
    if success:
        kept[-1] = best
    return kept, success


def success_reason(success: bool, terminated: bool) -> str:
    """Return the reason of an end that a foreign data set does not name."""
    if success:
        return EndReason.SUCCESS.value
    return (EndReason.FAILURE if terminated else EndReason.TIME_LIMIT).value
