from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from serl.arm_pair import Mount, PairedArm, check_turnable, mount_of, read_pair, separate_boxes
from serl.arm_profile import load_robot
from serl.errors import BadInput
from serl.geometry import from_rotation_vector, rotate, rotation_between
from serl.motion import Box, Motion, Pose
from serl.tasks.parts.arm_task import gripper_motion

MOTION = gripper_motion((0.30, -0.20, 0.015), (0.56, 0.10, 0.35), 0.8)
MOUNTS = [Mount((1.1, 0.2, -0.1), quarters) for quarters in range(4)]


@pytest.mark.parametrize("mount", MOUNTS, ids=str)
def test_mount_converts_poses_boxes_and_actions_both_ways(mount: Mount) -> None:
    pose = Pose((0.4, -0.1, 0.3), from_rotation_vector((3.0, 0.2, -0.4)))
    own = mount.own_pose(pose)
    back = mount.common_pose(own)
    assert back.position == pytest.approx(pose.position)
    assert math.hypot(*rotation_between(back.quaternion, pose.quaternion)) < 1e-9
    there = mount.common_motion(mount.own_motion(MOTION))
    assert there.box_low_m == pytest.approx(MOTION.box_low_m)
    assert there.box_high_m == pytest.approx(MOTION.box_high_m)
    box = mount.common_box(Box(low_m=(0.1, 0.2, 0.3), high_m=(0.2, 0.4, 0.5)))
    assert all(a < b for a, b in zip(box.low_m, box.high_m, strict=True))
    action = [0.3, -0.7, 0.2, 0.5, -1.0]
    turned = mount.own_action(MOTION, action)
    moved = rotate(mount.turn, (turned[0], turned[1], turned[2]))
    assert moved == pytest.approx(action[:3])
    assert turned[3:] == action[3:], "yaw and gripper differ between the frames"
    assert mount.common_action(MOTION, turned) == pytest.approx(action)


def test_mount_leaves_tool_frame_actions_unchanged() -> None:
    tool = MOTION.model_copy(update={"frame": "tool"})
    assert MOUNTS[1].own_action(tool, [1.0, 0.5, 0.0, 0.0, 1.0]) == [1.0, 0.5, 0.0, 0.0, 1.0]
    check_turnable("right", tool, MOUNTS[1])
    bare = Motion(axes=("x", "z"), translation_m=0.01, box_low_m=(0, 0, 0), box_high_m=(1, 1, 1))
    check_turnable("right", bare, MOUNTS[2])
    with pytest.raises(BadInput, match="along x without y"):
        check_turnable("right", bare, MOUNTS[1])


def test_separate_boxes_keeps_distance_between_tools() -> None:
    left, right = separate_boxes(MOTION, _motion_at(0.58), 0.07)
    assert right.box_low_m[0] - left.box_high_m[0] == pytest.approx(0.07)
    assert left.box_high_m[0] == pytest.approx(0.535), "the plane is not halfway"
    assert left.box_low_m == MOTION.box_low_m
    mirrored = separate_boxes(_motion_at(0.58), MOTION, 0.07)
    assert mirrored[0].box_low_m == pytest.approx(right.box_low_m)
    far = _motion_at(0.9)
    assert separate_boxes(MOTION, far, 0.07) == (MOTION, far), (
        "boxes that are separate already were changed"
    )
    with pytest.raises(BadInput, match="overlap along x, y and z"):
        separate_boxes(MOTION, _motion_at(0.5), 0.07)
    with pytest.raises(BadInput, match="leaves the left tool no room"):
        separate_boxes(
            MOTION.model_copy(update={"box_low_m": (0.55, -0.2, 0.0)}), _motion_at(0.58), 0.07
        )


def _motion_at(x_m: float) -> Motion:
    low, high = (x_m, -0.2, 0.015), (x_m + 0.2, 0.2, 0.3)
    return MOTION.model_copy(update={"box_low_m": low, "box_high_m": high})


def test_mount_comes_from_file_or_scene() -> None:
    arm = PairedArm(profile="sim")
    assert mount_of("right", arm, (1.1, 0.0, 0.0, math.pi)) == Mount((1.1, 0.0, 0.0), 2)
    given = PairedArm(profile="sim", base_m=(1.2, 0.0, 0.1), quarter_turns=1)
    assert mount_of("right", given, (0.0, 0.0, 0.0, 0.3)) == Mount((1.2, 0.0, 0.1), 1)
    with pytest.raises(BadInput, match=r"right: .*turned by 0.3 rad: give base_m"):
        mount_of("right", arm, (0.0, 0.0, 0.0, 0.3))
    assert np.allclose(MOUNTS[1].to_common((1.0, 0.0, 0.0)), (0.0, 1.0, 0.0))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("left: a.yaml", "right: missing, but required"),
        (
            "left: a.yaml\nmiddle: b.yaml",
            "middle: unknown setting; known ones: clearance_m, left, r",
        ),
        (
            "left: a.yaml\nright: 5",
            "right: expected a profile, such as {profile: left.yaml}, got 5",
        ),
        ("left: a.yaml\nright:", "right: expected a profile, .* got nothing"),
        ("left: a.yaml\nright: b.yaml", "both in the namespace /, where the guards"),
        ("left: a.yaml\nright: {profile: b.yaml, base_m: [1, 0, 0]}", "expected both, or neither"),
        ("left: a.yaml\nright: b.yaml\nspeed: 2", "speed"),
        ("left: a.yaml\nright: {profile: b.yaml, namespace: right}", "namespace"),
    ],
)
def test_invalid_pair_file_is_refused_in_one_line(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "two.yaml"
    file.write_text(text)
    with pytest.raises(BadInput, match=message) as caught:
        read_pair(str(file))
    assert str(caught.value).startswith(str(file))
    assert "\n" not in str(caught.value)


def test_pair_file_accepts_profile_paths_relative_to_itself(tmp_path: Path) -> None:
    file = tmp_path / "two.yaml"
    file.write_text("left: arms/left.yaml\nright: {profile: sim, namespace: /right}")
    pair = read_pair(str(file))
    assert pair is not None
    assert pair.left.profile == str(tmp_path / "arms/left.yaml")
    assert (pair.right.profile, pair.right.namespace) == ("sim", "/right")
    assert read_pair("sim") is read_pair(None) is read_pair("absent.yaml") is None
    with pytest.raises(BadInput, match="two arms, where one is expected"):
        load_robot(str(file))
