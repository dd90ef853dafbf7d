from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from mcap.reader import NonSeekingReader, make_reader

from serl.errors import BadInput, SpecMismatch
from serl.log.episode_reader import read_records
from serl.log.recovery import recover
from serl.specs import Spec
from serl.testing.samples import (
    EPOCH,
    SPEC,
    encoded,
    open_log,
    random_records,
    write_log,
)
from serl.types import Step


def test_mcap_package_reads_and_verifies_episode(tmp_path: Path) -> None:
    items = random_records(3)
    (path,) = write_log(tmp_path, items)
    with path.open("rb") as file:
        reader = make_reader(file, validate_crcs=True)
        assert reader.get_header().profile == "ros2"
        summary = reader.get_summary()
        assert summary is not None
        assert {channel.message_encoding for channel in summary.channels.values()} == {"cdr"}
        assert summary.statistics.channel_message_counts == {1: 3, 2: 1, 3: 4, 4: 4, 5: 4}
        (metadata,) = reader.iter_metadata()
        assert metadata.name == "serl"
        assert Spec.model_validate_json(metadata.metadata["spec"]) == SPEC
        messages = list(reader.iter_messages())
        late = list(reader.iter_messages(topics="/step", starting_at=messages[-1][2].log_time))
        chosen = list(reader.iter_messages(topics="/step", starting_at=round(1763715242e9)))
    with path.open("rb") as file:
        plain = list(NonSeekingReader(file, validate_crcs=True).iter_messages())
    assert late == []
    assert [message.sequence for _, _, message in chosen] == [2]
    assert [message for _, _, message in plain] == [message for _, _, message in messages]
    schemas = {channel.topic: schema for schema, channel, _ in messages}
    assert set(schemas) == {"/step", "/end", "/image/front", "/image/wrist", "/tcp_pose"}
    assert {schema.encoding for schema in schemas.values()} == {"ros2msg"}


def test_refused_record_leaves_no_trace_in_log(tmp_path: Path) -> None:
    items = random_records(2)
    with open_log(tmp_path) as log:
        log.append(items[0])
        good = items[1]
        assert isinstance(good, Step)
        state = {**good.observation.state, "gripper": np.array([np.nan], np.float32)}
        for bad, message in (
            (replace(good, observation=replace(good.observation, state=state)), "state gripper"),
            (replace(good, action=good.action * 3), "action"),
            (replace(good, requested=good.action[:2]), "requested action"),
            (replace(good, observation=replace(good.observation, images={})), "images"),
        ):
            with pytest.raises(SpecMismatch, match=message):
                log.append(bad)
        for key in (
            replace(good.key, index=2),
            replace(good.key, index=0),
            replace(good.key, episode=2, index=0),
            replace(good.key, episode=1, index=1),
            replace(good.key, epoch=1),
            replace(good.key, actor="other"),
        ):
            with pytest.raises(BadInput, match="expected the record"):
                log.append(replace(good, key=key))
        for item in items[1:]:
            log.append(item)
    assert encoded(list(read_records(tmp_path, SPEC))) == encoded(items)


def test_log_refuses_gap_between_episodes(tmp_path: Path) -> None:
    """A tail could not distinguish a gap from an episode that has yet to come."""
    first, second, third = (item for item in random_records(0, 0, 0))
    with open_log(tmp_path) as log:
        with pytest.raises(BadInput, match="expected the record"):
            log.append(second)
        log.append(first)
        with pytest.raises(BadInput, match="expected the record"):
            log.append(third)
        log.append(second)


def test_second_writer_is_refused_while_first_is_open(tmp_path: Path) -> None:
    with open_log(tmp_path):
        with pytest.raises(BadInput, match="in use by process"):
            open_log(tmp_path, EPOCH + 1)
        with pytest.raises(BadInput, match="in use by process"):
            recover(tmp_path)
    open_log(tmp_path, EPOCH + 1).close()
