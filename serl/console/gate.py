"""Who may talk to the console: the right page on this machine, with the token.

A web page from anywhere can send requests to 127.0.0.1, also by rebinding a name of its own to it.
So every request, whatever its method, has to name the console's own address, and whoever sends
more than a plain look has to come from its own page and to know the token.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Mapping

TOKEN_BYTES = 32
_OWN = {"same-origin", "none"}

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; "
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
    """256 random bits, as text."""
    return secrets.token_urlsafe(TOKEN_BYTES)


class Gate:
    """Judges requests.

    Args:
        port: that the console listens on.
        token: of this start of the console.
    """

    def __init__(self, port: int, token: str) -> None:
        self._token = token
        self._hosts = {f"127.0.0.1:{port}", f"localhost:{port}"}

    def objection(self, method: str, target: str, headers: Mapping[str, str], upgrade: bool) -> str:
        """Why a request is refused before anything else is looked at; empty when it is not.

        Args:
            method: of the request line.
            target: of the request line, as it was sent: a path, no address as for a proxy.
            headers: of the request.
            upgrade: it asks for a socket.
        """
        if not target.startswith("/"):
            return "not a path"
        host, origin = headers.get("Host", ""), headers.get("Origin")
        if host not in self._hosts:
            return "not this console's address"
        if origin is None and (upgrade or method != "GET"):
            return "no origin"
        if origin is not None and origin != f"http://{host}":
            return "another site's page"
        if headers.get("Sec-Fetch-Site", "none") not in _OWN:
            return "another site's page"
        return ""

    def knows(self, word: object) -> bool:
        """Whether it is the token; takes as long for any word."""
        said = word if isinstance(word, str) else ""
        return hmac.compare_digest(said.encode(errors="replace"), self._token.encode())

    def bears(self, headers: Mapping[str, str]) -> bool:
        """Whether a request bears the token in its header."""
        kind, _, word = headers.get("Authorization", "").partition(" ")
        return kind == "Bearer" and self.knows(word)
