"""One page operates at a time, and nobody too often."""

from __future__ import annotations

from serl.console.access import OperatorLease, RateLimit


def test_a_lease_expires_in_silence() -> None:
    now_s = 0.0
    lease = OperatorLease(lambda: now_s)
    assert lease.take("a")
    now_s = 2.9
    assert not lease.take("b")
    assert lease.renew("a")
    now_s = 6.0
    assert lease.holder is None
    assert not lease.renew("a")
    assert lease.take("b")
    lease.release("a")
    assert lease.holder == "b"


def test_a_rate_lets_a_burst_and_then_a_steady_stream_through() -> None:
    now_s = 0.0
    rate = RateLimit(60.0, lambda: now_s)
    assert sum(rate.allows() for _ in range(100)) == 15
    passed = 0
    for _ in range(1000):
        now_s += 0.005
        passed += rate.allows()
    assert 298 <= passed <= 302
