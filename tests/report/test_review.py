from __future__ import annotations

import io
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from serl.clock import VirtualClock
from serl.errors import BadInput, CorruptData
from serl.log.annotations import LABELS_FILE, StepKey, append_labels
from serl.log.episode_log import EpisodeLog
from serl.loop import EpisodeKey
from serl.policy import RandomPolicy
from serl.report.playback import CUT
from serl.report.review import (
    RecordingFile,
    follow,
    newest,
    of_actor,
    pick,
    print_summary,
    print_table,
    recordings,
    replayed,
)
from serl.runs.config import resolve
from serl.runs.folder import RunFolder
from serl.specs import Spec
from serl.testing import FakeRobot, FakeTask, FakeTaskConfig, episode
from serl.types import ActionSource, Record, Step

from ..support.mutations import flip

TASK = FakeTask()
SPEC = Spec(
    task="fake",
    observation=TASK.observation_spec,
    action=TASK.config.motion.action_spec,
    rate_hz=10.0,
)


def records(
    number: int = 0, expert: bool = True, epoch: int = 1, seed: int = 0, task: FakeTask = TASK
) -> list[Record]:
    robot = FakeRobot()
    policy = task.expert(robot.truth, 0) if expert else RandomPolicy(robot.action_spec, 0)
    return episode(robot, task, policy, seed, EpisodeKey("run", "actor", epoch, number))


def record(folder: Path, *episodes: list[Record], epoch: int = 1) -> Path:
    with EpisodeLog(folder, SPEC, "run", "actor", epoch) as log:
        for items in episodes:
            for item in items:
                log.append(item)
    return folder


def with_human_steps(items: list[Record], *indices: int) -> list[Record]:
    """Set the action source of the given steps to human."""
    for index in indices:
        step = items[index]
        assert isinstance(step, Step)
        fields = {name: getattr(step, name) for name in step.__dataclass_fields__}
        items[index] = Step(**{**fields, "source": ActionSource.HUMAN})
    return items


def console() -> Console:
    return Console(file=io.StringIO(), highlight=False, width=80)


def output_of(to: Console) -> list[str]:
    assert isinstance(to.file, io.StringIO)
    return to.file.getvalue().splitlines()


def summary(folder: Path, number: int = 0) -> str:
    to = console()
    shown = replayed(pick(recordings(folder), number))
    assert shown is not None
    print_summary(to, shown)
    return "\n".join(output_of(to))


def test_episode_table_has_one_line_per_episode(tmp_path: Path) -> None:
    first = with_human_steps(records(0), 2, 3, 5)
    folder = record(tmp_path / "expert", first, records(1, expert=False), records(2)[:4])
    to = console()
    print_table(to, recordings(folder))
    head, *lines = (line.split(maxsplit=8) for line in output_of(to))
    assert head == [
        *("actor", "episode", "steps", "time", "return", "human", "success", "ended", "by")
    ]
    steps = len(first) - 1
    assert lines == [
        ["expert", "0", str(steps), f"{steps / 10:.1f}", "s", "1", "3", "yes", "success"],
        ["expert", "1", "30", "3.0", "s", "0", "0", "no", "time limit"],
        ["expert", "2", "4", "0.4", "s", "0", "0", "no", CUT],
    ]


def test_newest_episodes_are_those_of_each_actor(tmp_path: Path) -> None:
    run = RunFolder.create_at(tmp_path / "run", resolve({"task": "reach"}), datetime.now())
    for actor in ("a", "b"):
        record(run.episodes(actor), records(0), records(1), records(2))
    found = recordings(run.path)
    assert [(each.actor, each.number) for each in newest(found, 2)] == [
        *(("a", 1), ("a", 2)),
        *(("b", 1), ("b", 2)),
    ]
    assert newest(found, None) == found


def test_episodes_are_numbered_across_actor_starts(tmp_path: Path) -> None:
    record(tmp_path, records(0), records(1))
    record(tmp_path, records(0, epoch=2), epoch=2)
    assert [(item.number, item.path.name) for item in recordings(tmp_path)] == [
        (0, "1-000000.mcap"),
        (1, "1-000001.mcap"),
        (2, "2-000000.mcap"),
    ]


def test_episode_table_shows_open_file(tmp_path: Path) -> None:
    items = records()
    log = EpisodeLog(tmp_path, SPEC, "run", "actor", 1)
    for item in items[:3]:
        log.append(item)
    (tmp_path / "1-000001.part.mcap").write_bytes(b"")
    to = console()
    print_table(to, recordings(tmp_path))
    log.close()
    first, second = output_of(to)[1:]
    assert first.split()[2] == "3"
    assert second.endswith("no step was recorded yet")
    assert replayed(recordings(tmp_path)[1]) is None


def test_summary_shows_action_sources_and_reward(tmp_path: Path) -> None:
    items = with_human_steps(records(0), 1, 4, 5)
    steps = len(items) - 1
    text = summary(record(tmp_path / "demos", items))
    for part in (
        "fake · demos · episode 0",
        f"success after {steps} steps, {steps / 10:.1f} s · return 1",
        str(tmp_path / "demos" / "1-000000.mcap"),
        "source  ─█──██" + (steps - 6) * "─",
        f"policy {steps - 3} · human 3",
        "human: steps 1, 4-5",
        "▁█" + " " * (36 - steps) + "  sum 1",
        "position[",
    ):
        assert part in text, part


def test_summary_shows_labels_with_their_authors(tmp_path: Path) -> None:
    folder = record(tmp_path / "demos", records(0), records(1))
    append_labels(folder, [(StepKey(1, 0, 4), 1)], "the operator", 0.0)
    append_labels(folder, [(StepKey(1, 0, 4), 0), (StepKey(1, 1, 2), 1)], "person", 60.0)
    lines = summary(folder).splitlines()
    labels = [line.split() for line in lines if line.strip().startswith("label")]
    assert [words[:6] for words in labels] == [
        ["label", "step", "4:", "1", "by", "the"],
        ["label", "step", "4:", "0", "by", "person,"],
    ]
    append_labels(folder, [(StepKey(1, 0, step), step % 2) for step in range(20)], "person", 60.0)
    assert f"... 22 labels in total, in {LABELS_FILE}" in summary(folder)


def test_summary_shows_mean_clipping_of_actions(tmp_path: Path) -> None:
    robot = FakeRobot()
    into_a_corner = np.ones(2, np.float32)
    items = episode(robot, TASK, lambda seen: into_a_corner, 0, EpisodeKey("run", "actor", 1, 0))
    steps = [item for item in items if isinstance(item, Step)]
    cut = np.abs(np.array([step.requested - step.action for step in steps])).mean(axis=0)
    assert cut.min() > 0.3
    rows = {line[:18].strip(): line for line in summary(record(tmp_path, items)).splitlines()}
    assert [float(rows[axis].split()[-1]) for axis in "xy"] == pytest.approx(cut, abs=0.005)


def test_summary_of_long_episode_fits_narrow_terminal(tmp_path: Path) -> None:
    task = FakeTask(FakeTaskConfig(time_limit_s=30.0))
    items = with_human_steps(records(expert=False, task=task), 153)
    assert len(items) == 301  # 300 steps and the end
    text = summary(record(tmp_path, items))
    assert "█" in text.splitlines()[4], "a single human step must stay visible"
    assert max(map(len, text.splitlines()[3:])) <= 80


def test_follow_prints_each_step(tmp_path: Path) -> None:
    items = with_human_steps(records(0), 2)[:4]
    shown = replayed(recordings(record(tmp_path, items))[0])
    assert shown is not None
    to = console()
    waited: list[float] = []
    follow(to, shown, VirtualClock(waited.append, 10.0))
    assert len(waited) == 4
    assert [line.split()[:2] for line in output_of(to)] == [
        ["0", "policy"],
        ["1", "policy"],
        ["2", "human"],
        ["3", "policy"],
    ]


FOUND = [
    RecordingFile("left", 0, Path("a")),
    RecordingFile("left", 1, Path("b")),
    RecordingFile("right", 0, Path("c")),
]


def test_pick_selects_episode_by_number_and_actor() -> None:
    assert pick(FOUND, 1) == FOUND[1]
    assert pick(of_actor(FOUND, "right"), 0) == FOUND[2]
    assert of_actor(FOUND, None) == FOUND
    with pytest.raises(BadInput, match=r"several actors have an episode 0: .*left, right"):
        pick(FOUND, 0)
    with pytest.raises(BadInput, match="no episode 7: there are left 0 to 1, right 0 to 0"):
        pick(FOUND, 7)
    with pytest.raises(BadInput, match="no actor 'middle': expected one of left, right"):
        of_actor(FOUND, "middle")


def test_damaged_episode_file_is_refused_with_name_and_byte(tmp_path: Path) -> None:
    record(tmp_path, records(0))
    path = tmp_path / "1-000000.mcap"
    flip(path)
    with pytest.raises(CorruptData, match=r"1-000000.mcap: byte \d+: "):
        print_table(console(), recordings(tmp_path))


def test_recordings_refuses_foreign_folder(tmp_path: Path) -> None:
    (tmp_path / "cat.jpg").write_text("")
    with pytest.raises(BadInput, match=r"found no config.yaml"):
        recordings(tmp_path)
    with pytest.raises(BadInput, match="found no folder"):
        recordings(tmp_path / "absent")
