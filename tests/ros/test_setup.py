"""The steps of `serl setup` against a fake FR3 that a simulated person guides and stops."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sensor_msgs.msg import Joy

from serl import plugins
from serl.arm_profile import ArmProfile
from serl.errors import SerlError
from serl.geometry import add, subtract
from serl.guard.config import GuardState
from serl.motion import Pose
from serl.ros.arm.guard_client import GuardReport
from serl.ros.arm.topics import SENSOR, topic_of
from serl.ros.node import RosNode
from serl.ros.people.teleop import joy_topic
from serl.ros.setup import stops
from serl.ros.setup.arm import SetupArm
from serl.ros.setup.checks import StepFailed
from serl.ros.setup.session import SetupSession
from serl.ros.setup.steps import STEPS
from serl.ros.testing.bench import SPAWN
from serl.ros.testing.processes import eventually
from serl.runs.guard_setup import ArmNamespace
from serl.workspace import Workspace

from ..support.upstream import file_of
from .conftest import Run
from .support.person import Person

pytestmark = [pytest.mark.ros, pytest.mark.xdist_group("setup")]

PLACE = ArmNamespace("cell", "franka")
FRANKA: ArmProfile = plugins.load("robot", "franka")
PROFILE = FRANKA.model_copy(update={"wrench": None})
CONTROLLER = f"{PLACE.namespace}/{PROFILE.controller.node}"
RUNNERS = {step.name: step.run for step in STEPS}
HOME = (0.3069, 0.0, 0.4869)


class Cell:
    """A fake arm in its own process, a simulated person, and a setup session."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / PLACE.cell
        self.folder.mkdir()
        self.processes = Run(self.folder)
        self.nodes = [RosNode(name, self.folder, local=True) for name in ("setup", "person")]

    def __enter__(self) -> Cell:
        for node in self.nodes:
            node.__enter__()
        self.processes.start(*SPAWN, str(file_of("franka")), PLACE.namespace)
        self.person = Person(self.nodes[1], PLACE, PROFILE)
        profile = PROFILE.within(PLACE.namespace)
        latch = self.folder / "arm.latch"
        self.arm = SetupArm(self.nodes[0], PLACE, profile, self.folder, latch, self.person)
        self.session = SetupSession(self.nodes[0], self.arm, self.person, self.folder / "arm.yaml")
        return self

    def __exit__(self, *failure: Any) -> None:
        self.arm.end_guard()
        self.processes.end()
        for node in self.nodes:
            node.__exit__(None, None, None)

    def misbehave(self, fault: str) -> None:
        self.person.remote.set_parameters(CONTROLLER, {"fault": fault})

    def run(self, step: str) -> str:
        return RUNNERS[step](self.session)

    def refused(self, step: str) -> str:
        with pytest.raises(SerlError) as caught:
            self.run(step)
        assert "\n" not in str(caught.value)
        return str(caught.value)


def run_when_measured(cell: Cell, step: str) -> str:
    """Run a setup step; repeat it while a busy machine measures too low a message rate."""
    for _ in range(10):
        try:
            return cell.run(step)
        except StepFailed as error:
            if "Hz, expected at least" not in str(error):
                raise
    return cell.run(step)


@pytest.fixture(scope="module")
def cell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cell]:
    with Cell(tmp_path_factory.mktemp("first_day")) as made:
        made.run("limits")  # sets the controller gains that the guard requires
        yield made


@pytest.fixture(autouse=True)
def _well(cell: Cell) -> None:
    cell.misbehave("")
    cell.person.answers.clear()
    cell.person.whenever.clear()


def test_connection_step_measures_rates_of_driver(cell: Cell) -> None:
    found = run_when_measured(cell, "connection")
    assert found.startswith("pose ")
    assert "joints" in found


@pytest.mark.parametrize("what", ["target", "gripper"])
def test_connection_step_refuses_arm_with_another_command_publisher(what: str, cell: Cell) -> None:
    profile = cell.session.profile
    assert profile.gripper is not None
    channel = profile.target if what == "target" else profile.gripper.command
    with RosNode("stranger", cell.folder, local=True) as stranger:
        stranger.publisher(topic_of(channel, "", SENSOR))
        eventually(lambda: cell.nodes[0].handle.count_publishers(channel.name))
        while "Hz, expected at least" in (line := cell.refused("connection")):
            """Repeat while a busy machine measures too low a message rate."""
    assert line.startswith(f"others publish {channel.name}: ")
    assert line.endswith("/stranger: end them first")


def test_limits_step_refuses_wrong_gains_joints_out_of_range_and_unset_payload(cell: Cell) -> None:
    assert "parameters set and read back" in cell.run("limits")
    cell.misbehave("stubborn")
    assert "controller is active" in cell.refused("limits")
    cell.misbehave("forgetful")
    line = cell.refused("limits")
    assert "task.k_pos_x is 1000.0, expected 2000.0" in line
    cell.misbehave("")
    whole = cell.session.profile
    low = (*whole.joint_low_rad[:3], -1.0, *whole.joint_low_rad[4:])
    home = (*whole.home_rad[:3], -0.5, *whole.home_rad[4:])
    cell.session.profile = whole.model_copy(update={"joint_low_rad": low, "home_rad": home})
    line = cell.refused("limits")
    cell.session.profile = whole
    assert line.startswith("fr3_joint4 is at -2.356 rad, outside its limits -1.000")
    cell.person.answers["limits.payload"] = "n"
    assert cell.refused("limits").startswith("payload: set it at the arm")
    cell.person.answers.clear()
    assert "parameters set and read back" in cell.run("limits")


def test_frames_step_measures_axes_after_first_start_stop_is_released(cell: Cell) -> None:
    assert cell.run("frames") == "x forward, y left, z up"
    assert "guard.release" in cell.person.asked, "the operator releases the stop of the first start"


def test_each_stop_is_asked_about_while_the_arm_is_taken(
    cell: Cell, monkeypatch: pytest.MonkeyPatch
) -> None:
    disarmed, stop = GuardReport(GuardState.DISARMED, ""), GuardReport(GuardState.ESTOP, "a person")
    states = iter((stop, disarmed, stop, disarmed))
    ended, answers = list[GuardState](), iter("yn")

    def end(state: GuardState) -> str:
        ended.append(state)
        return "the arm moves" if state is GuardState.DISARMED else ""

    monkeypatch.setattr(cell.arm, "report", lambda: next(states))
    monkeypatch.setattr(cell.arm, "_end", end)
    monkeypatch.setattr(cell.arm, "_await_change", lambda state, limit_s: None)
    cell.person.answers["guard.release"] = lambda: next(answers)
    with pytest.raises(StepFailed, match="the arm stays stopped: estop: a person"):
        cell.arm.take()
    assert ended == [GuardState.ESTOP, GuardState.DISARMED]


def test_frames_step_refuses_mirrored_frame_before_asking_operator(cell: Cell) -> None:
    cell.misbehave("mirrored")
    cell.person.asked.clear()
    line = cell.refused("frames")
    assert "commanded along +x" in line
    assert "same frame" in line
    assert "frames.x" not in cell.person.asked


def test_frames_step_refuses_axis_that_operator_saw_in_another_direction(cell: Cell) -> None:
    cell.person.answers["frames.x"] = "left"
    line = cell.refused("frames")
    assert line.startswith("x: the tool went left, expected forward")


def test_workspace_step_refuses_inverted_or_small_box_and_saves_valid_box(cell: Cell) -> None:
    answers, guide = cell.person.answers, cell.person.guide
    x, y, z = HOME
    answers["workspace.home"] = lambda: guide(HOME)
    answers["workspace.low"] = lambda: guide((x - 0.05, y + 0.04, z - 0.04))
    answers["workspace.high"] = lambda: guide((x + 0.03, y - 0.04, z + 0.04))
    assert "the box is inverted along y" in cell.refused("workspace")
    answers["workspace.low"] = lambda: guide((x - 0.01, y - 0.04, z - 0.04))
    answers["workspace.high"] = lambda: guide((x + 0.01, y + 0.04, z + 0.04))
    assert "the box is 0.020 m along x: expected 0.04 to 1.5 m" in cell.refused("workspace")
    answers["workspace.low"] = lambda: guide((x - 0.05, y - 0.04, z - 0.04))
    answers["workspace.high"] = lambda: guide((x + 0.03, y + 0.04, z + 0.04))
    answers["workspace.end"] = lambda: guide(HOME) + cell.person.hands_off()
    assert cell.run("workspace") == "box of 8 x 8 x 8 cm"
    place = cell.session.profile.workspace
    assert place is not None
    assert place.low_m == pytest.approx((x - 0.05, y - 0.04, z - 0.04), abs=0.003)
    assert place.reference == pytest.approx((1.0, 0.0, 0.0, 0.0))


def test_workspace_step_accepts_typed_corners_when_arm_is_not_guided(cell: Cell) -> None:
    """Accept typed corners, as for a simulated arm; home is the current TCP position."""
    before = cell.session.profile
    x, y, z = cell.person.place
    by_hand = {"max_rotation_rad": 0.2, "keep_out": [{"low_m": (9, 9, 9), "high_m": (10, 10, 10)}]}
    corners = {"low_m": subtract(HOME, (0.1, 0.1, 0.1)), "high_m": add(HOME, (0.1, 0.1, 0.1))}
    own = Workspace.model_validate(
        {**corners, "home_m": HOME, "reference": (1.0, 0.0, 0.0, 0.0), **by_hand}
    )
    cell.session.profile = before.model_copy(update={"workspace": own})
    assert "0.000 m along x" in (line := cell.refused("workspace"))
    assert line.endswith("the tool was not guided: guide it, or type the corners")
    typed = iter(("0.1,0.2", f"{x - 0.1},{y - 0.2},{z - 0.3}"))
    cell.person.answers["workspace.low"] = lambda: next(typed)
    cell.person.answers["workspace.high"] = f"{x + 0.1}, {y + 0.2}, {z + 0.3}"
    assert cell.run("workspace") == "box of 20 x 40 x 60 cm"
    assert "place '0.1,0.2': expected x,y,z in m, such as 0.3,-0.2,0.05" in cell.person.said
    place = cell.session.profile.workspace
    assert place is not None
    assert place.low_m == pytest.approx((x - 0.1, y - 0.2, z - 0.3))
    assert place.home_m == pytest.approx((x, y, z), abs=0.003)
    assert (place.max_rotation_rad, place.keep_out) == (own.max_rotation_rad, own.keep_out)
    typed = iter(("0.4,0,0.2", ""))
    cell.person.answers = {"workspace.home": lambda: next(typed)}
    cell.refused("workspace")
    cell.session.profile = before
    assert "'0.4,0,0.2': home is where the arm stands: Enter alone" in cell.person.said


def test_takeover_step_passes_when_operator_takes_over_and_releases(cell: Cell) -> None:
    began_s = time.monotonic()

    def hands() -> None:
        """Steer for two seconds in every four, starting with a second without input."""
        on = 1.0 < (time.monotonic() - began_s) % 4.0 < 3.0
        cell.person.steer(1.0 if on else 0.0, 0.0, 0.0)

    timer = cell.nodes[1].handle.create_timer(0.05, hands)
    try:
        assert cell.run("takeover").startswith("steered ")
    finally:
        cell.nodes[1].soon(lambda: cell.nodes[1].handle.destroy_timer(timer))


def test_takeover_step_names_a_takeover_that_moved_the_tool_too_little() -> None:
    motion = stops._TakeoverMotion()
    assert motion.complaint() == "no takeover within 60 s: does the device report?"
    for place in (HOME, add(HOME, (0.004, 0.0, 0.0))):
        motion.more(np.ones(3, np.float32), Pose(place, (1.0, 0.0, 0.0, 0.0)))
    motion.forget()  # released
    assert motion.complaint() == "you took over, and the tool went 0.4 cm in 60 s"


def test_estop_step_passes_when_stop_latches_over_restart_and_is_released(cell: Cell) -> None:
    cell.person.whenever["estop"] = cell.person.push_button
    found = cell.run("estop")
    assert "stayed stopped over a restart, was released" in found


def test_device_stop_button_stops_arm_in_every_setup_step(cell: Cell) -> None:
    """Press the device's stop in the frames step, which does not test takeovers or stops."""
    assert cell.session.people.operators
    joy = cell.nodes[1].publisher(joy_topic(PLACE.robot))
    presses = [0] * 20 + [1] * 400  # down once, while the tool moves

    def press() -> None:
        down = presses.pop(0) if cell.arm.driver.mode == "reset" else 0
        joy.publish(Joy(axes=[0.0] * 8, buttons=[0] * 8 + [down]))

    timer = cell.nodes[1].handle.create_timer(0.02, press)
    try:
        assert cell.refused("frames") == "the guard stopped the arm: estop: the topic estop"
    finally:
        cell.nodes[1].soon(lambda: cell.nodes[1].handle.destroy_timer(timer))


def test_estop_step_refuses_arm_that_keeps_moving(cell: Cell) -> None:
    def press() -> bool:
        cell.misbehave("runaway")
        return cell.person.push_button()

    cell.person.whenever["estop"] = press
    line = cell.refused("estop")
    assert "the arm went on for" in line or "does not follow" in line


@pytest.mark.slow
def test_stop_button_step_passes_when_arm_stops_and_refuses_when_it_moves(cell: Cell) -> None:
    def press() -> bool:
        cell.misbehave("stuck")
        return True

    def release() -> str:
        cell.misbehave("")
        return ""

    cell.person.answers["stop_button.released"] = release
    cell.person.whenever["stop_button"] = lambda: True  # Enter, and nothing pressed
    assert "the arm still moves" in cell.refused("stop_button")
    cell.person.whenever["stop_button"] = press
    assert cell.run("stop_button") == "stood, and moved again once it was released"


def test_stop_button_step_refuses_stop_by_another_button(cell: Cell) -> None:
    """Refuse a stop by the guard's topic, which leaves the arm's own button untested."""
    cell.person.whenever["stop_button"] = cell.person.push_button
    line = cell.refused("stop_button")
    assert line == "the guard stopped the arm: the topic estop: that was not the arm's own button"


@pytest.mark.slow
def test_stop_button_step_asks_operator_when_pressed_arm_stops_publishing(
    cell: Cell,
) -> None:
    def press() -> bool:
        cell.misbehave("silent")
        return False

    def release() -> str:
        cell.misbehave("")
        return ""

    answers = cell.person.answers
    cell.person.whenever["stop_button"] = press
    answers["stop_button.stood"] = lambda: release() or "n"
    assert "the arm does not stand still" in cell.refused("stop_button")
    answers["stop_button.stood"] = "y"
    answers["stop_button.released"] = release
    assert cell.run("stop_button") == "stood, and moved again once it was released"


@pytest.mark.slow
def test_dry_run_step_reaches_both_corners_and_home(cell: Cell) -> None:
    room = (0.04, 0.04, 0.04)
    place = Workspace(
        low_m=subtract(HOME, room),
        high_m=add(HOME, room),
        home_m=HOME,
        reference=(1.0, 0.0, 0.0, 0.0),
    )
    cell.session.profile = cell.session.profile.model_copy(update={"workspace": place})
    assert cell.run("dry_run").startswith("both corners and home reached")
