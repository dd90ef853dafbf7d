"""The process that serves the console of a run, beside an actor; by default on this host only.

It is not part of the control loop: a page's commands reach the actor as messages, like any node's.

    python -m serl.ros.nodes.console --run runs/pick_cube/2026-11-21_10-00-00 --actor actor0 \
        --guard /left --latch left.latch

While its node is not active there is no page.
"""

from __future__ import annotations

import argparse
import asyncio
import errno
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from std_srvs.srv import Trigger

from serl.arm_profile import load_robot
from serl.console.access import (
    PORT,
    ConsoleAddress,
    RequestCheck,
    new_token,
    remove_address,
    write_address,
)
from serl.console.backend import Picture
from serl.console.messages import COMMANDS
from serl.console.phone import certificate_folder, fingerprint, make_certificate, tls_context
from serl.console.pictures import DrawnScene, Pictures, PictureSource, Placement
from serl.console.server import Console, listen
from serl.console.status import SILENT, make_status
from serl.errors import BadInput, SerlError
from serl.guard.latch import GuardedArm
from serl.ros.arm.camera import WatchedCameras
from serl.ros.node import RosNode, own_arguments, run_node
from serl.ros.parameters import DescribedParameter
from serl.ros.people.attendant import SupervisedArm
from serl.ros.people.control import control_topic
from serl.ros.people.teleop import RemoteHand, console_topic
from serl.ros.services import Remote
from serl.ros.telemetry import Diagnostics, StatsMonitor, Value, scene_topic
from serl.runs.folder import RunFolder
from serl.runs.real_arm import within_workspace
from serl.runs.task_setup import make_task
from serl.system.files import FileLock, checked_name
from serl.system.json_fields import printable
from serl.system.signed_order import key_path
from serl.system.supervisor import is_orphaned
from serl.teleop.mapping import Wish
from serl.teleop.stop import STOP_FILE

_PORTS = 20
_FRESH_S = 1.0
_ANSWER_S = 3.0
_STATS_S = 4.0
_LOOK_S = 0.1
_RELEASE = "release"
_TEXTS = ("driver", "owner", "silent", "stopped", "paused", "last")


class RosConsoleBackend:
    """A `ConsoleBackend` of an actor, over ROS 2.

    Args:
        node: the process's node.
        run: folder of the run.
        actor: name of the actor.
        arm: the actor's arm behind a guard; None for a simulation in the actor's process.
        profile: profile of that arm, by name or file, if it is real.
    """

    def __init__(
        self, node: RosNode, run: RunFolder, actor: str, arm: GuardedArm | None, profile: str = ""
    ) -> None:
        self._run, self._actor = run, actor
        self._control: dict[str, str] = {}
        self._received_s = self._moved_s = float("-inf")
        self._placement: Placement | None = None
        self._overview = make_status(run, actor)
        self._hand = RemoteHand(node, console_topic(actor))
        self._stats = StatsMonitor(node)
        node.subscribe(control_topic(actor), self._take_control)
        self._clients = {
            name: node.handle.create_client(Trigger, f"{actor}/{name}")
            for name in COMMANDS
            if name != _RELEASE
        }
        self._remote = Remote(node, lambda: None)
        self._key = key_path(run.link(actor) / STOP_FILE)
        motion = make_task(run.config).config.motion
        self._motion = within_workspace(motion, load_robot(profile)) if profile else motion
        self._guard: Any = None
        self._supervised: SupervisedArm | None = None
        if arm is not None:
            name = node.absolute(f"{arm.namespace.rstrip('/')}/guard/estop")
            self._guard = node.handle.create_client(Trigger, name)
            self._supervised = SupervisedArm(node, self._remote, run, actor, arm)
        self._pictures = Pictures(
            self._source(node, profile, arm), lambda: self._control.get("attended") == "1"
        )

    def _source(self, node: RosNode, profile: str, arm: GuardedArm | None) -> PictureSource:
        """Return the cameras of a real arm, or the simulated scene."""
        task = make_task(self._run.config)
        if arm is None or not profile:
            node.subscribe(scene_topic(self._actor), self._take_scene)
            return DrawnScene(task, lambda: self._placement)
        known = load_robot(profile).cameras
        used = dict.fromkeys(view.camera for view in task.config.all_views.values())
        cameras = {name: known.get(name) for name in {**known, **used}}
        return WatchedCameras(node, arm.namespace.rstrip("/"), cameras)

    def drive(self, operator_input: Wish) -> None:
        """Send one message of operator input; messages are not repeated automatically."""
        self._hand.send(operator_input)

    async def execute(self, command: str) -> str:
        """Call the actor's service of that name; a stop goes to the arm's guard as well.

        Raises:
            SerlError: the order was not carried out, or the arm's guard did not stop it.
        """
        if command == _RELEASE:
            order, service = self._remote.order, f"{self._actor}/{_RELEASE}"
            return await asyncio.to_thread(order, service, self._key, _ANSWER_S)
        if command != "estop" or self._guard is None:
            return await _call(self._clients[command], "the actor")
        guarded, acting = await asyncio.gather(
            _call(self._guard, "the guard"),
            _call(self._clients[command], "the actor"),
            return_exceptions=True,
        )
        answers = f"guard: {guarded}; actor: {acting}"
        if isinstance(guarded, BaseException):  # a hold by the actor does not stop the arm
            raise SerlError(answers)
        return answers

    async def confirm(self, question: str) -> str:
        """Confirm the guard's question.

        Raises:
            SerlError: the guard refuses, or its question has changed.
        """
        if self._supervised is None or not self._supervised.guard_word():
            raise SerlError("nothing is asked")
        return await asyncio.to_thread(self._supervised.answer, question)

    def state(self) -> Mapping[str, Any]:
        """Return the last reports of actor and guard, and whether the actor's is fresh."""
        values = self._control
        return {
            **{name: values.get(name, "") for name in _TEXTS},
            "episode": int(values.get("episode", -1)),
            "step": int(values.get("step", -1)),
            "fresh": time.monotonic() - self._received_s < _FRESH_S,
            "still": time.monotonic() - self._moved_s > _FRESH_S,
            "over": self._overview.over,
            **self._feel(),
            **self._question(),
        }

    def _feel(self) -> dict[str, float | None]:
        """Return force, gripper opening and distance to the task's box; None where unknown."""
        values, motion = self._control, self._motion
        place_m = np.array(values.get("tcp_m", "").split(), float)
        sides_m = (
            np.array([place_m - motion.box_low_m, motion.box_high_m - place_m])
            if len(place_m) == 3
            else None
        )
        return {
            "force_n": _number(values.get("force_n")),
            "stop_force_n": motion.limits.stop_force_n,
            "gripper": _number(values.get("gripper")) if motion.gripper else None,
            "box_m": None if sides_m is None else float(sides_m.min()),
        }

    def _question(self) -> dict[str, str]:
        """Return the guard's question, the order a yes sends, and why a yes would be refused."""
        supervised = self._supervised
        if supervised is None or not (word := supervised.guard_word()):
            return {"question": "", "yes": "", "not_now": ""}
        question = supervised.question()
        return {"question": question, "yes": word, "not_now": supervised.hindrance()}

    def progress(self) -> Mapping[str, Any]:
        """Return the progress of the run, from its files and the processes' statistics."""
        states = {
            source.replace("link ", "link-").replace("actor ", ""): (
                "running" if reading.age_s < _STATS_S else SILENT
            )
            for source, reading in self._stats.latest().items()
        }
        return self._overview.read(states)

    def pictures(self) -> list[Picture]:
        """Return the newest pictures of the arm's cameras, or of the simulated scene."""
        return self._pictures.newest()

    def report(self) -> Path | None:
        """Return the path of the report, written at the end of a training; None before."""
        return self._run.report if self._overview.over and self._run.report.exists() else None

    def close(self) -> None:
        """Close the source of the pictures."""
        self._pictures.close()

    def _take_control(self, message: Any) -> None:
        values = {pair.key: pair.value for pair in message.values}
        self._received_s = time.monotonic()
        if values.get("steps") != self._control.get("steps"):
            self._moved_s = self._received_s
        self._control = values

    def _take_scene(self, message: Any) -> None:
        self._placement = np.array(message.data, np.float64)


def _number(text: str | None) -> float | None:
    return None if text is None else float(text)


async def _call(client: Any, server: str) -> str:
    """Call a service and return its answer; raise `SerlError` on a refusal or timeout."""
    deadline_s = time.monotonic() + _ANSWER_S
    while not client.service_is_ready():
        if time.monotonic() > deadline_s:
            raise SerlError(f"{server} does not answer")
        await asyncio.sleep(0.005)
    answer = client.call_async(Trigger.Request())
    while not answer.done():
        if time.monotonic() > deadline_s:
            raise SerlError(f"{server} did not answer within {_ANSWER_S:g} s")
        await asyncio.sleep(0.005)
    response = answer.result()
    if not response.success:
        raise SerlError(printable(response.message))
    return printable(response.message)


def run(
    run_folder: Path,
    actor: str,
    port: int,
    arm: GuardedArm | None = None,
    profile: str = "",
    host: str = "",
) -> None:
    """Serve the console until asked to stop; raise `BadInput` if the run already has one."""
    folder = RunFolder.open(run_folder)
    checked_name(actor, "actor")
    parameters = {
        "actor": DescribedParameter(actor, "actor that is shown and that receives the commands"),
        "port": DescribedParameter(port, "the first of this host's TCP ports that is tried"),
        "guard": DescribedParameter(
            arm.namespace if arm else "",
            "namespace of the arm whose guard receives stops; or empty",
        ),
    }
    with (
        FileLock(folder.path / "console.lock", f"the console of {folder.path}"),
        RosNode("console", run_folder, local=True, parameters=parameters, managed=True) as node,
    ):
        backend = RosConsoleBackend(node, folder, actor, arm, profile)
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
        self._first, self._port, self._token = port, 0, new_token()

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
                raise BadInput(f"--console.host {self._host}: {error.strerror}") from error
            self._port = port
            write_address(self._folder, address)
            try:
                while self._node.handle.active and not self._stopping():
                    await asyncio.sleep(_LOOK_S)
            finally:
                self._port = 0
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
    parser.add_argument("--actor", default="actor0", help="name of the actor")
    parser.add_argument("--port", type=int, default=PORT, help="the first to be tried")
    parser.add_argument("--guard", help="namespace of the arm, where a guard is before it")
    parser.add_argument("--latch", type=Path, help="file of that arm's latch")
    parser.add_argument("--profile", default="", help="profile of that arm, where it is real")
    parser.add_argument("--host", default="", help="address in the lab network, served with TLS")
    options = parser.parse_args(own_arguments(arguments))
    if (options.guard is None) != (options.latch is None):
        parser.error("--guard and --latch: both, or none")
    arm = None if options.guard is None else GuardedArm(options.guard, options.latch)
    return run_node(
        lambda: run(options.run, options.actor, options.port, arm, options.profile, options.host)
    )


if __name__ == "__main__":
    sys.exit(main())
