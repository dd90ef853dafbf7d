"""`serl console` and `serl teleop`: operator access to a run in progress."""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from serl import plugins
from serl.cli.arguments import add_run, integer
from serl.console.access import PORT, ConsoleAddress, forget_address, read_address
from serl.datasets.recording_session import read_session
from serl.errors import BadInput, SerlError, described
from serl.runs.config import parse_overrides
from serl.runs.folder import RunFolder
from serl.specs import ArraySpec
from serl.system.json_fields import short
from serl.system.settings_file import checked, merge
from serl.system.supervisor import Supervisor
from serl.teleop.config import TeleopConfig
from serl.teleop.device import Device, DeviceLost, read_device
from serl.teleop.mapping import AXES, DeviceKind, MappingConfig, Wish, describe_control, read_wish
from serl.teleop.operator import arm_count

if TYPE_CHECKING:
    from serl.ros.real_arm import RealArm

BEAT_S = 0.02
_OPENS_S = 30.0
_FIRST = "actor0"


def console_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `serl console`."""
    add_run(parser)
    _add_actor(parser, "watch and drive")
    parser.add_argument(
        "--port", type=integer(1, 65535), default=PORT, help="first port to try for the page"
    )
    _add_host(parser)


def add_page(parser: argparse.ArgumentParser, purpose: str) -> None:
    """Add the options for a web page to a command."""
    parser.add_argument("--console", action="store_true", help=purpose)
    parser.add_argument(
        "--console-port",
        type=integer(1, 65535),
        default=PORT,
        metavar="PORT",
        help="first port to try for the page",
    )
    _add_host(parser)


def _add_host(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--console.host",
        dest="console_host",
        default="",
        metavar="ADDRESS",
        help="address of this machine in the lab network: a phone can open the page there, by TLS "
        "and a pairing code",
    )


def teleop_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `serl teleop`."""
    parser.add_argument("run", type=Path, nargs="?", metavar="RUN", help="folder of the run")
    add_device(parser, default="gamepad")
    add_places(parser)
    _add_actor(parser, "drive")
    parser.add_argument(
        "--check", action="store_true", help="show the input of the device; drive nothing"
    )


def _add_actor(parser: argparse.ArgumentParser, purpose: str) -> None:
    own = f"the person of a recording, {_FIRST} of a training"
    parser.add_argument("--actor", help=f"name of the actor to {purpose} (default: {own})")


def _actor_of(run: RunFolder, options: argparse.Namespace) -> str:
    """Return the name of the actor that the command line means.

    Raises:
        BadInput: the run starts no actor of this name, and none was started in it.
    """
    from serl.datasets.person import ACTOR
    from serl.ros.processes import actor_names

    own = [ACTOR] if read_session(run.path) is not None else actor_names(run)
    known = [*dict.fromkeys([*own, *_started(run)])]
    name = str(options.actor or own[0])
    if name not in known:
        raise BadInput(f"--actor {name}: expected an actor of {run.path}: {', '.join(known)}")
    return name


def _started(run: RunFolder) -> list[str]:
    """Return the names of the actors that have run so far."""
    return [path.name for path in sorted(run.link(_FIRST).parent.glob("*")) if path.is_dir()]


def add_device(parser: argparse.ArgumentParser, default: str | None = None) -> None:
    """Add the option for the kind of device; without a default also see `refuse_terminal`."""
    names = [name for name in plugins.names("device") if default or name != "terminal"]
    kinds = f"input device of a person: {', '.join(names)}"
    parser.add_argument(
        "--device",
        default=default,
        metavar="NAME",
        help=f"{kinds}, one of an installed package, or a .py file",
    )


def add_places(parser: argparse.ArgumentParser) -> None:
    """Add the options that choose among several devices."""
    which = "path such as /dev/input/event3; of a SpaceMouse also its serial number or port"
    parser.add_argument("--path", type=Path, metavar="DEVICE", help=which)
    parser.add_argument("--left", type=Path, metavar="DEVICE", help="device of the left arm of two")
    parser.add_argument("--right", type=Path, metavar="DEVICE", help="device of the right arm")


def console(options: argparse.Namespace) -> int:
    """Serve the console of a run until Ctrl-C."""
    require_console(options.console_host)
    from serl.ros.processes import console_processes, run_in_domain

    run = RunFolder.open(options.run).writable()
    forget_address(run.path)
    actor = _actor_of(run, options)
    others = _others(run, actor)
    page = console_processes(run, actor, options.port, host=options.console_host, others=others)
    with run_in_domain(run, page) as supervisor:
        announce(run, supervisor, options.port)
        attend(supervisor)
    return 0


@contextmanager
def console_of(run: RunFolder, port: int, host: str) -> Iterator[Supervisor]:
    """Run the console of a run during the block."""
    from serl.ros.processes import console_processes, run_extra_processes
    from serl.ros.real_arm import arm_of

    forget_address(run.path)
    others = _others(run, _FIRST)
    page = console_processes(run, _FIRST, port, arm_of(run), host, others)
    with run_extra_processes(run, page) as supervisor:
        announce(run, supervisor, port)
        yield supervisor


def _others(run: RunFolder, actor: str) -> dict[str, RealArm | None]:
    """Return the other actors of a run: those that have run so far, or those that it starts."""
    from serl.ros.processes import actor_names

    started = _started(run)
    names = started if actor in started and len(started) > 1 else actor_names(run)
    return dict.fromkeys(name for name in names if name != actor) if actor in names else {}


def check_page(options: argparse.Namespace) -> None:
    """Raise `BadInput` unless the requested page can be served; called before files are written."""
    if options.console:
        require_console(options.console_host)
    elif options.console_host:
        raise BadInput(f"--console.host {options.console_host}: expected --console as well")
    elif options.console_port != PORT:
        raise BadInput(f"--console-port {options.console_port}: expected --console as well")


def require_console(host: str = "") -> None:
    """Raise `BadInput` unless the page's packages are installed and its lab address is usable."""
    for package in ("aiohttp", *(["segno"] if host else [])):
        if find_spec(package) is None:
            raise BadInput(f'console: needs {package}: pip install "serl[console]"')
    if host:
        from serl.console.phone import check_host

        check_host(host)


def announce(run: RunFolder, supervisor: Supervisor, port: int) -> None:
    """Wait for the console, then print its address, and a note if its port differs from `port`."""
    deadline_s = time.monotonic() + _OPENS_S
    while (address := read_address(run.path)) is None:
        supervisor.check()
        if time.monotonic() > deadline_s:
            raise SerlError(f"the console did not open in {_OPENS_S:g} s; see {run.log}")
        time.sleep(0.1)
    if note := _port_note(address, port):
        print(note, flush=True)
    print(f"console: {address.entry}", flush=True)
    if address.phone_url:
        _announce_to_phone(address)


def _announce_to_phone(address: ConsoleAddress) -> None:
    """Print the address for a phone, with its code, and a QR code on a terminal."""
    from serl.console.phone import qr_text

    phone_url, code = address.phone_url, address.code
    print(f"phone: {phone_url}  pairing code: {code} (10 minutes, once)", flush=True)
    print(
        "the phone's browser asks once whether to trust the certificate; its SHA-256: "
        f"{address.certificate}",
        flush=True,
    )
    if sys.stdout.isatty():
        print(qr_text(address.phone_entry), flush=True)


def _port_note(address: ConsoleAddress, port: int) -> str:
    """Return a note on the actual port if the requested one was taken; otherwise empty."""
    opened = urlsplit(address.url).port
    if opened == port:
        return ""
    tunnel = f"ssh -L {opened}:127.0.0.1:{opened} HOST"
    return f"console: port {port} is taken; it is at {opened} (from elsewhere: {tunnel})"


def attend(supervisor: Supervisor) -> None:
    """Keep processes running until Ctrl-C."""
    print("the console stays open until Ctrl-C", flush=True)
    while True:
        supervisor.check()
        time.sleep(0.2)


def stay(supervisor: Supervisor) -> None:
    """Keep the console open after a training, if standard output is a terminal."""
    if sys.stdout.isatty():
        with suppress(KeyboardInterrupt):
            attend(supervisor)


def teleop(options: argparse.Namespace) -> int:
    """Show a device's input, or drive an actor with it, until Ctrl-C."""
    if options.run is None and not options.check:
        raise BadInput("teleop: expected RUN (folder of a run), or --check to test the device")
    mapping = mapping_of(_settings(options), options.device)
    devices = open_devices(options, mapping)
    try:
        if options.check:
            _check(devices, mapping)
        else:
            _drive(options, devices, mapping)
    finally:
        for device in devices:
            device.close()
    return 0


def mapping_of(config: TeleopConfig, device: str) -> MappingConfig:
    """Return the mapping of a kind of device from its reports to actions, with its own settings.

    Raises:
        BadInput: the device does not exist, or does not have these settings.
    """
    if device in TeleopConfig.model_fields and device in plugins.names("device"):
        mapping: MappingConfig = getattr(config, device)
        return mapping
    model = plugins.settings("device", device, MappingConfig, MappingConfig)
    defaults = {
        name: field.default
        for name, field in model.model_fields.items()
        if isinstance(field.default, Mapping)
    }
    return checked(model, merge(defaults, config.device), "teleop.device.")


def refuse_terminal(device: str) -> None:
    """Raise `BadInput` for the device "terminal" in a command that asks questions there."""
    if device == "terminal":
        raise BadInput(
            "--device terminal: this command asks questions at its terminal; "
            "drive from a second one with serl teleop RUN --device terminal"
        )


def opened_device(name: str, path: Path | None) -> tuple[Device, MappingConfig]:
    """Open a device of this machine; return it with its mapping.

    Raises:
        BadInput: the device is missing.
    """
    refuse_terminal(name)
    mapping = mapping_of(TeleopConfig(), name)
    return _open(name, path, mapping), mapping


def _open(name: str, path: Path | None, mapping: MappingConfig) -> Device:
    """Open a device of a kind; raise `BadInput` if its plug-in fails or returns none."""
    kind: DeviceKind = plugins.load("device", name)
    try:
        device = kind.open(path, mapping)
    except SerlError:
        raise
    except (Exception, SystemExit) as error:  # each plug-in fails in its own way
        raise BadInput(f"device {name}: open: {described(error)}") from error
    if missing := [each for each in ("name", "read", "close") if not hasattr(device, each)]:
        raise BadInput(
            f"device {name}: open returned {short(device)}, expected a device with {missing[0]!r}"
        )
    return device


def open_devices(options: argparse.Namespace, mapping: MappingConfig) -> tuple[Device, ...]:
    """Open the requested device, or the devices for the left and the right arm.

    Raises:
        BadInput: a device is missing, or is not assigned to an arm.
    """
    name, left, right = options.device, options.left, options.right
    if (left is None) != (right is None) or (left and options.path):
        raise BadInput("two arms: give --left and --right, and no --path")
    if left is not None and left == right:
        raise BadInput(f"two arms: --left and --right are both {left}")
    if left is None:
        return (_open(name, options.path, mapping),)
    first = _open(name, left, mapping)
    try:
        return first, _open(name, right, mapping)
    except SerlError:
        first.close()
        raise


def _settings(options: argparse.Namespace) -> TeleopConfig:
    """Return the settings of the run, if there is one, with the command line's overrides."""
    overrides = parse_overrides(options.overrides)
    run = {} if options.run is None else RunFolder.open(options.run).config.teleop.model_dump()
    return checked(TeleopConfig, merge(run, overrides.get("teleop", {})))


def _drive(
    options: argparse.Namespace, devices: tuple[Device, ...], mapping: MappingConfig
) -> None:
    """Send the input of each device every `BEAT_S` until Ctrl-C, or until a device is lost."""
    from serl.ros.node import RosNode
    from serl.ros.people.control import control_topic
    from serl.ros.people.teleop import RemoteHand, device_topics
    from serl.ros.processes import join_here
    from serl.runs.task_setup import make_spec, make_task

    run = RunFolder.open(options.run).writable()
    spec = make_spec(make_task(run.config)).action
    check_arms(str(run.path), spec, len(devices))
    records, actor = read_session(run.path) is not None, _actor_of(run, options)
    join_here(run)
    with RosNode("teleop", run.path, local=True) as node:
        topics = device_topics(actor, len(devices))
        hands = [
            Hand(device, mapping, RemoteHand(node, topic).send)
            for device, topic in zip(devices, topics, strict=True)
        ]
        names = " and ".join(device.name for device in devices)
        print(f"{names}: connected to {actor} of {run.path}; Ctrl-C ends it", flush=True)
        states: deque[str] = deque(maxlen=1)  # the actor's last state
        node.subscribe(
            control_topic(actor),
            lambda message: states.append(
                describe_control({pair.key: pair.value for pair in message.values}, records)
            ),
        )
        shown = ""
        while not node.stopping:
            if states and states[0] != shown:
                shown = states[0]
                print(shown, flush=True)
            for hand in hands:
                hand.beat()
            time.sleep(BEAT_S)


def check_arms(name: str, spec: ArraySpec, devices: int) -> None:
    """Raise `BadInput` unless there is one device for each arm that actions of `spec` move."""
    if (arms := arm_count(spec)) != devices:
        needed = "two arms: give --left and --right" if arms == 2 else "one arm: give one device"
        raise BadInput(f"{name}: its actions move {needed}")


class Hand:
    """A sender of the input of a device, as heartbeats that end when the device is silent.

    Args:
        send: sends operator input.
    """

    def __init__(
        self, device: Device, mapping: MappingConfig, send: Callable[[Wish], object]
    ) -> None:
        self._device, self._mapping, self._send = device, mapping, send
        self._stamp_s = math.nan  # of the last report

    def beat(self) -> None:
        """Send the newest report, unless it is not new; raises `DeviceLost`."""
        report = read_device(self._device)
        if report is None or (report.stamp_s == self._stamp_s and not report.presses):
            return
        self._stamp_s = report.stamp_s
        if (operator_input := read_wish(report, self._mapping)) is not None:
            self._send(operator_input)


def _check(devices: tuple[Device, ...], mapping: MappingConfig) -> None:
    sides = ("left: ", "right: ") if len(devices) == 2 else ("",)
    pictures: dict[str, Table] = {}
    with Live(console=Console(highlight=False, emoji=False), refresh_per_second=20) as live:
        while True:
            for side, device in zip(sides, devices, strict=True):
                try:
                    report = read_device(device)
                except DeviceLost as error:
                    raise BadInput(f"{side}{error}") from error
                operator_input = read_wish(report, mapping) if report else None
                if report is not None and operator_input is not None:
                    name = f"{side}{device.name}"
                    pictures[side] = picture(name, operator_input, sorted(report.buttons))
            live.update(Group(*pictures.values()))
            time.sleep(BEAT_S)


def picture(name: str, operator_input: Wish, buttons: list[str]) -> Table:
    """Return a table of a device's input: a bar for each axis, takeover, pressed buttons."""
    table = Table.grid(padding=(0, 2))
    takeover = "yes" if operator_input.hands else "no"
    table.add_row(Text(name, style="bold"), f"takeover: {takeover}")
    for axis, value in zip(AXES, operator_input.motion, strict=True):
        place = round(20 * (value + 1) / 2)
        bar = "".join("●" if spot == place else "│" if spot == 10 else "·" for spot in range(21))
        table.add_row(axis, bar, f"{value:+.2f}")
    table.add_row("buttons", " ".join(buttons) or "-")
    return table
