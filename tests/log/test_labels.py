from __future__ import annotations

from pathlib import Path

import pytest

from serl.errors import BadInput, CorruptData
from serl.log.annotations import LABELS_FILE, StepKey, append_labels, read_labels

FIRST, SECOND = StepKey(5, 0, 3), StepKey(5, 1, 0)


def test_cut_last_label_line_is_ignored(tmp_path: Path) -> None:
    append_labels(tmp_path, [(FIRST, 1), (SECOND, 1)], "script")
    path = tmp_path / LABELS_FILE
    path.write_bytes(path.read_bytes()[:-3])
    assert read_labels(tmp_path) == {FIRST: 1}
    append_labels(tmp_path, [(SECOND, 0)], "person")
    assert read_labels(tmp_path) == {FIRST: 1, SECOND: 0}


def test_overlong_label_line_is_refused_and_named(tmp_path: Path) -> None:
    append_labels(tmp_path, [(FIRST, 1)], "script")
    with (tmp_path / LABELS_FILE).open("a") as file:
        file.write("x" * (2 << 20))
    with pytest.raises(CorruptData, match=f"{LABELS_FILE}: line 2: .* allowed"):
        read_labels(tmp_path)


@pytest.mark.parametrize(
    "line",
    [
        "{}",
        "unicorn",
        '{"epoch":1,"episode":2,"step":3,"label":64,"by":"me","wall_s":1.0}',
        '{"epoch":1,"episode":2,"step":-3,"label":1,"by":"me","wall_s":1.0}',
        '{"epoch":1,"episode":2,"step":3,"label":1,"by":"me","wall_s":1e999}',
    ],
)
def test_damaged_label_line_is_named(line: str, tmp_path: Path) -> None:
    append_labels(tmp_path, [(FIRST, 1)], "script")
    with (tmp_path / LABELS_FILE).open("a") as file:
        file.write(line + "\n")
    with pytest.raises(CorruptData, match=f"{LABELS_FILE}: line 2"):
        read_labels(tmp_path)


def test_invalid_label_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    for wrong in (-1, 64):
        with pytest.raises(BadInput, match="expected 0 to 63"):
            append_labels(tmp_path, [(FIRST, 1), (SECOND, wrong)], "person")
    assert not (tmp_path / LABELS_FILE).exists()
    with pytest.raises(BadInput, match=LABELS_FILE):
        append_labels(tmp_path / "absent", [(FIRST, 1)], "person")
