"""The console page in Chromium: presses and states that must not outlast their cause."""

from __future__ import annotations

import pytest

from .browser import CHROMIUM, Page
from .conftest import COLLECTING, enter, show_state, with_page
from .site import Site

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="NO PAGE TESTED: there is no Chromium")


@with_page
async def test_only_first_mouse_button_drives_and_labels(page: Page, here: Site) -> None:
    """Check that a press that opens a menu, which may take the release, has no effect."""
    show_state(here, {"driver": "human", "owner": "the console"}, COLLECTING)
    await enter(page, here)
    await page.take()
    for selector in ("#pad .up", "[data-say=positive]"):
        await page.press_on(selector, "right")
        await page.run("new Promise((done) => setTimeout(done, 300))")  # several beats
    assert not any(wish.hands for wish in here.backend.driven)
    assert here.backend.commands == []


@with_page
async def test_token_submitted_twice_opens_one_page(page: Page, here: Site) -> None:
    show_state(here, {"driver": "policy"})
    await page.open(here.own)
    submit = "document.getElementById('door').requestSubmit()"
    await page.run(f"document.getElementById('token').value = '{here.token}'; {submit}; {submit}")
    await page.says("The policy drives")
    await page.run("new Promise((done) => setTimeout(done, 500))")  # an answer to the second
    assert await page.run("document.getElementById('door').hidden")
    assert await page.text("refused") == ""
    for socket in set(here.console._pages):
        await socket.close()
    await page.reads("why", "reconnecting")
    await page.run(f"location.hash = '#{here.token}'")  # entered again before it reconnects
    await page.says("The policy drives")
    await page.run("new Promise((done) => setTimeout(done, 1500))")  # the next attempt would come
    assert len(here.console._pages) == 1


@with_page
async def test_page_shows_no_old_state_of_a_console_that_hangs(page: Page, here: Site) -> None:
    show_state(here, {"driver": "policy"})
    await enter(page, here)
    await page.says("The policy drives")
    here.backend.shown = {"driver": float("nan")}  # cannot be sent
    await page.reads("why", "the console sends nothing")
    assert await page.text("who") == "Not connected"
    show_state(here, {"driver": "policy"})
    await page.says("The policy drives")


@with_page
async def test_page_that_lost_the_controls_does_not_take_them_back_by_itself(
    page: Page, here: Site
) -> None:
    show_state(here, {"driver": "policy"})
    await enter(page, here)
    await page.take()
    lease = here.console._lease
    lease._holder, lease._beat_s = "another page", here.console._now_s()  # after a stall
    await page.reads("lease", "Another page has the controls")
    lease.release("another page")
    await page.reads("lease", "Take the controls")
    await page.run("new Promise((done) => setTimeout(done, 500))")  # several states
    assert await page.text("lease") == "Take the controls T"


@with_page
async def test_answer_about_a_stop_is_removed_by_the_next_stop(page: Page, here: Site) -> None:
    show_state(here, {"stopped": "stopped by the operator"})
    await enter(page, here)
    await page.take()
    await page.reads("go", "Release the actor")
    await page.hit("KeyG")
    await page.reads("answer", "did release")
    show_state(here, {"stopped": "stopped by a device"})
    await page.until("!document.getElementById('answer').textContent", 10.0)
