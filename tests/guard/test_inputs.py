"""How old the guard takes what it hears of a person's device to be."""

from __future__ import annotations

import pytest

from serl.guard.guard import GuardState

from ..support.guarding import driving


@pytest.mark.parametrize("busy", [False, True])
def test_a_silent_device_is_noticed_in_the_tick_after_its_deadline(busy: bool) -> None:
    """The guard counts on from the last beat, which an actor that is busy sends late."""
    loop = driving("teleop")
    loop.device_s = loop.now_s
    loop.tick(4)
    if busy:
        loop.mode = None
    loop.ticks_until(GuardState.HOLD)
    assert loop.now_s - loop.device_s == pytest.approx(0.115, abs=0.006)
    assert loop.guard.cause == "the person's device is silent"
    loop.ticks_to_rest()
    loop.mode, loop.device_s = "teleop", None
    loop.ticks_until(GuardState.TELEOP)


def test_a_policy_has_no_device() -> None:
    loop = driving("policy")
    loop.device_s = loop.now_s
    loop.tick(100)
    assert loop.guard.state == "policy"
