"""The console's web server: one page, a WebSocket for each open page, and the report."""

from __future__ import annotations

import asyncio
import logging
import secrets
import ssl
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from aiohttp import WSCloseCode, WSMsgType, web

from serl.console.access import HEADERS, OperatorLease, RateLimit, RequestCheck
from serl.console.backend import ConsoleBackend
from serl.console.films import last_picture
from serl.console.messages import (
    HANDS_OFF,
    MAX_BYTES,
    Confirmation,
    CropOrder,
    KeepOrder,
    LeaseRequest,
    Order,
    Selection,
    read_entry,
    read_frame,
)
from serl.console.phone import PairingCode, qr_svg
from serl.errors import CorruptData, SerlError
from serl.report import page
from serl.system.files import read_bounded
from serl.system.json_fields import dump_object
from serl.teleop.mapping import Wish

STATIC = Path(__file__).with_name("static")
"""Folder of the files of the page."""
FILES = {
    "/": ("index.html", "text/html"),
    "/console.js": ("console.js", "text/javascript"),
    "/hands.js": ("hands.js", "text/javascript"),
    "/films.js": ("films.js", "text/javascript"),
    "/crop.js": ("crop.js", "text/javascript"),
    "/signals.js": ("signals.js", "text/javascript"),
    "/style.css": ("style.css", "text/css"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}
"""File and content type of each path that the server answers without a token."""
STATE_PERIOD_S, PROGRESS_PERIOD_S, PICTURE_PERIOD_S = 0.1, 1.0, 1 / 60
TOKEN_TIMEOUT_S = 5.0
"""Time in which a new page must send its token, s."""
MAX_PAGES, MAX_ENTERING = 8, 32
MAX_HEARTBEATS_HZ, MAX_FRAMES_HZ = 60.0, 120.0
STOP_PERIOD_S = 0.1
"""Period in which stop requests are merged, so that a flood of them does not block the rest."""
MAX_STALL_S = 5.0
"""Network stall whose delayed frames may arrive at once without exceeding the rate limit."""

_MAX_REPORT_BYTES = 256 << 20
_REFUSED, _BAD_FRAME, _BAD_TOKEN = 403, 4400, 4401
_ORDERS: dict[type, str] = {
    Confirmation: "yes",
    KeepOrder: "judge",
    CropOrder: "crop",
    Selection: "select",
}
_REPORT = "report"
_REPORT_HEADERS = {
    **HEADERS,
    "Content-Security-Policy": f"{page.CONTENT_POLICY}; frame-ancestors 'self'",
    "X-Frame-Options": "SAMEORIGIN",
}

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
T = TypeVar("T")

logger = logging.getLogger(__name__)


class Console:
    """Web application that serves a backend to pages with the token.

    Args:
        backend: interface to the run.
        gate: checks of requests.
        now_s: clock, monotonic seconds.
        phone_url: address of the page in the lab network; empty without one.

    Attributes:
        pairing: code that a phone exchanges for the token.
    """

    def __init__(
        self,
        backend: ConsoleBackend,
        gate: RequestCheck,
        now_s: Callable[[], float] = time.monotonic,
        phone_url: str = "",
    ) -> None:
        self._backend, self._gate, self._now_s = backend, gate, now_s
        self._phone_url, self.pairing = phone_url, PairingCode(now_s)
        self._entering = 0  # sockets that have not shown the token yet
        self._lease = OperatorLease(now_s)
        self._files = ThreadPoolExecutor(1, "console-files")  # so that no disk delays a stop
        self._pages: set[web.WebSocketResponse] = set()
        self._running: set[asyncio.Task[None]] = set()
        self._stop_requests: set[web.WebSocketResponse] = set()  # since the last stop began
        self._stops = False  # a stop began within STOP_PERIOD_S
        self._ticket = secrets.token_urlsafe(32)  # for the report alone, in a cookie
        self.app = web.Application(middlewares=[self._guard], client_max_size=1024)
        for path in FILES:
            self.app.router.add_get(path, _static)
        self.app.router.add_get("/socket", self._socket)
        self.app.router.add_get("/phone", self._phone)
        self.app.router.add_get("/film/{episode}", self._film)
        self.app.router.add_get("/film/{episode}/last", self._film)
        self.app.router.add_get("/report", self._report)
        self.app.router.add_post("/report", self._allow_report)
        self.app.on_shutdown.append(self._close_pages)
        self.app.on_cleanup.append(self._close_files)

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Refuse every request from another origin, without a reason in the response."""
        upgrade = request.path == "/socket" or "Upgrade" in request.headers
        twice = any(len(request.headers.getall(name, ())) > 1 for name in ("Host", "Origin"))
        if twice or not self._gate.accepts(
            request.method, request.raw_path, request.headers, upgrade, request.scheme
        ):
            return web.Response(status=_REFUSED, text="refused", headers=HEADERS)
        try:
            response = await handler(request)
        except web.HTTPException as error:
            return web.Response(status=error.status, text=error.reason, headers=HEADERS)
        if not response.prepared:
            response.headers.update({k: v for k, v in HEADERS.items() if k not in response.headers})
        return response

    async def _socket(self, request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse(max_msg_size=MAX_BYTES, heartbeat=30.0, compress=False)
        await socket.prepare(request)
        if self._entering >= MAX_ENTERING:
            await socket.close(code=WSCloseCode.TRY_AGAIN_LATER, message=b"too many pages")
        elif not await self._check_entry(socket):
            await socket.close(code=_BAD_TOKEN, message=b"wrong token")
        elif len(self._pages) >= MAX_PAGES:
            await socket.close(code=WSCloseCode.TRY_AGAIN_LATER, message=b"too many pages")
        else:
            await self._serve(socket)
        return socket

    async def _check_entry(self, socket: web.WebSocketResponse) -> bool:
        """Return whether the first frame opens the page, and arrives within `TOKEN_TIMEOUT_S`.

        It contains the token, or a pairing code, which is answered with the token.
        """
        self._entering += 1
        try:
            with suppress(asyncio.TimeoutError, CorruptData):
                first = await socket.receive(TOKEN_TIMEOUT_S)
                if first.type is WSMsgType.TEXT:
                    return await self._admit(socket, *read_entry(first.data))
        finally:
            self._entering -= 1
        return False

    async def _admit(self, socket: web.WebSocketResponse, kind: str, word: object) -> bool:
        if kind == "token":
            return self._gate.is_token(word)
        if not self._phone_url or not self.pairing.redeem(word):
            return False
        await _send(socket, {"type": "paired", "token": self._gate.token})
        return True

    async def _serve(self, socket: web.WebSocketResponse) -> None:
        """Send updates and execute frames until the page disconnects or sends an invalid frame."""
        self._pages.add(socket)
        updates: dict[str, tuple[Callable[[], Awaitable[None]], float]] = {
            "state": (partial(self._send_state, socket), STATE_PERIOD_S),
            "progress": (partial(self._send_progress, socket), PROGRESS_PERIOD_S),
            "pictures": (partial(self._send_pictures, socket, {}), PICTURE_PERIOD_S),
        }
        senders = [
            asyncio.create_task(_repeat(name, send, period_s))
            for name, (send, period_s) in updates.items()
        ]
        try:
            await self._listen(socket)
        except CorruptData as error:
            await socket.close(code=_BAD_FRAME, message=str(error).encode()[:120])
        finally:
            self._pages.discard(socket)
            self._lease.release(socket)  # no last heartbeat: the input counts as lost, not released
            for sender in senders:
                sender.cancel()

    async def _listen(self, socket: web.WebSocketResponse) -> None:
        frames = RateLimit(MAX_FRAMES_HZ, self._now_s, MAX_STALL_S)
        beats = RateLimit(MAX_HEARTBEATS_HZ, self._now_s)
        async for message in socket:
            if message.type is not WSMsgType.TEXT:
                raise CorruptData("frame: expected text")
            frame = read_frame(message.data)
            if frame == "estop":  # exempt from the rate limit
                self._stop_requests.add(socket)
                if not self._stops:
                    self._stops = True
                    self._start(self._stop())
            elif not frames.allows():
                raise CorruptData(f"frame: more than {MAX_FRAMES_HZ:g} a second")
            elif isinstance(frame, Wish):
                if self._lease.renew(socket) and beats.allows():
                    self._backend.drive(frame)
            elif frame is LeaseRequest.TAKE:
                if self._lease.take(socket):
                    self._backend.drive(HANDS_OFF)  # takeover starts with hands off
            elif frame is LeaseRequest.RELEASE:
                if self._lease.renew(socket):
                    self._backend.drive(HANDS_OFF)
                self._lease.release(socket)
            elif self._lease.renew(socket):
                self._start(self._execute({socket}, frame))
            else:
                answer = {"what": _name_of(frame), "text": "take over first"}
                self._start(_send(socket, {"type": "answer", **answer}))

    def _start(self, command: Coroutine[Any, Any, None]) -> None:
        """Start a task, so that heartbeats and stops are still processed meanwhile."""
        task = asyncio.create_task(command)
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _stop(self) -> None:
        """Stop at once, and again after each period with a stop request; answer every request.

        Each request is followed, within a period, by a stop that begins after it: a stop already in
        progress may not cover an actor that was released meanwhile.
        """
        while self._stop_requests:
            sockets, self._stop_requests = self._stop_requests, set()
            self._start(self._execute(sockets, "estop"))
            await asyncio.sleep(STOP_PERIOD_S)
        self._stops = False

    async def _execute(self, sockets: set[web.WebSocketResponse], command: str | Order) -> None:
        """Execute a command and send its result to the pages that gave it."""
        request = _name_of(command)
        try:
            if isinstance(command, str):
                text = await self._backend.execute(command)
            else:
                text = await self._backend.obey(command)
            done = True
        except SerlError as error:
            text, done = str(error), False
        except Exception as error:  # a defect: the operator has to know that nothing was done
            logger.exception("the console did not execute %s", request)
            text, done = f"not done: {error!r}", False
        answer = {"type": "answer", "what": request, "text": text, "done": done}
        await asyncio.gather(*(_send(socket, answer) for socket in sockets))

    async def _send_state(self, socket: web.WebSocketResponse) -> None:
        holder = self._lease.holder
        lease = "you" if holder is socket else "other" if holder else "free"
        await _send(socket, {"type": "state", "lease": lease, **self._backend.state()})

    async def _send_progress(self, socket: web.WebSocketResponse) -> None:
        await _send(socket, await self._from_files(self._read_progress))

    def _read_progress(self) -> dict[str, Any]:
        report = self._backend.report() is not None
        return {"type": "progress", "report": report, **self._backend.progress()}

    async def _from_files(self, read: Callable[..., T], *arguments: object) -> T:
        """Call a function that reads files in the one thread for that, and return its result."""
        return await asyncio.get_running_loop().run_in_executor(self._files, read, *arguments)

    async def _send_pictures(self, socket: web.WebSocketResponse, sent: dict[str, int]) -> None:
        """Send the frames that are not `sent` yet; a slow page receives fewer of them."""
        for picture in self._backend.pictures():
            if sent.get(picture.name) != picture.serial:
                sent[picture.name] = picture.serial
                name = picture.name.encode()[:255]
                with suppress(ConnectionError):
                    await socket.send_bytes(bytes([len(name)]) + name + picture.jpeg)

    async def _phone(self, request: web.Request) -> web.StreamResponse:
        """Return a page's QR code for a phone, with a new pairing code; only with the token."""
        if not self._gate.has_token(request.headers):
            raise web.HTTPForbidden
        if not self._phone_url:
            raise web.HTTPNotFound
        picture = qr_svg(f"{self._phone_url}#{self._gate.token}")
        fields = {"url": self._phone_url, "code": self.pairing.issue(), "svg": picture}
        return web.Response(body=dump_object(fields), content_type="application/json")

    async def _film(self, request: web.Request) -> web.StreamResponse:
        """Return the film of a recorded episode, or its last picture; only with the token."""
        if not self._gate.has_token(request.headers):
            raise web.HTTPForbidden
        film = await self._from_files(self._backend.film, request.match_info["episode"])
        if film is None:
            raise web.HTTPNotFound
        if request.path.endswith("/last"):
            return web.Response(body=last_picture(film), content_type="image/jpeg")
        return web.Response(body=film, content_type="application/octet-stream")

    async def _allow_report(self, request: web.Request) -> web.StreamResponse:
        """Give a page with the token a cookie that grants access to the report only."""
        if not self._gate.has_token(request.headers):
            raise web.HTTPForbidden
        response = web.Response(status=204)
        response.set_cookie(
            _REPORT,
            self._ticket,
            path="/report",
            httponly=True,
            samesite="Strict",
            secure=request.secure,
            max_age=3600,
        )
        return response

    async def _report(self, request: web.Request) -> web.StreamResponse:
        ticket = request.cookies.get(_REPORT, "").encode(errors="replace")
        if not secrets.compare_digest(ticket, self._ticket.encode()):
            raise web.HTTPForbidden
        path = await self._from_files(self._backend.report)
        if path is None:
            raise web.HTTPNotFound
        body = await self._from_files(partial(read_bounded, path, _MAX_REPORT_BYTES))
        return web.Response(body=body, content_type="text/html", headers=_REPORT_HEADERS)

    async def _close_pages(self, app: web.Application) -> None:
        for socket in set(self._pages):
            await socket.close(code=WSCloseCode.GOING_AWAY, message=b"the console closes")

    async def _close_files(self, app: web.Application) -> None:
        self._files.shutdown(wait=False, cancel_futures=True)


async def _static(request: web.Request) -> web.StreamResponse:
    name, kind = FILES[request.path]
    return web.Response(
        body=(STATIC / name).read_bytes(), content_type=kind, charset="utf-8", headers=HEADERS
    )


async def _repeat(name: str, send: Callable[[], Awaitable[None]], period_s: float) -> None:
    """Send an update periodically; log an error of one update, and continue with the next."""
    problem = ""
    while True:
        try:
            await send()
            problem = ""
        except Exception as error:  # a defect: the page stays open, to stop the robot
            if repr(error) != problem:
                logger.exception("the console did not send the %s", name)
            problem = repr(error)
        await asyncio.sleep(period_s)


def _name_of(command: str | Order) -> str:
    return command if isinstance(command, str) else _ORDERS[type(command)]


async def _send(socket: web.WebSocketResponse, fields: Mapping[str, Any]) -> None:
    with suppress(ConnectionError):
        await socket.send_str(dump_object(fields).decode())


async def listen(
    console: Console, port: int, host: str = "", tls: ssl.SSLContext | None = None
) -> web.AppRunner:
    """Serve on 127.0.0.1, and with TLS at an address of the lab network, until the cleanup.

    Raises:
        OSError: a port or an address cannot be listened on.
    """
    runner = web.AppRunner(console.app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", port).start()
        if host:
            await web.TCPSite(runner, host, port, ssl_context=tls).start()
    except OSError:
        await runner.cleanup()
        raise
    return runner
