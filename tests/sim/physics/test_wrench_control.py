from typing import Any, Literal

import numpy as np
import pytest
from pydantic import ValidationError

from serl.errors import BadInput
from serl.geometry import rotation_between
from serl.motion import Motion, WrenchLimits
from serl.sim.arm import SimArm
from serl.task import Placement, Scene, TaskConfig
from serl.testing import SimulatedRobotSuite

DOWN = (1.0, 0.0, 0.0, 0.0)

Level = Literal["none", "full"]
LEVELS: tuple[Level, ...] = ("none", "full")


def place(rng: np.random.Generator) -> Placement:
    start = (*rng.uniform((0.44, -0.05, 0.34), (0.48, 0.05, 0.38)), *DOWN)
    return Placement(tcp=np.array(start))


def motion(**changes: Any) -> Motion:
    values: dict[str, Any] = {
        "action_mode": "wrench",
        "axes": ("x", "z", "pitch"),
        "translation_m": 0.01,
        "box_low_m": (0.3, -0.2, 0.2),
        "box_high_m": (0.6, 0.2, 0.5),
        "max_rotation_rad": 0.8,
    }
    return Motion(**(values | changes))


def make_arm(randomize: Level = "none", **changes: Any) -> SimArm:
    config = TaskConfig(motion=motion(**changes), randomize=randomize)
    return SimArm(Scene(bodies="", place=place), config)


def push(arm: SimArm, action: tuple[float, ...], periods: int) -> list[np.ndarray[Any, Any]]:
    """Repeat an action every 100 ms; return the tool's twists at 10 ms intervals."""
    twists = []
    for _ in range(periods):
        arm.act(np.array(action, np.float32))
        for _ in range(10):
            arm.advance(0.01)
            twists.append(arm.observe().state["tcp_twist"])
    return twists


class TestSimArmByWrench(SimulatedRobotSuite):
    def make(self) -> SimArm:
        return make_arm()


@pytest.mark.parametrize(("axis", "moved"), [(0, 0), (1, 2)])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_force_action_moves_tool_along_its_axis(axis: int, moved: int, sign: float) -> None:
    arm = make_arm()
    before = arm.reset(0).state["tcp_pose"]
    action = [0.0, 0.0, 0.0]
    action[axis] = sign
    push(arm, tuple(action), 2)
    shift = arm.observe().state["tcp_pose"] - before
    assert sign * shift[moved] > 0.015
    assert abs(shift[1]) < 1e-3, "y is held"


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_torque_action_turns_tool_about_base_y_axis(sign: float) -> None:
    arm = make_arm()
    before = tuple(arm.reset(0).state["tcp_pose"][3:].tolist())
    push(arm, (0.0, 0.0, sign), 2)
    roll, pitch, yaw = rotation_between(before, tuple(arm.observe().state["tcp_pose"][3:].tolist()))
    assert sign * pitch > 0.1
    assert abs(roll) < 0.01
    assert abs(yaw) < 0.01


def test_watchdog_brakes_and_holds_after_100_ms() -> None:
    arm = make_arm()
    arm.reset(0)
    arm.act(np.array((1.0, 0.0, 0.0), np.float32))
    speeds = []
    for _ in range(60):
        arm.advance(0.01)
        speeds.append(float(arm.observe().state["tcp_twist"][0]))
    assert np.argmax(speeds) in (9, 10), "the last command counts for 100 ms, no longer"
    assert abs(speeds[-1]) < 0.02
    held = arm.observe().state["tcp_pose"]
    arm.advance(1.0)
    assert arm.observe().state["tcp_pose"] == pytest.approx(held, abs=0.01)


def test_force_stops_at_workspace_and_torque_at_maximum_rotation() -> None:
    arm = make_arm()
    arm.reset(0)
    for action, index, high in (((1.0, 0.0, 0.0), 0, 0.6), ((0.0, 1.0, 0.0), 2, 0.5)):
        arm.reset(0)
        push(arm, action, 30)
        assert arm.observe().state["tcp_pose"][index] < high + 0.04
    start = tuple(arm.reset(0).state["tcp_pose"][3:].tolist())
    push(arm, (0.0, 0.0, -1.0), 30)
    turned = rotation_between(start, tuple(arm.observe().state["tcp_pose"][3:].tolist()))[1]
    assert -0.95 < turned < -0.6


def test_motion_above_speed_limit_is_braked() -> None:
    arm = make_arm(wrench=WrenchLimits(speed_m_s=0.2, angular_speed_rad_s=1.0))
    for action, index, limit in (((-1.0, 0.0, 0.0), 0, 0.2), ((0.0, 0.0, -1.0), 4, 1.0)):
        arm.reset(0)
        speeds = [abs(float(twist[index])) for twist in push(arm, action, 4)]
        assert 0.6 * limit < max(speeds) < 1.3 * limit


def test_wrench_action_is_delayed_in_random_world() -> None:
    moved = {}
    for level in LEVELS:
        arm = make_arm(level)
        before = arm.reset(8).state["tcp_pose"][0]
        arm.act(np.array((1.0, 0.0, 0.0), np.float32))
        arm.advance(0.1)
        moved[level] = arm.truth()["tcp_pose"][0] - before
    assert 0.0 < moved["full"] < 0.9 * moved["none"]


def test_random_world_stiffness_is_redrawn_after_wrench_control() -> None:
    arm = make_arm("full")
    springs = [arm.model.actuator(f"spring{axis}").id for axis in range(6)]
    drawn = set()
    for seed in range(4):
        arm.reset(seed)
        x, y, z, roll, pitch, yaw = arm.model.actuator_biasprm[springs, 1]
        gains = arm.model.actuator_gainprm[springs, 0]
        assert x == y == z
        assert roll == pitch == yaw
        assert gains.tolist() == [-x, -y, -z, 0.0, 0.0, 0.0]
        drawn.add((x, roll))
        arm.act(np.array((1.0, -1.0, 1.0), np.float32))  # leaves motor gains set by wrench control
        arm.advance(0.05)
    assert len(drawn) == 4


def test_stop_ends_wrench_action_at_once() -> None:
    arm = make_arm()
    arm.reset(0)
    push(arm, (0.0, 1.0, 0.0), 2)
    arm.stop("test")
    arm.advance(0.3)
    assert np.abs(arm.observe().state["tcp_twist"][:3]).max() < 0.05


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"axes": ("x", "y", "z")}, "axes must be"),
        ({"gripper": True}, "without a gripper"),
        ({"wrench": {"force_n": 21.0}}, "force_n"),
        ({"wrench": {"torque_nm": 4.5}}, "torque_nm"),
        ({"wrench": {"timeout_s": 0.2}}, "timeout_s"),
    ],
)
def test_wrench_settings_out_of_range_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        motion(**changes)


def test_start_with_tilted_tool_is_refused() -> None:
    def aside(rng: np.random.Generator) -> Placement:
        return Placement(tcp=np.array((0.45, 0.0, 0.35, 0.9239, 0.3827, 0.0, 0.0)))

    with pytest.raises(BadInput, match="along the base's"):
        SimArm(Scene(bodies="", place=aside), TaskConfig(motion=motion()))


def test_action_meaning_differs_between_wrench_and_pose_mode() -> None:
    assert motion().meaning == "13 N, 3.5 Nm, base frame"
    assert motion().action_spec.shape == (3,)
    steered = motion().model_copy(update={"action_mode": "pose"})
    assert steered.meaning == "0.01 m, 0.1 rad, base frame"
