"""Conformance tests of teleoperation devices."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Protocol

from serl.teleop.device import Device, DeviceLost, DeviceReport
from serl.teleop.mapping import MappingConfig, Wish, read_wish
from serl.teleop.operator import Hands, Operator, OperatorConfig
from serl.testing.fakes import FakeRobot


class DeviceBench(Protocol):
    """A device with a simulated hand that operates it."""

    @property
    def device(self) -> Device:
        """The device under test."""
        ...

    @property
    def mapping(self) -> MappingConfig:
        """The mapping from reports to actions."""
        ...

    def now_s(self) -> float:
        """Return the time in seconds, by the clock of the device's stamps."""
        ...

    def wait(self, seconds: float) -> None:
        """Let time pass while periodic messages continue."""
        ...

    def push(self) -> None:
        """Take over with the hand and command motion."""
        ...

    def release(self) -> None:
        """Take the hand off the device."""
        ...

    def die(self) -> None:
        """Unplug the device, or end its sender."""
        ...


class DeviceSuite(ABC):
    """Conformance tests of `serl.teleop.device.Device` with the device's own mapping."""

    @abstractmethod
    def make(self) -> DeviceBench:
        """Return a bench with a device at rest."""

    def operator_input(self, bench: DeviceBench) -> Wish:
        """Return the device's current report after mapping."""
        report = bench.device.read()
        assert report is not None, "no report"
        operator_input = read_wish(report, bench.mapping)
        assert operator_input is not None, "numbers that are not finite"
        return operator_input

    def test_it_has_a_name(self) -> None:
        """Check that the device has a readable name."""
        assert self.make().device.name

    def test_there_is_no_input_at_rest(self) -> None:
        """Check that there is no operator input and no motion at rest."""
        bench = self.make()
        bench.release()
        operator_input = self.operator_input(bench)
        assert not operator_input.hands
        assert not any(operator_input.motion)

    def test_a_push_starts_a_takeover_with_motion(self) -> None:
        """Check that a push is reported as a takeover, fresh and with motion in [-1, 1]."""
        bench = self.make()
        bench.push()
        report = bench.device.read()
        assert isinstance(report, DeviceReport)
        assert abs(bench.now_s() - report.stamp_s) <= OperatorConfig().stale_s
        bench.push()
        operator_input = self.operator_input(bench)
        assert operator_input.hands
        assert 0.0 < max(map(abs, operator_input.motion)) <= 1.0

    def test_letting_go_ends_it(self) -> None:
        """Check that letting go ends the takeover immediately."""
        bench = self.make()
        bench.push()
        self.operator_input(bench)
        bench.release()
        operator_input = self.operator_input(bench)
        assert not operator_input.hands
        assert not any(operator_input.motion)

    def test_a_report_is_a_value(self) -> None:
        """Check that a report does not change while the device continues."""
        bench = self.make()
        bench.release()
        report = bench.device.read()
        assert report is not None
        before = (dict(report.axes), report.buttons)
        bench.push()
        bench.device.read()
        assert (dict(report.axes), report.buttons) == before

    def test_one_that_died_is_lost_or_silent(self) -> None:
        """Check that a dead device's last report is not treated as a new one."""
        bench = self.make()
        bench.push()
        bench.device.read()
        bench.die()
        bench.wait(OperatorConfig().stale_s + 0.1)
        try:
            report = bench.device.read()
        except DeviceLost:
            return
        assert report is None or bench.now_s() - report.stamp_s > OperatorConfig().stale_s

    def test_the_robot_holds_when_it_dies_in_a_hand(self) -> None:
        """Check that the robot holds and does not return to the policy."""
        bench = self.make()
        spec = FakeRobot.action_spec
        person = Operator(bench.device, bench.mapping, OperatorConfig(), spec, bench.now_s)
        bench.release()
        assert person() is None
        bench.push()
        assert person() is not None
        bench.die()
        for _ in range(30):
            bench.wait(0.1)
            action = person()
        assert action is not None
        assert not action.any()
        assert person.hands is Hands.SILENT

    def test_closing_twice_does_no_harm(self) -> None:
        """Check that closing a device twice is harmless."""
        device = self.make().device
        device.close()
        device.close()
