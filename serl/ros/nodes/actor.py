"""How late actions are: what the log has of each step, and how many were too late."""

from __future__ import annotations

from serl.types import End, Record, Step

TOO_LATE = 1.5
"""Control periods; what is learned from a later action is not what it did."""


def delay_s(step: Step) -> float:
    """From the reading of the robot that an action answers until it was issued, in seconds."""
    taken_s = step.observation.stamps.get("robot", step.monotonic_s)
    return step.monotonic_s - taken_s


class Delays:
    """Counts the actions of a robot in real time that were too late.

    An action is late after its reading, where the policy took long, or after the action before it,
    where that was long on its way.

    Args:
        period_s: of control.

    Attributes:
        late: actions that came more than 1.5 periods after either.
        worst_s: the longest such time so far.
    """

    def __init__(self, period_s: float) -> None:
        self.late, self.worst_s = 0, 0.0
        self._period_s = period_s
        self._issued_s: float | None = None  # the action before, of the same episode

    def take(self, record: Record) -> None:
        """The next record of a log."""
        if isinstance(record, End):
            self._issued_s = None
        elif isinstance(record, Step):
            apart_s = 0.0 if self._issued_s is None else record.monotonic_s - self._issued_s
            late_s = max(delay_s(record), apart_s)
            self.late += late_s > TOO_LATE * self._period_s
            self.worst_s = max(self.worst_s, late_s)
            self._issued_s = record.monotonic_s
