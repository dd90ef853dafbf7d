import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from serl.errors import BadInput
from serl.gymnasium_env import TaskEnv


@pytest.mark.parametrize(
    "name", ["serl/ObjectFlip-v0", "serl/PickCube-v0", "serl/RacingCar-v0", "serl/Reach-v0"]
)
def test_gymnasium_accepts_the_tasks(name: str) -> None:
    env = gymnasium.make(name).unwrapped
    check_env(env, skip_render_check=True)
    env.close()


def test_a_seed_gives_the_same_episode() -> None:
    def play() -> list[np.ndarray]:
        env = gymnasium.make("serl/PickCube-v0")
        env.action_space.seed(1)
        seen = [env.reset(seed=3)[0]]
        seen += [env.step(env.action_space.sample())[0] for _ in range(10)]
        seen.append(env.reset()[0])
        return seen

    first, second = play(), play()
    assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))
    assert not np.array_equal(first[0], first[-1]), "the next episode starts elsewhere"


def test_the_expert_earns_the_reward_in_the_environment() -> None:
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


def test_the_time_limit_truncates() -> None:
    env = TaskEnv("reach")
    env.reset(seed=0)
    still = np.zeros(3, np.float32)
    ends = [env.step(still)[2:4] for _ in range(env.task.config.max_steps)]
    assert ends == [(False, False)] * (len(ends) - 1) + [(False, True)]


def test_a_bad_action_is_refused() -> None:
    env = TaskEnv("reach")
    env.reset(seed=0)
    with pytest.raises(BadInput, match="action"):
        env.step(np.array([0.0, np.nan, 0.0], np.float32))


def test_it_renders() -> None:
    env = TaskEnv("reach", render_mode="rgb_array", image_size=32)
    env.reset(seed=0)
    assert env.render().shape == (32, 32, 3)
    assert TaskEnv("reach").render() is None


def test_from_pixels_an_observation_is_a_dict_of_state_and_images() -> None:
    env = gymnasium.make("serl/PickCube-v0", observe="pixels").unwrapped
    check_env(env, skip_render_check=True)
    observation, _ = env.reset(seed=0)
    assert set(observation) == {"state", "front", "wrist"}
    assert observation["front"].shape == (64, 64, 3)
    assert observation["state"].shape == (11,)
    env.close()


def test_a_task_without_cameras_cannot_be_seen_in_pixels() -> None:
    with pytest.raises(BadInput, match="observe pixels: expected a renderer and at least one"):
        TaskEnv("reach", observe="pixels")
