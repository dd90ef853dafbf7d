"""Test the supervisor with real child processes, some of which are killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from serl.errors import BadInput, SerlError
from serl.ros.testing.processes import eventually
from serl.system import supervisor as supervisor_module
from serl.system.supervisor import ProcessSpec, Supervisor, is_orphaned

CHILD = """
import signal, sys, time
from pathlib import Path
mode = sys.argv[1]
if mode == "refuse":
    print("first line\\nno such thing as a unicorn"); sys.exit(2)
if mode == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if mode == "plain":  # as a child of a shell's background job, in its first seconds
    signal.signal(signal.SIGINT, signal.SIG_IGN)
if mode == "saves":
    def save(*_):
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        print("saving", flush=True)
        while not Path(__file__).with_name("go").exists():
            time.sleep(0.01)
        sys.exit(0)
    signal.signal(signal.SIGTERM, save)
if mode == "polite":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
print("ready", flush=True)
while True:
    time.sleep(0.01)
    if mode == "orphan":
        from serl.system.supervisor import is_orphaned
        if is_orphaned():
            sys.exit(0)
"""


class SupervisorBench:
    """Factory of supervisors of the child script above, with its log folder."""

    def __init__(self, folder: Path) -> None:
        (folder / "child.py").write_text(CHILD)
        self.folder = folder
        self.supervisors: list[Supervisor] = []

    def start(self, *specs: ProcessSpec, wait: bool = True) -> Supervisor:
        environment = {**os.environ, "PYTHONPATH": str(self.folder)}
        supervisor = Supervisor(specs, environment, self.folder / "log")
        self.supervisors.append(supervisor)
        supervisor.start()
        if wait:
            eventually(lambda: all("ready" in self.log(spec.name) for spec in specs))
        return supervisor

    def log(self, name: str) -> str:
        return (self.folder / "log" / f"{name}.log").read_text()


def child(name: str, mode: str, restarts: int = 3, ends: bool = True) -> ProcessSpec:
    return ProcessSpec(name, "child", (mode,), restarts, ends)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[SupervisorBench]:
    bench = SupervisorBench(tmp_path)
    yield bench
    for supervisor in bench.supervisors:
        supervisor.stop(grace_s=0.1)


def test_supervisor_names_and_restarts_killed_process(bench: SupervisorBench) -> None:
    supervisor = bench.start(child("a", "polite"), child("b", "polite"))
    before = supervisor.pids()
    assert os.getpgid(before["a"]) != os.getpgid(0), "Ctrl-C must reach the supervisor only"
    supervisor.check()
    assert supervisor.events == []
    os.kill(before["a"], signal.SIGKILL)
    eventually(lambda: supervisor.states()["a"] == "was killed by SIGKILL")
    supervisor.check()
    assert supervisor.events == ["a was killed by SIGKILL: started again (ready)"]
    assert supervisor.states() == {"a": "running", "b": "running"}
    assert supervisor.pids()["a"] != before["a"]
    assert supervisor.pids()["b"] == before["b"]


def test_processes_yield_to_other_sessions_by_their_niceness(bench: SupervisorBench) -> None:
    specs = [replace(child(f"nice{nice}", "polite"), nice=nice) for nice in (5, 10)]
    pids = bench.start(*specs).pids()
    for spec in specs:
        pid = pids[spec.name]
        assert psutil.Process(pid).nice() == spec.nice
        autogroup = Path(f"/proc/{pid}/autogroup")
        assert not autogroup.exists() or autogroup.read_text().endswith(f" nice {spec.nice}\n")


def test_supervisor_raises_when_process_crashes_too_often(bench: SupervisorBench) -> None:
    supervisor = bench.start(child("a", "polite", restarts=1))
    for _ in range(2):
        os.kill(supervisor.pids()["a"], signal.SIGKILL)
        eventually(lambda: supervisor.states()["a"] != "running")
        if not supervisor.events:
            supervisor.check()
    with pytest.raises(SerlError, match="a was killed by SIGKILL: ready") as error:
        supervisor.check()
    assert not isinstance(error.value, BadInput)


def test_supervisor_raises_last_line_of_process_that_refuses_its_input(
    bench: SupervisorBench,
) -> None:
    supervisor = bench.start(child("a", "refuse"), wait=False)
    eventually(lambda: supervisor.states()["a"] != "running")
    with pytest.raises(BadInput, match=r"^a: no such thing as a unicorn$"):
        supervisor.check()
    assert supervisor.events == []


def test_supervisor_restarts_finished_process_unless_it_may_end(
    bench: SupervisorBench,
) -> None:
    supervisor = bench.start(child("a", "polite", ends=False), child("b", "polite"))
    for pid in supervisor.pids().values():
        os.kill(pid, signal.SIGTERM)
    eventually(lambda: supervisor.finished("a") and supervisor.finished("b"))
    supervisor.check()
    assert supervisor.states() == {"a": "running", "b": "finished"}
    assert supervisor.events == ["a finished: started again (ready)"]


def test_stop_interrupts_processes_and_kills_those_that_hang(bench: SupervisorBench) -> None:
    supervisor = bench.start(child("a", "polite"), child("b", "deaf"))
    pids = supervisor.pids()
    supervisor.stop(grace_s=2.0)
    assert supervisor.states() == {"a": "finished", "b": "was killed by SIGKILL"}
    assert supervisor.events == ["b did not stop in 2 s: killed"]
    assert not any(psutil.pid_exists(pid) for pid in pids.values())
    supervisor.stop()  # a second stop has no effect


def test_stop_names_processes_that_did_not_save(
    bench: SupervisorBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor_module, "SAVING_S", 1.0)
    specs = child("a", "polite"), child("b", "deaf")
    supervisor = bench.start(*(replace(each, saves=True) for each in specs))
    assert supervisor.stop(grace_s=60.0) == ["b was killed by SIGKILL: ready"]
    assert supervisor.stop() == ["b was killed by SIGKILL: ready"], "also at a later call"
    assert supervisor.events == ["b did not stop in 1 s: killed"]


def test_stop_that_is_interrupted_and_repeated_lets_processes_save(
    bench: SupervisorBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisor = bench.start(replace(child("a", "saves"), saves=True))
    wait = subprocess.Popen.wait

    def interrupt(process: subprocess.Popen[bytes], timeout: float) -> int:
        eventually(lambda: "saving" in bench.log("a"))
        raise KeyboardInterrupt

    def finish(process: subprocess.Popen[bytes], timeout: float) -> int:
        (bench.folder / "go").touch()
        return wait(process, timeout)

    monkeypatch.setattr(subprocess.Popen, "wait", interrupt)
    with pytest.raises(KeyboardInterrupt):
        supervisor.stop()
    monkeypatch.setattr(subprocess.Popen, "wait", finish)
    assert supervisor.stop() == []
    assert supervisor.states() == {"a": "finished"}


def test_process_that_is_stopped_while_it_starts_has_nothing_to_save(
    bench: SupervisorBench,
) -> None:
    supervisor = bench.start(replace(child("a", "plain"), saves=True))
    assert supervisor.stop() == []
    assert supervisor.states() == {"a": "was killed by SIGTERM"}


def test_orphaned_child_ends_after_parent_is_killed(bench: SupervisorBench) -> None:
    script = (
        "import sys, time; from pathlib import Path; from tests_stage import start\n"
        "print(start(Path(sys.argv[1])), flush=True); time.sleep(60)"
    )
    (bench.folder / "tests_stage.py").write_text(
        "import os\n"
        "from serl.system.supervisor import ProcessSpec, Supervisor\n"
        "def start(folder):\n"
        "    specs = [ProcessSpec('a', 'child', ('orphan',))]\n"
        "    global supervisor\n"
        "    supervisor = Supervisor(specs, dict(os.environ), folder / 'log')\n"
        "    supervisor.start()\n"
        "    return supervisor.pids()['a']\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", script, str(bench.folder)],
        env={**os.environ, "PYTHONPATH": str(bench.folder)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    eventually(lambda: "ready" in bench.log("a"))
    parent.kill()
    parent.communicate()

    def is_gone() -> bool:
        try:
            return psutil.Process(pid).status() == "zombie"
        except psutil.NoSuchProcess:
            return True

    eventually(is_gone)


def test_unsupervised_process_is_not_orphaned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SERL_PARENT", raising=False)
    assert not is_orphaned()
    monkeypatch.setenv("SERL_PARENT", str(os.getppid()))
    assert not is_orphaned()
    monkeypatch.setenv("SERL_PARENT", "1" if os.getppid() != 1 else "2")
    assert is_orphaned()
