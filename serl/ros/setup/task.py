"""Teaching of a task without a simulation: goal, start, box and views, by hand at an arm."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from serl.camera import View
from serl.geometry import (
    Quaternion,
    Vector,
    add,
    from_rotation_vector,
    multiply,
    rotation_between,
    subtract,
)
from serl.motion import Pose
from serl.real_task import RealTaskConfig
from serl.ros.setup.checks import (
    END_GUIDING,
    StepFailed,
    ask_yes_no,
    check_turn,
    format_position,
    parse_crop,
    parse_place,
)
from serl.ros.setup.session import SetupSession
from serl.runs.real_arm import within_workspace
from serl.system.settings_file import checked
from serl.workspace import Workspace

AXES = ("x", "y", "z", "roll", "pitch", "yaw")
REWARDS = ("pose", "human")
_ASIDE_M, _BELOW_M, _ABOVE_M, _STEP_M = 0.05, 0.02, 0.15, 0.01
_TURNED_RAD = 0.05
_VIEW_PX = 128
_GUIDING = (
    "Nothing commands the arm now. Put it into its own hand-guiding mode, and guide the tool, with "
    f"the part in its hand if there is one. {END_GUIDING}."
)


class TaughtTask(NamedTuple):
    """A task as a person taught it.

    Attributes:
        config: settings of the task.
    """

    config: RealTaskConfig
    training: Mapping[str, Any]


def teach_task(session: SetupSession) -> TaughtTask:
    """Ask for goal, start, box, views and reward, without a guard that commands the arm.

    Raises:
        StepFailed: the arm has no workspace, or a taught pose is outside of it.
        BadInput: the answers do not form a valid task.
    """
    place, asker = session.profile.workspace, session.asker
    if place is None:
        raise StepFailed("no workspace was taught: serl setup does that first")
    session.arm.end_guard()
    asker.show(_GUIDING)
    goal = _taught(session, "goal", "where the task is solved")
    start = _taught(
        session, "start", "the mean start of the episodes, such as a place above the goal"
    )
    low, high = _box(session, goal, start, place)
    turned = check_turn("start", start.quaternion, place) > _TURNED_RAD
    begins = start.quaternion if turned else place.reference
    axes = _words(session, "axes", "Axes that the policy moves", "x y z", AXES)
    gripper = session.profile.gripper is not None
    keeps = gripper and ask_yes_no(asker, "task.keep", "Does the hand keep a part in all episodes?")
    motion = {
        "axes": axes,
        "translation_m": _STEP_M,
        "box_low_m": low,
        "box_high_m": high,
        "gripper": gripper and not keeps,
    }
    views = _views(session)
    question = "Success is decided by the pose or by a human"
    kind, *_ = _words(session, "reward", question, "pose", REWARDS)
    settings: dict[str, Any] = {
        "observe": "pixels" if views else "state",
        "motion": motion,
        "views": views,
    }
    if not views:
        settings["origin_m"] = _rounded(goal.position)
    config = checked(RealTaskConfig, settings)
    within_workspace(config.motion, session.profile)
    reset: dict[str, Any] = {"home_m": _rounded(start.position)}
    if keeps:
        reset["gripper"] = "keep"
    if begins is not place.reference:
        reset["orientation"] = _rounded(begins, 5)
    reward: dict[str, Any] = {"kind": kind}
    if kind == "pose":
        reward |= _pose_reward(session, goal, begins, axes)
    return TaughtTask(config, {"reward": reward, "reset": reset})


def _pose_reward(
    session: SetupSession, goal: Pose, start: Quaternion, axes: Sequence[str]
) -> dict[str, Any]:
    """Return the reward of the taught pose, without turns that the policy cannot make.

    A tool that is guided by hand turns a little; such a goal would be out of reach in all episodes.
    """
    turn = rotation_between(start, goal.quaternion)
    x, y, z = (by if axis in axes else 0.0 for axis, by in zip(AXES[3:], turn, strict=True))
    if (left_rad := math.dist(turn, (x, y, z))) > _TURNED_RAD:
        session.asker.show(
            f"  the goal was turned by {left_rad:.2f} rad about axes that the policy does not "
            "move: success needs no such turn"
        )
    solved = multiply(from_rotation_vector((x, y, z)), start)
    assert session.profile.workspace is not None  # checked by `teach_task`
    check_turn("goal", solved, session.profile.workspace)
    pose = [*_rounded(goal.position), *_rounded(solved, 5)]
    return {"pose": pose, "tolerance_m": [0.005, 0.005, 0.005]}


def _taught(session: SetupSession, key: str, where: str) -> Pose:
    """Ask for a pose by hand guiding, or for its position by typing; return it."""
    question = f"Guide the tool to {where}, and press Enter; or type it as x,y,z in m"
    while True:
        answer = session.asker.ask(f"task.{key}", question)
        try:
            if not answer and not session.arm.is_still():
                raise StepFailed("it moves: hold it still, and press Enter again")
            pose = session.arm.measured()
            pose = pose._replace(position=parse_place(answer)) if answer else pose
        except StepFailed as error:
            session.asker.show(str(error))
            continue
        session.asker.show(f"  {key}: {format_position(pose.position)}")
        return pose


def _box(
    session: SetupSession, goal: Pose, start: Pose, place: Workspace
) -> tuple[list[float], list[float]]:
    """Return the corners of the box: around goal and start, or taught by hand."""
    places = [goal.position, start.position]
    asker = session.asker
    if asker.ask(
        "task.box",
        f"Press Enter for a box that reaches {100 * _ASIDE_M:.0f} cm beyond goal and start on each "
        f"side and {100 * _ABOVE_M:.0f} cm above the goal; or type t to teach two opposite corners",
    ):
        places = [
            _taught(session, "corner", "one corner of the box").position,
            _taught(session, "opposite", "the opposite corner").position,
        ]
        low, high = _hull(places)
    else:
        low, high = _hull(places)
        low = subtract(low, (_ASIDE_M, _ASIDE_M, _BELOW_M))
        high = add(high, (_ASIDE_M, _ASIDE_M, 0.0))
        high = (high[0], high[1], max(high[2], goal.position[2] + _ABOVE_M))
    least, most = [*map(max, low, place.low_m)], [*map(min, high, place.high_m)]
    for name, pose in (("goal", goal), ("start", start)):
        inside = zip(least, pose.position, most, strict=True)
        if not (place.allows(pose.position) and all(a <= at <= b for a, at, b in inside)):
            where = format_position(pose.position)
            raise StepFailed(f"{name}: at {where} it is outside the box or the arm's workspace")
    if (tuple(least), tuple(most)) != (tuple(low), tuple(high)):
        corners = " to ".join(format_position((x, y, z)) for x, y, z in (least, most))
        asker.show(f"  the box is cut by the arm's workspace: {corners}")
    return _rounded(least), _rounded(most)


def _hull(places: list[Vector]) -> tuple[Vector, Vector]:
    (x, y, z), (u, v, w) = places
    return (min(x, u), min(y, v), min(z, w)), (max(x, u), max(y, v), max(z, w))


def _views(session: SetupSession) -> dict[str, dict[str, Any]]:
    """Ask for the part of each camera's picture that the policy gets; return the views."""
    views: dict[str, dict[str, Any]] = {}
    for camera in session.profile.cameras:
        question = (
            f"Camera {camera}: Enter for its whole picture, a crop as left,top,right,bottom, or - "
            "to leave it out"
        )
        while (answer := session.asker.ask(f"task.views.{camera}", question)) != "-":
            try:
                view = View(camera=camera, width=_VIEW_PX, height=_VIEW_PX, crop=parse_crop(answer))
            except StepFailed as error:
                session.asker.show(str(error))
                continue
            views[camera] = view.model_dump(mode="json", exclude_defaults=True)
            break
    return views


def _words(
    session: SetupSession, key: str, question: str, usual: str, allowed: tuple[str, ...]
) -> tuple[str, ...]:
    """Ask for some of the allowed words."""
    while True:
        words = (session.asker.ask(f"task.{key}", f"{question} [{usual}]") or usual).split()
        if words and set(words) <= set(allowed) and len(words) == len({*words}):
            return tuple(words)
        session.asker.show(f"{' '.join(words)!r}: expected some of {', '.join(allowed)}")


def _rounded(values: Any, digits: int = 4) -> list[float]:
    return [round(float(value), digits) for value in values]
