from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from serl.clock import VirtualClock
from serl.errors import CorruptData
from serl.training.learned_policy import LearnedPolicy
from serl.training.link import WeightsFile, encode_snapshot
from serl.types import Action, Observation

from ..support.acting import ActorBench, ConstantAgent, snapshot


def test_policy_loads_new_weights_between_two_steps() -> None:
    stage = ActorBench()
    stage.weights.publish(snapshot(1, 0.25))

    def publish() -> None:
        if len(stage.records) == 4:
            stage.weights.publish(snapshot(2, 0.5))

    stage.actor.clock = VirtualClock(stage.robot.advance, 10.0, publish)
    stage.run(1)
    versions = [step.policy_version for step in stage.steps]
    assert versions == [1] * 5 + [2] * (len(versions) - 5)
    for step in stage.steps:
        assert set(step.requested.tolist()) == {{1: 0.25, 2: 0.5}[step.policy_version]}


@pytest.mark.parametrize(
    ("share", "exploring"), [(1.0, [True] * 4), (0.0, [False] * 4), (0.5, [False, True] * 2)]
)
def test_policy_explores_in_configured_share_of_episodes(
    share: float, exploring: list[bool]
) -> None:
    class Exploring(ConstantAgent):
        def act(self, observation: Observation, explore: bool) -> Action:
            explored[-1].add(explore)
            return super().act(observation, explore)

    explored: list[set[bool]] = []
    stage = ActorBench()
    stage.weights.publish(snapshot(1, 0.25))
    policy = LearnedPolicy(Exploring(), stage.weights, share)
    for _ in range(4):
        explored.append(set())
        policy.begin()
        for _ in range(3):
            policy(stage.robot.observe())
    assert explored == [{each} for each in exploring]


def test_invalid_weights_leave_previous_weights_active(caplog: pytest.LogCaptureFixture) -> None:
    stage = ActorBench()
    stage.weights.publish(snapshot(1, 0.25))
    assert stage.policy.refresh()
    stage.weights.publish(snapshot(2, np.nan))
    assert not stage.policy.refresh()
    assert not stage.policy.refresh()
    assert stage.policy.version == 1
    np.testing.assert_array_equal(stage.policy(stage.robot.observe()), [0.25, 0.25])
    assert [record.message for record in caplog.records] == [
        "new weights refused, going on with version 1: weights: expected a finite action"
    ]
    stage.weights.publish(snapshot(3, 0.5))
    assert stage.policy.refresh()
    assert stage.policy.version == 3


def test_weights_file_is_read_only_after_replacement(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    source = WeightsFile(path, "0123456789abcdef")
    assert source.latest(0) is None
    replace(path, encode_snapshot(snapshot(4, 0.5, trained=12), "0123456789abcdef"))
    found = source.latest(3)
    assert found is not None
    assert (found.version, dict(found.trained)) == (4, {"actor": 12})
    assert source.latest(3) is None  # not replaced since
    replace(path, encode_snapshot(snapshot(5, 0.5), "0123456789abcdef"))
    assert source.latest(5) is None  # not newer


def test_damaged_weights_file_leaves_previous_weights_active(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    source = WeightsFile(path, "0123456789abcdef")
    policy = LearnedPolicy(ConstantAgent(), source)
    good = encode_snapshot(snapshot(1, 0.5), "0123456789abcdef")
    replace(path, good)
    assert policy.refresh()
    for bad in (good[:-1], b"", encode_snapshot(snapshot(2, 0.5), "f" * 16)):
        replace(path, bad)
        assert not policy.refresh()
        assert policy.version == 1
    replace(path, encode_snapshot(snapshot(3, 1.0), "0123456789abcdef"))
    assert policy.refresh()


def test_damaged_weights_file_raises_once(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    source = WeightsFile(path, "0123456789abcdef")
    replace(path, b"nonsense")
    with pytest.raises(CorruptData):
        source.latest(0)
    assert source.latest(0) is None


def replace(path: Path, data: bytes) -> None:
    scratch = path.with_name("scratch")
    scratch.write_bytes(data)
    scratch.replace(path)
