"""Push a block over a line: a whole task in one file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from serl.motion import Motion
from serl.policy import Policy
from serl.robot import Truth
from serl.specs import ArraySpec, ObservationSpec
from serl.task import Placement, Scene, TaskConfig
from serl.types import Action, Observation, Outcome

LINE_X_M = 0.56
BODIES = f"""
<geom type="box" pos="{LINE_X_M} 0 0" size="0.004 0.2 0.0005" rgba="0.13 0.62 0.47 1"
  contype="0" conaffinity="0"/>
<body name="block">
  <freejoint/>
  <geom type="box" size="0.02 0.06 0.02" mass="0.2" friction="0.3" priority="2"
    rgba="0.94 0.45 0.20 1"/>
</body>
"""


class PushBlockConfig(TaskConfig):
    """An action moves the tool's target along x and y, at most 15 mm a step, within the box."""

    time_limit_s: float = 6.0
    motion: Motion = Motion(
        axes=("x", "y"),
        translation_m=0.015,
        box_low_m=(0.30, -0.20, 0.018),
        box_high_m=(0.62, 0.20, 0.020),
    )


class PushBlock:
    """Push the block until its centre is beyond the line."""

    name = "push_block"

    def __init__(self, config: PushBlockConfig | None = None) -> None:
        self.config = config or PushBlockConfig()

    @property
    def observation_spec(self) -> ObservationSpec:
        """The spec of the observation: seven numbers."""
        metres = ArraySpec(shape=(2,), unit="m, base frame")
        return ObservationSpec(
            state={
                "block_from_tcp": metres,
                "lead": metres,
                "tcp_velocity": ArraySpec(shape=(2,), unit="m/s, base frame"),
                "block_to_line": ArraySpec(shape=(1,), unit="m"),
            }
        )

    @property
    def scene(self) -> Scene:
        """The block and the line; readings carry `block_pose`, as a tracker's would."""
        return Scene(bodies=BODIES, place=self._place, tracked=("block",))

    def begin(self, reading: Observation) -> None:
        """An episode starts: this task remembers nothing."""

    def observation(self, reading: Observation) -> Observation:
        """Return the observation of a reading."""
        tcp, block = reading.state["tcp_pose"], reading.state["block_pose"]
        state = {
            "block_from_tcp": block[:2] - tcp[:2],
            "lead": reading.state["target_pose"][:2] - tcp[:2],
            "tcp_velocity": reading.state["tcp_twist"][:2],
            "block_to_line": LINE_X_M - block[:1],
        }
        return Observation(state=state, stamps=reading.stamps)

    def outcome(self, reading: Observation, index: int) -> Outcome:
        """Reward 1 and the end once the block is over; truncated at the time limit."""
        return self.config.outcome(self.is_success(reading.state), index)

    def reset(self, reading: Observation) -> Policy | None:
        """Nothing to do: the simulation places the block itself."""
        return None

    def is_success(self, truth: Truth) -> bool:
        """The ground truth that trials count."""
        return float(truth["block_pose"][0]) > LINE_X_M

    def progress(self, truth: Truth) -> float:
        """From 0 to 1; the simulated human takes over when it stops growing."""
        tcp, block = truth["tcp_pose"], truth["block_pose"]
        near = 1.0 - float(np.linalg.norm(block[:2] - tcp[:2])) / 0.4
        pushed = 1.0 - float(LINE_X_M - block[0]) / 0.2
        return 0.3 * min(1.0, max(0.0, near)) + 0.7 * min(1.0, max(0.0, pushed))

    def expert(self, truth: Callable[[], Truth], seed: int) -> Policy:
        """Get behind the block's middle, then push; used for demonstrations and takeovers."""
        rng = np.random.default_rng(seed)

        def act(observation: Observation) -> Action:
            now = truth()
            tcp, block, target = now["tcp_pose"], now["block_pose"], now["target_pose"]
            if abs(block[1] - tcp[1]) < 0.01:
                goal = np.array((LINE_X_M, block[1]))
            elif block[0] - tcp[0] < 0.05:
                goal = np.array((block[0] - 0.07, tcp[1]))
            else:
                goal = np.array((tcp[0], block[1]))
            step = (goal - target[:2]) / self.config.motion.translation_m
            step = step / max(1.0, float(np.abs(step).max())) + rng.normal(0.0, 0.05, 2)
            return step.clip(-1.0, 1.0).astype(np.float32)

        return act

    def training_defaults(self) -> Mapping[str, Any]:
        """Settings that this task trains better with."""
        return {"steps": 5000, "demos": 10}

    def _place(self, rng: np.random.Generator) -> Placement:
        """A start: the tool points down, the block lies before it, somewhat to a side."""
        x, y = rng.uniform((0.40, -0.08), (0.46, 0.08))
        block = np.array((x, y, 0.02, 0.0, 0.0, 0.0, 1.0))
        return Placement(
            tcp=np.array((0.33, 0.0, 0.02, 1.0, 0.0, 0.0, 0.0)), bodies={"block": block}
        )


task = PushBlock
