"""The public Python interface: recorded data as tables, transitions and metrics."""

from __future__ import annotations

import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import serl
from serl.api import Run
from serl.datasets.person import ACTOR as PERSON
from serl.errors import STUCK, BadInput, CorruptData
from serl.log.episode_log import EpisodeLog
from serl.log.metrics import ROWS, EventRow, MetricsWriter, UpdateRow
from serl.runs.demonstrations import EXPERT
from serl.testing.samples import (
    CONFIG,
    RUN,
    SPEC,
    leave_open,
    open_log,
    random_records,
    write_log,
)
from serl.training.replay import Replay
from serl.types import ActionSource, End, EndReason, Episode, Step

from .support.mutations import flip
from .test_api import trained


@pytest.fixture
def recorded(tmp_path: Path) -> tuple[Path, list[Any]]:
    """Write three episodes with human and script steps; return the folder and the records."""
    records: list[Any] = random_records(3, 1, 4)
    sources = dict(zip((1, 4), (ActionSource.HUMAN, ActionSource.SCRIPT), strict=True))
    records = [
        replace(record, source=sources.get(row, ActionSource.POLICY), reward=row / 3)
        if isinstance(record, Step)
        else record
        for row, record in enumerate(records)
    ]
    write_log(tmp_path / "actor0", records)
    return tmp_path / "actor0", records


def test_step_and_episode_tables_equal_logged_values(recorded: tuple[Path, list[Any]]) -> None:
    folder, records = recorded
    steps = [record for record in records if isinstance(record, Step)]
    ends = [record for record in records if isinstance(record, End)]
    run = serl.open_run(folder)
    assert (len(run.steps), len(run.episodes)) == (8, 3)
    for name in ("requested", "action", "reward", "terminated", "truncated", "wall_s"):
        expected = np.stack([np.asarray(getattr(step, name)) for step in steps])
        np.testing.assert_array_equal(run.steps[name], expected)
        assert run.steps[name].dtype == expected.dtype
    for name in run.spec.observation.state:
        states = np.stack([step.observation.state[name] for step in steps])
        np.testing.assert_array_equal(run.steps[f"state.{name}"], states)
        finals = np.stack([end.observation.state[name] for end in ends])
        np.testing.assert_array_equal(run.episodes[f"final.{name}"], finals)
    assert run.steps["source"].tolist() == [step.source for step in steps]
    assert run.steps["episode"].tolist() == [0, 0, 0, 1, 2, 2, 2, 2]
    assert run.episodes["human_steps"].tolist() == [1, 0, 0]
    assert run.episodes["script_steps"].tolist() == [0, 1, 0]
    assert run.episodes["reason"].tolist() == ["success"] * 3
    assert run.read_episode(1).steps[0].key == steps[3].key
    assert run.read_episode(1).steps[0].observation.images.keys() == {"front", "wrist"}


def test_transitions_end_at_final_observation(recorded: tuple[Path, list[Any]]) -> None:
    folder, _ = recorded
    run = serl.open_run(folder)
    made = run.transitions()
    episodes = [run.read_episode(row) for row in (0, 2)]  # the other one is a reset

    def flat(episode: Episode) -> np.ndarray:
        assert episode.end is not None
        seen = [*(step.observation for step in episode.steps), episode.end.observation]
        return np.stack([run.spec.observation.flatten(each) for each in seen])

    before = np.concatenate([flat(episode)[:-1] for episode in episodes])
    np.testing.assert_array_equal(made.state, before)
    after = np.concatenate([flat(episode)[1:] for episode in episodes])
    np.testing.assert_array_equal(made.next_state, after)
    assert made.episode.tolist() == [0, 0, 0, 2, 2, 2, 2]


def test_interrupted_episodes_have_no_transitions(tmp_path: Path) -> None:
    write_log(tmp_path, random_records(2))
    cut = random_records(3, ended=False, epoch=7)
    with open_log(tmp_path, 7) as log:
        for record in cut:
            log.append(record)
    leave_open(tmp_path, random_records(2, epoch=9), epoch=9)
    run = serl.open_run(tmp_path)
    assert run.episodes["steps"].tolist() == [3, 2], "an open episode must have no row yet"
    assert run.episodes["ended"].tolist() == [False, True]
    assert run.transitions().episode.tolist() == [1, 1]
    assert np.isnan(run.episodes["final.gripper"][0]).all()


def test_transitions_are_those_that_a_learner_would_sample(tmp_path: Path) -> None:
    reasons = (
        (EndReason.SUCCESS, ""),
        (EndReason.FAULT, "the newest image is too old"),
        (EndReason.DISCARDED, ""),
        (EndReason.STUCK, f"the guard holds the arm: {STUCK}"),
        (EndReason.SUCCESS, ""),
    )
    records: list[Any] = random_records(2, 3, 4, 30, 5)  # the last is a scripted reset
    for row, record in enumerate(records):
        number, stays = record.key.episode, record.key.episode == 0
        if isinstance(record, End):
            reason, fault = reasons[number]
            late_s = record.monotonic_s + 0.05
            records[row] = replace(
                record, success=stays, reason=reason, fault=fault, monotonic_s=late_s
            )
        else:
            source = ActionSource.SCRIPT if number == 4 else ActionSource.POLICY
            records[row] = replace(record, terminated=record.terminated and stays, source=source)
    write_log(tmp_path, records)
    made = serl.open_run(tmp_path).transitions()
    replay = Replay(SPEC, 100, 0.9)
    for record in records:
        replay.add(record)
    np.testing.assert_array_equal(made.state, replay.states())
    assert made.episode.tolist() == [0, 0, 1, 1, *[3] * 6]
    np.testing.assert_array_equal(made.next_state[2], made.state[3])


def test_scripted_demonstrations_of_the_expert_have_transitions(tmp_path: Path) -> None:
    records: list[Any] = random_records(3)
    with EpisodeLog(tmp_path, SPEC, RUN, EXPERT, 1, CONFIG) as log:
        for record in records:
            own = replace(record, key=replace(record.key, actor=EXPERT, epoch=1))
            log.append(replace(own, source=ActionSource.SCRIPT) if isinstance(own, Step) else own)
    assert len(serl.open_run(tmp_path).transitions().state) == 3


def test_pauses_in_demonstrations_of_a_person_have_transitions(tmp_path: Path) -> None:
    """A learner trains on them as well; an episode without the person demonstrates nothing."""
    records: list[Any] = random_records(3, 2)
    with EpisodeLog(tmp_path, SPEC, RUN, PERSON, 1, CONFIG) as log:
        for record in records:
            own = replace(record, key=replace(record.key, actor=PERSON, epoch=1))
            human = (own.key.episode, own.key.index) == (0, 0)
            source = ActionSource.HUMAN if human else ActionSource.SCRIPT
            log.append(replace(own, source=source) if isinstance(own, Step) else own)
    assert serl.open_run(tmp_path).transitions().episode.tolist() == [0, 0, 0]


def test_tables_are_mapped_from_cache_and_extended_by_new_episodes(tmp_path: Path) -> None:
    (first,) = write_log(tmp_path, random_records(3, epoch=1), epoch=1)
    before = serl.open_run(tmp_path).steps
    assert serl.open_run(tmp_path).steps["action"].flags.owndata is False
    hidden = first.rename(first.with_suffix(".hidden"))
    write_log(tmp_path, random_records(2, epoch=2), epoch=2)
    hidden.rename(first).write_bytes(b"")  # must not be read again: its numbers are in the cache
    both = serl.open_run(tmp_path)
    assert both.episodes["steps"].tolist() == [3, 2]
    np.testing.assert_array_equal(both.steps["action"][:3], before["action"])
    assert len(list((tmp_path / ".columns").iterdir())) == 1, "the older cache remains"


@pytest.mark.parametrize("damage", ["cut", "none", "read-only"])
def test_unusable_cache_does_not_change_tables(
    tmp_path: Path, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_log(tmp_path, random_records(3))
    expected = serl.open_run(tmp_path).steps["action"].copy()
    (cached,) = tmp_path.glob(".columns/*/steps.arrow")
    if damage == "cut":
        cached.write_bytes(cached.read_bytes()[:-200])
    else:
        cached.unlink()
    if damage == "read-only":
        monkeypatch.setattr("tempfile.mkdtemp", _refused)
    np.testing.assert_array_equal(serl.open_run(tmp_path).steps["action"], expected)


def _refused(*_: object, **__: object) -> str:
    raise OSError("read-only")


def test_damaged_episodes_and_missing_folder_are_refused(tmp_path: Path) -> None:
    (path,) = write_log(tmp_path, random_records(3))
    flip(path)
    run = serl.open_run(tmp_path)  # reads no episode yet
    with pytest.raises(CorruptData, match=str(path)):
        _ = run.steps
    with pytest.raises(BadInput, match=f"{tmp_path / 'gone'}: expected the folder of a run"):
        serl.open_run(tmp_path / "gone")


def test_pandas_frame_has_column_for_each_number(recorded: tuple[Path, list[Any]]) -> None:
    folder, records = recorded
    frame = serl.open_run(folder).steps.pandas()
    assert frame["action[2]"].tolist() == [r.action[2] for r in records if isinstance(r, Step)]
    assert frame.groupby("source").size().to_dict() == {"policy": 6, "human": 1, "script": 1}


def test_run_has_episodes_of_actors_and_metrics(tmp_path: Path) -> None:
    folder = trained(tmp_path)
    write_log(folder.episodes("actor0"), random_records(3))
    with MetricsWriter(folder.path) as metrics:
        metrics.write(10, UpdateRow(1, 2.0, 4.0, q=0.5))
        metrics.write(20, EventRow("started"))
        metrics.write(30, UpdateRow(2, 2.0, 4.0, critic_loss=0.25))
    run = serl.open_run(folder.path)
    assert isinstance(run, Run)
    assert (run.config is not None, len(run.steps)) == (True, 3)
    updates = run.metrics("update")
    assert updates["steps"].tolist() == [10, 30]
    assert updates.arrow.column("q").to_pylist() == [0.5, None]
    assert len(run.metrics("evaluation")) == 0


def test_metrics_without_rows_have_the_columns_of_their_kind(tmp_path: Path) -> None:
    run = serl.open_run(trained(tmp_path).path)
    frame = run.metrics("episode").pandas()[["steps", "success", "human_steps"]]
    assert [str(each) for each in frame.dtypes] == ["int64", "bool", "int64"]
    for kind, row in ROWS.items():
        names = run.metrics(kind).arrow.column_names
        assert names == ["kind", "time_s", "steps", *(each.name for each in fields(row))]
    kinds = "episode, update, evaluation, event, request, resume"
    with pytest.raises(BadInput, match=rf"^metrics: expected one of {kinds}, got 'episodes'$"):
        run.metrics("episodes")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("success", '"x"'),
        ("success", "[1]"),
        ("success", '{"a": 1}'),
        ("human_steps", "1" + 30 * "0"),
        ("steps", "2.5"),
        ("other", '1}\n{"kind": "episode", "time_s": 1, "steps": 2, "other": "x"'),
    ],
)
def test_wrong_value_of_metrics_is_refused_with_its_field(
    tmp_path: Path, name: str, value: str
) -> None:
    folder = trained(tmp_path)
    line = f'{{"kind": "episode", "time_s": 1, "steps": 2, "{name}": {value}}}\n'
    folder.metrics.write_text(line)
    run = serl.open_run(folder.path)
    with pytest.raises(CorruptData, match=rf"^{folder.metrics}: episode\.{name}: [^\n]+$"):
        run.metrics()
    assert len(run.metrics("event")) == 0


def test_whole_floats_in_metrics_are_integers(tmp_path: Path) -> None:
    folder = trained(tmp_path)
    row = '{"kind": "episode", "time_s": 1, "steps": %s, "human_steps": 3.0}\n'
    folder.metrics.write_text(row % "2.0")
    episodes = serl.open_run(folder.path).metrics("episode")
    assert [episodes[name].tolist() for name in ("steps", "human_steps")] == [[2], [3]]
    assert str(episodes["steps"].dtype) == "int64"
    folder.metrics.write_text(row % "2.5")
    line = rf"^{folder.metrics}: episode\.steps: expected a whole number, got 2\.5$"
    with pytest.raises(CorruptData, match=line):
        serl.open_run(folder.path).metrics("episode")


def test_missing_package_is_named_with_install_command(
    recorded: tuple[Path, list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.delitem(sys.modules, "serl.datasets.tables", raising=False)
    run = serl.open_run(recorded[0])
    with pytest.raises(BadInput, match=r"^pyarrow is not installed: pip install 'serl\[data\]'$"):
        _ = run.steps
    with pytest.raises(BadInput, match="pyarrow is not installed"):
        run.metrics()


def test_pandas_frame_without_pandas_names_extra_to_install(
    recorded: tuple[Path, list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = serl.open_run(recorded[0]).steps
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(BadInput, match=r"^pandas is not installed: pip install 'serl\[data\]'$"):
        steps.pandas()
