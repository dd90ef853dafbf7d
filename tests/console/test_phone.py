"""A phone in the lab network: its address, certificate, pairing code and QR code."""

from __future__ import annotations

import asyncio
import base64
import ssl
from datetime import timedelta
from pathlib import Path

import aiohttp
import cv2
import numpy as np
import pytest

from serl.console import phone
from serl.console.access import RequestCheck
from serl.console.phone import CODE_TRIES, CODE_VALID_S, PairingCode, check_host, make_certificate
from serl.console.server import MAX_ENTERING
from serl.errors import BadInput

from .browser import CHROMIUM, Page, tab
from .conftest import show_state
from .site import Site, heard, refused, served, site

LAB = "127.0.0.2"  # stands for this machine's address in the lab network
in_chromium = pytest.mark.skipif(CHROMIUM is None, reason="NO PAGE TESTED: there is no Chromium")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_certificate(LAB, tmp_path_factory.mktemp("certificates"))


def test_certificate_is_private_reused_and_renewed_before_expiry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "state" / "console"
    path = make_certificate("robot.lab", folder)
    assert path.stat().st_mode & 0o077 == 0
    assert folder.stat().st_mode & 0o077 == 0
    first = path.read_bytes()
    assert make_certificate("robot.lab", folder).read_bytes() == first
    assert make_certificate("192.168.1.20", folder).read_bytes() != first
    mark = phone.fingerprint(path)
    assert len(mark.split(":")) == 32
    path.write_text("damaged")
    assert make_certificate("robot.lab", folder).read_bytes() != first
    assert phone.fingerprint(path) != mark
    monkeypatch.setattr(phone, "_VALID", timedelta(hours=23))
    path.unlink()
    expiring = make_certificate("robot.lab", folder).read_bytes()
    assert make_certificate("robot.lab", folder).read_bytes() != expiring


def test_pairing_code_works_once_within_ten_minutes_and_five_tries() -> None:
    now_s = 0.0
    pairing = PairingCode(lambda: now_s)
    assert not pairing.redeem("")
    code = pairing.issue()
    assert len(code) == 8
    assert code.isdigit()
    assert pairing.redeem(code)
    assert not pairing.redeem(code), "accepted a second time"
    for _ in range(CODE_TRIES - 1):
        code = code if pairing.redeem(None) else pairing.issue()
    code = pairing.issue()
    assert not any(pairing.redeem(guess) for guess in ("x", "ä", 7, None))
    assert pairing.redeem(code), "the fifth try was refused"
    code = pairing.issue()
    assert not any(pairing.redeem("00000000x") for _ in range(CODE_TRIES))
    assert not pairing.redeem(code), "accepted after too many tries"
    code = pairing.issue()
    now_s += CODE_VALID_S + 1
    assert not pairing.redeem(code), "accepted after it expired"


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "::1", "http://robot", "robot/..", "", "robot lab", "-robot", "robot:8765"]
)
def test_check_host_refuses_invalid_host(host: str) -> None:
    with pytest.raises(BadInput, match=r"--console.host .*: expected this machine's IPv4 address"):
        check_host(host)


@pytest.mark.parametrize(
    ("found", "inside"),
    [
        ([], ""),
        (["192.168.1.20", "127.0.1.1"], ""),
        (["fe80::1%eth0"], ""),
        (["127.0.1.1", "::1"], "127.0.1.1"),
    ],
)
def test_check_host_refuses_name_of_this_machine_alone(
    found: list[str], inside: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Debian gives the name of a machine the address 127.0.1.1, at which no phone can open it."""

    def resolved(name: str, port: None) -> list[tuple[int, int, int, str, tuple[str, int]]]:
        if not found:
            raise OSError("unknown")
        return [(2, 1, 6, "", (address, 0)) for address in found]

    monkeypatch.setattr("socket.getaddrinfo", resolved)
    check_host("192.168.1.20")
    if not inside:
        return check_host("robot-3.lab")
    with pytest.raises(BadInput, match=f"robot-3.lab is {inside} here, which no phone reaches"):
        check_host("robot-3.lab")


def test_host_name_with_capitals_is_served_as_browsers_spell_it() -> None:
    gate = RequestCheck(8765, "token", "Robot-PC.lab")
    assert gate.accepts("GET", "/", {"Host": "robot-pc.lab:8765"}, False, "https")
    own = {"Host": "robot-pc.lab:8765", "Origin": "https://robot-pc.lab:8765"}
    assert gate.accepts("GET", "/socket", own, True, "https")
    assert not gate.accepts("GET", "/socket", own, True)


def _tls_connector(certificate: Path) -> aiohttp.TCPConnector:
    """Return a connector that trusts only this certificate."""
    return aiohttp.TCPConnector(ssl=ssl.create_default_context(cafile=str(certificate)))


def test_phone_enters_over_tls_with_token_or_single_use_code(certificate: Path) -> None:
    async def check() -> None:
        async with (
            site(LAB, certificate) as here,
            aiohttp.ClientSession(connector=_tls_connector(certificate)) as client,
        ):
            lab = f"https://{LAB}:{here.port}"

            async def enter(**word: object) -> aiohttp.ClientWebSocketResponse:
                page = await client.ws_connect(f"{lab}/socket", headers={"Origin": lab})
                await page.send_json(word)
                return page

            await heard(await enter(token=here.token), "state")
            assert await refused(await enter(pair="12345678")) == 4401
            code = here.console.pairing.issue()
            paired = await enter(pair=code)
            assert (await heard(paired, "paired"))["token"] == here.token
            await heard(paired, "state")
            assert await refused(await enter(pair=code)) == 4401
            assert await refused(await enter(pair=here.token)) == 4401

    asyncio.run(check())


def test_lab_address_needs_tls_and_matching_host_and_origin(
    certificate: Path,
) -> None:
    async def check() -> None:
        async with (
            site(LAB, certificate) as here,
            aiohttp.ClientSession(connector=_tls_connector(certificate)) as client,
        ):
            lab, name = f"https://{LAB}:{here.port}", f"{LAB}:{here.port}"
            async with client.get(lab) as answer:
                assert answer.status == 200
                assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
            with pytest.raises(aiohttp.ClientError):
                await client.get(f"http://{name}/")
            own = f"127.0.0.1:{here.port}"
            assert (await here.ask("GET", "/", Host=name)).status == 403
            async with client.get(lab, headers={"Host": own}) as answer:
                assert answer.status == 403
            for origin in (f"http://{name}", f"http://{own}", f"https://{own}", f"https://{LAB}"):
                with pytest.raises(aiohttp.WSServerHandshakeError):
                    await client.ws_connect(f"{lab}/socket", headers={"Origin": origin})

    asyncio.run(check())


@served
async def test_console_without_lab_address_refuses_pairing_code(here: Site) -> None:
    code = here.console.pairing.issue()
    page = await here.client.ws_connect(f"{here.own}/socket", headers={"Origin": here.own})
    await page.send_json({"pair": code})
    assert await refused(page) == 4401
    token = {"Authorization": f"Bearer {here.token}"}
    assert (await here.ask("GET", "/phone", **token)).status == 404


def test_qr_code_and_pairing_code_need_token(certificate: Path) -> None:
    async def check() -> None:
        async with site(LAB, certificate) as here:
            for word in ("", "Bearer wrong", here.token):
                assert (await here.ask("GET", "/phone", Authorization=word)).status == 403
            assert (await here.ask("GET", f"/phone?token={here.token}")).status == 403

    asyncio.run(check())


@served
async def test_sockets_without_token_do_not_block_authenticated_page(here: Site) -> None:
    page = await here.enter()
    await heard(page, "state")
    own = {"Origin": here.own}
    waiting = [
        await here.client.ws_connect(f"{here.own}/socket", headers=own) for _ in range(MAX_ENTERING)
    ]
    assert await refused(await here.enter()) == 1013
    await page.send_json({"type": "say", "what": "estop"})
    assert (await heard(page, "answer"))["text"] == "did estop"
    for each in waiting:
        await each.close()
    await heard(await here.enter(), "state")


async def _wait_until_unlocked(page: Page) -> None:
    await page.until("document.getElementById('task').textContent === 'reach'")


@in_chromium
def test_printed_url_opens_page_and_later_tab_needs_no_token(address: str) -> None:
    async def check() -> None:
        async with site() as here, tab(address) as page, tab(address) as other:
            show_state(here, {"driver": "policy"})
            await page.open(f"{here.own}/#{here.token}")
            await _wait_until_unlocked(page)
            assert await page.run("location.href") == f"{here.own}/"
            assert not [url for url in page.requests if here.token in url.partition("#")[0]]
            await other.open(here.own)
            await _wait_until_unlocked(other)
            await other.open("about:blank")
            await other.open(f"{here.own}/#{'x' * 43}")  # an outdated token
            await _wait_until_unlocked(other)
            await page.run("localStorage.clear()")
            await page.open("about:blank")
            await page.open(here.own)
            await page.until("!document.getElementById('door').hidden")
            assert await page.run("document.getElementById('desk').hidden")

    asyncio.run(check())


@in_chromium
def test_phone_enters_by_typed_code_and_page_shows_qr_code_of_url(
    address: str, certificate: Path
) -> None:
    async def check() -> None:
        async with site(LAB, certificate) as here, tab(address) as page, tab(address) as small:
            show_state(here, {"driver": "policy"})
            await page.open(f"{here.own}/#{here.token}")
            await _wait_until_unlocked(page)
            await page.click("phone")
            await page.until("document.getElementById('qr').naturalWidth > 0")
            assert await _scan_qr_code(page) == f"https://{LAB}:{here.port}/#{here.token}"
            says = await page.text("phone-says")
            assert f"https://{LAB}:{here.port}/" in says
            await small.open(f"https://{LAB}:{here.port}/")
            for code in ("0000 0000", says.partition("type ")[2][:9]):
                await small.unlock(code)
                if code == "0000 0000":
                    await small.reads("refused", "This code is wrong")
            await _wait_until_unlocked(small)
            await small.open("about:blank")
            await small.open(f"https://{LAB}:{here.port}/")
            await _wait_until_unlocked(small)

    asyncio.run(check())


async def _scan_qr_code(page: Page) -> str:
    """Return the text of the QR code on a screenshot of the page, or an empty string."""
    await page.call(
        "Emulation.setDeviceMetricsOverride", width=1280, height=800, deviceScaleFactor=2,
        mobile=False,
    )  # fmt: skip
    for _ in range(100):  # until it is drawn at this size
        shot = await page.call("Page.captureScreenshot", format="png")
        picture = cv2.imdecode(np.frombuffer(base64.b64decode(shot["data"]), np.uint8), 0)
        assert picture is not None
        right = picture[:, min(2000, picture.shape[1] - 1) :]
        if text := cv2.QRCodeDetector().detectAndDecode(right)[0]:
            return str(text)
        await asyncio.sleep(0.05)
    return ""


def test_terminal_qr_code_encodes_url() -> None:
    url = "https://192.168.1.20:8765/#" + "A" * 43
    lines = phone.qr_text(url).splitlines()
    rows = []
    for line in lines:  # half blocks: two modules a character
        rows.append([c in "█▀" for c in line])
        rows.append([c in "█▄" for c in line])
    picture = np.kron(np.array(rows, np.uint8) * 255, np.ones((6, 6), np.uint8))
    picture = cv2.copyMakeBorder(picture, 40, 40, 40, 40, cv2.BORDER_CONSTANT, value=255)
    assert cv2.QRCodeDetector().detectAndDecode(picture)[0] == url
