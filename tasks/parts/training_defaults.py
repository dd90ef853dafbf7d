"""Training settings common to several tasks, for learning from 20 demonstrations."""

from __future__ import annotations

from typing import Any

_CLONED = {
    "hidden": (128, 128),
    "return_bounds": (0.0, 1.0),
    "bc_weight": 0.3,
    "bc_final_weight": 0.3,
}


def from_state(steps: int, required: float | None = 0.9, **agent: Any) -> dict[str, Any]:
    """Return settings for state: RL improves a cloned policy, better without LayerNorm.

    Args:
        steps: number of environment steps.
        required: share of the final trials that must succeed; None for any.
        agent: further settings of the agent for the task.
    """
    return {
        "steps": steps,
        "required_success_rate": required,
        "agent": {**_CLONED, "layer_norm": False, "bc_warm_start": 400, **agent},
        "learner": {"warm_up": 400},
    }


def from_state_at_length(steps: int, **agent: Any) -> dict[str, Any]:
    """Return settings for state and tasks of dozens of steps: grasp, carry, let go.

    Exploration drops objects, so there is more cloning, and interventions are long: with brief
    ones none of 49 episodes of `handover` succeeded.

    Args:
        steps: number of environment steps.
        agent: further settings of the agent for the task.
    """
    cloned = {"bc_warm_start": 2000, "bc_weight": 1.0, "bc_final_weight": 1.0}
    return from_state(steps, discount=0.985, **{**cloned, **agent}) | {
        "learner": {"warm_up": 2000},
        "human": {
            "noise": 0.05,
            "gain": 0.6,
            "hold_steps": 10,
            "max_hold_steps": 60,
            "bucket_steps": 120,
        },
    }


def from_pixels(steps: int, **agent: Any) -> dict[str, Any]:
    """Return settings for images on a CPU: fewer and smaller updates, and more cloning first.

    Args:
        steps: number of environment steps.
        agent: further settings of the agent for the task.
    """
    return {
        "steps": steps,
        "agent": {**_CLONED, "batch_size": 128, "utd": 1, "bc_warm_start": 1000, **agent},
        "learner": {"warm_up": 1000},
    }


def on_features(steps: int) -> dict[str, Any]:
    """Return the differences from `from_pixels` for a fixed pretrained encoder.

    An update costs about as much as from state, so there are as many.

    Args:
        steps: number of environment steps.
    """
    return {"steps": steps, "agent": {"batch_size": 256, "utd": 4}}
