"""Replay: a ring of frames with the transitions between them, sampled by strata."""

from __future__ import annotations

import math
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from serl.errors import BadInput, SpecMismatch
from serl.intervention import stuck_since_s
from serl.specs import Spec
from serl.training.frames import FeatureStore, FrameEncoder, FrameStore, Slots
from serl.types import ActionSource, Array, Batch, End, EndReason, Record, Step, feedback_of

Stream = tuple[str, str, bool]  # run, actor, prior
_NONE = -1


class Replay:
    """Transitions of interleaved actors, every observation stored once.

    A slot holds a frame and, once its successor is known, the transition that starts there; the
    successor is the next frame of the same episode or the one of its `End`. Demonstrations fill the
    first slots and stay; the rest is a ring that overwrites the oldest. Transitions of humans and
    demonstrations hold the executed action, those of the policy the requested one, unless a guard
    held the arm and nothing was executed. Equal records in an equal order give equal contents. With
    an `encoder`, frames are stored and sampled as features, and not shifted. Sampled images are the
    last `stacked` ones of their episode, as in `FrameStack`; a transition of which one was
    overwritten is not sampled. With `imitate_successes` (self-imitation, Oh et al. 2018, arXiv
    1806.05635), a complete success of the policy alone counts as a demonstration from its `End`
    on, in batches and for cloning, until the ring overwrites it. With `time_limit_terminates`, no
    return continues after a time limit. With `feedback_delay_s`, the
    shortest and the longest delay of a person's evaluation, each evaluation is credited to the
    steps of its episode that it may refer to. The weight of a step is the probability that the
    delay, uniform between both, leads back into that step (Warnell et al. 2018, arXiv 1709.10163).

    Attributes:
        capacity: number of slots, demonstrations included.
        online: steps of policy and human entered so far, overwritten ones included.
        human: steps among `online` that a human drove.
        demonstrations: transitions entered with `prior=True`.
        dropped: steps lost because their stream broke off before their successor arrived.
    """

    def __init__(
        self,
        spec: Spec,
        capacity: int,
        discount: float,
        n_step: int = 1,
        seed: int = 0,
        crop_px: int = 0,
        folder: Path | None = None,
        encoder: FrameEncoder | None = None,
        stacked: int = 1,
        imitate_successes: bool = False,
        time_limit_terminates: bool = False,
        feedback_delay_s: tuple[float, float] | None = None,
    ) -> None:
        self.online = self.human = self.demonstrations = self.dropped = 0
        self._observation, self._n_step, self._discount = spec.observation, n_step, discount
        self.capacity, self._imitates = capacity, imitate_successes
        self._time_limit_terminates = time_limit_terminates
        self._state = np.zeros((capacity, self._observation.state_size), np.float32)
        cameras = self._observation.images
        self._frames = (
            FeatureStore(cameras, capacity, encoder, folder)
            if encoder
            else FrameStore(cameras, capacity, crop_px, folder)
        )
        self._action = np.zeros((capacity, *spec.action.shape), np.float32)
        self._reward = np.zeros(capacity, np.float32)
        self._feedback = np.zeros((capacity, 2), np.float32)  # weight, weighted sum
        self._delay_s, self._period_s = feedback_delay_s, 1.0 / spec.rate_hz
        self._terminated = np.zeros(capacity, np.bool_)
        self._prior = np.zeros(capacity, np.bool_)
        self._successor = np.full(capacity, _NONE, np.int64)  # _NONE: no transition starts here
        self._after = np.full(capacity, _NONE, np.int64)  # the successor, also once not sampled
        self._stacks = np.zeros((capacity, stacked), np.int64)  # slots of the stack, oldest first
        self._prior_slots, self._online_slots = _SlotSet(capacity), _SlotSet(capacity)
        self._transitions = 0
        self._open: dict[Stream, tuple[int, Step]] = {}
        self._owner: dict[int, Stream] = {}
        self._written = np.zeros(capacity, np.int64)  # number of writes of each slot
        self._newest: dict[Stream, _NewestEpisode] = {}
        self._ring_start: int | None = None  # first slot of the ring, set by the first online frame
        self._next = 0
        self._rng = np.random.default_rng(seed)

    def __len__(self) -> int:
        """Return the number of transitions that can be sampled."""
        return self._transitions

    def add(self, record: Record, prior: bool = False) -> None:
        """Enter the next record of an actor's stream.

        A step becomes a transition when its successor arrives: the next step of its episode, or
        the `End`. If neither comes, or a fault left no observation, the step is dropped and
        counted. Scripted steps enter only as demonstrations; their first frame still serves as
        the successor of the step before. A discarded episode is removed when its `End` arrives,
        even if some of its records were lost; so is the part during which the arm was stuck.

        Args:
            record: a record from an actor; those of several actors may interleave.
            prior: True if the record belongs to a demonstration.

        Raises:
            BadInput: a demonstration follows an online record, or the demonstrations do not fit.
        """
        stream = (record.key.run, record.key.actor, prior)
        follows = stream in self._open and _follows(record, self._open[stream][1])
        if stream in self._open and not follows:
            self._drop(stream)
        opens = isinstance(record, Step) and (prior or record.source is not ActionSource.SCRIPT)
        name = record.key.epoch, record.key.episode
        if stream not in self._newest or self._newest[stream].name != name:
            self._newest[stream] = _NewestEpisode(name, [], set())
        if isinstance(record, Step):
            self._newest[stream].sources.add(record.source)
        if follows or opens:
            self._enter(record, stream, opens)
        if isinstance(record, End):
            discarded = record.reason is EndReason.DISCARDED
            if self._imitates and record.success and not (prior or discarded):
                self._imitate(self._newest[stream], record.key.index)
            stuck_s = stuck_since_s(record.reason, record.monotonic_s)
            self._forget_since(stream, -math.inf if discarded else stuck_s)

    def sample(self, n: int, prior_share: float = 0.5) -> Batch:
        """Sample `n` transitions: `prior_share` from prior data, the rest from online data.

        Prior data are demonstrations, steps of humans and imitated successes; online data are all
        steps except demonstrations, so that steps of humans and imitated successes are in both, as
        in HIL-SERL. Uniform in each, with replacement (Ball et al. 2023, RLPD). The two alternate,
        so that equal parts of the batch hold equal shares. While one of them is empty, all are
        drawn from the other.

        Raises:
            BadInput: the replay is empty.
        """
        if not len(self):
            raise BadInput("replay: empty, nothing to sample")
        from_prior = np.diff(np.floor(np.arange(n + 1) * prior_share)) > 0
        if not (len(self._prior_slots) and len(self._online_slots)):
            from_prior[:] = len(self._prior_slots) > 0
        slots = np.empty(n, np.int64)
        for rows, stratum in ((from_prior, self._prior_slots), (~from_prior, self._online_slots)):
            slots[rows] = stratum.sample(self._rng, int(rows.sum()))
        reward, discount, final = self._walk(slots)
        return Batch(
            state=self._state[slots],
            action=self._action[slots],
            reward=reward,
            discount=discount,
            next_state=self._state[final],
            prior=self._prior[slots],
            images=self._frames.take(self._stacks[slots], self._rng),
            next_images=self._frames.take(self._stacks[final], self._rng),
            feedback=self._feedback[slots] if self._delay_s else None,
        )

    def prior_states(self) -> Array:
        """Return the state vectors before each action of the prior data.  # (N, D)."""
        states: Array = self._state[np.sort(self._prior_slots.slots)]
        return states

    def states(self) -> Array:
        """Return the state vectors before each action of all transitions.  # (N, D)."""
        states: Array = self._state[np.flatnonzero(self._successor != _NONE)]
        return states

    def sampler_state(self) -> dict[str, NDArray[np.uint64]]:
        """Return the state of the random generator."""
        state = self._rng.bit_generator.state
        integers = [state["state"]["state"], state["state"]["inc"]]
        halves = [half for integer in integers for half in divmod(integer, 2**64)]
        halves += [state["has_uint32"], state["uinteger"]]
        return {"generator": np.array(halves, np.uint64)}

    def load_sampler_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Restore a `sampler_state`; raises `SpecMismatch` when `state` is not valid."""
        words = state.get("generator", np.zeros(0))
        if len(state) != 1 or words.shape != (6,) or words.dtype != np.uint64:
            raise SpecMismatch("replay: expected the sampler's state: generator: uint64[6]")
        high, low, inc_high, inc_low, has_uint32, uinteger = map(int, words)
        self._rng.bit_generator.state = {
            "bit_generator": "PCG64",
            "state": {"state": high << 64 | low, "inc": inc_high << 64 | inc_low},
            "has_uint32": has_uint32,
            "uinteger": uinteger,
        }

    def _walk(self, slots: Slots) -> tuple[Array, Array, Slots]:
        """Return n-step rewards, discounts and frames to bootstrap from.  # (B,) each.

        A return ends where a takeover begins or ends, and bootstraps from the first frame of the
        other source: a policy's return must not include the rewards of a human.
        """
        reward = self._reward[slots]
        discount = np.full(len(slots), self._discount, np.float32)
        final = self._successor[slots]
        ended = self._terminated[slots]
        for _ in range(self._n_step - 1):
            same_source = self._prior[final] == self._prior[slots]
            walking = np.flatnonzero(~ended & same_source & (self._successor[final] != _NONE))
            if not len(walking):
                break
            here = final[walking]
            reward[walking] += discount[walking] * self._reward[here]
            discount[walking] *= self._discount
            final[walking] = self._successor[here]
            ended[walking] = self._terminated[here]
        discount[ended] = 0.0
        return reward, discount, final

    def _enter(self, record: Record, stream: Stream, opens: bool) -> None:
        """Store a record's frame: it closes the open step, if any, and may open the next one."""
        slot = self._put(record, stream[2])
        self._stacks[slot] = slot
        if stream in self._open:  # unless the ring is so small that the frame overwrote it
            self._stacks[slot, :-1] = self._stacks[self._open[stream][0], 1:]
            late = isinstance(record, End) and record.reason is EndReason.TIME_LIMIT
            self._close(stream, slot, late and self._time_limit_terminates)
        if isinstance(record, Step) and opens:
            self._open[stream] = slot, record
            self._owner[slot] = stream

    def _put(self, record: Record, prior: bool) -> int:
        """Store the record's frame in the next slot, overwriting its content; return the slot."""
        slot = self._claim(prior)
        self._state[slot] = self._observation.flatten(record.observation)
        self._frames.put(slot, record.observation.images)
        return slot

    def _claim(self, prior: bool) -> int:
        if prior and self._ring_start is not None:
            raise BadInput("replay: demonstrations must be added before the first online step")
        if not prior and self._ring_start is None:
            self._ring_start = self._next
        slot, pinned = self._next, self._ring_start or 0
        if slot == self.capacity:
            slot = pinned
        # A frame, the frames stacked with it and its successor must fit side by side.
        if (prior and slot < self._next) or self.capacity - pinned < 1 + self._stacks.shape[1]:
            raise BadInput(f"replay: the demonstrations do not fit in capacity {self.capacity}")
        self._next = slot + 1
        self._forget(slot)
        return slot

    def _forget(self, slot: int) -> None:
        """Invalidate a slot: its own transition, and those whose stacked images include its frame.

        Predecessors of a slot were written before it, so no transition leads to it any more.
        """
        self._written[slot] += 1
        self._feedback[slot] = 0.0
        user = slot  # a slot whose stack includes this frame
        for _ in range(self._stacks.shape[1]):
            if user in self._owner:
                self._drop(self._owner[user])
            self._remove(user)
            if (user := int(self._after[user])) == _NONE:
                break
        self._after[slot] = _NONE

    def _remove(self, slot: int) -> None:
        """Remove the transition that starts in a slot, if any, from sampling."""
        if self._successor[slot] != _NONE:
            self._successor[slot] = _NONE
            self._transitions -= 1
            if self._prior[slot]:
                self._prior_slots.remove(slot)
            if self._ring_start is not None and slot >= self._ring_start:
                self._online_slots.remove(slot)

    def _imitate(self, episode: _NewestEpisode, length: int) -> None:
        """Add an ended episode to the prior data if the policy alone drove it and no step is lost.

        Steps without any action are left out: a guard held the arm.
        """
        if episode.sources != {ActionSource.POLICY} or len(episode.slots) != length:
            return
        for slot, written, _ in episode.slots:
            is_stored = self._written[slot] == written and self._successor[slot] != _NONE
            if is_stored and self._action[slot].any():
                self._prior[slot] = True
                self._prior_slots.add(slot)

    def _forget_since(self, stream: Stream, since_s: float) -> None:
        """Remove an ended episode's steps issued since a time from sampling; counts stay."""
        for slot, written, issued_s in self._newest.pop(stream).slots:
            # Skip slots that the ring has overwritten.
            if issued_s >= since_s and self._written[slot] == written:
                self._remove(slot)

    def _drop(self, stream: Stream) -> None:
        slot, _ = self._open.pop(stream)
        del self._owner[slot]
        self.dropped += 1

    def _close(self, stream: Stream, successor: int, terminates: bool) -> None:
        """Turn the open step into a transition."""
        slot, step = self._open.pop(stream)
        del self._owner[slot]
        prior = stream[2]
        # Limits are part of the dynamics. If the limited actions were learned instead, the critic
        # would have no data on the actions that the policy prefers, and never be corrected there.
        learns_request = step.source is ActionSource.POLICY and bool(step.action.any())
        self._action[slot] = step.requested if learns_request else step.action
        self._reward[slot] = step.reward
        self._terminated[slot] = step.terminated or terminates
        self._successor[slot] = self._after[slot] = successor
        human = step.source is ActionSource.HUMAN
        self._prior[slot] = prior or human
        self._transitions += 1
        self._newest[stream].slots.append((slot, int(self._written[slot]), step.monotonic_s))
        if self._delay_s and (value := feedback_of(step.reward_provenance)):
            self._credit(self._newest[stream], step.monotonic_s + self._period_s, value)
        if self._prior[slot]:
            self._prior_slots.add(slot)
        if prior:
            self.demonstrations += 1
        else:
            self._online_slots.add(slot)
            self.online += 1
            self.human += human

    def _credit(self, episode: _NewestEpisode, given_s: float, value: int) -> None:
        """Credit an evaluation to the recent steps of its episode, if they are still stored.

        Args:
            episode: the episode so far.
            given_s: end of the control period in which the evaluation was given.
            value: the evaluation.
        """
        assert self._delay_s is not None  # the caller checked
        shortest_s, longest_s = self._delay_s
        for slot, written, issued_s in reversed(episode.slots):
            age_s = given_s - issued_s
            if age_s - self._period_s >= longest_s:
                break
            overlap_s = min(age_s, longest_s) - max(age_s - self._period_s, shortest_s)
            weight = round(overlap_s / (longest_s - shortest_s), 6)  # 0 where the two only touch
            if weight > 0 and self._written[slot] == written:
                self._feedback[slot] += weight, weight * value


class _NewestEpisode(NamedTuple):
    """Slots of a stream's newest episode, (epoch, episode).

    Attributes:
        slots: slot, its write count, and the time at which its action was issued.
        sources: the sources of all its steps.
    """

    name: tuple[int, int]
    slots: list[tuple[int, int, float]]
    sources: set[ActionSource]


class _SlotSet:
    """A set of slots that is sampled uniformly; adding and removing take constant time."""

    def __init__(self, capacity: int) -> None:
        self._slots = np.zeros(capacity, np.int64)
        self._where = np.zeros(capacity, np.int64)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def slots(self) -> Slots:
        return self._slots[: self._count]

    def add(self, slot: int) -> None:
        self._slots[self._count] = slot
        self._where[slot] = self._count
        self._count += 1

    def remove(self, slot: int) -> None:
        """Remove a slot; the last one takes its place."""
        self._count -= 1
        last, place = self._slots[self._count], self._where[slot]
        self._slots[place] = last
        self._where[last] = place

    def sample(self, rng: np.random.Generator, n: int) -> Slots:
        picked: Slots = self._slots[rng.integers(self._count, size=n)]
        return picked


def _follows(record: Record, previous: Step) -> bool:
    """Return whether a record is the observation directly after the action of a step."""
    # A terminated task needs no successor.
    if isinstance(record, End) and record.reason.is_fault and not previous.terminated:
        return False
    key, before = record.key, previous.key
    return (key.epoch, key.episode, key.index) == (before.epoch, before.episode, before.index + 1)


class Prefetch:
    """Batches of one replay, which must not change between `begin` and the next `take`.

    Args:
        rows: transitions per batch.
        prior_share: see `Replay.sample`.
    """

    def __init__(self, replay: Replay, rows: int, prior_share: float) -> None:
        self._replay, self._rows, self._prior_share = replay, rows, prior_share
        self._executor: ThreadPoolExecutor | None = None
        self._next: Future[Batch] | None = None
        self._state: Mapping[str, np.ndarray[Any, Any]] = {}

    def begin(self) -> None:
        """Start drawing the next batch in a thread."""
        self._executor = self._executor or ThreadPoolExecutor(1, "prefetch")
        self._state = self._replay.sampler_state()
        self._next = self._executor.submit(self._draw)

    def take(self) -> Batch:
        """Return the next batch; waits for the one started by `begin`."""
        pending, self._next = self._next, None
        return pending.result() if pending else self._draw()

    def state(self) -> Mapping[str, np.ndarray[Any, Any]]:
        """Return the sampler's state after the last batch taken."""
        return self._state if self._next else self._replay.sampler_state()

    def _draw(self) -> Batch:
        return self._replay.sample(self._rows, self._prior_share)
