"""A fake Franka with an object tracker, and answers to the questions of a command."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path

from geometry_msgs.msg import PoseStamped
from sensor_msgs.msg import Joy

from serl.datasets.person import ACTOR
from serl.errors import SerlError
from serl.ros.node import RosNode, namespace
from serl.ros.people.teleop import joy_topic
from serl.ros.testing.processes import eventually
from serl.ros.topics import Topic

from ...support.command import LIMIT_S, Command
from ..conftest import Run
from .franka import start_franka

GOAL_M = (0.5, 0.0, 0.3)
SEEN, GOES_ON = "Enter confirms that it is safe to continue\n", ": Enter continues\n"
MOVES = ": Enter ends the actor's stop\n"
ENDS = ": Enter ends the guard's stop\n"
ARMS = ("stop\n", SEEN)
PROGRESS = " | steps "
SUCCESS, FAILURE, STOP, _ENABLE = 0, 1, 8, 5  # buttons
_REST_TICKS = 20
SMALL = (
    *("--agent.hidden", "[16, 16]", "--agent.batch_size", "16", "--agent.threads", "1"),
    *("--agent.critics", "2", "--agent.subset", "2", "--agent.utd", "1"),
)
PATIENT = ("--teleop.operator.stale_s=0.5", "--teleop.operator.lost_s=8.0")
"""Settings for a busy machine."""

PROFILE = """
from serl import plugins
from serl.workspace import Workspace
franka = plugins.load("robot", "franka")
controller = franka.controller.model_copy(update={"parameters": {"limit_error": True}})
place = Workspace(
    low_m=(-0.2, -0.7, 0), high_m=(0.9, 0.7, 0.9), home_m=(0.3, 0, 0.5), reference=(1, 0, 0, 0)
)
own = {"name": "mine", "wrench": None, "controller": controller, "workspace": place}
robot = franka.model_copy(update=own)
"""


@contextmanager
def franka_beside_a_goal(folder: Path, place: str | None = None) -> Iterator[tuple[Run, str]]:
    """Yield the driver's processes and the namespace of its topics; `mine.py` is its profile."""
    with frankas_beside_goals(folder, place) as (driver, (arm,), _):
        yield driver, arm


@contextmanager
def frankas_beside_goals(
    folder: Path, *places: str | None
) -> Iterator[tuple[Run, list[str], RosNode]]:
    """Yield the drivers' processes, the namespaces of their topics, and a further node."""
    (folder / "mine.py").write_text(PROFILE)
    driver = Run(folder / "driver")
    driver.folder.mkdir()
    arms = [start_franka(driver, place) for place in places]
    ending = threading.Event()
    tracker = threading.Thread(target=_track, args=(driver.folder, arms, ending))
    tracker.start()
    try:
        with RosNode("watcher", driver.folder, local=True) as node:
            yield driver, arms, node
    finally:
        ending.set()
        tracker.join()
        driver.end()


def publish_joystick(
    node: RosNode, folder: Path, drive_ticks: int, pressed: Callable[[int], int | None]
) -> None:
    """Publish a joystick that in turn rests for a second and drives with a pressed button."""
    topic, ticks = joy_topic(ACTOR), count()
    sticks = node.publisher(topic._replace(name=f"{namespace(folder)}/{topic.name}"))

    def move() -> None:
        tick, buttons = next(ticks) % (_REST_TICKS + drive_ticks) - _REST_TICKS, [0] * 12
        if tick >= 0:
            buttons[_ENABLE] = 1
            if (button := pressed(tick)) is not None:
                buttons[button] = 1
        sticks.publish(Joy(axes=[0.0, float(tick >= 0), *[0.0] * 6], buttons=buttons))

    node.every(1 / _REST_TICKS, move)


def _track(folder: Path, arms: Sequence[str], ending: threading.Event) -> None:
    """Publish the goal's pose near each arm; rejoin when the node has lost its ports.

    Fast DDS takes a process that stands still for a second, as on a starved machine, for dead, and
    removes its ports. Such a node no longer hears of new subscribers: they get no message at all.
    """
    while not ending.is_set():
        with suppress(SerlError), RosNode("tracker", folder, local=True) as node:
            goals = [node.publisher(Topic(f"{arm}/goal_pose", PoseStamped, 1)) for arm in arms]
            goal, clock = PoseStamped(), node.handle.get_clock()
            goal.header.frame_id, place = "base", goal.pose.position
            place.x, place.y, place.z = GOAL_M
            while not ending.wait(0.01) and not node.deaf:
                goal.header.stamp = clock.now().to_msg()
                for publisher in goals:
                    publisher.publish(goal)


def answer_all(command: Command, ends: Sequence[str] = (*ARMS, GOES_ON)) -> None:
    """Press Enter at each of these questions, until the command ends."""
    answer_until(command, lambda: not command.is_running, ends)


def answer_until(
    command: Command, condition: Callable[[], object], ends: Sequence[str] = ARMS
) -> None:
    """Press Enter at each of these questions, also repeated ones, until a condition holds.

    After the question about an emergency stop, its end is confirmed as well.
    """
    ends = (*ends, ENDS) if SEEN in ends else ends
    answered = 0

    def done() -> object:
        nonlocal answered
        said = [line for line in command.output.splitlines(True) if PROGRESS not in line]
        if len(said) > answered and said[-1].endswith(tuple(ends)):
            command.say()
            answered = len(said)
        return condition()

    try:
        eventually(done, 2 * LIMIT_S)
    except AssertionError:
        raise AssertionError(command.output) from None


def questions_until(
    command: Command, done: Callable[[], bool], limit_s: float = LIMIT_S
) -> list[str]:
    """Confirm all questions until a condition holds; return the questions about the scene."""
    asked: list[str] = []

    def step() -> bool:
        lines = [line for line in command.output.splitlines(True) if PROGRESS not in line]
        questions = [line for line in lines if ": Enter " in line and line.endswith("\n")]
        if len(questions) > len(asked):
            asked[:] = questions
            command.say()
        return done() or not command.is_running

    eventually(step, limit_s, lambda: command.output[-2000:])
    assert command.is_running, command.output[-2000:]
    return [question for question in asked if "guard" not in question and "estop" not in question]
