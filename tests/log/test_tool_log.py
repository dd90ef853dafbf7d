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
    """From which a record's observation was made; the tool goes up by a centimetre a step."""
    place = np.array([0.5, 0.0, 0.01 * index, 0, 0, 0, 1], np.float32)
    state = {"tcp_pose": place} if pose else {}
    return Observation(state, {}, RECORDS[index].observation.stamps)


def logged(log: ToolLog, records: list[Record], unread: int | None = None) -> None:
    """As in a control loop, which reads the successor before a step is logged."""
    log.on_reading(reading(0))
    for index, record in enumerate(records):
        if index + 1 < len(records) and index + 1 != unread:
            log.on_reading(reading(index + 1))
        deliver(record, log)


def test_every_observation_has_its_place(tmp_path: Path) -> None:
    log = ToolLog(tmp_path)
    logged(log, RECORDS)
    later = [replace(r, key=replace(r.key, episode=7)) for r in RECORDS[:4]]
    logged(log, later)
    assert len((tmp_path / TOOLS_FILE).read_bytes().splitlines()) == 1, (
        "the other one has not ended"
    )
    ((name, places),) = read_tools(tmp_path).items()
    assert name == (RECORDS[0].key.epoch, RECORDS[0].key.episode)
    assert places == pytest.approx(np.array([(0.5, 0, 0.01 * i) for i in range(len(RECORDS))]))


def test_a_reading_that_was_lost_leaves_a_gap(tmp_path: Path) -> None:
    logged(ToolLog(tmp_path), RECORDS, unread=3)
    (places,) = read_tools(tmp_path).values()
    assert np.isnan(places).all(1).tolist() == [index == 3 for index in range(len(RECORDS))]


def test_a_robot_without_a_tool_leaves_no_file(tmp_path: Path) -> None:
    log = ToolLog(tmp_path)
    for index, record in enumerate(RECORDS):
        log.on_reading(reading(index, pose=False))
        deliver(record, log)
    assert not (tmp_path / TOOLS_FILE).exists()
    assert read_tools(tmp_path) == {}


def test_a_line_that_was_cut_is_written_over_and_not_read(tmp_path: Path) -> None:
    (tmp_path / TOOLS_FILE).write_bytes(b'{"epoch": 1, "epi')
    assert read_tools(tmp_path) == {}
    logged(ToolLog(tmp_path), RECORDS)
    assert len(read_tools(tmp_path)) == 1


def test_an_episode_of_hours_is_read_again_and_hides_no_later_one(tmp_path: Path) -> None:
    """An hour at 10 Hz, with places as long as they can be written."""
    log, steps = ToolLog(tmp_path), 36_000
    place = np.array([-0.123456, -0.234567, -0.345678, 0, 0, 0, 1], np.float32)
    template = RECORDS[0]
    for number, length in enumerate((3, steps, 5)):
        for index in range(length):
            seen = Observation({"tcp_pose": place}, {}, {"robot": float(index)})
            log.on_reading(seen)
            kind = RECORDS[-1] if index == length - 1 else template
            key = replace(template.key, episode=number, index=index)
            deliver(replace(kind, key=key, observation=seen), log)
    read = read_tools(tmp_path)
    assert [len(places) for places in read.values()] == [3, steps, 5]
    assert np.allclose(np.concatenate(list(read.values())), place[:3])


def test_a_line_too_long_to_read_is_named_and_not_taken_for_the_last(tmp_path: Path) -> None:
    """As logs of before have them."""
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
def test_a_damaged_line_is_named(places: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / TOOLS_FILE).write_text(f'{{"epoch": 1, "episode": 0, "tools_m": {places}}}\n')
    with pytest.raises(CorruptData, match=rf"tools\.jsonl: line 1.*{reason}"):
        read_tools(tmp_path)


def test_a_disk_that_refuses_stops_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / TOOLS_FILE).mkdir()
    with caplog.at_level(logging.WARNING):
        logged(ToolLog(tmp_path), RECORDS)
    assert TOOLS_FILE in caplog.text
