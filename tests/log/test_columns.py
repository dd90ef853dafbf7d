"""Test that fast column reading of episodes equals reading record by record."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from serl.errors import CorruptData
from serl.log import columns
from serl.log.columns import EpisodeColumns, read_columns
from serl.log.compression import compact
from serl.specs import ArraySpec, ObservationSpec
from serl.testing.samples import BLIND, CONFIG, EPOCH, SPEC, STATE, random_records, write_log
from serl.types import Step

DATA = Path(__file__).parents[1] / "data"
ODD = {
    **STATE,
    'key":{': ArraySpec(shape=(2, 2)),
    "key": ArraySpec(shape=(1,)),
    "q": STATE["gripper"],
}
NAMED_ODDLY = BLIND.model_copy(update={"observation": ObservationSpec(state=ODD)})


def read_record_by_record(path: Path, monkeypatch: pytest.MonkeyPatch) -> EpisodeColumns:
    with monkeypatch.context() as patch:
        patch.setattr(columns, "_rows_at_once", lambda *_: None)
        return read_columns(path)


def read_at_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> EpisodeColumns:
    def refuse(*_: Any) -> None:
        raise AssertionError("read record by record")

    with monkeypatch.context() as patch:
        patch.setattr(columns, "_rows", refuse)
        return read_columns(path)


def assert_equal(found: EpisodeColumns, expected: EpisodeColumns) -> None:
    for name, value in expected._asdict().items():
        if name in ("state", "scalars", "final") and value is not None:
            assert getattr(found, name).keys() == value.keys()
            for part, array in value.items():
                np.testing.assert_array_equal(getattr(found, name)[part], array, strict=True)
        else:
            np.testing.assert_equal(getattr(found, name), value)


@pytest.mark.parametrize("spec", [SPEC, BLIND, NAMED_ODDLY])
@pytest.mark.parametrize("ended", [True, False])
def test_fast_and_record_wise_reading_give_logged_values(
    tmp_path: Path, spec: Any, ended: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = [
        replace(record, reward=index / 3, reward_provenance=f'"key":{{ é {index}', policy_version=7)
        if isinstance(record, Step)
        else record
        for index, record in enumerate(random_records(5, spec=spec, ended=ended))
    ]
    (path,) = write_log(tmp_path, records, spec=spec)
    found = read_at_once(path, monkeypatch)
    assert_equal(found, read_record_by_record(path, monkeypatch))
    steps = [record for record in records if isinstance(record, Step)]
    for name in spec.observation.state:
        expected = np.stack([step.observation.state[name] for step in steps])
        np.testing.assert_array_equal(found.state[name], expected, strict=True)
    np.testing.assert_array_equal(found.requested, np.stack([step.requested for step in steps]))
    np.testing.assert_array_equal(found.action, np.stack([step.action for step in steps]))
    for name, array in found.scalars.items():
        assert array.tolist() == [getattr(step, name) for step in steps], name
    assert found.success is ended


def test_columns_skip_compressed_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (path,) = write_log(tmp_path, random_records(4))
    expected = read_at_once(path, monkeypatch)
    assert compact(path, CONFIG)
    assert_equal(read_at_once(path, monkeypatch), expected)


def test_old_and_short_and_large_files_are_read_record_by_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (path,) = write_log(tmp_path, random_records(3))
    expected = read_columns(path)
    shutil.copy(DATA / "format2.mcap", path)
    assert_equal(read_columns(path), expected)
    (short,) = write_log(tmp_path / "short", random_records(0))
    assert read_columns(short).key.index == 0
    monkeypatch.setattr(columns, "_AT_ONCE_BYTES", 10)
    with pytest.raises(AssertionError):
        read_at_once(path, monkeypatch)


def test_damaged_episode_is_refused_with_file_and_byte(tmp_path: Path) -> None:
    (path,) = write_log(tmp_path, random_records(2, spec=BLIND), spec=BLIND)
    data = path.read_bytes()
    for place in range(0, len(data), 97):
        path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        with pytest.raises(CorruptData, match=f"{EPOCH}-000000.mcap: byte"):
            read_columns(path)
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(CorruptData, match="byte"):
        read_columns(path)
