"""Parsing of guard reports by an actor, with a real `Guard` in the same process."""

from __future__ import annotations

from diagnostic_msgs.msg import DiagnosticStatus

from serl.guard.guard import GuardState
from serl.ros.arm.guard_client import GuardReport, parse_report

from ...support.guarding import START, Loop, armed, driving


def report(loop: Loop) -> GuardReport:
    """Parse the report that the guard's node would publish."""
    state, cause = loop.guard.state, loop.guard.cause
    return parse_report(DiagnosticStatus(message=f"{state}: {cause}" if cause else str(state)))


def test_guard_report_waits_until_a_controller_sends_targets() -> None:
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
    assert len(causes) == 5, causes  # including the empty cause of a moving arm


def test_guard_report_does_not_wait_during_hold_for_a_fault() -> None:
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
