"""An actor's arm with a real guard and a fake driver, beyond the checks of `ProfileSuite`."""

from __future__ import annotations

import importlib.util
import math
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml
from geometry_msgs.msg import WrenchStamped

from serl.arm_profile import TRAJECTORY, Channel, load_robot
from serl.clock import WallClock
from serl.compliance import RESET, TaskCompliance
from serl.errors import NEEDS_PERSON, STUCK, SerlError
from serl.intervention import NoOperator
from serl.loop import EpisodeKey, RecordCallback, run
from serl.motion import Pose
from serl.real_task import RealTask, RealTaskConfig
from serl.reset import ResetConfig, Waypoint
from serl.robot import POSE
from serl.ros.arm.controller import settle_controller, switch_gains
from serl.ros.arm.guard_client import GuardClient
from serl.ros.arm.robot import GainServices
from serl.ros.arm.station import HeldSite, Station
from serl.ros.arm.topics import topic_of
from serl.ros.services import Remote
from serl.ros.testing import ProfileBench
from serl.ros.testing.fake_driver import DOWN
from serl.ros.testing.processes import ROBOT, eventually
from serl.ros.topics import Topic
from serl.specs import ObservationSpec, Spec
from serl.teleop.stop import StopLatch
from serl.training.actor import Actor, ActorConfig
from serl.training.arm_reset import ArmReset
from serl.training.replay import Replay
from serl.types import Action, ActionSource, End, Observation, Outcome, Record, Step

from ...support.upstream import file_of

pytestmark = [pytest.mark.ros, pytest.mark.xdist_group("moving_arm")]  # not beside each other

TRIES = 5
"""Attempts of timing-dependent tests; a busy machine delays single ones."""

GAIN = "task.k_pos_x"
TRAJECTORIES = Channel(name="joint_trajectory", type=TRAJECTORY)


class JointBench(ProfileBench):
    """A bench of an arm that takes trajectories; its first joint is 0.3 rad away from home."""

    def __init__(self, folder: Path) -> None:
        profile = load_robot("franka").model_copy(update={"trajectory": TRAJECTORIES})
        driver = yaml.safe_load(file_of("franka").read_text())
        driver["joints"]["rest_rad"][0] = 0.3
        driver["channels"]["trajectory"] = {**TRAJECTORIES.model_dump(), "source": "none: a test"}
        (folder / "driver.yaml").write_text(yaml.safe_dump(driver))
        super().__init__(folder, profile, folder / "driver.yaml")

    def angle_rad(self) -> float:
        return float(self.arm.observe_when_fresh(30.0).state["q"][0])

    def move(self, to_rad: float) -> None:
        """Let a script ask for joint moves, again after each reading that came late."""
        self.arm.drive_as(ActionSource.SCRIPT)

        def is_there() -> bool:
            self.arm.home()
            return self.angle_rad() < to_rad

        self.drive(until=is_there)


@pytest.fixture(scope="module")
def crisp(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JointBench]:
    with JointBench(tmp_path_factory.mktemp("crisp")) as bench:
        yield bench


@pytest.fixture
def guarded(crisp: JointBench, monkeypatch: pytest.MonkeyPatch) -> JointBench:
    """Return the bench with an arm that reads its guard's reports, as in a run."""
    monkeypatch.setattr(crisp.arm, "guard", GuardClient(crisp.node, ROBOT, crisp.arm.remote))
    crisp.arm.drive_as(ActionSource.POLICY)
    crisp.misbehave()
    crisp.take()
    crisp.recover()
    return crisp


class PoseTask:
    """A task that observes the TCP pose and truncates only after 300 steps."""

    observation_spec = ObservationSpec(state={"tcp_pose": POSE})

    def begin(self, reading: Observation) -> None:
        pass

    def observation(self, reading: Observation) -> Observation:
        return Observation({"tcp_pose": reading.state["tcp_pose"]}, stamps=reading.stamps)

    def outcome(self, reading: Observation, index: int) -> Outcome:
        return Outcome(truncated=index > 300)


class TenStepOperator(NoOperator):
    """An operator who drives along y for ten steps, and then releases control."""

    def __init__(self, action: Action) -> None:
        self.action, self.left = action, 10

    def __call__(self) -> Action | None:
        self.left -= 1
        return self.action if self.left >= 0 else None


def action_along_y(bench: ProfileBench, sign: float) -> Action:
    """Return an action along y: towards the middle of the box for 1, away from it for -1."""
    side = -1.0 if bench.position()[1] > 0.0 else 1.0
    return np.array([0.0, sign * side, 0.0, 0.0, 0.0], np.float32)


@pytest.mark.slow
def test_joints_stand_when_guard_is_killed_in_joint_move(tmp_path: Path) -> None:
    with JointBench(tmp_path) as bench:
        bench.make_ready()
        bench.move(0.25)
        bench.signal("guard", signal.SIGKILL)
        bench.pass_time(0.6)
        stood_rad = bench.angle_rad()
        bench.pass_time(0.6)
        assert bench.angle_rad() == stood_rad
        assert 0.04 < stood_rad < 0.25


def test_wrench_ends_in_holds_resets_stops_and_with_other_gains(tmp_path: Path) -> None:
    compliance, sent = TaskCompliance(wrench={"z": 6.0}), [0.0]
    with ProfileBench(tmp_path, "franka", file_of("franka"), compliance=compliance) as bench:
        assert bench.profile.target_wrench is not None
        topic = topic_of(bench.profile.target_wrench, ROBOT, 200)
        bench.node.subscribe(topic, lambda message: sent.append(message.wrench.force.z), drain=True)
        bench.take()
        bench.recover()
        start_m, depth_m = bench.position()[2], 6.0 / 2000.0
        bench.drive(
            until=lambda: sent[-1] == 6.0 and start_m - bench.position()[2] > depth_m - 1e-4
        )
        assert bench.state.startswith("policy")
        assert max(sent) == 6.0
        sunk_m = bench.position()[2]  # deeper if the guard was late, as it then begins here
        bench.arm.stop("test")
        bench.until("hold: the actor holds")
        eventually(lambda: bench.position()[2] - sunk_m > depth_m / 2.0 and sent[-1] == 0.0)
        bench.recover()
        bench.arm.drive_as(ActionSource.SCRIPT)
        bench.drive(until=lambda: bench.state.startswith("reset"))
        count = len(sent)
        bench.drive(until=lambda: len(sent) > count + 5)
        assert not any(sent[count:])
        bench.arm.drive_as(ActionSource.POLICY)
        bench.drive(until=lambda: sent[-1] == 6.0)
        soft = (Remote(bench.node, lambda: None), ROBOT, bench.profile, "compliance")
        switch = threading.Thread(target=switch_gains, args=soft)
        switch.start()
        bench.drive(until=lambda: sent[-1] == 0.0 and not switch.is_alive())
        bench.arm.switch(None)
        bench.make_ready()
        bench.drive(until=lambda: sent[-1] == 6.0)
        bench.publisher(Topic("target_wrench", WrenchStamped, 1))
        bench.until(f"protective stop: others publish {bench.prefix}/target_wrench")
        eventually(lambda: sent[-1] == 0.0)


def test_arm_stopped_by_a_fault_waits_for_operator_and_then_moves(
    guarded: ProfileBench, tmp_path: Path
) -> None:
    arm, hold = guarded.arm, StopLatch(tmp_path / "stopped")

    def person() -> bool:
        hold.resume()
        return False

    station = Station(arm, hold, person)
    guarded.misbehave("silent")
    pose = next(iter(arm.feeds))
    eventually(lambda: not pose.is_fresh)
    assert not arm.act(np.ones(5, np.float32)).any(), "an arm without a fresh pose must not act"
    arm.stop("no pose")  # as the control loop does
    guarded.misbehave()
    guarded.take()
    eventually(lambda: station.has_arm)
    assert not station.standby(), "the arm is not held yet"
    assert arm.stop_reason == "no pose"
    hold.pause("no pose")
    assert station.standby()
    assert arm.stop_reason is None
    start_m, side = guarded.position()[1], action_along_y(guarded, 1.0)[1]
    guarded.drive(until=lambda: side * (guarded.position()[1] - start_m) > 0.01, y=side)


def test_log_stores_zero_action_for_steps_that_guard_held(guarded: ProfileBench) -> None:
    arm = guarded.arm
    steps: list[Step] = []

    def sink(record: Record) -> None:
        if isinstance(record, Step):
            steps.append(record)

    def is_whole() -> bool:
        """Record an episode; return False if a busy machine ended it early."""
        steps.clear()
        guarded.take()
        guarded.recover()
        arm.drive_as(ActionSource.POLICY)  # after an attempt that ended with the person
        if not arm.remote.wait(lambda: guarded.state == "hold: command is stale", 5.0):
            return False
        person, back = TenStepOperator(action_along_y(guarded, 1.0)), action_along_y(guarded, -1.0)
        clock, key = WallClock(10.0, arm.beat), EpisodeKey("run", "actor", 0, 1)
        ends = lambda: len(steps) > 20  # noqa: E731
        observers = [RecordCallback(sink)]
        run(arm, PoseTask(), lambda o: back, clock, key, observers, teleop=person, interrupted=ends)
        return len(steps) > 20

    guarded.make_ready()
    for _ in range(TRIES):
        eventually(is_whole, found=lambda: f"{guarded.state}; {len(steps)} steps")
        moved = [float(step.action[1]) for step in steps]
        if moved[10:13] == [0.0] * 3 or not _has_late_step([*steps]):
            break
    assert abs(moved[0]) == 1.0, "the first action after the guard's wait is executed"
    assert moved[10:13] == [0.0] * 3, "the guard rests for half a second after a takeover"
    assert moved[0] * min(moved[15:], key=lambda value: moved[0] * value) < 0, (
        "then the policy's actions are executed"
    )


def test_stuck_arm_ends_episode_and_replay_skips_steps_it_did_not_follow(
    guarded: ProfileBench,
) -> None:
    for _ in range(TRIES):  # on a busy machine, a late guard begins to count anew
        records, learned = _stuck_episode(guarded)
        moved = _moving_steps(records)
        is_named = _reason(records) == f"the guard holds the arm: {STUCK}"
        if is_named and learned <= moved:
            break
    assert is_named, _reason(records)
    assert learned <= moved < len(records) - 10
    assert len(records) > 20  # the log has all steps


def _has_late_step(records: list[Record]) -> bool:
    times_s = [record.monotonic_s for record in records]
    return bool(max(np.diff(times_s)) > 0.15)  # the guard holds for lateness then


def _moving_steps(records: list[Record]) -> int:
    """Return the number of steps up to the one in which the tool came to rest."""
    poses = [step.observation.state["tcp_pose"] for step in records if isinstance(step, Step)]
    ways_m = np.linalg.norm(np.array(poses)[:, :3] - poses[-1][:3], axis=1)
    return int(np.sum(ways_m > 1e-3)) + 1  # plus one smaller motion


def _reason(records: list[Record]) -> str:
    end = records[-1]
    assert isinstance(end, End)
    return end.text


def _stuck_episode(bench: ProfileBench) -> tuple[list[Record], int]:
    """Run an episode whose arm sticks from step 5 on; return its records and replay size."""
    bench.make_ready()  # also ends the hold of the previous try
    aside = action_along_y(bench, 1.0)
    records: list[Record] = []

    def sink(record: Record) -> None:
        if len(records) == 4:
            bench.misbehave("stuck")
        records.append(record)

    arm, task = bench.arm, PoseTask()
    clock = WallClock(10.0, arm.beat)
    run(arm, task, lambda o: aside, clock, EpisodeKey("run", "actor", 0, 0), [RecordCallback(sink)])
    spec = Spec(
        task="watch", observation=task.observation_spec, action=arm.action_spec, rate_hz=10.0
    )
    replay = Replay(spec, 1000, 0.9)
    for record in records:
        replay.add(record)
    return records, len(replay)


def test_gain_switch_that_controller_does_not_apply_stops_arm(crisp: ProfileBench) -> None:
    crisp.make_ready()
    crisp.misbehave("forgetful")
    complaint = f"{GAIN} is 100.0, expected 200.0"
    with pytest.raises(SerlError, match=complaint):
        crisp.arm.switch("compliance")
    assert complaint in (crisp.arm.stop_reason or "")
    crisp.misbehave()
    settle_controller(crisp.arm.remote, ROBOT, crisp.profile)


def test_settle_controller_ramps_gains_to_start_values(crisp: ProfileBench) -> None:
    """Settle the controller as an actor that starts after a compliant one at an armed guard.

    The guard stops an arm whose gains stay between two modes for two seconds. Only such a slow
    switch, on a busy machine, is repeated.
    """
    gains, start = crisp.history(GAIN), crisp.profile.controller.parameters[GAIN]
    for _ in range(TRIES):
        crisp.make_ready()
        since, begun_s = len(crisp.states), time.monotonic()
        crisp.arm.switch("compliance")
        eventually(lambda: gains[-1:] == [200.0], found=lambda: str(gains))
        gains.clear()
        settle_controller(crisp.arm.remote, ROBOT, crisp.profile)
        took_s = time.monotonic() - begun_s
        is_stopped = crisp.has_reported("protective stop", since)
        if not is_stopped or took_s <= 1.5:
            break
    assert not is_stopped, crisp.states[since:]
    eventually(lambda: gains[-1:] == [start], found=lambda: str(gains))
    assert gains == sorted(gains)
    assert max(b - a for a, b in pairwise([200.0, *gains])) < 200.0
    crisp.arm.switch(None)


def test_gain_service_of_actor_switches_gains(crisp: ProfileBench) -> None:
    crisp.make_ready()
    GainServices(crisp.node, crisp.arm)
    remote, own = crisp.arm.remote, crisp.node.handle.get_fully_qualified_name()
    assert "compliance" in remote.trigger(f"{own}/gains/compliance")
    eventually(lambda: crisp.get(GAIN) == {GAIN: 200.0})
    crisp.misbehave("stubborn")

    def is_stopped() -> bool:
        with suppress(SerlError):  # the previous switch may be in progress
            remote.trigger(f"{own}/gains/precision")
        crisp.pass_time(0.05)
        return "controller is active" in (crisp.arm.stop_reason or "")

    eventually(is_stopped)
    crisp.misbehave()
    crisp.arm.switch(None)


def actor_of(
    bench: ProfileBench, reset: ArmReset, task: RealTask, records: list[Record], missing: list[str]
) -> Actor:
    """Return an actor that only resets; its person ends stops, and clears `missing` when asked."""
    hold = StopLatch(bench.folder / "stopped")

    def person() -> bool:
        if bench.state.startswith(("disarmed", "protective stop")):
            bench.take()
        if missing and hold.paused == f"{NEEDS_PERSON}: {missing[0]}":
            bench.until("hold: the actor holds")
            missing.clear()
        hold.resume()
        return False

    policy: Any = SimpleNamespace(version=0)
    return Actor(
        EpisodeKey("run", "actor", 0, 0),
        bench.arm,
        task,
        policy,
        WallClock(10.0, bench.arm.beat),
        [RecordCallback(records.append)],
        HeldSite(hold, Station(bench.arm, hold, person), person),
        ActorConfig(reset_attempts=20),  # each late message of a busy machine counts
        reset,
    )


def test_path_reset_puts_part_down_returns_to_start_and_asks_person_if_its_check_fails(
    guarded: JointBench,
) -> None:
    bench, records, missing = guarded, list[Record](), ["the part is not in its place"]
    home, place_m = Pose((0.31, 0.0, 0.46), DOWN), (0.32, 0.02, 0.42)
    path = (
        Waypoint(position_m=(0.32, 0.02, 0.45), orientation=DOWN, closed=True),
        Waypoint(position_m=place_m, orientation=DOWN, closed=False),
    )
    held = 0.0  # the fake's hand closes on nothing
    config = ResetConfig(kind="path", path=path, held=held, range_m=0.01, lift_m=0.02)
    settings = RealTaskConfig(motion=bench.motion, observe="state", origin_m=(0.0, 0.0, 0.0))
    (task := RealTask(settings)).name = "press"
    stiff, gains = bench.profile.controller.modes[RESET].parameters[GAIN], bench.history(GAIN)
    rng, check = np.random.default_rng(0), lambda reading: "".join(missing)
    reset = ArmReset(task, bench.arm, config, bench.motion, home, rng, check)
    bench.make_ready()
    bench.drive(until=lambda: bench.opening() < 0.02, gripper=-1.0)
    since = len(bench.states)
    assert actor_of(bench, reset, task, records, missing).bring_to_start()
    assert not missing, "no person was asked"
    assert bench.has_reported("reset", since)
    assert 1e3 * math.dist(bench.position().tolist(), reset.start.position) < 3.0
    assert bench.arm.gains is None, "the gains of episodes are back"
    eventually(lambda: stiff in gains and gains[-1] < stiff, found=lambda: str(gains))
    steps = [record for record in records if isinstance(record, Step)]
    assert {step.source for step in steps} == {ActionSource.SCRIPT}
    readings = [step.observation.state for step in steps]
    opened = next(each for each in readings if each["gripper"][0] > 0.5)
    assert math.dist(opened["tcp_from_start"].tolist(), place_m) < 0.02


def test_joints_move_home_behind_guard_and_stop_midway(guarded: JointBench) -> None:
    bench, arm = guarded, guarded.arm
    bench.make_ready()
    bench.client("estop")
    bench.move(0.25)
    bench.call("estop")
    assert "joints" in {state for _, state in bench.states}
    bench.until("estop: the service")
    arm.stop("the guard stopped the arm")  # as the control loop does
    bench.take()
    bench.recover()
    stood_rad = bench.angle_rad()
    assert 0.04 < stood_rad < 0.25, "the stop must end the move"
    bench.move(0.02)
    bench.drive(until=lambda: arm.is_home)
    assert abs(bench.angle_rad()) < 0.02
    bench.drive(until=lambda: bench.state.startswith("reset"))
    rival = bench.publisher(topic_of(TRAJECTORIES, ROBOT, 1)._replace(name=TRAJECTORIES.name))
    bench.until(f"protective stop: others publish {bench.prefix}/joint_trajectory")
    bench.operator.handle.destroy_publisher(rival)


@pytest.mark.skipif(
    importlib.util.find_spec("control_msgs") is None,
    reason="NOT TESTED: grippers by control_msgs/action/GripperCommand, which no wheel has",
)
def test_gripper_that_rejects_goals_stops_arm(tmp_path: Path) -> None:
    with ProfileBench(tmp_path, "ur5e", file_of("ur5e")) as bench:
        bench.make_ready()
        bench.misbehave("numb")
        line = "protective stop: /robotiq_gripper_controller/gripper_cmd: the gripper took no goal"
        bench.drive(until=lambda: bench.state.startswith(line), gripper=-1.0)
