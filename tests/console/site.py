"""A running console with a fake backend that records its calls, and test clients."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from inspect import Signature, signature
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import WSMsgType

from serl.console.access import RequestCheck, new_token
from serl.console.backend import Picture
from serl.console.messages import Confirmation, Order
from serl.console.phone import tls_context
from serl.console.server import Console, listen
from serl.errors import SerlError
from serl.teleop.mapping import Wish

LIMIT_S = 60.0


REST = {"type": "drive", "motion": [0.0] * 7, "hands": False}


PUSH = {"type": "drive", "motion": [1.0, 0, 0, 0, 0, 0, 0], "hands": True}


class FakeBackend:
    """Backend that records every call and answers as configured."""

    def __init__(self) -> None:
        self.driven: list[Wish] = []
        self.commands: list[str] = []
        self.orders: list[Order] = []
        self.films: dict[str, bytes] = {}
        self.page: Path | None = None
        self.number = 0
        self.answers: dict[str, Exception] = {"reset": SerlError("the actor does not answer")}
        self.slow: dict[str, asyncio.Event] = {}
        self.shown: dict[str, Any] = {"driver": "policy"}
        self.numbers: dict[str, Any] = {"advice": "watch"}

    def drive(self, operator_input: Wish) -> None:
        self.driven.append(operator_input)

    async def execute(self, command: str) -> str:
        self.commands.append(command)
        if command in self.slow:
            await self.slow[command].wait()
        if command in self.answers:
            raise self.answers[command]
        return f"did {command}"

    async def obey(self, order: Order) -> str:
        if isinstance(order, Confirmation):
            if order.question != self.shown.get("question"):
                raise SerlError("not done: the question has changed")
            self.commands.append(f"yes: {order.question}")
            return "armed"
        self.orders.append(order)
        return f"did {type(order).__name__}"

    def state(self) -> Mapping[str, Any]:
        return self.shown

    def progress(self) -> Mapping[str, Any]:
        return self.numbers

    def pictures(self) -> list[Picture]:
        self.number += 1
        return [Picture("front", self.number // 20, b"jpeg")]  # two per second

    def film(self, episode: str) -> bytes | None:
        return self.films.get(episode)

    def report(self) -> Path | None:
        return self.page


class Site:
    """A running console and an HTTP client that can send any request."""

    console: Console

    def __init__(self, client: aiohttp.ClientSession, port: int, token: str) -> None:
        self.client, self.port, self.token = client, port, token
        self.backend = FakeBackend()
        self.own = f"http://127.0.0.1:{port}"

    async def ask(self, method: str, path: str, **headers: str) -> aiohttp.ClientResponse:
        """Send a request with any headers; return the answer after reading its body."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        async with self.client.request(method, f"{self.own}{path}", headers=named) as answer:
            await answer.read()
            return answer

    async def enter(
        self, token: str | None = None, **headers: str
    ) -> aiohttp.ClientWebSocketResponse:
        """Open a socket and send the token as its first frame."""
        named = {"Origin": self.own} | {k.replace("_", "-"): v for k, v in headers.items()}
        page = await self.client.ws_connect(
            f"ws://127.0.0.1:{self.port}/socket", headers=named, max_msg_size=0
        )
        await page.send_json({"token": self.token if token is None else token})
        return page

    @property
    def untouched(self) -> bool:
        moved = [wish for wish in self.backend.driven if wish.hands]
        return not moved and not self.backend.commands


@asynccontextmanager
async def site(host: str = "", certificate: Path | None = None) -> AsyncIterator[Site]:
    """Run a console on loopback, and with a certificate also at `host`."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    token = new_token()
    async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as client:
        here = Site(client, port, token)
        phone_url = f"https://{host}:{port}/" if host else ""
        gate = RequestCheck(port, token, host)
        here.console = Console(here.backend, gate, phone_url=phone_url)
        tls = tls_context(certificate) if certificate else None
        runner = await listen(here.console, port, host, tls)
        try:
            yield here
        finally:
            await runner.cleanup()


def served(check: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Wrap an async check as a test that passes it a console and the fixtures it names."""

    def test(**arguments: Any) -> None:
        async def run() -> None:
            async with site() as here, asyncio.timeout(LIMIT_S):
                await check(here, **arguments)

        asyncio.run(run())

    test.__name__, test.__doc__ = check.__name__, check.__doc__
    _, *others = signature(check).parameters.values()
    test.__signature__ = Signature(others)  # type: ignore[attr-defined]
    return test


async def heard(page: aiohttp.ClientWebSocketResponse, kind: str) -> dict[str, Any]:
    """Return the next frame of a kind."""
    while True:
        message = await page.receive()
        assert message.type in {WSMsgType.TEXT, WSMsgType.BINARY}, message
        if message.type is WSMsgType.TEXT:
            fields: dict[str, Any] = json.loads(message.data)
            if fields["type"] == kind:
                return fields


async def refused(page: aiohttp.ClientWebSocketResponse) -> int:
    """Return the close code of a socket, which must close before it sends anything."""
    message = await page.receive()
    assert message.type is WSMsgType.CLOSE, message
    return int(message.data)


async def closed(page: aiohttp.ClientWebSocketResponse) -> int:
    """Wait until a socket is closed; return its close code."""
    while True:
        message = await page.receive()
        if message.type in {WSMsgType.CLOSE, WSMsgType.CLOSED, WSMsgType.ERROR}:
            return int(page.close_code or 0)


async def settled(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.01)


async def operator(here: Site) -> aiohttp.ClientWebSocketResponse:
    page = await here.enter()
    await page.send_json({"type": "take"})
    while (await heard(page, "state"))["lease"] != "you":
        pass
    return page
