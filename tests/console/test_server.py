"""The console refuses whoever is not its own page with the token, and moves nothing for them."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import WSMsgType

from serl.console.cockpit import Picture
from serl.console.door import Door, read_door, remove_door, write_door
from serl.console.frames import read_frame, read_token
from serl.console.gate import Gate, new_token
from serl.console.lease import Lease, Rate
from serl.console.server import FILES, MOST_PAGES, STATIC, Console, listen
from serl.errors import CorruptData, SerlError
from serl.teleop.mapping import Wish

LIMIT_S = 60.0
SVG = 'xmlns="http://www.w3.org/2000/svg"'
REST = {"type": "drive", "motion": [0.0] * 7, "hands": False}
PUSH = {"type": "drive", "motion": [1.0, 0, 0, 0, 0, 0, 0], "hands": True}


class FakeCockpit:
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.driven: list[Wish] = []
        self.said: list[str] = []
        self.page: Path | None = None
        self.number = 0

    def drive(self, wish: Wish) -> None:
        self.driven.append(wish)

    async def say(self, what: str) -> str:
        self.said.append(what)
        if what == "reset":
            raise SerlError("the actor does not answer")
        return f"did {what}"

    def state(self) -> Mapping[str, Any]:
        return {"driver": "policy"}

    def progress(self) -> Mapping[str, Any]:
        return {"advice": "watch"}

    def pictures(self) -> list[Picture]:
        self.number += 1
        return [Picture("front", self.number, b"jpeg")]

    def report(self) -> Path | None:
        return self.page


class Site:
    """A console that runs, and a client that is free in what it sends."""

    def __init__(self, client: aiohttp.ClientSession, port: int, token: str) -> None:
        self.client, self.port, self.token = client, port, token
        self.cockpit = FakeCockpit()
        self.own = f"http://127.0.0.1:{port}"

    async def ask(self, method: str, path: str, **headers: str) -> aiohttp.ClientResponse:
        """A request with any headers; the body is read."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        async with self.client.request(method, f"{self.own}{path}", headers=named) as answer:
            await answer.read()
            return answer

    async def enter(
        self, token: str | None = None, **headers: str
    ) -> aiohttp.ClientWebSocketResponse:
        """A socket, with the token as its first frame."""
        named = {"Origin": self.own} | {k.replace("_", "-"): v for k, v in headers.items()}
        page = await self.client.ws_connect(
            f"ws://127.0.0.1:{self.port}/socket", headers=named, max_msg_size=0
        )
        await page.send_json({"token": self.token if token is None else token})
        return page

    @property
    def untouched(self) -> bool:
        moved = [wish for wish in self.cockpit.driven if wish.hands]
        return not moved and not self.cockpit.said


@asynccontextmanager
async def site() -> AsyncIterator[Site]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    token = new_token()
    async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as client:
        here = Site(client, port, token)
        runner = await listen(Console(here.cockpit, Gate(port, token)), port)
        try:
            yield here
        finally:
            await runner.cleanup()


def served(check: Callable[[Site], Awaitable[None]]) -> None:
    async def run() -> None:
        async with site() as here, asyncio.timeout(LIMIT_S):
            await check(here)

    asyncio.run(run())


async def heard(page: aiohttp.ClientWebSocketResponse, kind: str) -> dict[str, Any]:
    """The next frame of a kind."""
    while True:
        message = await page.receive()
        assert message.type in {WSMsgType.TEXT, WSMsgType.BINARY}, message
        if message.type is WSMsgType.TEXT:
            fields: dict[str, Any] = json.loads(message.data)
            if fields["type"] == kind:
                return fields


async def refused(page: aiohttp.ClientWebSocketResponse) -> int:
    """The code with which a socket was closed before anything was told."""
    message = await page.receive()
    assert message.type is WSMsgType.CLOSE, message
    return int(message.data)


async def closed(page: aiohttp.ClientWebSocketResponse) -> int:
    """The code with which a socket is closed in the end."""
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


def test_whoever_has_the_token_sees_and_drives() -> None:
    async def check(here: Site) -> None:
        page = await operator(here)
        await page.send_json(PUSH)
        await settled(lambda: len(here.cockpit.driven) == 2)
        off = Wish((0.0,) * 7, False, ())
        assert here.cockpit.driven == [off, Wish((1.0, 0, 0, 0, 0, 0, 0), True, ())]
        await page.send_json({"type": "say", "what": "success"})
        assert (await heard(page, "answer"))["text"] == "did success"
        assert (await heard(page, "state"))["driver"] == "policy"
        assert (await heard(page, "progress"))["advice"] == "watch"
        while (message := await page.receive()).type is not WSMsgType.BINARY:
            pass
        assert message.data == b"\x05frontjpeg"

    served(check)


def test_what_could_not_be_done_is_said() -> None:
    async def check(here: Site) -> None:
        page = await operator(here)
        await page.send_json({"type": "say", "what": "reset"})
        answer = await heard(page, "answer")
        assert (answer["text"], answer["done"]) == ("the actor does not answer", False)

    served(check)


@pytest.mark.parametrize("token", ["", "x" * 43, "\ud800", "ä"])
def test_a_wrong_token_is_told_nothing(token: str) -> None:
    async def check(here: Site) -> None:
        page = await here.enter(token)
        assert await refused(page) == 4401
        assert here.untouched

    served(check)


@pytest.mark.parametrize(
    "first",
    ["", "{}", "[]", "nonsense", '{"token": 7}', '{"token": null}', json.dumps(PUSH)],
)
def test_a_first_frame_without_a_token_is_told_nothing(first: str) -> None:
    async def check(here: Site) -> None:
        page = await here.client.ws_connect(f"{here.own}/socket", headers={"Origin": here.own})
        await page.send_str(first)
        assert await refused(page) == 4401

    served(check)


def test_a_token_in_the_address_opens_nothing() -> None:
    async def check(here: Site) -> None:
        page = await here.client.ws_connect(
            f"{here.own}/socket?token={here.token}", headers={"Origin": here.own}
        )
        await page.send_json(PUSH)
        assert await refused(page) == 4401
        here.cockpit.page = STATIC / "index.html"
        assert (await here.ask("GET", f"/report?token={here.token}")).status == 403

    served(check)


ELSEWHERE = ["http://evil.example", "null", "https://127.0.0.1", "http://127.0.0.1", "file://"]


@pytest.mark.parametrize("origin", [*ELSEWHERE, "http://127.0.0.1:{port}.evil.example"])
def test_a_page_of_another_origin_gets_no_socket(origin: str) -> None:
    async def check(here: Site) -> None:
        with pytest.raises(aiohttp.WSServerHandshakeError) as refusal:
            await here.enter(Origin=origin.format(port=here.port))
        assert refusal.value.status == 403
        assert here.untouched

    served(check)


def test_a_socket_without_an_origin_is_refused() -> None:
    async def check(here: Site) -> None:
        with pytest.raises(aiohttp.WSServerHandshakeError) as refusal:
            await here.client.ws_connect(f"{here.own}/socket")
        assert refusal.value.status == 403

    served(check)


HOSTS = ["evil.example", "evil.example:{port}", "127.0.0.1", "localhost", "127.0.0.1:{port}.", ""]


@pytest.mark.parametrize("host", [*HOSTS, "[::1]:{port}", "127.0.0.1:1", "0.0.0.0:{port}"])
@pytest.mark.parametrize("method", ["GET", "POST", "HEAD", "PUT", "DELETE", "OPTIONS", "PATCH"])
def test_another_host_is_refused_whatever_is_asked(host: str, method: str) -> None:
    async def check(here: Site) -> None:
        for path in ("/", "/report", "/socket", "/nothing"):
            name = host.format(port=here.port)
            answer = await here.ask(method, path, Host=name, Authorization=f"Bearer {here.token}")
            assert answer.status in {400, 403}, path

    served(check)


@pytest.mark.parametrize("origin", [*ELSEWHERE, None])
@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH"])
def test_a_cross_site_request_is_refused_also_with_the_token(
    method: str, origin: str | None
) -> None:
    async def check(here: Site) -> None:
        headers = {"Authorization": f"Bearer {here.token}"} | ({"Origin": origin} if origin else {})
        answer = await here.ask(method, "/report", **headers)
        assert answer.status == 403
        assert not answer.cookies
        assert not [name for name in answer.headers if name.startswith("Access-Control")]

    served(check)


def test_what_a_browser_says_of_the_sender_counts() -> None:
    async def check(here: Site) -> None:
        for word in ("cross-site", "same-site"):
            assert (await here.ask("GET", "/", Sec_Fetch_Site=word)).status == 403
        for word in ("same-origin", "none"):
            assert (await here.ask("GET", "/", Sec_Fetch_Site=word)).status == 200

    served(check)


def test_the_page_is_locked_down_and_asks_nobody() -> None:
    async def check(here: Site) -> None:
        for path in FILES:
            answer = await here.ask("GET", path)
            assert answer.status == 200
            policy = answer.headers["Content-Security-Policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            assert answer.headers["X-Content-Type-Options"] == "nosniff"
            assert answer.headers["Cache-Control"] == "no-store"
            assert "Access-Control-Allow-Origin" not in answer.headers

    served(check)
    for name, _ in FILES.values():
        text = (STATIC / name).read_text()
        assert not re.search(
            r"https?://|//[a-z]+\.", text.replace("ws://${location.host}", "").replace(SVG, "")
        )
        assert "eval(" not in text
        assert " onclick" not in text


def test_other_paths_and_methods_are_nothing() -> None:
    async def check(here: Site) -> None:
        for path in ("/..%2fgate.py", "/static/style.css", "/favicon.ico", "/index.html"):
            assert (await here.ask("GET", path)).status == 404
        assert (await here.ask("POST", "/", Origin=here.own)).status == 405

    served(check)


@pytest.mark.parametrize(
    "frame",
    [
        {"type": "drive", "motion": [2.0] + [0.0] * 6, "hands": True},
        {"type": "drive", "motion": [0.0] * 6, "hands": True},
        {"type": "drive", "motion": [0.0] * 8, "hands": True},
        {"type": "drive", "motion": [True] * 7, "hands": True},
        {"type": "drive", "motion": ["1"] * 7, "hands": True},
        {"type": "drive", "motion": [10**400] + [0.0] * 6, "hands": True},
        {"type": "drive", "motion": [0.0] * 7, "hands": 1},
        {"type": "drive", "motion": [0.0] * 7, "hands": True, "more": 1},
        {"type": "drive"},
        {"type": "say", "what": "stop"},
        {"type": "say", "what": "__class__"},
        {"type": "say", "what": "success", "by": "me"},
        {"type": "take", "from": "you"},
        {"type": ["drive"]},
        {},
        {"token": "again"},
    ],
)
def test_a_frame_that_is_none_ends_the_page_and_moves_nothing(frame: dict[str, Any]) -> None:
    async def check(here: Site) -> None:
        page = await operator(here)
        await page.send_json(frame)
        assert await closed(page) == 4400
        assert here.untouched

    served(check)


@pytest.mark.parametrize(
    "text",
    [
        '{"type": "drive", "motion": [NaN, 0, 0, 0, 0, 0, 0], "hands": true}',
        '{"type": "drive", "motion": [1e999, 0, 0, 0, 0, 0, 0], "hands": true}',
        "[" * 60_000,
        "\x00",
    ],
)
def test_text_that_is_none_ends_the_page(text: str) -> None:
    async def check(here: Site) -> None:
        page = await operator(here)
        await page.send_str(text)
        assert await closed(page) == 4400
        assert here.untouched

    served(check)


def test_bytes_are_no_frames() -> None:
    async def check(here: Site) -> None:
        page = await operator(here)
        await page.send_bytes(json.dumps(PUSH).encode())
        assert await closed(page) == 4400
        assert here.untouched

    served(check)


@pytest.mark.parametrize("known", [False, True])
def test_a_frame_of_more_than_64_kb_ends_the_page(known: bool) -> None:
    async def check(here: Site) -> None:
        if known:
            page = await operator(here)
        else:
            page = await here.client.ws_connect(f"{here.own}/socket", headers={"Origin": here.own})
        await page.send_str(json.dumps(PUSH) + " " * (64 << 10))
        assert await closed(page) in {1009, 4401}
        assert here.untouched

    served(check)


def test_who_sends_too_much_is_heard_sixty_times_a_second_and_then_not_at_all() -> None:
    async def check(here: Site) -> None:
        page = await operator(here)
        began_s = time.monotonic()
        for _ in range(2000):
            if page.closed:
                break
            await page.send_json(REST)
        assert await closed(page) == 4400
        passed_s = time.monotonic() - began_s
        assert len(here.cockpit.driven) <= 60 * passed_s + 16

    served(check)


def test_a_stop_is_never_too_much_and_needs_no_lease() -> None:
    async def check(here: Site) -> None:
        await operator(here)
        page = await here.enter()
        for _ in range(200):
            await page.send_json({"type": "say", "what": "estop"})
        await settled(lambda: here.cockpit.said == ["estop"] * 200)
        assert (await heard(page, "answer"))["text"] == "did estop"

    served(check)


def test_one_page_operates_and_another_waits_until_it_is_free() -> None:
    async def check(here: Site) -> None:
        first, second = await operator(here), await here.enter()

        async def beat() -> None:
            for _ in range(15):
                await first.send_json(REST)
                await asyncio.sleep(0.05)

        beating = asyncio.create_task(beat())
        await second.send_json({"type": "take"})
        await second.send_json(PUSH)
        await second.send_json({"type": "say", "what": "success"})
        assert (await heard(second, "answer"))["text"] == "take over first"
        assert (await heard(second, "state"))["lease"] == "other"
        await beating
        await first.send_json({"type": "give"})
        while (await heard(second, "state"))["lease"] != "free":
            pass
        await second.send_json({"type": "take"})
        while (await heard(second, "state"))["lease"] != "you":
            pass
        assert not any(wish.hands for wish in here.cockpit.driven)
        assert here.cockpit.said == []

    served(check)


def test_without_the_lease_nothing_but_a_stop_is_done() -> None:
    async def check(here: Site) -> None:
        page = await here.enter()
        for what in ("success", "failure", "discard", "reset", "release", "pause", "resume"):
            await page.send_json({"type": "say", "what": what})
            assert (await heard(page, "answer"))["text"] == "take over first"
        await page.send_json(PUSH)
        await page.send_json({"type": "give"})
        await heard(page, "state")
        assert here.untouched

    served(check)


def test_a_page_that_goes_sends_no_last_beat_and_frees_the_lease() -> None:
    """Hands that were on are out of hearing then: it is the actor who holds."""

    async def check(here: Site) -> None:
        page = await operator(here)
        await page.send_json(PUSH)
        await settled(lambda: len(here.cockpit.driven) == 2)
        await page.close()
        other = await here.enter()
        while (await heard(other, "state"))["lease"] != "free":
            pass
        assert [wish.hands for wish in here.cockpit.driven] == [False, True]

    served(check)


def test_who_gives_the_controls_back_lets_go() -> None:
    async def check(here: Site) -> None:
        page = await operator(here)
        await page.send_json(PUSH)
        await page.send_json({"type": "give"})
        await settled(lambda: len(here.cockpit.driven) == 3)
        assert [wish.hands for wish in here.cockpit.driven] == [False, True, False]

    served(check)


def test_only_so_many_pages_are_served() -> None:
    async def check(here: Site) -> None:
        pages = [await here.enter() for _ in range(MOST_PAGES)]
        for page in pages:
            await heard(page, "state")
        assert await refused(await here.enter()) == 1013
        await pages[0].close()
        await heard(await here.enter(), "state")

    served(check)


def test_the_report_is_for_a_page_with_the_token(tmp_path: Path) -> None:
    async def check(here: Site) -> None:
        here.cockpit.page = tmp_path / "report.html"
        here.cockpit.page.write_text("<p>well done</p>")
        assert (await here.ask("GET", "/report")).status == 403
        for word in ("", "Bearer", "Bearer wrong", f"Basic {here.token}", here.token):
            answer = await here.ask("POST", "/report", Origin=here.own, Authorization=word)
            assert answer.status == 403
        own = {"Origin": here.own, "Authorization": f"Bearer {here.token}"}
        answer = await here.ask("POST", "/report", **own)
        cookie = answer.cookies["report"]
        assert (answer.status, cookie["httponly"], cookie["samesite"]) == (204, True, "Strict")
        assert cookie.value != here.token
        async with here.client.get(f"{here.own}/report") as report:
            assert await report.text() == "<p>well done</p>"
            assert "script-src" not in report.headers["Content-Security-Policy"]
            assert "default-src 'none'" in report.headers["Content-Security-Policy"]
        here.cockpit.page = None
        assert (await here.ask("GET", "/report")).status == 404

    served(check)


def test_it_listens_on_loopback_alone() -> None:
    async def check(here: Site) -> None:
        import psutil

        mine = [c for c in psutil.Process().net_connections("tcp") if c.status == "LISTEN"]
        assert {c.laddr.ip for c in mine if c.laddr.port == here.port} == {"127.0.0.1"}

    served(check)


def test_tokens_are_long_and_differ() -> None:
    tokens = {new_token() for _ in range(100)}
    assert len(tokens) == 100
    assert all(len(token) >= 43 for token in tokens)


def test_a_lease_expires_in_silence() -> None:
    now_s = 0.0
    lease = Lease(lambda: now_s)
    assert lease.take("a")
    now_s = 2.9
    assert not lease.take("b")
    assert lease.beat("a")
    now_s = 6.0
    assert lease.holder is None
    assert not lease.beat("a")
    assert lease.take("b")
    lease.give("a")
    assert lease.holder == "b"


def test_a_rate_lets_a_burst_and_then_a_steady_stream_through() -> None:
    now_s = 0.0
    rate = Rate(60.0, lambda: now_s)
    assert sum(rate.allows() for _ in range(100)) == 15
    passed = 0
    for _ in range(1000):
        now_s += 0.005
        passed += rate.allows()
    assert 298 <= passed <= 302


def test_the_door_is_for_its_owner_alone(tmp_path: Path) -> None:
    assert read_door(tmp_path) is None
    write_door(tmp_path, Door("http://127.0.0.1:8765/", "secret"))
    assert read_door(tmp_path) == Door("http://127.0.0.1:8765/", "secret")
    assert (tmp_path / "console.json").stat().st_mode & 0o077 == 0
    (tmp_path / "console.json").write_text("{")
    assert read_door(tmp_path) is None
    remove_door(tmp_path)
    remove_door(tmp_path)


def test_frames_are_checked_whole() -> None:
    assert read_frame('{"type": "say", "what": "estop"}') == "estop"
    with pytest.raises(CorruptData, match="expected the token first"):
        read_token('{"token": "a", "more": 1}')
