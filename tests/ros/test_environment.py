from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from serl.errors import BadInput, CorruptData
from serl.ros import environment
from serl.ros.doctor import findings
from serl.ros.environment import (
    choose_transport,
    clean_shared_memory,
    domain_id_of,
    free_domain,
    network_of,
    ros_status,
    settle,
)
from serl.runs.network import NetworkConfig

SHARED_MEMORY_PROFILE = Path(environment.__file__).with_name("shared_memory.xml")


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Locks and shared memory of an imaginary machine."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(environment, "SHARED_MEMORY", tmp_path)
    return tmp_path


def test_two_runs_get_two_domains_and_a_closed_one_is_free_again(elsewhere: Path) -> None:
    with free_domain({}) as first, free_domain({}) as second:
        assert (first.id, second.id) == (1, 2)
    with free_domain({}) as third:
        assert third.id == 1


def test_a_dead_holder_frees_its_domain(elsewhere: Path) -> None:
    code = (
        "import os, tempfile; tempfile.tempdir = os.environ['HERE']\n"
        "from serl.ros.environment import free_domain\n"
        "domain = free_domain({}); print(domain.id, flush=True); input()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code],
        env=os.environ | {"HERE": str(elsewhere)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout is not None
    held = int(holder.stdout.readline())
    with free_domain({}) as other:
        assert other.id != held
    holder.send_signal(signal.SIGKILL)
    holder.communicate()
    with free_domain({}) as again:
        assert again.id == min(held, other.id)


def test_a_domain_in_use_by_other_programs_is_left_alone(elsewhere: Path) -> None:
    with (elsewhere / f"fastrtps_port{7400 + 250}_sl").open("w") as port:
        fcntl.flock(port, fcntl.LOCK_SH)
        with free_domain({}) as domain:
            assert domain.id == 2


def test_all_domains_in_use(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "DOMAINS", range(3))
    with free_domain({}), free_domain({}), pytest.raises(BadInput, match="ROS_DOMAIN_ID"):
        free_domain({})


def test_the_domain_that_the_user_set_is_used_and_shared() -> None:
    with free_domain({"ROS_DOMAIN_ID": "42"}) as first, free_domain({"ROS_DOMAIN_ID": "42"}) as two:
        assert first.id == two.id == 42
    assert domain_id_of({}) == domain_id_of({"ROS_DOMAIN_ID": ""}) == 0


def test_a_run_goes_on_in_the_domain_in_which_its_actors_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with free_domain({}, before=77) as first:
        assert first.id == 77
        with free_domain({}, before=77) as shared:  # another run has it: they differ by namespace
            assert shared.id == 77
    with free_domain({"ROS_DOMAIN_ID": "42"}, before=77) as asked:
        assert asked.id == 42


@pytest.mark.parametrize("bad", ["102", "-1", "x", "1.5", " ", "\u00b2"])
def test_a_bad_domain_is_one_clear_line(bad: str) -> None:
    with pytest.raises(BadInput, match="from 0 to 101"):
        free_domain({"ROS_DOMAIN_ID": bad})


def test_a_run_is_local_whatever_is_set(tmp_path: Path) -> None:
    environ = {"HOME": "/h", "ROS_LOCALHOST_ONLY": "1", "ROS_STATIC_PEERS": "10.0.0.2"}
    environ |= {"ROS_AUTOMATIC_DISCOVERY_RANGE": "SUBNET", "FASTDDS_BUILTIN_TRANSPORTS": "UDPv4"}
    environ |= {"FASTRTPS_DEFAULT_PROFILES_FILE": "x", "ROS_DISCOVERY_SERVER": "10.0.0.2:11811"}
    settle(environ, 7, tmp_path)
    once = dict(environ)
    settle(environ, 7, tmp_path)
    assert environ == once
    environ.pop("AMENT_PREFIX_PATH", None)
    assert environ == {
        "HOME": "/h",
        "ROS_DOMAIN_ID": "7",
        "ROS_LOG_DIR": str(tmp_path / "log"),
        "FASTRTPS_DEFAULT_PROFILES_FILE": str(SHARED_MEMORY_PROFILE),
    }


def test_the_need_for_shared_memory_is_that_of_the_profile() -> None:
    sizes = [
        int(element.text or "")
        for element in ElementTree.parse(SHARED_MEMORY_PROFILE).iter()
        if element.tag.endswith("segment_size")
    ]
    assert sizes == [environment.SEGMENT_BYTES]


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("SHARED_MEMORY", Path("/absent"), "/absent cannot be written"),
        ("SEGMENT_BYTES", 1 << 60, "MB free, a run needs"),
    ],
)
def test_without_shared_memory_a_run_talks_over_loopback_and_says_so(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    name: str,
    value: object,
    problem: str,
) -> None:
    with monkeypatch.context() as too_little:
        too_little.setattr(environment, name, value)
        choose_transport(tmp_path)
    environ: dict[str, str] = {}
    settle(environ, 7, tmp_path)
    assert _addresses(environ) == (["127.0.0.1"], ["127.0.0.1"])
    assert problem in caplog.text
    assert "over 127.0.0.1 instead" in caplog.text
    choose_transport(tmp_path)  # the run is started again, and by now there is enough
    settle(environ, 7, tmp_path)
    assert environ["FASTRTPS_DEFAULT_PROFILES_FILE"] == str(SHARED_MEMORY_PROFILE)


def test_shared_memory_that_fills_up_during_a_run_parts_no_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose_transport(tmp_path)
    monkeypatch.setattr(environment, "SEGMENT_BYTES", 1 << 60)
    environ: dict[str, str] = {}
    settle(environ, 7, tmp_path)
    assert environ["FASTRTPS_DEFAULT_PROFILES_FILE"] == str(SHARED_MEMORY_PROFILE)


def test_several_hosts_talk_udp_at_their_own_addresses(tmp_path: Path) -> None:
    network = NetworkConfig(hosts=("198.51.100.77", "127.0.0.1"), domain=9)
    environ = {"FASTDDS_BUILTIN_TRANSPORTS": "SHM"}
    with free_domain({}, network) as domain, free_domain({"ROS_DOMAIN_ID": "8"}, network) as asked:
        assert (domain.id, asked.id) == (9, 8)
    assert (domain_id_of({}, network), domain_id_of({})) == (9, 0)
    settle(environ, 9, tmp_path, network)
    assert "FASTDDS_BUILTIN_TRANSPORTS" not in environ
    assert _addresses(environ) == (["127.0.0.1"], ["198.51.100.77", "127.0.0.1"])
    with pytest.raises(BadInput, match=r"none of 198.51.100.77 is an address of this host"):
        settle(environ, 9, tmp_path, NetworkConfig(hosts=("198.51.100.77",)))


def test_a_folder_without_configuration_is_local(tmp_path: Path) -> None:
    assert network_of(tmp_path) == NetworkConfig()
    (tmp_path / "config.yaml").write_text("damaged")
    with pytest.raises(CorruptData):
        network_of(tmp_path)


def _addresses(environ: dict[str, str]) -> tuple[list[str | None], list[str | None]]:
    """White list and initial peers of the profile."""
    root = ElementTree.parse(environ["FASTRTPS_DEFAULT_PROFILES_FILE"]).getroot()
    lists = (
        root.iterfind(f".//{{*}}{name}") for name in ("interfaceWhiteList", "initialPeersList")
    )
    white, peers = ([found.text for found in one.iterfind(".//{*}address")] for (one,) in lists)
    return white, peers


def test_missing_ros_is_named_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    status = ros_status()
    assert "rclpy" in status.problem
    assert "pip install" in status.problem
    assert status.version == ""


def test_only_what_the_dead_left_is_removed(tmp_path: Path) -> None:
    segment, orphan = "fastrtps_00000000000000aa", "fastrtps_port7411"
    alive, shared, fresh = "fastrtps_port7410", "fastrtps_port7400", "fastrtps_port7660"
    dead = {segment, f"{segment}_el", orphan, f"sem.{orphan}_mutex"}
    kept = {"other_el", *(f"{alive}{end}" for end in ("", "_el")), f"{shared}_sl", shared}
    for name in dead | kept:
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (0, 0))
    for name in (fresh, f"{fresh}_el"):
        (tmp_path / name).touch()
    with (tmp_path / f"{alive}_el").open() as one, (tmp_path / f"{shared}_sl").open() as other:
        fcntl.flock(one, fcntl.LOCK_EX)
        fcntl.flock(other, fcntl.LOCK_SH)
        assert clean_shared_memory(tmp_path) == len(dead)
    assert clean_shared_memory(tmp_path / "absent") == 0, "a host without shared memory"
    assert {path.name for path in tmp_path.iterdir()} == kept | {fresh, f"{fresh}_el"}


def test_the_doctor_says_what_runs_do_with_a_domain(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def told() -> str:
        return next(str(found.text) for found in findings() if found.subject == "ROS domain")

    monkeypatch.delenv("ROS_DOMAIN_ID", raising=False)
    assert told() == "1: unused; the next run takes it"
    monkeypatch.setenv("ROS_DOMAIN_ID", "87")
    assert told() == "87, from ROS_DOMAIN_ID: unused; runs share it by namespace"
    port = elsewhere / f"fastrtps_port{7400 + 250 * 87}_sl"
    port.touch()
    with port.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_SH)  # as Fast DDS does while it is there
        assert (
            told() == "87, from ROS_DOMAIN_ID: used by other processes; runs share it by namespace"
        )
