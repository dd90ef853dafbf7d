from __future__ import annotations

import os
import shutil
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from serl.cli.main import main
from serl.errors import BadInput
from serl.log.compression import compact
from serl.log.episode_log import EpisodeLog
from serl.log.episode_reader import PART, episode_paths
from serl.log.index import Index
from serl.log.manifest import MANIFEST
from serl.log.recovery import recover
from serl.runs import checkpoint
from serl.runs.config import TrainConfig
from serl.runs.folder import RunFolder
from serl.runs.verify import verify
from serl.testing.samples import (
    ACTOR,
    CONFIG,
    EPOCH,
    RUN,
    SPEC,
    leave_open,
    random_records,
    write_log,
)
from serl.types import Step

from ..support.mutations import flip

LATER, DEMONSTRATED = EPOCH + 1, EPOCH - 1
FIRST = f"{EPOCH}-000000.mcap"


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    """Create a run with two actor starts, one of them crashed, demonstrations and checkpoints."""
    folder = RunFolder.create(tmp_path, TrainConfig(), datetime(2026, 11, 21))
    episodes = folder.episodes(ACTOR)
    first = random_records(3, 2, 4)
    write_log(episodes, first)
    second = random_records(2, 3, epoch=LATER)[:5]
    with EpisodeLog(episodes, SPEC, RUN, ACTOR, LATER, CONFIG) as log:
        for record in second:
            log.append(record)
    write_log(folder.demonstrations, random_records(2, epoch=DEMONSTRATED), DEMONSTRATED)
    with Index(folder.index) as index:
        index.accept([*first[:7], *second[:2]])
        index.accept(first[7:])
        index.accept(second[2:])
    info = {"taken": [[ACTOR, EPOCH, 12], [ACTOR, LATER, 5]], "trained": {ACTOR: 13}, "version": 3}
    for step in (10, 13):
        folder.save_checkpoint(step, {"agent": {"w": np.zeros(3, np.float32)}}, info)
    return folder


def execute(path: Path, statement: str, *values: object) -> None:
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(statement, values)


def test_images_that_a_person_labelled_are_verified(tmp_path: Path) -> None:
    folder = RunFolder.create_at(tmp_path / "images", TrainConfig(), datetime(2026, 11, 27))
    write_log(folder.path, random_records(3, 2, 4))
    assert verify(folder.path).contents[0].episodes == 3
    flip(folder.path / FIRST)
    assert not verify(folder.path).sound


def test_complete_run_is_sound(run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    read = list[None]()
    report = verify(run.path, lambda: read.append(None))
    assert report.sound
    assert len(read) == sum(contents.episodes for contents in report.contents)
    assert report.checkpoints == 2
    actor, demonstrations = report.contents
    assert actor._asdict() == {
        "actor": ACTOR,
        "starts": 2,
        "episodes": 5,
        "records": 17,
        "truncated": 1,
        "open": 0,
        "quarantined": 0,
        "accepted": 17,
    }
    assert (demonstrations.records, demonstrations.accepted) == (3, 0)
    assert main(["verify", str(run.path)]) == 0
    progress, *_, records, accepted, result = capsys.readouterr().out.splitlines()
    assert progress == f"episodes of {run.path}: 1 of {len(read)}"
    assert records == "records: steps, and one record at the end of each episode"
    assert accepted.startswith("accepted: records that a learner took; ")
    assert "lost 0, duplicated 0" in result


def test_compressed_images_are_sound(run: RunFolder) -> None:
    for path in episode_paths(run.episodes(ACTOR))[:2]:
        assert compact(path, CONFIG)
    assert verify(run.path).sound


def test_open_episode_is_sound(run: RunFolder) -> None:
    items = random_records(3, epoch=LATER + 1)
    with EpisodeLog(run.episodes(ACTOR), SPEC, RUN, ACTOR, LATER + 1, CONFIG) as log:
        for item in items[:2]:
            log.append(item)
        report = verify(run.path)
    assert report.sound
    assert (report.contents[0].open, report.contents[0].records) == (1, 19)


def test_recovered_episode_is_sound_and_counted(run: RunFolder, tmp_path: Path) -> None:
    part = leave_open(tmp_path, random_records(3, epoch=LATER + 1)[:2], epoch=LATER + 1)
    (run.episodes(ACTOR) / part.name).write_bytes(part.read_bytes()[:-100])
    recover(run.episodes(ACTOR))
    report = verify(run.path)
    assert report.sound
    assert (report.contents[0].quarantined, report.contents[0].truncated) == (1, 2)


def test_running_run_is_sound_at_every_moment(run: RunFolder) -> None:
    """Verify while another thread begins and seals episodes."""
    begun = threading.Event()

    def act() -> None:
        with EpisodeLog(run.episodes("busy"), SPEC, RUN, "busy", LATER, CONFIG) as log:
            for record in random_records(*[1] * 150, epoch=LATER):
                log.append(replace(record, key=replace(record.key, actor="busy")))
                begun.set()

    actor = threading.Thread(target=act)
    actor.start()
    begun.wait()
    findings: list[str] = []
    while actor.is_alive():
        findings += verify(run.path).findings
    actor.join()
    assert findings == []
    assert verify(run.path).contents[1].records == 300


def test_records_of_another_actor_are_reported(run: RunFolder) -> None:
    run.episodes(ACTOR).rename(other := run.episodes("other"))
    assert verify(run.path).findings[0] == (
        f"{other / FIRST}: of run/actor0/{SPEC.digest} (run, actor, spec), "
        f"expected run/other/{SPEC.digest}"
    )


def lose_file(run: RunFolder) -> None:
    (run.episodes(ACTOR) / FIRST).unlink()


def link_file_to_nothing(run: RunFolder) -> None:
    lose_file(run)
    (run.episodes(ACTOR) / FIRST).symlink_to("nothing")


def lose_line(run: RunFolder) -> None:
    manifest = run.episodes(ACTOR) / MANIFEST
    manifest.write_bytes(b"".join(manifest.read_bytes().splitlines(keepends=True)[1:]))


def lose_file_and_line(run: RunFolder) -> None:
    lose_file(run)
    lose_line(run)


def cut_sealed_episode(run: RunFolder) -> None:
    folder = run.path / "elsewhere"
    (path,) = write_log(folder, random_records(3)[:2])
    path.replace(run.episodes(ACTOR) / FIRST)
    line = (folder / MANIFEST).read_bytes()
    with (run.episodes(ACTOR) / MANIFEST).open("ab") as manifest:
        manifest.write(line)


def rename_episode(run: RunFolder) -> None:
    (run.episodes(ACTOR) / FIRST).rename(run.episodes(ACTOR) / f"{EPOCH}-000009.mcap")


def lose_tail_of_start(run: RunFolder) -> None:
    lose = run.episodes(ACTOR) / f"{LATER}-000001.mcap"
    lose.unlink()


def accept_twice(run: RunFolder) -> None:
    execute(run.index, "INSERT INTO span VALUES (99, ?, ?, 3, 4, NULL, NULL)", ACTOR, EPOCH)


def skip_records(run: RunFolder) -> None:
    execute(run.index, "UPDATE span SET first = 9, length = 3 WHERE first = 7")


def accept_unknown(run: RunFolder) -> None:
    execute(run.index, "INSERT INTO span VALUES (99, 'ghost', 1, 0, 4, NULL, NULL)")


def damage_index(run: RunFolder) -> None:
    run.index.write_bytes(b"no database" * 100)


def damage_checkpoint(run: RunFolder) -> None:
    flip(checkpoint.checkpoint_paths(run.checkpoints)[0] / "agent.safetensors")


def take_too_much(run: RunFolder) -> None:
    info: dict[str, Any] = {"taken": [[ACTOR, EPOCH, 13]], "trained": {ACTOR: 1}, "version": 1}
    run.save_checkpoint(20, {"agent": {"w": np.zeros(3, np.float32)}}, info)


def lose_index(run: RunFolder) -> None:
    run.index.unlink()


def empty_index(run: RunFolder) -> None:
    run.index.write_bytes(b"")


def lose_checkpoints(run: RunFolder) -> None:
    for path in checkpoint.checkpoint_paths(run.checkpoints):
        shutil.rmtree(path)


def lose_manifest(run: RunFolder) -> None:
    (run.episodes(ACTOR) / MANIFEST).unlink()


def lose_demonstrations(run: RunFolder) -> None:
    shutil.rmtree(run.demonstrations)


def flip_step(run: RunFolder) -> None:
    path = run.episodes(ACTOR) / FIRST
    flip(path, int(0.45 * path.stat().st_size))


def damage_demonstration(run: RunFolder) -> None:
    flip(run.demonstrations / f"{DEMONSTRATED}-000000.mcap")


@pytest.mark.parametrize(
    ("harm", "lost", "duplicated", "finding"),
    [
        (flip_step, 3, 0, "the checksum of the chunk does not match"),
        (lose_file, 4, 0, "000000.mcap: gone, with 4 records"),
        (link_file_to_nothing, 4, 0, "000000.mcap: gone, with 4 records"),
        (lose_file_and_line, 4, 0, "000000.mcap: missing"),
        (lose_line, 0, 0, "000000.mcap: not listed in MANIFEST.jsonl"),
        (cut_sealed_episode, 2, 0, "000000.mcap: cut after 2 records, yet others follow"),
        (rename_episode, 4, 0, "000009.mcap: byte 33: holds episode '0', named as another"),
        (lose_tail_of_start, 2, 0, "000001.mcap: gone, with 2 records"),
        (accept_twice, 0, 4, "0 passed over, 4 accepted again"),
        (skip_records, 2, 0, "2 passed over, 0 accepted again"),
        (accept_unknown, 4, 0, "4 records of the start 1 are missing, which the learner accepted"),
        (damage_index, 0, 0, "index.sqlite: file is not a database"),
        (damage_checkpoint, 0, 0, "agent.safetensors: the sha256 does not match"),
        (take_too_much, 0, 0, "took 13 records of"),
        (damage_demonstration, 2, 0, "demonstrations"),
        (lose_index, 0, 0, "index.sqlite: missing"),
        (empty_index, 0, 0, "index.sqlite: not an index of a run"),
        (lose_checkpoints, 0, 0, "checkpoints/latest: does not name a checkpoint"),
        (lose_manifest, 0, 0, "MANIFEST.jsonl: lists none of 5 files"),
        (lose_demonstrations, 0, 0, "demonstrations: missing"),
    ],
)
def test_damage_is_counted_and_named(
    run: RunFolder, harm: Callable[[RunFolder], None], lost: int, duplicated: int, finding: str
) -> None:
    harm(run)
    report = verify(run.path)
    assert not report.sound
    assert any(finding in line for line in report.findings), report.findings
    assert (report.lost, report.duplicated) == (lost, duplicated)
    assert harm is not flip_step or len(report.findings) == 1, "without its consequences"
    assert (
        str(report)
        .splitlines()[-1]
        .startswith(f"lost {lost}, duplicated {duplicated}: {len(report.findings)} finding")
    )


def test_control_characters_in_names_are_escaped(run: RunFolder) -> None:
    report = verify(run.path)
    lines = str(report._replace(findings=(f"{run.path}: named \x1b[31m\x07",))).splitlines()
    assert f"{run.path}: named \\x1b[31m\\x07" in lines


def test_crash_between_manifest_and_final_name_is_sound(run: RunFolder) -> None:
    path = run.episodes(ACTOR) / f"{LATER}-000001.mcap"
    path.rename(path.with_name(path.name.replace(".mcap", PART)))
    report = verify(run.path)
    assert report.sound
    assert report.contents[0].open == 1
    recover(run.episodes(ACTOR))
    assert verify(run.path).sound


@pytest.mark.parametrize(
    "name", ["episodes/actor0/MANIFEST.jsonl", "demonstrations/MANIFEST.jsonl", "index.sqlite"]
)
def test_irregular_file_is_a_finding(
    run: RunFolder, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    path = run.path / name
    path.unlink()
    os.mkfifo(path)
    assert main(["verify", str(run.path)]) == 1
    assert f"{path}: is a FIFO, expected a regular file" in capsys.readouterr().out


def test_learned_record_that_differs_from_log_is_found(tmp_path: Path) -> None:
    """This happens if another sender uses the actor's next sequence number first."""
    run = RunFolder.create(tmp_path, TrainConfig(), datetime(2026, 11, 21))
    records = random_records(3, 2, 4)
    write_log(run.episodes(ACTOR), records)
    learned = list(records)
    for place in (1, 5):
        step = learned[place]
        assert isinstance(step, Step)
        learned[place] = replace(step, reward=step.reward + 1e-3)
    pixels = {name: image.copy() for name, image in learned[8].observation.images.items()}
    pixels["front"][0, 0, 0] ^= 1
    learned[8] = replace(learned[8], observation=replace(learned[8].observation, images=pixels))
    with Index(run.index) as index:
        index.accept(learned)
    report = verify(run.path)
    assert (report.lost, report.duplicated, report.uncompared) == (0, 0, 0)
    assert report.findings == (
        f"{run.episodes(ACTOR)}: 3 records of the start {EPOCH} were learned that the log does "
        "not hold, the first is record 1",
    )


def test_content_is_compared_after_missing_episodes(run: RunFolder) -> None:
    lose_file(run)
    execute(run.index, "UPDATE content SET checksums = zeroblob(length(checksums))")
    assert any("8 records" in text for text in verify(run.path).findings)


def test_lossy_images_are_not_compared(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, TrainConfig(), datetime(2026, 11, 21))
    records = random_records(3, 2)
    paths = write_log(run.episodes(ACTOR), records)
    with Index(run.index) as index:
        index.accept(records)
    for path in paths:
        assert compact(path, CONFIG.model_copy(update={"images": "jpeg"}))
    assert verify(run.path).sound


def test_run_without_checksums_in_index_is_sound_with_remark(
    run: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    with closing(sqlite3.connect(run.index)) as database:
        database.executescript("DROP TABLE content; PRAGMA user_version = 1;")
    report = verify(run.path)
    assert report.sound
    assert report.uncompared == 17
    assert main(["verify", str(run.path)]) == 0
    assert "the content of 17 accepted records was not compared" in capsys.readouterr().out


def test_verify_refuses_folder_that_is_no_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(BadInput, match="expected the folder of a run"):
        verify(tmp_path)
    assert main(["verify", str(tmp_path / "absent")]) == 2
    assert "expected the folder of a run" in capsys.readouterr().err


def test_empty_run_is_sound(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, TrainConfig(), datetime(2026, 11, 21))
    report = verify(run.path)
    assert report.sound
    assert report.contents == ()
    assert not run.index.exists()
