"""Test that episodes open in other bag readers, which decode messages by their schema."""

from __future__ import annotations

import json
import shutil
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rosbags.highlevel import AnyReader

from serl.log.compression import compact
from serl.log.episode_reader import PART, read_episode, read_records
from serl.log.recovery import recover
from serl.robot import reading_spec
from serl.specs import ArraySpec, ObservationSpec, Spec
from serl.testing.samples import CONFIG, EPOCH, SPEC, encoded, random_records, write_log
from serl.types import Record, Step

DATA = Path(__file__).parents[1] / "data"
LAYOUT = Path(__file__).parents[2] / "docs/examples/foxglove_episode.json"
ARM = Spec(
    task="arms",
    observation=ObservationSpec(
        state=reading_spec(3, (), {}, prefixes=("", "left_")).state,
        images={"front": ArraySpec(shape=(6, 8, 3), dtype="uint8")},
    ),
    action=ArraySpec(shape=(7,), low=-1, high=1),
    rate_hz=10,
)
RECORDS = random_records(2, spec=ARM)


def decode_topics(path: Path) -> dict[str, list[Any]]:
    """Return the messages of a file by topic."""
    found: dict[str, list[Any]] = {}
    with AnyReader([path]) as bag:
        for connection, time_ns, data in bag.messages():
            message: Any = bag.deserialize(data, connection.msgtype)
            found.setdefault(connection.topic, []).append((time_ns, message))
    return found


@pytest.mark.parametrize("encoding", ["raw", "png"])
def test_episode_opens_with_rosbags(tmp_path: Path, encoding: str) -> None:
    (path,) = write_log(tmp_path, RECORDS, spec=ARM)
    if encoding == "png":
        assert compact(path, CONFIG)
    topics = decode_topics(path)
    for arm in ("", "left_"):
        for topic in ("tcp_pose", "wrench", "joint_states"):
            assert len(topics[f"/{arm}{topic}"]) == len(RECORDS)
    for number, record in enumerate(RECORDS):
        for prefix in ("", "left_"):
            _check_arm(
                record,
                prefix,
                {
                    n: each[number]
                    for n, each in topics.items()
                    if n != "/end" and len(each) == len(RECORDS)
                },
            )
        image = topics["/image/front"][number][1]
        assert image.header.frame_id == "front"
        if encoding == "raw":
            assert (image.height, image.width, image.encoding) == (6, 8, "rgb8")
            assert image.data.tobytes() == record.observation.images["front"].tobytes()
        else:
            assert (image.format, bytes(image.data[:4])) == ("png", b"\x89PNG")
    for record, (_, step) in zip(RECORDS, topics["/step"] + topics["/end"], strict=True):
        assert f'"index":{record.key.index}' in step.record
        for name, values in record.observation.state.items():
            assert np.array_equal(getattr(step, name), values)
        if isinstance(record, Step):
            assert np.array_equal(step.action, record.action)
            assert np.array_equal(step.requested, record.requested)
            assert step.reward == np.float32(record.reward)


def _check_arm(record: Record, prefix: str, messages: dict[str, Any]) -> None:
    state = record.observation.state

    def same(name: str, *numbers: float) -> bool:
        return np.array_equal(np.array(numbers, np.float32), state[prefix + name])

    time_ns, pose = messages[f"/{prefix}tcp_pose"]
    stamp, at, turned = pose.header.stamp, pose.pose.position, pose.pose.orientation
    assert time_ns == round(record.wall_s * 1e9) == stamp.sec * 10**9 + stamp.nanosec
    assert pose.header.frame_id == "base"
    assert same("tcp_pose", at.x, at.y, at.z, turned.x, turned.y, turned.z, turned.w)
    joints = messages[f"/{prefix}joint_states"][1]
    assert joints.name == ["joint1", "joint2", "joint3"]
    assert same("q", *joints.position)
    assert same("dq", *joints.velocity)
    assert len(joints.effort) == 0
    force, torque = (
        messages[f"/{prefix}wrench"][1].wrench.force,
        messages[f"/{prefix}wrench"][1].wrench.torque,
    )
    assert same("wrench", force.x, force.y, force.z, torque.x, torque.y, torque.z)


def test_foxglove_layout_names_topics_and_fields_of_an_episode(tmp_path: Path) -> None:
    layout = json.loads(LAYOUT.read_text())
    panels, placed = layout["configById"], json.dumps(layout["layout"])
    assert all(f'"{panel}"' in placed for panel in panels)
    shown = [*panels["3D!tool"]["topics"], panels["Image!front"]["imageMode"]["imageTopic"]]
    shown += [line["value"] for panel in panels.values() for line in panel.get("paths", ())]
    assert len(shown) == 8
    (path,) = write_log(tmp_path, RECORDS, spec=ARM)
    topics = decode_topics(path)
    for value in shown:
        topic, *fields = value.removesuffix("[:]").split(".")
        found = reduce(getattr, fields, topics[topic][0][1])
        assert np.ndim(found) == value.endswith("[:]"), value
        assert not fields or np.isfinite(found).all(), value


def test_episodes_of_format_2_are_read_recovered_and_compacted(tmp_path: Path) -> None:
    """Files of the format before the standard messages; the open one is of a killed actor."""
    records = random_records(3)
    for name in ("format2", "format2_png"):
        path = tmp_path / f"{EPOCH}-000000.mcap"
        shutil.copy(DATA / f"{name}.mcap", path)
        assert encoded(read_records([path], SPEC)) == encoded(records)
    shutil.copy(DATA / "format2.mcap", path)
    assert compact(path, CONFIG)
    assert encoded(read_records([path], SPEC)) == encoded(records)
    assert len(decode_topics(path)["/tcp_pose"]) == 4
    part = tmp_path / "killed" / f"{EPOCH}-000000{PART}"
    part.parent.mkdir()
    shutil.copy(DATA / "format2.part.mcap", part)
    assert encoded(read_episode(part, SPEC).steps) == encoded(records[:3])
    part.write_bytes(part.read_bytes()[:-100])
    (sealed,) = recover(part.parent)
    assert encoded(read_episode(sealed, SPEC).steps) == encoded(records[:2])
