from __future__ import annotations

import pytest

from serl.ros.arm.sim_driver import Stamps

BEGAN_NS = 1_700_000_000_000_000_000
HOUR_NS = 3_600_000_000_000
TICK_NS = 10_000_000


class Host:
    """A host with a settable wall clock and a steady clock."""

    def __init__(self) -> None:
        self.wall_ns, self.steady_ns = BEGAN_NS, 0

    def pass_time(self, ns: int) -> None:
        self.wall_ns += ns
        self.steady_ns += ns

    def stamps(self, speed: float = 1.0) -> Stamps:
        return Stamps(speed, lambda: self.wall_ns, lambda: self.steady_ns)


@pytest.mark.parametrize("set_ns", [HOUR_NS, -HOUR_NS, -80_000_000])
def test_stamps_follow_wall_clock_jumps(set_ns: int) -> None:
    host = Host()
    stamps = host.stamps()
    assert stamps.next_ns() == BEGAN_NS
    host.wall_ns += set_ns
    for _ in range(3):
        host.pass_time(TICK_NS)
        assert stamps.next_ns() == host.wall_ns


def test_stamps_stay_strictly_increasing_while_wall_clock_is_behind() -> None:
    host = Host()
    stamps = host.stamps()
    first_ns = stamps.next_ns()
    host.wall_ns -= 40_000_000
    assert [stamps.next_ns() - first_ns for _ in range(3)] == [1, 2, 3]
    host.pass_time(50_000_000)
    assert stamps.next_ns() == host.wall_ns


@pytest.mark.parametrize("speed", [0.5, 2.0])
def test_stamps_at_scaled_speed_ignore_wall_clock_jumps(speed: float) -> None:
    host = Host()
    stamps = host.stamps(speed)
    assert stamps.next_ns() == BEGAN_NS
    for count in range(1, 4):
        host.pass_time(TICK_NS)
        host.wall_ns -= HOUR_NS
        assert stamps.next_ns() == BEGAN_NS + int(count * speed * TICK_NS)
