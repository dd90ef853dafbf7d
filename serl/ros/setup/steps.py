"""The steps of an arm's commissioning, in order; each returns its result, or raises."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from serl.arm_profile import ArmProfile
from serl.errors import BadInput
from serl.geometry import Vector, add, subtract
from serl.motion import Pose, pose_from
from serl.reset import ResetConfig, Waypoint
from serl.ros.arm.controller import settle_controller
from serl.ros.setup.arm import SetupArm
from serl.ros.setup.cameras import cameras
from serl.ros.setup.checks import (
    END_GUIDING,
    StepFailed,
    ask_direction,
    ask_to_begin,
    ask_yes_no,
    check_direction,
    check_turn,
    check_way,
    format_position,
    parse_place,
)
from serl.ros.setup.session import SetupSession, connection
from serl.ros.setup.stops import estop, stop_button, takeover
from serl.system.settings_file import checked
from serl.workspace import LEAST_SIDE_M, Workspace

_MOVE_M = 0.02
_INSET_M = 0.01
_MOVES = "it moves: hold it still, and press Enter again"


class SetupStep(NamedTuple):
    """A step of an arm's commissioning.

    Attributes:
        name: name of the step in the profile.
        title: subject of the step, for the person.
        run: runs the step; returns the result in one line, or raises `SerlError` for a problem.
        outdates: names of later steps whose results count no more once this step was repeated.
    """

    name: str
    title: str
    run: Callable[[SetupSession], str]
    outdates: tuple[str, ...] = ()


def limits(session: SetupSession) -> str:
    """Set and read back gains and limits, and compare the limits with the joint positions."""
    profile = session.profile
    settle_controller(session.arm.driver.remote, session.arm.place.robot, profile)
    q = [float(value) for value in session.arm.reading().state["q"]]
    rows = list(zip(profile.joints, profile.joint_low_rad, q, profile.joint_high_rad, strict=True))
    for joint, low, value, high in rows:
        if not low <= value <= high:
            raise StepFailed(
                f"{joint} is at {value:.3f} rad, outside its limits {low:.3f} to {high:.3f}: are "
                "these the limits of this arm, and is the unit rad?"
            )
    for joint, low, value, high in rows:
        session.asker.show(f"  {joint}: {low:+.3f} to {high:+.3f} rad, now {value:+.3f}")
    if not ask_yes_no(session.asker, "limits.joints", "Are these the limits of this arm?"):
        raise StepFailed(f"joint_low_rad, joint_high_rad: type q, correct them in {session.out}")
    mass = f"{profile.payload.mass_kg:g} kg at {profile.payload.center_m} m of the flange"
    if not ask_yes_no(session.asker, "limits.payload", f"Is the arm set to a payload of {mass}?"):
        raise StepFailed(
            f"payload: set it at the arm's own panel; or type q, correct it in {session.out}"
        )
    return f"{len(profile.controller.parameters)} parameters set and read back"


def frames(session: SetupSession) -> str:
    """Move the tool 2 cm along each axis, and check the direction by readings and by sight."""
    arm = session.arm
    session.asker.show("The tool goes 2 cm along each axis, at 5 cm/s. Keep a hand on the e-stop.")
    ask_to_begin(session.asker, "frames.begin", "Enter begins")
    arm.guarded()
    start = arm.rest().position
    ways: tuple[tuple[str, Vector], ...] = (
        ("x", (_MOVE_M, 0.0, 0.0)),
        ("y", (0.0, _MOVE_M, 0.0)),
        ("z", (0.0, 0.0, _MOVE_M)),
    )
    for axis, way in ways:
        begin = arm.rest().position

        def watch(place: Vector, axis: str = axis, begin: Vector = begin) -> None:
            check_way(axis, begin, place)

        arm.move_to(add(begin, way), watch)
        question = f"+{axis}: which way did the tool go, seen from the base along its front?"
        direction = ask_direction(session.asker, f"frames.{axis}", question)
        check_direction(axis, direction, session.profile.base_frame)
        arm.guarded()
        arm.move_to(start)
    return "x forward, y left, z up"


def workspace(session: SetupSession) -> str:
    """Teach home and two corners of a box by hand guiding; no guard commands the arm meanwhile."""
    arm, asker = session.arm, session.asker
    arm.end_guard()
    asker.show(
        "Nothing commands the arm now. Put it into its own hand-guiding mode (a button at the "
        "wrist, freedrive, gravity compensation), and guide the tool. A simulated arm has none: "
        "press Enter for home where it stands, and type both corners."
    )
    home, q = _home(session)
    low = _corner(session, "low", "nearest to the base, furthest right, lowest")
    high = _corner(session, "high", "furthest from the base, left, highest")
    before = session.profile.workspace
    kept = {"keep_out", "max_rotation_rad"}
    values = {
        **(before.model_dump(include=kept) if before is not None else {}),
        "low_m": low,
        "high_m": high,
        "home_m": home.position,
        "reference": home.quaternion,
    }
    try:
        taught = checked(Workspace, values)
        whole = {**session.profile.model_dump(), "home_rad": q, "workspace": taught.model_dump()}
        session.profile = checked(ArmProfile, whole)
    except BadInput as error:
        still = math.dist(low, high) < LEAST_SIDE_M
        hint = ": the tool was not guided: guide it, or type the corners" if still else ""
        raise StepFailed(f"{error}{hint}") from None
    asker.ask("workspace.end", f"{END_GUIDING}. End hand guiding; Enter")
    sides = (high - low for low, high in zip(taught.low_m, taught.high_m, strict=True))
    return "box of " + " x ".join(f"{100 * side:.0f}" for side in sides) + " cm"


def _home(session: SetupSession) -> tuple[Pose, tuple[float, ...]]:
    """Ask for home by hand guiding; returns the tool's pose and the joint positions."""
    question = "Guide the tool to where episodes are to begin, and press Enter"
    while True:
        if answer := session.asker.ask("workspace.home", question):
            session.asker.show(f"{answer!r}: home is where the arm stands: Enter alone")
        elif session.arm.is_still():
            reading = session.arm.reading()
            q = tuple(float(value) for value in reading.state["q"])
            pose = pose_from(reading.state["tcp_pose"])
            session.asker.show(f"  home: {format_position(pose.position)}")
            return pose, q
        else:
            session.asker.show(_MOVES)


def _corner(session: SetupSession, key: str, where: str) -> Vector:
    """Ask for a corner by hand guiding or by typing; returns its position."""
    question = f"Guide the tool to the corner {where}, and press Enter; or type it as x,y,z in m"
    while True:
        answer = session.asker.ask(f"workspace.{key}", question)
        try:
            if not answer and not session.arm.is_still():
                raise StepFailed(_MOVES)
            place = parse_place(answer) if answer else session.arm.measured().position
        except StepFailed as error:
            session.asker.show(str(error))
            continue
        session.asker.show(f"  {key}: {format_position(place)}")
        return place


def dry_run(session: SetupSession) -> str:
    """Move the tool to home and to two corners of the taught box, at 5 cm/s."""
    place = session.profile.workspace
    if place is None:
        raise StepFailed("no workspace was taught: do that step first")
    arm = session.arm
    session.asker.show("The tool goes to home and to two corners of the box, at 5 cm/s.")
    ask_to_begin(session.asker, "dry_run.begin", "Hand on the e-stop, box empty: Enter begins")
    arm.guarded()
    inset: Vector = (_INSET_M, _INSET_M, _INSET_M)
    low, high = add(place.low_m, inset), subtract(place.high_m, inset)
    force_n = 0.0
    for goal in (place.home_m, low, high, place.home_m):
        arm.move_to(_clamped(goal, low, high))
        force_n = max(force_n, _force_n(arm))
    if not ask_yes_no(
        session.asker, "dry_run.end", "Did the arm move as expected, without contact?"
    ):
        raise StepFailed("the dry run was not as expected: teach the workspace anew, or repeat it")
    return f"both corners and home reached; {force_n:.1f} N at most where it stood"


def _force_n(arm: SetupArm) -> float:
    return math.hypot(*(float(value) for value in arm.reading().state["wrench"][:3]))


def _clamped(v: Vector, low: Vector, high: Vector) -> Vector:
    x, y, z = (min(high[i], max(low[i], v[i])) for i in range(3))
    return x, y, z


def reset(session: SetupSession) -> str:
    """Teach, by hand guiding, the path on which the tool puts a part back after an episode.

    No guard commands the arm meanwhile. Without a pose the tool only returns to home, unless the
    task resets itself.
    """
    arm, asker, place = session.arm, session.asker, session.profile.workspace
    if place is None:
        raise StepFailed("no workspace was taught: do that step first")
    arm.end_guard()
    asker.show(
        "After an episode the tool returns to home by itself. If it is to put a part back into its "
        "fixture before, close the hand on the part, put the arm into its hand-guiding mode, and "
        "guide it along the way, pose by pose. Nothing commands the arm now."
    )
    path, closed = list[Waypoint](), True
    while True:
        question = f"Pose {len(path) + 1}: Enter takes it, o if the hand opens there, e ends"
        answer = asker.ask("reset.pose", question).lower()
        if answer == "e":
            break
        if answer not in ("", "o"):
            asker.show(f"{answer!r}: expected Enter, o or e")
        elif not arm.is_still():
            asker.show(_MOVES)
        else:
            closed = closed and answer != "o"
            pose = arm.measured()
            path.append(
                Waypoint(position_m=pose.position, orientation=pose.quaternion, closed=closed)
            )
            asker.show(f"  {format_position(pose.position)}, hand {'closed' if closed else 'open'}")
    _check_path(path, place)
    before = session.profile.reset or ResetConfig()
    values = {**before.model_dump(), "kind": "path" if path else None, "path": path}
    taught = checked(ResetConfig, values, "reset.")
    session.profile = session.profile.model_copy(update={"reset": taught})
    if path:
        asker.ask("reset.end", f"{END_GUIDING}. End hand guiding; Enter")
    return f"a path of {len(path)} poses, then home" if path else "home"


def _check_path(path: Sequence[Waypoint], place: Workspace) -> None:
    """Raise `StepFailed` unless a path opens the hand, within the workspace."""
    if path and all(each.closed for each in path):
        raise StepFailed("the hand opens at no pose: answer o where the part is released")
    for number, each in enumerate(path, 1):
        if not place.allows(each.position_m):
            where = format_position(each.position_m)
            raise StepFailed(f"pose {number} is outside the workspace, at {where}")
        check_turn(f"pose {number}", each.orientation, place)


STEPS = (
    SetupStep("connection", "topics of the driver and their rates", connection),
    SetupStep("limits", "gains, limits and payload", limits),
    SetupStep("frames", "directions of the axes", frames),
    SetupStep("workspace", "home and the box of the workspace", workspace, ("reset", "dry_run")),
    SetupStep("reset", "path back to home after an episode", reset),
    SetupStep("cameras", "names and crops of the cameras", cameras),
    SetupStep("takeover", "a person takes over and hands back", takeover),
    SetupStep("estop", "the emergency stop of the guard", estop),
    SetupStep("stop_button", "the arm's own emergency stop", stop_button),
    SetupStep("dry_run", "slow motion around the box", dry_run),
)
