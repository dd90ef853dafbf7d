from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np

from serl.errors import NeedsPerson
from serl.log.metrics import (
    FILE,
    EpisodeRow,
    MetricsWriter,
    RequestRow,
    ResumeRow,
    Row,
    read_metrics,
)
from serl.report.curves import (
    Assistance,
    assistance,
    quarters,
    reached,
    success_curve,
    total_assistance,
)
from serl.report.progress import ProgressReader
from serl.report.report import write_report
from serl.training.learner_stats import EpisodeTracker
from serl.types import ActionSource, End, Key, Observation, Step, parse_reason

REQUEST = RequestRow("actor0", "a person is needed: it fell off the table")


def make_episode_row(human_steps: int = 0, takeovers: int = 0) -> EpisodeRow:
    return EpisodeRow(
        "actor0", 0, 40, True, human_steps > 0, 1.0, human_steps, takeovers, "success", 4.0, 0
    )


def test_assistance_is_summed_over_all_episodes(tmp_path: Path) -> None:
    with MetricsWriter(tmp_path) as writer:
        for row in (
            make_episode_row(10, 2),
            make_episode_row(),
            REQUEST,
            make_episode_row(),
            make_episode_row(10, 1),
        ):
            writer.write(40, row)
    helped = assistance(read_metrics(tmp_path / FILE))
    assert helped == Assistance(episodes=4, steps=160, human_steps=20, takeovers=3, requests=1)
    assert helped.human_share == 0.125
    assert helped.requests_per_100 == 25.0
    assert str(helped) == "requests for a person: 1 in 4 episodes (25 per 100), takeovers: 3"
    both = total_assistance([helped, Assistance(episodes=96)])
    assert (both.requests_per_100, both.takeovers) == (1.0, 3)


def test_assistance_without_episodes_has_no_rate() -> None:
    assert math.isnan(total_assistance([]).requests_per_100)
    assert str(Assistance()) == "requests for a person: 0 in 0 episodes, takeovers: 0"


def test_request_repeated_after_resume_counts_once(tmp_path: Path) -> None:
    with MetricsWriter(tmp_path) as writer:
        for row in (make_episode_row(), REQUEST, ResumeRow(rows=1), REQUEST, make_episode_row()):
            writer.write(40, row)
    helped = assistance(read_metrics(tmp_path / FILE))
    assert (helped.requests, helped.episodes) == (1, 2)


def test_episodes_cut_by_ctrl_c_or_machine_are_no_failures(tmp_path: Path) -> None:
    cut = ("interrupted", "camera front: no image for 0.3 s")
    with MetricsWriter(tmp_path) as writer:
        for number, text in enumerate(("success",) * 10 + cut + ("success",) * 9 + ("time limit",)):
            row = replace(make_episode_row(), success=text == "success", reason=text)
            writer.write(40 * (number + 1), row)
    rows = read_metrics(tmp_path / FILE)
    assert success_curve(rows, np.array([400.0, 480.0, 880.0])).tolist() == [1.0, 1.0, 0.95]
    assert reached(rows)[0] == 880
    assert [part.unassisted for part in quarters(rows)] == [(5, 5), (5, 5), (4, 4), (5, 6)]
    assert [part.episodes for part in quarters(rows)] == [5, 6, 5, 6]
    assert ProgressReader("reach", tmp_path, 1000).read({}).unassisted_success == 0.95
    page = write_report(tmp_path).read_text()
    assert "Of its last 20 unassisted training episodes, 19 succeeded" in page


class RowList:
    def __init__(self) -> None:
        self.written: list[Row] = []

    def write(self, steps: int, row: Row) -> None:
        self.written.append(row)


def test_episode_tracker_records_only_requests_of_script_episodes() -> None:
    rows, observation = RowList(), Observation({})
    tracker = EpisodeTracker(rows, rate_hz=10.0)
    texts = ["time limit", str(NeedsPerson("it fell off the table")), "success"]
    for episode, text in enumerate(texts):
        action = np.zeros(2, np.float32)
        step = Step(
            Key("run", "actor0", 1, episode, 0), observation, action, action, 0.0, "truth",
            terminated=False, truncated=True, source=ActionSource.SCRIPT, policy_version=0,
            monotonic_s=0.0, wall_s=0.0,
        )  # fmt: skip
        reason, fault = parse_reason(text)
        end = End(Key("run", "actor0", 1, episode, 1), observation, False, reason, 0.0, 0.0, fault)
        tracker.add(step, 0, 0)
        tracker.add(end, 0, 0)
    assert rows.written == [REQUEST]
