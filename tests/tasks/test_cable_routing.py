import numpy as np
import pytest

from serl.sim.arm import SimArm
from serl.tasks.cable_routing import CableRouting, from_clip, grip_point, is_routed, passage
from serl.testing.samples import episode
from serl.types import Array


def make() -> tuple[SimArm, CableRouting]:
    task = CableRouting()
    return SimArm(task.scene, task.config), task


def straight(aside: float = 0.0, height: float = 0.02, **state: float) -> dict[str, Array]:
    """Return a state with a straight cable through the clip and the open gripper above it."""
    poses = {
        f"cable{index}_pose": (0.3 + 0.025 * index, aside, height, 0.0, 0.0, 0.0, 1.0)
        for index in range(16)
    }
    tcp = (0.5, 0.0, state.get("tcp_height", 0.15), 1.0, 0.0, 0.0, 0.0)
    poses |= {"clip_pose": (0.51, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0), "tcp_pose": tcp}
    truth = {name: np.array(pose, np.float32) for name, pose in poses.items()}
    return truth | {"gripper": np.array([state.get("gripper", 1.0)], np.float32)}


@pytest.mark.parametrize(
    ("truth", "solved"),
    [
        (straight(), True),
        (straight(aside=0.004), True),
        (straight(aside=0.006), False),
        (straight(aside=-0.006), False),
        (straight(height=0.044), True),
        (straight(height=0.046), False),
        (straight(gripper=0.1), False),
        (straight(tcp_height=0.05), False),
    ],
)
def test_success_needs_released_cable_low_in_slot(truth: dict[str, Array], solved: bool) -> None:
    assert CableRouting().is_success(truth) is solved


def test_cable_ending_before_clip_is_not_routed() -> None:
    truth = straight()
    truth["clip_pose"][0] = 0.70
    assert not is_routed(truth)
    assert passage(truth)[0] == pytest.approx(-0.025, abs=1e-6)


def test_crossing_nearest_to_slot_counts() -> None:
    truth = straight(aside=0.03)
    for index, aside in ((13, 0.002), (14, 0.002)):  # the end comes back through the slot
        truth[f"cable{index}_pose"][:2] = (0.49 + 0.04 * (index - 13), aside)
    assert is_routed(truth)


def test_cable_starts_at_rest_beside_clip() -> None:
    arm, task = make()
    sides = set()
    for seed in (3, 4, 5):
        arm.reset(seed)
        before = grip_point(arm.truth())
        assert abs(passage(arm.truth())[1]) > 0.04
        sides.add(bool(before[1] > 0.0))
        arm.advance(1.0)
        assert np.abs(grip_point(arm.truth()) - before).max() < 0.003
        assert not task.is_success(arm.truth())
    assert sides == {False, True}


def test_cable_observation_is_continuous() -> None:
    """Check continuity, also where another crossing becomes the nearest one."""
    arm, task = make()
    records = episode(arm, task, task.expert(arm.truth, 1), 1)
    seen = np.stack([record.observation.state["cable_from_clip"] for record in records])
    assert np.abs(np.diff(seen, axis=0)).max() < 0.02
    assert np.ptp(seen, axis=0).min() > 0.02, "the observation is constant"
    assert np.abs(seen[-1, :2]).max() < 0.003
    curled = straight(aside=0.03)
    for index, aside in ((13, 0.002), (14, 0.002)):
        curled[f"cable{index}_pose"][:2] = (0.49 + 0.04 * (index - 13), aside)
    assert np.array_equal(from_clip(curled), from_clip(straight(aside=0.03)))


def test_pressing_cable_onto_posts_is_no_success() -> None:
    """Press the cable onto both posts from above with full force."""
    arm, task = make()
    arm.reset(0)
    expert = task.expert(arm.truth, 0)
    pressed = 0
    for _ in range(task.config.max_steps):
        action = expert(task.observation(arm.observe()))
        truth = arm.truth()
        if truth["cable14_grasped"][0] and truth["tcp_pose"][2] < 0.11:
            action[1] = 1.0  # never above the slot
            action[2] = -1.0
            pressed += 1
        arm.act(action)
        arm.advance(0.1)
        assert not task.is_success(arm.truth())
        if pressed == 40:
            return
    pytest.fail("the cable was not pressed")
