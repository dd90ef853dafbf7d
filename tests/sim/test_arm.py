import math
from typing import Any

import numpy as np
import pytest

from serl.errors import BadInput, SerlError
from serl.motion import Limits, Motion
from serl.policy import RandomPolicy
from serl.sim.arm import SimArm
from serl.task import Placement, Scene, TaskConfig
from serl.testing import SimulatedRobotSuite
from serl.types import Action

DOWN = (1.0, 0.0, 0.0, 0.0)
BOX = """
<body name="box">
  <freejoint/>
  <geom type="box" size="0.02 0.02 0.02" mass="0.1"/>
</body>
"""


def place(rng: np.random.Generator) -> Placement:
    start = (*rng.uniform((0.4, -0.1, 0.2), (0.5, 0.1, 0.3)), *DOWN)
    box = np.array((0.5, *rng.uniform((0.1,), (0.2,)), 0.02, 0.0, 0.0, 0.0, 1.0))
    return Placement(tcp=np.array(start), bodies={"box": box})


def make_arm(**changes: Any) -> SimArm:
    values: dict[str, Any] = {
        "axes": ("x", "y", "z", "yaw"),
        "translation_m": 0.02,
        "box_low_m": (0.3, -0.25, 0.015),
        "box_high_m": (0.65, 0.25, 0.4),
        "gripper": True,
        "limits": Limits(speed_m_s=0.25, lead_m=0.02),
    }
    config = TaskConfig(motion=Motion(**(values | changes)))
    return SimArm(Scene(bodies=BOX, place=place, tracked=("box",)), config)


def act(*values: float) -> Action:
    return np.array(values, np.float32)


def drive(arm: SimArm, action: Action, steps: int) -> None:
    for _ in range(steps):
        arm.act(action)
        arm.advance(0.1)


class TestSimArm(SimulatedRobotSuite):
    def make(self) -> SimArm:
        return make_arm()


def test_reset_places_arm_and_bodies_at_scene_placement() -> None:
    arm = make_arm()
    for seed in range(10):
        placement = place(np.random.default_rng(seed))
        state = arm.reset(seed).state
        # The posture's torque shifts the tool by some micrometres.
        assert state["tcp_pose"] == pytest.approx(placement.tcp, abs=1e-4)
        assert state["box_pose"] == pytest.approx(placement.bodies["box"], abs=1e-4)
        assert np.abs(state["dq"]).max() < 0.01
        assert state["gripper"][0] == pytest.approx(1.0, abs=0.01)
        assert not state["wrench"].any()


def test_tool_reaches_its_target_pose() -> None:
    arm = make_arm()
    arm.reset(0)
    drive(arm, act(0.5, 0.5, -0.5, 0.3, 0.0), 4)
    drive(arm, act(0.0, 0.0, 0.0, 0.0, 0.0), 10)
    state = arm.observe().state
    assert state["tcp_pose"] == pytest.approx(state["target_pose"], abs=1e-3)


def test_executed_action_equals_target_displacement() -> None:
    arm = make_arm()
    before = arm.reset(0).state["target_pose"]
    executed = arm.act(act(0.4, -0.4, 0.2, 0.0, 0.7))
    moved = arm.observe().state["target_pose"] - before
    assert executed == pytest.approx([0.4, -0.4, 0.2, 0.0, 0.7], abs=1e-6)
    assert moved[:3] == pytest.approx([0.008, -0.008, 0.004], abs=1e-6)
    # The target is ahead by at most the lead and one action: this one is cut short.
    arm.act(act(1.0, 0.0, 0.0, 0.0, 0.0))
    executed = arm.act(act(1.0, 0.0, 0.0, 0.0, 0.0))
    assert 0.3 < executed[0] < 0.8


def test_random_actions_respect_speed_limit_and_workspace() -> None:
    arm = make_arm()
    choose = RandomPolicy(arm.action_spec, seed=0)
    low, high = np.array([0.3, -0.25, 0.015]), np.array([0.65, 0.25, 0.4])
    for seed in range(3):
        reading = arm.reset(seed)
        for _ in range(60):
            arm.act(choose(reading))
            measured = reading.state["tcp_pose"][:3]
            target = arm.observe().state["target_pose"][:3]
            assert (target >= low - 1e-6).all()
            assert (target <= high + 1e-6).all()
            assert np.linalg.norm(target - measured) <= 0.04 + 1e-6
            arm.advance(0.1)
            reading = arm.observe()
            assert np.linalg.norm(reading.state["tcp_twist"][:3]) < 0.25 * 1.2


def test_elbow_does_not_drift() -> None:
    arm = make_arm(axes=("x", "y", "z"), gripper=False)
    choose = RandomPolicy(arm.action_spec, seed=0)
    start = reading = arm.reset(0)
    for _ in range(150):
        arm.act(choose(reading))
        arm.advance(0.1)
        reading = arm.observe()
    assert np.linalg.norm((reading.state["tcp_pose"] - start.state["tcp_pose"])[:3]) > 0.05
    for _ in range(60):
        back = (start.state["tcp_pose"] - reading.state["target_pose"])[:3] / 0.02
        arm.act(back.clip(-1.0, 1.0))
        arm.advance(0.1)
        reading = arm.observe()
    # The same tool pose is reached with the same seven joints: without the posture's torque the
    # elbow would be a tenth of a radian off.
    assert reading.state["q"] == pytest.approx(start.state["q"], abs=5e-3)


def test_gripper_closes_and_opens_without_blocking() -> None:
    arm = make_arm()
    arm.reset(0)
    assert arm.act(act(0, 0, 0, 0, -1))[4] == -1.0
    arm.advance(0.1)
    assert arm.act(act(0, 0, 0, 0, 1))[4] == 0.5, (
        "a reversal that is too soon is ignored, and the executed action shows it"
    )
    drive(arm, act(0, 0, 0, 0, 0), 6)
    assert arm.observe().state["gripper"][0] < 0.05
    drive(arm, act(0, 0, 0, 0, 1), 6)
    assert arm.observe().state["gripper"][0] > 0.95


def test_pressing_on_table_gives_bounded_contact_force() -> None:
    arm = make_arm(box_low_m=(0.3, -0.25, -0.05))
    arm.reset(0)
    drive(arm, act(0, 0, -1, 0, 0), 40)
    force = arm.observe().state["wrench"][:3]
    assert 10.0 < force[2] < 22.0, "the table's force is bounded by the spring limit"
    assert np.abs(force[:2]).max() < 3.0


def test_wrench_is_the_mean_over_the_last_advance() -> None:
    coarse, fine = make_arm(box_low_m=(0.3, -0.25, -0.05)), make_arm(box_low_m=(0.3, -0.25, -0.05))
    for arm in (coarse, fine):
        arm.reset(0)
    ranges = []
    for _ in range(40):
        down = act(0, 0, -1, 0, 0)
        coarse.act(down)
        fine.act(down)
        coarse.advance(0.1)
        wrenches = []
        for _ in range(10):
            fine.advance(0.01)
            wrenches.append(fine.observe().state["wrench"])
        ranges.append(np.ptp(wrenches, axis=0).max())
        # The posture torque is updated more often in the fine simulation.
        assert coarse.observe().state["wrench"] == pytest.approx(np.mean(wrenches, 0), abs=0.3)
    assert max(ranges) > 5.0, "on touching the table the force must have changed a lot"


def test_recovering_while_braking_keeps_the_limits() -> None:
    arm = make_arm()
    arm.reset(0)
    drive(arm, act(1, 0, 0, 0, 0), 5)
    arm.stop("test")
    arm.advance(0.02)
    arm.recover()
    drive(arm, act(0, 0, 0, 0, 0), 3)
    assert np.linalg.norm(arm.observe().state["tcp_twist"][:3]) < 0.1
    drive(arm, act(0.3, 0, 0, 0, 0), 8)
    assert arm.observe().state["tcp_twist"][0] == pytest.approx(0.06, abs=0.03)


def test_invalid_advance_time_is_refused() -> None:
    arm = make_arm()
    for dt_s in (0.0, -0.1, 0.015, math.nan):
        with pytest.raises(BadInput, match=r"multiple of 0\.01 s"):
            arm.advance(dt_s)


def test_unreachable_start_is_refused() -> None:
    def far(rng: np.random.Generator) -> Placement:
        return Placement(tcp=np.array((2.0, 0.0, 0.2, *DOWN)))

    motion = Motion(axes=("x",), translation_m=0.01, box_low_m=(0, -1, 0), box_high_m=(3, 1, 1))
    with pytest.raises(BadInput, match="cannot reach"):
        SimArm(Scene(bodies="", place=far), TaskConfig(motion=motion))


def test_unstable_simulation_raises_on_observe() -> None:
    arm = make_arm()
    arm.data.qvel[0] = np.nan
    arm.advance(0.1)
    with pytest.raises(SerlError, match="unstable"):
        arm.observe()
    arm.reset(0)
    assert np.isfinite(arm.observe().state["q"]).all()


def test_truth_reports_grasped_bodies() -> None:
    def under(rng: np.random.Generator) -> Placement:
        box = np.array((0.5, 0.0, 0.02, 0.0, 0.0, 0.0, 1.0))
        return Placement(tcp=np.array((0.5, 0.0, 0.02, *DOWN)), bodies={"box": box})

    motion = make_arm().arms[0]._motion
    arm = SimArm(Scene(bodies=BOX, place=under, tracked=("box",)), TaskConfig(motion=motion))
    assert arm.truth()["box_grasped"][0] == 0.0
    drive(arm, act(0, 0, 0, 0, -1), 5)
    assert arm.truth()["box_grasped"][0] == 1.0
    drive(arm, act(0, 0, 1, 0, -1), 12)
    assert arm.truth()["box_pose"][2] > 0.08
    assert arm.truth()["box_grasped"][0] == 1.0


def test_joint_homing_is_smooth_and_ignores_actions() -> None:
    arm = make_arm()
    arm.reset(0)
    for _ in range(10):
        arm.act(np.full(arm.action_spec.shape, 1.0, np.float32))
        arm.advance(0.1)
    assert not arm.is_home
    arm.home()
    speeds = []
    for _ in range(100):
        executed = arm.act(np.full(arm.action_spec.shape, 1.0, np.float32))
        if arm.is_home:
            break
        assert not executed.any()
        arm.advance(0.1)
        speeds.append(float(np.abs(arm.observe().state["dq"]).max()))
    assert arm.is_home
    assert max(speeds) < 0.45
    assert arm.truth()["tcp_pose"][:3] == pytest.approx([0.3069, 0.0, 0.4869], abs=0.01)


def test_stop_ends_joint_homing() -> None:
    arm = make_arm()
    arm.reset(0)
    arm.home()
    arm.advance(0.3)
    arm.stop("enough")
    arm.advance(0.5)
    before = arm.truth()["tcp_pose"]
    arm.advance(0.5)
    assert np.abs(arm.truth()["tcp_pose"] - before).max() < 1e-3
    arm.home()
    arm.advance(0.3)
    assert np.abs(arm.truth()["tcp_pose"] - before).max() < 1e-3, "a stopped arm does not home"
