from __future__ import annotations

import errno
import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

from serl.errors import BadInput, SerlError
from serl.log import wandb_run
from serl.log.metrics import (
    EpisodeRow,
    EvaluationRow,
    EventRow,
    MetricsWriter,
    ResumeRow,
    UpdateRow,
    read_metrics,
)
from serl.runs.settings import run_settings

_DIGITS = re.compile(r"\d+")
EPISODE = EpisodeRow("actor-0", 3, 42, True, False, 1.0, 0, 0, "success", 4.2, 1)


class Clock:
    def __init__(self, now_s: float) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s


def test_metrics_rows_round_trip(tmp_path: Path) -> None:
    clock = Clock(1000.0)
    with MetricsWriter(tmp_path / "run", clock) as writer:
        writer.write(0, EventRow("started <here>"))
        clock.now_s += 2.5
        writer.write(42, EPISODE)
        writer.write(42, EvaluationRow(40, 20, 17, None, "selection"))
    event, episode, evaluation = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert event == {"kind": "event", "time_s": 0.0, "steps": 0, "text": "started <here>"}
    assert (episode["kind"], episode["time_s"], episode["steps"]) == ("episode", 2.5, 42)
    assert (episode["length"], episode["success"], episode["assisted"]) == (42, True, False)
    assert (evaluation["purpose"], evaluation["cycle_time_s"]) == ("selection", None)


def test_each_metrics_row_is_on_disk_before_next(tmp_path: Path) -> None:
    writer = MetricsWriter(tmp_path)
    for count in range(1, 4):
        writer.write(count, EventRow("x"))
        assert len(read_metrics(tmp_path / "metrics.jsonl")) == count
    writer.close()


def test_metrics_time_continues_after_resume_without_pause(tmp_path: Path) -> None:
    clock = Clock(10.0)
    with MetricsWriter(tmp_path, clock) as writer:
        clock.now_s = 15.0
        writer.write(1, EventRow("started"))
    clock = Clock(9000.0)  # after a reboot the monotonic clock has another origin
    with MetricsWriter(tmp_path, clock) as writer:
        clock.now_s = 9001.0
        writer.write(2, EventRow("resumed"))
    assert [row["time_s"] for row in read_metrics(tmp_path / "metrics.jsonl")] == [5.0, 6.0]


@pytest.mark.parametrize("cut", range(1, 30, 7))
def test_cut_last_metrics_line_is_ignored_and_dropped_on_resume(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "metrics.jsonl"
    with MetricsWriter(tmp_path) as writer:
        writer.write(1, EventRow("first"))
        writer.write(2, EventRow("second"))
    path.write_bytes(path.read_bytes()[:-cut])
    assert [row["text"] for row in read_metrics(path)] == ["first"]
    with MetricsWriter(tmp_path) as writer:
        writer.write(3, EventRow("third"))
    assert [row["text"] for row in read_metrics(path)] == ["first", "third"]


def test_nonfinite_values_become_null_in_metrics(tmp_path: Path) -> None:
    with MetricsWriter(tmp_path) as writer:
        writer.write(1, UpdateRow(1, 50.0, 4.0, critic_loss=float("nan"), q=float("-inf")))
    (line,) = (tmp_path / "metrics.jsonl").read_text().splitlines()
    row = json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert (row["critic_loss"], row["q"], row["utd"]) == (None, None, 4.0)


def test_metrics_rows_repeated_after_resume_count_once(tmp_path: Path) -> None:
    def episode(number: int) -> EpisodeRow:
        return EpisodeRow("actor-0", number, 10, True, False, 1.0, 0, 0, "success", 1.0, 1)

    def read_counts() -> list[tuple[str, object]]:
        rows = read_metrics(tmp_path / "metrics.jsonl")
        return [(row["kind"], row.get("episode", row.get("updates"))) for row in rows]

    with MetricsWriter(tmp_path) as writer:
        writer.write(10, episode(0))
        saved = writer.rows
        writer.write(10, episode(1))  # received after the checkpoint, before the next step
        writer.write(20, UpdateRow(20, 1.0, 1.0))
        writer.write(20, EventRow("a warning"))
    with MetricsWriter(tmp_path) as writer:
        writer.write(10, ResumeRow(saved))
        assert read_counts() == [("episode", 0), ("event", None), ("resume", None)]
        writer.write(10, episode(1))
        saved = writer.rows
        writer.write(20, episode(2))
    with MetricsWriter(tmp_path) as writer:
        assert writer.rows == 7
        writer.write(20, ResumeRow(saved))
        writer.write(20, episode(2))
    kept = [number for kind, number in read_counts() if kind == "episode"]
    assert kept == [0, 1, 2]


def test_event_files_equal_those_of_torch_summary_writer(tmp_path: Path) -> None:
    """Compare with torch's `SummaryWriter`, which `serl.log` itself may not import."""
    from torch.utils.tensorboard import SummaryWriter

    with MetricsWriter(tmp_path / "own") as writer:
        writer.write(30, EvaluationRow(20, 10, 7, 1.25, "selection"))
        writer.write(20, ResumeRow(0))
        writer.write(30, EvaluationRow(20, 10, 9, 0.1, "selection"))
    for successes, cycle_time_s, purge_step in ((7, 1.25, None), (9, 0.1, 21)):
        scalars = {"checkpoint": 20, "trials": 10, "successes": successes}
        with SummaryWriter(str(tmp_path / "torch"), purge_step=purge_step) as theirs:
            for name, value in {**scalars, "cycle_time_s": cycle_time_s}.items():
                theirs.add_scalar(f"evaluation/{name}", value, 30)
    own = list(_events(tmp_path / "own/tensorboard"))
    assert own == list(_events(tmp_path / "torch"))
    assert len(own) == 9


def _events(folder: Path) -> Iterator[Any]:
    """Yield the values and session logs of all event files in a folder, oldest file first."""
    for file in sorted(
        folder.iterdir(), key=lambda each: list(map(int, _DIGITS.findall(each.name)))
    ):
        for event in EventFileLoader(str(file)).Load():
            if event.HasField("session_log"):
                yield event.step, event.session_log
            for value in event.summary.value:
                yield event.step, value


def test_missing_metrics_file_has_no_rows(tmp_path: Path) -> None:
    assert read_metrics(tmp_path / "metrics.jsonl") == []


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("not json", "byte 56 is not JSON"),
        ("[1, 2]", 'byte 56: expected an object with "kind"'),
        ('{"kind": 3, "time_s": 0, "steps": 0}', "byte 56: expected an object"),
        ('{"kind": "event", "steps": 0}', "byte 56: time_s must be a number from 0, got None"),
        ('{"kind": "event", "time_s": 0, "steps": true}', "byte 56: steps must be"),
        ('{"kind": "resume", "time_s": 0, "steps": 1}', "byte 56: rows must be a number from 0"),
        ('{"kind": "event", "time_s": NaN, "steps": 0}', "byte 56: time_s must be"),
    ],
)
def test_damaged_metrics_line_is_named_and_others_are_read(
    tmp_path: Path, line: str, message: str
) -> None:
    path = tmp_path / "metrics.jsonl"
    content = '{"kind": "event", "time_s": 3, "steps": 7, "text": "a"}\n' + line + "\n"
    path.write_text(content)
    with MetricsWriter(tmp_path) as writer:
        assert writer.rows == 2
        assert writer.time_s >= 3
        writer.write(8, EventRow("b"))
    first, damaged, last = read_metrics(path)
    assert (first["text"], last["text"]) == ("a", "b")
    assert (damaged["kind"], damaged["time_s"], damaged["steps"]) == ("event", 3, 7)
    assert message in damaged["text"]
    assert path.read_text().startswith(content)


def test_full_disk_is_reported_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, pieces: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "writev", full)
    with MetricsWriter(tmp_path) as writer, pytest.raises(SerlError, match=r"jsonl: No space left"):
        writer.write(1, EventRow("a"))


def test_tensorboard_reads_scalars(tmp_path: Path) -> None:
    with MetricsWriter(tmp_path) as writer:
        writer.write(42, EPISODE)
        writer.write(43, EventRow("text is not a scalar"))
    (file,) = (tmp_path / "tensorboard").iterdir()
    scalars = {
        value.tag: (event.step, value.tensor.float_val[0] if value.tensor.float_val else None)
        for event in EventFileLoader(str(file)).Load()
        for value in event.summary.value
    }
    assert scalars["episode/length"] == (42, 42.0)
    assert scalars["episode/success"] == (42, 1.0)
    assert not any(tag.startswith("event/") or tag.endswith("/reason") for tag in scalars)


def test_wandb_without_package_names_the_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(wandb_run, "find_spec", lambda name: None)
    with pytest.raises(BadInput, match=r"pip install 'serl\[wandb\]'"):
        run_settings("reach", {}, {"log": {"wandb": "offline"}})


class FakeWandb(ModuleType):
    """The functions of `wandb` that serl calls; `begun` and `logged` are their arguments."""

    def __init__(self, account: bool = True) -> None:
        super().__init__("wandb")
        self.account, self.fails = account, False
        self.begun, self.logged = list[dict[str, Any]](), list[dict[str, float]]()
        self.Settings = dict

    def login(self, prompt: bool, verify: bool) -> bool:
        assert not prompt
        assert not verify
        return self.account

    def init(self, **arguments: Any) -> FakeWandb:
        self.begun.append(arguments)
        return self

    def define_metric(self, name: str, step_metric: str = "") -> None:
        assert name == "steps" or step_metric == "steps"

    def log(self, numbers: dict[str, float]) -> None:
        if self.fails:
            raise ConnectionError("closed")
        self.logged.append(numbers)

    def finish(self) -> None:
        if self.fails:
            raise ConnectionError("the service\nis gone")


def use(fake: FakeWandb, monkeypatch: pytest.MonkeyPatch) -> FakeWandb:
    monkeypatch.setattr(wandb_run, "find_spec", lambda name: name)
    monkeypatch.setitem(sys.modules, "wandb", fake)
    return fake


def test_wandb_without_account_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    use(FakeWandb(account=False), monkeypatch)
    with pytest.raises(BadInput, match=r"^log\.wandb: no account: `wandb login` first, or"):
        run_settings("reach", {}, {"log": {"wandb": True}})
    run_settings("reach", {}, {"log": {"wandb": "offline"}})


@pytest.mark.slow  # waits for the connection
def test_wandb_without_connection_writes_files_for_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("wandb", reason="pip install 'serl[wandb]'")
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("WANDB_API_KEY", "a" * 40)
    with MetricsWriter(tmp_path / "reach" / "one", wandb="online") as metrics:
        metrics.write(10, EPISODE)
    assert "connection refused; later, send with `wandb sync" in caplog.text
    (file,) = tmp_path.glob("reach/one/wandb/offline-*/*.wandb")
    assert b"episode/success" in file.read_bytes()


def test_wandb_run_is_resumed_under_its_id_and_training_goes_on_without_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fake, run = use(FakeWandb(), monkeypatch), tmp_path / "reach" / "one"
    for _ in range(2):
        with MetricsWriter(run, wandb="online") as metrics:
            metrics.write(10, EPISODE)
            fake.fails = True
            metrics.write(20, EPISODE)
            metrics.write(30, EPISODE)
        fake.fails = False
    for folder in (run / "stages" / "forward", tmp_path / "again" / "reach" / "one"):
        MetricsWriter(folder, wandb="online").close()
    names, ids = ([each[key] for each in fake.begun] for key in ("name", "id"))
    assert names == ["reach-one", "reach-one", "one-forward", "reach-one"]
    assert (ids[0] == ids[1], len(set(ids))) == (True, 3)
    assert {each["resume"] for each in fake.begun} == {"allow"}
    assert [each["steps"] for each in fake.logged] == [10, 10]
    assert caplog.text.count("log.wandb: no more metrics: closed") == 2
    last = "log.wandb: the last metrics may be missing: ConnectionError: the service is gone"
    assert caplog.text.count(last) == 2


@pytest.mark.slow
def test_wandb_file_contains_metrics(tmp_path: Path) -> None:
    pytest.importorskip("wandb", reason="pip install 'serl[wandb]'")
    row = EpisodeRow("actor0", 0, 10, True, False, 1.0, 0, 0, "success", 1.0, 0)
    with MetricsWriter(tmp_path / "reach" / "one", wandb="offline") as metrics:
        metrics.write(10, row)
        metrics.write(25, row)
    (file,) = tmp_path.rglob("*.wandb")
    content = file.read_bytes()  # uncompressed protobuf records
    for name in (b"episode/reward", b"episode/length", b"steps", b"reach-one"):
        assert name in content
