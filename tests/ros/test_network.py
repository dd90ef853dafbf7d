"""Sockets and messages of a run on several hosts, over 127.0.0.1; see `test_network_docs`."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest
import yaml

from serl.log.episode_log import EpisodeLog
from serl.ros.environment import _MOST_PARTICIPANTS
from serl.ros.testing.processes import eventually
from serl.runs.config import TrainConfig
from serl.runs.folder import RunFolder, RunInfo
from serl.runs.network import NetworkConfig
from serl.system.authentication import new_key
from serl.training.link import decode_snapshot
from serl.types import Key

from .conftest import EPISODE_STEPS, LIMIT_S, SPEC, Run, expected, record

pytestmark = pytest.mark.ros

OPEN = """<?xml version="1.0" encoding="UTF-8"?>
<profiles xmlns="http://www.eprosima.com/XMLSchemas/fastRTPS_Profiles">
  <transport_descriptors>
    <transport_descriptor><transport_id>udp</transport_id><type>UDPv4</type></transport_descriptor>
  </transport_descriptors>
  <participant profile_name="open" is_default_profile="true"><rtps>
    <userTransports><transport_id>udp</transport_id></userTransports>
    <useBuiltinTransports>false</useBuiltinTransports>
  </rtps></participant>
</profiles>
"""
REPLAYING = str(Path(__file__).parent / "support/replaying_process.py")
MANAGED = str(Path(__file__).parent / "support/managed_process.py")


def make_host(folder: Path, key: Path) -> Run:
    """Create the folder of a run over 127.0.0.1, as one of its hosts holds it."""
    new_key(key)
    network = NetworkConfig(hosts=("127.0.0.1",), key_file=key)
    info = RunInfo(created=datetime.now(), versions={}, config=TrainConfig(network=network))
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(info.model_dump(mode="json")))
    return Run(folder)


def doctor(folder: Path, *words: str, before: tuple[str, ...] = ()) -> tuple[int, list[str]]:
    """Run `serl doctor --network` in a folder; return its exit code and output lines."""
    command = [*before, sys.executable, "-m", "serl.cli.main", "doctor", "--network", *words]
    environ = {name: value for name, value in os.environ.items() if name != "ROS_DOMAIN_ID"}
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True)
    return done.returncode, (done.stdout + done.stderr).splitlines()


def test_run_on_one_host_opens_no_socket(tmp_path: Path) -> None:
    (tmp_path / "DEFAULT_FASTRTPS_PROFILES.xml").write_text(OPEN)  # Fast DDS looks for it here
    assert doctor(tmp_path) == (
        0,
        ["ok   sockets        none: processes talk through shared memory alone"],
    )


def test_node_reachable_from_other_hosts_does_not_start(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, TrainConfig(), datetime.now())
    (run.path / "loopback.xml").write_text(OPEN)
    code, (line,) = doctor(tmp_path, str(run.path))
    assert code == 1
    assert line.startswith("BAD  node           doctor: can be reached at udp 0.0.0.0 port ")
    assert line.endswith("; expected this host alone")


def test_node_falls_back_to_loopback_when_shared_memory_is_small(tmp_path: Path) -> None:
    script = 'mount -t tmpfs -o size=1m tmpfs /dev/shm && exec "$0" "$@"'
    before = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script)
    if subprocess.run([*before, "true"], capture_output=True).returncode:
        pytest.skip("NOT TESTED with a small /dev/shm: this machine has no mount namespaces")
    code, lines = doctor(tmp_path, before=before)
    assert code == 0
    sockets = [line for line in lines if line.startswith("ok   socket ")]
    assert sockets
    assert all("udp 127.0.0.1 port" in line for line in sockets)
    (warning,) = set(lines) - set(sockets)
    assert warning.endswith("MB free, a run needs 16: processes talk over 127.0.0.1 instead")


def test_page_names_the_ports_of_a_run_on_several_hosts(tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "docs/network.md").read_text(encoding="utf-8")
    found = re.search(r"of (\d+) processes .* domain 1, the default, UDP (\d+) to (\d+)", text)
    assert found
    processes, first, last = map(int, found.groups())
    assert (processes, last - first + 1) == (_MOST_PARTICIPANTS, 2 * _MOST_PARTICIPANTS)
    with make_host(tmp_path / "run", tmp_path / "key") as host:
        code, lines = doctor(tmp_path, str(host.folder))
    assert code == 0
    ports = sorted(int(line.rpartition("127.0.0.1 port ")[2]) for line in lines)
    number = (next(port for port in ports if first <= port <= last) - first) // 2
    assert {first + 2 * number, first + 2 * number + 1} < {*ports}
    assert any(7000 <= port < 7000 + 2 * processes for port in ports), "other runs hold some"
    assert len(ports) == 4, "and one that the system chooses"


def weights(run: Run, actor: str) -> bytes:
    """Return the learner folder encoded in the weights that an actor received."""
    path = run.link_folder(actor) / "weights.safetensors"
    if not path.exists():
        return b""
    return decode_snapshot(path.read_bytes(), SPEC.digest).weights["folder"].tobytes()


@pytest.fixture
def ours(tmp_path: Path) -> Iterator[Run]:
    with make_host(tmp_path / "ours" / "run", tmp_path / "key") as host:
        yield host


@pytest.fixture
def foreign(tmp_path: Path) -> Iterator[Run]:
    with make_host(tmp_path / "strange" / "run", tmp_path / "other") as host:
        yield host


def test_node_on_a_network_has_no_lifecycle_services(ours: Run) -> None:
    """Reject `autostart:=false`: lifecycle services are unsigned, so no manager could start it."""
    link = ("-m", "serl.ros.nodes.link", "--run", str(ours.folder), "--actor", "actor0")
    process = ours.start(*link, "--ros-args", "-p", "autostart:=false")
    stderr = process.communicate(timeout=LIMIT_S)[1]
    assert process.returncode == 2
    assert "autostart: expected true: no manager reaches it over a network" in stderr
    ours.processes.clear()
    managed = [sys.executable, MANAGED, str(ours.folder)]  # a process keeps its network
    done = subprocess.run(managed, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"active": True, "services": []}


def test_processes_with_another_key_exchange_no_data_with_the_run(ours: Run, foreign: Run) -> None:
    foreign.announce("actor9", 1)
    foreign.start_learner("actor9")
    foreign.start_link("actor9")
    ours.start_link("actor0")
    ours.act("actor0", epoch=1, episodes=4)
    ours.start_learner("actor0")
    eventually(lambda: len(ours.received()) == 200 and weights(ours, "actor0"))
    foreign.act("actor9", epoch=1, episodes=1)
    eventually(lambda: ours.counts().get("unauthenticated"))
    eventually(lambda: len(foreign.received()) >= 50 and weights(foreign, "actor9"))

    stderr = ours.end()
    assert ours.received() == expected("actor0", 1, 4)
    assert weights(ours, "actor0") == str(ours.folder).encode()
    assert any("dropped a message without this run's tag" in text for text in stderr), stderr
    assert foreign.received() == expected("actor9", 1, 1)
    assert weights(foreign, "actor9") == str(foreign.folder).encode()
    foreign.end()


def test_replayed_messages_are_dropped_as_duplicates(ours: Run) -> None:
    ours.start(REPLAYING, str(ours.folder))
    eventually((ours.folder / "listening").exists)
    ours.start_link("actor0")
    ours.act("actor0", 1, episodes=2)
    first = ours.start_learner("actor0")
    eventually(lambda: len(ours.received()) == 100)
    first.terminate()  # its acknowledgements are replayed while its successor runs
    first.wait(LIMIT_S)
    ours.start_learner("actor0")
    ours.announce("actor0", 2)
    folder, name = ours.folder / "episodes" / "actor0", ours.folder.name
    keys = [Key(name, "actor0", 2, 0, index) for index in range(EPISODE_STEPS + 1)]
    rng = np.random.default_rng(2)
    with EpisodeLog(folder, SPEC, name, "actor0", 2) as log:
        for key in keys[:25]:
            log.append(record(key, rng))
        eventually(lambda: len(ours.received()) == 125)
        again = ours.folder / "again"
        again.touch()
        eventually(again.read_text)
        heard = json.loads(again.read_text())
        assert heard["transitions"] >= 25  # a busy listener misses some
        assert min(heard[name] for name in ("transitions/ack", "actors", "policy/weights")) >= 1
        for key in keys[25:]:
            log.append(record(key, rng))
        eventually(lambda: len(ours.received()) == 150)
    ours.act("actor0", 3, episodes=1)
    eventually(lambda: len(ours.received()) >= 200)
    eventually(lambda: repeated(ours) >= heard["transitions"])
    ours.end()
    wanted = [expected("actor0", 1, 2), expected("actor0", 2, 1), expected("actor0", 3, 1)]
    assert ours.received() == [key for keys in wanted for key in keys]
    assert ours.counts()["unauthenticated"] == 0


def repeated(run: Run) -> float:
    """Return the number of duplicate or unknown messages that the learner ignored."""
    return run.counts().get("duplicate", 0) + run.counts().get("stranger", 0)
