"""The reset step of `serl setup`, with an arm guided to listed positions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from serl.arm_profile import load_robot, write_robot
from serl.errors import BadInput
from serl.motion import Box, Pose
from serl.reset import ResetConfig
from serl.ros.setup.checks import StepFailed
from serl.ros.setup.steps import reset
from serl.runs.config import stage_configs
from serl.runs.scene_reset import reset_kind
from serl.runs.settings import run_settings
from serl.workspace import Workspace

from .test_task import Session

pytestmark = pytest.mark.ros

DOWN = (1.0, 0.0, 0.0, 0.0)
TIPPED = (0.92106, 0.0, 0.0, 0.38942)
PLACE = Workspace(
    low_m=(0.3, -0.25, 0.015),
    high_m=(0.65, 0.25, 0.35),
    home_m=(0.45, 0.0, 0.2),
    reference=DOWN,
    keep_out=(Box(low_m=(0.6, 0.2, 0.0), high_m=(0.7, 0.3, 0.4)),),
)
HIGH, LOW = (0.5, -0.1, 0.2), (0.5, -0.1, 0.05)
PROFILE = load_robot("sim").model_copy(update={"workspace": PLACE})


def guided(answers: list[str], *places: Any) -> Session:
    """Return a session whose operator guides the tool through listed positions."""
    return Session(*places, profile=PROFILE, reset_pose=answers)


def run(session: Session) -> str:
    given: Any = session
    return reset(given)


def test_reset_step_records_path_and_keeps_gripper_open_once_opened() -> None:
    session = guided(["", "", "what", "o", "", "e"], HIGH, LOW, HIGH)
    session.moves = 1  # the first answer is given during motion
    assert run(session) == "a path of 3 poses, then home"
    taught = session.profile.reset
    assert taught is not None
    assert taught.kind == "path"
    assert [(each.position_m, each.closed) for each in taught.path] == [
        (HIGH, True),
        (LOW, False),
        (HIGH, False),
    ]
    assert session.said[0] == "no guard", "the guard must end before the arm is guided"
    assert "restart the arm's controller" in session.asked[-1], "it would move the arm back"
    assert "'what': expected Enter, o or e" in session.said
    assert any("it moves" in each for each in session.said)


def test_reset_step_without_path_leaves_kind_to_task_and_keeps_other_settings(
    tmp_path: Path,
) -> None:
    """Let stages reset each other, which a kind in the arm's file would override."""
    session = guided(["e"])
    before = ResetConfig(
        range_m=0.05, kind="path", path=({"position_m": LOW, "orientation": DOWN},)
    )
    session.profile = session.profile.model_copy(update={"reset": before})
    assert run(session) == "home"
    assert session.profile.reset == ResetConfig(range_m=0.05)
    write_robot(tmp_path / "arm.yaml", session.profile)
    own = {"robot": str(tmp_path / "arm.yaml"), "demos": 0}
    stages = run_settings("bin_relocation", {}, own)
    assert {reset_kind(each) for each in stage_configs(stages).values()} == {"task"}
    assert reset_kind(run_settings("reach", {}, own)) == "home"


@pytest.mark.parametrize(
    ("answers", "places", "complaint"),
    [
        (["", "e"], [HIGH], "the hand opens at no pose"),
        (["o", "e"], [(0.5, -0.1, 0.4)], "pose 1 is outside the workspace, at 0.500,-0.100,0.400"),
        (["", "o", "e"], [HIGH, (0.62, 0.22, 0.1)], "pose 2 is outside the workspace"),
        (["", "o", "e"], [HIGH, Pose(LOW, TIPPED)], "pose 2: it is turned by 0.80 rad from"),
    ],
)
def test_reset_step_refuses_path_that_cannot_be_followed(
    answers: list[str], places: list[Any], complaint: str
) -> None:
    session = guided(answers, *places)
    with pytest.raises(StepFailed, match=complaint):
        run(session)
    assert session.profile.reset is None


def test_reset_step_refuses_path_that_no_command_could_read() -> None:
    session = guided([*["o"] * 65, "e"], *[HIGH] * 65)
    with pytest.raises(BadInput, match=r"reset.path: .* at most 64"):
        run(session)
    assert session.profile.reset is None


def test_reset_step_refuses_arm_without_workspace() -> None:
    with pytest.raises(StepFailed, match="no workspace was taught"):
        run(Session(profile=load_robot("sim")))
