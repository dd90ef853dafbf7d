"""Gains of a stop after a contact, with a controller that answers when the test wants it to."""

from __future__ import annotations

import logging
from collections.abc import Callable
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rcl_interfaces.srv import GetParameters
from rclpy.parameter import Parameter, parameter_value_to_python

from serl import plugins
from serl.arm_profile import ArmProfile
from serl.ros.arm.controller import Compliance, ControllerWatch
from serl.ros.node import RosNode

pytestmark = pytest.mark.ros

PROFILE: ArmProfile = plugins.load("robot", "franka")
GAIN = "task.k_pos_x"
STEP_S = 0.05


class Controller:
    """In the place of a node, and of the controller that it asks.

    Attributes:
        soft: what the guard says.
        gains: as they are.
        told: all that the first of them was set to.
        answers, takes: whether it does.
    """

    def __init__(self, patch: pytest.MonkeyPatch, profile: ArmProfile = PROFILE) -> None:
        self.soft, self.handle = False, self
        self.gains = dict(profile.controller.parameters)
        self.told: list[float] = []
        self.answers = self.takes = True
        self.ask: Callable[[], None] = lambda: None  # of a watch
        self.now_s, self.asked, self._steps = 1000.0, 0, list[Callable[[], None]]()
        clock = SimpleNamespace(monotonic=lambda: self.now_s)
        patch.setattr("serl.ros.arm.controller.time", clock)
        Compliance(cast(RosNode, self), "arm", profile, lambda: self.soft)

    def run(self, seconds: float) -> None:
        for _ in range(round(seconds / STEP_S)):
            self.now_s += STEP_S
            for step in self._steps:
                step()

    def absolute(self, name: str) -> str:
        return f"/{name}"

    def every(self, period_s: float, callback: Callable[[], None]) -> None:
        if period_s == STEP_S:
            self._steps.append(callback)
        else:
            self.ask = callback

    def create_client(self, kind: Any, name: str) -> Any:
        assert name.startswith("/arm/cartesian_impedance_controller/")
        call = self._get if kind is GetParameters else self._set
        return SimpleNamespace(
            service_is_ready=lambda: True,
            call_async=call,
            remove_pending_request=lambda future: None,
        )

    def _get(self, request: Any) -> Any:
        self.asked += 1
        gains = ((name, self.gains.get(name)) for name in request.names)
        rows = [Parameter(name, value=gain).get_parameter_value() for name, gain in gains]
        future = SimpleNamespace(result=lambda: SimpleNamespace(values=rows))

        def add(callback: Callable[[Any], None]) -> None:
            if self.answers:
                callback(future)

        return SimpleNamespace(add_done_callback=add, done=lambda: self.answers)

    def _set(self, request: Any) -> None:
        for each in request.parameters:
            value = parameter_value_to_python(each.value)
            if each.name == GAIN:
                self.told.append(value)
            if self.takes:
                self.gains[each.name] = value


@pytest.fixture
def controller(monkeypatch: pytest.MonkeyPatch) -> Controller:
    return Controller(monkeypatch)


@pytest.fixture
def watch(controller: Controller) -> ControllerWatch:
    """A watch of the controller, which has asked once."""
    made = ControllerWatch(cast(RosNode, controller), "arm", PROFILE)
    controller.ask()
    return made


def test_a_stop_after_a_contact_is_soft_within_a_second_and_the_way_back_leads_to_what_was(
    controller: Controller,
) -> None:
    controller.run(5.0)
    assert not controller.told, "nothing is done before a contact"
    controller.soft = True
    controller.run(1.2)
    compliance = PROFILE.controller.modes["compliance"].parameters
    assert {name: controller.gains[name] for name in compliance} == compliance
    ways = list(pairwise([2000.0, *controller.told]))
    assert len(ways) == 10
    assert all(a - b == pytest.approx(180.0) for a, b in ways)
    controller.told.clear()
    controller.run(60.0)
    assert not controller.told
    controller.soft = False
    controller.run(1.2)
    assert controller.told[-1] == controller.gains[GAIN] == 2000.0
    assert controller.told == sorted(controller.told)


def test_gains_half_way_to_others_are_not_come_back_to(controller: Controller) -> None:
    controller.gains[GAIN] = 1500.0  # whoever drove was about to change them
    controller.soft = True
    controller.run(1.2)
    assert controller.gains[GAIN] == 200.0
    controller.soft = False
    controller.run(1.2)
    assert controller.gains == PROFILE.controller.parameters


def test_an_actor_that_was_soft_is_soft_again_after_a_stop(controller: Controller) -> None:
    controller.gains |= PROFILE.controller.modes["compliance"].parameters
    for soft in (True, False):
        controller.soft = soft
        controller.run(1.2)
        assert controller.gains[GAIN] == 200.0


def test_a_guard_that_began_anew_hears_that_its_arm_was_left_soft(
    controller: Controller, watch: ControllerWatch
) -> None:
    assert watch.left_soft == watch.trouble == ""
    controller.gains |= PROFILE.controller.modes["compliance"].parameters
    controller.ask()
    assert watch.trouble == ""
    assert "its gains are those of a stop: call the service gains/precision" in watch.left_soft
    controller.gains |= PROFILE.controller.modes["precision"].parameters
    controller.ask()
    assert watch.left_soft == ""


def test_an_arm_is_stopped_if_its_controller_falls_silent_halfway_through_a_switch(
    controller: Controller, watch: ControllerWatch
) -> None:
    controller.gains[GAIN] = 1500.0
    controller.now_s += 4.0  # answers come late: the switch may just have begun
    controller.ask()
    controller.now_s += 4.9
    assert watch.changed == ""
    controller.gains |= PROFILE.controller.modes["compliance"].parameters
    controller.ask()
    controller.now_s += 60.0
    assert watch.changed == "", "the switch was completed"
    controller.gains[GAIN] = 1500.0
    controller.ask()
    controller.now_s += 5.1
    assert "task.k_pos_x is 1500.0" in watch.changed


def test_a_switch_is_completed_within_two_seconds_by_the_answers_of_the_controller(
    controller: Controller, watch: ControllerWatch
) -> None:
    controller.gains[GAIN] = 1500.0
    for later_s, stopped in ((0.5, False), (2.0, False), (0.1, True)):
        controller.now_s += later_s
        controller.ask()
        assert bool(watch.changed) == stopped


def test_a_stop_that_ends_half_way_goes_back_from_there(controller: Controller) -> None:
    controller.soft = True
    controller.run(0.3)
    lowest = controller.gains[GAIN]
    assert 200.0 < float(lowest) < 2000.0
    controller.soft = False
    controller.run(0.1)
    controller.soft = True  # and pushed once more
    controller.run(1.2)
    assert controller.gains[GAIN] == 200.0
    controller.soft = False
    controller.run(1.2)
    assert controller.gains[GAIN] == 2000.0
    steps = [abs(a - b) for a, b in pairwise(controller.told)]
    assert max(steps) <= 180.0 + 1e-9


def test_a_controller_that_does_not_answer_is_named_and_asked_until_it_does(
    controller: Controller, caplog: pytest.LogCaptureFixture
) -> None:
    controller.answers, controller.soft = False, True
    with caplog.at_level(logging.WARNING):
        controller.run(5.0)
    assert 9 <= controller.asked <= 11
    assert "controller does not report its gains: they stay as they are" in caplog.text
    assert len(caplog.messages) == 1
    controller.answers = True
    controller.run(1.2)
    assert controller.gains[GAIN] == 200.0


def test_a_controller_that_refuses_is_told_three_times_and_named(
    controller: Controller, caplog: pytest.LogCaptureFixture
) -> None:
    controller.takes, controller.soft = False, True
    with caplog.at_level(logging.WARNING):
        controller.run(30.0)
    assert controller.told.count(200.0) == 3
    assert "does not take the gains of a stop: task.k_pos_x is 2000.0" in caplog.text
    assert len(caplog.messages) == 1


def test_a_controller_without_such_a_parameter_is_left_as_it_is(
    controller: Controller, caplog: pytest.LogCaptureFixture
) -> None:
    del controller.gains["task.d_rot_z"]
    controller.soft = True
    with caplog.at_level(logging.WARNING):
        controller.run(5.0)
    controller.soft = False
    controller.run(5.0)
    assert not controller.told
    assert "task.d_rot_z is None" in caplog.text


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "200 N/m"),
        ({"wrench": None}, "as stiff as before: it feels no contact"),
        (
            {"controller": PROFILE.controller.model_copy(update={"modes": {}})},
            "as stiff as before: its controller takes no gains of 200 N/m or less",
        ),
    ],
)
def test_an_arm_that_cannot_get_soft_says_so_and_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], words: str
) -> None:
    profile = PROFILE.model_copy(update=changes)
    assert profile.after_contact == words
    controller = Controller(monkeypatch, profile)
    controller.soft = True
    controller.run(1.2)
    assert bool(controller.told) == (not changes)


@pytest.mark.parametrize("name", ["franka", "ur5e"])
def test_the_arms_whose_controllers_take_gains_can_get_soft(name: str) -> None:
    profile: ArmProfile = plugins.load("robot", name)
    assert profile.after_contact == "200 N/m"
