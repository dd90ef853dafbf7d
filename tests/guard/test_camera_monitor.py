from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import pytest

from serl.errors import Silent
from serl.guard.camera_monitor import (
    CameraFault,
    CameraMonitor,
    CameraMonitorConfig,
    FrozenDetector,
)
from serl.loop import read_robot
from serl.specs import ArraySpec
from serl.testing import FakeRobot
from serl.types import ActionSource, Observation

SPEC = {name: ArraySpec(shape=(6, 8, 3), dtype="uint8") for name in ("front", "wrist")}


def reading(number: int, front_s: float = 0.0, wrist_s: float = 0.0, **changed: Any) -> Observation:
    """Noise, as of `number`; the images are so old."""
    rng = np.random.default_rng(number)
    images = {name: rng.integers(0, 256, spec.shape, np.uint8) for name, spec in SPEC.items()}
    now_s = 10.0 + 0.1 * number
    stamps = {"robot": now_s, "front": now_s - front_s, "wrist": now_s - wrist_s}
    return Observation({}, {**images, **changed}, stamps)


def test_good_images_pass_for_ever() -> None:
    monitor = CameraMonitor(SPEC)
    for number in range(50):
        monitor.check(reading(number))
    assert monitor.skewed == 0


def test_a_frozen_camera_is_noticed_at_the_fifth_equal_image() -> None:
    monitor, stuck = CameraMonitor(SPEC), reading(0).images["wrist"]
    for number in range(4):
        monitor.check(reading(number, wrist=stuck.copy()))
    with pytest.raises(CameraFault, match="camera wrist: frozen, 5 equal images"):
        monitor.check(reading(5, wrist=stuck.copy()))


def test_one_other_image_between_is_no_freeze_and_an_episode_begins_anew() -> None:
    monitor, stuck = CameraMonitor(SPEC), reading(0).images["wrist"]
    for number in range(40):
        monitor.check(reading(number) if number % 5 == 4 else reading(number, wrist=stuck))
    for _ in range(3):
        monitor.on_begin(ActionSource.POLICY)
        for number in range(4):
            monitor.check(reading(number, wrist=stuck))


def at_30_hz(count: int, images: Callable[[int], int]) -> Iterator[Observation]:
    """Readings that carry the newest image of the wrist, of the time at which it was taken."""
    for number in range(count):
        now_s, taken = number / 30, images(number)
        seen = reading(number, wrist=reading(taken).images["wrist"])
        stamps = {"robot": now_s, "front": now_s, "wrist": min(now_s, taken / 30)}
        yield replace(seen, stamps=stamps)


def test_a_slow_camera_is_not_a_frozen_one() -> None:
    """At 5 Hz each image is in six readings."""
    monitor = CameraMonitor(SPEC)
    for seen in at_30_hz(60, lambda number: number - number % 6):
        monitor.check(seen)


def test_a_slow_camera_that_froze_is_noticed_at_its_fifth_equal_image() -> None:
    """Its driver goes on to stamp what it gives."""
    monitor, stuck = CameraMonitor(SPEC), reading(0).images["wrist"]
    readings = (
        replace(seen, images={**seen.images, "wrist": stuck})
        for seen in at_30_hz(60, lambda number: number - number % 6)
    )
    for seen in islice(readings, 4 * 6):
        monitor.check(seen)
    with pytest.raises(CameraFault, match="camera wrist: frozen, 5 equal images"):
        monitor.check(next(readings))


def test_without_stamps_each_reading_is_another_image() -> None:
    monitor = CameraMonitor(SPEC, CameraMonitorConfig(stamped=False))
    seen = Observation({}, reading(0).images)
    for _ in range(4):
        monitor.check(seen)
    with pytest.raises(CameraFault, match="frozen, 5 equal images"):
        monitor.check(seen)


def test_cameras_of_a_simulation_may_see_the_same_for_ever() -> None:
    monitor = CameraMonitor(SPEC, CameraMonitorConfig(frozen_readings=0))
    for _ in range(20):
        monitor.check(reading(0))


def test_a_simulation_in_this_process_needs_no_stamps() -> None:
    monitor = CameraMonitor(SPEC, CameraMonitorConfig(stamped=False))
    monitor.check(Observation({}, reading(0).images, {"robot": 3.0}))
    monitor.check(Observation({}, reading(1).images))
    with pytest.raises(CameraFault, match="old, over"):
        monitor.check(reading(2, wrist_s=0.3))


@pytest.mark.parametrize(
    ("seen", "line"),
    [
        (reading(1, wrist_s=0.21), r"camera wrist: its image is 0\.21 s old, over 0\.2 s"),
        (reading(1, wrist_s=-60.0), r"camera wrist: its image is from the future, 60\.00 s"),
        (reading(1, wrist_s=math.nan), "camera wrist: its image is from the future, nan s"),
        (reading(1, front=np.full((6, 8, 3), 3, np.uint8)), "camera front: black"),
        (
            reading(1, front=np.full((8, 6, 3), 99, np.uint8)),
            r"camera front: another size: expected \[6, 8, 3\], got \[8, 6, 3\]",
        ),
        (
            reading(1, front=np.full((6, 8, 3), math.nan)),
            "camera front: another type: expected uint8, got float64",
        ),
        (
            reading(1, front=np.full((6, 8, 3), 99, np.int8)),
            "camera front: another type: expected uint8, got int8",
        ),
        (
            Observation({}, {"front": reading(1).images["front"]}, {"robot": 1.0, "front": 1.0}),
            "camera wrist: gone",
        ),
        (
            Observation({}, reading(1).images, {"robot": 1.0, "front": 1.0}),
            "camera wrist: its image has no stamp",
        ),
        (
            Observation({}, reading(1).images, {"wrist": 1.0, "front": 1.0}),
            "robot: its reading has no stamp",
        ),
    ],
)
def test_what_cannot_be_trusted_is_named(seen: Observation, line: str) -> None:
    with pytest.raises(CameraFault, match=line) as fault:
        CameraMonitor(SPEC).check(seen)
    assert isinstance(fault.value, Silent), "an actor begins the episode anew"


def test_cameras_that_are_apart_are_told_of_once_an_episode(
    caplog: pytest.LogCaptureFixture,
) -> None:
    monitor = CameraMonitor(SPEC)
    with caplog.at_level(logging.WARNING):
        for episode in range(2):
            monitor.on_begin(ActionSource.POLICY)
            for number in range(3):
                monitor.check(reading(number + 10 * episode, wrist_s=0.15))
    assert monitor.skewed == 6
    assert [record.message for record in caplog.records] == [
        "cameras are 0.15 s apart, over 0.1 s"
    ] * 2


def test_the_robot_is_stopped_whenever_a_reading_is_refused() -> None:
    """Also at the start of an episode, and by a reset."""
    robot = FakeRobot()
    with pytest.raises(CameraFault, match="gone"):
        read_robot(robot, [CameraMonitor(SPEC)])
    assert "camera front: gone" in robot.stop_reason


@pytest.mark.parametrize(("rate_hz", "noticed_s"), [(10.0, 0.2), (30.0, 0.17), (60.0, 0.17)])
def test_equal_pictures_are_frozen_within_300_ms_at_any_rate(
    rate_hz: float, noticed_s: float
) -> None:
    detector = FrozenDetector()
    for index in range(20):
        detector.add(bytes([index]), index / rate_hz)
        assert not detector.frozen
    begun = index
    while not detector.frozen:
        index += 1
        detector.add(bytes([begun]), index / rate_hz)
    assert (index - begun) / rate_hz <= noticed_s + 1e-9
    detector.add(b"another", (index + 1) / rate_hz)
    assert not detector.frozen


def test_a_driver_may_send_a_picture_twice() -> None:
    detector = FrozenDetector()
    for index in range(30):
        detector.add(bytes([index // 2]), index / 10.0)
        assert not detector.frozen
        assert detector.count == index % 2 + 1
