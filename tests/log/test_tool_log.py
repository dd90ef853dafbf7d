from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from serl.errors import CorruptData
from serl.log.annotations import TOOLS_FILE, ToolLog, read_tools
from serl.policy import ZeroPolicy
from serl.testing import FakeRobot, FakeTask
from serl.testing.samples import deliver, episode
from serl.types import Observation, Record

RECORDS = [
    replace(record, observation=replace(record.observation, stamps={"robot": 0.1 * index}))
    for index, record in enumerate(
        episode(FakeRobot(), FakeTask(), ZeroPolicy(FakeRobot().action_spec))
    )
]


def reading(index: int, pose: bool = True) -> Observation:
    """Build the reading behind a record's observation; the tool rises by 1 cm per step."""
    place = np.array([0.5, 0.0, 0.01 * index, 0, 0, 0, 1], np.float32)
    state = {"tcp_pose": place} if pose else {}
    return Observation(state, {}, RECORDS[index].observation.stamps)


def write_log(log: ToolLog, records: list[Record], unread: int | None = None) -> None:
    """Deliver records as the control loop does, which reads the next observation first."""
    log.on_reading(reading(0))
    for index, record in enumerate(records):
        if index + 1 < len(records) and index + 1 != unread:
            log.on_reading(reading(index + 1))
        deliver(record, log)


def test_tool_log_has_position_of_every_observation(tmp_path: Path) -> None:
    log = ToolLog(tmp_path)
    write_log(log, RECORDS)
    later = [replace(r, key=replace(r.key, episode=7)) for r in RECORDS[:4]]
    write_log(log, later)
    assert len((tmp_path / TOOLS_FILE).read_bytes().splitlines()) == 1, (
        "the later episode has not ended"
    )
    ((name, places),) = read_tools(tmp_path).items()
    assert name == (RECORDS[0].key.epoch, RECORDS[0].key.episode)
    assert places == pytest.approx(np.array([(0.5, 0, 0.01 * i) for i in range(len(RECORDS))]))


def test_missing_reading_leaves_gap_in_tool_log(tmp_path: Path) -> None:
    write_log(ToolLog(tmp_path), RECORDS, unread=3)
    (places,) = read_tools(tmp_path).values()
    assert np.isnan(places).all(1).tolist() == [index == 3 for index in range(len(RECORDS))]


def test_robot_without_tool_pose_leaves_no_file(tmp_path: Path) -> None:
    log = ToolLog(tmp_path)
    for index, record in enumerate(RECORDS):
        log.on_reading(reading(index, pose=False))
        deliver(record, log)
    assert not (tmp_path / TOOLS_FILE).exists()
    assert read_tools(tmp_path) == {}


def test_cut_line_is_overwritten_and_not_read(tmp_path: Path) -> None:
    (tmp_path / TOOLS_FILE).write_bytes(b'{"epoch": 1, "epi')
    assert read_tools(tmp_path) == {}
    write_log(ToolLog(tmp_path), RECORDS)
    assert len(read_tools(tmp_path)) == 1


def test_very_long_episode_is_read_without_hiding_later_ones(tmp_path: Path) -> None:
    """The episode needs more than one line, with positions of maximal text length."""
    log, steps = ToolLog(tmp_path), 11_000
    place = np.array([-0.123456, -0.234567, -0.345678, 0, 0, 0, 1], np.float32)
    template = RECORDS[0]
    for number, length in enumerate((3, steps, 5)):
        for index in range(length):
            seen = Observation({"tcp_pose": place}, {}, {"robot": float(index)})
            log.on_reading(seen)
            kind = RECORDS[-1] if index == length - 1 else template
            key = replace(template.key, episode=number, index=index)
            deliver(replace(kind, key=key, observation=seen), log)
    assert len((tmp_path / TOOLS_FILE).read_bytes().splitlines()) == 4
    read = read_tools(tmp_path)
    assert [len(places) for places in read.values()] == [3, steps, 5]
    assert np.allclose(np.concatenate(list(read.values())), place[:3])


def test_overlong_tool_line_is_refused_and_named(tmp_path: Path) -> None:
    """Older logs have such lines."""
    places = ",".join(["[0.1,0.2,0.3]"] * 100_000)
    line = f'{{"epoch":1,"episode":0,"tools_m":[{places}]}}'
    (tmp_path / TOOLS_FILE).write_text(f"{line}\n{line}\n")
    with pytest.raises(CorruptData, match=r"tools\.jsonl: line 1: .* allowed"):
        read_tools(tmp_path)


@pytest.mark.parametrize(
    ("places", "reason"),
    [
        ("[[0, 0]]", "expected places x, y, z"),
        ("[0]", "expected places x, y, z"),
        ('[["1", "2", "3"]]', "expected places x, y, z"),
        ("[[1e999, 0, 0]]", "expected places x, y, z"),
        (f"[[{10**400}, 0, 0]]", "expected places x, y, z"),
        ("3", "expected list, got 3"),
    ],
)
def test_damaged_tool_line_is_named(places: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / TOOLS_FILE).write_text(f'{{"epoch": 1, "episode": 0, "tools_m": {places}}}\n')
    with pytest.raises(CorruptData, match=rf"tools\.jsonl: line 1.*{reason}"):
        read_tools(tmp_path)


def test_tool_log_survives_disk_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / TOOLS_FILE).mkdir()
    with caplog.at_level(logging.WARNING):
        write_log(ToolLog(tmp_path), RECORDS)
    assert TOOLS_FILE in caplog.text
