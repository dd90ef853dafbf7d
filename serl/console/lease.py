"""One operator at a time: who sends wishes, and how often."""

from __future__ import annotations

from collections.abc import Callable


class Lease:
    """Held by one page as long as it beats.

    Args:
        now_s: monotonic seconds.
        expires_s: silence after which another page may have it.
    """

    def __init__(self, now_s: Callable[[], float], expires_s: float = 3.0) -> None:
        self._now_s, self._expires_s = now_s, expires_s
        self._holder: object | None = None
        self._beat_s = 0.0

    @property
    def holder(self) -> object | None:
        """Who has it; None when nobody does, or when it expired."""
        if self._now_s() - self._beat_s > self._expires_s:
            self._holder = None
        return self._holder

    def take(self, page: object) -> bool:
        """A page asks for it; False while another one has it."""
        if self.holder not in {None, page}:
            return False
        self._holder, self._beat_s = page, self._now_s()
        return True

    def beat(self, page: object) -> bool:
        """A page that has it keeps it; False for any other."""
        return self.holder is page and self.take(page)

    def give(self, page: object) -> None:
        """A page lets go of it."""
        if self._holder is page:
            self._holder = None


class Rate:
    """At most so many a second, with room for a burst.

    Args:
        per_s: allowed in the long run.
        now_s: monotonic seconds.
        burst_s: what would come in this time may come at once.
    """

    def __init__(self, per_s: float, now_s: Callable[[], float], burst_s: float = 0.25) -> None:
        self._per_s, self._now_s = per_s, now_s
        self._most = per_s * burst_s
        self._room, self._seen_s = self._most, now_s()

    def allows(self) -> bool:
        """One more may pass."""
        now_s = self._now_s()
        self._room = min(self._most, self._room + (now_s - self._seen_s) * self._per_s)
        self._seen_s = now_s
        if self._room < 1:
            return False
        self._room -= 1
        return True


PORT = 8765
