"""Gains after a contact stop, with a stand-in controller that may ignore requests."""

from __future__ import annotations

import logging
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rcl_interfaces.msg import SetParametersResult
from rcl_interfaces.srv import GetParameters, SetParameters
from rclpy.parameter import Parameter, parameter_value_to_python

from serl import plugins
from serl.arm_profile import ArmProfile
from serl.errors import SerlError
from serl.ros.arm.controller import Compliance, ControllerWatch, settle_controller
from serl.ros.node import RosNode
from serl.ros.services import Remote

pytestmark = pytest.mark.ros

PROFILE: ArmProfile = plugins.load("robot", "franka")
GAIN = "task.k_pos_x"
STEP_S = 0.05


class Controller:
    """A stand-in for a node and for the controller that it calls.

    Attributes:
        soft: whether the guard requests compliant gains.
        gains: current parameters of the controller.
        received_gains: values received for `GAIN`.
        answers, accepts: whether the controller answers queries, and applies parameters.
    """

    def __init__(self, patch: pytest.MonkeyPatch, profile: ArmProfile = PROFILE) -> None:
        self.soft, self.handle = False, self
        self.gains = dict(profile.controller.parameters)
        self.received_gains: list[float] = []
        self.answers = self.accepts = True
        self.ask: Callable[[], None] = lambda: None  # query of a watch
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
                self.received_gains.append(value)
            if self.accepts:
                self.gains[each.name] = value


@pytest.fixture
def controller(monkeypatch: pytest.MonkeyPatch) -> Controller:
    return Controller(monkeypatch)


@pytest.fixture
def watch(controller: Controller) -> ControllerWatch:
    """Return a watch that has queried the controller once."""
    made = ControllerWatch(cast(RosNode, controller), "arm", PROFILE)
    controller.ask()
    return made


def test_contact_stop_lowers_gains_within_a_second_and_restores_them(
    controller: Controller,
) -> None:
    controller.run(5.0)
    assert not controller.received_gains, "no gain is sent before a contact"
    controller.soft = True
    controller.run(1.2)
    compliance = PROFILE.controller.modes["compliance"].parameters
    assert {name: controller.gains[name] for name in compliance} == compliance
    ways = list(pairwise([2000.0, *controller.received_gains]))
    assert len(ways) == 10
    assert all(a - b == pytest.approx(180.0) for a, b in ways)
    controller.received_gains.clear()
    controller.run(60.0)
    assert not controller.received_gains
    controller.soft = False
    controller.run(1.2)
    assert controller.received_gains[-1] == controller.gains[GAIN] == 2000.0
    assert controller.received_gains == sorted(controller.received_gains)


def test_gains_are_lowered_again_once_others_have_raised_them_in_contact_stop(
    controller: Controller,
) -> None:
    controller.gains |= PROFILE.controller.modes["compliance"].parameters
    controller.soft = True
    controller.run(1.2)
    for gain in range(300, 2100, 100):  # an actor that starts sets the gains of the profile
        controller.gains[GAIN] = float(gain)
        controller.run(0.05)
        assert not controller.received_gains
    controller.gains |= PROFILE.controller.parameters
    controller.run(2.0)
    assert controller.gains[GAIN] == 200.0
    controller.soft = False
    controller.run(1.2)
    assert controller.gains == PROFILE.controller.parameters


def test_gains_between_modes_are_not_restored_after_contact_stop(controller: Controller) -> None:
    controller.gains[GAIN] = 1500.0  # a gain switch was in progress
    controller.soft = True
    controller.run(1.2)
    assert controller.gains[GAIN] == 200.0
    controller.soft = False
    controller.run(1.2)
    assert controller.gains == PROFILE.controller.parameters


def test_compliant_gains_are_restored_after_contact_stop(controller: Controller) -> None:
    controller.gains |= PROFILE.controller.modes["compliance"].parameters
    for soft in (True, False):
        controller.soft = soft
        controller.run(1.2)
        assert controller.gains[GAIN] == 200.0


def test_controller_watch_reports_gains_left_over_from_a_stop(
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


def test_controller_watch_needs_new_answer_after_silence_of_driver(
    controller: Controller, watch: ControllerWatch
) -> None:
    controller.gains[GAIN] = 500.0  # the driver was started anew
    assert watch.trouble == ""
    watch.forget()
    assert watch.trouble.endswith("the controller does not report its parameters")
    controller.ask()
    assert f"{GAIN} is 500.0" in watch.trouble


def test_controller_watch_reports_changed_gain_after_silence_in_switch(
    controller: Controller, watch: ControllerWatch
) -> None:
    controller.gains[GAIN] = 1500.0
    controller.now_s += 4.0  # late answers: the switch may be recent
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


def test_controller_watch_allows_two_seconds_for_a_gain_switch(
    controller: Controller, watch: ControllerWatch
) -> None:
    controller.gains[GAIN] = 1500.0
    for later_s, stopped in ((0.5, False), (2.0, False), (0.1, True)):
        controller.now_s += later_s
        controller.ask()
        assert bool(watch.changed) == stopped


def test_gains_ramp_back_from_intermediate_value_when_stop_ends_early(
    controller: Controller,
) -> None:
    controller.soft = True
    controller.run(0.3)
    lowest = controller.gains[GAIN]
    assert 200.0 < float(lowest) < 2000.0
    controller.soft = False
    controller.run(0.1)
    controller.soft = True  # a second contact
    controller.run(1.2)
    assert controller.gains[GAIN] == 200.0
    controller.soft = False
    controller.run(1.2)
    assert controller.gains[GAIN] == 2000.0
    steps = [abs(a - b) for a, b in pairwise(controller.received_gains)]
    assert max(steps) <= 180.0 + 1e-9


def test_unresponsive_controller_is_warned_of_once_and_queried_again(
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


def test_gains_are_sent_three_times_to_controller_that_ignores_them(
    controller: Controller, caplog: pytest.LogCaptureFixture
) -> None:
    controller.accepts, controller.soft = False, True
    with caplog.at_level(logging.WARNING):
        controller.run(30.0)
    assert controller.received_gains.count(200.0) == 3
    assert "does not take the gains of a stop: task.k_pos_x is 2000.0" in caplog.text
    assert len(caplog.messages) == 1


def test_controller_without_a_gain_parameter_is_not_changed(
    controller: Controller, caplog: pytest.LogCaptureFixture
) -> None:
    del controller.gains["task.d_rot_z"]
    controller.soft = True
    with caplog.at_level(logging.WARNING):
        controller.run(5.0)
    controller.soft = False
    controller.run(5.0)
    assert not controller.received_gains
    assert "task.d_rot_z is None" in caplog.text


@pytest.mark.parametrize(
    ("changes", "after_contact"),
    [
        ({}, "200 N/m"),
        ({"wrench": None}, "as stiff as before: it feels no contact"),
        (
            {"controller": PROFILE.controller.model_copy(update={"modes": {}})},
            "as stiff as before: its controller takes no gains of 200 N/m or less",
        ),
    ],
)
def test_arm_without_compliance_reports_it_and_keeps_its_gains(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], after_contact: str
) -> None:
    profile = PROFILE.model_copy(update=changes)
    assert profile.after_contact == after_contact
    controller = Controller(monkeypatch, profile)
    controller.soft = True
    controller.run(1.2)
    assert bool(controller.received_gains) == (not changes)


def test_ur5e_is_compliant_after_contact() -> None:
    profile: ArmProfile = plugins.load("robot", "ur5e")
    assert profile.after_contact == "200 N/m"


def test_parameter_that_controller_lacks_is_named(tmp_path: Path) -> None:
    """Answer as nodes of ROS 2 do: without any value where one of the parameters is missing."""
    present = {name: 1.0 for name in PROFILE.controller.parameters if name != GAIN}

    def get(request: Any, response: Any) -> Any:
        if present.keys() >= set(request.names):
            values = [Parameter(name, value=present[name]) for name in request.names]
            response.values = [each.get_parameter_value() for each in values]
        return response

    def put(request: Any, response: Any) -> Any:
        refused = "cannot be set because it was not declared"
        response.results = [
            SetParametersResult(successful=each.name in present, reason=f"{each.name} {refused}")
            for each in request.parameters
        ]
        return response

    node_name = f"/arm/{PROFILE.controller.node}"
    with (
        RosNode("arm", tmp_path, local=True) as driver,
        RosNode("actor", tmp_path, local=True) as node,
    ):
        driver.handle.create_service(GetParameters, f"{node_name}/get_parameters", get)
        driver.handle.create_service(SetParameters, f"{node_name}/set_parameters", put)
        with pytest.raises(SerlError, match=f"parameter {GAIN}: {GAIN} cannot be set"):
            settle_controller(Remote(node, lambda: None), "/arm", PROFILE)
