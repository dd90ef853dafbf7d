"""What an actor makes of its guard's words: those of the guard itself, without its process."""

from __future__ import annotations

from diagnostic_msgs.msg import DiagnosticStatus

from serl.guard.guard import GuardState
from serl.ros.arm.guard_client import GuardReport, parse_report

from ...support.guarding import START, Loop, armed, driving


def report(loop: Loop) -> GuardReport:
    """As its node tells it."""
    state, cause = loop.guard.state, loop.guard.cause
    return parse_report(DiagnosticStatus(message=f"{state}: {cause}" if cause else str(state)))


def test_a_guard_waits_for_whoever_begins_to_drive() -> None:
    loop = armed()
    assert report(loop).waits, "armed"
    causes = {loop.guard.cause}
    for mode, target in ((None, None), ("hold", None), ("policy", None), ("policy", START)):
        loop.mode, loop.target = mode, target
        loop.tick(15)
        causes.add(loop.guard.cause)
        assert report(loop).waits == (target is None), loop.guard.cause
    assert report(loop).allows_motion
    loop.target = None
    loop.ticks_until(GuardState.HOLD)
    assert report(loop).waits, loop.guard.cause
    causes.add(loop.guard.cause)
    assert len(causes) == 5, causes  # with the empty one, of an arm that moves


def test_a_guard_that_holds_for_another_reason_waits_for_nobody() -> None:
    rests = driving("teleop")
    rests.mode = "policy"
    two = driving()
    two.guard.heartbeat("b policy 1", two.message_info())
    blind, joint = driving(), driving()
    blind.measured.remove("joints")
    joint.joints = [2.72, *[0.0] * 6]
    for loop in (rests, two, blind, joint):
        loop.ticks_until(GuardState.HOLD)
        assert not report(loop).waits, loop.guard.cause
        assert not report(loop).allows_motion
    stopped = driving()
    stopped.guard.stop("armed")
    assert not report(stopped).waits
