"""Bit-exact behaviour as hashes: episodes of every task, learned weights, guard setpoints.

A change of structure leaves every hash as it is. A change of behaviour updates `data/probe.json`
with `SERL_PROBE=write python -m pytest tests/test_probe.py`, and its commit gives the reason.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from serl import plugins
from serl.agent import State
from serl.clock import VirtualClock
from serl.guard.guard import GuardState
from serl.loop import EpisodeKey, RecordCallback, run
from serl.motion import Pose
from serl.policy import RandomPolicy
from serl.runs.assembly import make_learner
from serl.runs.config import resolve
from serl.runs.demonstrations import record_expert
from serl.runs.task_setup import make_task
from serl.setpoint import Setpoint
from serl.testing import InProcess
from serl.types import Record, Step

from .support.guarding import DOWN, driving

HASHES = Path(__file__).with_name("data") / "probe.json"
VERSIONS = {"libc": platform.libc_ver()[1]} | {
    name: version(name) for name in ("mujoco", "numpy", "torch")
}
EPISODES, UPDATES = 2, 200
SMALL = {
    "steps": 1000,
    "agent": {"threads": 1, "batch_size": 16, "hidden": (32, 32), "bc_warm_start": 50},
    "learner": {"warm_up": 50},
}
LEARNERS: dict[str, dict[str, Any]] = {
    "sac from state": {"task": "pick_cube"},
    "sac from pixels": {"task": "peg_insertion", "observe": "pixels", "agent": {"batch_size": 8}},
    "bc": {"task": "pick_cube", "agent": {"algorithm": "bc"}},
    "hybrid": {"task": "pick_cube", "agent": {"algorithm": "hybrid"}},
    "vice": {"task": "pick_cube", "reward": {"kind": "vice"}},
}


class NullMetrics:
    """Metrics writer that discards all rows."""

    def write(self, steps: int, row: object) -> None: ...


def digest(arrays: Iterable[object]) -> str:
    found = hashlib.sha256()
    for array in arrays:
        value = np.asarray(array)
        found.update(f"{value.dtype} {value.shape} ".encode())
        found.update(value.tobytes())
    return found.hexdigest()


def machine() -> dict[str, str]:
    """Return the versions and results that identify how this machine rounds.

    Kernels depend on the exact processor, so sample results identify it better than its name.
    """
    rng = np.random.default_rng(0)
    found: list[object] = [
        f(x) for f in (math.sin, math.exp, math.atan) for x in rng.normal(size=9)
    ]
    for kind in (np.float64, np.float32):
        for rows, inner, columns in ((3, 3, 1), (6, 9, 9), (16, 40, 32), (64, 128, 128)):
            a, b = rng.normal(size=(rows, inner)), rng.normal(size=(inner, columns))
            found += [
                a.astype(kind) @ b.astype(kind),
                np.sin(a.astype(kind)),
                np.exp(b.astype(kind)),
            ]
        found.append(np.linalg.solve(rng.normal(size=(6, 6)).astype(kind), np.ones(6, kind)))
    generator = torch.Generator().manual_seed(0)
    for batch in (1, 8, 16):
        seen = torch.randn(batch, 3, 32, 32, generator=generator)
        many = torch.randn(10, batch, 32, generator=generator)
        layers = [torch.nn.Conv2d(3, 8, 3, 2), torch.nn.Flatten(), torch.nn.Linear(1800, 32)]
        weights = [weight for layer in layers for weight in layer.parameters()]
        for weight in weights:
            torch.nn.init.normal_(weight, 0, 0.1, generator=generator)
        network = torch.nn.Sequential(*layers, torch.nn.LayerNorm(32), torch.nn.Tanh())
        optimizer = torch.optim.Adam(weights, 0.01)
        for _ in range(3):
            loss = torch.nn.functional.softplus(network(seen) * many).exp().log().std(0).mean()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        found += [torch.bmm(many, many.mT), torch.bmm(many.bfloat16(), many.bfloat16().mT).float()]
        found += [weight.detach() for weight in weights]
        found += [f(seen) for f in (torch.sum, torch.sigmoid, torch.log1p, torch.std, torch.norm)]
    capability = torch.backends.cpu.get_cpu_capability()
    return VERSIONS | {"processor": capability, "arithmetic": digest(found)[:16]}


MACHINE = machine()  # before an agent sets the matmul precision of this process


def check(name: str, values: Callable[[], Iterable[object]]) -> None:
    """Compare a hash with the record of this kind of machine, or record it if requested.

    Without a record to compare with, the values are not computed.
    """
    records = json.loads(HASHES.read_text())
    known = next((record for record in records if record["machine"] == MACHINE), None)
    if os.environ.get("SERL_PROBE") == "write":
        if known is None:
            records.append(known := {"machine": MACHINE, "sha256": {}})
        known["sha256"][name] = digest(values())
        HASHES.write_text(json.dumps(records, indent=1, sort_keys=True) + "\n")
    if known is None:
        pytest.skip(f"recorded on other machines: {[record['machine'] for record in records]}")
    if name not in known["sha256"]:
        pytest.skip("is newer than the record of this machine")
    assert known["sha256"][name] == digest(values())


def of_record(record: Record) -> Iterable[object]:
    """Yield all fields of a record except its times."""
    key, seen = record.key, record.observation
    yield from (key.run, key.actor, key.epoch, key.episode, key.index)
    for values in (seen.state, seen.images):
        for name, value in values.items():
            yield from (name, value)
    if isinstance(record, Step):
        yield from (record.requested, record.action, record.reward, record.reward_provenance)
        yield from (record.terminated, record.truncated, str(record.source), record.policy_version)
    else:
        yield from (record.success, record.text)


def of_weights(state: State) -> Iterable[object]:
    for name in sorted(state):
        yield from (name, state[name])


def recorded(settings: Mapping[str, Any], steps: int = 0) -> tuple[list[Record], list[Record]]:
    """Record two expert episodes, and two or more random ones of at least `steps` steps."""
    task = make_task(resolve(settings))
    robot = plugins.make_simulation(task)
    expert: list[Record] = []
    record_expert(robot, task, expert.append, EPISODES, 0, EpisodeKey("probe", "expert", 0, 0))
    chance: list[Record] = []
    policy = RandomPolicy(robot.action_spec, 0)
    episode = 0
    while episode < EPISODES or len(chance) <= steps:
        robot.reset(1000 + episode)
        clock = VirtualClock(robot.advance, task.config.rate_hz)
        key = EpisodeKey("probe", "chance", 0, episode)
        run(robot, task, lambda seen: policy(seen), clock, key, [RecordCallback(chance.append)])
        episode += 1
    return expert, chance


@pytest.mark.parametrize("name", plugins.names("task"))
def test_recorded_episodes_of_task_match_hash(name: str) -> None:
    def values() -> Iterable[object]:
        for records in recorded({"task": name}):
            for record in records:
                yield from of_record(record)

    check(f"task {name}", values)


@pytest.mark.parametrize("name", LEARNERS)
def test_learned_weights_match_hash(name: str) -> None:
    check(f"learner {name}", lambda: of_weights(learned(LEARNERS[name])))


def learned(settings: Mapping[str, Any]) -> State:
    """Return the state of an agent after `UPDATES` updates."""
    tuned = make_task(resolve(settings)).training_defaults()
    config = resolve(tuned, SMALL, settings)
    demonstrations, online = recorded(settings, steps=UPDATES + EPISODES)
    transport = InProcess()
    transport.send(online)
    learner = make_learner(config, transport, NullMetrics(), lambda *saved: None, demonstrations)
    while learner.progress.steps < UPDATES:
        assert learner.step()
    return learner.agent.state_dict()


def test_guard_setpoints_match_hash() -> None:
    check("guard", setpoint_values)


def setpoint_values() -> Iterable[object]:
    """Cover targets in and out of the box, contacts, silence, and release of a protective stop."""
    loop = driving()
    rng = np.random.default_rng(0)
    for second in range(60):
        place = rng.uniform((0.25, -0.25, 0.0), (0.65, 0.25, 0.45))
        loop.target = Pose(tuple(place), DOWN)
        loop.mode = ("policy", "policy", "teleop", "reset", None)[second % 5]
        loop.force[2] = (0.0, 0.0, 16.0, 0.0, 0.0, 0.0, 31.0)[second % 7]
        loop.measured = {"pose", "joints", "wrench"} - ({"pose"} if second % 11 == 10 else set())
        for _ in range(100):
            yield from of_setpoint(loop.tick())
        if loop.guard.state is GuardState.PROTECTIVE_STOP:
            loop.mode, loop.force[2] = None, 0.0
            loop.measured = {"pose", "joints", "wrench"}
            loop.tick(100)
            loop.guard.ack(loop.now_s)
            loop.guard.arm(loop.now_s)


def of_setpoint(setpoint: Setpoint | None) -> Iterable[object]:
    if setpoint is None:
        yield "none"
    else:
        yield from (*setpoint.pose, setpoint.velocity, setpoint.angular_velocity)
        yield from (setpoint.acceleration, setpoint.angular_acceleration)
