"""The console server: states, commands and the lease of pages that hold the token."""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from pathlib import Path

import pytest
from aiohttp import WSMsgType

from serl.console import server
from serl.console.messages import CropOrder, KeepOrder, Selection
from serl.console.server import MAX_PAGES
from serl.teleop.mapping import Wish

from .site import LIMIT_S, PUSH, REST, Site, heard, operator, refused, served, settled


@served
async def test_page_with_token_sees_state_and_drives(here: Site) -> None:
    page = await operator(here)
    await page.send_json(PUSH)
    await settled(lambda: len(here.backend.driven) == 2)
    off = Wish((0.0,) * 7, False, ())
    assert here.backend.driven == [off, Wish((1.0, 0, 0, 0, 0, 0, 0), True, ())]
    await page.send_json({"type": "say", "what": "success"})
    assert (await heard(page, "answer"))["text"] == "did success"
    assert (await heard(page, "state"))["driver"] == "policy"
    assert (await heard(page, "progress"))["advice"] == "watch"
    while (message := await page.receive()).type is not WSMsgType.BINARY:
        pass
    assert message.data == b"\x05frontjpeg"


@served
async def test_page_gets_reason_when_command_fails(here: Site) -> None:
    page = await operator(here)
    await page.send_json({"type": "say", "what": "reset"})
    answer = await heard(page, "answer")
    assert (answer["text"], answer["done"]) == ("the actor does not answer", False)


@served
async def test_page_continues_after_exceptions_in_backend(
    here: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = iter((True, False))

    def progress() -> dict[str, str]:
        if next(broken, False):
            raise ZeroDivisionError
        return {"advice": "watch"}

    monkeypatch.setattr(here.backend, "progress", progress)
    monkeypatch.setitem(here.backend.answers, "estop", ZeroDivisionError("by none"))
    page = await here.enter()
    await page.send_json({"type": "say", "what": "estop"})
    answer = await heard(page, "answer")
    assert (answer["done"], answer["what"]) == (False, "estop")
    assert "by none" in answer["text"]
    assert (await heard(page, "progress"))["advice"] == "watch"


@served
async def test_estop_is_answered_while_progress_read_blocks(
    here: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, read = threading.Event(), threading.Event()

    def progress() -> dict[str, str]:
        read.set()
        disk.wait(LIMIT_S)
        return {"advice": "watch"}

    monkeypatch.setattr(here.backend, "progress", progress)
    page = await here.enter()
    try:
        await settled(read.is_set)
        await page.send_json({"type": "say", "what": "estop"})
        assert (await heard(page, "answer"))["text"] == "did estop"
    finally:
        disk.set()
    assert (await heard(page, "progress"))["advice"] == "watch"


@served
async def test_confirmation_needs_current_question_and_lease(here: Site) -> None:
    here.backend.shown = {"question": "estop: Enter ends this stop"}
    page = await operator(here)
    await page.send_json({"type": "yes", "question": "the guard is disarmed: Enter arms it"})
    answer = await heard(page, "answer")
    assert (answer["what"], answer["done"]) == ("yes", False)
    assert "the question has changed" in answer["text"]
    await page.send_json({"type": "yes", "question": "estop: Enter ends this stop"})
    assert (await heard(page, "answer"))["done"]
    assert here.backend.commands == ["yes: estop: Enter ends this stop"]
    await page.send_json({"type": "give"})
    await page.send_json({"type": "yes", "question": "estop: Enter ends this stop"})
    assert (await heard(page, "answer"))["text"] == "take over first"


@served
async def test_flood_of_estops_executes_once_and_needs_no_lease(
    here: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that other pages still receive states and that the flood gets one answer."""
    monkeypatch.setattr(server, "STOP_PERIOD_S", 1e6)
    other = await operator(here)
    page = await here.enter()
    here.backend.slow["estop"] = asyncio.Event()
    await heard(page, "state")
    before = len(asyncio.all_tasks())
    for _ in range(3000):
        await page.send_json({"type": "say", "what": "estop"})
    await page.send_json({"type": "say", "what": "success"})
    assert (await heard(page, "answer"))["text"] == "take over first", "some frames were not read"
    assert here.backend.commands == ["estop"]
    assert len(asyncio.all_tasks()) < before + 10
    for _ in range(3):
        await heard(other, "state")
    here.backend.slow["estop"].set()
    assert (await heard(page, "answer"))["text"] == "did estop"


@served
async def test_estop_during_pending_estop_is_executed_too(here: Site) -> None:
    """Execute both: a component may have been released after the first stop reached it."""
    pages = [await here.enter(), await here.enter()]
    here.backend.slow["estop"] = asyncio.Event()
    for number, page in enumerate(pages, 1):
        await page.send_json({"type": "say", "what": "estop"})
        await settled(partial(lambda most: len(here.backend.commands) == most, number))
    here.backend.slow["estop"].set()
    for page in pages:
        assert (await heard(page, "answer"))["text"] == "did estop"


@served
async def test_second_page_gets_lease_only_after_first_gives_it_up(here: Site) -> None:
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
    assert not any(wish.hands for wish in here.backend.driven)
    assert here.backend.commands == []


@served
async def test_page_without_lease_cannot_command_or_drive(here: Site) -> None:
    page = await here.enter()
    for what in ("success", "failure", "discard", "reset", "release", "pause", "resume"):
        await page.send_json({"type": "say", "what": what})
        assert (await heard(page, "answer"))["text"] == "take over first"
    await page.send_json(PUSH)
    await page.send_json({"type": "give"})
    await heard(page, "state")
    assert here.untouched


@served
async def test_closed_page_frees_lease_without_hands_off_message(here: Site) -> None:
    """Check that closing a driving page sends no hands-off message: the actor then holds."""
    page = await operator(here)
    await page.send_json(PUSH)
    await settled(lambda: len(here.backend.driven) == 2)
    await page.close()
    other = await here.enter()
    while (await heard(other, "state"))["lease"] != "free":
        pass
    assert [wish.hands for wish in here.backend.driven] == [False, True]


@served
async def test_backend_gets_hands_off_when_page_gives_up_lease(here: Site) -> None:
    page = await operator(here)
    await page.send_json(PUSH)
    await page.send_json({"type": "give"})
    await settled(lambda: len(here.backend.driven) == 3)
    assert [wish.hands for wish in here.backend.driven] == [False, True, False]


@served
async def test_orders_with_arguments_need_lease(here: Site) -> None:
    orders = {
        "judge": {"type": "judge", "episode": "7-000000", "keep": False},
        "crop": {"type": "crop", "camera": "wrist", "crop": [0.0, 0, 0.5, 1]},
        "select": {"type": "select", "actor": "left"},
    }
    page = await here.enter()
    for name, frame in orders.items():
        await page.send_json(frame)
        answer = await heard(page, "answer")
        assert (answer["what"], answer["text"]) == (name, "take over first")
    assert here.backend.orders == []
    page = await operator(here)
    for name, frame in orders.items():
        await page.send_json(frame)
        answer = await heard(page, "answer")
        assert (answer["what"], answer["done"]) == (name, True)
    judge, crop, select = KeepOrder("7-000000", False), (0.0, 0, 0.5, 1), Selection("left")
    assert here.backend.orders == [judge, CropOrder("wrist", crop), select]


@served
async def test_film_and_its_last_picture_need_token(here: Site) -> None:
    here.backend.films["7-000000"] = b"\0\0\0\x03one\0\0\0\x03two"
    own = {"Authorization": f"Bearer {here.token}"}
    for path in ("/film/7-000000", "/film/7-000000/last"):
        assert (await here.ask("GET", path)).status == 403
        assert (await here.ask("GET", path, Authorization="Bearer wrong")).status == 403
        assert (await here.ask("GET", path, Sec_Fetch_Site="cross-site", **own)).status == 403
    for path, body in (("", here.backend.films["7-000000"]), ("/last", b"two")):
        async with here.client.get(f"{here.own}/film/7-000000{path}", headers=own) as answer:
            assert await answer.read() == body
    assert (await here.ask("GET", "/film/8-000000", **own)).status == 404


@served
async def test_server_refuses_more_than_max_pages(here: Site) -> None:
    pages = [await here.enter() for _ in range(MAX_PAGES)]
    for page in pages:
        await heard(page, "state")
    assert await refused(await here.enter()) == 1013
    await pages[0].close()
    await heard(await here.enter(), "state")


@served
async def test_report_needs_token_or_its_cookie(here: Site, tmp_path: Path) -> None:
    here.backend.page = tmp_path / "report.html"
    here.backend.page.write_text("<p>well done</p>")
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
    here.backend.page = None
    assert (await here.ask("GET", "/report")).status == 404
