"""The console page in Chromium drives two arms, one at a time."""

from __future__ import annotations

from functools import partial

import pytest

from serl.teleop.mapping import AXES

from .browser import CHROMIUM, Page
from .conftest import enter, show_state, with_page
from .site import Site, settled
from .test_page import PAD

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="NO PAGE TESTED: there is no Chromium")

DRIVING = {"driver": "human", "owner": "the console", "arms": 2}
STILL = (0.0,) * len(AXES)
FORWARD = (1.0, *STILL[1:])
CLOSE = (*STILL[:-1], -1.0)
PRESSED = (
    "[...document.querySelectorAll('#arms [aria-pressed=true]')].map((each) => each.dataset.arm)"
)


@with_page
async def test_key_touch_or_gamepad_selects_arm_and_held_input_moves_neither(
    page: Page, here: Site
) -> None:
    def sent(*motion: float) -> bool:
        wish = here.backend.driven[-1]
        return wish.hands and wish.motion == motion

    show_state(here, {**DRIVING, "arms": 1})
    await enter(page, here)
    await page.take()
    await page.hit("KeyE")
    await page.key("KeyW")
    await settled(lambda: sent(*FORWARD))
    await page.key("KeyW", "keyUp")
    await page.says("You drive")
    assert await page.run("document.getElementById('arms').hidden"), (
        "the selection of arms is shown for one arm"
    )

    felt = {"left": {"gripper": 0.2, "box_m": 0.104}, "right": {"gripper": 0.8, "box_m": 0.0}}
    show_state(here, {**DRIVING, "by_arm": felt})
    await page.says("You drive the left arm")
    await page.reads("box", "edge of the box 104 mm")
    await page.key("KeyW")
    await settled(lambda: sent(*FORWARD, *STILL))
    await page.hit("KeyE")
    await page.says("You drive the right arm")
    assert await page.run(PRESSED) == ["right"]
    assert await page.text("box") == "at the edge of the box"
    assert await page.run("document.getElementById('gripper').value") == 0.8
    await settled(lambda: sent(*STILL, *STILL))
    await beats(here)
    assert sent(*STILL, *STILL), "the held key moves an arm"
    await page.key("KeyW", "keyUp")
    for key, motion in (("KeyW", FORWARD), ("KeyC", CLOSE)):
        await page.key(key)
        await settled(partial(sent, *STILL, *motion))
        await page.key(key, "keyUp")

    await touch(page, "#pad .up")
    await settled(lambda: sent(*STILL, *FORWARD))
    await touch(page, "#pad .up", "#arms [data-arm=left]")
    await page.says("You drive the left arm")
    await settled(lambda: sent(*STILL, *STILL))
    await touch(page)
    await beats(here)
    await touch(page, "#pad .up")
    await settled(lambda: sent(*FORWARD, *STILL))
    await touch(page)

    await page.run(PAD)
    await settled(lambda: sent(*FORWARD, *STILL))
    await page.run("window.pad.buttons[15].pressed = true")
    await page.says("You drive the right arm")
    await beats(here)
    assert sent(*STILL, *STILL), "the held stick moves an arm"
    await page.run("window.pad.axes[1] = 0")
    await beats(here)
    await page.run("window.pad.axes[1] = -1")
    await settled(lambda: sent(*STILL, *FORWARD))
    await page.run("window.pad.buttons[5].pressed = false")
    await settled(lambda: not here.backend.driven[-1].hands)
    await page.hit("Escape")
    await settled(lambda: here.backend.commands == ["estop"])


@with_page
async def test_selecting_arm_keeps_control_but_does_not_take_over(page: Page, here: Site) -> None:
    show_state(here, {**DRIVING, "driver": "policy"})
    await enter(page, here)
    await page.until("document.querySelector('#arms button').disabled")
    await page.hit("KeyE")
    assert await page.run(PRESSED) == ["left"], "selected without the lease"
    await page.take()
    await page.hit("KeyE")
    await page.until(f"({PRESSED}).join() === 'right'")
    await beats(here)
    assert not any(wish.hands for wish in here.backend.driven), "the selection took over"
    show_state(here, DRIVING)
    await page.says("You drive the right arm")
    await page.hit("KeyQ")
    await settled(lambda: any(wish.hands for wish in here.backend.driven))
    assert not any(any(wish.motion) for wish in here.backend.driven)
    await settled(lambda: not here.backend.driven[-1].hands)


async def beats(here: Site) -> None:
    """Wait for some drive messages of the page."""
    since = len(here.backend.driven)
    await settled(lambda: len(here.backend.driven) > since + 3)


async def touch(page: Page, *selectors: str) -> None:
    """Touch these elements with one finger each; lift all other fingers."""
    points = []
    for number, selector in enumerate(selectors):
        x, y = await page.run(
            f"(() => {{ const box = document.querySelector('{selector}').getBoundingClientRect();"
            "return [box.x + box.width / 2, box.y + box.height / 2]; })()"
        )
        points.append({"x": x, "y": y, "id": number})
    kind = "touchStart" if points else "touchEnd"
    await page.call("Input.dispatchTouchEvent", type=kind, touchPoints=points)
