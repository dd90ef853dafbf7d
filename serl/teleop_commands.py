"""`serl console` and `serl teleop`: people at a run that is under way."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from serl.console.door import read_door, remove_door
from serl.errors import BadInput, SerlError
from serl.run_folder import RunFolder
from serl.supervisor import Supervisor
from serl.teleop import gamepad, keyboard, spacemouse
from serl.teleop.device import Device, DeviceLost
from serl.teleop.mapping import AXES, MappingConfig, Wish, read_wish

PORT = 8765
BEAT_S = 0.02
_OPENS_S = 30.0
DEVICES: dict[str, tuple[Callable[[Path | None], Device], MappingConfig]] = {
    "keyboard": (keyboard.open_keyboard, keyboard.MAPPING),
    "gamepad": (gamepad.open_gamepad, gamepad.MAPPING),
    "spacemouse": (spacemouse.open_spacemouse, spacemouse.MAPPING),
}


def add_console(parser: argparse.ArgumentParser) -> None:
    """`serl console RUN`."""
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of the run")
    parser.add_argument("--actor", default="actor0", help="the actor beside it")
    parser.add_argument("--port", type=int, default=PORT, help="the first to be tried")


def add_teleop(parser: argparse.ArgumentParser) -> None:
    """`serl teleop`."""
    parser.add_argument("run", type=Path, nargs="?", metavar="RUN", help="folder of the run")
    parser.add_argument("--device", choices=sorted(DEVICES), default="gamepad")
    parser.add_argument("--path", type=Path, help="such as /dev/input/event3 or /dev/hidraw0")
    parser.add_argument("--actor", default="actor0", help="who is driven")
    parser.add_argument("--check", action="store_true", help="only show what the device says")


def console(options: argparse.Namespace) -> int:
    """Serve the console of a run until Ctrl-C."""
    require_console()
    from serl.ros.graph import console_processes, joined

    run = RunFolder.open(options.run)
    remove_door(run.path)
    with joined(run, console_processes(run, options.actor, options.port)) as supervisor:
        announce(run, supervisor)
        attend(supervisor)
    return 0


@contextmanager
def console_of(run: RunFolder, port: int) -> Iterator[Supervisor]:
    """A console beside all that is started in the block."""
    require_console()
    from serl.ros.graph import beside, console_processes

    remove_door(run.path)
    with beside(run, console_processes(run, "actor0", port)) as supervisor:
        announce(run, supervisor)
        yield supervisor


def require_console() -> None:
    """Raise `BadInput` unless the package that it needs is there."""
    try:
        import aiohttp  # noqa: F401
    except ImportError:
        raise BadInput('console: needs aiohttp: pip install "serl[console]"') from None


def announce(run: RunFolder, supervisor: Supervisor) -> None:
    """Say where the console is, once it is there."""
    deadline_s = time.monotonic() + _OPENS_S
    while (door := read_door(run.path)) is None:
        supervisor.check()
        if time.monotonic() > deadline_s:
            raise SerlError(f"the console did not open in {_OPENS_S:g} s; see {run.log}")
        time.sleep(0.1)
    print(f"console: {door.url}  token: {door.token}", flush=True)


def attend(supervisor: Supervisor) -> None:
    """Keep processes running until Ctrl-C."""
    print("the console stays open until Ctrl-C", flush=True)
    while True:
        supervisor.check()
        time.sleep(0.2)


def stay(supervisor: Supervisor) -> None:
    """After a training: keep the console open for whoever sits at a terminal."""
    if sys.stdout.isatty():
        with suppress(KeyboardInterrupt):
            attend(supervisor)


def teleop(options: argparse.Namespace) -> int:
    """Show what a device says, or drive an actor with it, until Ctrl-C."""
    opened, mapping = DEVICES[options.device]
    if options.run is None and not options.check:
        raise BadInput("serl teleop: give the folder of a run, or --check to only look")
    device = opened(options.path)
    try:
        if options.check:
            _check(device, mapping)
        else:
            _drive(options, device, mapping)
    finally:
        device.close()
    return 0


def device_names() -> list[str]:
    """Kinds of devices that a machine may have."""
    return sorted(DEVICES)


def opened_device(name: str, path: Path | None) -> tuple[Device, MappingConfig]:
    """A device of this machine, and what its reports mean; raises `BadInput` without it."""
    opened, mapping = DEVICES[name]
    return opened(path), mapping


def _drive(options: argparse.Namespace, device: Device, mapping: MappingConfig) -> None:
    """Every beat is one look at the device; when it is lost there are no more."""
    from serl.ros.graph import join_here
    from serl.ros.node import RosNode
    from serl.ros.teleop import RemoteHand, device_topic

    run = RunFolder.open(options.run)
    join_here(run)
    with RosNode("teleop", run.path, local=True) as node:
        hand = RemoteHand(node, device_topic(options.actor))
        print(f"{device.name} drives {options.actor} of {run.path}; Ctrl-C ends it", flush=True)
        while not node.stopping:
            report = device.read()
            wish = read_wish(report, mapping) if report else None
            if wish is not None:
                hand.send(wish)
            time.sleep(BEAT_S)


def _check(device: Device, mapping: MappingConfig) -> None:
    with Live(console=Console(highlight=False), refresh_per_second=20) as live:
        while True:
            try:
                report = device.read()
            except DeviceLost as error:
                raise BadInput(str(error)) from error
            wish = read_wish(report, mapping) if report else None
            if report is not None and wish is not None:
                live.update(picture(device.name, wish, sorted(report.buttons)))
            time.sleep(BEAT_S)


def picture(name: str, wish: Wish, buttons: list[str]) -> Table:
    """What a device wants now: a bar for each axis, hands, and the buttons that are down."""
    table = Table.grid(padding=(0, 2))
    table.add_row(Text(name, style="bold"), Text("hands on" if wish.hands else "hands off"))
    for axis, value in zip(AXES, wish.motion, strict=True):
        place = round(20 * (value + 1) / 2)
        bar = "".join("●" if spot == place else "│" if spot == 10 else "·" for spot in range(21))
        table.add_row(axis, bar, f"{value:+.2f}")
    table.add_row("buttons", " ".join(buttons) or "-")
    return table
