import warnings
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from serl import plugins
from serl.errors import BadInput
from serl.gymnasium_env import TaskEnv
from serl.shaping import ShapedTask, Shaper
from serl.types import Observation

REGISTERED = sorted(name for name in gymnasium.registry if name.startswith("serl/"))
CHECKED: dict[str, dict[str, Any]] = {
    **{name: {"id": name} for name in REGISTERED},
    "pixels": {"id": "serl/PickCube-v0", "observe": "pixels"},
    "person": {"id": "serl/Reach-v0", "intervention": "scripted"},
}


def test_every_task_is_registered_as_environment() -> None:
    assert len(REGISTERED) == len(plugins.names("task")) > 10


@pytest.mark.parametrize("name", CHECKED)
def test_gymnasium_env_checker_accepts_environments_without_warning(name: str) -> None:
    env = gymnasium.make(**CHECKED[name]).unwrapped
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(env)
    env.close()


def test_same_seed_gives_same_episode() -> None:
    def play() -> list[np.ndarray]:
        env = gymnasium.make("serl/PickCube-v0")
        env.action_space.seed(1)
        seen = [env.reset(seed=3)[0]]
        seen += [env.step(env.action_space.sample())[0] for _ in range(10)]
        seen.append(env.reset()[0])
        return seen

    first, second = play(), play()
    assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))
    assert not np.array_equal(first[0], first[-1]), "the next episode starts in the same state"


def test_expert_earns_reward_in_environment() -> None:
    env = TaskEnv("reach")
    observation, info = env.reset(seed=0)
    assert observation in env.observation_space
    assert info["is_success"] is False
    expert = env.task.expert(env.robot.truth, 0)
    for _ in range(env.task.config.max_steps):
        action = expert(env.robot.observe())
        observation, reward, terminated, truncated, info = env.step(action)
        assert info["executed_action"] == pytest.approx(action, abs=1.0)
        if terminated or truncated:
            break
    assert (reward, terminated, truncated) == (1.0, True, False)
    assert info["is_success"] is True


def test_time_limit_truncates_environment() -> None:
    env = TaskEnv("reach")
    env.reset(seed=0)
    still = np.zeros(3, np.float32)
    ends = [env.step(still)[2:4] for _ in range(env.task.config.max_steps)]
    assert ends == [(False, False)] * (len(ends) - 1) + [(False, True)]


class HalfProgress:
    provenance = "half"

    def __call__(self, seen: Observation) -> float:
        return 0.5


def test_environment_returns_shaped_reward_of_shaped_task() -> None:
    env = TaskEnv(ShapedTask(TaskEnv("reach").task, Shaper(HalfProgress(), 2.0, 0.9)))
    env.reset(seed=0)
    assert env.step(np.zeros(3, np.float32))[1] == pytest.approx(0.9 - 1.0)


def test_environment_refuses_non_finite_action() -> None:
    env = TaskEnv("reach")
    env.reset(seed=0)
    with pytest.raises(BadInput, match="action"):
        env.step(np.array([0.0, np.nan, 0.0], np.float32))


def test_environment_renders_rgb_array() -> None:
    env = TaskEnv("reach", render_mode="rgb_array", image_size=32)
    env.reset(seed=0)
    assert env.render().shape == (32, 32, 3)
    assert env.metadata["render_fps"] == env.task.config.rate_hz
    assert TaskEnv("reach").render() is None


def test_pixel_observation_is_dict_of_state_and_images() -> None:
    env = gymnasium.make("serl/PickCube-v0", observe="pixels").unwrapped
    observation, _ = env.reset(seed=0)
    assert set(observation) == {"state", "front", "wrist"}
    assert observation["front"].shape == (64, 64, 3)
    assert observation["state"].shape == (11,)
    env.close()


def test_pixel_observation_of_task_without_cameras_is_refused() -> None:
    with pytest.raises(BadInput, match="observe pixels: expected a renderer and at least one"):
        TaskEnv("reach", observe="pixels")


def test_vector_environment_steps_several_tasks() -> None:
    envs = gymnasium.make_vec("serl/Reach-v0", num_envs=3, vectorization_mode="sync")
    for seed in (1, None):
        observations, _ = envs.reset(seed=seed)
        assert len(np.unique(observations, axis=0)) == 3, "environments start in the same state"
    _, rewards, *_ = envs.step(envs.action_space.sample())
    assert rewards.shape == (3,)
    envs.close()


def test_info_contains_executed_action_of_takeover() -> None:
    env = TaskEnv("reach", intervention="scripted", planned_steps=100)
    env.reset(seed=0)
    away, human = np.full(3, -1.0, np.float32), 0
    for _ in range(40):
        *_, terminated, truncated, info = env.step(away)
        if "intervene_action" in info:
            human += 1
            assert np.array_equal(info["intervene_action"], info["executed_action"])
        if terminated or truncated:
            env.reset()
    assert 0 < human < 40
    assert "intervene_action" not in TaskEnv("reach").reset()[1]


def test_seed_of_reset_gives_same_takeovers() -> None:
    def play(env: TaskEnv, seed: int) -> tuple[list[bool], np.ndarray]:
        env.reset(seed=seed)
        steps = [env.step(np.full(3, -1.0, np.float32)) for _ in range(40)]
        return ["intervene_action" in info for *_, info in steps], np.array([s[0] for s in steps])

    TaskEnv("reach").reset(seed=2**40)
    env = TaskEnv("reach", intervention="scripted", planned_steps=100)
    (taken, seen), (again, same), (other, _) = (play(env, seed) for seed in (3, 3, 4))
    assert any(taken)
    assert taken == again
    assert np.array_equal(seen, same)
    assert taken != other


def test_vector_env_reports_takeovers_returns_and_final_observations() -> None:
    """Step in the order of CleanRL's `sac_continuous_action.py`, with random actions."""

    def make(index: int) -> Callable[[], gymnasium.Env[Any, Any]]:
        def thunk() -> gymnasium.Env[Any, Any]:
            own = {"task_config": {"time_limit_s": 3.0}, "intervention": "scripted"}
            env = gymnasium.make("serl/Reach-v0", planned_steps=200, **own)  # type: ignore[arg-type]
            return gymnasium.wrappers.RecordEpisodeStatistics(env)

        return thunk

    envs = SyncVectorEnv([make(0), make(1)], autoreset_mode=AutoresetMode.SAME_STEP)
    envs.action_space.seed(2)
    earned, takeovers, returns = 0.0, 0, list[float]()
    envs.reset(seed=1)
    for _ in range(100):
        following, rewards, terminated, truncated, infos = envs.step(envs.action_space.sample())
        earned += rewards.sum()
        driven = infos.get("_intervene_action", np.zeros(2, bool))
        takeovers += int(driven.sum())
        if driven.any():
            assert np.abs(infos["intervene_action"][driven]).max() <= 1.0
        for index in np.flatnonzero(terminated | truncated):
            assert not np.array_equal(infos["final_obs"][index], following[index]), (
                "after the reset"
            )
            returns.append(float(infos["final_info"]["episode"]["r"][index]))
    envs.close()
    assert takeovers > 0
    assert len(returns) >= 6
    assert sum(returns) <= earned


@pytest.mark.slow
def test_stable_baselines_learns_from_environment_with_takeovers() -> None:
    sb3 = pytest.importorskip("stable_baselines3", reason="pip install 'serl[bench]'")
    executed: list[np.ndarray[Any, Any]] = []

    class TakeoverSAC(sb3.SAC):  # type: ignore[misc, name-defined]
        def _store_transition(self, buffer: Any, action: Any, *rest: Any) -> None:
            (info,) = rest[-1]
            if "intervene_action" in info:
                action = info["intervene_action"][None]
                executed.append(action[0])
            super()._store_transition(buffer, action, *rest)

    env = gymnasium.make("serl/Reach-v0", intervention="scripted", planned_steps=600)
    model = TakeoverSAC("MlpPolicy", env, learning_starts=100, seed=0, device="cpu")
    model.learn(300)
    assert model.num_timesteps == 300
    assert len(executed) > 10
    kept = {row.tobytes() for row in model.replay_buffer.actions[:300, 0]}
    assert all(row.astype(np.float32).tobytes() in kept for row in executed)
