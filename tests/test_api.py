"""The public Python interface: policies, recorded data, training and environments."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import serl
from serl import api
from serl.api import Run, TrainedPolicy, Transitions
from serl.datasets.tables import Table
from serl.errors import STUCK, BadInput, CorruptData, SpecMismatch
from serl.log.episode_log import EpisodeLog
from serl.log.metrics import ROWS, EventRow, MetricsWriter, UpdateRow
from serl.runs.assembly import make_acting_agent, make_agent
from serl.runs.config import TrainConfig, resolve
from serl.runs.demonstrations import EXPERT
from serl.runs.folder import RunFolder
from serl.runs.resume import provenance
from serl.runs.task_setup import make_spec, make_task
from serl.testing.samples import (
    CONFIG,
    RUN,
    SPEC,
    leave_open,
    open_log,
    random_observation,
    random_records,
    write_log,
)
from serl.training.frames import FrameStack
from serl.training.replay import Replay
from serl.types import ActionSource, End, EndReason, Episode, Step

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


@pytest.fixture
def recorded(tmp_path: Path) -> tuple[Path, list[Any]]:
    """Write three episodes with human and script steps; return the folder and the records."""
    records: list[Any] = random_records(3, 1, 4)
    sources = dict(zip((1, 4), (ActionSource.HUMAN, ActionSource.SCRIPT), strict=True))
    records = [
        replace(record, source=sources.get(row, ActionSource.POLICY), reward=row / 3)
        if isinstance(record, Step)
        else record
        for row, record in enumerate(records)
    ]
    write_log(tmp_path / "actor0", records)
    return tmp_path / "actor0", records


def test_step_and_episode_tables_equal_logged_values(recorded: tuple[Path, list[Any]]) -> None:
    folder, records = recorded
    steps = [record for record in records if isinstance(record, Step)]
    ends = [record for record in records if isinstance(record, End)]
    run = serl.open_run(folder)
    assert (len(run.steps), len(run.episodes)) == (8, 3)
    for name in ("requested", "action", "reward", "terminated", "truncated", "wall_s"):
        expected = np.stack([np.asarray(getattr(step, name)) for step in steps])
        np.testing.assert_array_equal(run.steps[name], expected)
        assert run.steps[name].dtype == expected.dtype
    for name in run.spec.observation.state:
        states = np.stack([step.observation.state[name] for step in steps])
        np.testing.assert_array_equal(run.steps[f"state.{name}"], states)
        finals = np.stack([end.observation.state[name] for end in ends])
        np.testing.assert_array_equal(run.episodes[f"final.{name}"], finals)
    assert run.steps["source"].tolist() == [step.source for step in steps]
    assert run.steps["episode"].tolist() == [0, 0, 0, 1, 2, 2, 2, 2]
    assert run.episodes["human_steps"].tolist() == [1, 0, 0]
    assert run.episodes["script_steps"].tolist() == [0, 1, 0]
    assert run.episodes["reason"].tolist() == ["success"] * 3
    assert run.read_episode(1).steps[0].key == steps[3].key
    assert run.read_episode(1).steps[0].observation.images.keys() == {"front", "wrist"}


def test_transitions_end_at_final_observation(recorded: tuple[Path, list[Any]]) -> None:
    folder, _ = recorded
    run = serl.open_run(folder)
    made = run.transitions()
    episodes = [run.read_episode(row) for row in (0, 2)]  # the other one is a reset

    def flat(episode: Episode) -> np.ndarray:
        assert episode.end is not None
        seen = [*(step.observation for step in episode.steps), episode.end.observation]
        return np.stack([run.spec.observation.flatten(each) for each in seen])

    before = np.concatenate([flat(episode)[:-1] for episode in episodes])
    np.testing.assert_array_equal(made.state, before)
    after = np.concatenate([flat(episode)[1:] for episode in episodes])
    np.testing.assert_array_equal(made.next_state, after)
    assert made.episode.tolist() == [0, 0, 0, 2, 2, 2, 2]


def test_interrupted_episodes_have_no_transitions(tmp_path: Path) -> None:
    write_log(tmp_path, random_records(2))
    cut = random_records(3, ended=False, epoch=7)
    with open_log(tmp_path, 7) as log:
        for record in cut:
            log.append(record)
    leave_open(tmp_path, random_records(2, epoch=9), epoch=9)
    run = serl.open_run(tmp_path)
    assert run.episodes["steps"].tolist() == [3, 2], "an open episode must have no row yet"
    assert run.episodes["ended"].tolist() == [False, True]
    assert run.transitions().episode.tolist() == [1, 1]
    assert np.isnan(run.episodes["final.gripper"][0]).all()


def test_transitions_are_those_that_a_learner_would_sample(tmp_path: Path) -> None:
    reasons = (
        (EndReason.SUCCESS, ""),
        (EndReason.FAULT, "the newest image is too old"),
        (EndReason.DISCARDED, ""),
        (EndReason.STUCK, f"the guard holds the arm: {STUCK}"),
        (EndReason.SUCCESS, ""),
    )
    records: list[Any] = random_records(2, 3, 4, 30, 5)  # the last is a scripted reset
    for row, record in enumerate(records):
        number, stays = record.key.episode, record.key.episode == 0
        if isinstance(record, End):
            reason, fault = reasons[number]
            late_s = record.monotonic_s + 0.05
            records[row] = replace(
                record, success=stays, reason=reason, fault=fault, monotonic_s=late_s
            )
        else:
            source = ActionSource.SCRIPT if number == 4 else ActionSource.POLICY
            records[row] = replace(record, terminated=record.terminated and stays, source=source)
    write_log(tmp_path, records)
    made = serl.open_run(tmp_path).transitions()
    replay = Replay(SPEC, 100, 0.9)
    for record in records:
        replay.add(record)
    np.testing.assert_array_equal(made.state, replay.states())
    assert made.episode.tolist() == [0, 0, 1, 1, *[3] * 6]
    np.testing.assert_array_equal(made.next_state[2], made.state[3])


def test_scripted_demonstrations_of_the_expert_have_transitions(tmp_path: Path) -> None:
    records: list[Any] = random_records(3)
    with EpisodeLog(tmp_path, SPEC, RUN, EXPERT, 1, CONFIG) as log:
        for record in records:
            own = replace(record, key=replace(record.key, actor=EXPERT, epoch=1))
            log.append(replace(own, source=ActionSource.SCRIPT) if isinstance(own, Step) else own)
    assert len(serl.open_run(tmp_path).transitions().state) == 3


def test_tables_are_mapped_from_cache_and_extended_by_new_episodes(tmp_path: Path) -> None:
    (first,) = write_log(tmp_path, random_records(3, epoch=1), epoch=1)
    before = serl.open_run(tmp_path).steps
    assert serl.open_run(tmp_path).steps["action"].flags.owndata is False
    hidden = first.rename(first.with_suffix(".hidden"))
    write_log(tmp_path, random_records(2, epoch=2), epoch=2)
    hidden.rename(first).write_bytes(b"")  # must not be read again: its numbers are in the cache
    both = serl.open_run(tmp_path)
    assert both.episodes["steps"].tolist() == [3, 2]
    np.testing.assert_array_equal(both.steps["action"][:3], before["action"])
    assert len(list((tmp_path / ".columns").iterdir())) == 1, "the older cache remains"


@pytest.mark.parametrize("damage", ["cut", "none", "read-only"])
def test_unusable_cache_does_not_change_tables(
    tmp_path: Path, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_log(tmp_path, random_records(3))
    expected = serl.open_run(tmp_path).steps["action"].copy()
    (cached,) = tmp_path.glob(".columns/*/steps.arrow")
    if damage == "cut":
        cached.write_bytes(cached.read_bytes()[:-200])
    else:
        cached.unlink()
    if damage == "read-only":
        monkeypatch.setattr("tempfile.mkdtemp", _refused)
    np.testing.assert_array_equal(serl.open_run(tmp_path).steps["action"], expected)


def _refused(*_: object, **__: object) -> str:
    raise OSError("read-only")


def test_damaged_episodes_and_missing_folder_are_refused(tmp_path: Path) -> None:
    (path,) = write_log(tmp_path, random_records(3))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    run = serl.open_run(tmp_path)  # reads no episode yet
    with pytest.raises(CorruptData, match=str(path)):
        _ = run.steps
    with pytest.raises(BadInput, match=f"{tmp_path / 'gone'}: expected the folder of a run"):
        serl.open_run(tmp_path / "gone")


def test_pandas_frame_has_column_for_each_number(recorded: tuple[Path, list[Any]]) -> None:
    folder, records = recorded
    frame = serl.open_run(folder).steps.pandas()
    assert frame["action[2]"].tolist() == [r.action[2] for r in records if isinstance(r, Step)]
    assert frame.groupby("source").size().to_dict() == {"policy": 6, "human": 1, "script": 1}


def test_run_has_episodes_of_actors_and_metrics(tmp_path: Path) -> None:
    folder = trained(tmp_path)
    write_log(folder.episodes("actor0"), random_records(3))
    with MetricsWriter(folder.path) as metrics:
        metrics.write(10, UpdateRow(1, 2.0, 4.0, q=0.5))
        metrics.write(20, EventRow("started"))
        metrics.write(30, UpdateRow(2, 2.0, 4.0, critic_loss=0.25))
    run = serl.open_run(folder.path)
    assert isinstance(run, Run)
    assert (run.config is not None, len(run.steps)) == (True, 3)
    updates = run.metrics("update")
    assert updates["steps"].tolist() == [10, 30]
    assert updates.arrow.column("q").to_pylist() == [0.5, None]
    assert len(run.metrics("evaluation")) == 0


def test_metrics_without_rows_have_the_columns_of_their_kind(tmp_path: Path) -> None:
    run = serl.open_run(trained(tmp_path).path)
    frame = run.metrics("episode").pandas()[["steps", "success", "human_steps"]]
    assert [str(each) for each in frame.dtypes] == ["int64", "bool", "int64"]
    for kind, row in ROWS.items():
        names = run.metrics(kind).arrow.column_names
        assert names == ["kind", "time_s", "steps", *(each.name for each in fields(row))]
    kinds = "episode, update, evaluation, event, request, resume"
    with pytest.raises(BadInput, match=rf"^metrics: expected one of {kinds}, got 'episodes'$"):
        run.metrics("episodes")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("success", '"x"'),
        ("success", "[1]"),
        ("success", '{"a": 1}'),
        ("human_steps", "1" + 30 * "0"),
        ("steps", "2.5"),
        ("other", '1}\n{"kind": "episode", "time_s": 1, "steps": 2, "other": "x"'),
    ],
)
def test_wrong_value_of_metrics_is_refused_with_its_field(
    tmp_path: Path, name: str, value: str
) -> None:
    folder = trained(tmp_path)
    line = f'{{"kind": "episode", "time_s": 1, "steps": 2, "{name}": {value}}}\n'
    folder.metrics.write_text(line)
    run = serl.open_run(folder.path)
    with pytest.raises(CorruptData, match=rf"^{folder.metrics}: episode\.{name}: [^\n]+$"):
        run.metrics()
    assert len(run.metrics("event")) == 0


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


def test_make_env_builds_environment_from_task_name_and_settings() -> None:
    env = serl.make_env("reach", task_config={"time_limit_s": 0.2})
    env.reset(seed=0)
    ends = [env.step(np.zeros(3, np.float32))[3] for _ in range(2)]
    assert ends == [False, True]
    with pytest.raises(BadInput, match="task_config: expected the name of a task"):
        serl.make_env(env.task, task_config={"time_limit_s": 1.0})


def test_missing_package_is_named_with_install_command(
    recorded: tuple[Path, list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.delitem(sys.modules, "serl.datasets.tables", raising=False)
    run = serl.open_run(recorded[0])
    with pytest.raises(BadInput, match=r"^pyarrow is not installed: pip install 'serl\[data\]'$"):
        _ = run.steps
    with pytest.raises(BadInput, match="pyarrow is not installed"):
        run.metrics()


def test_pandas_frame_without_pandas_names_extra_to_install(
    recorded: tuple[Path, list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = serl.open_run(recorded[0]).steps
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(BadInput, match=r"^pandas is not installed: pip install 'serl\[data\]'$"):
        steps.pandas()


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
