"""Time alignment of an arm's state and camera images, with a clock set by the test."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from serl import plugins
from serl.arm_pair import UNMOVED_BASE
from serl.arm_profile import ArmProfile
from serl.camera import View
from serl.errors import Silent
from serl.guard.camera_monitor import CameraFault, CameraMonitor
from serl.robot import reading_spec
from serl.ros.arm.measurements import Measurements
from serl.ros.arm.pair import MountedRosArm, RosPair
from serl.ros.arm.publisher import ArmPublisher, PublishedCamera
from serl.ros.arm.robot import RosArm
from serl.ros.arm.topics import SENSOR
from serl.ros.node import RosNode
from serl.ros.topics import Topic
from serl.tasks.reach import ReachConfig
from serl.types import Observation

pytestmark = pytest.mark.ros

PROFILE: ArmProfile = plugins.load("robot", "sim")
BEGAN_NS = 1_700_000_000_000_000_000
STEP_S = 0.01
SIDE_PX = 8
DOWN = (1.0, 0.0, 0.0, 0.0)


class Wire:
    """A stand-in for a node with immediate delivery and a clock set by the test."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.handle = self
        self._heed: dict[str, Callable[[Any], None]] = {}

    def get_clock(self) -> Any:
        return SimpleNamespace(now=lambda: SimpleNamespace(nanoseconds=_stamp_ns(self.now_s)))

    def subscribe(self, topic: Topic, callback: Callable[[Any], None], *, drain: bool) -> None:
        self._heed[topic.name] = callback

    def absolute(self, name: str) -> str:
        return f"/run/{name}"

    def publisher(self, topic: Topic) -> Any:
        return SimpleNamespace(publish=partial(self._deliver, topic.name))

    def _deliver(self, name: str, message: Any) -> None:
        if name in self._heed:
            self._heed[name](message)


class GuardBench:
    """An arm and its cameras; every published value is its measurement time in seconds."""

    def __init__(
        self,
        patch: pytest.MonkeyPatch,
        *cameras: str,
        lockstep: bool = False,
        zero_wrench: bool = False,
        rate_hz: float = 10.0,
        **profile: Any,
    ) -> None:
        self._wire, self._random = Wire(), np.random.default_rng(0)
        patch.setattr("serl.ros.feed.time", SimpleNamespace(monotonic=lambda: self._wire.now_s))
        node, known = cast(RosNode, self._wire), PROFILE.model_copy(update=profile)
        views = {name: View(camera=name, width=SIDE_PX, height=SIDE_PX) for name in cameras}
        observe: Any = "pixels" if views else "state"
        config = ReachConfig(views=views, observe=observe, zero_wrench=zero_wrench, rate_hz=rate_hz)
        self._spec = reading_spec(7, ["cube"], config.all_views)
        self._watch = CameraMonitor(self._spec.images)
        self._measured = Measurements(node, "arm", known, config, ["cube"], lockstep)
        published = {name: PublishedCamera(name) for name in cameras}
        self._told = ArmPublisher(node, "arm", known, ["cube"], published, SENSOR)

    def run(self, seconds: float, arm_silent: bool = False, **delays_s: float) -> None:
        """Publish the arm's current state, unless silent, and camera images with a delay."""
        for _ in range(round(seconds / STEP_S)):
            self._wire.now_s += STEP_S
            now_s = self._wire.now_s
            if not arm_silent:
                self._told.state(_numbers(now_s), _stamp_ns(now_s))
            for camera, delay_s in delays_s.items():
                self._told.pictures(_picture(camera, self._random), _stamp_ns(now_s - delay_s))

    def begin(self) -> None:
        """Begin an episode."""
        self._measured.begin()

    def read(self, other_s: float | None = None) -> Observation:
        """Return an observation after the camera check of an actor."""
        numbers, images, stamps = self._measured.read(other_s)
        numbers["target_pose"] = numbers["tcp_pose"]
        state = {name: np.array(numbers[name], np.float32) for name in self._spec.state}
        self._watch.check(reading := Observation(state, images, stamps))
        return reading


def _stamp_ns(now_s: float) -> int:
    return BEGAN_NS + round(now_s * 1e9)


def _numbers(now_s: float) -> dict[str, list[float]]:
    pose = [now_s, 0.0, 0.0, *DOWN]
    rows = {"tcp_twist": [now_s] * 6, "wrench": [now_s] * 6, "gripper": [now_s]}
    return rows | {"tcp_pose": pose, "cube_pose": pose, "q": [now_s] * 7, "dq": [now_s] * 7}


def _picture(camera: str, rng: np.random.Generator) -> dict[tuple[str, tuple[int, int]], Any]:
    size = SIDE_PX, SIDE_PX
    return {(camera, size): rng.integers(9, 255, (*size, 3), np.uint8)}


def sample_times(reading: Observation) -> dict[str, float]:
    """Return the measurement time that each value of an observation encodes."""
    names = ("tcp_pose", "cube_pose", "tcp_twist", "gripper", "q", "dq")
    return {name: round(float(reading.state[name][0]), 3) for name in names}


def test_state_is_sampled_at_stamp_of_late_image(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = GuardBench(monkeypatch, "front")
    bench.run(0.5, front=0.06)
    reading = bench.read()
    assert set(sample_times(reading).values()) == {0.44}
    assert reading.stamps["robot"] == pytest.approx(reading.stamps["front"]) == 0.44
    # The mean over 0.34 < t <= 0.44.
    assert reading.state["wrench"][0] == pytest.approx(0.395)


@pytest.mark.parametrize(("frame", "sign"), [("base", 1), ("tool", 1), ("base", -1)])
def test_wrench_bias_is_mean_before_the_episode(
    monkeypatch: pytest.MonkeyPatch, frame: str, sign: int
) -> None:
    sensor: dict[str, Any] = {"wrench_frame": frame, "wrench_frames": ("base",)}
    sensor["wrench_reversed"] = sign < 0
    bench = GuardBench(monkeypatch, zero_wrench=True, **sensor)
    bench.run(0.5)
    before = bench.read().state["wrench"]
    bench.begin()
    bench.run(0.3)
    # The means over 0.3 < t <= 0.5 and 0.7 < t <= 0.8; y and z of this tool point backwards.
    signs = sign * np.array([1, -1, -1, 1, -1, -1] if frame == "tool" else [1] * 6)
    np.testing.assert_allclose(bench.read().state["wrench"], signs * (0.755 - 0.405), atol=1e-5)
    plain = GuardBench(monkeypatch, **sensor)
    plain.run(0.5)
    plain.begin()
    np.testing.assert_allclose(plain.read().state["wrench"], before, atol=1e-6)


def test_state_is_nearest_sample_to_image_stamp(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = GuardBench(monkeypatch, "front")
    bench.run(0.5, front=0.0641)
    assert set(sample_times(bench.read()).values()) == {0.44}
    bench.run(0.1, front=0.0659)
    assert set(sample_times(bench.read()).values()) == {0.53}


def test_state_uses_stamp_of_newest_camera_and_checks_age_of_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = GuardBench(monkeypatch, "front", "wrist")
    bench.run(0.5, front=0.06, wrist=0.15)
    reading = bench.read()
    assert set(sample_times(reading).values()) == {0.44}
    assert reading.stamps["wrist"] == pytest.approx(0.35)
    bench.run(0.3, front=0.06, wrist=0.19)
    assert bench.read().stamps["robot"] == pytest.approx(0.74)
    bench.run(0.3, front=0.06, wrist=0.25)
    with pytest.raises(Silent, match=r"wrist/image_raw: its newest message is 0.25 s old"):
        bench.read()


def test_image_older_than_stored_state_is_a_camera_fault(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("serl.ros.arm.measurements.IMAGE_AGE_S", 9.0)
    bench = GuardBench(monkeypatch, "front")
    bench.run(0.02, front=0.3)
    with pytest.raises(CameraFault, match=r"front: its image is 0\.29 s old"):
        bench.read()


def test_state_is_newest_sample_without_cameras(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = GuardBench(monkeypatch)
    bench.run(0.5)
    assert set(sample_times(bench.read()).values()) == {0.5}


@pytest.mark.parametrize("own", [(), ("wrist",)], ids=["no camera", "slower camera"])
def test_state_is_sampled_at_stamp_of_image_of_other_arm_of_a_pair(
    monkeypatch: pytest.MonkeyPatch, own: tuple[str, ...]
) -> None:
    bench = GuardBench(monkeypatch, *own)
    late_s: Any = dict.fromkeys(own, 0.15)
    bench.run(0.5, **late_s)
    reading = bench.read(0.44)
    assert set(sample_times(reading).values()) == {0.44}
    assert reading.stamps["robot"] == pytest.approx(0.44)


def test_both_arms_of_a_pair_are_sampled_at_stamp_of_image_of_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wire, rng = Wire(), np.random.default_rng(0)
    monkeypatch.setattr("serl.ros.feed.time", SimpleNamespace(monotonic=lambda: wire.now_s))
    node, views = cast(RosNode, wire), {"front": View(camera="front", width=8, height=8)}
    left = RosArm(node, "left", PROFILE, ReachConfig(views=views, observe="pixels"))
    right = RosArm(node, "right", PROFILE, ReachConfig())
    mounted = [MountedRosArm(arm, UNMOVED_BASE) for arm in (left, right)]
    pair = RosPair(mounted[0], mounted[1], (), views)
    cameras = {"front": PublishedCamera("front")}
    drivers = [
        ArmPublisher(node, "left", PROFILE, [], cameras, SENSOR),
        ArmPublisher(node, "right", PROFILE, [], {}, SENSOR),
    ]
    for _ in range(50):
        wire.now_s += STEP_S
        for driver in drivers:
            driver.state(_numbers(wire.now_s), _stamp_ns(wire.now_s))
        drivers[0].pictures(_picture("front", rng), _stamp_ns(wire.now_s - 0.06))
    state = pair.observe().state
    others = ("target_pose", "wrench")  # of this process; a mean over a period
    times = {name: values[0] for name, values in state.items() if not name.endswith(others)}
    assert {round(float(time_s), 2) for time_s in times.values()} == {0.44}, times


def test_lockstep_state_is_newest_sample_despite_late_image(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = GuardBench(monkeypatch, "front", lockstep=True)
    bench.run(0.5, front=0.06)
    assert set(sample_times(bench.read()).values()) == {0.5}


def test_twist_derived_from_poses_is_at_image_stamp(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = GuardBench(monkeypatch, "front", twist=None)
    bench.run(0.5, front=0.06)
    assert bench.read().state["tcp_twist"][0] == pytest.approx(1.0, abs=1e-3)  # x is the time


def test_twist_is_derived_from_poses_that_arrive_less_often_than_twice_a_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = GuardBench(monkeypatch, rate_hz=20.0, twist=None)
    for _ in range(10):
        bench.run(0.02, arm_silent=True)
        bench.run(0.01)
    assert bench.read().state["tcp_twist"][0] == pytest.approx(1.0, abs=1e-3)


def test_silent_arm_is_reported_with_late_image(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = GuardBench(monkeypatch, "front")
    bench.run(0.5, front=0.06)
    bench.run(0.12, arm_silent=True, front=0.15)
    with pytest.raises(Silent, match=r"current_pose: its newest message is 0.12 s old"):
        bench.read()
