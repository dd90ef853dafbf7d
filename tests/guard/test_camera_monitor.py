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
from serl.specs import ArraySpec
from serl.types import ActionSource, Observation

SPEC = {name: ArraySpec(shape=(6, 8, 3), dtype="uint8") for name in ("front", "wrist")}


def make_observation(
    number: int, front_s: float = 0.0, wrist_s: float = 0.0, **changed: Any
) -> Observation:
    """Build an observation of random images, seeded by `number`; `*_s` is each image's age."""
    rng = np.random.default_rng(number)
    images = {name: rng.integers(0, 256, spec.shape, np.uint8) for name, spec in SPEC.items()}
    now_s = 10.0 + 0.1 * number
    stamps = {"robot": now_s, "front": now_s - front_s, "wrist": now_s - wrist_s}
    return Observation({}, {**images, **changed}, stamps)


def test_monitor_accepts_changing_images() -> None:
    monitor = CameraMonitor(SPEC)
    for number in range(50):
        monitor.check(make_observation(number))
    assert monitor.skewed == 0


def test_monitor_restarts_frozen_count_at_new_image_and_at_episode_start() -> None:
    monitor, stuck = CameraMonitor(SPEC), make_observation(0).images["wrist"]
    for number in range(40):
        monitor.check(
            make_observation(number) if number % 5 == 4 else make_observation(number, wrist=stuck)
        )
    for _ in range(3):
        monitor.on_begin(ActionSource.POLICY)
        for number in range(4):
            monitor.check(make_observation(number, wrist=stuck))


def observations_at_30_hz(count: int, images: Callable[[int], int]) -> Iterator[Observation]:
    """Yield 30 Hz observations whose wrist image is image number `images(n)`, with its stamp."""
    for number in range(count):
        now_s, taken = number / 30, images(number)
        seen = make_observation(number, wrist=make_observation(taken).images["wrist"])
        stamps = {"robot": now_s, "front": now_s, "wrist": min(now_s, taken / 30)}
        yield replace(seen, stamps=stamps)


def test_monitor_accepts_slow_camera() -> None:
    """At 5 Hz each image appears in six consecutive observations."""
    monitor = CameraMonitor(SPEC)
    for seen in observations_at_30_hz(60, lambda number: number - number % 6):
        monitor.check(seen)


def test_monitor_reports_frozen_slow_camera_at_its_fifth_equal_image() -> None:
    """The frozen camera's driver goes on stamping its images."""
    monitor, stuck = CameraMonitor(SPEC), make_observation(0).images["wrist"]
    readings = (
        replace(seen, images={**seen.images, "wrist": stuck})
        for seen in observations_at_30_hz(60, lambda number: number - number % 6)
    )
    for seen in islice(readings, 4 * 6):
        monitor.check(seen)
    with pytest.raises(CameraFault, match="camera wrist: frozen, 5 equal images"):
        monitor.check(next(readings))


def test_monitor_counts_each_reading_as_new_image_without_stamps() -> None:
    monitor = CameraMonitor(SPEC, CameraMonitorConfig(stamped=False))
    seen = Observation({}, make_observation(0).images)
    for _ in range(4):
        monitor.check(seen)
    with pytest.raises(CameraFault, match="frozen, 5 equal images"):
        monitor.check(seen)


def test_monitor_accepts_equal_images_when_frozen_check_is_off() -> None:
    monitor = CameraMonitor(SPEC, CameraMonitorConfig(frozen_readings=0))
    for _ in range(20):
        monitor.check(make_observation(0))


def test_monitor_accepts_images_without_stamps_when_unstamped() -> None:
    monitor = CameraMonitor(SPEC, CameraMonitorConfig(stamped=False))
    monitor.check(Observation({}, make_observation(0).images, {"robot": 3.0}))
    monitor.check(Observation({}, make_observation(1).images))
    with pytest.raises(CameraFault, match="old, over"):
        monitor.check(make_observation(2, wrist_s=0.3))


@pytest.mark.parametrize(
    ("seen", "line"),
    [
        (make_observation(1, wrist_s=0.21), r"camera wrist: its image is 0\.21 s old, over 0\.2 s"),
        (
            make_observation(1, wrist_s=-60.0),
            r"camera wrist: its image is from the future, 60\.00 s",
        ),
        (
            make_observation(1, wrist_s=math.nan),
            "camera wrist: its image is from the future, nan s",
        ),
        (make_observation(1, front=np.full((6, 8, 3), 3, np.uint8)), "camera front: black"),
        (
            make_observation(1, front=np.full((8, 6, 3), 99, np.uint8)),
            r"camera front: another size: expected \[6, 8, 3\], got \[8, 6, 3\]",
        ),
        (
            make_observation(1, front=np.full((6, 8, 3), math.nan)),
            "camera front: another type: expected uint8, got float64",
        ),
        (
            make_observation(1, front=np.full((6, 8, 3), 99, np.int8)),
            "camera front: another type: expected uint8, got int8",
        ),
        (
            Observation(
                {}, {"front": make_observation(1).images["front"]}, {"robot": 1.0, "front": 1.0}
            ),
            "camera wrist: gone",
        ),
        (
            Observation({}, make_observation(1).images, {"robot": 1.0, "front": 1.0}),
            "camera wrist: its image has no stamp",
        ),
        (
            Observation({}, make_observation(1).images, {"wrist": 1.0, "front": 1.0}),
            "robot: its reading has no stamp",
        ),
    ],
)
def test_monitor_names_camera_and_fault_of_untrusted_observation(
    seen: Observation, line: str
) -> None:
    with pytest.raises(CameraFault, match=line) as fault:
        CameraMonitor(SPEC).check(seen)
    assert isinstance(fault.value, Silent), "the actor restarts the episode"


def test_monitor_logs_camera_skew_once_per_episode(
    caplog: pytest.LogCaptureFixture,
) -> None:
    monitor = CameraMonitor(SPEC)
    with caplog.at_level(logging.WARNING):
        for episode in range(2):
            monitor.on_begin(ActionSource.POLICY)
            for number in range(3):
                monitor.check(make_observation(number + 10 * episode, wrist_s=0.15))
    assert monitor.skewed == 6
    assert [record.message for record in caplog.records] == [
        "cameras are 0.15 s apart, over 0.1 s"
    ] * 2


@pytest.mark.parametrize(("rate_hz", "noticed_s"), [(10.0, 0.2), (30.0, 0.17), (60.0, 0.17)])
def test_detector_reports_equal_images_within_300_ms_at_any_rate(
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


def test_detector_accepts_images_sent_twice() -> None:
    detector = FrozenDetector()
    for index in range(30):
        detector.add(bytes([index // 2]), index / 10.0)
        assert not detector.frozen
        assert detector.count == index % 2 + 1
