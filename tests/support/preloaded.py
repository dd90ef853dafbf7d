"""Python processes that start in 50 ms instead of 600, forked after the imports.

Imports take most of the processor time of a node in a test. Within `preloading`, a process that a
test starts as `python -m MODULE ...` or `python SCRIPT ...` is forked by a server process that has
already imported the libraries. The process is a child of the test with its own environment, working
folder, standard streams, signals and command line; it runs the module as `__main__`. It only does
not free its memory at exit. Processes started by `python -m serl.cli.main` are forked in the same
way. Processes started otherwise, such as by `serl` or `ros2 launch`, are not affected.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import gc
import importlib
import inspect
import json
import os
import re
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

IMPORTED = (
    *("numpy", "psutil", "cryptography.hazmat.primitives.ciphers.aead", "rclpy", "rclpy.lifecycle"),
    *("serl.ros.nodes.actor", "serl.ros.nodes.guard", "serl.ros.nodes.learner"),
    *("serl.ros.nodes.link", "serl.ros.nodes.console", "serl.ros.nodes.sim"),
    *("serl.cli.main", "serl.ros.testing", "serl.agents.sac", "mujoco"),
)
"""Modules that the server imports; a module run as `__main__` is imported again."""

_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER of prctl(2)
SERVERS: dict[int, subprocess.Popen[bytes]] = {}
"""Servers by process id; a test that ends all child processes must spare them."""

_SERVER = f"import runpy; runpy.run_path({__file__!r}, run_name='__main__')"
_TITLE = "server of preloaded processes"
_PIPES = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
_EARLY = re.compile(r"LD_|OMP_|MKL_|OPENBLAS_|MUJOCO_GL|PYOPENGL|ATEN_|PYTHON(?!PATH|UNBUFFERED)")
_LOCK = threading.Lock()


@contextlib.contextmanager
def preloading(*running: socket.socket) -> Iterator[None]:
    """Let a server fork the Python processes that this process starts.

    Args:
        running: socket of the server; without one it is started when it is needed.
    """
    original: Any = subprocess.Popen._execute_child  # type: ignore[attr-defined]
    signature, servers = inspect.signature(original), [*running]

    def execute(self: Any, *values: Any) -> None:
        given = signature.bind(self, *values).arguments
        if not _fits(given):
            original(self, *values)
            return
        with _LOCK:
            if not servers:
                servers.append(_serve())
        streams = [given["p2cread"], given["c2pwrite"], given["errwrite"]]
        request = {
            "words": [os.fspath(word) for word in given["args"]][1:],
            "env": dict(os.environ if given["env"] is None else given["env"]),
            "cwd": os.fspath(given["cwd"] or os.getcwd()),
            "session": given["start_new_session"],
            "parent": os.getpid(),
            "priority": os.getpriority(os.PRIO_PROCESS, 0),
        }
        self.pid = _fork(
            servers[0], request, [i if fd == -1 else fd for i, fd in enumerate(streams)]
        )
        self._child_created = True
        self._close_pipe_fds(*(given[name] for name in _PIPES))

    subprocess.Popen._execute_child = execute  # type: ignore[attr-defined]
    try:
        yield
    finally:
        subprocess.Popen._execute_child = original  # type: ignore[attr-defined]
        for server in servers:
            server.close()  # this ends the server


def _fits(given: dict[str, Any]) -> bool:
    """Return whether the server can start this command: our module or file, no unusual options."""
    words = given["args"]
    if not isinstance(words, list | tuple) or len(words) < 2 or words[0] != sys.executable:
        return False
    if given.get("preexec_fn") or given.get("pass_fds") or given.get("shell"):
        return False
    environ = os.environ if given["env"] is None else given["env"]
    if {k: v for k, v in environ.items() if _EARLY.match(k)} != _early_variables():
        return False
    ours = os.fspath(words[1])
    return ours.endswith(".py") or (ours == "-m" and words[2].startswith(("serl.", "tests.")))


def _early_variables() -> dict[str, str]:
    """Return the variables of this process that are read before or during the imports."""
    return {name: value for name, value in os.environ.items() if _EARLY.match(name)}


def is_server(process: psutil.Process) -> bool:
    """Return whether the process is a preloading server, not a process started by a test."""
    with contextlib.suppress(psutil.Error):
        return process.cmdline()[:1] == [_TITLE]
    return False


def _serve() -> socket.socket:
    """Start the server and return the socket for its requests."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    process = subprocess.Popen(
        [sys.executable, "-c", _SERVER, " " * 4096],  # reserves space for longer command lines
        pass_fds=[theirs.fileno()],
        env={**os.environ, "SERL_PRELOADED": str(theirs.fileno())},
    )
    theirs.close()
    SERVERS[process.pid] = process
    return ours


def _fork(server: socket.socket, request: dict[str, Any], streams: list[int]) -> int:
    """Let the server fork a process, adopt it and return its id."""
    prctl = ctypes.CDLL(None).prctl
    with _LOCK:
        prctl(_SUBREAPER, 1, 0, 0, 0)  # orphans below this process become its children
        try:
            socket.send_fds(server, [json.dumps(request).encode()], streams)
            answer = server.recv(64)
        finally:
            prctl(_SUBREAPER, 0, 0, 0, 0)
    if not answer:
        raise OSError("the server of preloaded processes has ended")
    return int(answer)


def _serve_requests(server: socket.socket) -> None:
    """Fork a process per request until the socket is closed; never return in a forked process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the forked processes
    _set_command_line(_TITLE)
    while True:
        data, streams, _, _ = socket.recv_fds(server, 1 << 20, 3)
        if not data:
            os._exit(0)
        request = json.loads(data)
        if (between := os.fork()) == 0:
            if os.fork():
                os._exit(0)
            break
        os.waitpid(between, 0)
        for stream in streams:
            os.close(stream)
    while (parent := os.getppid()) != request["parent"]:
        if parent == 1:  # the parent was killed in the meantime
            os._exit(1)
        time.sleep(0.0002)
    server.send(str(os.getpid()).encode())
    server.close()
    _become(request, streams)


def _set_command_line(*words: str) -> None:
    """Overwrite the command line of this process that `ps` shows."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    begin, end = int(fields[45]), int(fields[46])
    text = b"\0".join(word.encode() for word in words)[: end - begin - 1]
    ctypes.memmove(begin, text.ljust(end - begin, b"\0"), end - begin)


def _become(request: dict[str, Any], streams: list[int]) -> None:
    """Run a module or a file as a new process would, then exit."""
    for target, stream in enumerate(streams):
        os.dup2(stream, target)
        os.close(stream)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if request["session"]:
        os.setsid()
    if request["priority"] != os.getpriority(os.PRIO_PROCESS, 0):
        os.setpriority(os.PRIO_PROCESS, 0, request["priority"])
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    buffering = 1 if "PYTHONUNBUFFERED" in os.environ else -1
    sys.stdout = open(1, "w", buffering, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", 1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    words = request["words"]
    _set_command_line(sys.executable, *words)
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:] = [folder for folder in (*paths, *sys.path) if folder]
    with contextlib.ExitStack() as stack:
        if words[:2] == ["-m", "serl.cli.main"]:
            stack.enter_context(preloading(_fork_server()))
        _end(_run(words, request["cwd"]))


def _fork_server() -> socket.socket:
    """Fork a server for the processes that this one starts, and return its socket."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() == 0:
        ours.close()
        nothing = os.open(os.devnull, os.O_RDWR)
        for stream in range(3):  # an inherited pipe would keep its reader waiting
            os.dup2(nothing, stream)
        _serve_requests(theirs)
    theirs.close()
    return ours


def _run(words: list[str], folder: str) -> int:
    """Run a module or a file as `__main__`; return its exit code."""
    if words[0] == "-m":
        sys.path.insert(0, folder)
        sys.argv = words[1:]
        sys.modules.pop(words[1], None)
        run: Any = functools.partial(runpy.run_module, alter_sys=True)
    else:
        sys.path.insert(0, os.path.dirname(os.path.abspath(words[0])))
        sys.argv = words
        run = runpy.run_path
    try:
        run(sys.argv[0], run_name="__main__")
    except SystemExit as end:
        if isinstance(end.code, str):
            sys.stderr.write(f"{end.code}\n")
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        return 1
    return 0


def _end(code: int) -> None:
    """Exit like the interpreter, but without freeing the memory shared with the server."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    for name in IMPORTED:
        importlib.import_module(name)
    gc.freeze()
    _serve_requests(socket.socket(fileno=int(os.environ.pop("SERL_PRELOADED"))))
