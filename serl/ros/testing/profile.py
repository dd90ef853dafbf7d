"""Conformance tests of arm profiles."""

from __future__ import annotations

import inspect
import os
import signal
import time
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import pytest

from serl.arm_profile import TWIST, ArmProfile, load_robot
from serl.errors import STUCK
from serl.ros.arm.controller import settle_controller
from serl.ros.arm.topics import topic_of
from serl.ros.conversions import nanoseconds_of
from serl.ros.environment import clean_shared_memory, free_domain
from serl.ros.testing.bench import ProfileBench, tables_of
from serl.ros.testing.driver import Driver
from serl.ros.testing.laws import LawRunner
from serl.ros.testing.processes import ROBOT, eventually

_STILL_M = 1e-3
_STOP_S = 1.0
"""Longest time from a stop until an arm stands: the guard's stop, and the controller's lag."""


class ProfileSuite:
    """Conformance tests of `serl.arm_profile.ArmProfile` on a fake of the arm's driver.

    The fake is a process with the topics, types, parameters and the law of motion that the
    driver's sources have; guard and actor are those that drive a real arm. All tests of a class
    share them, in a ROS domain of their own.

    Attributes:
        profile: the profile, or its name or file.
        driver: file of a `Driver`. Relative files are relative to the file of the subclass.
    """

    profile: ClassVar[ArmProfile | str]
    driver: ClassVar[Path | str]

    @pytest.fixture(scope="class")
    @classmethod
    def bench(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProfileBench]:
        """A running bench of the profile; fails at once if the names differ from the driver's."""
        suite = cls()
        profile = suite.load_profile()
        if wrong := list(suite.load_driver().mismatches(profile)):
            pytest.fail(f"{profile.name} does not fit its driver: {wrong[0]}", pytrace=False)
        environ = {name: value for name, value in os.environ.items() if name != "ROS_DOMAIN_ID"}
        with free_domain(environ) as domain, pytest.MonkeyPatch.context() as patch:
            patch.setenv("ROS_DOMAIN_ID", str(domain.id))
            patch.setenv("SERL_SHARED_MEMORY", "1")  # a process reads its transport once
            folder = tmp_path_factory.mktemp(profile.name)
            with ProfileBench(folder, profile, suite.driver_file()) as bench:
                yield bench
        clean_shared_memory()

    def load_profile(self) -> ArmProfile:
        """Return the profile under test."""
        if isinstance(self.profile, ArmProfile):
            return self.profile
        is_file = self.profile.endswith((".py", ".yaml"))
        return load_robot(str(self._sibling(self.profile)) if is_file else self.profile)

    def load_driver(self) -> Driver:
        """Return the description of the driver."""
        return Driver.read(self.driver_file())

    def driver_file(self) -> Path:
        """Return the file of the description."""
        return self._sibling(self.driver)

    def _sibling(self, file: Path | str) -> Path:
        return Path(inspect.getfile(type(self))).parent / file

    # The profile against the sources, without processes

    def test_names_types_and_frames_are_the_drivers(self) -> None:
        """Check topics, types, frames, joints, gripper and parameters against the sources."""
        wrong = list(self.load_driver().mismatches(self.load_profile()))
        assert not wrong, "\n".join(wrong)

    def test_stiffness_is_the_controllers(self) -> None:
        """Check the stiffness at the start and in each mode against the controller's law."""
        profile = self.load_profile()
        controller = profile.controller
        task = controller.with_compliance(tables_of(profile))
        settings: dict[str, tuple[Mapping[str, Any], float | None]] = {
            "at the start": ({}, controller.stiffness_n_m),
            "with a task's tables": (task.parameters, task.stiffness_n_m),
        }
        for name, mode in (controller.modes | task.modes).items():
            settings[f"in the mode {name}"] = (mode.parameters, mode.stiffness_n_m)
        for name, (parameters, promised) in settings.items():
            found = self._law(**parameters).law.stiffness_n_m
            assert found == promised, f"stiffness {name}: {promised} N/m, the controller: {found}"

    @pytest.mark.parametrize("axis", ["x", "y", "z", "rx", "ry", "rz"])
    def test_the_error_is_clipped(self, axis: str) -> None:
        """Check that a distant target does not pull more than one at the distance of the clip."""
        clip = self.load_profile().controller.error_clip
        if clip is None:
            pytest.skip("the profile promises no clip")
        low, high = getattr(clip, axis)
        index = ["x", "y", "z", "rx", "ry", "rz"].index(axis)
        for distance in (low, high):
            step = np.zeros(6)
            step[index] = distance
            pulls = [float(np.linalg.norm(self._pull(scale * step))) for scale in (0.5, 1.0, 5.0)]
            assert pulls[0] < 0.75 * pulls[1], f"{axis}: clipped before {distance}"
            assert pulls[2] < 1.05 * pulls[1], f"{axis}: not clipped at {distance}"

    @pytest.mark.parametrize("part", [slice(0, 3), slice(3, 6)], ids=["linear", "angular"])
    def test_the_controller_scales_commands_down_to_the_fastest_speed(self, part: slice) -> None:
        """Check `fastest_m_s` and `fastest_rad_s` against the controller's law."""
        profile = self.load_profile()
        controller = profile.controller
        fastest = controller.fastest_m_s if part.start == 0 else controller.fastest_rad_s
        if profile.target.type != TWIST or fastest is None:
            pytest.skip("the profile promises no fastest speed")
        for target, expected in ((0.9 * fastest, 0.9 * fastest), (2.0 * fastest, fastest)):
            runner, velocity = self._law(), np.zeros(6)
            velocity[part] = [0.6 * target, 0.8 * target, 0.0]
            for _ in range(50):
                runner.go_at(velocity)
                runner.run(0.01)
            before = runner.tool
            runner.go_at(velocity)
            runner.run(0.01)
            speed = float(np.linalg.norm(before.to(runner.tool)[part])) / 0.01
            assert speed == pytest.approx(expected, rel=0.01)

    def _law(self, **changes: Any) -> LawRunner:
        """Return the controller's law with the parameters of the profile, and changes."""
        driver, controller = self.load_driver(), self.load_profile().controller
        values = {**driver.parameters.values, **controller.parameters, **changes}
        return LawRunner(driver.law_kind, values, driver.frame.name)

    def _pull(self, step: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return the step per period of an arm that is held, away from its target."""
        runner = self._law()
        runner.go_to(step)
        for _ in range(100):
            runner.tool = runner.start
            pull = runner.run(0.01)
        return pull

    # Settings

    def test_settings_are_read_back(self, bench: ProfileBench) -> None:
        """Check that the controller has the profile's and the task's parameters after the start."""
        controller = bench.profile.controller
        target = {**controller.parameters, **controller.expected}
        if not target:
            pytest.skip("the profile has no parameters")
        wrong = controller.mismatch(bench.get(*target))
        assert not wrong, wrong

    def test_a_controller_with_another_setting_is_refused(self, bench: ProfileBench) -> None:
        """Check that another value stops a moving arm, and is named in one line by `arm`."""
        controller = bench.profile.controller
        settings = {**controller.parameters, **controller.expected}
        gains = {name for mode in controller.modes.values() for name in mode.parameters}
        numbers = [name for name, value in settings.items() if isinstance(value, float) and value]
        if not numbers:
            pytest.skip("the profile has no numeric parameters")
        for name in {numbers[0], numbers[-1]}:
            target = float(settings[name])
            kind = type(bench.get(name)[name])
            wrong = kind((3.0 if name in gains else 2.0) * target)  # outside of all modes
            bench.make_ready()
            since, line = len(bench.states), f"{name} is {wrong}, expected {target}"
            bench.set(**{name: wrong})
            try:
                eventually(lambda: self._stopped_by(bench, line, since), 30.0, lambda: bench.state)  # noqa: B023
                eventually(lambda: bench.call("ack")[0])
                eventually(lambda: line in bench.call("arm")[1])  # noqa: B023
                assert bench.state.startswith("disarmed"), f"armed although {line}"
                assert "\n" not in bench.not_now
            finally:
                bench.set(**{name: kind(target)})

    def test_gains_switch_while_it_runs(self, bench: ProfileBench) -> None:
        """Check that the gains of each mode are taken by a running controller, and read back."""
        modes = bench.profile.controller.modes
        if not modes:
            pytest.skip("the profile has no modes")
        bench.make_ready()
        for name, mode in modes.items():
            bench.arm.switch(name)
            assert bench.get(*mode.parameters) == mode.parameters
        settle_controller(bench.arm.remote, ROBOT, bench.profile)

    def test_a_controller_without_its_force_sensor_is_refused(self, bench: ProfileBench) -> None:
        """Check that an admittance that does not subscribe to its sensor is not armed."""
        if not bench.profile.controller.hears_wrench:
            pytest.skip("the controller needs no force sensor")
        bench.make_ready()  # ends a stop that the test before has left
        bench.call("disarm")
        bench.until("disarmed")
        bench.misbehave("deaf")

        def is_refused() -> bool:
            accepted, answer = bench.call("arm")
            if accepted:  # the guard discovers the end of a subscription some time later
                bench.call("disarm")
            return not accepted and "does not listen to" in answer

        eventually(is_refused)
        bench.misbehave()

    # Motion

    @pytest.mark.parametrize("axis", ["x", "y", "z"])
    def test_it_moves_along_an_axis(
        self, bench: ProfileBench, axis: Literal["x", "y", "z"]
    ) -> None:
        """Check that an action moves the tool along its axis of the base, and along no other."""
        index = "xyz".index(axis)
        bench.make_ready()
        start, sign = bench.position(), self._inward(bench, index)
        bench.drive(until=lambda: sign * (bench.position() - start)[index] > 0.02, **{axis: sign})
        aside = np.delete(bench.position() - start, index)
        assert np.abs(aside).max() < 0.003, f"moved {aside} m aside"
        bench.arm.stop("test")
        bench.until("hold: the actor holds")

    def test_it_turns_in_place(self, bench: ProfileBench) -> None:
        """Check that a rotation leaves the tool where it is."""
        bench.make_ready()
        start, begin_rad, strayed_m = bench.position(), bench.yaw_rad(), [0.0]
        sign = -1.0 if begin_rad > 0.0 else 1.0

        def is_turned() -> bool:
            strayed_m.append(float(np.linalg.norm(bench.position() - start)))
            return sign * (bench.yaw_rad() - begin_rad) > 0.08

        bench.drive(until=is_turned, yaw=sign)
        assert max(strayed_m) < 0.003, f"strayed by {max(strayed_m)} m"

    def test_the_twist_is_the_speed_of_the_tool(self, bench: ProfileBench) -> None:
        """Check the measured or derived twist against the published poses."""
        poses: list[tuple[float, float]] = []
        speeds: list[tuple[float, float]] = []

        def receive(message: Any) -> None:
            poses.append((1e-9 * nanoseconds_of(message.header.stamp), message.pose.position.y))

        bench.make_ready()
        bench.node.subscribe(topic_of(bench.profile.pose, ROBOT, 200), receive, drain=True)
        start, sign = bench.position(), self._inward(bench, 1)

        def is_far() -> bool:
            reading = bench.arm.observe_when_fresh(30.0)
            stamp_s = reading.stamps["robot"] + time.time() - time.monotonic()
            speeds.append((stamp_s, float(reading.state["tcp_twist"][1])))
            return bool(sign * (bench.position() - start)[1] > 0.05)

        bench.drive(until=is_far, y=sign)
        times, places = np.array(poses).T
        shares = []
        for stamp_s, speed in speeds:
            before, after = np.interp([stamp_s - 0.05, stamp_s], times, places)
            if times[0] < stamp_s - 0.05 and sign * (after - before) > 0.001:
                shares.append(speed / ((after - before) / 0.05))
        assert np.median(shares) == pytest.approx(1.0, abs=0.25)

    def test_the_gripper_closes_and_opens(self, bench: ProfileBench) -> None:
        """Check that the gripper follows its command, in the units of the profile."""
        if "gripper" in bench.missing:
            pytest.skip(f"NOT TESTED: {bench.missing['gripper']} is not installed")
        if bench.profile.gripper is None:
            pytest.skip("the profile has no gripper")
        bench.make_ready()
        bench.drive(until=lambda: bench.opening() < 0.1, limit_s=30.0, gripper=-1.0)
        bench.drive(until=lambda: bench.opening() > 0.9, limit_s=30.0, gripper=1.0)
        assert bench.state.startswith("policy")

    # Stops

    def test_an_emergency_stop_halts_the_arm_in_time(self, bench: ProfileBench) -> None:
        """Check the travel after an emergency stop, and that the arm then stands."""
        self._speed_up(bench)
        before = bench.position()
        bench.lateness.worst_s, begin_s = 0.0, time.monotonic()
        bench.call("estop")
        self._check_stop(bench, before, begin_s)
        bench.until("estop: the service")

    def test_an_arm_with_a_hung_guard_stops_by_itself(self, bench: ProfileBench) -> None:
        """Check the travel after the last command, and that the arm then stands."""
        self._speed_up(bench)
        before = bench.position()
        bench.lateness.worst_s, begin_s = 0.0, bench.signal("guard", signal.SIGSTOP)
        try:
            self._check_stop(bench, before, begin_s)
        finally:
            bench.wake_guard()

    @pytest.mark.parametrize(
        ("fault", "report"),
        [
            ("silent", "hold: pose is stale"),
            ("frozen", "hold: pose is stale"),
            ("late", "hold: pose is old"),
            ("nan", "hold: pose is not finite"),
        ],
    )
    def test_an_invalid_pose_is_named_and_the_arm_is_driven_again(
        self, bench: ProfileBench, fault: str, report: str
    ) -> None:
        """Check that the guard reports invalid measurements, and takes the arm again."""
        self._check_report(bench, fault, report)

    def test_a_contact_is_named_and_the_arm_is_driven_again(self, bench: ProfileBench) -> None:
        """Check that the guard stops an arm that measures a large force, and takes it again."""
        if bench.profile.wrench is None:
            pytest.skip("the arm measures no forces")
        self._check_report(bench, "contact", "protective stop: force 60 N")

    def test_a_stuck_arm_is_named_and_driven_again(self, bench: ProfileBench) -> None:
        """Check that the guard reports an arm without motion, and that its target stays near."""
        self._check_not_following(bench, "stuck")

    def test_lost_commands_are_named_and_it_is_driven_again(self, bench: ProfileBench) -> None:
        """Check that the guard reports an arm that receives no commands, as a stuck one."""
        self._check_not_following(bench, "dropped")

    def test_after_a_contact_it_is_soft(self, bench: ProfileBench) -> None:
        """Check that the gains ramp to the softest mode in a stop, and back after it."""
        soft = bench.profile.controller.compliance
        if soft is None or bench.profile.wrench is None:
            pytest.skip(bench.profile.after_contact)
        start = bench.profile.controller.parameters
        name = max(soft.parameters, key=lambda each: float(start[each]) - soft.parameters[each])
        stiff, low = float(start[name]), soft.parameters[name]
        bench.make_ready()
        gains = bench.history(name)
        gains.clear()
        bench.misbehave("contact")
        eventually(lambda: gains[-1:] == [low], found=lambda: f"{name} was set to {gains}")
        most = 0.5 * (stiff - low)  # a ramp of half a second, some of whose values are late or lost
        assert gains == sorted(gains, reverse=True)
        assert max(a - b for a, b in pairwise([stiff, *gains])) < most
        gains.clear()
        bench.misbehave()
        bench.take()
        eventually(lambda: gains[-1:] == [stiff], found=lambda: f"{name} was set to {gains}")
        assert max(b - a for a, b in pairwise([low, *gains])) < most
        bench.make_ready()

    def test_an_error_that_the_arm_reports_stops_it(self, bench: ProfileBench) -> None:
        """Check that a reported error stops the arm until it is gone and acknowledged."""
        self._need_fault_topic(bench)
        bench.make_ready()
        bench.misbehave("reflex")
        bench.until("protective stop: the arm reports")
        cause = bench.state.removeprefix("protective stop: ")
        eventually(lambda: cause in bench.call("ack")[1])
        assert bench.state.startswith("protective stop"), "acknowledged in spite of the error"
        bench.make_ready()

    def test_an_arm_without_error_reports_is_not_driven(self, bench: ProfileBench) -> None:
        """Check that the loss of the fault topic holds the arm, and that `arm` names it."""
        channel = self._need_fault_topic(bench)
        bench.make_ready()
        bench.misbehave("mute")
        bench.until(f"hold: {channel}")
        bench.call("disarm")
        bench.until("disarmed")
        eventually(lambda: bench.call("arm")[1].startswith(f"not now: {channel}"))
        assert bench.state.startswith("disarmed")
        bench.make_ready()

    def _check_report(self, bench: ProfileBench, fault: str, report: str) -> None:
        """Check that the guard reports a fault of the driver, and takes the arm after it."""
        bench.make_ready()
        since = len(bench.states)
        bench.misbehave(fault)
        eventually(lambda: bench.has_reported(report, since), found=lambda: bench.state)
        bench.make_ready()

    def _check_not_following(self, bench: ProfileBench, fault: str) -> None:
        """Check that the guard reports an arm that does not follow, and takes it afterwards."""
        feels, sign = bench.profile.wrench is not None, self._inward(bench, 1)
        report = f"hold: {STUCK}" if feels else "hold: the arm stands, or pushes"
        bench.make_ready()
        since = len(bench.states)
        bench.misbehave(fault)
        bench.drive(until=lambda: bench.has_reported(report, since), y=sign)
        target, limits = bench.arm.aim.target.position, bench.motion.limits
        lead_m = np.linalg.norm(np.subtract(target, bench.position()))
        assert lead_m < limits.lead_m + bench.motion.translation_m + _STILL_M
        bench.make_ready()

    def _need_fault_topic(self, bench: ProfileBench) -> str:
        """Return the name of the fault topic; skip without one."""
        if "fault" in bench.missing:
            pytest.skip(f"NOT TESTED: {bench.missing['fault']} is not installed")
        if bench.profile.fault is None:
            pytest.skip("the driver reports no errors")
        return topic_of(bench.profile.fault, bench.prefix, 1).name

    def _speed_up(self, bench: ProfileBench) -> None:
        """Drive until the arm is fast, with room ahead."""
        bench.make_ready()
        start, sign = bench.position(), self._inward(bench, 1)
        bench.drive(until=lambda: sign * (bench.position() - start)[1] > 0.03, y=sign)

    def _check_stop(
        self, bench: ProfileBench, before: np.ndarray[Any, Any], begin_s: float
    ) -> None:
        """Check that the arm stands in time, and has not moved too far."""
        places = [(time.monotonic(), bench.position())]

        def is_still() -> bool:
            bench.pass_time(0.05)
            places.append((time.monotonic(), bench.position()))
            now_s, place = places[-1]
            recent = [each for at_s, each in places if at_s >= now_s - 0.5]
            spread_m = max(float(np.linalg.norm(each - place)) for each in recent)
            return spread_m < _STILL_M and now_s - begin_s > 0.5

        eventually(is_still, 30.0, lambda: f"still moves: {places[-1]}")
        end = places[-1][1]
        stood_s = next(at_s for at_s, place in places if np.linalg.norm(place - end) < _STILL_M)
        late_s = 3.0 * bench.lateness.worst_s
        assert stood_s - begin_s < _STOP_S + late_s, f"stood after {stood_s - begin_s} s"
        speed_m_s = bench.motion.limits.speed_m_s
        allowed_m = bench.motion.limits.lead_m + (0.25 + late_s) * speed_m_s
        travel_m = float(np.linalg.norm(end - before))
        assert travel_m < allowed_m, f"moved {travel_m} m after the stop, allowed {allowed_m} m"

    def _stopped_by(self, bench: ProfileBench, line: str, since: int) -> bool:
        bench.pass_time(0.02)  # the actor goes on meanwhile
        stops = [text for _, text in bench.states[since:] if text.startswith("protective stop")]
        return any(line in text for text in stops)

    def _inward(self, bench: ProfileBench, index: int) -> float:
        """Return the direction along an axis, 1 or -1, to the farther side of the box."""
        middle_m = 0.5 * (bench.motion.box_low_m[index] + bench.motion.box_high_m[index])
        return 1.0 if bench.position()[index] < middle_m else -1.0
