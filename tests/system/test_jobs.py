from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from serl.system.jobs import Job, run_jobs, stop

HANGS = """
import signal, time
signal.signal(signal.SIGTERM, signal.default_int_handler)  # as serl does
print('up', flush=True)
time.sleep(60)
"""
DEAF = HANGS.replace("default_int_handler", "SIG_IGN")


def job(folder: Path, name: str, code: str) -> Job:
    return Job(name, (sys.executable, "-c", code), folder / name / "log.txt")


def is_up(each: Job) -> bool:
    return each.log.exists() and "up" in each.log.read_text()


def wait_for(condition: Callable[[], bool], limit_s: float = 120.0) -> None:
    deadline_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


def test_run_jobs_runs_all_jobs_and_reports_exit_codes(tmp_path: Path) -> None:
    codes: dict[str, int] = {}
    alive: set[str] = set()
    most = 0

    def started(each: Job) -> None:
        nonlocal most
        alive.add(each.name)
        most = max(most, len(alive))

    def ended(each: Job, code: int) -> None:
        alive.remove(each.name)
        codes[each.name] = code

    jobs = [job(tmp_path, str(n), f"print('code', {n}); raise SystemExit({n})") for n in range(5)]
    run_jobs(jobs, 2, started, ended)
    assert codes == {str(n): n for n in range(5)}
    assert most == 2
    assert [each.last_line() for each in jobs] == [f"code {n}" for n in range(5)]


def test_interrupt_ends_running_jobs_and_starts_no_more(tmp_path: Path) -> None:
    jobs = [job(tmp_path, name, HANGS) for name in "abc"]
    ends: list[str] = []

    def interrupt() -> None:
        wait_for(lambda: all(map(is_up, jobs[:2])))
        os.kill(os.getpid(), signal.SIGINT)

    # Another test may have left a handler.
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        run_jobs(jobs, 2, lambda each: None, lambda each, code: ends.append(each.name))
    signal.signal(signal.SIGINT, handler)
    assert "KeyboardInterrupt" in jobs[0].log.read_text()
    assert "KeyboardInterrupt" in jobs[1].log.read_text()
    assert not jobs[2].log.exists()
    assert ends == []


def test_stop_kills_job_that_ignores_sigterm(tmp_path: Path) -> None:
    deaf = job(tmp_path, "deaf", DEAF)
    process = deaf.start()
    wait_for(lambda: is_up(deaf))
    stop([process], grace_s=0.3)
    assert process.returncode == -signal.SIGKILL


def test_job_is_supervised_by_process_that_started_it(tmp_path: Path) -> None:
    code = (
        "from serl.system.supervisor import is_orphaned, is_supervised\n"
        "print(is_supervised(), is_orphaned())"
    )
    ours = job(tmp_path, "ours", code)
    assert ours.start().wait() == 0
    assert ours.last_line() == "True False"


def test_restarted_job_appends_to_its_log(tmp_path: Path) -> None:
    for _ in range(2):
        assert job(tmp_path, "again", "print('line')").start().wait() == 0
    assert (tmp_path / "again" / "log.txt").read_text() == "line\nline\n"
    empty = job(tmp_path, "empty", "")
    assert empty.start().wait() == 0
    assert empty.last_line() == f"see {empty.log}"


def test_job_runs_without_excluded_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEPT", "1")
    monkeypatch.setenv("EXCLUDED", "2")
    code = "import os; print(os.environ.get('KEPT'), os.environ.get('EXCLUDED'))"
    each = job(tmp_path, "a", code)._replace(without=("EXCLUDED",))
    run_jobs([each], 1, lambda job: None, lambda job, code: None)
    assert each.last_line() == "1 None"
