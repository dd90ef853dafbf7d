from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from xml.etree import ElementTree

import pytest

from serl.errors import BadInput, CorruptData
from serl.ros import doctor, environment
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
from serl.ros.processes import run_extra_processes, run_processes, started_domain_id
from serl.runs.config import resolve
from serl.runs.folder import RunFolder
from serl.runs.network import NetworkConfig

SHARED_MEMORY_PROFILE = Path(environment.__file__).with_name("shared_memory.xml")


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Use a temporary folder for locks and shared memory."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(environment, "SHARED_MEMORY", tmp_path)
    return tmp_path


def test_two_runs_get_two_domains_and_closed_domain_is_reused(elsewhere: Path) -> None:
    with free_domain({}) as first, free_domain({}) as second:
        assert (first.id, second.id) == (1, 2)
    with free_domain({}) as third:
        assert third.id == 1


def test_domain_of_killed_process_is_free_again(elsewhere: Path) -> None:
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


def test_free_domain_skips_domain_used_by_other_programs(elsewhere: Path) -> None:
    with (elsewhere / f"fastrtps_port{7400 + 250}_sl").open("w") as port:
        fcntl.flock(port, fcntl.LOCK_SH)
        with free_domain({}) as domain:
            assert domain.id == 2


def test_free_domain_fails_when_all_domains_are_in_use(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "DOMAINS", range(3))
    with free_domain({}), free_domain({}), pytest.raises(BadInput, match="ROS_DOMAIN_ID"):
        free_domain({})


@pytest.mark.parametrize("is_link", [True, False])
def test_folder_of_domains_that_another_user_made_is_refused(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch, is_link: bool
) -> None:
    """Leave a file alone to which the other user has made a link at the name of a lock."""
    precious, theirs = elsewhere / "precious", elsewhere / "theirs"
    precious.write_text("data")
    theirs.mkdir()
    (theirs / "1").symlink_to(precious)
    user = os.geteuid() + (not is_link)  # without a link, the folder is another user's
    monkeypatch.setattr(os, "geteuid", lambda: user)
    folder = elsewhere / f"serl-domains-{user}"
    folder.symlink_to(theirs) if is_link else theirs.rename(folder)
    with pytest.raises(BadInput, match="expected a folder of this user"):
        free_domain({})
    assert precious.read_text() == "data"


def test_domain_from_environment_is_used_and_shared() -> None:
    with free_domain({"ROS_DOMAIN_ID": "42"}) as first, free_domain({"ROS_DOMAIN_ID": "42"}) as two:
        assert first.id == two.id == 42
    assert domain_id_of({}) == domain_id_of({"ROS_DOMAIN_ID": ""}) == 0


def test_resumed_run_reuses_its_previous_domain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with free_domain({}, before=77) as first:
        assert first.id == 77
        with free_domain({}, before=77) as shared:  # runs share it by namespace
            assert shared.id == 77
    with free_domain({"ROS_DOMAIN_ID": "42"}, before=77) as asked:
        assert asked.id == 42


def test_console_of_resumed_run_is_in_the_domain_of_its_last_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.delenv("ROS_DOMAIN_ID")
    run = RunFolder.create(tmp_path / "runs", resolve({"task": "reach"}), datetime.now())
    (run.path / "ros_domain").write_text("77")
    with run_extra_processes(run, ()):
        assert os.environ["ROS_DOMAIN_ID"] == "77"


def test_learner_of_real_arm_is_in_the_domain_of_its_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Start no process with an argument of the arm: those of its actors come with `serl actor`."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.delenv("ROS_DOMAIN_ID")
    config = resolve({"task": "reach", "robot": "franka", "intervention": "none", "demos": 0})
    run = RunFolder.create(tmp_path / "runs", config, datetime.now())
    with run_processes(run, ()):
        assert started_domain_id(run) == 0


@pytest.mark.parametrize("bad", ["102", "-1", "x", "1.5", " ", "\u00b2"])
def test_invalid_domain_is_rejected_with_valid_range(bad: str) -> None:
    with pytest.raises(BadInput, match="from 0 to 101"):
        free_domain({"ROS_DOMAIN_ID": bad})


def test_settle_replaces_network_variables_with_local_settings(tmp_path: Path) -> None:
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
        "SKIP_DEFAULT_XML_FILE": "1",
        "FASTRTPS_DEFAULT_PROFILES_FILE": str(SHARED_MEMORY_PROFILE),
    }


def test_segment_bytes_equals_size_in_transport_profile() -> None:
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
def test_run_without_shared_memory_uses_loopback_and_warns(
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
    choose_transport(tmp_path)  # a restart with enough shared memory
    settle(environ, 7, tmp_path)
    assert environ["FASTRTPS_DEFAULT_PROFILES_FILE"] == str(SHARED_MEMORY_PROFILE)


def test_full_shared_memory_does_not_change_transport_of_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose_transport(tmp_path)
    monkeypatch.setattr(environment, "SEGMENT_BYTES", 1 << 60)
    environ: dict[str, str] = {}
    settle(environ, 7, tmp_path)
    assert environ["FASTRTPS_DEFAULT_PROFILES_FILE"] == str(SHARED_MEMORY_PROFILE)


def test_run_on_several_hosts_uses_udp_at_its_addresses(tmp_path: Path) -> None:
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


def test_folder_without_configuration_has_local_network(tmp_path: Path) -> None:
    assert network_of(tmp_path) == NetworkConfig()
    (tmp_path / "config.yaml").write_text("damaged")
    with pytest.raises(CorruptData):
        network_of(tmp_path)


def _addresses(environ: dict[str, str]) -> tuple[list[str | None], list[str | None]]:
    """Return the interface white list and initial peers of the selected profile."""
    root = ElementTree.parse(environ["FASTRTPS_DEFAULT_PROFILES_FILE"]).getroot()
    lists = (
        root.iterfind(f".//{{*}}{name}") for name in ("interfaceWhiteList", "initialPeersList")
    )
    white, peers = ([found.text for found in one.iterfind(".//{*}address")] for (one,) in lists)
    return white, peers


def test_ros_status_names_missing_package_and_install_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    status = ros_status()
    assert "rclpy" in status.problem
    assert "pip install" in status.problem
    assert status.version == ""


def test_clean_shared_memory_removes_only_files_of_dead_processes(tmp_path: Path) -> None:
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


def test_doctor_reports_domain_use_for_runs(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def domain_finding() -> str:
        return next(str(found.text) for found in findings() if found.subject == "ROS domain")

    monkeypatch.delenv("ROS_DOMAIN_ID", raising=False)
    assert domain_finding() == "1: unused; the next run takes it"
    monkeypatch.setenv("ROS_DOMAIN_ID", "87")
    assert domain_finding() == "87, from ROS_DOMAIN_ID: unused; runs share it by namespace"
    port = elsewhere / f"fastrtps_port{7400 + 250 * 87}_sl"
    port.touch()
    with port.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_SH)  # as Fast DDS does while it is there
        assert (
            domain_finding()
            == "87, from ROS_DOMAIN_ID: used by other processes; runs share it by namespace"
        )


def test_doctor_names_needed_disk_space_and_usable_processors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(doctor, "_FREE_BYTES", 1 << 60)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {3, 5})
    found = {each.subject: each for each in findings()}
    assert not found["disk"].sound
    assert found["disk"].text.endswith("; expected 1152921504.61 GB or more")
    assert found["processors"].text == "2"
