"""Test labelled samples from a run's own log, including views only the classifier sees."""

from __future__ import annotations

from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from serl.agents.classifier import Card, Classifier
from serl.camera import View
from serl.errors import SpecMismatch
from serl.log.annotations import TRUTH_FILE, StepKey, append_labels, read_labels, read_tools
from serl.log.episode_log import EpisodeLog
from serl.log.episode_reader import episode_paths, read_episode
from serl.log.recovery import read_logged, survey
from serl.loop import EpisodeKey, RecordCallback
from serl.runs.assembly import make_actor, make_agent
from serl.runs.config import resolve
from serl.runs.folder import RunFolder
from serl.runs.reward_data import read_samples, read_sight
from serl.runs.task_setup import make_rewarded_task, make_spec, make_task
from serl.testing import InProcess
from serl.testing.samples import equal
from serl.transport import Snapshot
from serl.types import Record

JUDGE = View(camera="field", width=16, height=16)
LOG: dict[str, Any] = {"min_free_bytes": 0}


def make_run(root: Path, **log: Any) -> RunFolder:
    """Create a run with a view that only the classifier sees."""
    model = root / "model.safetensors"
    Classifier.create(Card(views={"judge": JUDGE}), torch.Generator().manual_seed(0)).save(model)
    settings = {
        "task": "pick_cube",
        "task_config": {"private_views": {"judge": JUDGE.model_dump()}, "time_limit_s": 0.5},
        "reward": {"kind": "classifier", "model": model, "threshold": 0.99},
        "intervention": "none",
        "demos": 0,
        "agent": {"hidden": [4]},
        "log": {**LOG, **log},
    }
    return RunFolder.create(root, resolve(settings), datetime(2026, 11, 22))


def act(run: RunFolder) -> list[Record]:
    """Log one episode of a policy received from a learner, and return its records."""
    kept: list[Record] = []
    transport = InProcess()
    learner = make_agent(run.config, make_spec(make_task(run.config)), 0)
    transport.publish(Snapshot(1, {}, learner.actor_weights()))
    spec = make_spec(make_rewarded_task(run.config))
    with EpisodeLog(run.episodes("a"), spec, run.name, "a", 1, run.config.log) as log:
        actor = make_actor(
            run.config,
            EpisodeKey(run.name, "a", 1, 0),
            transport,
            [log, RecordCallback(kept.append)],
            folder=run.episodes("a"),
        )
        with actor.robot:
            next(islice(actor.episodes(), 1))
        assert actor.policy.version == 1
    return kept


def test_private_view_in_log_of_run_can_be_labelled(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    records, folder = act(run), run.episodes("a")
    assert read_sight(folder) == ({"judge": JUDGE}, "ray")
    known = read_labels(folder, TRUTH_FILE)
    assert known == {StepKey(1, 0, 1): 0, StepKey(1, 0, 5): 0}, "labels from the simulation"
    append_labels(folder, [(StepKey(1, 0, 0), 1), (StepKey(1, 0, 3), 0)], "person")
    samples, views = read_samples([folder])
    assert views == {"judge": JUDGE}
    assert samples.labels.tolist() == [1, 0]
    assert (samples.images["judge"][1] == records[3].observation.images["judge"]).all()


def test_log_records_tool_position_of_each_step(tmp_path: Path) -> None:
    """The policy's observation does not include the TCP pose."""
    run = make_run(tmp_path)
    records, folder = act(run), run.episodes("a")
    assert "tcp_pose" not in records[0].observation.state
    append_labels(folder, [(StepKey(1, 0, 0), 1), (StepKey(1, 0, len(records) - 1), 0)], "person")
    motion, places = make_task(run.config).config.motion, read_samples([folder])[0].tools_m
    assert places.shape == (2, 3)
    assert (places > np.array(motion.box_low_m) - 0.05).all()
    assert (places < np.array(motion.box_high_m) + 0.05).all()
    ((name, noted),) = read_tools(folder).items()
    assert (name, len(noted)) == ((1, 0), len(records))
    assert np.array_equal(noted[[0, -1]], places)
    assert len(np.unique(noted, axis=0)) > 1, "the tool must have moved"


def test_learner_reads_log_without_private_views(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    records, spec = act(run), make_spec(make_task(run.config))
    assert not spec.observation.images
    found = list(read_logged(survey(run.episodes("a"), print), run.name, "a", spec, print))
    assert len(found) == len(records) == 6
    for mine, theirs in zip(found, records, strict=True):
        assert mine.key == theirs.key
        assert not mine.observation.images  # type: ignore[union-attr]
        assert equal(mine.observation.state, theirs.observation.state)  # type: ignore[union-attr]


def test_private_views_are_omitted_when_disabled(tmp_path: Path) -> None:
    run = make_run(tmp_path, private_views=False)
    records, folder = act(run), run.episodes("a")
    assert not any(record.observation.images for record in records)
    assert read_sight(folder).views == {}
    append_labels(folder, [(StepKey(1, 0, 0), 1)], "person")
    with_default_log = run.config.model_dump(mode="json") | {"log": LOG}
    path = run.path / "config.yaml"
    path.write_text(path.read_text().replace("private_views: false", "private_views: true"))
    assert RunFolder.open(run.path).config == resolve(with_default_log)
    with pytest.raises(SpecMismatch, match="was recorded without judge"):
        read_samples([folder])


def test_reading_unrecorded_image_is_refused(tmp_path: Path) -> None:
    run = make_run(tmp_path, private_views=False)
    act(run)
    (path,) = episode_paths(run.episodes("a"))
    more = make_spec(make_rewarded_task(make_run(tmp_path / "other").config))
    with pytest.raises(SpecMismatch, match=r"recorded != expected: observation\.images"):
        read_episode(path, more)
