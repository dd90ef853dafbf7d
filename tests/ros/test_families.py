"""Every family of arms: the actor's end, a guard, and a fake of the driver, over real DDS."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from serl.arm_profile import GRIP, RUNNING
from serl.clock import WallClock
from serl.errors import STUCK, SerlError
from serl.loop import EpisodeKey, run
from serl.ros.arm.controller import settle_controller
from serl.ros.arm.guard_client import GuardClient
from serl.ros.arm.robot import GainServices
from serl.specs import Spec
from serl.training.replay import Replay
from serl.types import Action, End, Observation, Record

from ..support.upstream import FAMILIES, facts
from .support.bay import HAS_ACTIONS, MOTION, Bay, Watching
from .support.cell import ROBOT, eventually

pytestmark = pytest.mark.ros

TRIES = 5
"""A busy machine delays; a defect shows at every try."""

GRIPPING = [
    name for name in FAMILIES if facts(FAMILIES[name])["gripper"]["command"]["type"] == GRIP
]


@pytest.mark.parametrize("name", FAMILIES)
def test_the_same_actor_drives_every_family_through_the_guard(name: str, tmp_path: Path) -> None:
    with Bay(tmp_path, name) as bay:
        bay.take()
        y_m = bay.place()[1]
        bay.drive(0.0, 1.0, 0.0, 0.0, until=lambda: bay.place()[1] > y_m + 0.02)
        if bay.profile.gripper is not None and name not in GRIPPING:
            bay.drive(0.0, 0.0, 0.0, -1.0, until=lambda: bay.opening() < 0.1)
            bay.drive(0.0, 0.0, 0.0, 1.0, until=lambda: bay.opening() > 0.9)
        assert bay.cell.state.startswith("policy")
        bay.arm.stop("test")
        bay.cell.until("hold: the actor holds")


@pytest.mark.parametrize("stop", ["estop", "disarm"])
def test_an_arm_that_takes_velocities_stands_when_it_is_stopped(stop: str, tmp_path: Path) -> None:
    with Bay(tmp_path, "ur5e_servo") as bay:
        bay.take()
        heard = bay.velocities()
        y_m = bay.place()[1]
        bay.drive(0.0, 1.0, 0.0, 0.0, until=lambda: bay.place()[1] > y_m + 0.02)
        begin = len(heard)
        bay.cell.call(stop)
        standing = [0.0] * 6
        eventually(lambda: standing in heard[begin:], found=lambda: str(heard[-3:]))
        bay.cell.until({"estop": "estop: the service", "disarm": "disarmed"}[stop])
        if stop == "estop":
            count = len(heard)
            eventually(lambda: len(heard) > count + 50)
        after = heard[begin + heard[begin:].index(standing) :]
        assert all(twist == standing for twist in after)
        assert all(twist[1] >= 0.0 for twist in heard[begin:])  # no retract


def test_an_arm_that_says_it_is_ill_stops_until_it_is_well_and_a_person_has_seen_it(
    tmp_path: Path,
) -> None:
    with Bay(tmp_path, "ur5e") as bay:
        bay.take()
        bay.drive(0.0, 1.0, 0.0, 0.0, until=lambda: bay.cell.state.startswith("policy"))
        bay.misbehave("reflex")
        error = "the arm reports that its program does not run"
        bay.cell.until(f"protective stop: {error}")
        done, why = bay.cell.call("ack")
        assert not done
        assert error in why
        bay.misbehave("")
        eventually(lambda: bay.cell.call("ack")[0])  # nobody else ends it
        bay.cell.until("disarmed")


def test_an_arm_is_not_taken_before_it_said_that_it_is_well(tmp_path: Path) -> None:
    with Bay(tmp_path, "ur5e", fault={"name": "/nobody", "type": RUNNING}) as bay:
        line = "not now: /nobody: nobody tells whether the arm is well"
        eventually(lambda: bay.cell.call("arm")[1] == line, found=lambda: bay.cell.call("arm")[1])


def test_an_arm_of_which_nobody_tells_any_more_whether_it_is_well_is_held(tmp_path: Path) -> None:
    with Bay(tmp_path, "ur5e") as bay:
        line = "robot_program_running: nobody tells any more whether the arm is well"
        bay.take()
        bay.drive(0.0, 1.0, 0.0, 0.0, until=lambda: bay.cell.state.startswith("policy"))
        bay.misbehave("mute")
        name = "/io_and_status_controller/"
        bay.cell.until(f"hold: {name}{line}")
        bay.cell.call("disarm")
        bay.cell.until("disarmed")
        assert bay.cell.call("arm") == (False, f"not now: {name}{line}")
        bay.misbehave("")
        bay.take()
        bay.drive(0.0, 0.0, 0.0, 0.0, until=lambda: bay.cell.state.startswith("policy"))


@pytest.fixture(scope="module")
def crisp(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bay]:
    with Bay(tmp_path_factory.mktemp("crisp"), "franka") as bay:
        yield bay


KINDS = [
    "franka",
    "ur5e_servo",
    *(pytest.param(f, marks=pytest.mark.slow) for f in ("ur5e", "xarm7")),
]


@pytest.fixture(scope="module", params=KINDS)
def bay(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bay]:
    """Of each kind: an impedance, velocities, an admittance, positions."""
    with Bay(tmp_path_factory.mktemp(request.param), request.param) as bay:
        yield bay


@pytest.mark.parametrize(
    ("fault", "sign"),
    [
        ("silent", "hold: pose is stale"),
        ("frozen", "hold: pose is stale"),
        ("late", "hold: pose is old"),
        ("nan", "hold: pose is not finite"),
        ("reflex", ""),
        ("stuck", ""),
        ("dropped", ""),
    ],
)
def test_what_goes_wrong_with_an_arm_is_named_and_the_guard_takes_it_again(
    bay: Bay, fault: str, sign: str
) -> None:
    bay.misbehave("")
    bay.take()
    bay.recover()
    bay.drive(0.0, 0.0, 0.0, 0.0, until=lambda: bay.cell.state.startswith("policy"))
    since = len(bay.cell.states)
    bay.misbehave(fault)
    if fault in ("stuck", "dropped", "reflex"):
        side = 1.0 if bay.place()[1] < 0.0 else -1.0  # of the box
        sign = _reflex(bay) if fault == "reflex" else _stuck(bay)
        bay.drive(0.0, side, 0.0, 0.0, until=lambda: bay.said(sign, since))
        target, tool = bay.arm.aim.target.position, bay.place()
        lead_m = MOTION.limits.lead_m + MOTION.translation_m
        assert np.linalg.norm(np.subtract(target, tool)) < lead_m + 1e-3
    else:
        eventually(lambda: bay.said(sign, since), found=lambda: bay.cell.state)
    bay.misbehave("")
    bay.take()


def _reflex(bay: Bay) -> str:
    """How a family's reflex shows: in what it tells of itself, in what it feels, or not at all."""
    if bay.profile.fault is not None:
        return "protective stop: the arm reports"
    return "protective stop: force 60 N" if bay.profile.wrench else _stuck(bay)


def _stuck(bay: Bay) -> str:
    """One that feels nothing may be pushing."""
    return f"hold: {STUCK}" if bay.profile.wrench else "hold: the arm stands, or pushes"


def test_an_arm_whose_joint_runs_while_the_tool_follows_is_held_then_stopped(crisp: Bay) -> None:
    crisp.misbehave("")
    crisp.take()
    crisp.recover()
    crisp.drive(0.0, 0.0, 0.0, 0.0, until=lambda: crisp.cell.state.startswith("policy"))
    since = len(crisp.cell.states)
    crisp.misbehave("whirling")
    stop = "protective stop: joint 2"
    crisp.drive(0.0, 0.0, 0.0, 0.0, until=lambda: crisp.said(stop, since))
    assert crisp.said("hold: joint 2 turns faster than 1.5 rad/s", since)
    crisp.misbehave("")
    crisp.take()


def test_an_episode_in_which_the_arm_is_stuck_ends_and_what_it_did_not_follow_is_not_learned(
    crisp: Bay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crisp.arm, "guard", GuardClient(crisp.node, ROBOT, crisp.arm.remote))
    for _ in range(TRIES):
        records, learned = _stuck_episode(crisp)
        if "its newest message is" not in _reason(records):
            break  # only a late message of a busy machine is a reason to try again
    assert _reason(records) == f"the guard holds the arm: {STUCK}"
    assert learned <= 6  # at most those in which it moved
    assert len(records) > 20  # all of it is logged
    crisp.misbehave("")
    crisp.take()


def _reason(records: list[Record]) -> str:
    end = records[-1]
    assert isinstance(end, End)
    return end.text


def _stuck_episode(crisp: Bay) -> tuple[list[Record], int]:
    """Run an episode whose arm is stuck from its fifth step on; its records, and steps learned."""
    crisp.misbehave("")
    crisp.take()
    crisp.recover()
    arm = crisp.arm
    side = -1.0 if arm.observe_when_fresh(30.0).state["tcp_pose"][1] > 0.0 else 1.0
    records: list[Record] = []

    def sink(record: Record) -> None:
        if len(records) == 4:
            crisp.misbehave("stuck")
        records.append(record)

    def aside(observation: Observation) -> Action:
        return np.array([0.0, side, 0.0, 0.0], np.float32)

    task, clock = Watching(), WallClock(10.0, arm.beat)
    run(arm, task, aside, clock, EpisodeKey("run", "actor", 0, 0), sink)
    spec = Spec(
        task="watch", observation=task.observation_spec, action=arm.action_spec, rate_hz=10.0
    )
    replay = Replay(spec, 1000, 0.9)
    for record in records:
        replay.add(record)
    return records, len(replay)


def test_the_guard_does_not_take_an_arm_whose_controller_is_set_otherwise(crisp: Bay) -> None:
    crisp.misbehave("")
    crisp.cell.call("disarm")
    crisp.cell.until("disarmed")
    node = f"{ROBOT}/cartesian_impedance_controller"
    crisp.arm.remote.set_parameters(node, {"task.k_pos_x": 3000.0})
    line = "cartesian_impedance_controller: task.k_pos_x is 3000.0, expected 2000.0"
    eventually(lambda: crisp.cell.call("arm")[1].endswith(line))
    crisp.arm.remote.set_parameters(node, {"task.k_pos_x": 2000.0})
    crisp.take()


def test_gains_switch_while_it_runs_and_are_read_back(crisp: Bay) -> None:
    node, modes = f"{ROBOT}/cartesian_impedance_controller", crisp.profile.controller.modes
    _undisturbed(crisp, lambda: crisp.arm.switch("compliance"))
    wanted = modes["compliance"].parameters
    assert crisp.arm.remote.get_parameters(node, list(wanted)) == wanted
    _undisturbed(crisp, lambda: crisp.arm.switch("precision"))
    wanted = modes["precision"].parameters
    assert crisp.arm.remote.get_parameters(node, list(wanted)) == wanted
    for fault, complaint in (
        ("forgetful", "task.k_pos_x is 100.0, expected 200.0"),
        ("stubborn", "controller is active"),
    ):
        crisp.misbehave(fault)
        with pytest.raises(SerlError, match=complaint):
            crisp.arm.switch("compliance")
        assert complaint in (crisp.arm.stop_reason or "")
        crisp.misbehave("")
        crisp.recover()
    settle_controller(crisp.arm.remote, ROBOT, crisp.profile)


def _undisturbed(crisp: Bay, change: Callable[[], object]) -> None:
    """Change the gains of an arm that the guard has taken: on their way they are no fault.

    A guard stops an arm whose gains are on their way for two seconds, as on a busy machine; it has
    seen them at rest at most half a second before. Only then it is tried again.
    """
    for _ in range(TRIES):
        crisp.misbehave("")
        crisp.take()
        crisp.recover()
        since, begun_s = len(crisp.cell.states), time.monotonic()
        change()
        took_s = time.monotonic() - begun_s
        if not crisp.said("protective stop", since):
            return
        assert took_s > 1.5, crisp.cell.states[since:]
    raise AssertionError(f"gains took {took_s:.1f} s at the last of {TRIES} tries")


def test_gains_go_back_to_those_of_the_start_over_half_a_second(crisp: Bay) -> None:
    """An actor that starts beside an armed guard, after another one that was compliant."""
    told = crisp.told("task.k_pos_x")

    def settle() -> None:
        crisp.arm.switch("compliance")
        eventually(lambda: told[-1:] == [200.0], found=lambda: str(told))
        told.clear()
        settle_controller(crisp.arm.remote, ROBOT, crisp.profile)

    _undisturbed(crisp, settle)
    eventually(lambda: told[-1:] == [2000.0], found=lambda: str(told))
    assert told == sorted(told)
    assert max(b - a for a, b in pairwise([200.0, *told])) < 200.0


def test_a_stop_after_a_contact_gets_soft_over_half_a_second_and_stiff_again_after_it(
    crisp: Bay,
) -> None:
    crisp.misbehave("")
    crisp.take()
    crisp.recover()
    crisp.drive(0.0, 0.0, 0.0, 0.0, until=lambda: crisp.cell.state.startswith("policy"))
    told = crisp.told("task.k_pos_x")
    told.clear()
    crisp.misbehave("reflex")  # 60 N
    eventually(lambda: told[-1:] == [200.0], found=lambda: str(told))
    assert crisp.cell.state.startswith("protective stop: force 60 N")
    assert told == sorted(told, reverse=True)
    assert max(a - b for a, b in pairwise([2000.0, *told])) < 200.0
    told.clear()
    crisp.misbehave("")
    crisp.take()
    eventually(lambda: told[-1:] == [2000.0], found=lambda: str(told))
    assert told == sorted(told)
    assert max(b - a for a, b in pairwise([200.0, *told])) < 200.0
    crisp.drive(0.0, 0.0, 0.0, 0.0, until=lambda: crisp.cell.state.startswith("policy"))


def test_a_service_of_the_actor_switches_gains(crisp: Bay) -> None:
    crisp.misbehave("")
    crisp.take()
    crisp.recover()
    GainServices(crisp.node, crisp.arm)
    remote, own = crisp.arm.remote, crisp.node.handle.get_fully_qualified_name()
    node, gain = f"{ROBOT}/cartesian_impedance_controller", ["task.k_pos_x"]
    assert "compliance" in remote.trigger(f"{own}/gains/compliance")
    eventually(lambda: remote.get_parameters(node, gain) == {gain[0]: 200.0})
    crisp.misbehave("stubborn")

    def asked() -> bool:
        with suppress(SerlError):  # the switch before may not be over
            remote.trigger(f"{own}/gains/precision")
        remote.wait(lambda: False, 0.05)
        return "controller is active" in (crisp.arm.stop_reason or "")

    eventually(asked)
    crisp.misbehave("")
    crisp.recover()
    settle_controller(remote, ROBOT, crisp.profile)


@pytest.mark.parametrize(
    ("name", "gain"),
    [
        ("task.k_pos_x", 3000.0),
        ("task.k_rot_z", 1000.0),
        ("task.error_clip.x", 0.1),
        ("task.k_pos_x", 1000.0),  # between two modes: on its way, but it does not get there
    ],
)
def test_an_arm_whose_controller_is_set_otherwise_meanwhile_is_stopped(
    crisp: Bay, name: str, gain: float
) -> None:
    crisp.misbehave("")
    node = f"{ROBOT}/cartesian_impedance_controller"
    settle_controller(crisp.arm.remote, ROBOT, crisp.profile)
    crisp.take()
    crisp.recover()
    crisp.drive(0.0, 0.0, 0.0, 0.0, until=lambda: crisp.cell.state.startswith("policy"))
    since = len(crisp.cell.states)
    wanted = crisp.profile.controller.parameters[name]
    crisp.arm.remote.set_parameters(node, {name: gain})
    cause = (
        f"{crisp.cell.prefix}/cartesian_impedance_controller: {name} is {gain}, expected {wanted}"
    )
    eventually(
        lambda: crisp.said(f"protective stop: {cause}", since), found=lambda: crisp.cell.state
    )
    line = f"not now: {cause}"
    eventually(lambda: crisp.cell.call("ack")[0])
    assert crisp.cell.call("arm")[1] == line
    crisp.arm.remote.set_parameters(node, {name: wanted})
    crisp.take()


with_actions = pytest.mark.skipif(
    not HAS_ACTIONS,
    reason="NOT TESTED: grippers by control_msgs/action/GripperCommand, which no wheel has",
)


@with_actions
@pytest.mark.parametrize("name", GRIPPING)
def test_a_gripper_that_takes_goals_closes_and_opens(name: str, tmp_path: Path) -> None:
    with Bay(tmp_path, name) as bay:
        assert bay.profile.gripper is not None
        bay.take()
        bay.drive(0.0, 0.0, 0.0, -1.0, until=lambda: bay.opening() < 0.1)
        bay.drive(0.0, 0.0, 0.0, 1.0, until=lambda: bay.opening() > 0.9)
        assert bay.cell.state.startswith("policy")


@with_actions
def test_a_gripper_that_takes_no_goal_stops_the_arm(tmp_path: Path) -> None:
    with Bay(tmp_path, "ur5e") as bay:
        bay.take()
        bay.misbehave("numb")
        line = "protective stop: /robotiq_gripper_controller/gripper_cmd: the gripper took no goal"
        bay.drive(0.0, 0.0, 0.0, -1.0, until=lambda: bay.cell.state.startswith(line))
