"""Leader arm read by joints: kinematics compared with MuJoCo, and takeover near the robot."""

from __future__ import annotations

import logging
import math
from pathlib import Path

import mujoco
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from serl.errors import BadInput
from serl.geometry import rotate
from serl.teleop.leader_arm import MAPPING, LeaderArm, Pose
from serl.teleop.leader_joints import LeaderJoints, LeaderJointsConfig, read_chain
from serl.teleop.mapping import Wish, read_wish

from .bench import Clock

URDF = """<robot name="leader">
  <link name="base"/>{links}
  <joint name="pan" type="revolute"><parent link="base"/><child link="l1"/>
    <origin xyz="0.1 0 0.3" rpy="0.2 -0.4 0.7"/><axis xyz="0 0 2"/>
    <limit lower="-3" upper="3"/></joint>
  <joint name="mount" type="fixed"><parent link="l1"/><child link="l2"/>
    <origin xyz="0 0.2 0" rpy="1.1 0 0"/></joint>
  <joint name="slide" type="prismatic"><parent link="l2"/><child link="l3"/>
    <axis xyz="0.6 0 0.8"/><limit lower="-3" upper="3"/></joint>
  <joint name="wrist" type="continuous"><parent link="l3"/><child link="tool"/>
    <origin xyz="0 0 0.1" rpy="0 0 -1.3"/></joint>
  <joint name="grip" type="revolute"><parent link="tool"/><child link="finger"/>
    <limit lower="-3" upper="3"/></joint>
</robot>"""
_LINK = (
    '<link name="{}"><inertial><mass value="1"/>'
    '<inertia ixx="1" ixy="0" ixz="0" iyy="1" iyz="0" izz="1"/></inertial></link>'
)
LINKS = "".join(map(_LINK.format, ("l1", "l2", "l3", "tool", "finger")))
POSITIONS = {"pan": 0.5, "slide": -0.2, "wrist": 2.0}
HOME = {"pan": 0.0, "slide": 0.0, "wrist": 0.0}


@pytest.fixture
def urdf(tmp_path: Path) -> Path:
    path = tmp_path / "leader.urdf"
    path.write_text(URDF.format(links=LINKS))
    return path


def test_tip_pose_equals_that_of_mujoco(urdf: Path) -> None:
    compiler = '<mujoco><compiler fusestatic="false"/></mujoco>'
    text = urdf.read_text().replace('name="leader">', f'name="leader">{compiler}', 1)
    model = mujoco.MjModel.from_xml_string(text)
    data = mujoco.MjData(model)
    for name, value in POSITIONS.items():
        data.joint(name).qpos[0] = value
    mujoco.mj_kinematics(model, data)
    found = read_chain(urdf, "base", "tool").tip_pose(POSITIONS)
    assert found is not None
    np.testing.assert_allclose(found[0], data.body("tool").xpos, atol=1e-9)
    turned = [rotate(found[1], axis) for axis in ((1.0, 0, 0), (0, 1.0, 0), (0, 0, 1.0))]
    np.testing.assert_allclose(np.transpose(turned).ravel(), data.body("tool").xmat, atol=1e-9)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (("continuous", "floating"), "'wrist': expected a fixed, turning or sliding joint"),
        (('xyz="0 0 0.1"', 'xyz="0 0 nan"'), "'wrist': expected finite numbers"),
        (('xyz="0 0 0.1"', 'xyz="0 0"'), "'wrist': expected three numbers"),
        (('<parent link="l3"/>', '<parent link="tool"/>'), "no chain of joints"),
        (('<parent link="l3"/>', ""), "'wrist' names no parent link"),
        (("</robot>", ""), "expected a URDF: "),
        (("<robot", '<!DOCTYPE a [<!ENTITY b "c">]><robot'), "without a document type"),
    ],
)
def test_invalid_urdf_is_refused(urdf: Path, change: tuple[str, str], line: str) -> None:
    urdf.write_text(urdf.read_text().replace(*change))
    with pytest.raises(BadInput, match=line):
        read_chain(urdf, "base", "tool")


def test_missing_urdf_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="No such file"):
        read_chain(tmp_path / "none.urdf", "base", "tool")


class LeaderBench(Clock):
    """Leader arm and robot, both at the tip pose of the joints `HOME`."""

    def __init__(self, urdf: Path, **settings: float | None) -> None:
        super().__init__()
        config = LeaderJointsConfig(
            urdf=urdf, base="base", tip="tool", gripper="grip", gripper_open=0.8, **settings
        )
        self.arm = LeaderArm(
            0.015, 0.1, now_s=self.now_s, limits=config.limits, follows=config.follow
        )
        self.joints = LeaderJoints(config, self.arm)
        self.home = self.pose(HOME)
        self.arm.robot_pose = self.home

    def pose(self, positions: dict[str, float]) -> Pose:
        pose = self.joints.chain.tip_pose(positions)
        assert pose is not None
        return pose

    def send(self, grip: float = 0.0, **positions: float) -> None:
        positions_by_joint = HOME | positions | {"grip": grip}
        self.joints.receive([*positions_by_joint], [*positions_by_joint.values()])

    def wish(self) -> Wish:
        self.wait(0.05)
        report = self.arm.read()
        assert report is not None
        wish = read_wish(report, MAPPING)
        assert wish is not None
        return wish


def test_leader_near_robot_takes_over_and_closes_distance(urdf: Path) -> None:
    leader = LeaderBench(urdf)
    leader.send(slide=0.02)
    assert not leader.wish().hands
    leader.send(slide=0.04)
    driven = np.zeros(3)
    for _ in range(20):
        leader.send(slide=0.04)
        driven += np.array(leader.wish().motion[:3]) * 0.015
    np.testing.assert_allclose(
        driven, np.subtract(leader.pose(HOME | {"slide": 0.04})[0], leader.home[0]), atol=1e-9
    )


@pytest.mark.parametrize("positions", [{"slide": 0.2}, {"wrist": 0.6}])
def test_leader_far_from_robot_cannot_take_over_and_warns_once(
    urdf: Path, positions: dict[str, float], caplog: pytest.LogCaptureFixture
) -> None:
    leader = LeaderBench(urdf)
    leader.send(**positions)
    leader.wish()
    with caplog.at_level(logging.WARNING):
        for step in range(5):
            leader.send(**{name: value + 0.02 * step for name, value in positions.items()})
            assert not leader.wish().hands
    assert sum("cannot take over" in line for line in caplog.messages) == 1


def test_leader_cannot_take_over_while_robot_pose_is_unknown(urdf: Path) -> None:
    leader = LeaderBench(urdf)
    leader.arm.robot_pose = None
    for step in range(3):
        leader.send(slide=0.01 * step)
        assert not leader.wish().hands


def test_leader_without_distance_limit_takes_over_from_anywhere(urdf: Path) -> None:
    leader = LeaderBench(urdf, limit_m=None)
    leader.send(slide=0.5)
    assert not leader.wish().hands
    leader.send(slide=0.505)
    assert leader.wish().hands


def test_leader_motion_is_converted_to_tool_frame_of_robot() -> None:
    arm = LeaderArm(0.015, 0.1, in_tool_frame=True)
    for x_m in (0.0, 0.01, 0.02):
        arm.receive((x_m, 0.0, 0.0), (0.0, 0.0, 0.0, 1.0))
        report = arm.read()
        assert report is not None
        assert report.axes["x"] == 0.0, "motion without a known pose of the robot"
    half = math.sqrt(0.5)
    arm.robot_pose = (0.0, 0.0, 0.0), (0.0, 0.0, half, half)  # a quarter turn to the left
    arm.receive((0.03, 0.0, 0.0), (0.0, 0.0, 0.0, 1.0))
    report = arm.read()
    assert report is not None
    assert report.axes["y"] == pytest.approx(-2 / 3)
    assert report.axes["x"] == pytest.approx(0.0)


def test_leader_gripper_takes_over_only_when_it_moves(urdf: Path) -> None:
    leader = LeaderBench(urdf)
    leader.send(grip=0.8)
    assert not leader.wish().hands, "the first gripper position took over"
    leader.send(grip=0.0)
    assert leader.wish().motion[-1] == -1.0
    leader.wait(1.0)
    leader.send(grip=0.1)
    assert not leader.wish().hands


def test_motorized_leader_follows_robot_until_it_takes_over(urdf: Path) -> None:
    leader = LeaderBench(urdf)
    leader.send()
    leader.wish()
    assert leader.joints.command([0.1, 0.2, 0.3]) == {"pan": 0.1, "slide": 0.2, "wrist": 0.3}
    assert leader.joints.command([0.1]) is None
    leader.send(slide=0.01)
    assert leader.wish().hands
    assert leader.joints.command([0.1, 0.2, 0.3]) is None
    leader.wait(1.0)
    assert leader.joints.command([0.1, 0.2, 0.3]) is not None


def test_motors_that_follow_the_robot_do_not_take_over(urdf: Path) -> None:
    leader = LeaderBench(urdf, follow=True)
    places_m = [0.012 * step for step in range(20)]
    for step, place_m in enumerate(places_m):
        leader.arm.robot_pose = leader.pose(HOME | {"slide": place_m})
        leader.send(slide=places_m[max(0, step - 3)])
        assert not leader.wish().hands
    leader.send(slide=places_m[-1] + 0.03)
    assert leader.wish().hands, "a person moved it off the robot's path"


def test_takeover_by_gripper_closes_distance_as_well(urdf: Path) -> None:
    leader = LeaderBench(urdf)
    leader.send(grip=0.8, slide=0.03)
    leader.wish()
    driven = np.zeros(3)
    for _ in range(20):
        leader.send(grip=0.0, slide=0.03)
        driven += np.array(leader.wish().motion[:3]) * 0.015
    np.testing.assert_allclose(
        driven, np.subtract(leader.pose(HOME | {"slide": 0.03})[0], leader.home[0]), atol=1e-9
    )


def test_gripper_moved_in_a_silence_does_not_take_over(urdf: Path) -> None:
    leader = LeaderBench(urdf)
    leader.send(grip=0.8)
    leader.wish()
    leader.wait(2.0)
    leader.send(grip=0.0)
    assert not leader.wish().hands
    leader.send(grip=0.8)
    assert leader.wish().motion[-1] == 1.0


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.sampled_from(["pan", "slide", "wrist", "grip", "x"]), max_size=6),
    st.lists(st.floats(), max_size=6),
)
def test_any_joint_states_give_finite_motion(
    urdf: Path, names: list[str], positions: list[float]
) -> None:
    leader = LeaderBench(urdf)
    leader.send()
    leader.joints.receive(names, positions)
    assert all(math.isfinite(value) for value in leader.wish().motion)
