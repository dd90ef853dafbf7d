"""Requests without the token and invalid frames: the console refuses them and moves nothing."""

from __future__ import annotations

import asyncio
import json
import re
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serl.console.access import (
    ConsoleAddress,
    OperatorLease,
    RateLimit,
    forget_address,
    kept_token,
    lock_console,
    new_token,
    read_address,
    remove_address,
    write_address,
)
from serl.console.messages import read_entry, read_frame
from serl.console.server import FILES, STATIC
from serl.errors import BadInput, CorruptData
from serl.teleop.mapping import Wish

from .site import PUSH, REST, Site, closed, operator, refused, served

SVG = 'xmlns="http://www.w3.org/2000/svg"'


WRONG_TOKENS: list[object] = ["", "x" * 43, "\ud800", "ä", 7, None]
FIRST_FRAMES = ["", "{}", "[]", "nonsense", json.dumps(PUSH)]


@pytest.mark.parametrize(
    "first", [*(json.dumps({"token": t}) for t in WRONG_TOKENS), *FIRST_FRAMES]
)
@served
async def test_socket_without_token_in_first_frame_is_closed(here: Site, first: str) -> None:
    for query in ("", f"?token={here.token}"):  # a token in the URL is ignored
        url = f"{here.own}/socket{query}"
        page = await here.client.ws_connect(url, headers={"Origin": here.own})
        await page.send_str(first)
        assert await refused(page) == 4401
    here.backend.page = STATIC / "index.html"
    assert (await here.ask("GET", f"/report?token={here.token}")).status == 403
    assert here.untouched


ELSEWHERE = ["http://evil.example", "null", "https://127.0.0.1", "http://127.0.0.1", "file://"]


@served
async def test_socket_with_foreign_or_missing_origin_is_refused(here: Site) -> None:
    for origin in [*ELSEWHERE, f"http://127.0.0.1:{here.port}.evil.example"]:
        with pytest.raises(aiohttp.WSServerHandshakeError) as refusal:
            await here.enter(Origin=origin)
        assert refusal.value.status == 403, origin
    with pytest.raises(aiohttp.WSServerHandshakeError) as refusal:
        await here.client.ws_connect(f"{here.own}/socket")
    assert refusal.value.status == 403
    assert here.untouched


@pytest.mark.parametrize(
    ("target", "status"),
    [("/", 200), ("http://evil.example/", 403), ("http://{host}/", 403), ("*", 400), ("", 400)],
)
@served
async def test_absolute_url_in_request_line_is_refused_for_any_host(
    here: Site, target: str, status: int
) -> None:
    """Refuse requests in the form for proxies: the console is not a proxy."""
    host = f"127.0.0.1:{here.port}"
    reader, writer = await asyncio.open_connection("127.0.0.1", here.port)
    head = f"GET {target.format(host=host)} HTTP/1.1\r\nHost: {host}\r\n"
    writer.write(f"{head}Connection: close\r\n\r\n".encode())
    assert (await reader.readline()).split()[1] == str(status).encode()
    writer.close()


HOSTS = ["evil.example", "evil.example:{port}", "127.0.0.1", "localhost", "127.0.0.1:{port}.", ""]


@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS"])
@served
async def test_foreign_host_or_origin_is_refused_despite_token(here: Site, method: str) -> None:
    token = {"Authorization": f"Bearer {here.token}"}
    for host in [*HOSTS, "[::1]:{port}", "127.0.0.1:1", "0.0.0.0:{port}"]:
        for path in ("/", "/report", "/socket", "/nothing"):
            answer = await here.ask(method, path, Host=host.format(port=here.port), **token)
            assert answer.status in {400, 403}, (host, path)
    for origin in [*ELSEWHERE, None] if method != "GET" else []:
        headers = token | ({"Origin": origin} if origin else {})
        answer = await here.ask(method, "/report", **headers)
        assert answer.status == 403, origin
        assert not answer.cookies
        assert not [name for name in answer.headers if name.startswith("Access-Control")]


@served
async def test_fetch_site_header_decides_if_request_is_served(here: Site) -> None:
    for word in ("cross-site", "same-site"):
        assert (await here.ask("GET", "/", Sec_Fetch_Site=word)).status == 403
    for word in ("same-origin", "none"):
        assert (await here.ask("GET", "/", Sec_Fetch_Site=word)).status == 200


@served
async def test_page_has_strict_headers_and_loads_nothing_external(here: Site) -> None:
    for path in FILES:
        answer = await here.ask("GET", path)
        assert answer.status == 200
        policy = answer.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Cache-Control"] == "no-store"
        assert "Access-Control-Allow-Origin" not in answer.headers
    for name, _ in FILES.values():
        text = (STATIC / name).read_text()
        assert not re.search(
            r"https?://|//[a-z]+\.", text.replace("ws://${location.host}", "").replace(SVG, "")
        )
        assert "eval(" not in text
        assert " onclick" not in text


@served
async def test_unknown_paths_and_methods_are_refused(here: Site) -> None:
    for path in ("/..%2fgate.py", "/static/style.css", "/favicon.ico", "/index.html"):
        assert (await here.ask("GET", path)).status == 404
    assert (await here.ask("POST", "/", Origin=here.own)).status == 405


FRAMES: list[dict[str, Any]] = [
    {"type": "drive", "motion": [2.0] + [0.0] * 6, "hands": True},
    {"type": "drive", "motion": [0.0] * 6, "hands": True},
    {"type": "drive", "motion": [0.0] * 8, "hands": True},
    {"type": "drive", "motion": [0.0] * 21, "hands": True},
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
    {"type": "judge", "episode": "1-000000", "keep": 1},
    {"type": "crop", "camera": "front", "crop": [0.5, 0.0, 0.5, 1.0]},
    {"type": "crop", "camera": "front", "crop": [0.0, 0.0, 1.5, 1.0]},
    {"type": "crop", "camera": "front", "crop": [0.0, 0.0, True, 1.0]},
    {"type": "select", "actor": 1},
    {"type": ["drive"]},
    {},
    {"token": "again"},
]
TEXTS = [
    '{"type": "drive", "motion": [NaN, 0, 0, 0, 0, 0, 0], "hands": true}',
    '{"type": "drive", "motion": [1e999, 0, 0, 0, 0, 0, 0], "hands": true}',
    "[" * 60_000,
    "\x00",
    json.dumps(PUSH) + " " * (64 << 10),
]


@served
async def test_invalid_frame_closes_socket_and_moves_nothing(here: Site) -> None:
    for text in [*map(json.dumps, FRAMES), *TEXTS]:
        page = await operator(here)
        await page.send_str(text)
        assert await closed(page) == (4400 if len(text) <= 64 << 10 else 1009), text[:200]
    page = await operator(here)
    await page.send_bytes(json.dumps(PUSH).encode())
    assert await closed(page) == 4400
    page = await here.client.ws_connect(f"{here.own}/socket", headers={"Origin": here.own})
    await page.send_str(TEXTS[-1])
    assert await closed(page) in {1009, 4401}
    assert here.untouched


_JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text()),
    lambda inner: st.one_of(st.lists(inner), st.dictionaries(st.text(), inner)),
    max_leaves=10,
)
_NUMBER = st.one_of(st.floats(), st.integers(), st.booleans(), st.none())
_TYPES = ("drive", "say", "yes", "select", "judge", "crop", "take", "give")
_FIELDS = {
    "motion": st.lists(_NUMBER, min_size=7, max_size=7),
    "hands": st.booleans(),
    "what": st.one_of(st.sampled_from(["estop", "success"]), st.text()),
    "crop": st.lists(_NUMBER, min_size=4, max_size=4),
    **dict.fromkeys(("camera", "episode", "actor", "question"), st.text()),
    "keep": st.booleans(),
}
_SHAPED = st.fixed_dictionaries({"type": st.sampled_from(_TYPES)}, optional=_FIELDS)


@settings(max_examples=100, deadline=None)
@given(frame=st.one_of(_JSON, _SHAPED), text=st.text())
def test_any_frame_is_read_or_refused(frame: object, text: str) -> None:
    for each in (json.dumps(frame), text):
        with suppress(CorruptData):
            found = read_frame(each)
            if isinstance(found, Wish):
                assert all(-1.0 <= value <= 1.0 for value in found.motion)


@served
async def test_flooding_page_is_rate_limited_and_then_closed(
    here: Site,
) -> None:
    page = await operator(here)
    began_s = time.monotonic()
    for _ in range(2000):
        if page.closed:
            break
        await page.send_json(REST)
    assert await closed(page) == 4400
    passed_s = time.monotonic() - began_s
    assert len(here.backend.driven) <= 60 * passed_s + 16


@served
async def test_console_listens_on_loopback_only(here: Site) -> None:
    import psutil

    mine = [c for c in psutil.Process().net_connections("tcp") if c.status == "LISTEN"]
    assert {c.laddr.ip for c in mine if c.laddr.port == here.port} == {"127.0.0.1"}


def test_tokens_are_long_and_unique() -> None:
    tokens = {new_token() for _ in range(100)}
    assert len(tokens) == 100
    assert all(len(token) >= 43 for token in tokens)


def test_address_file_is_private_and_damaged_one_is_ignored(tmp_path: Path) -> None:
    assert read_address(tmp_path) is None
    write_address(tmp_path, ConsoleAddress("http://127.0.0.1:8765/", "secret"))
    assert read_address(tmp_path) == ConsoleAddress("http://127.0.0.1:8765/", "secret")
    assert (tmp_path / "console.json").stat().st_mode & 0o077 == 0
    (tmp_path / "console.json").write_text("{")
    assert read_address(tmp_path) is None
    remove_address(tmp_path)
    remove_address(tmp_path)


def test_killed_console_keeps_its_token_until_a_command_starts_another(tmp_path: Path) -> None:
    address = ConsoleAddress("http://127.0.0.1:8765/", "secret")
    write_address(tmp_path, address)
    assert kept_token(tmp_path) == "secret"
    with lock_console(tmp_path), pytest.raises(BadInput, match=r"the console of .* is in use by"):
        forget_address(tmp_path)
    assert read_address(tmp_path) == address
    forget_address(tmp_path)
    assert read_address(tmp_path) is None
    assert kept_token(tmp_path) != kept_token(tmp_path)


def test_read_entry_refuses_token_together_with_pairing_code() -> None:
    assert read_frame('{"type": "say", "what": "estop"}') == "estop"
    with pytest.raises(CorruptData, match="expected the token or a pairing code first"):
        read_entry('{"token": "a", "pair": "1"}')


def test_lease_expires_without_renewal() -> None:
    now_s = 0.0
    lease = OperatorLease(lambda: now_s)
    assert lease.take("a")
    now_s = 2.9
    assert not lease.take("b")
    assert lease.renew("a")
    now_s = 6.0
    assert lease.holder is None
    assert not lease.renew("a")
    assert lease.take("b")
    lease.release("a")
    assert lease.holder == "b"


def test_rate_limit_passes_burst_then_steady_stream() -> None:
    now_s = 0.0
    rate = RateLimit(60.0, lambda: now_s)
    assert sum(rate.allows() for _ in range(100)) == 15
    passed = 0
    for _ in range(1000):
        now_s += 0.005
        passed += rate.allows()
    assert 298 <= passed <= 302
