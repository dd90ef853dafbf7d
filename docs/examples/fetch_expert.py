"""A scripted expert for gymnasium-robotics: FetchReach and FetchPickAndPlace.

`serl train gymnasium:FetchPickAndPlace-v4 --task_config.expert fetch_expert.py`
"""

from collections.abc import Callable, Mapping

import numpy as np

GAIN, ABOVE_M, NEAR_M, NOISE = 10.0, 0.06, 0.012, 0.1


def expert(rng: np.random.Generator) -> Callable[[Mapping[str, np.ndarray]], np.ndarray]:
    """Return a function from an observation to an action: x, y, z and gripper, from -1 to 1."""

    def act(observation: Mapping[str, np.ndarray]) -> np.ndarray:
        state, goal = observation["observation"], observation["desired_goal"]
        if state.size < 25:  # no object: FetchReach
            way, gripper = goal - state[:3], 0.0
        else:
            way, gripper = pick_and_place(state, goal)
        moved = GAIN * way + rng.normal(0.0, NOISE, 3)
        return np.clip([*moved, gripper], -1.0, 1.0)

    return act


def pick_and_place(state: np.ndarray, goal: np.ndarray) -> tuple[np.ndarray, float]:
    """Return the way of the gripper, and whether it opens (1) or closes (-1)."""
    to_object, opening_m = state[6:9], state[9:11].sum()
    if np.abs(to_object).max() < 0.02:  # the fingers are around the object
        is_held = opening_m < 0.055
        return (goal - state[3:6]) * is_held, -1.0
    if np.linalg.norm(to_object[:2]) > NEAR_M:  # go above it first
        return np.add(to_object, (0.0, 0.0, ABOVE_M)), 1.0
    return to_object, 1.0
