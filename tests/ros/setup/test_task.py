"""`teach_task`: goal, start, box and views of a task taught by guiding, and its file."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from serl import plugins
from serl.arm_profile import ArmProfile, load_robot, write_robot
from serl.cli import main as cli
from serl.errors import BadInput
from serl.geometry import from_rotation_vector, multiply
from serl.motion import Box, Pose
from serl.real_task import read_task, write_task
from serl.ros.setup.checks import StepFailed
from serl.ros.setup.task import TaughtTask, teach_task
from serl.runs.settings import run_settings
from serl.workspace import CellCamera, Workspace

pytestmark = pytest.mark.ros

DOWN = (1.0, 0.0, 0.0, 0.0)
TURNED = (0.98877, 0.14944, 0.0, 0.0)
PLACE = Workspace(
    low_m=(0.3, -0.25, 0.015), high_m=(0.65, 0.25, 0.35), home_m=(0.45, 0.0, 0.2), reference=DOWN
)
GOAL, START = (0.5, 0.1, 0.03), (0.48, 0.1, 0.12)
PROFILE = load_robot("sim").model_copy(
    update={"workspace": PLACE, "cameras": {"wrist": CellCamera(topic="/w", rate_hz=30.0)}}
)


class Session:
    """A setup session whose operator guides the tool and answers by question key.

    Attributes:
        moves: number of answers that are given while the arm still moves.
    """

    def __init__(self, *places: Any, profile: ArmProfile = PROFILE, **answers: Any) -> None:
        self.profile, self._answers, self._places = profile, answers, list(places)
        self.said, self.asked, self.moves = list[str](), list[str](), 0
        self.arm: Any = SimpleNamespace(
            end_guard=lambda: self.said.append("no guard"),
            is_still=self._is_still,
            measured=lambda: self._pose(self._places.pop(0)),
        )
        self.asker: Any = SimpleNamespace(show=self.said.append, ask=self._answer)

    def _pose(self, place: Any) -> Pose:
        return place if isinstance(place, Pose) else Pose(place, DOWN)

    def _answer(self, key: str, question: str) -> str:
        self.asked.append(question)
        answer = self._answers.get(key.removeprefix("task.").replace(".", "_"), "")
        return str(answer.pop(0) if isinstance(answer, list) else answer)

    def _is_still(self) -> bool:
        self.moves -= 1
        return self.moves < 0


def teach(session: Session) -> TaughtTask:
    given: Any = session
    return teach_task(given)


def test_taught_task_is_written_and_configures_training_on_its_arm(tmp_path: Path) -> None:
    session = Session(GOAL, START, keep="y", views_wrist=["0.5,0,0.2,1", "0.2,0,0.8,1"])
    session.moves = 1
    taught = teach(session)
    assert session.said[0] == "no guard", "the guard must end before the arm is guided"
    assert "restart the arm's controller" in session.said[1], "it would move the arm back"
    assert any("it moves" in each for each in session.said)
    assert any("crop" in each for each in session.said), "a wrong crop must be asked for again"
    write_task(tmp_path / "ram.yaml", "ram", "push it in", taught.config, taught.training)
    assert len((tmp_path / "ram.yaml").read_text().splitlines()) <= 16
    task = read_task(tmp_path / "ram.yaml")()
    assert task.config.motion.axes == ("x", "y", "z")
    assert task.config.motion.box_low_m == (0.43, 0.05, 0.015), (
        "the box must not extend below the workspace"
    )
    assert task.config.motion.box_high_m == (0.55, 0.15, 0.18)
    cut = "  the box is cut by the arm's workspace: 0.430,0.050,0.015 m to 0.550,0.150,0.180 m"
    assert cut in session.said
    assert task.config.views["wrist"].crop == (0.2, 0.0, 0.8, 1.0)
    write_robot(tmp_path / "arm.yaml", PROFILE)
    small = {"hidden": [8, 8], "device": "cpu", "threads": 1}
    own = {"robot": str(tmp_path / "arm.yaml"), "agent": small}
    config = run_settings(str(tmp_path / "ram.yaml"), {}, own)
    assert (config.reward.kind, config.reset.gripper) == ("pose", "keep")
    assert config.reward.pose == (*GOAL, *DOWN)
    assert config.reset.home_m == START
    assert config.reset.orientation is None


def test_taught_task_without_cameras_observes_positions_relative_to_goal() -> None:
    poses = Pose(GOAL, TURNED), Pose(START, TURNED)
    taught = teach(Session(*poses, keep="n", views_wrist="-", reward="human", axes="z yaw"))
    assert (taught.config.observe, taught.config.origin_m) == ("state", GOAL)
    assert taught.config.motion.gripper
    assert taught.config.motion.axes == ("z", "yaw")
    assert taught.training["reward"] == {"kind": "human"}
    assert taught.training["reset"]["orientation"] == pytest.approx(TURNED, abs=1e-4)


def test_taught_box_has_guided_corners_and_must_contain_goal() -> None:
    corners = (0.55, 0.05, 0.2), (0.4, 0.15, 0.02)
    taught = teach(Session(GOAL, START, *corners, box="t", keep="n"))
    assert taught.config.motion.box_low_m == (0.4, 0.05, 0.02)
    assert taught.config.motion.box_high_m == (0.55, 0.15, 0.2)
    with pytest.raises(StepFailed, match=r"goal: at 0.500,0.100,0.030 m it is outside"):
        teach(Session(GOAL, START, (0.4, 0.0, 0.1), (0.6, 0.2, 0.3), box="t", keep="n"))
    with pytest.raises(StepFailed, match="no workspace was taught"):
        teach(Session(profile=load_robot("sim")))


def turned(yaw_rad: float, roll_rad: float = 0.0) -> Any:
    """Return the orientation of a tool that points down, turned about z, then about x."""
    roll = from_rotation_vector((roll_rad, 0.0, 0.0))
    return multiply(roll, multiply(from_rotation_vector((0.0, 0.0, yaw_rad)), DOWN))


def test_taught_goal_has_no_turn_that_the_policy_cannot_make() -> None:
    """A hand that guides the tool turns it; without this its success was out of reach."""
    session = Session(Pose(GOAL, turned(0.0, 0.15)), START, keep="n")
    assert teach(session).training["reward"]["pose"] == pytest.approx([*GOAL, *DOWN])
    assert any("the goal was turned by 0.15 rad about axes" in each for each in session.said)
    goal, start = Pose(GOAL, turned(0.3, 0.02)), Pose(START, turned(0.1))
    taught = teach(Session(goal, start, keep="n", axes="x y z yaw"))
    assert taught.training["reward"]["pose"][3:] == pytest.approx(turned(0.3), abs=5e-3)


@pytest.mark.parametrize(
    ("poses", "axes", "complaint"),
    [
        ((GOAL, Pose(START, turned(0.7))), "", "start: it is turned by 0.70 rad from"),
        ((Pose(GOAL, turned(0.7)), START), "x y z yaw", "goal: it is turned by 0.70 rad from"),
        (((0.6, 0.2, 0.1), START), "", "goal: at 0.600,0.200,0.100 m it is outside"),
    ],
)
def test_taught_pose_that_the_guard_forbids_is_refused(
    poses: tuple[Any, ...], axes: str, complaint: str
) -> None:
    post = Box(low_m=(0.58, 0.15, 0.0), high_m=(0.62, 0.25, 0.3))
    place = PLACE.model_copy(update={"keep_out": (post,)})
    profile = PROFILE.model_copy(update={"workspace": place})
    with pytest.raises(StepFailed, match=complaint):
        teach(Session(*poses, profile=profile, keep="n", axes=axes))


def test_taught_box_that_no_training_accepts_is_refused() -> None:
    corners = (0.4, 0.05, 0.12), (0.55, 0.15, 0.13)
    with pytest.raises(BadInput, match=r"along z .* shares under 0.02 m"):
        teach(Session((0.5, 0.1, 0.12), START, *corners, box="t", keep="n"))


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["Ram", "--robot", "arm.yaml"], "'Ram': expected a name of lower-case letters"),
        (["ram", "--robot", "arm.yaml", "--out", "x.txt"], "--out x.txt: expected a .yaml file"),
        (["ram", "--robot", "sim"], "--robot sim: expected a real arm's profile"),
        (["ram", "--robot", "franka"], "arm franka: it has no workspace yet: serl setup franka"),
        (["arm", "--robot", "arm.yaml"], "arm.yaml: exists already; give another --out"),
    ],
)
def test_task_new_rejects_bad_arguments_at_once(
    words: list[str],
    complaint: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    write_robot(tmp_path / "arm.yaml", PROFILE)
    assert cli.main(["task", "new", *words]) == cli.BAD_INPUT
    assert capsys.readouterr().err.startswith(f"serl: {complaint}")
    assert not (tmp_path / "ram.yaml").exists()


def test_taught_task_file_loads_as_plugin(tmp_path: Path) -> None:
    taught = teach(Session(GOAL, START, keep="n"))
    write_task(tmp_path / "ram.yaml", "ram", "push it in", taught.config, taught.training)
    kind = plugins.load("task", str(tmp_path / "ram.yaml"))
    assert (kind.name, kind.__doc__) == ("ram", "push it in")
