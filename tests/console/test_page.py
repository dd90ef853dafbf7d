"""The console page in Chromium: active controller, reason for a hold, refused commands."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from serl.console.access import new_token
from serl.console.backend import Picture
from serl.console.messages import CropOrder, KeepOrder, Selection
from serl.errors import SerlError
from serl.system.video import encode_image
from serl.teleop.mux import SIMULATED

from .browser import CHROMIUM, LIMIT_S, Page, tab
from .conftest import (
    ACTORS,
    COLLECTING,
    EPISODES,
    RECORDING,
    TRAINING,
    enter,
    film_of,
    show_state,
    with_page,
)
from .site import Site, settled, site

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="NO PAGE TESTED: there is no Chromium")

WORDS: list[tuple[dict[str, Any], str, str]] = [
    ({"driver": "human"}, "No operator input", "episode 3, step 12"),
    ({"driver": "human", "owner": SIMULATED}, "A simulated human corrects", "step 12"),
    ({"driver": "script"}, "Resetting the scene", "step 12"),
    ({"driver": "policy"}, "The policy drives", "episode 3, step 12"),
    ({"driver": "human", "owner": "the device"}, "The device drives", "episode 3, step 12"),
    (
        {"driver": "human", "owner": "the pair of devices"},
        "The pair of devices drives",
        "episode 3, step 12",
    ),
    (
        {"driver": "human", "silent": "the console fell silent"},
        "Holding",
        "the console fell silent; release the keys or the device, then take over again",
    ),
    (
        {"driver": "human", "silent": "right SpaceMouse: Input/output error (is it plugged in?)"},
        "Holding",
        "right SpaceMouse: Input/output error (is it plugged in?); release the keys or the device",
    ),
    (
        {"paused": "the gamepad pushed the same way for 60 s"},
        "Holding",
        "the gamepad pushed the same way for 60 s. Go on when it may move again.",
    ),
    (
        {"stopped": "stopped by the operator"},
        "Stopped",
        "by the operator. Release the actor when it is safe to move.",
    ),
    ({"last": "device lost"}, "Between two episodes", "last episode: device lost"),
    ({"fresh": False}, "Actor not reachable", "it sends no messages"),
    ({"fresh": False, "over": True}, "Finished", "the training is complete"),
]


@with_page
async def test_page_shows_active_controller_and_reason_for_hold(page: Page, here: Site) -> None:
    show_state(here, {})
    await enter(page, here)
    for state, who, why in WORDS:
        show_state(here, state)
        await page.reads("who", who)
        await page.reads("why", why)
        assert not await page.run("document.getElementById('estop').disabled")
    assert page.said == [], "the browser reported errors"


def test_second_page_cannot_drive_but_can_estop(address: str) -> None:
    async def check() -> None:
        async with site() as here, tab(address) as first, tab(address) as second:
            show_state(here, {"driver": "policy"})
            await enter(first, here)
            await enter(second, here)
            await first.take()
            await second.reads("lease", "Another page has the controls")
            await second.hit("KeyT")
            await second.key("KeyW")
            await second.hit("Enter")
            await second.reads("answer", "take over first")
            await second.key("KeyW", "keyUp")
            await second.hit("Escape")
            await settled(lambda: here.backend.commands == ["estop"])
            assert not any(wish.hands for wish in here.backend.driven)
            await first.hit("KeyT")
            await second.reads("lease", "Take the controls")
            await second.hit("Enter")
            await second.reads("answer", "take over first")
            assert here.backend.commands == ["estop"], "the page took the controls by itself"

    asyncio.run(check())


@with_page
async def test_page_shows_refused_command_and_ignores_keys_without_button(
    page: Page, here: Site
) -> None:
    show_state(here, {})
    here.backend.answers["success"] = SerlError("not heard: no episode runs")
    await enter(page, here)
    await page.take()
    await page.hit("Enter")
    await page.reads("answer", "not heard: no episode runs")
    await page.hit("Digit1")  # works only in a reward collection
    await page.hit("KeyZ")  # works only in a recording
    await page.hit("KeyN")
    await page.hit("Equal")
    await page.press_on("[data-say=penalty]")
    await page.release()
    commands = ["success", "reset", "reward", "penalty"]
    await settled(lambda: here.backend.commands == commands)
    show_state(here, {"driver": "human", "owner": "the console"}, COLLECTING)
    await page.until("!document.getElementById('marks').hidden")
    show_state(here, {"driver": "script"}, COLLECTING)
    await page.reads("why", "No operator input: label the picture, or drive.")
    for code in ("Enter", "Backspace", "KeyX", "KeyZ", "Equal", "Minus", "Digit0"):
        await page.hit(code)
    await settled(lambda: here.backend.commands == [*commands, "negative"])


@with_page
async def test_alarm_stays_until_estop_reaches_guard(page: Page, here: Site) -> None:
    show_state(here, {"stopped": "stopped by the operator"})  # only the actor received the stop
    here.backend.answers["estop"] = SerlError("guard: the guard does not answer")
    await enter(page, here)
    await page.hit("Escape")
    await page.reads("alarm", "NOT STOPPED")
    await page.reads("answer", "Take the controls")  # the line always shows the next step
    assert "the guard does not answer" in await page.text("alarm")
    assert not await page.run("document.getElementById('alarm').hidden")
    await page.reads("who", "The arm may move")
    here.backend.answers.pop("estop")
    await page.hit("Escape")
    await page.until("document.getElementById('alarm').hidden")
    await page.reads("who", "Stopped")


@with_page
async def test_page_shows_stopping_until_estop_is_answered(page: Page, here: Site) -> None:
    show_state(here, {"stopped": "stopped by the operator"})  # the guard may be frozen
    here.backend.slow["estop"] = asyncio.Event()
    await enter(page, here)
    await page.reads("who", "Stopped")
    await page.hit("Escape")
    await page.reads("who", "Stopping ...")
    await page.run("new Promise((done) => setTimeout(done, 300))")  # several states
    assert await page.text("who") == "Stopping ..."
    await page.reads("alarm", "NOT STOPPED")  # the console hangs
    assert "The console does not answer." in await page.text("alarm")
    here.backend.slow["estop"].set()
    await page.reads("who", "Stopped")
    await page.until("document.getElementById('alarm').hidden")
    await page.reads("go", "Release the actor")


def test_estop_on_disconnected_page_raises_alarm(address: str) -> None:
    async def check() -> None:
        async with tab(address) as page:
            async with site() as here:
                show_state(here, {"driver": "policy"})
                await enter(page, here)
            await page.reads("who", "Not connected")
            await page.hit("Escape")
            await page.reads("alarm", "NOT STOPPED")
            assert "This page is not connected." in await page.text("alarm")

    asyncio.run(check())


@with_page
async def test_lease_holder_confirms_guard_question_by_button(page: Page, here: Site) -> None:
    stop = "estop: the service estop: Enter confirms that it is safe to continue"
    arming = "the guard is disarmed: Enter arms it; keep clear, and a hand at the stop"
    show_state(here, {"question": stop, "yes": "ack", "not_now": ""})
    await enter(page, here)
    await page.reads("guard-says", "Estop: the service estop.")
    assert await page.run("document.getElementById('yes').disabled")
    await page.take()
    await page.until("!document.getElementById('yes').disabled")
    await page.click("yes")
    await settled(lambda: here.backend.commands == [f"yes: {stop}"])
    show_state(here, {"question": arming, "yes": "arm", "not_now": "pose is stale"})
    await page.reads("guard-says", "The guard waits: pose is stale.")
    await page.reads("yes", "Arm the guard")
    await page.until("document.getElementById('yes').disabled")
    show_state(here, {})
    await page.until("document.getElementById('guard').hidden")


@with_page
async def test_held_buttons_repeat_marks_and_motion(page: Page, here: Site) -> None:
    show_state(here, {"driver": "human", "owner": "the console"}, COLLECTING)
    await enter(page, here)
    await page.take()
    await page.press_on("[data-say=positive]")
    await settled(lambda: len(here.backend.commands) >= 4)
    await page.release()
    await page.press_on("#pad .turn")
    await settled(lambda: any(wish.motion[5] == 1.0 for wish in here.backend.driven))
    await page.release()
    await settled(lambda: not here.backend.driven[-1].hands)
    await page.hit("Digit0")
    await settled(lambda: here.backend.commands[-1] == "negative")
    assert set(here.backend.commands[:-1]) == {"positive"}


PAD = """
window.pad = { index: 0, id: 'Pad (standard)', connected: true, mapping: 'standard',
  axes: [0, -1, 0, 0],
  buttons: [...Array(17)].map((_, index) => ({ pressed: index === 5, value: 0 })) };
navigator.getGamepads = () => [window.pad];
"""


@with_page
async def test_unplugged_gamepad_sends_no_hands_off(page: Page, here: Site) -> None:
    """Check that silence follows, so that the actor holds; hands off would resume the policy."""
    show_state(here, {"driver": "policy"})
    await enter(page, here)
    await page.take()
    await page.run(PAD)
    await settled(lambda: any(wish.hands for wish in here.backend.driven))
    since = len(here.backend.driven)
    await page.run("window.pad = null")
    await page.reads("answer", "the gamepad was disconnected: the robot holds")
    await page.run("new Promise((done) => setTimeout(done, 300))")  # several beats
    assert all(wish.hands for wish in here.backend.driven[since:])


async def drive_by_key(page: Page, here: Site) -> None:
    """Take the controls, and hold a key until the robot is driven."""
    show_state(here, {"driver": "policy"})
    await enter(page, here)
    await page.take()
    await page.key("KeyW")
    await settled(lambda: any(wish.hands for wish in here.backend.driven))


@with_page
async def test_page_without_focus_gives_up_lease_only_if_hands_were_off(
    page: Page, here: Site
) -> None:
    await drive_by_key(page, here)
    since = len(here.backend.driven)
    await page.run("window.dispatchEvent(new Event('blur'))")
    await page.run("new Promise((done) => setTimeout(done, 300))")  # several beats
    assert all(wish.hands for wish in here.backend.driven[since:]), "a message reported hands off"
    await page.key("KeyW", "keyUp")
    await page.until("!document.getElementById('lease').textContent.startsWith('Give')")
    await page.take()
    await settled(lambda: not here.backend.driven[-1].hands)
    await page.run("window.dispatchEvent(new Event('blur'))")
    await page.reads("lease", "Take the controls")


@with_page
async def test_modifier_key_releases_held_keys_and_does_not_prevent_estop(
    page: Page, here: Site
) -> None:
    await drive_by_key(page, here)
    await page.key("ControlLeft", key="Control", modifiers=2)
    await page.key("KeyW", "keyUp", modifiers=2)
    await page.key("ControlLeft", "keyUp", key="Control")
    await settled(lambda: not here.backend.driven[-1].hands)
    show_state(here, {"paused": "paused"})
    await page.until("!document.getElementById('go').hidden")
    await page.key("KeyG", modifiers=2)
    await page.key("Escape", modifiers=1)
    await settled(lambda: here.backend.commands == ["estop"])


@with_page
async def test_page_keeps_nothing_of_the_last_console(page: Page, here: Site) -> None:
    """Enter a training's console by a new address in the tab of a recording that has ended."""
    show_state(here, {}, RECORDING)
    await enter(page, here)
    await page.until("!document.getElementById('session').hidden")
    show_state(here, {"driver": "script"})
    here.token = here.console._gate.token = new_token()
    for socket in set(here.console._pages):
        await socket.close()
    await page.until("!document.getElementById('door').hidden")
    loaded = page.requests.count(f"{here.own}/console.js")
    await page.run(f"location.hash = '#{here.token}'")
    reloaded = settled(lambda: page.requests.count(f"{here.own}/console.js") > loaded)
    await asyncio.wait_for(reloaded, LIMIT_S)
    await page.says("Resetting the scene")
    await page.reads("steps", "7 of 10")
    assert await page.run("document.getElementById('session').hidden")
    assert not await page.run("document.getElementById('numbers').hidden")


@with_page
async def test_page_shows_force_gripper_and_distance_to_box(page: Page, here: Site) -> None:
    felt = {"force_n": 12.4, "stop_force_n": 30.0, "gripper": 0.25, "box_m": 0.104}
    show_state(here, {"driver": "policy", **felt})
    await enter(page, here)
    await page.reads("force-says", "12 of 30 N")
    assert await page.run("[force.value, force.max, gripper.value]") == [12.4, 30, 0.25]
    assert await page.text("box") == "edge of the box 104 mm"
    show_state(here, {"driver": "policy", **felt, "box_m": 0.0, "gripper": None})
    await page.reads("box", "at the edge of the box")
    assert await page.run("document.getElementById('box').className") == "near"
    assert await page.run("document.getElementById('grip').hidden")
    show_state(here, {"driver": "policy", **dict.fromkeys(felt)})  # a car
    await page.until("document.getElementById('feel').hidden")


@with_page
async def test_page_shows_takeovers_and_their_budget(page: Page, here: Site) -> None:
    over = {"takeovers": 7, "human_share": 0.4, "budget_share": 0.26}
    show_state(here, {"driver": "policy"}, {**TRAINING, **over})
    await enter(page, here)
    await page.reads("takeovers", "in 7 takeovers; budget now 26 %")
    await page.until("document.getElementById('human').classList.contains('over')")


SIGNALS = """
window.played = []; window.pulses = [];
const play = HTMLMediaElement.prototype.play;
HTMLMediaElement.prototype.play = async function () {
  await play.call(this);
  window.played.push(this.duration);
};
navigator.vibrate = (pulses) => { window.pulses.push(pulses); return true; };
"""


@with_page
async def test_handover_plays_sound_and_vibrates_once_unless_muted(page: Page, here: Site) -> None:
    show_state(here, {"driver": "policy"})
    await enter(page, here)
    await page.run(SIGNALS)
    await page.click_on("#pad .up")  # browsers play sound only after a click
    show_state(here, {"driver": "human", "owner": "the gamepad"})
    await page.reads("who", "The gamepad drives")
    await page.until("window.played.length === 1 && window.pulses.length === 1")
    show_state(here, {"driver": "human", "owner": "the gamepad", "step": 40})
    await page.reads("why", "step 41")
    show_state(here, {"driver": "policy"})
    await page.reads("who", "The policy drives")
    await page.until("window.played.length === 2 && window.pulses.length === 2")
    await page.click("sound")
    assert await page.text("sound") == "Sound off"
    show_state(here, {"paused": "paused"})
    await page.reads("who", "Holding")
    assert await page.run("[window.played.length, window.pulses.length]") == [2, 2]
    assert await page.run("window.played") == pytest.approx([0.24, 0.24], abs=0.01)
    await page.click("sound")


DARK, LIGHT = (encode_image(np.full((60, 80, 3), grey, np.uint8), ".jpg") for grey in (40, 200))


@with_page
async def test_demonstration_film_is_shown_and_discarded_or_restored(
    page: Page, here: Site
) -> None:
    here.backend.films = {f"{number}-000000": film_of(DARK, LIGHT) for number in range(1, 6)}
    show_state(here, {}, RECORDING)
    await enter(page, here)
    await page.take()
    loaded = "[...document.querySelectorAll('#strip img')].filter((each) => each.naturalWidth)"
    await page.until(f"{loaded}.length === 4")
    assert await page.run("document.getElementById('film').hidden"), (
        "films of earlier episodes are not opened"
    )
    new = {"name": "5-000000", "place": "kept", "film": True}
    show_state(here, {"last": "success"}, {**RECORDING, "episodes": [*EPISODES, new]})
    await page.until("!document.getElementById('film').hidden")
    await page.until("document.getElementById('film-view').naturalWidth === 80")
    await page.click_on("#film-judge")
    await settled(lambda: here.backend.orders == [KeepOrder("5-000000", False)])
    assert await page.run("document.getElementById('film').hidden")
    await page.click_on("#strip .undone")
    await page.reads("film-says", "film: discarded")
    assert await page.text("film-judge") == "Bring back"
    await page.click_on("#film-judge")
    await settled(lambda: here.backend.orders[1:] == [KeepOrder("3-000000", True)])
    await page.click_on("#strip .failures")
    await page.until("document.getElementById('film-judge').hidden")
    show_state(
        here, {"driver": "human", "owner": "the console"}, RECORDING
    )  # the next episode begins
    await page.until("document.getElementById('film').hidden")
    assert page.said == []


@with_page
async def test_region_drawn_with_mouse_sets_camera_crop(page: Page, here: Site) -> None:
    shown = [Picture("front", 1, LIGHT), Picture("wrist", 1, DARK)]
    here.backend.pictures = lambda: shown  # type: ignore[method-assign]
    show_state(here, {"driver": "policy"}, {**TRAINING, "crops": {"wrist": [0.0, 0.0, 1.0, 1.0]}})
    await enter(page, here)
    await page.until("document.querySelectorAll('#views .crop').length === 1")
    wrist = "#views [data-camera=wrist]"
    assert await page.run(f"document.querySelector('{wrist} .crop button').disabled")
    await page.take()
    await page.until(f"!document.querySelector('{wrist} .crop button').disabled")
    await page.click_on(f"{wrist} .crop button")
    await page.drag(wrist, (0.2, 0.1), (0.9, 0.8))
    await page.click_on(f"{wrist} .crop button:last-child")
    await settled(lambda: len(here.backend.orders) == 1)
    order = here.backend.orders[0]
    assert isinstance(order, CropOrder)
    assert order.camera == "wrist"
    assert order.crop == pytest.approx((0.2, 0.1, 0.9, 0.8), abs=0.01)
    await page.reads("answer", "did CropOrder")


@with_page
async def test_page_shows_all_actors_and_selects_one_to_drive(page: Page, here: Site) -> None:
    shown = [
        Picture("left/front", 1, LIGHT),
        Picture("left/wrist", 1, LIGHT),
        Picture("@right", 2, DARK),
    ]
    here.backend.pictures = lambda: shown  # type: ignore[method-assign]
    show_state(here, {"driver": "policy", "actor": "left", "actors": ACTORS})
    await enter(page, here)
    await page.reads("estop", "STOP ALL")
    await page.reads("actors", "stopped")
    card = "document.querySelector('#actors [data-actor=right]')"
    await page.until(f"{card}.querySelector('img').naturalWidth === 80")
    assert await page.run(f"{card}.disabled"), "enabled without the lease"
    cameras = "[...document.querySelectorAll('#views [data-camera]')].map((each) => each.innerText)"
    assert await page.run(cameras) == ["left/front", "left/wrist"]
    await page.take()
    await page.until(f"!{card}.disabled")
    await page.click_on("#actors [data-actor=right]")
    await settled(lambda: here.backend.orders == [Selection("right")])
    show_state(here, {"stopped": "stopped by the operator", "actor": "right", "actors": ACTORS})
    shown[:] = [Picture("right/front", 3, DARK), Picture("@left", 4, LIGHT)]
    await page.until("document.querySelector('#actors [data-actor=left] img').naturalWidth === 80")
    await page.until(f"{card}.className === 'here' && ({cameras}).join() === 'right/front'")
