"""A guard, an arm and an actor as processes, and what passes between them."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from std_msgs.msg import Bool

from serl import plugins
from serl.arm_profile import ArmProfile
from serl.ros.arm.guard_topics import ESTOP
from serl.ros.arm.topics import COMMAND, topic_of
from serl.ros.node import RosNode
from serl.ros.testing.processes import ROBOT, GuardProcesses, eventually

from ...support.guarding import config

PROFILE: ArmProfile = plugins.load("robot", "sim")
_HERE = Path(__file__).parent
_STILL_M = 1e-9
_STANDS = 20
"""Setpoints in a row that are the same: 200 ms, in which nobody leads the arm back."""


class Line(NamedTuple):
    """What the arm wrote down, with its monotonic time."""

    at_s: float
    words: list[str]


@dataclass
class Stop:
    """How an arm came to stand.

    Attributes:
        noticed_s: from the fault to the guard's word, or to the arm's own hold.
        stood_s: from the fault to a commanded velocity of zero.
        travel_m: what the setpoint moved meanwhile.
    """

    noticed_s: float
    stood_s: float
    travel_m: float


class Cell(GuardProcesses):
    """The simulated arm's process, an actor, and further processes beside the guard."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, config())
        self.environment["PYTHONPATH"] = os.pathsep.join(
            filter(None, [str(_HERE.parent.parent), os.environ.get("PYTHONPATH")])
        )
        self._lines: list[Line] = []
        self._read_to = 0

    def start_arm(self, **faults: Any) -> None:
        self.break_arm(**faults)
        self.start("arm", str(_HERE / "arm_process.py"), str(self.folder), ROBOT)

    def start_camera(self, camera: str) -> None:
        """A camera with a sensor's noise, which records what it does in `<camera>.txt`."""
        record = str(self.folder / f"{camera}.txt")
        self.start(camera, str(_HERE / "fake_camera.py"), self.prefix, camera, record)

    def start_actor(self, mode: str = "policy") -> None:
        self.start("actor", str(_HERE / "driving_process.py"), str(self.folder), ROBOT, mode)

    def start_steered(self, hand: bool = True) -> None:
        """An actor that a person's device steers, and that device's process."""
        self.start("actor", str(_HERE / "steered_process.py"), str(self.folder), ROBOT)
        if hand:
            self.start_hand()

    def start_hand(self) -> None:
        """The process of a person's device, who leads the arm around."""
        self.start("hand", str(_HERE / "steering_process.py"), str(self.folder), ROBOT)

    def start_console(self) -> None:
        """The page of the run, beside the actor that drives this arm."""
        folder = str(self.folder)
        self.start(
            *("console", "-m", "serl.ros.nodes.console", "--run", folder, "--actor", ROBOT),
            *("--port", "8970", "--guard", ROBOT, "--latch", str(self.latch)),
        )

    def start_reader(self) -> None:
        """A controller that asks for reliable setpoints, as those of ros2_control do."""
        topic = f"{self.prefix}/{PROFILE.target.name}"
        before = self.operator.handle.count_subscribers(topic)
        self.start("reader", str(_HERE / "reader_process.py"), str(self.folder), topic)
        eventually(lambda: self.operator.handle.count_subscribers(topic) > before)

    def start_witness(self) -> None:
        """Who writes down what an arm hears that is `witnessed`."""
        self.start("witness", str(_HERE / "witness_process.py"), str(self.folder), ROBOT)

    def start_all(self, mode: str = "policy", steered: bool = False, **faults: Any) -> None:
        """All three, with the arm on its way around the circle; a person may steer it."""
        self.start_arm(**faults)
        self.start_guard()
        if steered:
            self.start_steered()
        else:
            self.start_actor(mode)
        eventually(lambda: self.is_taken(mode), found=lambda: self.state)

    def drive(self) -> None:
        """Wait until the actor, started again if it has ended, drives the arm by its policy."""
        if self.processes["actor"].poll() is not None:
            self.start_actor()
        eventually(lambda: self.is_taken("policy"), found=lambda: self.state)

    def let_go(self) -> None:
        """Wait until the guard is disarmed; who was stopped because the machine was late is so."""

        def gone() -> bool:
            if self.state.startswith("protective stop"):
                self.call("ack")
            return self.state.startswith("disarmed")

        eventually(gone, found=lambda: self.state)

    def is_taken(self, mode: str) -> bool:
        """Whether the arm is driven; armed until it is, on a machine that is late at first."""
        guard = self.processes["guard"]
        assert guard.poll() is None, guard.communicate()[1]
        if self.state.startswith("protective stop"):
            self.call("ack")
        elif self.state.startswith("disarmed"):
            self.call("arm")
        return self.state.startswith(mode)

    def arm(self) -> None:
        """Arm the guard as soon as it can be."""
        eventually(lambda: self.call("arm")[0])

    def break_arm(self, **faults: Any) -> None:
        """Let the arm have these faults, and no others."""
        scratch = self.folder / "arm_faults.new"
        scratch.write_text(json.dumps(faults))
        scratch.replace(self.folder / "arm_faults.yaml")

    def lines(self, after_s: float) -> Iterator[Line]:
        """What the arm wrote down since."""
        path = self.folder / "arm.txt"
        if path.exists():
            with path.open() as file:
                file.seek(self._read_to)
                text, _, _ = file.read().rpartition("\n")
            self._read_to += len(text) + bool(text)
            for line in text.splitlines():
                at, *words = line.split(" ")
                self._lines.append(Line(float(at), words))
        yield from (line for line in self._lines if line.at_s >= after_s)

    def press_button(self) -> Callable[[], float]:
        """Stops the arm by the topic."""
        buttons = self.publisher(ESTOP)
        buttons.publish(Bool(data=False))  # does nothing
        eventually(lambda: buttons.get_subscription_count() > 0)

        def press() -> float:
            begin_s = time.monotonic()
            buttons.publish(Bool(data=True))
            return begin_s

        return press

    @contextmanager
    def stranger(self) -> Iterator[None]:
        """Somebody else who publishes setpoints, in another participant."""
        with RosNode("stranger", self.folder, local=True) as node:
            node.publisher(topic_of(PROFILE.target, self.prefix, COMMAND))
            yield

    def moves(self) -> bool:
        """The setpoint moves now."""
        places = [line.words[1:] for line in self.lines(time.monotonic() - 0.1)]
        return len({tuple(place) for place in places if len(place) == 3}) > 2

    def stop_after(self, fault_s: float, *signs: str) -> Stop | None:
        """How the arm came to stand after a fault; None while it does not.

        Args:
            fault_s: when the fault was.
            signs: beginnings of what the arm writes down when the fault has been noticed.
        """
        noticed_s, before, travel_m = None, None, 0.0
        stood: list[float] = []  # since when, and then
        for at_s, words in self.lines(fault_s):
            text = " ".join(words)
            if noticed_s is None and text.startswith(signs):
                noticed_s = at_s - fault_s
            if words[0] == "holds":
                return Stop(noticed_s or at_s - fault_s, at_s - fault_s, travel_m)
            if words[0] != "setpoint":
                continue
            place = [float(word) for word in words[1:]]
            step_m = math.dist(place, before) if before else math.inf
            before = place
            stood = [*stood, at_s - fault_s] if step_m < _STILL_M else []
            if len(stood) == _STANDS:  # a circle has no place where it stands
                return Stop(noticed_s or stood[0], stood[0], travel_m)
            travel_m += step_m if math.isfinite(step_m) else 0.0
        return None

    def stopped(self, fault_s: float, *signs: str) -> Stop:
        """The same, once it stands."""
        eventually(lambda: self.stop_after(fault_s, *signs), 5.0, lambda: self.state)
        found = self.stop_after(fault_s, *signs)
        assert found is not None
        return found

    def stops(
        self,
        strike: Callable[[], float],
        sign: str,
        noticed_s: float = 0.2,
        stood_s: float = 0.3,
    ) -> None:
        """Strike a moving arm, and see it stand in time.

        A machine that wakes up this process or the arm's too late excuses that. Of the guard's own
        gaps it excuses a tenth of a second at most: a guard that stalls is what is looked for.
        """
        eventually(self.moves)
        self.lateness.worst_s = 0.0
        begin_s = time.monotonic()
        stop = self.stopped(strike(), sign)
        lines = list(self.lines(begin_s))
        late_s = [float(each.words[1]) for each in lines if each.words[0] == "late"]
        heard_s = [each.at_s for each in lines if each.words[0] == "setpoint"]
        gap_s = max((b - a - 0.01 for a, b in pairwise(heard_s)), default=0.0)  # each 10 ms
        allowed_s = max(3.0 * max([self.lateness.worst_s, *late_s]), min(0.1, gap_s))
        assert stop.noticed_s <= noticed_s + allowed_s, (stop, allowed_s)
        assert stop.stood_s <= stood_s + allowed_s, (stop, allowed_s)
        assert stop.travel_m <= config().worst_travel_m

    def longest_gap_s(self, after_s: float, count: int) -> float:
        """Between two of the next `count` setpoints that the arm hears."""

        def times() -> list[float]:
            return [line.at_s for line in self.lines(after_s) if line.words[0] == "setpoint"]

        eventually(lambda: len(times()) >= count, found=lambda: f"{len(times())} setpoints")
        heard_s = [after_s, *times()[:count]]
        return max(b - a for a, b in pairwise(heard_s))

    def longest_step_m(self, after_s: float) -> float:
        """Between two setpoints in a row since then."""
        places = [line.words[1:] for line in self.lines(after_s) if line.words[0] == "setpoint"]
        numbers = [[float(word) for word in place] for place in places]
        return max(map(math.dist, numbers[:-1], numbers[1:]))
