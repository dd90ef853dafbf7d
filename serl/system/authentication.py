"""Keys and tags of messages: a message without a tag under the run's secret key is dropped.

A run on one host has its own key, in the file `stream.key` of its folder. The hosts of a run of
several hosts share a key that a person copied to each of them.

A tag is an AES-256-GMAC (NIST SP 800-38D) with a random nonce, under a key derived for each topic
by HMAC-SHA256; for 98 kB it takes 6 us, an HMAC 57 us. The full name of a topic contains the name
of the run, so a message is valid on one topic of one run only. Random nonces are good for 2^32
messages on a topic, months of a run. Replayed messages change no data: records are counted by
(actor, epoch, sequence), only newer weights replace older ones, acknowledgements name the epochs of
both sides, and introductions of an actor carry a time that grows. Nothing is encrypted.
"""

from __future__ import annotations

import hmac
import os
import re
import secrets
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from serl.errors import BadInput
from serl.system.files import open_regular, write_all

KEY_BYTES = 32
_NONCE_BYTES = 12
TAG_BYTES = _NONCE_BYTES + 16
"""Length of a tag and the nonce before it."""
RUN_KEY = "stream.key"
"""Name of the key file in the folder of a run; its owner alone can read it."""

_ALIGNMENT = 4  # DDS pads messages of other lengths, and the padding would follow the tag
_KEY_TEXT = re.compile(rb"[0-9a-f]{%d}\n?" % (2 * KEY_BYTES))
_cipher = lru_cache(maxsize=64)(AESGCM)  # of a topic's key; making one takes longer than a tag


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
        os.fsync(descriptor)
    except OSError as error:
        path.unlink()
        raise BadInput(f"{path}: no key was written: {error.strerror}") from None
    finally:
        os.close(descriptor)


def load_key(path: Path, absent: str = "") -> bytes:
    """Load the key from a file that `new_key` made.

    Args:
        path: key file.
        absent: how to get a key, for the error when the file is absent; by default for the hosts of
            a run.

    Raises:
        BadInput: the file is absent, holds no key, or is readable by others than its owner.
    """
    path = path.expanduser()
    try:
        with open_regular(path) as file:
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


def run_key(run_folder: Path) -> bytes:
    """Load the key of a run on one host; make one first if the run has none."""
    return own_key(run_folder / RUN_KEY)


def own_key(path: Path) -> bytes:
    """Load a key; make one first if the file is absent.

    Processes that start at the same time get the same key. A killed process leaves no partial key.

    Raises:
        BadInput: the file holds no key, others than its owner can read it, or it cannot be written.
    """
    if not path.exists():
        scratch = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
        new_key(scratch)
        try:
            with suppress(FileExistsError):  # another process was faster
                os.link(scratch, path)
        except OSError as error:
            raise BadInput(f"{path}: no key was written: {error.strerror}") from None
        finally:
            scratch.unlink()
    return load_key(path)


def topic_key(key: bytes, topic: str) -> bytes:
    """Derive the key for the messages of one topic.

    Args:
        key: key of the run.
        topic: full name of the topic, with the run's namespace.
    """
    return hmac.digest(key, topic.encode(), "sha256")


def sign(key: bytes, message: bytes) -> bytes:
    """Return the message, padded with zeros to a multiple of four bytes, followed by its tag."""
    if padding := -len(message) % _ALIGNMENT:
        message += bytes(padding)
    nonce = os.urandom(_NONCE_BYTES)
    return b"".join((message, nonce, _cipher(key).encrypt(nonce, b"", message)))


def verify(key: bytes, signed: bytes) -> memoryview | None:
    """Return the (padded) message as a view of `signed`, or None when its tag does not match."""
    view = memoryview(signed)
    if len(view) < TAG_BYTES:
        return None
    message, nonce, tag = view[:-TAG_BYTES], view[-TAG_BYTES:-16], view[-16:]
    try:
        _cipher(key).decrypt(nonce, tag, message)
    except InvalidTag:
        return None
    return message
