"""Processes of Python that start in 50 ms instead of 600: forked after the imports, not before.

Most of what a node computes in a test are its imports. Within `preloading`, a process that a test
starts as `python -m MODULE ...` or `python SCRIPT ...` is forked by a server process that has the
libraries imported. It is a process like any other: a child of the test, with an environment, a
working folder, standard streams and signals of its own; it runs the module as `__main__`. Only its
command line in /proc is the server's, and memory is not freed at its end. What is started in any
other way, by `serl` itself among others, is not changed.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import gc
import importlib
import inspect
import io
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
from typing import Any

IMPORTED = (
    *("numpy", "psutil", "cryptography.hazmat.primitives.ciphers.aead", "rclpy", "rclpy.lifecycle"),
    *("serl.ros.nodes.actor", "serl.ros.nodes.guard", "serl.ros.nodes.learner"),
    *("serl.ros.nodes.link", "serl.ros.nodes.console", "serl.ros.nodes.sim"),
    *("serl.cli.main", "serl.ros.testing", "serl.agents.sac", "mujoco"),
)
"""Modules that the server imports; those that a process runs as `__main__` are imported again."""

_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER of prctl(2)
SERVERS: dict[int, subprocess.Popen[bytes]] = {}
"""The servers by process id; a test that ends all children of this process spares them."""

_PIPES = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
_EARLY = re.compile(r"LD_|OMP_|MKL_|OPENBLAS_|MUJOCO_GL|PYOPENGL|ATEN_|PYTHON(?!PATH|UNBUFFERED)")
_LOCK = threading.Lock()


@contextlib.contextmanager
def preloading() -> Iterator[None]:
    """Let the processes of Python that this process starts be forked by a server."""
    original: Any = subprocess.Popen._execute_child  # type: ignore[attr-defined]
    signature, servers = inspect.signature(original), list[socket.socket]()

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
            server.close()  # the server ends


def _fits(given: dict[str, Any]) -> bool:
    """Return whether the server can start this: a module or file of ours, nothing unusual asked."""
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
    """Return this process's variables that are read before or during the imports."""
    return {name: value for name, value in os.environ.items() if _EARLY.match(name)}


def _serve() -> socket.socket:
    """Start the server; return the end of a socket on which it takes requests."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    process = subprocess.Popen(
        [sys.executable, "-c", f"import runpy; runpy.run_path({__file__!r}, run_name='__main__')"],
        pass_fds=[theirs.fileno()],
        env={**os.environ, "SERL_PRELOADED": str(theirs.fileno())},
    )
    theirs.close()
    SERVERS[process.pid] = process
    return ours


def _fork(server: socket.socket, request: dict[str, Any], streams: list[int]) -> int:
    """Let the server fork a process and adopt it; return its id."""
    prctl = ctypes.CDLL(None).prctl
    with _LOCK:
        prctl(_SUBREAPER, 1, 0, 0, 0)  # an orphan below this process becomes its child
        try:
            socket.send_fds(server, [json.dumps(request).encode()], streams)
            answer = server.recv(64)
        finally:
            prctl(_SUBREAPER, 0, 0, 0, 0)
    if not answer:
        raise OSError("the server of preloaded processes has ended")
    return int(answer)


def _run(server: socket.socket) -> None:
    """Import the libraries, then fork a process for each request until the socket is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is for the tests
    for name in IMPORTED:
        importlib.import_module(name)
    gc.freeze()
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
    while os.getppid() != request["parent"]:
        time.sleep(0.0002)
    server.send(str(os.getpid()).encode())
    server.close()
    _become(request, streams)


def _become(request: dict[str, Any], streams: list[int]) -> None:
    """Run a module or a file as a new process would."""
    for target, stream in enumerate(streams):
        os.dup2(stream, target)
        os.close(stream)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if request["session"]:
        os.setsid()
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    words = request["words"]
    for output in (sys.stdout, sys.stderr):
        assert isinstance(output, io.TextIOWrapper)
        output.reconfigure(line_buffering="PYTHONUNBUFFERED" in os.environ or output is sys.stderr)
    path = os.environ.get("PYTHONPATH", "")
    sys.path[:] = [folder for folder in sys.path if folder]
    sys.path[:0] = [folder for folder in path.split(os.pathsep) if folder]
    if words[0] == "-m":
        sys.path.insert(0, request["cwd"])
        sys.argv = words[1:]
        sys.modules.pop(words[1], None)
        run: Any = functools.partial(runpy.run_module, alter_sys=True)
    else:
        sys.path.insert(0, os.path.dirname(os.path.abspath(words[0])))
        sys.argv = words
        run = runpy.run_path
    code: object = None
    try:
        run(sys.argv[0], run_name="__main__")
    except SystemExit as end:
        code = end.code
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    if isinstance(code, str):
        sys.stderr.write(f"{code}\n")
    _end(code if isinstance(code, int) else 0 if code is None else 1)


def _end(code: int) -> None:
    """End as the interpreter does, but for the memory, which is shared with the server."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    _run(socket.socket(fileno=int(os.environ.pop("SERL_PRELOADED"))))
