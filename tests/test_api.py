"""The public Python interface: policies, recorded data, training and environments."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import serl
from serl import api
from serl.api import Run, TrainedPolicy, Transitions
from serl.datasets.tables import Table
from serl.errors import BadInput, SpecMismatch
from serl.runs.assembly import make_acting_agent, make_agent
from serl.runs.config import TrainConfig, resolve
from serl.runs.folder import RunFolder
from serl.runs.resume import provenance
from serl.runs.task_setup import make_spec, make_task
from serl.tasks.reach import Reach
from serl.testing.samples import (
    random_observation,
)
from serl.training.frames import FrameStack

OUTSIDE = Path(__file__).parent / "outside"
SMALL = {"device": "cpu", "threads": 1}


def trained(folder: Path, **settings: Any) -> RunFolder:
    """Create a run with a checkpoint of random policy weights and a normaliser."""
    agent = {**SMALL, **settings.pop("agent", {"hidden": [8, 8]})}
    config = resolve({"task": "reach", "demos": 0, "agent": agent, **settings})
    run = RunFolder.create(folder, config, datetime.now())
    spec = make_spec(make_task(config))
    made = make_agent(config, spec, 0)
    rng = np.random.default_rng(0)
    made.fit_normaliser(rng.normal(1.0, 3.0, (50, spec.observation.state_size)).astype(np.float32))
    weights = {
        name: array
        if name.endswith(("mean", "std"))
        else np.asarray(rng.normal(0.0, 0.3, array.shape), np.float32)
        for name, array in made.actor_weights().items()
    }
    run.save_checkpoint(100, {"actor": weights}, provenance(config, spec))
    return run


def in_float32(config: TrainConfig) -> TrainConfig:
    agent = config.agent.model_copy(update={"matmul": "float32"})
    return config.model_copy(update={"agent": agent})


def compare(policy: TrainedPolicy, run: RunFolder, frames: int = 1) -> None:
    """Check that the policy acts like the run's agent on single observations and batches."""
    spec, rng = policy.spec, np.random.default_rng(1)
    agent = make_acting_agent(in_float32(run.config), spec, 3)
    actor = serl.load_policy(run.path)._agent.actor_weights()
    agent.load_actor_weights(actor)
    seen = [random_observation(spec.observation, rng) for _ in range(4)]
    stack = FrameStack(frames)
    expected = np.stack([agent.act(stack(each), explore=False) for each in seen])
    assert (np.ptp(expected, axis=0)[:3] > 1e-3).all(), "actions do not depend on observations"
    policy.reset()
    one_by_one = np.stack([policy(each) for each in seen])
    np.testing.assert_allclose(one_by_one, expected, atol=1e-6)

    def given(rows: slice) -> Mapping[str, np.ndarray]:
        state = np.stack([spec.observation.flatten(each) for each in seen[rows]])
        images = {n: np.stack([s.images[n] for s in seen[rows]]) for n in spec.observation.images}
        return {"state": state, **images}

    policy.reset()
    if frames == 1:
        np.testing.assert_allclose(policy(given(slice(4))), expected, atol=1e-6)
    else:  # each row of a batch is an episode
        twice = [policy({n: np.repeat(a, 2, 0) for n, a in given(slice(i, i + 1)).items()})
                 for i in range(4)]  # fmt: skip
        np.testing.assert_allclose(np.stack(twice)[:, 1], expected, atol=1e-6)


class Traced:
    """A stand-in for a tensor of torch with a gradient."""

    def __init__(self, values: np.ndarray) -> None:
        self._values = values

    def detach(self) -> np.ndarray:
        return self._values

    def __array__(self, *_: object, **__: object) -> np.ndarray:
        raise RuntimeError("Can't call numpy() on Tensor that requires grad.")


def test_loaded_policy_acts_like_agent_of_run(tmp_path: Path) -> None:
    run = trained(tmp_path)
    policy = serl.load_policy(run.path)
    assert (policy.step, policy.task.name) == (100, "reach")
    compare(policy, run)
    flat = np.zeros(policy.spec.observation.state_size)
    assert policy(flat).shape == (3,)
    assert policy(flat[None].repeat(7, 0)).shape == (7, 3)
    assert policy(flat[None][:0]).shape == (0, 3)
    traced: Any = Traced(flat)
    np.testing.assert_array_equal(policy(traced), policy(flat))


def test_loaded_pixel_policy_stacks_frames_of_episode(tmp_path: Path) -> None:
    small = {"hidden": [8], "frames": 2, "encoder_channels": [4, 4], "latent": 8}
    run = trained(tmp_path, task="pick_cube", observe="pixels", agent=small)
    policy = serl.load_policy(run.path)
    compare(policy, run, frames=2)
    ragged = {"front": [[0], [0, 1]], "wrist": np.zeros((64, 64, 3), np.uint8)}
    with pytest.raises(SpecMismatch, match="image front: expected an array of numbers"):
        policy({"state": np.zeros(policy.spec.observation.state_size), **ragged})


def test_size_of_batch_changes_only_between_episodes_of_stacked_frames(tmp_path: Path) -> None:
    small = {"hidden": [8], "frames": 2, "encoder_channels": [4, 4], "latent": 8}
    run = trained(tmp_path, task="pick_cube", observe="pixels", agent=small)
    policy = serl.load_policy(run.path)
    observed = policy.spec.observation

    def act(*batch: int) -> tuple[int, ...]:
        images = {n: np.zeros((*batch, *i.shape), np.uint8) for n, i in observed.images.items()}
        return policy({"state": np.zeros((*batch, observed.state_size)), **images}).shape

    size = policy.spec.action.shape[0]
    assert (act(), act(1), act(0)) == ((size,), (1, size), (0, size))
    with pytest.raises(SpecMismatch, match=r"^batch of 2 after 1: call reset\(\) first$"):
        act(2)
    policy.reset()
    assert act(2) == (2, size)


def test_hybrid_policy_and_external_algorithm_load_and_act(tmp_path: Path) -> None:
    hybrid = trained(tmp_path, task="pick_cube", agent={"hidden": [8], "algorithm": "hybrid"})
    compare(serl.load_policy(hybrid.path), hybrid)
    td3 = {"algorithm": str(OUTSIDE / "td3.py"), "width": 16}
    policy = serl.load_policy(trained(tmp_path, agent=td3).path)
    states = np.random.default_rng(0).normal(size=(3, policy.spec.observation.state_size))
    np.testing.assert_array_equal(policy(states), np.stack([policy(state) for state in states]))
    assert policy(states[:0]).shape == (0, 3)


def test_policy_converts_robot_reading_to_task_observation(tmp_path: Path) -> None:
    policy = serl.load_policy(trained(tmp_path).path)
    env = serl.make_env(policy.task)
    flat, _ = env.reset(seed=0)
    reading = env.robot.observe()
    policy.reset(reading)
    np.testing.assert_array_equal(policy(policy.observation(reading)), policy(flat))
    env.close()


def test_policy_refuses_invalid_observations(tmp_path: Path) -> None:
    policy = serl.load_policy(trained(tmp_path).path)
    size = policy.spec.observation.state_size
    observations: list[tuple[Any, str]] = [
        (np.zeros(size + 1), rf"state: expected the shape \[{size}\] or \[B, {size}\], got"),
        (np.zeros((2, 2, size)), "state: expected the shape"),
        (np.full(size, np.nan), "state: not finite"),
        ({"state": np.zeros(size), "front": 0}, "expected \\['state'\\], got \\['front', 'state'"),
        ({"state": np.zeros(size), 0: 0}, "expected \\['state'\\], got \\['0', 'state'"),
        ("x", "state: expected an array of numbers, got str_"),
        (["1.0"] * size, "state: expected an array of numbers, got str_"),
        (np.zeros(size, complex), "state: expected an array of numbers, got complex128"),
        ([Traced(np.zeros(size))], "state: expected an array of numbers: Can't call numpy"),
        ([[0.0] * size, [0.0]], "state: expected an array of numbers: .*inhomogeneous"),
        ({"state": {}}, "state: expected an array of numbers"),
    ]
    for given, line in observations:
        with pytest.raises(SpecMismatch, match=line):
            policy(given)


def test_run_with_stages_is_refused_with_stage_names(tmp_path: Path) -> None:
    stages = {"a": {"config": {"task": "reach"}, "then": "a"}}
    run = RunFolder.create(tmp_path, resolve({"task": "reach", "stages": stages}), datetime.now())
    for function in (serl.load_policy, serl.open_run):
        with pytest.raises(BadInput, match=r"has stages, each a run: expected one of .*/stages/a"):
            function(run.path)


def test_train_accepts_mappings_and_dotted_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[RunFolder] = []
    monkeypatch.setattr("serl.cli.training.train_run", lambda run, display: made.append(run))
    monkeypatch.setattr("serl.ros.processes.require_ros", lambda: None)
    dotted = {"agent.batch_size": 32}
    run = serl.train("reach", tmp_path, steps=60, agent={"utd": 2}, **dotted)
    assert made[0].path == run.path
    assert run.path.parent == tmp_path / "reach"
    config = made[0].config
    assert (config.steps, config.agent.utd, config.agent.batch_size) == (60, 2, 32)
    with pytest.raises(BadInput, match=r"agent\.utdd"):
        serl.train("reach", tmp_path, agent={"utdd": 2})
    with pytest.raises(BadInput, match=r"^agent\.batch_size: given twice; expected one value$"):
        serl.train("reach", tmp_path, agent={"batch_size": 64}, **dotted)


def test_interrupted_training_prints_the_command_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(run: RunFolder, display: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("serl.cli.training.train_run", interrupt)
    monkeypatch.setattr("serl.ros.processes.require_ros", lambda: None)
    with pytest.raises(KeyboardInterrupt):
        serl.train("reach", tmp_path)
    (run,) = (tmp_path / "reach").iterdir()
    assert capsys.readouterr().err == f"to continue: serl train --resume {run}\n"


def test_paths_may_start_at_the_home_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    run = trained(tmp_path)
    home = f"~/{run.path.relative_to(tmp_path)}"
    assert serl.open_run(home).path == run.path
    assert serl.load_policy(Path(home)).step == 100
    with pytest.raises(BadInput, match=f"^{tmp_path}/gone: expected the folder of a run"):
        serl.open_run("~/gone")


def test_make_env_builds_environment_from_task_name_and_settings() -> None:
    env = serl.make_env("reach", task_config={"time_limit_s": 0.2})
    env.reset(seed=0)
    ends = [env.step(np.zeros(3, np.float32))[3] for _ in range(2)]
    assert ends == [False, True]
    with pytest.raises(BadInput, match="task_config: expected the name of a task"):
        serl.make_env(env.task, task_config={"time_limit_s": 1.0})


@pytest.mark.parametrize(
    ("task", "options", "line"),
    [
        ("reach", {"foo": 1}, "foo: expected one of image_size, intervention, .*, task_config$"),
        ("reach", {"render_mod": ""}, "render_mod: .*; did you mean 'render_mode'"),
        (3, {}, "task: expected a name, a path, or a task with a scene, got 3$"),
        (None, {}, "task: .*, got None$"),
        (Reach, {}, "task: .*, got <class 'serl.tasks.reach.Reach'>$"),
    ],
)
def test_make_env_refuses_unknown_options_and_other_objects(
    task: Any, options: dict[str, Any], line: str
) -> None:
    with pytest.raises(BadInput, match=f"^{line}"):
        serl.make_env(task, **options)


def test_public_names_and_arguments_are_those_promised_as_stable() -> None:
    """Extend these lists for additions; see docs/howto/python.md for other changes."""
    names = ["Task", "load_policy", "make_env", "open_run", "train"]
    assert list(serl._PUBLIC) == names
    assert set(api.__all__) == {*names, "Run", "TrainedPolicy", "Transitions"}
    arguments: dict[Callable[..., Any], list[str]] = {
        serl.load_policy: ["run", "checkpoint"],
        serl.open_run: ["run"],
        serl.train: ["task", "runs", "settings"],
        serl.make_env: ["task", "observe", "options"],
        TrainedPolicy.__call__: ["self", "observation"],
        TrainedPolicy.reset: ["self", "reading"],
        Run.metrics: ["self", "kind"],
        Run.read_episode: ["self", "row"],
    }
    for function, expected in arguments.items():
        assert list(inspect.signature(function).parameters) == expected, function
    members: dict[type, set[str]] = {
        TrainedPolicy: {"observation", "reset"},
        Run: {"episodes", "metrics", "read_episode", "spec", "steps", "transitions"},
        Table: {"numpy", "pandas"},
    }
    for kind, public in members.items():
        assert {name for name in vars(kind) if name[0] != "_"} == public
    fields = "state action reward next_state terminated truncated episode"
    assert Transitions._fields == tuple(fields.split())


def test_public_names_are_imported_lazily() -> None:
    program = (
        "import serl, sys; print('serl.api' in sys.modules, 'load_policy' in dir(serl)); "
        "serl.open_run; print('serl.api' in sys.modules, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "False True\nTrue False\n", done.stderr
    with pytest.raises(AttributeError, match="no attribute 'load_police'"):
        _ = serl.load_police
