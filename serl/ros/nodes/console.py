"""The process that serves the console of a run, beside an actor; by default on this host only.

It is not part of the control loop: a page's commands reach the actor as messages, like any node's.

    python -m serl.ros.nodes.console --run runs/pick_cube/2026-11-21_10-00-00 --actor actor0 \
        --guard actor0 /left left.latch

While its node is not active there is no page.
"""

from __future__ import annotations

import argparse
import asyncio
import errno
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from serl.console.access import (
    PORT,
    ConsoleAddress,
    RequestCheck,
    kept_token,
    lock_console,
    new_token,
    remove_address,
    write_address,
)
from serl.console.backend import Picture
from serl.console.messages import (
    HANDS_OFF,
    Confirmation,
    CropOrder,
    KeepOrder,
    Order,
    Selection,
)
from serl.console.phone import certificate_folder, fingerprint, make_certificate, tls_context
from serl.console.server import Console, listen
from serl.console.status import SILENT, RecordingStatus, TrainingStatus, make_status
from serl.errors import BadInput, SerlError
from serl.guard.latch import GuardedArm
from serl.ros.node import RosNode, own_arguments, run_node
from serl.ros.parameters import DescribedParameter
from serl.ros.people.console_actor import ConsoleActor, combined
from serl.ros.services import Remote
from serl.ros.telemetry import Diagnostics, StatsMonitor, Value
from serl.runs.folder import RunFolder
from serl.system.files import checked_name
from serl.system.supervisor import is_orphaned, is_supervised
from serl.teleop.mapping import Wish

_PORTS = 20
_STATS_S = 4.0
_LOOK_S = 0.1


class ShownActor(NamedTuple):
    """The name of an actor on the page, its guarded arms by name, and the profile of a real arm.

    The arms are those of `serl.ros.real_arm.arms_behind_guards`: two for a pair, or none.
    """

    actor: str
    arms: Mapping[str, GuardedArm] = {}
    profile: str = ""


class RosConsoleBackend:
    """A `ConsoleBackend` of the actors of a run, over ROS 2; one of them is driven.

    Args:
        actors: the actors; the first is driven until the operator selects another.
    """

    def __init__(self, node: RosNode, run: RunFolder, actors: Sequence[ShownActor]) -> None:
        self._run = run
        remote = Remote(node, lambda: None)
        self._actors = {each.actor: ConsoleActor(node, remote, run, *each) for each in actors}
        self._overview = make_status(run, actors[0].actor)
        self._films = getattr(self._overview, "films", None)
        self._stats = StatsMonitor(node)
        self._select(actors[0].actor)

    def _select(self, name: str) -> str:
        if name not in self._actors:
            raise SerlError(f"actor {name[:40]!r}: expected one of {', '.join(self._actors)}")
        self._driven = self._actors[name]
        for each in self._actors.values():
            each.is_secondary = each is not self._driven
        if isinstance(self._overview, TrainingStatus):
            self._overview.actor = name
        return f"this page drives {name}"

    def drive(self, operator_input: Wish) -> None:
        """Send one message of operator input; messages are not repeated automatically."""
        self._driven.drive(operator_input)

    async def execute(self, command: str) -> str:
        """Call the driven actor's service of that name; a stop goes to all arms and actors.

        Raises:
            SerlError: the order was not carried out, or a guard did not stop its arm.
        """
        if command != "estop" or len(self._actors) == 1:
            return await self._driven.execute(command)
        stops = [
            each.stop_secondary() if each.is_secondary else each.execute(command)
            for each in self._actors.values()
        ]
        answers = await asyncio.gather(*stops, return_exceptions=True)
        return combined(dict(zip(self._actors, answers, strict=True)))

    async def obey(self, order: Order) -> str:
        """Confirm the guard's question, select an actor, keep a demonstration, or crop a camera.

        Raises:
            SerlError: it is refused, or the guard's question has changed.
        """
        match order:
            case Confirmation(question):
                return await self._driven.confirm(question)
            case Selection(actor):
                self.drive(HANDS_OFF)
                return self._select(actor)
            case CropOrder(camera, crop):
                return self._driven.crop(camera, crop)
            case KeepOrder() if isinstance(self._overview, RecordingStatus):
                return await asyncio.to_thread(self._overview.judge, order)
        raise SerlError("there are no demonstrations here")

    def state(self) -> Mapping[str, Any]:
        """Return the state of the driven actor, and a summary of all where there are several."""
        several = len(self._actors) > 1
        return {
            **self._driven.state(),
            "over": self._overview.over,
            "actor": self._driven.name,
            "actors": [each.summary() for each in self._actors.values()] if several else [],
        }

    def progress(self) -> Mapping[str, Any]:
        """Return the progress of the run, from its files and the processes' statistics."""
        states = {
            source.replace("link ", "link-").replace("actor ", ""): (
                "running" if reading.age_s < _STATS_S else SILENT
            )
            for source, reading in self._stats.latest().items()
        }
        return {**self._overview.read(states), "crops": self._driven.crops}

    def pictures(self) -> list[Picture]:
        """Return the newest pictures of the driven actor, then one of each other actor.

        With several actors the names are "ACTOR/CAMERA", and "@ACTOR" for the others. While a
        person records demonstrations, films are made of the pictures.
        """
        shown = self._driven.pictures()
        if self._films is not None:
            state = self._driven.state()
            self._films.watch(shown, state["fresh"] and bool(state["driver"]), state["step"])
        if len(self._actors) > 1:
            driven = self._driven.name
            shown = [each._replace(name=f"{driven}/{each.name}") for each in shown]
        for name, each in self._actors.items():
            if each.is_secondary:
                shown += [picture._replace(name=f"@{name}") for picture in each.pictures()[:1]]
        return shown

    def film(self, episode: str) -> bytes | None:
        """Return the film of a recorded demonstration; None without one."""
        return None if self._films is None else self._films.read(episode)

    def report(self) -> Path | None:
        """Return the path of the report, written at the end of a training; None before."""
        return self._run.report if self._overview.over and self._run.report.exists() else None

    def close(self) -> None:
        """Close the sources of the pictures."""
        for each in self._actors.values():
            each.close()


def run(run_folder: Path, port: int, actors: Sequence[ShownActor], host: str = "") -> None:
    """Serve the console until asked to stop; raise `BadInput` if the run already has one."""
    folder = RunFolder.open(run_folder)
    actor, arms, _ = actors[0]
    for each in actors:
        checked_name(each.actor, "actor")
    parameters = {
        "actor": DescribedParameter(actor, "first actor that the page drives"),
        "port": DescribedParameter(port, "first TCP port to try"),
        "guard": DescribedParameter(
            " ".join(arm.namespace for arm in arms.values()),
            "namespaces of the arms whose guards receive stops; empty without one",
        ),
    }
    with (
        lock_console(folder.path),
        RosNode("console", run_folder, local=True, parameters=parameters, managed=True) as node,
    ):
        backend = RosConsoleBackend(node, folder, actors)
        served = _PageServer(node, folder.path, backend, port, host)
        Diagnostics(node, f"console of {actor}", served.numbers)
        node.handle.manage()
        try:
            asyncio.run(served.run())
        finally:
            backend.close()


class _PageServer:
    """The page of a console, served while its node is active."""

    def __init__(
        self, node: RosNode, folder: Path, backend: RosConsoleBackend, port: int, host: str
    ) -> None:
        self._node, self._folder, self._backend, self._host = node, folder, backend, host
        self._certificate = make_certificate(host, certificate_folder()) if host else None
        self._first, self._port = port, 0
        self._token = kept_token(folder) if is_supervised() else new_token()

    def numbers(self) -> dict[str, Value]:
        """Return the port for the diagnostics; 0 while no page is served."""
        return {"port": float(self._port)}

    async def run(self) -> None:
        """Serve the page while the node is active, until asked to stop."""
        while not self._stopping():
            if self._node.handle.active:
                await self._serve()
            await asyncio.sleep(_LOOK_S)

    async def _serve(self) -> None:
        """Serve the page at the first free port until the node is inactive or asked to stop."""
        for port in range(self._first, self._first + _PORTS):
            try:
                runner, address = await self._open(port)
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    continue
                subject = f"--console.host {self._host}" if self._host else f"console: port {port}"
                raise BadInput(f"{subject}: {error.strerror}") from error
            self._port = port
            write_address(self._folder, address)
            try:
                while self._node.handle.active and not self._stopping():
                    await asyncio.sleep(_LOOK_S)
            finally:
                self._port = 0
                if not self._node.deaf:  # then another process goes on
                    remove_address(self._folder)
                await runner.cleanup()
            return
        last = self._first + _PORTS - 1
        raise BadInput(f"console: no free port from {self._first} to {last} on 127.0.0.1")

    async def _open(self, port: int) -> tuple[Any, ConsoleAddress]:
        """Listen at a port, on this host and in the lab network if asked; raises `OSError`."""
        url, host, token = f"http://127.0.0.1:{port}/", self._host, self._token
        gate = RequestCheck(port, token, host)
        if self._certificate is None:
            return await listen(Console(self._backend, gate), port), ConsoleAddress(url, token)
        phone_url = f"https://{host}:{port}/"
        console = Console(self._backend, gate, phone_url=phone_url)
        runner = await listen(console, port, host, tls_context(self._certificate))
        code, mark = console.pairing.issue(), fingerprint(self._certificate)
        return runner, ConsoleAddress(url, token, phone_url, code, mark)

    def _stopping(self) -> bool:
        return self._node.stopping or is_orphaned()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the process; the exit code is 2 on bad input, with the reason in one line."""
    parser = argparse.ArgumentParser(prog="python -m serl.ros.nodes.console", description=__doc__)
    parser.add_argument("--run", type=Path, required=True, help="folder of the run")
    parser.add_argument(
        "--actor", action="append", help="an actor to show and stop; the first is driven at first"
    )
    parser.add_argument("--port", type=int, default=PORT, help="first TCP port to try")
    parser.add_argument(
        "--guard",
        nargs=3,
        action="append",
        default=[],
        metavar=("NAME", "NAMESPACE", "LATCH"),
        help="an arm with a guard: its actor (ACTOR/left or ACTOR/right in a pair), its namespace, "
        "and the file of its latch",
    )
    parser.add_argument(
        "--profile",
        nargs=2,
        action="append",
        default=[],
        metavar=("ACTOR", "PROFILE"),
        help="profile of an actor's arm, if it is real",
    )
    parser.add_argument("--host", default="", help="address in the lab network, served with TLS")
    options = parser.parse_args(own_arguments(arguments))
    names = options.actor or ["actor0"]
    arms: dict[str, dict[str, GuardedArm]] = {name: {} for name in names}
    for name, namespace, latch in options.guard:
        actor = name.partition("/")[0]
        if actor not in arms:
            parser.error(f"--guard {name}: expected one of {', '.join(names)}")
        arms[actor][name] = GuardedArm(namespace, Path(latch))
    profiles = dict(options.profile)
    if unknown := profiles.keys() - arms.keys():
        parser.error(f"--profile {min(unknown)}: expected one of {', '.join(names)}")
    actors = [ShownActor(name, arms[name], profiles.get(name, "")) for name in names]
    return run_node(lambda: run(options.run, options.port, actors, options.host))


if __name__ == "__main__":
    sys.exit(main())
