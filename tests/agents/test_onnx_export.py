"""Policies as ONNX files: ONNX Runtime computes the same actions as the agent."""

from __future__ import annotations

import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from serl.agents.onnx_export import export_policy
from serl.agents.sac import SAC
from serl.cli.main import main
from serl.errors import BadInput
from serl.runs.deployment import load_agent
from serl.runs.folder import RunFolder
from serl.testing.samples import random_observation
from serl.training.frames import FrameStack

from ..test_api import OUTSIDE, trained

RUNNER = Path(__file__).parents[2] / "docs/examples/run_onnx.py"
Policy = runpy.run_path(str(RUNNER))["Policy"]
SMALL = {"encoder_channels": [4, 4, 8], "latent": 8, "encoder_weights": "none", "hidden": [8]}
PIXELS = {"task": "pick_cube", "observe": "pixels"}
KINDS: dict[str, dict[str, Any]] = {
    "state": {"agent": {"hidden": [16, 16]}},
    "plain tanh": {"agent": {"hidden": [16], "layer_norm": False, "activation": "tanh"}},
    "bc": {"agent": {"hidden": [16], "algorithm": "bc", "actor_hidden": [8, 8]}},
    "gripper": {"task": "pick_cube", "agent": {"hidden": [16], "algorithm": "hybrid"}},
    "two grippers": {"task": "handover", "agent": {"hidden": [16], "algorithm": "hybrid"}},
    "pixels": {**PIXELS, "agent": {**SMALL, "frames": 2}},
    "pixels and gripper": {**PIXELS, "agent": {**SMALL, "algorithm": "hybrid"}},
}


@pytest.mark.parametrize("kind", KINDS)
def test_onnx_runtime_computes_the_same_actions(tmp_path: Path, kind: str) -> None:
    run = trained(tmp_path, **KINDS[kind])
    _compare(run, tmp_path / "policy.onnx", 20)


def _compare(run: RunFolder, out: Path, count: int) -> None:
    """Export the policy of a run, and compare its actions in ONNX Runtime with the agent's."""
    assert main(["export", str(run.path), "--to", "onnx", "--out", str(out)]) == 0
    loaded, policy = load_agent(run.path), Policy(str(out))
    spec, rng = loaded.spec, np.random.default_rng(1)
    stack = FrameStack(loaded.config.agent.frames)
    seen = [random_observation(spec.observation, rng) for _ in range(count)]
    expected = np.stack([loaded.agent.act(stack(each), explore=False) for each in seen])
    actions = np.stack([policy({**each.state, **each.images}) for each in seen])
    assert (np.ptp(expected, axis=0)[:3] > 1e-3).all(), "the observations matter"
    np.testing.assert_allclose(actions, expected, atol=1e-5)
    assert policy.about["action"] == spec.action_names
    assert (policy.about["task"], policy.about["step"]) == (spec.task, 100)


def test_onnx_runner_has_thirty_lines_and_needs_no_serl(tmp_path: Path) -> None:
    run, out = trained(tmp_path), tmp_path / "policy.onnx"
    assert main(["export", str(run.path), "--to", "onnx", "--out", str(out)]) == 0
    shutil.copy(RUNNER, tmp_path)
    assert len(RUNNER.read_text().splitlines()) <= 30
    program = (
        "import runpy, sys; sys.modules['serl'] = None; sys.argv = ['', 'policy.onnx']; "
        "runpy.run_path('run_onnx.py', run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True)
    assert done.stdout.startswith(b"{'task': 'reach', 'step': 100"), done.stderr


def test_onnx_policy_returns_one_action_per_batch_row(tmp_path: Path) -> None:
    loaded = load_agent(trained(tmp_path).path)
    out = tmp_path / "policy.onnx"
    out.write_bytes(export_policy(loaded.agent, loaded.spec, 1))
    states = np.random.default_rng(0).normal(size=(5, loaded.spec.observation.state_size))
    inputs = {"state": states.astype(np.float32)}
    actions = Policy(str(out)).session.run(["action"], inputs)[0]
    assert isinstance(loaded.agent, SAC)
    modes = loaded.agent.modes(inputs["state"], {})
    np.testing.assert_allclose(actions, modes, atol=1e-5)


def test_bounds_of_clip_are_scalars_as_onnx_requires(tmp_path: Path) -> None:
    """ONNX Runtime accepts arrays of one number, too."""
    loaded = load_agent(trained(tmp_path).path)
    graph = onnx.load_from_string(export_policy(loaded.agent, loaded.spec, 1)).graph
    shapes = {constant.name: [*constant.dims] for constant in graph.initializer}
    (clip,) = (node for node in graph.node if node.op_type == "Clip")
    assert [shapes[name] for name in clip.input[1:]] == [[], []]


def test_export_refuses_other_algorithms(tmp_path: Path) -> None:
    run = trained(tmp_path, agent={"algorithm": str(OUTSIDE / "td3.py"), "width": 16})
    loaded = load_agent(run.path)
    with pytest.raises(BadInput, match="onnx: expected a policy of sac, hybrid or bc, got TD3"):
        export_policy(loaded.agent, loaded.spec, 1)


@pytest.mark.parametrize("changes", [{"frames": 2}, {"cached_features": True}])
def test_onnx_runtime_computes_the_frozen_resnet(
    tmp_path: Path, trunk_file: Path, changes: dict[str, Any]
) -> None:
    given = {"encoder": "resnet10", "trunk": str(trunk_file), "matmul": "float32"}
    run = trained(tmp_path, **PIXELS, agent={"hidden": [8], "latent": 8, **given, **changes})
    _compare(run, tmp_path / "policy.onnx", 2)


def test_export_error_names_missing_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    monkeypatch.delitem(sys.modules, "serl.agents.onnx_export")
    assert main(["export", str(trained(tmp_path).path), "--to", "onnx"]) == 2
    error = capsys.readouterr().err
    assert error == "serl: onnx is not installed: pip install 'serl[export]'\n"
