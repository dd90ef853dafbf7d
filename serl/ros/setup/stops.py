"""The steps that check takeover and both emergency stops while the arm swings slowly."""

from __future__ import annotations

import math
import time

import numpy as np

from serl.clock import WallClock
from serl.errors import SerlError
from serl.geometry import Vector, add, subtract
from serl.guard.config import LATCHED, GuardState
from serl.motion import Pose
from serl.ros.setup.arm import RATE_HZ, THERE_M, SetupArm
from serl.ros.setup.checks import StepFailed, ask_to_begin, ask_yes_no
from serl.ros.setup.session import SetupSession
from serl.types import Action

_SWING_M = 0.015
_LIMIT_S = 60.0
_WATCHED_S = 1.0
_LEAST_LOOKS = 5
_TRAVEL_M = 0.02
_STILL_M = 0.005
_STEERED_M = 0.01
_SILENT, _LEFT = "the arm fell silent", "the arm does not follow"
_OWN = (_SILENT, "the arm reports ")
"""Prefixes of the causes that a guard reports after a stop by the arm's own button."""


class Swing:
    """A policy that swings the tool along y about a position."""

    def __init__(self, arm: SetupArm, centre: Vector) -> None:
        self._arm = arm
        self._goals = [add(centre, (0.0, way, 0.0)) for way in (_SWING_M, -_SWING_M)]

    def __call__(self, here: Pose) -> Action:
        """Return the action for a measured pose."""
        if math.dist(here.position, self._goals[0]) <= THERE_M:
            self._goals.reverse()
        return self._arm.towards(self._goals[0])


def takeover(session: SetupSession) -> str:
    """Check that a person can take over the swinging arm, and release it again."""
    arm, people = session.arm, session.people
    centre = _centre(session)
    swing, steered = Swing(arm, centre), _TakeoverMotion()
    until_s = time.monotonic() + _LIMIT_S
    session.asker.show(
        f"The arm swings. Take over within {_LIMIT_S:g} s with a device or by the topics "
        f"{arm.place.prefix}/joy or {arm.place.prefix}/teleop/twist, steer 1 cm or more, and "
        "release."
    )
    people.begin()
    arm.driver.silence_s = lambda: people.silence_s

    def next_action(here: Pose) -> Action | None:
        if time.monotonic() > until_s:
            raise StepFailed(steered.complaint())
        action = people()
        if action is not None:
            arm.driver.mode = "teleop"
            steered.more(action, here)
            return action
        arm.driver.mode = "policy"
        if steered.is_enough and arm.report()[0] is GuardState.POLICY:
            return None
        if not steered.is_enough:
            steered.forget()
        return swing(here)

    arm.drive("policy", next_action)
    found = steered.found()
    arm.move_to(centre)
    return found


class _TakeoverMotion:
    """The commanded and the measured motion of a takeover."""

    def __init__(self) -> None:
        self._start: Vector | None = None
        self._commanded = np.zeros(3)
        self._moved = np.zeros(3)
        self._was_begun = False

    def more(self, action: Action, here: Pose) -> None:
        self._was_begun = True
        self._start = self._start or here.position
        self._commanded += action[:3]
        self._moved = np.array(subtract(here.position, self._start))

    def forget(self) -> None:
        self._start = None
        self._commanded = np.zeros(3)

    @property
    def is_enough(self) -> bool:
        return self._start is not None and float(np.linalg.norm(self._moved)) >= _STEERED_M

    def complaint(self) -> str:
        if not self._was_begun:
            return f"no takeover within {_LIMIT_S:g} s: does the device report?"
        moved_cm = 100 * float(np.linalg.norm(self._moved))
        return f"you took over, and the tool went {moved_cm:.1f} cm in {_LIMIT_S:g} s"

    def found(self) -> str:
        size = float(np.linalg.norm(self._commanded) * np.linalg.norm(self._moved))
        along = float(self._commanded @ self._moved) / size if size else 0.0
        if along < 0.7:
            raise StepFailed("the tool did not go where you steered: is an axis turned around?")
        return f"steered {100 * float(np.linalg.norm(self._moved)):.1f} cm, and released"


def estop(session: SetupSession) -> str:
    """Check the guard's emergency stop: the arm comes to rest, and only a person ends the stop."""
    arm = session.arm
    centre = _centre(session)
    swing, until_s = Swing(arm, centre), time.monotonic() + _LIMIT_S
    where = arm.place.prefix
    session.asker.show(
        f"The arm swings. Stop it: press Enter, call {where}/guard/estop, or send True to "
        f"{where}/estop; a stop of a device counts, too."
    )

    def next_action(here: Pose) -> Action:
        if session.asker.pressed("estop"):
            arm.press()
        if time.monotonic() > until_s:
            raise StepFailed(f"no emergency stop came within {_LIMIT_S:g} s")
        return swing(here)

    arm.drive("reset", next_action, stops=True)
    if (state := arm.report()[0]) is not GuardState.ESTOP:
        raise StepFailed(f"the guard is in {state}, expected {GuardState.ESTOP}")
    travel_m = _travel_m(arm, swing)
    if travel_m > _TRAVEL_M:
        raise StepFailed(
            f"the arm went on for {100 * travel_m:.1f} cm after the emergency stop: use its own"
        )
    _check_latched(arm)
    arm.take()
    arm.move_to(centre)
    return f"stood within {100 * travel_m:.1f} cm, stayed stopped over a restart, was released"


def stop_button(session: SetupSession) -> str:
    """Check the arm's own stop: the arm rests despite commands to move."""
    arm, asker = session.arm, session.asker
    centre = _centre(session)
    swing, until_s = Swing(arm, centre), time.monotonic() + _LIMIT_S
    asker.show("The arm swings. Press its own red button; once it stands, press Enter.")
    pressed: list[tuple[float, Vector]] = []

    def next_action(here: Pose) -> Action | None:
        if not pressed and asker.pressed("stop_button"):
            pressed.append((time.monotonic(), here.position))
        if not pressed and time.monotonic() > until_s:
            raise StepFailed(f"no Enter came within {_LIMIT_S:g} s")
        for at_s, place in pressed:
            if math.dist(place, here.position) > _STILL_M:
                raise StepFailed("the arm still moves: does the button belong to another arm?")
            if time.monotonic() - at_s > _WATCHED_S:
                return None
        return swing(here)

    arm.drive("reset", next_action, stops=True)
    _check_own_stop(session, pressed=bool(pressed))
    asker.ask("stop_button.released", "Release the button, recover the arm by its maker's means")
    arm.take()
    arm.move_to(centre)
    return "stood, and moved again once it was released"


def _check_own_stop(session: SetupSession, pressed: bool) -> None:
    """Check that the arm's own button stopped it, and that it rests.

    Args:
        session: the session.
        pressed: whether the person confirmed the press.
    """
    arm = session.arm
    state, cause, _ = arm.report()
    if state in LATCHED and not cause.startswith(_OWN) and not (pressed and cause == _LEFT):
        raise StepFailed(f"the guard stopped the arm: {cause}: that was not the arm's own button")
    if state in LATCHED and cause == _SILENT:
        question = "The arm no longer reports its state. Does it stand still?"
        if not ask_yes_no(session.asker, "stop_button.stood", question):
            raise StepFailed("the arm does not stand still: does the button belong to another arm?")
    elif not arm.is_still():
        raise StepFailed("the arm's own button was pressed, and the arm still moves")


def _centre(session: SetupSession) -> Vector:
    """Move the arm to home, if it is taught, and return the centre of the swing."""
    arm, place = session.arm, session.profile.workspace
    ask_to_begin(session.asker, "swing.begin", "The arm will move, at 5 cm/s. Enter begins")
    arm.guarded()
    if place is None:
        return arm.measured().position
    low, high = place.low_m, place.high_m
    room = _SWING_M + THERE_M
    y = min(max(place.home_m[1], low[1] + room), high[1] - room)
    centre = (place.home_m[0], y, place.home_m[2])
    arm.move_to(centre)
    return centre


def _travel_m(arm: SetupArm, swing: Swing) -> float:
    """Return the tool's travel in m within a second of further motion commands."""
    first, travel_m, looks = arm.measured(), 0.0, 0
    clock, until_s = WallClock(RATE_HZ, arm.driver.beat), time.monotonic() + _WATCHED_S
    arm.driver.mode = "reset"
    try:
        while time.monotonic() < until_s or looks < _LEAST_LOOKS:
            here, looks = arm.measured(), looks + 1
            travel_m = max(travel_m, math.dist(first.position, here.position))
            arm.driver.act(swing(here))
            clock.wait()
    finally:
        arm.driver.mode = "hold"
    return travel_m


def _check_latched(arm: SetupArm) -> None:
    """Check that only a person ends the stop, and that it outlives a restart of the guard."""
    try:
        arm.call("arm")
    except SerlError:
        arm.restart_guard()
        state = arm.report()[0]
        if state is GuardState.ESTOP:
            return
        raise StepFailed(f"a new guard is in {state}, expected {GuardState.ESTOP}") from None
    raise StepFailed("the guard took the arm although it was stopped")
