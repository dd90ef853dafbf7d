"""Resets of an arm between episodes, tested on a minimal fake arm whose controller sags."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from serl.errors import NeedsPerson, SerlError, Silent
from serl.geometry import from_rotation_vector, multiply, rotation_between
from serl.motion import Box, Motion, Pose, Target
from serl.reset import ResetConfig, no_check, pose_check
from serl.training.arm_reset import ArmReset
from serl.types import Observation

DOWN = (1.0, 0.0, 0.0, 0.0)
HOME = Pose((0.45, 0.0, 0.2), DOWN)
LOW, HIGH = (0.3, -0.2, 0.02), (0.6, 0.2, 0.3)
MOTION = Motion(
    axes=("x", "y", "z"), translation_m=0.015, box_low_m=LOW, box_high_m=HIGH, gripper=True
)
IN_TOOL_FRAME = MOTION.model_copy(update={"frame": "tool"})
TASK: Any = SimpleNamespace(config=SimpleNamespace(rate_hz=10.0), reset=lambda reading: None)


class Arm:
    """Fake arm whose tool follows its target with a constant sag and whose gripper may hold a part.

    Attributes:
        part: gripper opening while closed on the part; 0 without a part.
        places: positions at which the gripper opened or closed.
        switched: gain modes that were set, in order.
    """

    modes: tuple[str, ...] = ("compliance", "precision")

    def __init__(
        self, start: Pose = HOME, sag_m: float = 0.0, part: float = 0.0, motion: Motion = MOTION
    ) -> None:
        self.motion = motion
        self.aim, self.tool, self.speed = Target(motion), start, np.zeros(3)
        self.aim.begin(start, closed=part > 0.0)
        self.sag_m, self.part, self.opening = sag_m, part, part or 1.0
        self.places: list[tuple[bool, tuple[float, ...]]] = []
        self.time_s, self.heights = 0.0, list[float]()
        self.gains: str | None = None
        self.switched: list[str | None] = []
        self.fails = False

    def turn_to(self, orientation: Any) -> None:
        self.aim.turn_to(orientation)

    def switch(self, gains: str | None) -> None:
        if self.fails:
            raise SerlError("the controller refuses")
        self.switched.append(gains)
        self.gains = gains

    def observe(self) -> Observation:
        state = {
            "tcp_pose": np.array([*self.tool.position, *self.tool.quaternion], np.float32),
            "tcp_twist": np.array([*self.speed, 0.0, 0.0, 0.0], np.float32),
            "target_pose": np.array(
                [*self.aim.target.position, *self.aim.target.quaternion], np.float32
            ),
            "gripper": np.array([self.opening], np.float32),
            "part_pose": np.array([0.5, 0.1, 0.02, 0.0, 0.0, 0.0, 1.0], np.float32),
        }
        return Observation(state)

    def act(self, action: np.ndarray[Any, Any]) -> None:
        closed = self.aim.closed
        self.aim.move(action, self.tool, self.time_s)
        if self.aim.closed != closed:
            self.places.append((self.aim.closed, self.tool.position))
        self.opening = self.part if self.aim.closed else 1.0
        before = np.array(self.tool.position)
        target = np.array(self.aim.target.position) - (0.0, 0.0, self.sag_m)
        after = before + 0.7 * (target - before)
        self.speed = (after - before) / 0.1
        x, y, z = after.tolist()
        self.tool = Pose((x, y, z), self.aim.target.quaternion)
        self.heights.append(z)
        self.time_s += 0.1


def arm_reset(arm: Arm, keep_out: Sequence[Box] = (), **settings: Any) -> ArmReset:
    config = ResetConfig(**{"kind": "home", **settings})
    check = pose_check(config) if config.check == "pose" else no_check
    rng = np.random.default_rng(0)
    return ArmReset(TASK, arm, config, arm.motion, HOME, rng, check, keep_out)


def attempt(reset: ArmReset, arm: Arm, steps: int = 150) -> int:
    """Run one reset attempt as the actor does; return the number of steps."""
    script = reset(arm.observe())
    assert script is not None
    reset.prepare()
    for step in range(steps):
        arm.act(script(arm.observe()))
        if reset(arm.observe()) is None:
            reset.end()
            return step + 1
    reset.end()
    return steps


def away_mm(reset: ArmReset, arm: Arm) -> float:
    return 1e3 * math.dist(arm.tool.position, reset.start.position)


@pytest.mark.parametrize("motion", [MOTION, IN_TOOL_FRAME], ids=["base", "tool"])
def test_reset_opens_gripper_lifts_and_reaches_drawn_start(motion: Motion) -> None:
    tipped = multiply(from_rotation_vector((0.3, -0.2, 0.5)), DOWN)
    arm = Arm(Pose((0.55, 0.15, 0.03), tipped), sag_m=0.006, part=0.3, motion=motion)
    reset = arm_reset(arm)
    reset.begin()
    assert attempt(reset, arm) < 60
    assert away_mm(reset, arm) < 3.0, "the sag is corrected"
    assert math.hypot(*rotation_between(arm.tool.quaternion, reset.start.quaternion)) < 0.06
    ((closed, place),) = arm.places
    assert not closed
    assert math.dist(place, (0.55, 0.15, 0.03)) < 0.01, "the gripper opens before the tool moves"
    assert reset(arm.observe()) is None


def test_drawn_starts_stay_in_range_and_workspace_and_outside_keep_out_boxes() -> None:
    wall = Box(low_m=(0.40, -0.1, 0.0), high_m=(0.45, 0.1, 0.3))
    reset, starts = arm_reset(Arm(), [wall], range_m=0.05, yaw_rad=0.2), []
    for _ in range(50):
        reset.begin()
        starts.append(reset.start)
    offsets = np.array([np.subtract(start.position, HOME.position) for start in starts])
    assert np.abs(offsets[:, :2]).max() <= 0.05
    assert offsets[:, :2].std(0).min() > 0.01
    assert not offsets[:, 2].any()
    assert offsets[:, 0].min() >= 0.0, "the wall reaches up to home"
    assert {start.quaternion for start in starts} == {DOWN}, "the actions do not turn it back"
    turning = MOTION.model_copy(update={"axes": ("x", "y", "z", "yaw")})
    reset, turns = arm_reset(Arm(motion=turning), yaw_rad=0.2), []
    for _ in range(50):
        reset.begin()
        turns.append(abs(rotation_between(DOWN, reset.start.quaternion)[2]))
    assert 0.1 < max(turns) <= 0.2
    far, places = arm_reset(Arm(), range_m=0.5), []
    for _ in range(50):
        far.begin()
        places.append(far.start.position)
    assert (np.array(places)[:, :2] > LOW[:2]).all(), "no start is moved to a face of the box"
    assert (np.array(places)[:, :2] < HIGH[:2]).all()
    assert np.ptp(places, axis=0)[:2].min() > 0.25


@pytest.mark.parametrize("motion", [MOTION, IN_TOOL_FRAME], ids=["base", "tool"])
def test_reset_lifts_tool_before_moving_sideways(motion: Motion) -> None:
    arm = Arm(Pose((0.55, 0.15, 0.03), DOWN), motion=motion)
    reset = arm_reset(arm, lift_m=0.1, range_m=0.0)
    reset.begin()
    script = reset(arm.observe())
    assert script is not None
    for _ in range(60):
        if math.dist(arm.tool.position[:2], (0.55, 0.15)) >= 0.015:
            break
        arm.act(script(arm.observe()))
    assert arm.tool.position[2] > 0.12


def test_reset_needs_person_when_gripper_lost_the_part_to_keep() -> None:
    arm = Arm(Pose((0.5, 0.1, 0.1), DOWN), part=0.4)
    reset = arm_reset(arm, gripper="keep")
    reset.begin()
    attempt(reset, arm)
    assert not arm.places, "the gripper keeps its part"
    assert reset(arm.observe()) is None
    for lost in (0.0, 1.0):
        arm.opening = lost
        with pytest.raises(NeedsPerson, match=f"holds nothing \\(opening {lost:.2f}\\): the part"):
            reset(arm.observe())
        reset.confirm()
        with pytest.raises(NeedsPerson, match="holds nothing"):
            reset(arm.observe())
    arm.opening = 0.4
    reset.confirm()
    assert reset(arm.observe()) is None


PATH = [
    {"position_m": (0.5, -0.1, 0.15), "orientation": DOWN, "closed": True},
    {"position_m": (0.5, -0.1, 0.05), "orientation": DOWN, "closed": False},
    {"position_m": (0.5, -0.1, 0.15), "orientation": DOWN, "closed": False},
]


@pytest.mark.parametrize("motion", [MOTION, IN_TOOL_FRAME], ids=["base", "tool"])
def test_path_reset_puts_part_back_then_goes_home(motion: Motion) -> None:
    arm = Arm(Pose((0.55, 0.15, 0.1), DOWN), part=0.4, motion=motion)
    reset = arm_reset(arm, kind="path", path=PATH)
    reset.begin()
    attempt(reset, arm)
    ((closed, place),) = arm.places
    assert not closed
    assert math.dist(place, (0.5, -0.1, 0.05)) < 0.012
    assert away_mm(reset, arm) < 3.0
    assert reset(arm.observe()) is None, "the part is not fetched again"


@pytest.mark.parametrize("aside_m", [0.0, 0.2], ids=["at the place", "led away"])
def test_path_reset_interrupted_while_hand_opens_continues_there(aside_m: float) -> None:
    arm = Arm(Pose((0.55, 0.15, 0.1), DOWN), part=0.4)
    out = {"position_m": (0.36, -0.1, 0.05), "orientation": DOWN, "closed": False}
    reset = arm_reset(arm, kind="path", path=[*PATH[:2], out], lift_m=0.04)
    reset.begin()
    script = reset(arm.observe())
    assert script is not None
    reset.prepare()
    while arm.opening < 1.0:
        arm.act(script(arm.observe()))
    reset.end(restore_gains=False)  # as after a late reading
    x, y, z = arm.tool.position
    arm.tool = Pose((x + aside_m, y, z), DOWN)
    arm.aim.begin(arm.tool, False)
    arm.heights.clear()
    attempt(reset, arm)
    assert [closed for closed, _ in arm.places] == [False], "the hand opens once"
    assert away_mm(reset, arm) < 3.0
    assert reset(arm.observe()) is None
    is_lifted = max(arm.heights[:3]) > z + 0.01
    assert is_lifted == (aside_m > 0.0), "only from elsewhere it first lifts the tool"


def test_part_slipping_on_path_needs_person_until_confirmed() -> None:
    arm = Arm(Pose((0.55, 0.15, 0.1), DOWN), part=0.4)
    reset = arm_reset(arm, kind="path", path=PATH)
    reset.begin()
    script = reset(arm.observe())
    assert script is not None
    reset.prepare()
    for step in range(7):
        arm.part = 0.4 if step < 5 else 0.0
        arm.act(script(arm.observe()))
    for _ in range(2):  # called first by the reset episode's task, then by the actor
        with pytest.raises(NeedsPerson, match="slipped out of the gripper while it was put back"):
            reset(arm.observe())
        reset.end(restore_gains=False)
    reset.confirm()
    attempt(reset, arm)
    assert reset(arm.observe()) is None


def test_path_reset_with_empty_gripper_relies_on_check() -> None:
    arm = Arm(Pose((0.55, 0.15, 0.1), DOWN))
    reset = arm_reset(arm, kind="path", path=PATH)
    reset.begin()
    with pytest.raises(NeedsPerson, match=r"nothing to put back, and reset\.check looks for no"):
        reset(arm.observe())
    place: dict[str, Any] = {"check": "pose", "body": "part", "body_low_m": (0.4, 0.0, 0.0)}
    reset = arm_reset(arm, kind="path", path=PATH, body_high_m=(0.6, 0.2, 0.1), **place)
    reset.begin()
    attempt(reset, arm)
    assert not arm.places
    assert reset(arm.observe()) is None
    reset = arm_reset(arm, kind="path", path=PATH, body_high_m=(0.45, 0.2, 0.1), **place)
    reset.begin()
    with pytest.raises(NeedsPerson, match=r"part is at x 0\.500 y 0\.100 z 0\.020 m, not in its"):
        attempt(reset, arm)


def test_reset_gains_apply_to_first_attempt_only() -> None:
    arm = Arm(Pose((0.55, 0.15, 0.1), DOWN))
    arm.gains = "compliance"
    reset = arm_reset(arm)
    reset.begin()
    attempt(reset, arm)
    assert arm.switched == ["precision", "compliance"]
    arm.tool = Pose((0.55, 0.15, 0.1), DOWN)
    attempt(reset, arm)
    assert arm.switched == ["precision", "compliance"], (
        "with the task's gains the arm may rest elsewhere"
    )
    reset.begin()
    arm.tool = Pose((0.55, 0.15, 0.1), DOWN)
    reset.prepare()
    reset.end(restore_gains=False)
    assert arm.gains == "precision", "nothing changes gains while the arm is stopped"
    reset.end()
    assert arm.gains == "compliance"
    arm.modes, arm.gains = (*Arm.modes, "reset"), None  # the task defines its own reset gains
    own = arm_reset(arm)
    own.begin()
    own.prepare()
    assert arm.gains == "reset"
    unknown = arm_reset(Arm(), gains="butter")
    unknown.begin()
    unknown.prepare()


def test_attempt_does_not_start_when_gains_cannot_be_set() -> None:
    arm = Arm(Pose((0.55, 0.15, 0.1), DOWN))
    arm.fails = True
    reset = arm_reset(arm)
    reset.begin()
    with pytest.raises(Silent, match="gains: the controller refuses"):
        reset.prepare()


def test_reset_reports_what_differs_from_start() -> None:
    arm = Arm(Pose((0.45, 0.0, 0.15), DOWN))
    reset = arm_reset(arm, range_m=0.0, yaw_rad=0.0)
    reset.begin()
    reset(arm.observe())
    assert reset.missing == "the tool is 50.0 mm from its start"
    arm = Arm(Pose(HOME.position, multiply(from_rotation_vector((0.2, 0.0, 0.0)), DOWN)))
    reset(arm.observe())
    assert reset.missing == "the tool is turned by 0.20 rad from its start"
    arm = Arm(part=0.3)
    reset(arm.observe())
    assert reset.missing == "the gripper does not open"


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"kind": "path"}, "path: expected the poses"),
        ({"check": "pose", "body": "cube"}, "check pose: expected body, body_low_m"),
        ({"check": "classifier"}, "model: the check needs the file"),
    ],
)
def test_invalid_reset_settings_are_refused(settings: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValidationError, match=complaint):
        ResetConfig.model_validate(settings)
