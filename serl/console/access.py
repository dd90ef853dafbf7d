"""Access to a running console: its address file, request checks, operator lease, rate limits."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from serl.system.files import FileLock, write_atomic
from serl.system.json_fields import dump_object, read_fields

_FILE = "console.json"


class ConsoleAddress(NamedTuple):
    """The URL of a console on this host, and its access token.

    Attributes:
        url: address of the page on this host.
        token: token of this start of the console.
        phone_url: address of the page in the lab network; empty without one.
        code: pairing code for a phone; empty without an address for it.
        certificate: fingerprint of the certificate at that address.
    """

    url: str
    token: str
    phone_url: str = ""
    code: str = ""
    certificate: str = ""

    @property
    def entry(self) -> str:
        """The URL with the token in its fragment, which browsers do not send to servers."""
        return f"{self.url}#{self.token}"

    @property
    def phone_entry(self) -> str:
        """The URL for a phone, with the token; empty without `phone_url`."""
        return self.phone_url and f"{self.phone_url}#{self.token}"


def write_address(folder: Path, address: ConsoleAddress) -> None:
    """Write the address and token to a file in the run's folder that only its owner can read."""
    write_atomic(folder / _FILE, dump_object(address._asdict()))


def read_address(folder: Path) -> ConsoleAddress | None:
    """Read the address and token of the running console; None when none runs."""
    fields = read_fields(folder / _FILE, dict.fromkeys(ConsoleAddress._fields, str))
    return ConsoleAddress(**fields) if fields else None


def remove_address(folder: Path) -> None:
    """Remove the address file of a closed console."""
    (folder / _FILE).unlink(missing_ok=True)


def forget_address(folder: Path) -> None:
    """Remove the address file of an earlier console; raise `BadInput` while one runs."""
    with lock_console(folder):
        remove_address(folder)


def lock_console(folder: Path) -> FileLock:
    """Take the lock of the only console of a run; raise `BadInput` while another one has it."""
    return FileLock(folder / "console.lock", f"the console of {folder}")


TOKEN_BYTES = 32
_OWN = {"same-origin", "none"}

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; "
        "media-src blob:; "
        "connect-src 'self'; frame-src 'self'; frame-ancestors 'none'; base-uri 'none'; "
        "form-action 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
    "X-Frame-Options": "DENY",
}


def new_token() -> str:
    """Return a new token of 256 random bits, as text."""
    return secrets.token_urlsafe(TOKEN_BYTES)


def kept_token(folder: Path) -> str:
    """Return the token of a console that was killed here, so that its pages return; else a new one.

    A command that starts a console calls `forget_address` first.
    """
    before = read_address(folder)
    return before.token if before else new_token()


class RequestCheck:
    """Checks of HTTP requests: host, origin and token.

    Args:
        port: port that the console listens on.
        token: token of this start of the console.
        host: this host's address in the lab network, served with TLS; empty without one.
    """

    def __init__(self, port: int, token: str, host: str = "") -> None:
        self.token = token
        self._schemes = {f"127.0.0.1:{port}": "http", f"localhost:{port}": "http"}
        if host:
            self._schemes[f"{host.lower()}:{port}"] = "https"  # as browsers send it

    def accepts(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str],
        upgrade: bool,
        scheme: str = "http",
    ) -> bool:
        """Return whether a request comes from this console's page or from no page.

        Args:
            method: method of the request line.
            target: target of the request line, as sent: a path, not an absolute URL for a proxy.
            headers: headers of the request.
            upgrade: whether the request opens a WebSocket.
            scheme: "https" for a request through TLS, else "http".
        """
        host, origin = headers.get("Host", ""), headers.get("Origin")
        needs_no_origin = method == "GET" and not upgrade
        is_own = needs_no_origin if origin is None else origin == f"{scheme}://{host}"
        is_addressed = target.startswith("/") and self._schemes.get(host) == scheme
        return is_addressed and is_own and headers.get("Sec-Fetch-Site", "none") in _OWN

    def is_token(self, word: object) -> bool:
        """Return whether a word is the token, in constant time."""
        text = word if isinstance(word, str) else ""
        return hmac.compare_digest(text.encode(errors="replace"), self.token.encode())

    def has_token(self, headers: Mapping[str, str]) -> bool:
        """Return whether a request carries the token in its `Authorization` header."""
        kind, _, word = headers.get("Authorization", "").partition(" ")
        return kind == "Bearer" and self.is_token(word)


class OperatorLease:
    """Exclusive operator lease, held by one page as long as its heartbeats arrive.

    Args:
        now_s: clock, monotonic seconds.
    """

    EXPIRES_S = 3.0

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._holder: object | None = None
        self._beat_s = 0.0

    @property
    def holder(self) -> object | None:
        """The page that holds the lease; None when it is free or expired."""
        if self._now_s() - self._beat_s > self.EXPIRES_S:
            self._holder = None
        return self._holder

    def take(self, page: object) -> bool:
        """Give the lease to a page; return False while another page holds it."""
        if self.holder not in {None, page}:
            return False
        self._holder, self._beat_s = page, self._now_s()
        return True

    def renew(self, page: object) -> bool:
        """Renew the lease of the page that holds it; return False for any other page."""
        return self.holder is page and self.take(page)

    def release(self, page: object) -> None:
        """Release the lease if the page holds it."""
        if self._holder is page:
            self._holder = None


class RateLimit:
    """Token-bucket rate limit with room for a burst.

    Args:
        per_s: mean rate allowed in the long run, 1/s.
        now_s: clock, monotonic seconds.
        burst_s: the number of events that `per_s` allows in this time may arrive at once.
    """

    def __init__(self, per_s: float, now_s: Callable[[], float], burst_s: float = 0.25) -> None:
        self._per_s, self._now_s = per_s, now_s
        self._most = per_s * burst_s
        self._room, self._updated_s = self._most, now_s()

    def allows(self) -> bool:
        """Count one event if the limit allows it; return whether it does."""
        now_s = self._now_s()
        self._room = min(self._most, self._room + (now_s - self._updated_s) * self._per_s)
        self._updated_s = now_s
        if self._room < 1:
            return False
        self._room -= 1
        return True


PORT = 8765
