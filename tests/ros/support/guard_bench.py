"""A test bench with a guard, an arm and an actor as processes, over real DDS."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
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
"""Equal setpoints in a row after which the arm counts as stopped: 200 ms."""


class Line(NamedTuple):
    """A line of the arm's record: its monotonic time and its words."""

    at_s: float
    words: list[str]


@dataclass
class Stop:
    """A stop of the arm after a fault.

    Attributes:
        noticed_s: time from the fault to the guard's report, or to the arm's own hold.
        stood_s: time from the fault to a commanded velocity of zero.
        travel_m: travel of the setpoint in between.
    """

    noticed_s: float
    stood_s: float
    travel_m: float


class GuardBench(GuardProcesses):
    """A guard with a fake arm, an actor and further processes."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, config())
        self.environment["PYTHONPATH"] = os.pathsep.join(
            filter(None, [str(_HERE.parent.parent), os.environ.get("PYTHONPATH")])
        )
        self._lines: list[Line] = []
        self._read_to = 0

    def start_arm(self, **faults: Any) -> None:
        self.set_arm_faults(**faults)
        self.start("arm", str(_HERE / "arm_process.py"), str(self.folder), ROBOT)

    def start_camera(self, camera: str) -> None:
        """Start a camera with a sensor's noise; it records its actions in `<camera>.txt`."""
        record = str(self.folder / f"{camera}.txt")
        self.start(camera, str(_HERE / "fake_camera.py"), self.prefix, camera, record)

    def start_actor(self, mode: str = "policy") -> None:
        self.start("actor", str(_HERE / "driving_process.py"), str(self.folder), ROBOT, mode)

    def start_teleoperated(self, device: bool = True) -> None:
        """Start an actor driven by an operator's device, and the process of that device."""
        self.start("actor", str(_HERE / "teleoperated_process.py"), str(self.folder), ROBOT)
        if device:
            self.start_device()

    def start_device(self) -> None:
        """Start the process of an operator's device that moves the arm in a circle."""
        self.start("device", str(_HERE / "device_process.py"), str(self.folder), ROBOT)

    def start_console(self) -> None:
        """Start the console of the run for the actor of this arm."""
        folder = str(self.folder)
        self.start(
            *("console", "-m", "serl.ros.nodes.console", "--run", folder, "--actor", ROBOT),
            *("--port", "8970", "--guard", ROBOT, ROBOT, str(self.latch)),
        )

    def start_reader(self) -> None:
        """Start a second, reliable subscriber to setpoints, as controllers of ros2_control are."""
        topic = f"{self.prefix}/{PROFILE.target.name}"

        def readers() -> set[bytes]:
            found = self.operator.handle.get_subscriptions_info_by_topic(topic)
            return {bytes(each.endpoint_gid) for each in found}

        before = readers()  # dead readers may disappear at any time
        self.start("reader", str(_HERE / "subscriber_process.py"), str(self.folder), ROBOT)
        eventually(lambda: readers() - before)

    def start_recorder(self) -> None:
        """Start a record of the messages to an arm that is `recorded_elsewhere`."""
        script, record = str(_HERE / "subscriber_process.py"), str(self.folder / "arm.txt")
        self.start("recorder", script, str(self.folder), ROBOT, record)

    def start_all(self, mode: str = "policy", teleoperated: bool = False, **faults: Any) -> None:
        """Start all three and wait until the arm moves in a circle, perhaps by a device."""
        self.start_arm(**faults)
        self.start_guard()
        if teleoperated:
            self.start_teleoperated()
        else:
            self.start_actor(mode)
        eventually(lambda: self.is_driven(mode), found=lambda: self.state)

    def until_driven(self) -> None:
        """Wait until the actor's policy drives the arm; start the actor again if it has ended."""
        if self.processes["actor"].poll() is not None:
            self.start_actor()
        eventually(lambda: self.is_driven("policy"), found=lambda: self.state)

    def until_disarmed(self) -> None:
        """Wait until the guard is disarmed; acknowledge protective stops of a late machine."""

        def is_disarmed() -> bool:
            if self.state.startswith("protective stop"):
                self.call("ack")
            return self.state.startswith("disarmed")

        eventually(is_disarmed, found=lambda: self.state)

    def is_driven(self, mode: str) -> bool:
        """Return whether the arm is driven in this mode, or in any if it is empty.

        A guard that is stopped or disarmed is acknowledged or armed.
        """
        guard = self.processes["guard"]
        assert guard.poll() is None, guard.communicate()[1]
        if self.state.startswith("protective stop"):
            self.call("ack")
        elif self.state.startswith("disarmed"):
            self.call("arm")
        return self.state.startswith(mode)

    def arm(self) -> None:
        """Arm the guard as soon as it accepts that."""
        eventually(lambda: self.call("arm")[0])

    def set_arm_faults(self, **faults: Any) -> None:
        """Replace the faults of `arm_process.py`."""
        scratch = self.folder / "arm_faults.new"
        scratch.write_text(json.dumps(faults))
        scratch.replace(self.folder / "arm_faults.yaml")

    def lines(self, after_s: float) -> Iterator[Line]:
        """Yield the lines of the arm's record since a time."""
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

    def estop_button(self) -> Callable[[], float]:
        """Return a function that stops the arm by the topic, and returns the time of that.

        It repeats the message, as the topic asks: a killed guard stays discovered for up to 20 s,
        so that a publisher cannot know whether the present guard is.
        """
        buttons = self.publisher(ESTOP)
        buttons.publish(Bool(data=False))  # does nothing
        eventually(lambda: buttons.get_subscription_count() > 0)

        def press() -> float:
            for _ in range(10):
                begin_s = time.monotonic()
                buttons.publish(Bool(data=True))
                with suppress(AssertionError):
                    eventually(lambda: self.state.startswith("estop"), 0.5)
                    break
            return begin_s

        return press

    @contextmanager
    def second_publisher(self) -> Iterator[None]:
        """Run a second publisher of setpoints, the node `stranger`."""
        with RosNode("stranger", self.folder, local=True) as node:
            node.publisher(topic_of(PROFILE.target, self.prefix, COMMAND))
            yield

    def is_moving(self) -> bool:
        """Return whether the setpoint has moved in the last 100 ms."""
        places = [line.words[1:] for line in self.lines(time.monotonic() - 0.1)]
        return len({tuple(place) for place in places if len(place) == 3}) > 2

    def find_stop(self, fault_s: float, *signs: str) -> Stop | None:
        """Return the stop after a fault; None before it.

        Args:
            fault_s: time of the fault.
            signs: beginnings of the lines of the record that show that the fault was noticed.
        """
        noticed_s, before, travel_m = None, None, 0.0
        stood: list[float] = []  # times of equal setpoints
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
            if len(stood) == _STANDS:  # a circle never rests
                return Stop(noticed_s or stood[0], stood[0], travel_m)
            travel_m += step_m if math.isfinite(step_m) else 0.0
        return None

    def wait_for_stop(self, fault_s: float, *signs: str) -> Stop:
        """Return the stop after a fault, once the arm has stopped."""
        eventually(lambda: self.find_stop(fault_s, *signs), 5.0, lambda: self.state)
        found = self.find_stop(fault_s, *signs)
        assert found is not None
        return found

    def assert_stops(
        self,
        strike: Callable[[], float],
        sign: str,
        noticed_s: float = 0.2,
        stood_s: float = 0.3,
    ) -> None:
        """Cause a fault while the arm moves; fail unless it stops in time.

        The limits grow by three times the delays of this process and of the arm's, and by at most
        0.1 s for gaps between the guard's own setpoints, as a stalled guard has to fail.
        """
        # A late machine may stop the arm before it moves; an operator then ends that stop.
        eventually(lambda: self.is_driven("") and self.is_moving(), found=lambda: self.state)
        self.lateness.worst_s = 0.0
        begin_s = time.monotonic()
        stop = self.wait_for_stop(strike(), sign)
        lines = list(self.lines(begin_s))
        late_s = [float(each.words[1]) for each in lines if each.words[0] == "late"]
        heard_s = [each.at_s for each in lines if each.words[0] == "setpoint"]
        gap_s = max((b - a - 0.01 for a, b in pairwise(heard_s)), default=0.0)  # each 10 ms
        allowed_s = max(3.0 * max([self.lateness.worst_s, *late_s]), min(0.1, gap_s))
        assert stop.noticed_s <= noticed_s + allowed_s, (stop, allowed_s)
        assert stop.stood_s <= stood_s + allowed_s, (stop, allowed_s)
        assert stop.travel_m <= config().worst_travel_m

    def longest_gap_s(self, after_s: float, count: int) -> float:
        """Return the longest time between two of the next `count` setpoints at the arm."""

        def times() -> list[float]:
            return [line.at_s for line in self.lines(after_s) if line.words[0] == "setpoint"]

        eventually(lambda: len(times()) >= count, found=lambda: f"{len(times())} setpoints")
        heard_s = [after_s, *times()[:count]]
        return max(b - a for a, b in pairwise(heard_s))

    def longest_step_m(self, after_s: float) -> float:
        """Return the largest distance between successive setpoints since a time."""
        places = [line.words[1:] for line in self.lines(after_s) if line.words[0] == "setpoint"]
        numbers = [[float(word) for word in place] for place in places]
        return max(map(math.dist, numbers[:-1], numbers[1:]))
