"""A key that the hosts of a run share: messages that do not bear its tag are from strangers.

Tags are HMAC-SHA256 cut to 16 bytes, under a key derived for each topic, whose full name contains
the run's: no message counts on another topic or in another run. Replaying old messages gains
nothing, since records are counted by (actor, epoch, sequence), of weights the newest win, and
acknowledgements name the epochs of both sides. Nothing is encrypted.
"""

from __future__ import annotations

import hmac
import os
import re
import secrets
from pathlib import Path

from serl.errors import BadInput
from serl.files import write_all

KEY_BYTES = 32
TAG_BYTES = 16

_ALIGNMENT = 4  # DDS pads what is not a multiple, which would end up behind the tag
_KEY_TEXT = re.compile(rb"[0-9a-f]{%d}\n?" % (2 * KEY_BYTES))


def new_key(path: Path) -> None:
    """Write a random key, readable by its owner alone.

    Raises:
        BadInput: the file exists, or cannot be written.
    """
    path = path.expanduser()
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise BadInput(f"{path}: no key was written: {error.strerror}") from None
    try:
        write_all(descriptor, f"{secrets.token_hex(KEY_BYTES)}\n".encode())
    finally:
        os.close(descriptor)


def load_key(path: Path, absent: str = "") -> bytes:
    """The key in a file that `new_key` made.

    Args:
        path: of the file.
        absent: how to get one, for the error when there is none; by default for the hosts of a run.

    Raises:
        BadInput: there is none, it is no key, or others than its owner can read it.
    """
    path = path.expanduser()
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            text = file.read(1024)
    except FileNotFoundError:
        absent = absent or f"make one with `serl doctor --new-key {path}` and copy it to each host"
        raise BadInput(f"{path}: no key: {absent}") from None
    except OSError as error:
        raise BadInput(f"{path}: the key cannot be read: {error.strerror}") from None
    if mode & 0o077:
        raise BadInput(f"{path}: others can read this key: chmod 600 {path}")
    if not _KEY_TEXT.fullmatch(text):
        raise BadInput(f"{path}: expected a key of {2 * KEY_BYTES} hexadecimal digits")
    return bytes.fromhex(text.decode())


def topic_key(key: bytes, topic: str) -> bytes:
    """The key for the messages of one topic.

    Args:
        key: of the run.
        topic: full name, with the run's namespace.
    """
    return hmac.digest(key, topic.encode(), "sha256")


def sign(key: bytes, message: bytes) -> bytes:
    """The message, padded with zeros to a multiple of four bytes, and its tag."""
    padded = message + bytes(-len(message) % _ALIGNMENT)
    return padded + _tag(key, padded)


def verify(key: bytes, signed: bytes) -> bytes | None:
    """The (padded) message, or None when somebody without the key made or changed it."""
    message = signed[:-TAG_BYTES]
    genuine = hmac.compare_digest(_tag(key, message), signed[-TAG_BYTES:])
    return message if genuine else None


def _tag(key: bytes, message: bytes) -> bytes:
    return hmac.digest(key, message, "sha256")[:TAG_BYTES]
