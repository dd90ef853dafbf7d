"""The console page in Chromium drives two simulated arms, one at a time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import numpy as np
import pytest

from serl.sim.bimanual import SimPair
from serl.tasks.handover import Handover
from serl.teleop import mapping
from serl.teleop.device import DeviceReport
from serl.teleop.mapping import AXES, BUTTONS, Wish, split_wish, to_joystick
from serl.teleop.operator import Operator, OperatorConfig

from .browser import CHROMIUM, Page
from .conftest import enter, show_state, with_page
from .site import Site, settled
from .test_page import PAD

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="NO PAGE TESTED: there is no Chromium")

PATIENT = OperatorConfig(stale_s=0.5, lost_s=10.0)  # test machines are busy
DRIVING = {"driver": "human", "owner": "the console", "arms": 2}
STILL = (0.0,) * len(AXES)
FORWARD = (1.0, *STILL[1:])
PRESSED = (
    "[...document.querySelectorAll('#arms [aria-pressed=true]')].map((each) => each.dataset.arm)"
)
MOVED_M, STANDS_M = 0.02, 0.002


class Part:
    """Device that reports a page's input for one arm, as the actor receives it."""

    name = "the console"
    report: DeviceReport | None = None

    def receive(self, wish: Wish) -> None:
        axes, buttons = to_joystick(wish)
        down = frozenset(name for name, held in zip(BUTTONS, buttons, strict=True) if held)
        axis_of = dict(zip(AXES, axes, strict=True))
        self.report = DeviceReport(axis_of, down, (), time.monotonic())

    def read(self) -> DeviceReport | None:
        return self.report

    def close(self) -> None:
        pass


class DrivenPair:
    """Two simulated arms that a page drives; they stand while its hands are off."""

    def __init__(self, here: Site) -> None:
        task = Handover()
        self._here, self._parts = here, (Part(), Part())
        self.arms = SimPair(task.scene, task.config)
        self.arms.reset(0)
        spec, name = self.arms.action_spec, "the console"
        self._person = Operator(self._parts, mapping.MAPPING, PATIENT, spec, name=name)
        self.steps = 0
        here.backend.drive = self._drive  # type: ignore[method-assign]

    def _drive(self, operator_input: Wish) -> None:
        for part, wish in zip(self._parts, split_wish(operator_input, 2), strict=True):
            part.receive(wish)

    def state(self, name: str) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
        """Return an array of the state of both arms, left before right."""
        state = self.arms.observe().state
        return np.concatenate([state[f"left_{name}"], state[f"right_{name}"]])

    def moved_m(self, start: np.ndarray[tuple[int], np.dtype[np.float32]]) -> tuple[float, float]:
        """Return the distance of each tool from its start."""
        left, right = np.hsplit(self.state("tcp_pose") - start, 2)
        return float(np.linalg.norm(left[:3])), float(np.linalg.norm(right[:3]))

    async def rest(self) -> None:
        """Wait for some steps, in which the arms reach their targets."""
        since = self.steps
        await settled(lambda: self.steps > since + 20)

    async def act(self) -> None:
        """Step the arms until cancelled, faster than real time."""
        spec = self.arms.action_spec
        while True:
            action = self._person()
            self.arms.act(np.zeros(spec.shape, np.float32) if action is None else action)
            self.arms.advance(0.1)
            self.steps += 1
            show_state(self._here, {**DRIVING, "driver": "policy" if action is None else "human"})
            await asyncio.sleep(0.02)


@asynccontextmanager
async def moving(here: Site) -> AsyncIterator[DrivenPair]:
    """Step two simulated arms during the block."""
    pair = DrivenPair(here)
    acting = asyncio.create_task(pair.act())
    await settled(lambda: pair.steps > 10)
    yield pair
    acting.cancel()


@with_page
async def test_page_moves_one_arm_of_pair_while_other_stands(page: Page, here: Site) -> None:
    async with moving(here) as pair:
        await enter(page, here)
        await page.take()
        for side, key in enumerate(("KeyQ", "KeyE")):
            await pair.rest()  # hands are off and the arms stand
            await page.hit(key)
            await drive(page, pair, side)
        await page.says("The policy drives")
    assert page.said == []


async def drive(page: Page, pair: DrivenPair, side: int) -> None:
    """Move one arm and close its gripper; check that the other one does neither."""
    start, grippers = pair.state("tcp_pose"), pair.state("gripper")
    await page.key("KeyW")
    await page.says(f"You drive the {('left', 'right')[side]} arm")
    await settled(lambda: pair.moved_m(start)[side] > MOVED_M)
    await page.key("KeyW", "keyUp")
    await page.key("KeyC")
    await settled(lambda: abs(pair.state("gripper") - grippers)[side] > 0.2)
    await page.key("KeyC", "keyUp")
    assert pair.moved_m(start)[1 - side] < STANDS_M
    assert abs(pair.state("gripper") - grippers)[1 - side] < 0.05


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
    await page.key("KeyW")
    await settled(lambda: sent(*STILL, *FORWARD))
    await page.key("KeyW", "keyUp")

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
