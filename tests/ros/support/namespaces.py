"""Two hosts on one machine: network namespaces, and between them a cable that can be pulled."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

ADDRESSES = ("10.66.0.1", "10.66.0.2")

_ENTER = ("--user", "--net", "--preserve-credentials")


class Hosts:
    """Made by `two_hosts`; /dev/shm and all files are shared between them, the network is not."""

    def __init__(self, pids: tuple[int, int]) -> None:
        self.pids = pids

    def inside(self, host: int) -> tuple[str, ...]:
        """What to put before a command to run it on host 0 or 1."""
        return ("nsenter", f"--target={self.pids[host]}", *_ENTER)

    def connect(self) -> None:
        """Lay the cable."""
        self.ip(0, f"link add cable type veth peer name cable netns {self.pids[1]}")
        for host, address in enumerate(ADDRESSES):
            self.ip(host, f"address add {address}/24 dev cable")
            self.ip(host, "link set lo up")
            self.ip(host, "link set cable up")

    def pull_cable(self) -> None:
        """Nothing arrives any more."""
        self.ip(0, "link set cable down")

    def plug_cable(self) -> None:
        """What is sent from now on arrives."""
        self.ip(0, "link set cable up")

    def ip(self, host: int, words: str) -> None:
        """Configure the network of a host."""
        _run(*self.inside(host), "ip", *words.split())


@contextmanager
def two_hosts() -> Iterator[Hosts]:
    """Hosts at `ADDRESSES` until the block is left. Needs no root where users may have namespaces.

    Raises:
        OSError: this machine does not let us; the text says what failed.
    """
    if missing := [tool for tool in ("unshare", "nsenter", "ip") if not shutil.which(tool)]:
        raise OSError(f"not installed: {', '.join(missing)}")
    with ExitStack() as stack:
        first = _hold(stack, "unshare", "--user", "--map-root-user", "--net")
        second = _hold(stack, "nsenter", f"--target={first}", *_ENTER, "unshare", "--net")
        hosts = Hosts((first, second))
        hosts.connect()
        yield hosts


def _hold(stack: ExitStack, *words: str) -> int:
    """A process that keeps a namespace for as long as we live."""
    holder = stack.enter_context(
        subprocess.Popen(
            [*words, "cat"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
        )
    )
    assert holder.stdin is not None
    assert holder.stdout is not None
    assert holder.stderr is not None
    stack.callback(holder.stdin.close)
    try:
        holder.stdin.write(b"\n")
        made = holder.stdout.read(1)
    except BrokenPipeError:
        made = b""
    if not made:
        raise OSError(f"{' '.join(words)}: {holder.stderr.read().decode().strip()}")
    return holder.pid


def _run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, timeout=10)
    if done.returncode:
        raise OSError(f"{' '.join(words)}: {done.stderr.strip()}")
