from __future__ import annotations

import pytest

from serl.guard.camera_monitor import FrozenDetector


@pytest.mark.parametrize(("rate_hz", "noticed_s"), [(10.0, 0.2), (30.0, 0.17), (60.0, 0.17)])
def test_equal_pictures_are_frozen_within_300_ms_at_any_rate(
    rate_hz: float, noticed_s: float
) -> None:
    alike = FrozenDetector()
    for index in range(20):
        alike.add(bytes([index]), index / rate_hz)
        assert not alike.frozen
    begun = index
    while not alike.frozen:
        index += 1
        alike.add(bytes([begun]), index / rate_hz)
    assert (index - begun) / rate_hz <= noticed_s + 1e-9
    alike.add(b"another", (index + 1) / rate_hz)
    assert not alike.frozen


def test_a_driver_may_send_a_picture_twice() -> None:
    alike = FrozenDetector()
    for index in range(30):
        alike.add(bytes([index // 2]), index / 10.0)
        assert not alike.frozen
        assert alike.count == index % 2 + 1
