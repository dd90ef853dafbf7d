"""The ROS 2 environment of a run: domain, variables, shared memory, node names; without rclpy."""

from __future__ import annotations

import fcntl
import importlib.metadata
import importlib.util
import logging
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from ipaddress import IPv4Address
from pathlib import Path
from typing import IO, TYPE_CHECKING, NamedTuple, Self

from serl.errors import BadInput, CorruptData
from serl.ros.ports import SHARED_MEMORY, discovery_port
from serl.runs.network import NetworkConfig
from serl.system.files import FileLock, open_regular, own_folder, write_atomic
from serl.system.sockets import is_up
from serl.system.supervisor import is_orphaned

if TYPE_CHECKING:
    from serl.runs.config import TrainConfig

_MOST_PARTICIPANTS = 64
"""Most processes of a run on one host: 16 actors with a link each, a learner, and monitors."""

_BUFFER_BYTES = 4 << 20
_HEARTBEAT_NS = 50_000_000

_XML = """<?xml version="1.0" encoding="UTF-8"?>
<profiles xmlns="http://www.eprosima.com/XMLSchemas/fastRTPS_Profiles">
  <transport_descriptors>
    <transport_descriptor>
      <transport_id>udp</transport_id>
      <type>UDPv4</type>
      <sendBufferSize>{buffer}</sendBufferSize>
      <receiveBufferSize>{buffer}</receiveBufferSize>
      <maxInitialPeersRange>{participants}</maxInitialPeersRange>
      <interfaceWhiteList>{addresses}</interfaceWhiteList>
    </transport_descriptor>
  </transport_descriptors>
  <participant profile_name="serl" is_default_profile="true">
    <rtps>
      <builtin>
        <discovery_config>
          <initialAnnouncements>
            <count>40</count>
            <period><nanosec>100000000</nanosec></period>
          </initialAnnouncements>
        </discovery_config>
        <!-- a listed unicast locator, even an empty one, turns multicast off -->
        <metatrafficUnicastLocatorList><locator/></metatrafficUnicastLocatorList>
        <initialPeersList>{hosts}</initialPeersList>
      </builtin>
      <userTransports><transport_id>udp</transport_id></userTransports>
      <useBuiltinTransports>false</useBuiltinTransports>
    </rtps>
  </participant>
  <!-- lost messages are detected and sent again at a heartbeat; the default period is 3 s -->
  <data_writer profile_name="serl_writer" is_default_profile="true">
    <times><heartbeatPeriod><nanosec>{heartbeat}</nanosec></heartbeatPeriod></times>
  </data_writer>
</profiles>
"""


def write_profile(
    path: Path, addresses: Sequence[IPv4Address], hosts: Sequence[IPv4Address]
) -> None:
    """Write a Fast DDS profile that limits traffic to UDP between the given addresses.

    Args:
        path: path of the XML file.
        addresses: addresses of this host; nothing is bound to another one.
        hosts: hosts on which other participants are searched for, this host included.
    """
    text = _XML.format(
        buffer=_BUFFER_BYTES,
        heartbeat=_HEARTBEAT_NS,
        participants=_MOST_PARTICIPANTS,
        addresses="".join(f"<address>{address}</address>" for address in addresses),
        hosts="".join(
            f"<locator><udpv4><address>{host}</address></udpv4></locator>" for host in hosts
        ),
    )
    write_atomic(path, text.encode())


logger = logging.getLogger(__name__)

USE_SIM_TIME = "use_sim_time"
"""Name of the parameter that makes a node take its time from `/clock`."""

ARM_NODE = "arm"
"""Node name of a simulated arm, in the namespace of its robot."""

DOMAINS = range(102)
"""Usable domain ids: above 101 a domain's UDP ports collide with Linux's ephemeral ports."""

SHARED_MEMORY_ALONE = "SERL_SHARED_MEMORY"
"""Variable: third-party ROS programs use shared memory alone as well; see `meet_others`."""

SEGMENT_BYTES = 2 << 20
"""Shared memory that each process of a run may use (`shared_memory.xml`)."""

LOOPBACK = IPv4Address("127.0.0.1")
LOCAL = NetworkConfig()

_RETRY_S = 1.0
_LOOPBACK_PROFILE = "loopback.xml"
_SHARED_MEMORY_PROFILE = Path(__file__).with_name("shared_memory.xml")
_NETWORKING = (
    "FASTDDS_BUILTIN_TRANSPORTS",
    "FASTDDS_DEFAULT_PROFILES_FILE",
    "FASTRTPS_DEFAULT_PROFILES_FILE",
    "ROS_AUTOMATIC_DISCOVERY_RANGE",
    "ROS_DISCOVERY_SERVER",
    "ROS_LOCALHOST_ONLY",
    "ROS_STATIC_PEERS",
)
"""Variables that open sockets, or close only some of them."""

_SEGMENT = re.compile(r"fastrtps_(port\d{1,5}|[0-9a-f]{16})(_el|_sl)?")
_INSTALL = 'install the pip wheels (pip install "serl[ros]") or source a ROS 2 Jazzy install'


class Domain:
    """A ROS domain that this process holds until `close` or its death.

    Attributes:
        id: the domain id, 0 to 101.
    """

    def __init__(self, domain_id: int, lock: FileLock | None) -> None:
        self.id = domain_id
        self._lock = lock

    def close(self) -> None:
        """Release the domain, so that another run can use it."""
        if self._lock is not None:
            self._lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def free_domain(
    environ: Mapping[str, str] = os.environ,
    network: NetworkConfig = LOCAL,
    before: int | None = None,
) -> Domain:
    """Return the domain of `ROS_DOMAIN_ID`, else that of the network, else an unused one.

    Only an unused one is locked: runs that share a domain differ by namespace. Domain 0 is left to
    other ROS programs, whose default it is.

    Args:
        environ: environment variables of the process.
        network: network of the run.
        before: the run's previous domain. Its actors may still be in it, so that the run continues
            there, even if other programs use it too.

    Raises:
        BadInput: `ROS_DOMAIN_ID` is not 0 to 101, all domains are in use, or the folder of their
            locks is another user's.
    """
    if name := environ.get("ROS_DOMAIN_ID", ""):
        return Domain(_domain_id(name), None)
    if not network.local:
        return Domain(network.domain, None)
    folder = own_folder(Path(tempfile.gettempdir()) / f"serl-domains-{os.geteuid()}")
    if before is not None:
        with suppress(BadInput):
            return Domain(before, FileLock(folder / str(before), f"domain {before}"))
        return Domain(before, None)
    for domain_id in DOMAINS[1:]:
        with suppress(BadInput):
            domain = Domain(domain_id, FileLock(folder / str(domain_id), f"domain {domain_id}"))
            if not is_in_use(domain_id):
                return domain
            domain.close()  # in use by a program that does not take these locks
    raise BadInput("no free ROS domain: 1 to 101 are all in use; set ROS_DOMAIN_ID to share one")


def is_in_use(domain_id: int) -> bool:
    """Check whether processes of this host use the domain through shared memory."""
    return _is_held(SHARED_MEMORY / f"fastrtps_port{discovery_port(domain_id)}_sl")


def choose_transport(run_folder: Path) -> None:
    """Choose the transport between the processes of a run on this host, before they start.

    All processes have to use the same transport, restarted ones included. It is shared memory; or
    127.0.0.1, with a warning, where shared memory is too small; or 127.0.0.1, without a warning,
    where the run has to reach an arm's driver.
    """
    from serl.arm_profile import is_real

    profile, config = run_folder / _LOOPBACK_PROFILE, _config_of(run_folder)
    if problem := shared_memory_problem(config.actors if config else 1):
        logger.warning("%s: processes talk over 127.0.0.1 instead", problem)
        write_profile(profile, (LOOPBACK,), (LOOPBACK,))
    else:
        profile.unlink(missing_ok=True)
    if config is not None and is_real(config.robot):
        meet_others(run_folder)


def meet_others(run_folder: Path) -> None:
    """Make the processes of a run folder reachable for third-party ROS programs.

    To be called before the processes start.

    Drivers, `ros2` and `rviz2` use sockets and shared memory by default, and do not discover a
    process that has shared memory alone (measured, Fast DDS 2.14.5). The folder's processes
    therefore use 127.0.0.1, unless SERL_SHARED_MEMORY is set: then the other programs have shared
    memory alone as well.
    """
    if os.environ.get(SHARED_MEMORY_ALONE):
        return
    write_profile(run_folder / _LOOPBACK_PROFILE, (LOOPBACK,), (LOOPBACK,))


@contextmanager
def lone_folder(program: str, name: str = "") -> Iterator[Path]:
    """Provide a temporary folder for nodes outside of runs, which other ROS programs can reach.

    This process joins the domain of `ROS_DOMAIN_ID`, or ROS's default domain.

    Args:
        program: name of the program, for the name of the temporary folder.
        name: name of the folder, which gives the namespace of its nodes; "" for any.
    """
    os.environ["ROS_DOMAIN_ID"] = str(domain_id_of())
    with tempfile.TemporaryDirectory(prefix=f"serl-{program}-") as scratch:
        folder = Path(scratch) / name
        folder.mkdir(exist_ok=True)
        meet_others(folder)
        yield folder


def settle(
    environ: MutableMapping[str, str],
    domain_id: int,
    run_folder: Path,
    network: NetworkConfig = LOCAL,
) -> None:
    """Set the environment variables of a process of the run, before it initialises rclpy.

    On one host shared memory is the only transport, and no socket is opened, unless
    `choose_transport` chose 127.0.0.1. Several hosts use UDP at their own addresses.

    Raises:
        BadInput: this host does not belong to the network.
    """
    for name in _NETWORKING:
        environ.pop(name, None)
    environ["ROS_DOMAIN_ID"] = str(domain_id)
    environ["ROS_LOG_DIR"] = str(run_folder / "log")
    environ["SKIP_DEFAULT_XML_FILE"] = "1"  # DEFAULT_FASTRTPS_PROFILES.xml of the working folder
    if ros_status().wheels:
        environ["AMENT_PREFIX_PATH"] = sys.prefix
    profile = run_folder.resolve() / _LOOPBACK_PROFILE
    if network.local and not profile.exists():
        profile = _SHARED_MEMORY_PROFILE
    if not network.local:
        profile = run_folder.resolve() / "network.xml"
        write_profile(profile, network.own_addresses(), network.hosts)
    environ["FASTRTPS_DEFAULT_PROFILES_FILE"] = str(profile)


def environment(domain_id: int, run_folder: Path, network: NetworkConfig = LOCAL) -> dict[str, str]:
    """Return this process's environment with the variables of a child process of the run."""
    environ = dict(os.environ)
    settle(environ, domain_id, run_folder, network)
    return environ


def network_of(run_folder: Path) -> NetworkConfig:
    """Return the network of a run; local for a folder without configuration."""
    config = _config_of(run_folder)
    return LOCAL if config is None else config.network


def _config_of(run_folder: Path) -> TrainConfig | None:
    """Return the settings of a run; None for a folder without them, as that of a lone guard.

    Only a process with such a folder imports them: the import takes longer than that of rclpy.
    """
    if not (run_folder / "config.yaml").exists():
        return None
    from serl.runs.folder import RunFolder

    return RunFolder.open(run_folder).config


def shared_memory_problem(actors: int = 1) -> str:
    """Return the reason why shared memory cannot carry this many actors; empty when it can."""
    if not os.access(SHARED_MEMORY, os.W_OK):
        return f"{SHARED_MEMORY} cannot be written"
    free = shutil.disk_usage(SHARED_MEMORY).free
    least = SEGMENT_BYTES * (2 * actors + 6)  # a link per actor; a learner and monitors
    if free < least:
        return f"{SHARED_MEMORY} has {free >> 20} MB free, a run needs {least >> 20}"
    return ""


def domain_id_of(environ: Mapping[str, str] = os.environ, network: NetworkConfig = LOCAL) -> int:
    """Return a process's domain id: `ROS_DOMAIN_ID`, else the network's, else ROS's default 0."""
    return _domain_id(environ.get("ROS_DOMAIN_ID") or str(0 if network.local else network.domain))


class RosStatus(NamedTuple):
    """The ROS 2 installation that this Python interpreter would use.

    Attributes:
        wheels: rclpy comes from the pip wheels, not from a sourced install.
        problem: the missing parts and how to install them; empty when complete.
        version: version and origin of rclpy; empty when it is missing.
    """

    wheels: bool
    problem: str
    version: str


def ros_status() -> RosStatus:
    """Search for rclpy and the message packages without importing them."""
    found = importlib.util.find_spec("rclpy")
    if found is None or found.origin is None:
        return RosStatus(False, f"ROS 2 is missing (no rclpy): {_INSTALL}", "")
    wheels = Path(found.origin).is_relative_to(sys.prefix)
    missing = [
        name for name in ("std_msgs", "diagnostic_msgs") if importlib.util.find_spec(name) is None
    ]
    problem = f"ROS 2 is incomplete (no {', '.join(missing)}): {_INSTALL}" if missing else ""
    name = "ros-rclpy" if wheels else "rclpy"
    try:
        number = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        number = "unknown version"
    origin = "pip wheels" if wheels else str(Path(found.origin).parents[1])
    return RosStatus(wheels, problem, f"rclpy {number} ({origin})")


def wait_until_up(addresses: set[IPv4Address]) -> None:
    """Wait until these addresses of this host are up, before a node is created.

    Fast DDS reads the interfaces once in the life of a process (measured, 2.14.5). A process whose
    supervisor died meanwhile stops waiting, and ends at its next check.
    """
    if not all(map(is_up, addresses)):
        logger.warning("waiting until the network of %s is up", ", ".join(map(str, addresses)))
    while not all(map(is_up, addresses)) and not is_orphaned():
        time.sleep(_RETRY_S)


def clean_shared_memory(folder: Path = SHARED_MEMORY, older_than_s: float = 10.0) -> int:
    """Remove the shared-memory files of dead Fast DDS processes; returns the number of files.

    A living owner holds an flock on the `_el` (exclusive) or `_sl` (shared) file beside its
    segment or port; the kernel drops it when the owner dies, by whatever cause. A port whose lock
    file is gone too is a trap for the next process that gets its number, and `fastdds shm clean`
    overlooks it. Files of other users, and those younger than `older_than_s` (their owner may be
    about to lock them), are left alone.
    """
    if not folder.is_dir():
        return 0
    names = [path.name for path in folder.iterdir() if _SEGMENT.fullmatch(path.name)]
    segments = {name.removesuffix("_el").removesuffix("_sl") for name in names}
    return sum(_remove_dead(folder / segment, older_than_s) for segment in segments)


def _remove_dead(segment: Path, older_than_s: float) -> int:
    """Remove a segment, its mutex and its lock files, unless a process may still hold it."""
    locks = [segment.with_name(segment.name + suffix) for suffix in ("_el", "_sl")]
    mutex = segment.with_name(f"sem.{segment.name}_mutex")
    files = [path for path in (segment, mutex, *locks) if path.exists()]
    removed = 0
    with ExitStack() as stack, suppress(OSError):
        if any(time.time() - path.stat().st_mtime < older_than_s for path in files):
            return 0
        for path in locks:
            if path.exists():
                stack.enter_context(_locked(path))  # no process adopts it during the removal
        for path in files:
            path.unlink()
            removed += 1
    return removed


def _domain_id(text: str) -> int:
    if not text.isdecimal() or int(text) not in DOMAINS:
        raise BadInput(f"ROS_DOMAIN_ID is {text!r}, expected a number from 0 to {DOMAINS[-1]}")
    return int(text)


def _locked(path: Path) -> IO[bytes]:
    """Open a file and lock it exclusively; raises `BlockingIOError` when it is locked already."""
    file = open_regular(path)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise
    return file


def _is_held(path: Path) -> bool:
    """Check whether a living process holds a lock on the file."""
    try:
        _locked(path).close()
    except BlockingIOError:
        return True
    except (OSError, CorruptData):
        return False
    return False


def ros_name(text: str) -> str:
    """Make a valid ROS 2 name of a text: letters, digits, single underscores, no digit first."""
    name = re.sub(r"[^A-Za-z0-9]+", "_", text).strip("_")
    return name if name[:1].isalpha() else f"run_{name}".rstrip("_")


def guard_name(robot: str) -> str:
    """Return the node name of a robot's guard; the robot is given by its namespace."""
    return ros_name(f"guard_{robot}")


def link_name(actor: str) -> str:
    """Return the node name of an actor's link."""
    return ros_name(f"link_{actor}")
