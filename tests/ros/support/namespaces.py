"""Two hosts on one machine: network namespaces with a virtual cable that can be unplugged."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

ADDRESSES = ("10.66.0.1", "10.66.0.2")

_ENTER = ("--user", "--net", "--preserve-credentials")


class Hosts:
    """Two hosts from `two_hosts` that share all files and /dev/shm, but no network."""

    def __init__(self, pids: tuple[int, int]) -> None:
        self.pids = pids

    def inside(self, host: int) -> tuple[str, ...]:
        """Return the prefix of a command that runs it on host 0 or 1."""
        return ("nsenter", f"--target={self.pids[host]}", *_ENTER)

    def connect(self) -> None:
        """Connect the hosts by a virtual cable."""
        self.ip(0, f"link add cable type veth peer name cable netns {self.pids[1]}")
        for host, address in enumerate(ADDRESSES):
            self.ip(host, f"address add {address}/24 dev cable")
            self.ip(host, "link set lo up")
            self.ip(host, "link set cable up")

    def pull_cable(self) -> None:
        """Disconnect the hosts."""
        self.ip(0, "link set cable down")

    def plug_cable(self) -> None:
        """Reconnect the hosts."""
        self.ip(0, "link set cable up")

    def ip(self, host: int, words: str) -> None:
        """Configure the network of a host."""
        _run(*self.inside(host), "ip", *words.split())


@contextmanager
def two_hosts() -> Iterator[Hosts]:
    """Yield hosts at `ADDRESSES`; needs no root where users may create namespaces.

    Raises:
        OSError: The machine allows no namespaces; the message names the cause.
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
    """Start a process that holds a namespace until the stack closes; return its id."""
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
