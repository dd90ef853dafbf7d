"""Orders that end a stop or arm a guard, signed with a key that only the guard's user can read.

An order is the text `WORD STAMP SIGNATURE`: the monotonic clock of the host in nanoseconds, and an
HMAC-SHA256 over the full name of the service, the stamp and the id of the host's boot, as the clock
restarts with each boot. An order is accepted once, within `MOST_AGE_S`, and never by a process that
started after it was signed, so that a copy of an order is useless.
"""

from __future__ import annotations

import hmac
import os
import re
import shlex
import time
from collections.abc import Callable
from pathlib import Path

from serl.errors import BadInput, SerlError
from serl.system.authentication import load_key, own_key, topic_key
from serl.system.files import read_bounded

MOST_AGE_S = 10.0
"""Age at which an order is refused, which bounds how long a rogue service can withhold one."""

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_ORDER = re.compile(r"([a-z]{1,16}) ([0-9]{1,19}) ([0-9a-f]{64})")


def key_path(kept: Path) -> Path:
    """Return the path of the key for orders that end a stop, beside the file of the stop."""
    return kept.with_name(f"{kept.name}.key")


def load_order_key(path: Path) -> bytes:
    """Load the key that a guard or an actor made.

    Raises:
        BadInput: the key is absent or damaged, or other users can read it.
    """
    return load_key(path, "the guard, or the actor, makes it at its first start")


def sign_order(key: bytes, service: str, now_ns: int) -> str:
    """Return the text of a signed order.

    Args:
        key: key from `load_order_key`.
        service: full name of the service; its last part is the word: `/cell/left/guard/arm`.
        now_ns: value of `time.monotonic_ns`, which all processes of a host share.
    """
    stamp = str(now_ns)
    return f"{service.rpartition('/')[2]} {stamp} {_signature(key, service, stamp)}"


class OrderCheck:
    """A check that accepts each validly signed order once and refuses all others.

    Args:
        path: file of the key, which is made if absent.
        now_ns: the host's monotonic clock.

    Attributes:
        refused: number of orders without a valid signature, too old, or used before.

    Raises:
        BadInput: the key cannot be made or read, or other users own or can read it.
    """

    def __init__(self, path: Path, now_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._path, self._now_ns = path.absolute(), now_ns
        self._key = own_key(path)
        if path.stat().st_uid not in (os.geteuid(), path.parent.stat().st_uid):
            raise BadInput(f"{path}: this key belongs to another user: remove it, and start again")
        self._start_ns = now_ns()
        self._taken: dict[str, int] = {}  # stamps by signature, of accepted orders still valid
        self.refused = 0

    def word(self, place: str, text: str) -> str:
        """Accept an order once and return its word.

        Args:
            place: full name of the services without their last part: `/cell/left/guard`.
            text: text of the order, from `sign_order`.

        Raises:
            SerlError: the order is refused; the line names the command for a signed order.
        """
        parts = _ORDER.fullmatch(text)
        if parts is None:
            raise self.refusal(f"{place}/WORD")
        word, stamp, signature = parts.groups()
        service, now_ns = f"{place}/{word}", self._now_ns()
        if not hmac.compare_digest(_signature(self._key, service, stamp), signature):
            raise self.refusal(service)
        oldest_ns = max(self._start_ns, now_ns - round(1e9 * MOST_AGE_S))
        self._taken = {kept: at_ns for kept, at_ns in self._taken.items() if at_ns > oldest_ns}
        if not oldest_ns < int(stamp) <= now_ns or signature in self._taken:
            self.refused += 1
            raise SerlError(f"{service}: signed over {MOST_AGE_S:g} s ago, or used before")
        self._taken[signature] = int(stamp)
        return word

    def refusal(self, service: str) -> SerlError:
        """Count an order without a valid signature; return the error with the right command."""
        self.refused += 1
        key = shlex.quote(str(self._path))
        return SerlError(f"not signed: serl order {service} --key {key}")


def _signature(key: bytes, service: str, stamp: str) -> str:
    boot = read_bounded(_BOOT_ID, 64)
    return hmac.digest(topic_key(key, service), stamp.encode() + b" " + boot, "sha256").hex()
