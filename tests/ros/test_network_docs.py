"""The commands of docs/network.md, on two hosts, in one training; its learner is killed once.

`ssh` and `scp` are stand-ins that reach the folder of the other host.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from serl.log.episode_reader import episode_paths, read_records
from serl.runs.checkpoint import checkpoint_paths, load
from serl.runs.task_setup import make_spec, make_task
from serl.specs import Spec
from serl.types import Key

from ..support.command import Program
from .support.namespaces import ADDRESSES, Hosts, two_hosts

pytestmark = pytest.mark.ros

PAGE = (Path(__file__).parents[2] / "docs/network.md").read_text(encoding="utf-8")
for number, address in enumerate(ADDRESSES, 1):
    PAGE = PAGE.replace(f"10.0.0.{number}", address)
_, FIRST, SECOND = re.findall(r"^```bash\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
STEPS = 100
SHORT = (
    f" --steps {STEPS} --demos 0 --task_config.time_limit_s 1.0 --agent.hidden '[16, 16]'"
    " --agent.batch_size 16 --agent.bc_warm_start 0 --learner.warm_up 0 --agent.threads 1"
    " --learner.checkpoint_every 20 --actor.max_lead_steps 16 --log.min_free_bytes 0"
)
TOOLS = {
    "ssh": '#!/bin/sh\nhost=$1; shift\nHOME="$HOSTS/$host"; cd "$HOME" && exec "$@"\n',
    "scp": (
        '#!/bin/sh\n[ "$1" = -p ] && shift\nplace() { case "$1" in '
        '*:*) echo "$HOSTS/${1%%:*}/${1#*:}";; *) echo "$1";; esac; }\n'
        'exec cp -p "$(place "$1")" "$(place "$2")"\n'
    ),
    "serl": f'#!/bin/sh\nexec {sys.executable} -m serl.cli.main "$@"\n',
}


class Host:
    """A host with its own home directory, in which bash scripts run."""

    def __init__(self, folder: Path, hosts: Hosts, number: int) -> None:
        self.home = folder / ADDRESSES[number]
        self.work = self.home / "serl"
        self.work.mkdir(parents=True)
        self._before = hosts.inside(number)
        environ = {name: value for name, value in os.environ.items() if name != "ROS_DOMAIN_ID"}
        path = f"{folder / 'bin'}:{os.environ['PATH']}"
        self._environ = environ | {"HOME": str(self.home), "HOSTS": str(folder), "PATH": path}

    def start(self, script: str) -> Program:
        words = [*self._before, "bash", "-euc", script]
        return Program(words, self.work / "out", self._environ)

    def kill(self, module: str) -> None:
        """Kill the process of this host that runs a module, by SIGKILL."""
        (pid,) = (
            process.pid
            for process in psutil.process_iter(["cmdline"])
            if module in (process.info["cmdline"] or ()) and str(self.home) in _home(process)
        )
        os.kill(pid, signal.SIGKILL)


def _home(process: psutil.Process) -> str:
    try:
        return process.environ().get("HOME", "")
    except psutil.Error:
        return ""


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    try:
        with two_hosts() as made:
            yield made
    except OSError as error:
        pytest.skip(f"NOT TESTED between two hosts: this machine has no namespaces: {error}")


@pytest.fixture
def pair(tmp_path: Path, hosts: Hosts) -> tuple[Host, Host]:
    (tmp_path / "bin").mkdir()
    for name, text in TOOLS.items():
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    return Host(tmp_path, hosts, 0), Host(tmp_path, hosts, 1)


def test_commands_of_network_page_train_on_two_hosts(pair: tuple[Host, Host]) -> None:
    here, there = pair
    with here.start(FIRST.strip() + SHORT) as learner:
        run = learner.run_folder()
        name = str(run.path.relative_to(here.work))
        with there.start(re.sub(r"^RUN=.*$", f"RUN={name}", SECOND, flags=re.MULTILINE)) as actor:
            actor.until(lambda: checkpoint_paths(run.checkpoints))
            here.kill("serl.ros.nodes.learner")
            learner.succeed()
            actor.succeed()
    assert "learner was killed by SIGKILL: started again" in learner.output
    assert load(checkpoint_paths(run.checkpoints)[-1]).info["trained"] == {"actor0": STEPS}
    spec = make_spec(make_task(run.config))
    copied, logged = (_keys(host.work / name / "episodes/actor0", spec) for host in pair)
    assert copied == logged[: len(copied)]
    assert len(copied) >= STEPS


def _keys(folder: Path, spec: Spec) -> list[Key]:
    return [record.key for record in read_records(episode_paths(folder), spec)]
