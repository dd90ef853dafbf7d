"""The sending end of the acknowledged stream: an actor's log to the learner, without losses."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from std_msgs.msg import String

from serl.log.tail import Tail
from serl.log.wire import Hello, WireFrame, actor_number, encode_frame, encode_hello
from serl.ros.node import RosNode
from serl.ros.topics import ACKS, ACTORS, REFUSED, TRANSITIONS, Answer, to_cdr
from serl.system.files import open_regular, write_atomic
from serl.system.json_fields import printable

SILENCE_S = 2.0
"""Time without a message after which a learner counts as gone; it sends a hello each second."""

_PATIENCE_S = 0.5
_LONGEST_PATIENCE_S = 8.0
_HELLO_S = 0.5  # between unanswered hellos: an actor of a name in use is refused within 2 s
_MOST_IN_VAIN = 28  # hellos, in 14 s; a resend of frames counts as four, which is 31.5 s
_READ_BYTES = 1 << 20
_SMALLEST_WINDOW = 16
_RESERVED = "introduced"
"""File with a time above those of all introductions so far, in nanoseconds."""
_RESERVE_NS = 600 * 10**9


class StreamSender:
    """A sender of an actor's log, one epoch at a time, with resends until it is acknowledged.

    Go-back-N: at most `window` frames are in flight. They are sent again when the learner asks for
    it, when there was no progress for a while (0.5 s, doubling up to 8 s, since a learner busy for
    long has them already), and from the learner's cursor on when it restarted. As in TCP, each
    resend halves the window and each acknowledgement widens it by one, so that many senders share
    the topic's queue. Beyond the window at most 1 MiB is in memory: a slow or absent learner costs
    disk.

    Not thread-safe: one thread calls the methods; the executor's callbacks only fill queues.

    Args:
        folder: folder of the link, which remembers the time of the last introduction, so that
            times grow even if the clock was set back before a restart.
        window: most frames in flight; four senders' windows fit the topic's depth of 512.

    Attributes:
        refused: the learner's reason to refuse this stream; empty while it is accepted.
        acknowledged: records of this epoch that the learner holds.
        received_s: monotonic time of the learner's last message.
        offered: version of the weights that the learner published last.
        sent: number of frames published, including resent ones.
        resent: number of frames published again.
    """

    def __init__(self, node: RosNode, folder: Path, window: int = 128) -> None:
        self.refused = ""
        self.acknowledged = self.sent = self.resent = self.offered = 0
        self._widest = self._window = window
        self._hello: Hello | None = None
        self._number = 0
        self._reserved_file = folder / _RESERVED
        self._sent_ns = self._reserved_ns = _read_number(self._reserved_file)
        self._open_log: Callable[[int], Tail] | None = None
        self._log: Tail | None = None
        self._flight: deque[bytes] = deque()
        self._published = 0  # frames in flight that were published since the last resend began
        self._log_ended = False  # the last read found no further record
        self._learner = 0
        self._welcome = False  # this learner has sent its cursor in this epoch
        self.received_s = self._progress_s = self._announced_s = float("-inf")
        self._patience_s = _PATIENCE_S
        self._has_resent = False  # resent, and no progress since
        self._in_vain = 0  # hellos and resends in a row without the learner's answer
        self._answers: deque[tuple[int, int, int, int, int]] = deque(maxlen=1024)
        self._refusals: deque[str] = deque(maxlen=64)
        self._frames = node.publisher(TRANSITIONS)
        self._hellos = node.publisher(ACTORS)
        node.subscribe(ACKS, self._on_ack)
        node.subscribe(REFUSED, lambda message: self._refusals.append(message.data))

    def start(self, hello: Hello, open_log: Callable[[int], Tail]) -> None:
        """Introduce an epoch and send it; the rest of the previous epoch is dropped.

        Args:
            hello: introduces the epoch.
            open_log: opens its log so that the first record read has the given sequence number.
        """
        self.refused = ""
        self._hello, self._open_log = hello, open_log
        self._number = actor_number(hello.run, hello.actor)
        self._welcome = False
        self._begin(0)
        self._announce()

    @property
    def in_flight(self) -> int:
        """Number of frames in memory: sent or about to be sent, and not acknowledged."""
        return len(self._flight)

    @property
    def drained(self) -> bool:
        """Whether the learner holds all records that the log had at the last call of `pump`."""
        return self.connected and self._log_ended and not self._flight

    @property
    def cut_off(self) -> bool:
        """Whether a learner is present, but has not received anything from here for long."""
        return self._in_vain >= _MOST_IN_VAIN

    @property
    def connected(self) -> bool:
        """Whether a learner is present and has sent its cursor for this epoch."""
        return self._welcome and time.monotonic() - self.received_s <= SILENCE_S

    def pump(self) -> bool:
        """Process answers and send frames up to the window; False when no frame was sent.

        Publishing may stall for up to a second when a peer dies: never call this in a control loop.
        """
        while self._refusals:
            self._take_refusal(self._refusals.popleft())
        while self._answers:
            self._take_answer(*self._answers.popleft())
        if self.refused or not self.connected:
            if time.monotonic() - self._announced_s > _HELLO_S and not self.refused:
                present = time.monotonic() - self.received_s <= SILENCE_S
                self._in_vain += present and self._hello is not None
                self._announce()
            return False
        if self._published and time.monotonic() - self._progress_s > self._patience_s:
            self._lose_patience()
            self._announce()  # a late copy of an old hello may have displaced the stream
        self._fill()
        return self._publish()

    def close(self) -> None:
        """Close the log."""
        if self._log is not None:
            self._log.close()
            self._log = None

    def _announce(self) -> None:
        if self._hello is not None:
            hello = self._hello._replace(sent_ns=self._next_time_ns())
            self._hellos.publish(String(data=encode_hello(hello).decode()))
            self._announced_s = time.monotonic()

    def _next_time_ns(self) -> int:
        """Return the wall time, or the number after the last one if the clock was set back."""
        self._sent_ns = max(self._sent_ns + 1, time.time_ns())
        if self._sent_ns > self._reserved_ns:
            self._reserved_ns = self._sent_ns + _RESERVE_NS
            with suppress(OSError):  # a full disk: the clock alone orders introductions
                write_atomic(self._reserved_file, str(self._reserved_ns).encode())
        return self._sent_ns

    def _on_ack(self, message: Any) -> None:
        if len(message.data) == 5:
            self._answers.append(tuple(message.data))

    def _take_refusal(self, text: str) -> None:
        with suppress(ValueError, TypeError, KeyError, RecursionError):  # not from a learner
            answer = json.loads(text)
            hello = self._hello
            if hello and (answer["actor"], answer["epoch"]) == (hello.actor, hello.epoch):
                self.refused = printable(str(answer["reason"])) or "without a reason"

    def _take_answer(self, actor: int, epoch: int, held: int, learner: int, answer: int) -> None:
        now_s = time.monotonic()
        if learner != self._learner:
            if learner < self._learner and now_s - self.received_s <= SILENCE_S:
                return  # from a replaced learner that still runs
            self._learner = learner
            self._welcome = False
        self.received_s = now_s
        if actor == 0:
            self.offered = held
        if self._hello is None or (actor, epoch) != (self._number, self._hello.epoch):
            return
        in_window = self.acknowledged <= held <= self.acknowledged + len(self._flight)
        if not self._welcome or not in_window:
            self._begin(held)
        elif held > self.acknowledged:
            self._advance(held)
        self._welcome = True
        if answer != Answer.STANDING:
            self._in_vain = 0
        # After a resend without progress, the resent frames are still in transit.
        if answer == Answer.RESEND and not self._has_resent:
            self._resend()

    def _begin(self, held: int) -> None:
        """(Re)start from the learner's cursor."""
        self.close()
        self._flight.clear()
        self._published = 0
        self._log_ended = False
        self.acknowledged = held
        self._made_progress()

    def _advance(self, held: int) -> None:
        for _ in range(held - self.acknowledged):
            self._flight.popleft()
            self._published = max(0, self._published - 1)
        self.acknowledged = held
        self._window = min(self._widest, self._window + 1)
        self._made_progress()

    def _made_progress(self) -> None:
        self._has_resent = False
        self._in_vain = 0
        self._progress_s = time.monotonic()
        self._patience_s = _PATIENCE_S

    def _lose_patience(self) -> None:
        self._in_vain += 4
        self._patience_s = min(2 * self._patience_s, _LONGEST_PATIENCE_S)
        self._resend()

    def _resend(self) -> None:
        self._has_resent = True
        self._window = max(_SMALLEST_WINDOW, self._window // 2)
        self.resent += self._published
        self._published = 0
        self._progress_s = time.monotonic()

    def _fill(self) -> None:
        """Read further records from the log when the window has room."""
        if len(self._flight) >= self._window or self._hello is None or self._open_log is None:
            return
        if self._log is None:
            self._log = self._open_log(self.acknowledged)
        if not self._flight:
            self._made_progress()
        first = self.acknowledged + len(self._flight)
        payloads = self._log.read(_READ_BYTES)
        self._log_ended = not payloads
        for sequence, payload in enumerate(payloads, first):
            frame = WireFrame(self._number, self._hello.epoch, sequence, payload)
            self._flight.append(to_cdr(*encode_frame(frame)))

    def _publish(self) -> bool:
        """Publish the frames that the window allows; return whether there were any."""
        end = min(self._window, len(self._flight))
        for index in range(self._published, end):
            self._frames.publish(self._flight[index])
        waiting = max(0, end - self._published)
        self.sent += waiting
        self._published += waiting
        return waiting > 0


def _read_number(path: Path) -> int:
    """Return the number in a file; 0 if there is none."""
    try:
        with open_regular(path) as file:
            text = file.read(20)
    except OSError:
        return 0
    return int(text) if text.isdigit() else 0
