"""Orders count once, soon, of who has the key, and for the service that they were signed for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from serl.errors import BadInput, SerlError
from serl.system.signed_order import MOST_AGE_S, OrderCheck, key_path, load_order_key, sign_order

PLACE, S = "/cell/left/guard", 1_000_000_000


class Desk:
    """A checker whose clock a test sets."""

    def __init__(self, folder: Path) -> None:
        self.path, self.now_ns = key_path(folder / "left.latch"), 100 * S
        self.check = OrderCheck(self.path, lambda: self.now_ns)
        self.now_ns += S

    def signed(self, word: str = "ack", place: str = PLACE, age_s: float = 0.0) -> str:
        key = load_order_key(self.path)
        return sign_order(key, f"{place}/{word}", self.now_ns - round(age_s * S))


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def test_a_signed_order_counts_once(desk: Desk) -> None:
    text = desk.signed()
    assert desk.check.word(PLACE, text) == "ack"
    with pytest.raises(SerlError, match="used before"):
        desk.check.word(PLACE, text)
    assert desk.check.word(PLACE, desk.signed(age_s=0.5)) == "ack", "an older one of another hand"
    desk.now_ns += round((MOST_AGE_S + 1.0) * S)  # what was used is forgotten, and too old
    with pytest.raises(SerlError, match="over 10 s ago"):
        desk.check.word(PLACE, text)
    assert desk.check.word(PLACE, desk.signed("reset")) == "reset"
    assert desk.check.refused == 2


@pytest.mark.parametrize("age_s", [MOST_AGE_S + 0.1, 1.5, -0.1])
def test_an_order_of_another_time_is_refused(desk: Desk, age_s: float) -> None:
    """Withheld for long, signed before this process began, or in the future."""
    with pytest.raises(SerlError, match="signed over 10 s ago, or used before"):
        desk.check.word(PLACE, desk.signed(age_s=age_s))
    assert desk.check.refused == 1


def test_an_order_is_for_one_word_of_one_arm(desk: Desk, tmp_path: Path) -> None:
    for place in ("/cell/right/guard", "/cell/left", "/actor0"):
        with pytest.raises(SerlError, match="not signed"):
            desk.check.word(PLACE, desk.signed(place=place))
    with pytest.raises(SerlError, match="not signed"):
        desk.check.word(PLACE, desk.signed("ack").replace("ack", "arm"))
    other = Desk(tmp_path / "other")
    with pytest.raises(SerlError, match="not signed"):
        desk.check.word(PLACE, other.signed())
    assert desk.check.refused == 5


@pytest.mark.parametrize("text", ["", "arm", "arm 1 " + 64 * "0", "arm 1 x", 10_000_000 * "0"])
def test_what_is_not_signed_is_told_how_to_sign(desk: Desk, text: str) -> None:
    with pytest.raises(SerlError) as refusal:
        desk.check.word(PLACE, text)
    line = str(refusal.value)
    assert line.startswith("not signed: serl order /cell/left/guard/")
    assert line.endswith(f" --key {desk.path}")
    assert len(line) < 300


def test_a_restart_keeps_the_key(desk: Desk, tmp_path: Path) -> None:
    again = OrderCheck(desk.path, lambda: desk.now_ns)
    desk.now_ns += S
    assert again.word(PLACE, desk.signed()) == "ack"
    assert desk.path == tmp_path / "left.latch.key"
    assert desk.path.stat().st_mode & 0o777 == 0o600


def test_a_key_that_others_can_read_or_that_is_absent_is_one_line(tmp_path: Path) -> None:
    path = key_path(tmp_path / "left.latch")
    with pytest.raises(BadInput, match="makes it at its first start"):
        load_order_key(path)
    OrderCheck(path)
    path.chmod(0o640)
    with pytest.raises(BadInput, match="others can read this key"):
        OrderCheck(path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_key_that_another_user_made_is_refused(tmp_path: Path) -> None:
    """In a folder that all may write to, before the guard starts: he would know it."""
    path = key_path(tmp_path / "left.latch")
    OrderCheck(path)
    os.chown(path, 65534, 65534)
    with pytest.raises(BadInput, match="belongs to another user"):
        OrderCheck(path)


def test_an_order_of_an_earlier_boot_is_refused(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The monotonic clock begins anew, so that it comes to the stamp of an old order again."""
    text, boot = desk.signed(), tmp_path / "boot_id"
    boot.write_text("another-boot\n")
    monkeypatch.setattr("serl.system.signed_order._BOOT_ID", boot)
    with pytest.raises(SerlError, match="not signed"):
        desk.check.word(PLACE, text)
    assert desk.check.word(PLACE, desk.signed()) == "ack"
