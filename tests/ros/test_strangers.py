"""Rejection of messages from a process without the run's key in the run's domain."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from serl.log.episode_log import EpisodeLog
from serl.ros.testing.processes import eventually
from serl.system.authentication import RUN_KEY
from serl.training.link import decode_snapshot
from serl.types import Key

from .conftest import EPISODE_STEPS, SPEC, Run, expected, record

pytestmark = pytest.mark.ros

FORGING = str(Path(__file__).parent / "support/forging_process.py")
HALF = 25


def test_forged_messages_without_run_key_are_dropped_and_counted(run: Run) -> None:
    """Forge frames, actors, acknowledgements, refusals and weights with `forging_process.py`."""
    name, link_folder = run.folder.name, run.link_folder("a")
    keys = [Key(name, "a", 1, 0, index) for index in range(EPISODE_STEPS + 1)]
    rng = np.random.default_rng(1)
    run.announce("a", 1)
    run.start_learner("a")
    link = run.start_link("a")
    with EpisodeLog(run.folder / "episodes" / "a", SPEC, name, "a", 1) as log:
        for key in keys[:HALF]:
            log.append(record(key, rng))
        eventually(lambda: len(run.received()) == HALF, found=run.tell)
        run.start(FORGING, str(run.folder), str(link_folder / "hello.json"), str(HALF))
        eventually((run.folder / "forged").exists)
        assert run.received() == expected("a", 1, 1)[:HALF]  # no forged frame, no actor "evil"
        for key in keys[HALF:]:
            log.append(record(key, rng))
        everything = len(keys)  # no forged acknowledgement
        eventually(lambda: len(run.received()) == everything, found=run.tell)
    assert run.received() == expected("a", 1, 1)
    assert link.poll() is None  # no forged refusal
    path = link_folder / "weights.safetensors"
    eventually(path.exists)
    weights = decode_snapshot(path.read_bytes(), SPEC.digest)
    assert weights.weights["folder"].tobytes() == str(run.folder).encode()
    eventually(lambda: run.counts()["unauthenticated"] >= 20)  # frames and hellos
    said = "".join(run.end())
    for topic in ("transitions", "actors", "transitions/ack", "policy/weights", "refused"):
        assert f"{topic}: dropped a message without this run's tag" in said
    assert (run.folder / RUN_KEY).stat().st_mode & 0o777 == 0o600
