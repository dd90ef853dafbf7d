"""Rights of other users of the host, who reach a real arm's processes over 127.0.0.1."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from serl.guard.latch import Latch, LatchFile
from serl.ros.environment import meet_others
from serl.ros.node import namespace
from serl.ros.testing.processes import eventually
from serl.system.signed_order import key_path
from serl.teleop.stop import STOP_FILE

from ..support.guarding import config
from .conftest import Run
from .test_meeting_others import stock_environment

pytestmark = pytest.mark.ros

ACTOR, LIMIT_S = "actor0", 240


def run_order_command(*words: str) -> subprocess.CompletedProcess[str]:
    """Run `serl order` in its own process, as this process has another transport."""
    return subprocess.run(
        [sys.executable, "-m", "serl.cli.main", "order", *words],
        env=stock_environment(),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_other_user_can_stop_arm_but_not_end_stop_or_arm_guard(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SERL_SHARED_MEMORY")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    meet_others(run.folder)  # as for a real arm
    latch, settings = tmp_path / "panda.latch", tmp_path / "guard.yaml"
    LatchFile(latch).write(Latch())
    settings.write_text(json.dumps(config().model_dump(mode="json")))
    stopped, here = run.folder / "link" / ACTOR / STOP_FILE, Path(__file__).parent / "support"
    where = ("--run", str(run.folder), "--robot", "panda", "--latch", str(latch))
    run.start(str(here / "arm_process.py"), str(run.folder), "panda")
    run.start("-m", "serl.ros.nodes.guard", *where, "--config", str(settings))
    run.start(str(here / "held_process.py"), str(run.folder), ACTOR)
    arm, actor = f"{namespace(run.folder)}/panda", f"{namespace(run.folder)}/{ACTOR}"
    words = (str(here / "neighbour_process.py"), arm, actor, str(key_path(latch)))
    neighbour = subprocess.run(
        [sys.executable, *words],
        env=stock_environment(),
        capture_output=True,
        text=True,
        timeout=2 * LIMIT_S,
    )
    assert neighbour.returncode == 0, neighbour.stderr
    found = json.loads(neighbour.stdout)
    assert found["uid"] != os.getuid()
    assert found["first"]["state"] == "disarmed"
    unsigned = f"not signed: serl order {arm}/guard/arm --key {latch}.key"
    assert found["arm"] == [[False, unsigned], [False, unsigned]]
    assert found["disarm"][0], found
    assert [done for done, _ in found["stops"]] == [True, True], found
    keys = {f"{actor}/release": f"{stopped}.key"}
    for tries in (found["calls"], found["orders"]):
        assert len(tries) == 4
        for service, (done, said) in tries.items():
            key = keys.get(service, f"{latch}.key")
            assert (done, said) == (False, f"not signed: serl order {service} --key {key}")
    assert found["before"]["state"] == found["after"]["state"] == "estop: the service estop"
    assert float(found["after"]["orders: not signed"]) == 8.0
    assert found["lifecycle"] == [True, True]
    assert found["key"] == "PermissionError"
    assert latch.read_text() == "serl latch: estop\nthe service estop\n"
    assert stopped.read_text() == "stopped by the operator"

    words = (f"{arm}/guard/ack", f"{arm}/guard/reset", "--key", f"{latch}.key")
    answers: list[subprocess.CompletedProcess[str]] = []

    def is_answered() -> bool:
        answers.append(run_order_command(*words))
        return "not now: " not in answers[-1].stderr  # measurements are late on a busy machine

    eventually(is_answered, LIMIT_S)
    assert answers[-1].returncode == 0, answers[-1].stderr
    assert answers[-1].stdout.splitlines()[1] == f"{arm}/guard/reset: disarmed"
    owner = run_order_command(f"{actor}/release", "--key", f"{stopped}.key")
    assert owner.returncode == 0, owner.stderr
    assert not stopped.exists()
