"""`serl setup`: commission an arm step by step and write its profile.

The result is written after each step, so that the next call continues from there.
"""

from __future__ import annotations

import argparse
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from serl.arm_profile import ArmProfile, latch_path, load_robot, read_robot, write_robot
from serl.cli.arguments import quoted
from serl.cli.teleop import add_device, opened_device
from serl.errors import BadInput, SerlError
from serl.ros.setup.checks import SessionLeft
from serl.runs.guard_setup import place_of
from serl.system.files import check_destination
from serl.system.terminal import TerminalClosed, TerminalInput
from serl.workspace import SetupResult

if TYPE_CHECKING:
    from serl.ros.setup.session import SetupSession
    from serl.ros.setup.steps import SetupStep
    from serl.teleop.device import Device
    from serl.teleop.mapping import MappingConfig

_BY_STEPS = ("home_rad", "workspace", "cameras", "setup", "reset")
"""Fields of a profile that the steps set."""

_CHOICE = "[Enter] begin   [s REASON] skip   [q] leave, to continue later"


class SetupTerminal:
    """Dialogue with the person at this terminal; see `serl.ros.setup.checks.Asker`."""

    def __init__(self) -> None:
        self._typed, self._awaited_key = TerminalInput(), ""

    def show(self, text: str) -> None:
        """Print a text."""
        print(text, flush=True)

    def ask(self, key: str, question: str) -> str:
        """Wait for an answer in a line; raises `SessionLeft` at `q` and at the end of input."""
        self._awaited_key = ""
        self._typed.drop()
        print(question, end=" ", flush=True)
        return self._line(None) or ""

    def pressed(self, key: str) -> bool:
        """Return whether a line was entered, and consume it; raises as `ask`."""
        if key != self._awaited_key:
            self._awaited_key = key
            self._typed.drop()
        return self._line(0.0) is not None

    def _line(self, timeout_s: float | None) -> str | None:
        try:
            typed = self._typed.line(timeout_s)
        except TerminalClosed:
            raise SessionLeft("no more answers") from None
        if typed == "q":
            raise SessionLeft("by choice")
        return typed


def setup_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `serl setup`."""
    parser.add_argument(
        "robot", metavar="ROBOT", help="name of an arm, or path of a profile to continue with"
    )
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="profile to write, else ROBOT.cell.yaml"
    )
    parser.add_argument(
        "--namespace", default="/", help="namespace of the driver's topics, such as /right"
    )
    parser.add_argument(
        "--repeat",
        action="append",
        default=[],
        metavar="STEP",
        help="do a completed step again; may be given several times",
    )
    add_device(parser)
    parser.add_argument("--path", type=Path, help="path of the device, such as /dev/input/event3")


def setup(options: argparse.Namespace) -> int:
    """Guide a person through the setup of an arm; return exit code 1 while steps are left.

    Raises:
        BadInput: ROS 2 is missing, or the profile is invalid.
    """
    if options.path and not options.device:
        raise BadInput(f"--path {options.path}: expected --device NAME as well")
    out = _destination(options.robot, options.out)
    given, asker = load_robot(options.robot), SetupTerminal()
    place = place_of(given, options.namespace)
    profile = _continued(out, given, place.namespace) if out.exists() else given
    with ExitStack() as stack:
        device = opened_device(options.device, options.path) if options.device else None
        if device is not None:
            stack.callback(device[0].close)
        devices = (device,) if device else ()
        session = stack.enter_context(
            setup_session(profile, str(out), options.namespace, out, asker, devices)
        )
        from serl.ros.setup.steps import STEPS  # rclpy: only after require_ros

        session.profile = _without(session.profile, options.repeat, [step.name for step in STEPS])
        asker.show(f"{profile.summary}: {place.namespace}, {len(STEPS)} steps, into {out}")
        if names := _differing(given, profile, place.namespace):
            own = ", ".join(names)
            asker.show(f"{out} has its own {own}, unlike {options.robot}: edit it there")
        return 0 if walk(session, STEPS) else 1


@contextmanager
def setup_session(
    profile: ArmProfile,
    robot: str,
    namespace: str,
    out: Path,
    asker: SetupTerminal,
    devices: Sequence[tuple[Device, MappingConfig]] = (),
) -> Iterator[SetupSession]:
    """Provide a session with an arm, without a guard that commands it yet.

    Args:
        profile: profile of the arm.
        robot: name or file of that profile, to which the arm's latch belongs.
        namespace: namespace of the driver's topics.
        out: file that is to be written; pictures are stored beside it.
        asker: dialogue with the person.
        devices: devices of this machine for takeovers.

    Raises:
        BadInput: ROS 2 is missing, or the namespace is invalid.
    """
    from serl.ros.environment import lone_folder
    from serl.ros.processes import require_ros

    place = place_of(profile, namespace)
    profile = profile.within(place.namespace)
    require_ros()
    from serl.ros.node import RosNode  # rclpy: only after require_ros
    from serl.ros.setup.arm import SetupArm
    from serl.ros.setup.session import SetupSession

    with ExitStack() as stack:
        folder = stack.enter_context(lone_folder("setup", place.cell))
        node = stack.enter_context(RosNode(f"setup_{place.robot}", folder, local=True))
        for number in (signal.SIGINT, signal.SIGTERM):  # at once, also while a question waits
            signal.signal(number, signal.default_int_handler)
        latch = latch_path(robot, profile, place.namespace)
        arm = stack.enter_context(SetupArm(node, place, profile, folder, latch, asker))
        yield SetupSession(node, arm, asker, out, devices)


def walk(
    session: SetupSession,
    steps: Sequence[SetupStep],
    now: Callable[[], datetime] = datetime.now,
) -> bool:
    """Run the remaining steps; return whether all are done."""
    asker = session.asker
    try:
        for number, step in enumerate(steps, 1):
            before = session.profile.setup.get(step.name)
            heading = f"\n{number}/{len(steps)} {step.name}: {step.title}"
            if before is not None:
                asker.show(f"{heading}: {_words(before)}")
                continue
            asker.show(heading)
            trial = _run_step(session, step, now)
            results = {**session.profile.setup, step.name: trial}
            for name in step.outdates if not trial.skipped else ():
                results.pop(name, None)
            session.profile = session.profile.model_copy(update={"setup": results})
            write_robot(session.out, session.profile)
            asker.show(f"  {_words(trial)}")
    except SessionLeft:
        asker.show(f"stopped; to continue: serl setup {quoted(session.out)}")
        return False
    asker.show(f"\nset-up complete: {session.out}")
    asker.show(f"to guard the arm: serl guard {quoted(session.out)}")
    return True


def _run_step(session: SetupSession, step: SetupStep, now: Callable[[], datetime]) -> SetupResult:
    """Try a step until it succeeds or the person skips it, and return its result."""
    while True:
        answer = session.asker.ask(step.name, _CHOICE)
        if answer == "s" or answer.startswith("s "):
            if reason := answer[1:].strip():
                return SetupResult(at=_stamp(now()), skipped=reason)
            session.asker.show("a skipped step needs a reason, as in: s no camera in this cell")
        elif answer:
            session.asker.show(f"{answer!r}: expected Enter, s and a reason, or q")
        else:
            try:
                found = step.run(session)
                return SetupResult(at=_stamp(now()), found=found)  # time of completion
            except SessionLeft:
                raise
            except SerlError as error:
                session.asker.show(f"  not yet: {error}")


def _stamp(now: datetime) -> str:
    return now.strftime("%Y-%m-%d %H:%M")


def _words(trial: SetupResult) -> str:
    return f"skipped: {trial.skipped}" if trial.skipped else f"done {trial.at}: {trial.found}"


def _destination(robot: str, out: Path | None) -> Path:
    """Return the file of the profile: `out`, else the given .yaml file, else one in this folder."""
    path = out or Path(robot if robot.endswith(".yaml") else f"{Path(robot).stem}.cell.yaml")
    if path.suffix != ".yaml":
        raise BadInput(f"--out {path}: expected a .yaml file")
    check_destination(path)
    return path


def _continued(out: Path, given: ArmProfile, namespace: str) -> ArmProfile:
    """Return the profile in a file; raise `BadInput` if it is of another arm than the given one."""
    profile = read_robot(out)
    ours, theirs = (f"{p.name}, {p.within(namespace).target.name}" for p in (given, profile))
    if ours != theirs:
        raise BadInput(
            f"{out}: is the file of another arm ({theirs}) than the given one ({ours}): give "
            f"another --out, or continue with it: serl setup {quoted(out)}"
        )
    return profile


def _differing(given: ArmProfile, kept: ArmProfile, namespace: str) -> list[str]:
    """Return the fields of a continued profile that differ from the given one, if not by a step."""
    ours, theirs = given.within(namespace), kept.within(namespace)
    fields = [name for name in ArmProfile.model_fields if name not in _BY_STEPS]
    return [name for name in fields if getattr(ours, name) != getattr(theirs, name)]


def _without(profile: ArmProfile, repeated: Sequence[str], steps: Sequence[str]) -> ArmProfile:
    """Return the profile without the results of the steps to repeat."""
    for name in repeated:
        if name not in steps:
            raise BadInput(f"--repeat {name}: expected one of {', '.join(steps)}")
    kept = {name: trial for name, trial in profile.setup.items() if name not in repeated}
    return profile.model_copy(update={"setup": kept})
