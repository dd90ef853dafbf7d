"""Layout of the console page on a desktop and on a phone, measured in Chromium."""

from __future__ import annotations

import asyncio
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from serl import plugins
from serl.console import server
from serl.console.backend import Picture
from serl.console.phone import make_certificate
from serl.console.pictures import SCENE_SIZE
from serl.errors import SerlError
from serl.sim.arm import SimArm
from serl.system.video import encode_image
from serl.tasks.pick_cube import PickCube

from .browser import CHROMIUM, Page, tab
from .conftest import (
    ACTORS,
    COLLECTING,
    EPISODES,
    RECORDING,
    TRAINING,
    enter,
    film_of,
    show_state,
)
from .site import Site, operator, site

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="NO PAGE TESTED: there is no Chromium")

DESK, PORTRAIT, LANDSCAPE = (1280, 800), (390, 844), (844, 390)
WIDE = encode_image(np.full((360, 640, 3), 100, np.uint8), ".jpg")
FELT = {"force_n": 12.4, "stop_force_n": 30.0, "gripper": 0.25, "box_m": 0.104}
DRIVING = {"driver": "human", "owner": "the console", **FELT}
ASKING = {
    **{"paused": "the arm's guard has stopped it", "question": "estop: Enter confirms it"},
    **{"yes": "ack", "not_now": "pose is stale"},
}
SEVERAL = [*ACTORS, {**ACTORS[0], "name": "third", "fresh": False}]
"""The driven actor, another one with a picture, and one without."""
STATES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "policy": ("The policy drives", {"driver": "policy"}, TRAINING),
    "driving": (
        "You drive",
        DRIVING,
        {**TRAINING, "advice": "correct briefly: " + "a long advice " * 6},
    ),
    "stopped": ("Stopped", {"stopped": "stopped by the operator"}, TRAINING),
    "question": ("Holding", ASKING, TRAINING),
    "several": ("You drive", {**DRIVING, "actor": "left", "actors": SEVERAL}, TRAINING),
    "several, asking": (
        "Holding",
        {**ASKING, "actor": "left", "actors": [{**each, **ASKING} for each in SEVERAL]},
        TRAINING,
    ),
    "pair": ("You drive the left arm", {**DRIVING, "arms": 2}, TRAINING),
    "collecting": ("You drive", DRIVING, COLLECTING),
    "recording": ("Ready", {"last": "success"}, RECORDING),
}
"""Headline, state and progress; successive headlines differ, and a page never leaves a session."""
LABELLED = ("policy", "driving", "several", "pair")
"""States in which all labels are visible without scrolling."""
SILENT = "right SpaceMouse: Input/output error (is it plugged in?)"
UPRIGHT_STATES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "resetting": ("Resetting the scene", {"driver": "script"}, TRAINING),
    "paused": ("Holding", {"paused": "the gamepad pushed the same way for 60 s"}, TRAINING),
    "car": ("You drive", {**DRIVING, **dict.fromkeys(FELT)}, TRAINING),
    "silent": ("Holding", {"driver": "human", "silent": SILENT}, TRAINING),
    "between": ("Between two episodes", {"last": "device lost"}, TRAINING),
    "no message": ("Actor not reachable", {"fresh": False}, TRAINING),
}
"""States that are shown only on a phone upright, where there is the least room."""


@pytest.fixture(autouse=True)
def _short_period(monkeypatch: pytest.MonkeyPatch) -> None:
    """Show new progress at once, not within a second."""
    monkeypatch.setattr(server, "PROGRESS_PERIOD_S", server.STATE_PERIOD_S)


class Box(NamedTuple):
    """A rectangle on the page, in CSS pixels."""

    left: float
    top: float
    right: float
    bottom: float

    def overlaps(self, other: Box) -> bool:
        across = min(self.right, other.right) - max(self.left, other.left)
        down = min(self.bottom, other.bottom) - max(self.top, other.top)
        return across > 0.5 and down > 0.5

    def contains(self, other: Box) -> bool:
        return (
            self.left - 0.5 <= other.left
            and self.top - 0.5 <= other.top
            and other.right <= self.right + 0.5
            and other.bottom <= self.bottom + 0.5
        )


async def boxes(page: Page, selector: str) -> list[Box]:
    """Return the rectangles of all visible elements that match a selector."""
    script = (
        f"[...document.querySelectorAll('{selector}')].map((each) => each.getBoundingClientRect())"
        ".filter((box) => box.width > 0).map((box) => [box.left, box.top, box.right, box.bottom])"
    )
    return [Box(*each) for each in await page.run(script)]


async def resize(page: Page, size: tuple[int, int]) -> Box:
    """Set the window size and scroll to the top; return the rectangle of the window."""
    width, height = size
    phone = min(size) < 600
    await page.call(
        "Emulation.setDeviceMetricsOverride",
        width=width,
        height=height,
        deviceScaleFactor=1,
        mobile=phone,
    )
    if phone:
        await page.call("Emulation.setTouchEmulationEnabled", enabled=True)
    await page.run("document.querySelector('main').scrollTo(0, 0)")
    await page.drawn()
    return Box(0, 0, width, height)


UNREADABLE = """
(() => {
  const numbers = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const luminance = (colour) => {
    const [r, g, b] = colour.map((part) => (part / 255) ** 2.2);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b + 0.05;
  };
  const behind = (each) => {
    const [r, g, b, a = 1] = numbers(getComputedStyle(each).backgroundColor);
    return a > 0.5 ? [r, g, b] : behind(each.parentElement);
  };
  return [...document.querySelectorAll("body *")].filter((each) => {
    const text = [...each.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    if (!text || !each.checkVisibility()) return false;
    const ink = numbers(getComputedStyle(each).color).slice(0, 3);
    const [dim, bright] = [ink, behind(each)].map(luminance).sort((a, b) => a - b);
    return bright / dim < 3;
  }).map((each) => each.textContent);
})()
"""


CROPPED = """
[...document.querySelectorAll("button")].filter(
  (each) => each.scrollWidth > each.clientWidth + 1 || each.scrollHeight > each.clientHeight + 1
).map((each) => each.textContent).filter((text) => text.trim())
"""


async def check_texts(page: Page) -> None:
    """Check that no button crops its text, and that light and dark colours can be read."""
    papers = set()
    assert await page.run(CROPPED) == []
    for dark in (False, True):
        await page.show(dark)
        papers.add(await page.run("getComputedStyle(document.body).backgroundColor"))
        assert await page.run(UNREADABLE) == []
    assert len(papers) == 2, "dark and light colours are the same"


TWO_PICTURES = "document.querySelectorAll('#views figure[data-aspect]').length === 2"


@cache
def scene() -> list[Picture]:
    """Return pictures of a simulated scene from its cameras."""
    task = PickCube()
    arm = SimArm(task.scene, task.config)
    arm.reset(0)
    with closing(plugins.make_renderer(arm)) as renderer:
        drawn = {name: renderer.frame(name, *SCENE_SIZE) for name in ("front", "wrist")}
    return [Picture(name, 1, encode_image(image, ".jpg")) for name, image in drawn.items()]


async def enter_with_two_pictures(page: Page, here: Site, second: bytes = b"") -> None:
    front, wrist = scene()
    shown = [front, wrist._replace(jpeg=second or wrist.jpeg), front._replace(name="@right")]
    here.backend.pictures = lambda: shown  # type: ignore[method-assign]
    await enter(page, here)
    await page.until(TWO_PICTURES)


at_each_size = pytest.mark.parametrize(
    "size", [DESK, PORTRAIT, LANDSCAPE], ids=["desktop", "portrait", "landscape"]
)


@at_each_size
def test_pictures_and_pad_fit_window_and_stop_button_stays_free(
    address: str, size: tuple[int, int]
) -> None:
    states = (UPRIGHT_STATES if size == PORTRAIT else {}) | STATES

    async def check() -> None:
        async with tab(address) as page:
            async with site() as here:
                await look(page, here)
            await page.says("Not connected")
            await check_texts(page)
            assert not await boxes(page, "main button:enabled"), "a button does nothing"
            old = "getComputedStyle(document.getElementById('views')).opacity"
            assert float(await page.run(old)) < 1, "old pictures look like new ones"

    async def look(page: Page, here: Site) -> None:
        show_state(here, {"driver": "policy"})
        await enter_with_two_pictures(page, here)
        await page.take()
        for name, (headline, state, progress) in states.items():
            show_state(here, state, progress)
            await page.says(headline)
            await page.reads("advice", progress["advice"])
            window = await resize(page, size)
            await check_texts(page)
            await _check_stop_button_is_free(page, window)
            await _check_pictures_and_pad_are_visible(page, window)
            assert bool(await boxes(page, "#hint, #phone, .row kbd")) == (size == DESK)
            (main,) = await boxes(page, "main")
            pressed = "#marks button, #guard button" + ", #labels button" * (name in LABELLED)
            for button in await boxes(page, pressed):
                assert main.contains(button), "a button needs scrolling"
            for card in await boxes(page, "#actors button:not(.here):not(:has([src]))"):
                assert card.bottom - card.top < 80, "a card has a gap for a picture it lacks"
            for panel in await boxes(page, "#session, #numbers"):
                assert panel.bottom - panel.top > 40, "a panel is squeezed"
        here.backend.answers["estop"] = SerlError("guard: the guard does not answer")
        show_state(here, {"stopped": "stopped by the operator"})
        await page.open(here.own)
        await page.until(TWO_PICTURES)
        await page.take()
        await page.hit("Escape")
        await page.reads("alarm", "NOT STOPPED")
        await page.says("The arm may move")
        await check_texts(page)
        await _check_stop_button_is_free(page, window)
        show_state(here, {"driver": "policy"})
        await page.hit("KeyT")
        await page.reads("lease", "Take the controls")
        other = await operator(here)
        await page.reads("lease", "Another page has the controls")
        await check_texts(page)
        await other.close()
        await page.reads("lease", "Take the controls")
        await page.take()

    asyncio.run(check())


async def _check_stop_button_is_free(page: Page, window: Box) -> None:
    """Check that STOP is fully visible, covers nothing while scrolling, and can be clicked."""
    for place in ("0", "document.querySelector('main').scrollHeight"):
        await page.run(f"document.querySelector('main').scrollTo(0, {place})")
        (stop,) = await boxes(page, "#estop")
        assert window.contains(stop)
        assert stop.bottom - stop.top >= 44, "too small for a thumb"
        for other in await boxes(page, "header, header *, #alarm, main"):
            assert not stop.overlaps(other)
        hit = f"document.elementFromPoint({stop.left + 3}, {(stop.top + stop.bottom) / 2}).id"
        assert await page.run(hit) == "estop"
        assert await page.run("document.documentElement.scrollHeight") <= window.bottom
    await page.run("document.querySelector('main').scrollTo(0, 0)")


async def _check_pictures_and_pad_are_visible(page: Page, window: Box) -> None:
    """Check that both pictures and the whole pad are in the window and do not overlap."""
    pictures, pad = await boxes(page, "#views img"), await boxes(page, "#pad button")
    (main,) = await boxes(page, "main")
    assert len(pictures) == 2
    assert len(pad) == 10
    shown = [*pictures, *pad, *await boxes(page, "#lead button, #arms button")]
    for index, box in enumerate(shown):
        assert main.contains(box), "outside the visible part of the page"
        assert window.contains(box)
        assert not any(box.overlaps(other) for other in shown[index + 1 :])
    front, wrist = pictures
    assert front.right <= wrist.left
    assert (front.top, front.bottom) == pytest.approx((wrist.top, wrist.bottom), abs=1)
    for box in pictures:
        assert (box.right - box.left) / (box.bottom - box.top) == pytest.approx(4 / 3, rel=0.02)
        (stage,) = await boxes(page, "#stage")
        assert stage.contains(box), "a picture is cropped"
    if window.right >= DESK[0]:
        assert front.right - front.left >= 480
    if window.right < DESK[0]:
        assert min(box.bottom - box.top for box in pad) >= 44


@at_each_size
def test_door_crop_report_and_film_fit_window(
    address: str, tmp_path: Path, size: tuple[int, int]
) -> None:
    wrist, report = "#views [data-camera=wrist]", tmp_path / "report.html"
    film = film_of(scene()[0].jpeg)
    report.write_text("<h1>50 of 50 trials</h1>")

    async def check() -> None:
        async with site() as here, tab(address) as page:
            await page.open(here.own)
            window = await resize(page, size)
            await check_texts(page)
            for box in await boxes(page, "#door h1, #door input, #door button"):
                assert window.contains(box)
            await page.unlock("x" * 43)
            await page.reads("refused", "This is not the token of this console")
            await check_texts(page)
            (refusal,) = await boxes(page, "#refused")
            assert window.contains(refusal)
            cropped = {**TRAINING, "crops": {"wrist": [0.0, 0.0, 1.0, 1.0]}}
            show_state(here, {"driver": "policy"}, cropped)
            await enter_with_two_pictures(page, here)
            await page.take()
            await page.until(f"!document.querySelector('{wrist} .crop button').disabled")
            await page.click_on(f"{wrist} .crop button")
            await page.drag(wrist, (0.2, 0.3), (0.9, 0.8))
            await check_texts(page)
            (picture,) = await boxes(page, wrist)
            tools = await boxes(page, f"{wrist} .crop button, {wrist} .frame")
            assert len(tools) == 3, "no crop is drawn"
            assert all(picture.contains(box) and window.contains(box) for box in tools)
            await _check_stop_button_is_free(page, window)
            here.backend.page = report
            show_state(here, {"fresh": False, "over": True}, TRAINING)
            await page.until("!document.getElementById('after').hidden")
            await page.run("document.getElementById('after').scrollIntoView()")
            await check_texts(page)
            (main,), (shown,) = await boxes(page, "main"), await boxes(page, "#report")
            assert shown.overlaps(main)
            assert shown.right - shown.left > 0.9 * (main.right - main.left)
            await _check_stop_button_is_free(page, window)
            here.backend.films = {f"{number}-000000": film for number in range(1, 6)}
            show_state(here, {}, RECORDING)
            await page.until("!document.getElementById('session').hidden")
            new = {"name": "5-000000", "place": "kept", "film": True}
            show_state(here, {"last": "success"}, {**RECORDING, "episodes": [*EPISODES, new]})
            await page.until("document.getElementById('film-view').naturalWidth > 0")
            await check_texts(page)
            (picture,), (main,) = await boxes(page, "#film"), await boxes(page, "main")
            choice = await boxes(page, "#film .choice button")
            assert len(choice) == 2
            assert all(picture.contains(box) and main.contains(box) for box in choice)
            assert len(await boxes(page, "#views img")) == (3 if size == DESK else 1)
            await _check_stop_button_is_free(page, window)

    asyncio.run(check())


def test_phone_panel_with_qr_code_fits_window(address: str, tmp_path: Path) -> None:
    lab = "127.0.0.2"
    certificate = make_certificate(lab, tmp_path)

    async def check() -> None:
        async with site(lab, certificate) as here, tab(address) as page:
            show_state(here, {"driver": "policy"})
            await enter_with_two_pictures(page, here)
            window = await resize(page, DESK)
            await page.click("phone")
            await page.until("document.getElementById('qr').naturalWidth > 0")
            await check_texts(page)
            shown = await boxes(page, "#qr, #phone-says")
            assert len(shown) == 2
            assert all(window.contains(box) for box in shown)
            await _check_stop_button_is_free(page, window)

    asyncio.run(check())


def test_pictures_share_height_and_click_shows_one_alone(
    address: str,
) -> None:
    async def check() -> None:
        async with site() as here, tab(address) as page:
            show_state(here, DRIVING)
            await enter_with_two_pictures(page, here, WIDE)
            for size in (DESK, PORTRAIT, LANDSCAPE):
                await resize(page, size)
                front, wrist = await boxes(page, "#views img")
                assert front.bottom - front.top == pytest.approx(wrist.bottom - wrist.top, abs=1)
                for box, aspect in ((front, 480 / 360), (wrist, 640 / 360)):
                    ratio = (box.right - box.left) / (box.bottom - box.top)
                    assert ratio == pytest.approx(aspect, rel=0.02)
            await resize(page, PORTRAIT)
            await page.click_on("#views img")
            (alone,) = await boxes(page, "#views img")
            assert alone.right - alone.left > 1.8 * (front.right - front.left) * 390 / 844
            await page.click_on("#views img")
            assert len(await boxes(page, "#views img")) == 2

    asyncio.run(check())
