"""Settings that several tasks have in common: what 20 demonstrations are enough for."""

from __future__ import annotations

from typing import Any

_CLONED = {
    "hidden": (128, 128),
    "return_bounds": (0.0, 1.0),
    "bc_weight": 0.3,
    "bc_final_weight": 0.3,
}


def from_state(steps: int, required: float | None = 0.9, **agent: Any) -> dict[str, Any]:
    """Training from state: a cloned policy that RL improves; better without LayerNorm there.

    Args:
        steps: of the environment.
        required: share of the final trials that have to succeed; None for any.
        agent: settings of it that the task has for itself.
    """
    return {
        "steps": steps,
        "required_success_rate": required,
        "agent": {**_CLONED, "layer_norm": False, "bc_warm_start": 400, **agent},
        "learner": {"warm_up": 400},
    }


def from_state_at_length(steps: int, **agent: Any) -> dict[str, Any]:
    """Training from state of what is done in dozens of steps: grasp, carry, let go.

    Who explores lets go of things, so there is more cloning, and a person who takes over stays for
    a while: with a brief one none of 49 episodes of `handover` succeeded.

    Args:
        steps: of the environment.
        agent: settings of it that the task has for itself.
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
    """Training from images, on a CPU: fewer and smaller updates, and more cloning before them.

    Args:
        steps: of the environment.
        agent: settings of it that the task has for itself.
    """
    return {
        "steps": steps,
        "agent": {**_CLONED, "batch_size": 128, "utd": 1, "bc_warm_start": 1000, **agent},
        "learner": {"warm_up": 1000},
    }


def on_features(steps: int) -> dict[str, Any]:
    """What is other than `from_pixels` where a pretrained encoder stays as it is.

    An update costs about what it costs from state, so there are as many.

    Args:
        steps: of the environment.
    """
    return {"steps": steps, "agent": {"batch_size": 256, "utd": 4}}
