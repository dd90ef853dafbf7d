"""Settings of the learner: published agents for comparisons, and practice without a human.

`serl train TASK --recipe hil_serl` selects a published agent, `--preset practice` practice.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_HIL_SERL: dict[str, Any] = {
    "agent": {
        # serl_launcher/utils/launcher.py, make_sac_pixel_agent_hybrid_single_arm, ..._dual_arm
        "algorithm": "hybrid",
        "hidden": (256, 256),
        "activation": "tanh",
        "layer_norm": True,
        "critics": 2,
        "subset": 2,  # critic_subsample_size=None: all
        "temperature": 0.01,
        "backup_entropy": False,
        "target_entropy": None,
        "entropy_per_dimension": -0.5,
        # serl_launcher/agents/continuous/sac_hybrid_single.py: create, and sample_actions, whose
        # gripper is greedy
        "learning_rate": 3e-4,
        "tau": 0.005,
        "grasp_margin_weight": 0.0,
        "grasp_epsilon": 0.0,
        "return_bounds": None,
        # GripperPenaltyWrapper, as the experiments use it
        "grasp_penalty": 0.02,
        # examples/experiments/config.py, DefaultTrainingConfig: batch_size, cta_ratio, discount
        "batch_size": 256,
        "utd": 2,
        "discount": 0.97,
        # no cloning in any loss
        "bc_weight": 0.0,
        "bc_final_weight": 0.0,
        "bc_warm_start": 0,
    },
    # examples/train_rlpd.py: half of each batch from each buffer; `masks` are 0 at a time limit,
    # which is part of `done` (franka_env/envs/franka_env.py, step). DefaultTrainingConfig:
    # training_starts, steps_per_update
    "learner": {
        "prior_share": 0.5,
        "time_limit_terminates": True,
        "n_step": 1,
        "warm_up": 0,
        "starts_at": 100,
        "publish_every": 50,
    },
}

PRACTICE: Mapping[str, Any] = {
    "steps": 20_000,
    "agent": {
        "layer_norm": True,
        "actor_hidden": (256, 256),
        "actor_activation": "tanh",
        "actor_layer_norm": False,
        "initial_std": 0.03,
        "temperature": 1e-5,
        "temperature_learning_rate": 0.0,
        "bc_warm_start": 5000,
        "bc_weight": 1.0,
        "bc_final_weight": 0.1,
        "bc_steps": 10_000,
    },
    "learner": {"warm_up": 500, "n_step": 3, "imitate_successes": True},
}
"""Settings for practice without a human, from state; they replace a task's tuned ones.

A clone acts first, with little noise; it is cloned further from the demonstrations and its own
successes, while the critics learn its values. Only then does the policy follow the critics, and
cloning loses weight, as its pull towards slow demonstrations costs success. LayerNorm bounds what
critics expect of actions that no data covers. docs/benchmarks.md has the measured effects.
"""

RECIPES: Mapping[str, Mapping[str, Any]] = {"hil_serl": _HIL_SERL}
"""Settings by name of the recipe; they replace a task's tuned ones.

"hil_serl" is the agent of HIL-SERL (Luo et al. 2024) with the constants of its published code
(rail-berkeley/hil-serl). What remains of serl: observations are scaled by the statistics of the
demonstrations; updates are counted by online steps instead of running freely; the gripper's entry
does not count in the target entropy; steps, people and images are as the task has them; trials take
the mode, where HIL-SERL samples (`trial_actions`).
"""
