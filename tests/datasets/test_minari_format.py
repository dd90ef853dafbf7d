"""Import of Minari data sets that other programs recorded in environments of Gymnasium."""

from __future__ import annotations

import json
import shlex
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import h5py
import minari
import numpy as np
import pytest
from gymnasium import spaces
from minari.data_collector import EpisodeBuffer

from serl import plugins
from serl.cli.main import main
from serl.datasets import minari_format
from serl.errors import CorruptData
from serl.log.episode_reader import episode_paths, read_episode
from serl.runs.config import resolve
from serl.runs.task_setup import make_spec, make_task
from serl.sim.environment import make_environment
from serl.testing import episode
from serl.testing.samples import SPEC
from serl.types import End, Episode

from .test_exchange import record

REACH = "gymnasium:FetchReach-v4"
PENDULUM = "gymnasium:Pendulum-v1"
EXPERT = Path(__file__).parents[2] / "docs/examples/fetch_expert.py"


def write_data_set(folder: Path, env: Any, buffers: Sequence[EpisodeBuffer]) -> None:
    """Write episodes of an environment as a data set of minari alone."""
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings(action="ignore"):
        patch.setenv("MINARI_DATASETS_PATH", str(folder))  # the warnings are about authors
        minari.create_dataset_from_buffers(
            "lab/other-v0", list(buffers), data_format="hdf5",
            observation_space=env.observation_space, action_space=env.action_space,
        )  # fmt: skip


def play_reach(env: Any, seed: int, scale: float) -> EpisodeBuffer:
    """Return 50 steps of FetchReach by the expert, whose actions are scaled."""
    act = plugins.load_file(EXPERT).expert(np.random.default_rng(seed))
    seen, actions, rewards, successes = [env.reset(seed=seed)[0]], [], [], [0.0]
    for _ in range(50):
        actions.append(np.asarray(scale * act(seen[-1]), np.float32))
        observation, reward, _, _, info = env.step(actions[-1])
        seen.append(observation)
        rewards.append(reward)
        successes.append(info["is_success"])
    return EpisodeBuffer(
        observations={name: np.stack([each[name] for each in seen]) for name in seen[0]},
        actions=np.stack(actions), rewards=rewards, terminations=np.zeros(50, bool),
        truncations=np.arange(50) == 49, infos={"is_success": np.array(successes)},
    )  # fmt: skip


def write_reach(folder: Path, plays: Mapping[int, float], infos: bool = True) -> None:
    """Write episodes of FetchReach: a scale of the expert's actions for each seed."""
    pytest.importorskip("gymnasium_robotics", reason="pip install 'serl[gymnasium]'")
    env = make_environment("FetchReach-v4", {})
    buffers = [play_reach(env, seed, scale) for seed, scale in plays.items()]
    if not infos:
        buffers = [EpisodeBuffer(**(vars(each) | {"infos": None})) for each in buffers]
    write_data_set(folder, env, buffers)
    env.close()


def imported(task: str, folder: Path, *options: str) -> list[list[Episode]]:
    """Import the data set of a folder; return successes and failures."""
    out = folder / "imported"
    words = ["demos", "import", str(folder), "--task", task, "--out", str(out), *options]
    assert main(words) == 0
    spec = make_spec(make_task(resolve({"task": task})))
    folders = (out, out / "failures")
    return [[read_episode(path, spec) for path in episode_paths(each)] for each in folders]


def outcomes(found: Episode) -> list[tuple[float, bool, bool]]:
    return [(step.reward, step.terminated, step.truncated) for step in found.steps]


@pytest.mark.parametrize("reward", ["sparse", "environment"])
def test_imported_episodes_equal_those_of_training(tmp_path: Path, reward: str) -> None:
    write_reach(tmp_path, {1: 1.0, 2: -1.0})
    given = "--task_config.reward", reward
    (success,), (failure,) = imported(REACH, tmp_path, *given)
    task: Any = make_task(resolve({"task": REACH, "task_config": {"reward": reward}}))
    with plugins.make_simulation(task) as robot:
        for seed, found in ((1, success), (2, failure)):
            actions = iter([step.action for step in found.steps])
            *steps, end = episode(robot, task, lambda _, each=actions: next(each), seed)
            assert isinstance(end, End)
            assert found.end is not None
            assert (found.end.text, found.success) == (end.text, end.success)
            online = Episode(tuple(steps), end)  # type: ignore[arg-type]
            assert outcomes(found) == outcomes(online)
            for mine, other in zip(found.steps, online.steps, strict=True):
                for name, array in other.observation.state.items():
                    np.testing.assert_array_equal(mine.observation.state[name], array)
    last = success.steps[-1]
    assert (last.reward, last.terminated) == (1.0 if reward == "sparse" else 0.0, True)
    assert 1 < len(success.steps) < 50
    assert last.reward_provenance.endswith(f": {reward} reward of {REACH}")
    assert (len(failure.steps), failure.steps[-1].truncated) == (50, True)


def test_import_cuts_episode_at_time_limit_of_task(tmp_path: Path) -> None:
    write_reach(tmp_path, {1: 1.0})
    _, (cut,) = imported(REACH, tmp_path, "--task_config.time_limit_s", "0.08")
    assert outcomes(cut) == [(0.0, False, False), (0.0, False, True)]


def test_import_without_success_in_infos_is_refused_for_sparse_reward(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_reach(tmp_path, {1: 1.0}, infos=False)
    words = ["demos", "import", str(tmp_path), "--task", REACH, "--out", str(tmp_path / "out")]
    assert main(words) == 2
    *_, error = capsys.readouterr().err.splitlines()  # gymnasium_robotics may print a notice first
    assert error.startswith("serl: infos: expected is_success or success for the sparse reward")
    _, (kept,) = imported(REACH, tmp_path, "--task_config.reward", "environment")
    assert kept.steps[0].reward == -1.0


@pytest.mark.parametrize(
    ("task", "name"),
    [
        ("pick_cube", "serl/pick-cube-v0"),
        (PENDULUM, "serl/gymnasium-Pendulum-v0"),
        ("gymnasium:lab/my env-v12", "serl/gymnasium-lab-my-env-v0"),
        ("!", "serl/task-v0"),
    ],
)
def test_exported_data_set_of_any_task_has_valid_id(
    tmp_path: Path, task: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, out = tmp_path / "actor0", tmp_path / "two words"
    record(folder, SPEC.model_copy(update={"task": task}))
    assert main(["export", str(folder), "--to", "minari", "--out", str(out)]) == 0
    line = capsys.readouterr().out.splitlines()[-1]
    root, *words = shlex.split(line)
    assert root == f"MINARI_DATASETS_PATH={out.resolve()}"
    assert words == ["python", "-c", f'import minari; minari.load_dataset("{name}")']
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINARI_DATASETS_PATH", str(out))
        assert minari.load_dataset(name).total_episodes == 3


def test_export_that_minari_refuses_ends_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    record(tmp_path / "actor0", SPEC)
    monkeypatch.setattr(minari_format, "dataset_id", lambda _: "a!b")
    words = ["export", str(tmp_path / "actor0"), "--to", "minari", "--out", str(tmp_path / "out")]
    assert main(words) == 2
    error = capsys.readouterr().err
    assert error.startswith("serl: minari: a!b: Malformed dataset ID")
    assert error.count("\n") == 1


def test_actions_are_scaled_only_in_entries_with_two_bounds() -> None:
    inf = np.inf
    space = spaces.Box(np.array([-2.0, -inf]), np.array([2.0, inf]), dtype=np.float64)
    found = minari_format._scaled(np.array([[1.0, 0.25]]), space)
    np.testing.assert_array_equal(found, [[0.5, 0.25]])
    for low, high, bounds in ((0.0, inf, "0 to inf"), (-inf, 1.0, "-inf to 1"), (1, 1, "1 to 1")):
        space = spaces.Box(np.array([-1.0, low]), np.array([1.0, high]), dtype=np.float64)
        with pytest.raises(ValueError, match=f"action space: entry 1: {bounds}, expected low < "):
            minari_format._scaled(np.zeros((3, 2)), space)


def write_pendulum(
    folder: Path, infos: Sequence[Mapping[str, Any] | None], reward: float = -1.0
) -> None:
    """Write episodes of three steps, with the same reward each, to a data set of Pendulum."""
    torque = np.array([[-2.0], [0.5], [2.0]], np.float32)
    buffers = [
        EpisodeBuffer(
            observations=np.zeros((4, 3), np.float32), actions=torque, rewards=[reward] * 3,
            terminations=np.zeros(3, bool), truncations=np.arange(3) == 2, infos=info,
        )
        for info in infos
    ]  # fmt: skip
    write_data_set(folder, gymnasium.make("Pendulum-v1").unwrapped, buffers)


def test_import_scales_actions_from_action_space_bounds(tmp_path: Path) -> None:
    write_pendulum(tmp_path, [{"is_success": np.arange(4) == 3}, {"is_success": np.zeros(4, bool)}])
    for found, success in zip(imported(PENDULUM, tmp_path), (True, False), strict=True):
        assert [float(step.action[0]) for step in found[0].steps] == [-1.0, 0.25, 1.0]
        assert [each.success for each in found] == [success]


@pytest.mark.parametrize(
    ("setting", "value", "reward"), [("success_key", "upright", -1.0), ("success_return", "2", 1.0)]
)
def test_import_uses_success_settings_of_task(
    tmp_path: Path, setting: str, value: str, reward: float
) -> None:
    upright = np.array([False, True, False])  # after each step, without the reset
    write_pendulum(tmp_path, [{"upright": upright, "is_success": np.zeros(3, bool)}], reward)
    (found,), _ = imported(PENDULUM, tmp_path, f"--task_config.{setting}", value)
    assert outcomes(found) == [(reward, False, False), (reward, True, False)]


def test_data_set_that_describes_an_environment_runs_no_code(tmp_path: Path) -> None:
    write_pendulum(tmp_path, [None])
    (path,) = tmp_path.rglob("data/metadata.json")
    values, called = json.loads(path.read_text()), tmp_path / "called"
    del values["observation_space"]
    spec = gymnasium.envs.registration.EnvSpec(
        "X-v0", entry_point="os:mkdir", kwargs={"path": str(called)}
    )
    path.write_text(json.dumps({**values, "env_spec": spec.to_json()}))
    with pytest.raises(CorruptData, match="expected observation_space"):
        minari_format.read(tmp_path)
    assert not called.exists()


@pytest.mark.parametrize("kind", ["large", "foreign", "twice"])
def test_hostile_minari_file_is_refused_before_it_is_read(tmp_path: Path, kind: str) -> None:
    write_pendulum(tmp_path, [{"x": np.zeros(4)}])
    (path,) = tmp_path.rglob("main_data.hdf5")
    other = tmp_path / "other.hdf5"
    with h5py.File(other, "w") as file:
        file["x/y"] = np.zeros(4)
    with h5py.File(path, "r+") as file:
        infos = file["episode_0/infos"]
        if kind == "large":  # takes no space on disk
            infos.create_dataset("big", (10**12,), np.float32, chunks=(1024,))
        else:
            infos["again"] = infos if kind == "twice" else h5py.ExternalLink(other, "/x")
    with pytest.raises(CorruptData, match=r": /episode_0/infos/|/x: expected an object of the"):
        next(minari_format.read(tmp_path).episodes)


GOALS = spaces.Dict(
    {
        "achieved_goal": spaces.Dict({"Microwave": spaces.Box(-9.0, 9.0, (1,), np.float64)}),
        "desired_goal": spaces.Dict({"Microwave": spaces.Box(-9.0, 9.0, (1,), np.float64)}),
        "observation": spaces.Box(-9.0, 9.0, (2,), np.float64),
        "agent": spaces.Dict({"state": spaces.Box(-9.0, 9.0, (1,), np.float64)}),
    }
)


class Kitchen(gymnasium.Env[Any, Any]):
    """Environment with goals of the same name in two groups, as FrankaKitchen has."""

    observation_space = GOALS
    action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return seen_in_kitchen(0), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return seen_in_kitchen(0), 0.0, False, False, {"success": False}


def seen_in_kitchen(row: int) -> dict[str, Any]:
    return {
        "achieved_goal": {"Microwave": np.array([row + 1.0])},
        "desired_goal": {"Microwave": np.array([row + 2.0])},
        "observation": np.array([row + 3.0, row + 4.0]),
        "agent": {"state": np.array([row + 5.0])},
    }


@pytest.fixture
def kitchen() -> Iterator[str]:
    creator: Any = Kitchen
    gymnasium.register("serl_test/Kitchen-v0", creator, max_episode_steps=40)
    yield "gymnasium:serl_test/Kitchen-v0"
    del gymnasium.registry["serl_test/Kitchen-v0"]


def stacked(trees: Sequence[Any]) -> Any:
    if isinstance(trees[0], dict):
        return {name: stacked([each[name] for each in trees]) for name in trees[0]}
    return np.stack(trees)


def write_kitchen(folder: Path, reports: bool = True) -> None:
    """Write an episode whose last step is a success, with a reward of 5 and an end without info."""
    infos = {"success": np.array([False, False, True])} if reports else None
    buffer = EpisodeBuffer(
        observations=stacked([seen_in_kitchen(row) for row in range(3)]),
        actions=np.zeros((2, 1), np.float32), rewards=[0.0, 5.0 * (not reports)],
        terminations=[False, not reports], truncations=[False, reports], infos=infos,
    )  # fmt: skip
    write_data_set(folder, Kitchen(), [buffer])


@pytest.mark.parametrize("reports", [True, False])
def test_import_takes_success_from_infos_or_termination_with_positive_reward(
    tmp_path: Path, kitchen: str, reports: bool
) -> None:
    write_kitchen(tmp_path, reports)
    (found,), _ = imported(kitchen, tmp_path)
    assert outcomes(found) == [(0.0, False, False), (1.0, True, False)]


def test_import_keeps_nested_arrays_of_equal_last_key(tmp_path: Path, kitchen: str) -> None:
    write_kitchen(tmp_path)
    (found,), _ = imported(kitchen, tmp_path)
    assert {name: rows.tolist() for name, rows in found.steps[1].observation.state.items()} == {
        "achieved_goal_microwave": [2.0],
        "desired_goal_microwave": [3.0],
        "observation": [4.0, 5.0],
        "agent_state": [6.0],
    }


def test_import_map_takes_joined_names_and_unique_last_keys(tmp_path: Path, kitchen: str) -> None:
    write_kitchen(tmp_path)
    mapping = tmp_path / "map.yaml"
    mapping.write_text(
        "state:\n"
        "  achieved_goal_microwave: [{key: state}]\n"
        "  desired_goal_microwave: [{key: achieved_goal_microwave}]\n"
    )
    (found,), _ = imported(kitchen, tmp_path, "--map", str(mapping))
    seen = found.steps[0].observation.state
    assert seen["achieved_goal_microwave"].tolist() == [5.0]
    assert seen["desired_goal_microwave"].tolist() == [1.0]
