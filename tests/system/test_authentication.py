from __future__ import annotations

import errno
import hashlib
import hmac
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import GCM
from hypothesis import given, settings
from hypothesis import strategies as st

from serl.errors import BadInput
from serl.system.authentication import (
    RUN_KEY,
    TAG_BYTES,
    load_key,
    new_key,
    own_key,
    run_key,
    sign,
    topic_key,
    verify,
)

KEY = bytes(range(32))


def test_new_key_is_random_private_and_never_overwritten(tmp_path: Path) -> None:
    path, other = tmp_path / "keys" / "one", tmp_path / "keys" / "other"
    new_key(path)
    new_key(other)
    assert path.stat().st_mode & 0o777 == 0o600
    key = load_key(path)
    assert len(key) == 32
    assert key != load_key(other)
    with pytest.raises(BadInput, match="exists"):
        new_key(path)
    assert load_key(path) == key


def test_full_disk_leaves_no_partial_key_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A partial key file would be refused at every later start."""

    def write(descriptor: int, data: bytes) -> None:
        os.write(descriptor, data[:10])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("serl.system.authentication.write_all", write)
    for make in (new_key, own_key):
        with pytest.raises(BadInput, match="no key was written: No space left"):
            make(tmp_path / "key")
    assert [*tmp_path.iterdir()] == []


def test_run_key_is_created_once_and_kept(tmp_path: Path) -> None:
    """Concurrent first calls must all return the same key."""
    with ThreadPoolExecutor(8) as pool:
        keys = set(pool.map(run_key, [tmp_path] * 32))
    assert keys == {run_key(tmp_path)}
    assert [path.name for path in tmp_path.iterdir()] == [RUN_KEY]
    assert (tmp_path / RUN_KEY).stat().st_mode & 0o777 == 0o600
    (tmp_path / RUN_KEY).chmod(0o644)
    with pytest.raises(BadInput, match="chmod 600"):
        run_key(tmp_path)


@pytest.mark.parametrize(
    ("text", "mode", "line"),
    [
        ("ab" * 32, 0o640, "chmod 600"),
        ("ab" * 32, 0o604, "chmod 600"),
        ("ab" * 31, 0o600, "64 hexadecimal digits"),
        ("ab" * 33, 0o600, "64 hexadecimal digits"),
        ("", 0o600, "64 hexadecimal digits"),
        ("xy" * 32, 0o600, "64 hexadecimal digits"),
        ("\u0661" * 64, 0o600, "64 hexadecimal digits"),
        (None, 0o600, "serl doctor --new-key"),
    ],
)
def test_load_key_refuses_invalid_or_readable_key_file(
    tmp_path: Path, text: str | None, mode: int, line: str
) -> None:
    path = tmp_path / "key"
    if text is not None:
        path.write_text(text)
        path.chmod(mode)
    with pytest.raises(BadInput, match=line) as refusal:
        load_key(path)
    assert "\n" not in str(refusal.value)
    assert str(path) in str(refusal.value)


def test_signature_is_aes_256_gmac_with_fresh_nonce() -> None:
    signed = sign(KEY, b"abcd")
    message, nonce, tag = signed[:4], signed[4:16], signed[16:]
    gmac = Cipher(AES256(KEY), GCM(nonce)).encryptor()
    gmac.authenticate_additional_data(message)
    gmac.finalize()
    assert (message, tag) == (b"abcd", gmac.tag)
    assert len({sign(KEY, b"abcd") for _ in range(100)}) == 100
    assert topic_key(KEY, "/run/acks") == hmac.new(KEY, b"/run/acks", hashlib.sha256).digest()


@settings(deadline=None)
@given(message=st.binary(max_size=300))
def test_verify_returns_padded_message_of_valid_signature(message: bytes) -> None:
    signed = sign(KEY, message)
    assert len(signed) % 4 == 0
    assert bytes(verify(KEY, signed) or b"") == message.ljust(len(signed) - TAG_BYTES, b"\0")


def test_signature_is_valid_for_one_key_topic_and_run_only() -> None:
    signed = sign(topic_key(KEY, "/run_1/actors"), b"hello")
    assert verify(topic_key(KEY, "/run_1/actors"), signed)
    for key, topic in ((KEY, "/run_2/actors"), (KEY, "/run_1/stats"), (b"?" * 32, "/run_1/actors")):
        assert verify(topic_key(key, topic), signed) is None
