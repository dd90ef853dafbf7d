"""Settings of the reset between two episodes, and checks of the scene after it.

`serl.training.arm_reset` carries them out on an arm.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, Self

from pydantic import Field, model_validator

from serl.geometry import UnitQuaternion, Vector, is_in_box
from serl.system.settings_file import HomePath
from serl.types import FrozenModel, Observation

ResetKind = Literal["home", "path", "task", "person"]


class Waypoint(FrozenModel):
    """A pose of a taught path, and the gripper's state from there on.

    Attributes:
        position_m: position of the tool, base frame.
        orientation: orientation of the tool, xyzw.
        closed: whether the gripper is closed once the tool is there.
    """

    position_m: Vector
    orientation: UnitQuaternion
    closed: bool = False


class ResetConfig(FrozenModel):
    """Settings of the reset between two episodes, and of the check of the scene after it.

    They may also be given in the file of an arm (`reset:`), which takes precedence over the task's.

    Attributes:
        kind: "home", the tool returns to `home_m` plus a random offset; "path", a part in the hand
            is first put back along the taught `path`; "task", the task's own scripted reset;
            "person", a person brings arm and scene to a start before each episode. None for "task"
            if the task's `auto_reset` is set, else "home" for a real arm with a taught workspace
            whose task moves the tool along x, y and z, else "person". A simulation takes the place
            of that person, and places the scene.
        home_m: mean start of the tool, base frame, inside the box of the task; None for the home of
            the arm's workspace.
        orientation: orientation of the tool at a start without an offset, xyzw; None for that of
            the arm's workspace, or straight down without one.
        range_m: largest offset of a start from `home_m`, along x and y each; starts are drawn from
            the part of this range in the box.
        yaw_rad: largest turn of a start about the vertical, in tasks whose actions turn the tool
            about it; others begin without a turn, which they could not undo.
        lift_m: distance by which the tool is raised before it moves aside.
        gripper: "open" lets go of a part where the hand is, before the tool is raised; "keep"
            leaves the gripper as it is, and asks for a person when it holds nothing.
        held: opening of the gripper, 0 to 1, below which it holds nothing.
        gains: mode of the arm's controller for the reset, after which the previous gains return.
            None for "reset", if the task has a table for it; without one for "precision", if the
            controller has this mode and the kind is "home" or "path".
        tolerance_m: largest distance of the tool from the drawn start.
        path: the taught path of the kind "path", which `serl setup` writes into the arm's file.
        check: condition for the next episode: "none"; "pose", the body named `body` is in a box;
            "classifier", the image classifier `model` predicts its last class. If it does not hold,
            a person is asked.
        body: tracked body of the check "pose".
        body_low_m: lowest corner of the box for that body, base frame.
        body_high_m: highest corner of that box.
        model: file of the classifier, written by `serl reward train`.
        sha256: hash of that file when the run was created; None to skip the check of the file.
        threshold: least probability of the class; None for the model's own value.
        transfer: accept a classifier trained for another task with the same cameras.
    """

    kind: ResetKind | None = None
    home_m: Vector | None = None
    orientation: UnitQuaternion | None = None
    range_m: float = Field(0.02, ge=0, le=0.5)
    yaw_rad: float = Field(0.1, ge=0, le=math.pi)
    lift_m: float = Field(0.05, ge=0, le=0.5)
    gripper: Literal["open", "keep"] = "open"
    held: float = Field(0.03, ge=0, lt=1)
    gains: str | None = None
    tolerance_m: float = Field(0.003, ge=0.0005, le=0.05)
    path: tuple[Waypoint, ...] = Field((), max_length=64)
    check: Literal["none", "pose", "classifier"] = "none"
    body: str | None = None
    body_low_m: Vector | None = None
    body_high_m: Vector | None = None
    model: HomePath | None = None
    sha256: str | None = None
    threshold: float | None = Field(None, gt=0, lt=1)
    transfer: bool = False

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.kind == "path" and not self.path:
            raise ValueError("path: expected the poses of the kind 'path': teach them, serl setup")
        corners = self.body_low_m, self.body_high_m
        if self.check == "pose" and (self.body is None or None in corners):
            raise ValueError("check pose: expected body, body_low_m and body_high_m")
        if self.check == "classifier" and self.model is None:
            raise ValueError("model: the check needs the file that `serl reward train` wrote")
        return self


SceneCheck = Callable[[Observation], str]
"""Returns why the scene of a reading is not ready for an episode; empty if it is."""


def no_check(reading: Observation) -> str:
    """Return "": every scene is ready."""
    return ""


def pose_check(config: ResetConfig) -> SceneCheck:
    """Return the check that the body of `config` is in its box."""
    name, low, high = config.body, config.body_low_m, config.body_high_m
    assert low is not None
    assert high is not None

    def check(reading: Observation) -> str:
        x, y, z = reading.state[f"{name}_pose"][:3].tolist()
        if is_in_box((x, y, z), low, high):
            return ""
        return f"{name} is at x {x:.3f} y {y:.3f} z {z:.3f} m, not in its place"

    return check
