"""Test that a signed order is valid once, for a short time, for one key and one service."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import pytest

from serl.errors import BadInput, SerlError
from serl.system.signed_order import MOST_AGE_S, OrderCheck, key_path, load_order_key, sign_order

PLACE, S = "/cell/left/guard", 1_000_000_000


class OrderBench:
    """Order check with a clock set by the test, and the matching signer."""

    def __init__(self, folder: Path) -> None:
        self.path, self.now_ns = key_path(folder / "left.latch"), 100 * S
        self.check = OrderCheck(self.path, lambda: self.now_ns)
        self.now_ns += S

    def signed(self, word: str = "ack", place: str = PLACE, age_s: float = 0.0) -> str:
        key = load_order_key(self.path)
        return sign_order(key, f"{place}/{word}", self.now_ns - round(age_s * S))


@pytest.fixture
def bench(tmp_path: Path) -> OrderBench:
    return OrderBench(tmp_path)


def test_signed_order_is_accepted_once(bench: OrderBench) -> None:
    text = bench.signed()
    assert bench.check.word(PLACE, text) == "ack"
    with pytest.raises(SerlError, match="used before"):
        bench.check.word(PLACE, text)
    assert bench.check.word(PLACE, bench.signed(age_s=0.5)) == "ack", (
        "an older order from another sender"
    )
    # Used orders are forgotten once they are too old.
    bench.now_ns += round((MOST_AGE_S + 1.0) * S)
    with pytest.raises(SerlError, match="over 10 s ago"):
        bench.check.word(PLACE, text)
    assert bench.check.word(PLACE, bench.signed("reset")) == "reset"
    assert bench.check.refused == 2


@pytest.mark.parametrize("age_s", [MOST_AGE_S + 0.1, 1.5, -0.1])
def test_order_with_old_or_future_stamp_is_refused(bench: OrderBench, age_s: float) -> None:
    """Cover an order that was delayed, predates this process or is from the future."""
    with pytest.raises(SerlError, match="signed over 10 s ago, or used before"):
        bench.check.word(PLACE, bench.signed(age_s=age_s))
    assert bench.check.refused == 1


def test_order_is_valid_for_one_word_of_one_arm(bench: OrderBench, tmp_path: Path) -> None:
    for place in ("/cell/right/guard", "/cell/left", "/actor0"):
        with pytest.raises(SerlError, match="not signed"):
            bench.check.word(PLACE, bench.signed(place=place))
    with pytest.raises(SerlError, match="not signed"):
        bench.check.word(PLACE, bench.signed("ack").replace("ack", "arm"))
    other = OrderBench(tmp_path / "other")
    with pytest.raises(SerlError, match="not signed"):
        bench.check.word(PLACE, other.signed())
    assert bench.check.refused == 5


@pytest.mark.parametrize("text", ["", "arm", "arm 1 " + 64 * "0", "arm 1 x", 10_000_000 * "0"])
def test_refusal_of_unsigned_order_names_the_signing_command(bench: OrderBench, text: str) -> None:
    with pytest.raises(SerlError) as refusal:
        bench.check.word(PLACE, text)
    line = str(refusal.value)
    assert line.startswith("not signed: serl order /cell/left/guard/")
    assert line.endswith(f" --key {bench.path}")
    assert len(line) < 300


def test_refusal_names_a_command_also_for_a_path_with_blanks(tmp_path: Path) -> None:
    bench = OrderBench(tmp_path / "my runs")
    with pytest.raises(SerlError) as refusal:
        bench.check.word(PLACE, "")
    assert shlex.split(str(refusal.value))[-2:] == ["--key", str(bench.path)]


def test_restarted_check_keeps_its_key(bench: OrderBench, tmp_path: Path) -> None:
    again = OrderCheck(bench.path, lambda: bench.now_ns)
    bench.now_ns += S
    assert again.word(PLACE, bench.signed()) == "ack"
    assert bench.path == tmp_path / "left.latch.key"
    assert bench.path.stat().st_mode & 0o777 == 0o600


def test_readable_or_missing_order_key_is_refused_in_one_line(tmp_path: Path) -> None:
    path = key_path(tmp_path / "left.latch")
    with pytest.raises(BadInput, match="makes it at its first start"):
        load_order_key(path)
    OrderCheck(path)
    path.chmod(0o640)
    with pytest.raises(BadInput, match="others can read this key"):
        OrderCheck(path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_order_key_of_another_user_is_refused(tmp_path: Path) -> None:
    """In a world-writable folder another user could create the key before the guard starts."""
    path = key_path(tmp_path / "left.latch")
    OrderCheck(path)
    os.chown(path, 65534, 65534)
    with pytest.raises(BadInput, match="belongs to another user"):
        OrderCheck(path)


def test_order_signed_before_reboot_is_refused(
    bench: OrderBench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The monotonic clock restarts at boot and reaches the stamp of an old order again."""
    text, boot = bench.signed(), tmp_path / "boot_id"
    boot.write_text("another-boot\n")
    monkeypatch.setattr("serl.system.signed_order._BOOT_ID", boot)
    with pytest.raises(SerlError, match="not signed"):
        bench.check.word(PLACE, text)
    assert bench.check.word(PLACE, bench.signed()) == "ack"
