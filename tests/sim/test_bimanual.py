"""Two arms in one model: each moves like a single arm, and they collide in a shared world."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from serl.bimanual import LEFT, RIGHT, PairConfig
from serl.errors import BadInput
from serl.motion import Limits, Motion
from serl.policy import RandomPolicy
from serl.sim.arm import SimArm
from serl.sim.bimanual import SimPair
from serl.specs import Spec
from serl.task import Placement, Scene, TaskConfig
from serl.testing import SimulatedRobotSuite
from serl.types import Action

APART_M = 1.1
DOWN, TOWARDS_LEFT = (1.0, 0.0, 0.0, 0.0), (0.0, 1.0, 0.0, 0.0)
BASES = {LEFT: (0.0, 0.0, 0.0, 0.0), RIGHT: (APART_M, 0.0, 0.0, math.pi)}
BOX = """
<body name="box">
  <freejoint/>
  <geom type="box" size="0.02 0.02 0.02" mass="0.1"/>
</body>
"""
TOOL = np.array((0.45, 0.05, 0.20))


def place(rng: np.random.Generator) -> Placement:
    """Place the right arm like the left one, relative to its own base."""
    tool = np.add(TOOL, (*rng.uniform(-0.02, 0.02, 2), 0.0))
    other = (APART_M - tool[0], -tool[1], tool[2])
    return Placement(
        tcp=np.array((*tool, *DOWN)),
        bodies={"box": np.array((0.55, 0.25, 0.02, 0.0, 0.0, 0.0, 1.0))},
        right_tcp=np.array((*other, *TOWARDS_LEFT)),
    )


def motion(low_x_m: float = 0.3, high_x_m: float = 0.8) -> Motion:
    return Motion(
        axes=("x", "y", "z", "yaw"),
        translation_m=0.015,
        box_low_m=(low_x_m, -0.3, 0.015),
        box_high_m=(high_x_m, 0.3, 0.4),
        gripper=True,
        limits=Limits(lead_m=0.02),
    )


def make(
    where: Callable[[np.random.Generator], Placement] = place,
    bases: Any = BASES,
    right: Motion | None = None,
    **settings: Any,
) -> SimPair:
    config = PairConfig(motion=motion(), right_motion=right or motion(), **settings)
    scene = Scene(bodies=BOX, place=where, tracked=("box",), robot="bimanual", bases=bases)
    return SimPair(scene, config)


def act(left: tuple[float, ...], right: tuple[float, ...]) -> Action:
    return np.array((*left, *right), np.float32)


def drive(pair: SimPair, action: Action, steps: int) -> None:
    for _ in range(steps):
        pair.act(action)
        pair.advance(0.1)


class TestSimPair(SimulatedRobotSuite):
    def make(self) -> SimPair:
        return make()


class TestSimPairInRandomWorlds(SimulatedRobotSuite):
    def make(self) -> SimPair:
        return make(randomize="full")


def test_arm_entries_have_prefixes_and_body_entries_have_none() -> None:
    pair = make()
    names = list(pair.observation_spec.state)
    arm = list(SimArm(Scene(bodies=BOX, place=place), TaskConfig(motion=motion())).observe().state)
    assert names == [f"{side}{name}" for side in (LEFT, RIGHT) for name in arm] + ["box_pose"]
    assert pair.action_spec.unit.split()[4:6] == ["left_gripper", "right_x"]
    assert pair.action_spec.shape == (10,)
    spec = Spec(task="t", observation=pair.observation_spec, action=pair.action_spec, rate_hz=10)
    assert spec.action_names[-1] == "right_gripper"


def test_each_arm_of_a_pair_moves_like_a_single_arm() -> None:
    """Compare with a single arm; the right arm mirrors the left one from its own base."""
    pair = make()
    alone = SimArm(Scene(bodies=BOX, place=place, tracked=("box",)), TaskConfig(motion=motion()))
    choose = RandomPolicy(alone.action_spec, 0)
    alone.reset(1)
    pair.reset(1)
    for _ in range(40):
        action = choose(alone.observe())
        turned = action * np.array((-1, -1, 1, 1, 1), np.float32)
        alone.act(action)
        pair.act(np.concatenate([action, turned]))
        alone.advance(0.1)
        pair.advance(0.1)
    one, both = alone.observe().state, pair.observe().state
    for name in ("tcp_pose", "q", "dq", "target_pose", "gripper", "wrench"):
        tolerance = 1e-3 if name in ("wrench", "dq") else 1e-5
        assert both[f"left_{name}"] == pytest.approx(one[name], abs=tolerance), name
    assert both["right_q"] == pytest.approx(one["q"], abs=1e-4)
    x, y, z = both["right_tcp_pose"][:3]
    assert (APART_M - x, -y, z) == pytest.approx(one["tcp_pose"][:3], abs=1e-4)
    assert one["tcp_pose"][:3] != pytest.approx(TOOL, abs=0.03), "the arm moved"


def test_driving_one_arm_leaves_the_other_in_place() -> None:
    pair = make()
    before = pair.reset(0).state
    drive(pair, act((0,) * 5, (0.3, 0.5, -0.5, 0.5, -1)), 8)
    after = pair.observe().state
    assert after["left_q"] == pytest.approx(before["left_q"], abs=1e-3)
    assert after["left_gripper"] == pytest.approx(before["left_gripper"], abs=1e-3)
    assert np.abs(after["right_q"] - before["right_q"]).max() > 0.05
    assert after["right_gripper"][0] < 0.1


def test_each_arm_has_its_own_workspace() -> None:
    pair = make(right=motion(low_x_m=0.6))
    pair.reset(0)
    drive(pair, act((1, 0, 0, 0, 0), (-1, 0, 0, 0, 0)), 40)
    state = pair.observe().state
    assert state["right_target_pose"][0] == pytest.approx(0.6, abs=1e-6)


def test_grippers_collide_and_both_wrenches_show_contact() -> None:
    pair = make()
    pair.reset(0)
    hands = [arm.hand for arm in pair.arms]
    touched = False
    for _ in range(40):
        drive(pair, act((1, -0.3, 0, 0, 0), (-1, 0.3, 0, 0, 0)), 1)
        owners = pair.model.geom_bodyid[pair.data.contact.geom]
        touched |= any({int(a), int(b)} == set(hands) for a, b in owners)
    assert touched
    state = pair.observe().state
    apart_m = state["right_tcp_pose"][0] - state["left_tcp_pose"][0]
    assert apart_m > 0.05, "two grippers are 5.6 cm thick"
    pushed = state["left_wrench"][0], state["right_wrench"][0]
    assert pushed[0] < -5.0 < 5.0 < pushed[1], "both wrenches show the contact"


def test_stop_of_pair_stops_both_arms_and_stop_of_either_is_reported() -> None:
    pair = make()
    pair.stop("trouble on the right")
    assert [arm.stop_reason for arm in pair.arms] == ["trouble on the right"] * 2
    pair.reset(0)
    assert pair.act(np.ones(10, np.float32)).any(), "a reset clears the stop"
    for arm in pair.arms:
        arm.stop("its joints run")
        assert pair.stop_reason == "its joints run"
        pair.recover()
        assert pair.stop_reason is None


def test_randomization_differs_between_the_two_arms() -> None:
    """Check that noise, start offsets and gains of the two arms are drawn separately."""
    pair = make(randomize="full")
    drawn = place(np.random.default_rng(3))
    state = pair.reset(3).state
    assert drawn.right_tcp is not None
    left = state["left_tcp_pose"][:3] - drawn.tcp[:3]
    right = state["right_tcp_pose"][:3] - drawn.right_tcp[:3]
    for aside in (left, right):
        assert 1e-3 < np.abs(aside).max() < 0.03
    assert np.abs(left - right).max() > 1e-3
    assert np.abs(state["left_wrench"] - state["right_wrench"]).max() > 0.01
    gains = [arm.impedance for arm in pair.arms]
    first = [int(pair.model.actuator(f"{side}spring0").id) for side in (LEFT, RIGHT)]
    stiffness = [-pair.model.actuator_biasprm[spring, 1] for spring in first]
    assert stiffness[0] != stiffness[1]
    assert gains[0].parameters() == gains[1].parameters(), (
        "neither controller reports the drawn gains"
    )


def test_another_simulated_pair_can_show_placement() -> None:
    pair, other = make(), make()
    pair.reset(4)
    drive(pair, act((0.5, 0, -1, 0, -1), (0, 1, 0, 0.5, 0)), 5)
    other.show(pair.placement())
    assert other.data.xpos == pytest.approx(pair.data.xpos, abs=2e-3)


def test_single_arm_scene_is_refused() -> None:
    with pytest.raises(BadInput, match="bases of left_ and right_"):
        make(bases={"": (0.0, 0.0, 0.0, 0.0)})


def test_start_without_right_tool_pose_is_refused() -> None:
    def half(rng: np.random.Generator) -> Placement:
        drawn = place(rng)
        return Placement(tcp=drawn.tcp, bodies=drawn.bodies)

    with pytest.raises(BadInput, match="right_tcp"):
        make(half)
