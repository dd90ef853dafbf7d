"""Common base of tasks: an arm's own state with the scene's state or images, and held success."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import numpy as np

from serl.bimanual import LEFT, RIGHT
from serl.camera import View, image_specs
from serl.geometry import Quaternion, Vector
from serl.motion import Limits, Motion
from serl.perception import Perception, seed_of
from serl.policy import Policy
from serl.robot import Truth
from serl.specs import ArraySpec, ObservationSpec
from serl.task import Scene, TaskConfig, ViewName
from serl.tasks.parts.steering import DOWN, steer
from serl.types import Action, Array, Observation, Outcome

State = Mapping[str, Array]
Vector64 = np.ndarray[Any, np.dtype[np.float64]]
Specs = dict[str, ArraySpec]

POSITION = ArraySpec(shape=(3,), unit="m, base frame")
FORCE = ArraySpec(shape=(3,), unit="N, base frame")
TOOL_SPEC = {
    "tcp_velocity": ArraySpec(shape=(3,), unit="m/s, base frame"),
    "gripper": ArraySpec(shape=(1,), unit="opening, 0 to 1"),
    "lead": POSITION,
}
"""Specification of `tool_state`."""


def tool_state(state: State) -> dict[str, Array]:
    """Return the tool's velocity, its opening, and the lead of its target."""
    return {
        "tcp_velocity": state["tcp_twist"][:3],
        "gripper": state["gripper"],
        "lead": state["target_pose"][:3] - state["tcp_pose"][:3],
    }


def gripper_motion(low_m: Vector, high_m: Vector, max_rotation_rad: float = 0.0) -> Motion:
    """Return the motion of an arm with a gripper in a box; actions have a yaw if it may be > 0."""
    turns = {"max_rotation_rad": max_rotation_rad} if max_rotation_rad else {}
    return Motion(
        axes=("x", "y", "z", "yaw") if turns else ("x", "y", "z"),
        translation_m=0.015,
        box_low_m=low_m,
        box_high_m=high_m,
        gripper=True,
        gripper_interval_s=0.3,
        limits=Limits(lead_m=0.020),
        **turns,
    )


SIDES = (LEFT, RIGHT)

BASES = {LEFT: (0.0, 0.0, 0.0, 0.0), RIGHT: (1.10, 0.0, 0.0, math.pi)}
"""x, y, z and yaw of each arm's base in the frame of both, m and rad."""

TOWARDS_LEFT: Quaternion = (0.0, 1.0, 0.0, 0.0)
"""Orientation of the right tool in the common frame, with the left tool at `DOWN`."""


def small_views(**cameras: str) -> dict[ViewName, View]:
    """Return views of 64 x 64 pixels by name, given the camera of each."""
    return {name: View(camera=camera, width=64, height=64) for name, camera in cameras.items()}


PAIR_VIEWS = small_views(front="field", left_wrist="left_wrist", right_wrist="right_wrist")
"""Views of a camera at each wrist, and of the task's camera `field`."""


def arm_spec(side: str, origin: str) -> dict[str, ArraySpec]:
    """Return the specification of the ten numbers of `arm_state`."""
    position = ArraySpec(shape=(3,), unit="m, frame of both")
    return {
        f"{side}from_{origin}": position,
        f"{side}velocity": ArraySpec(shape=(3,), unit="m/s, frame of both"),
        f"{side}gripper": ArraySpec(shape=(1,), unit="opening, 0 to 1"),
        f"{side}lead": position,
    }


def arm_state(state: State, side: str, origin: str, origin_m: Vector64) -> dict[str, Array]:
    """Return the observation of an arm: tool relative to a place, velocity, gripper and lead."""
    tcp = state[f"{side}tcp_pose"][:3]
    return {
        f"{side}from_{origin}": (tcp - origin_m).astype(np.float32),
        f"{side}velocity": state[f"{side}tcp_twist"][:3],
        f"{side}gripper": state[f"{side}gripper"],
        f"{side}lead": state[f"{side}target_pose"][:3] - tcp,
    }


def target(state: State, side: str) -> Vector64:
    """Return the target position of the tool on this side.  # (3,)."""
    return state[f"{side}target_pose"][:3].astype(np.float64)


class ArmTask(ABC):
    """Base of a task that is solved once `is_success` holds for consecutive steps.

    Args:
        config: settings of the task.
        hold_steps: number of these steps.
    """

    config: TaskConfig

    def __init__(self, config: TaskConfig, hold_steps: int) -> None:
        self.config, self._hold_steps, self._held = config, hold_steps, 0
        self._start = np.array((0.0, 0.0, 0.0, *DOWN), np.float32)  # of the tool

    @property
    @abstractmethod
    def scene(self) -> Scene:
        """The scene that is added to the arm's model."""

    @cached_property
    def perception(self) -> Perception:
        """The view of the tracked bodies through which a policy observes them."""
        return Perception(self.config.perception, self.scene.tracked)

    @abstractmethod
    def _specs(self) -> tuple[Specs, Specs]:
        """Return the specification of `_arm_state`, and that of `_scene_state`."""

    @abstractmethod
    def _arm_state(self, state: State) -> dict[str, Array]:
        """Return the state that a policy observes with images and without."""

    @abstractmethod
    def _scene_state(self, state: State) -> dict[str, Array]:
        """Return the state that a policy observes only without images."""

    @abstractmethod
    def is_success(self, truth: Truth) -> bool:
        """Return whether the task is solved at this instant."""

    @cached_property
    def observation_spec(self) -> ObservationSpec:
        """The numbers of the arm, and those of the scene or images."""
        arm, scene = self._specs()
        if self.config.observe == "pixels":
            return ObservationSpec(state=arm, images=image_specs(self.config.policy_views))
        return ObservationSpec(state=arm | scene)

    def begin(self, reading: Observation) -> None:
        """Begin an episode: reset the count of steps with success, and draw errors of the view.

        The start pose of the tool of one arm is kept for observations relative to it.
        """
        self._held, self._start = 0, reading.state.get("tcp_pose", self._start).copy()
        self.perception.begin(seed_of(reading))

    def observation(self, reading: Observation) -> Observation:
        """Return the observation of the policy for a reading."""
        state = self.perception(reading).state
        arm = self._arm_state(state)
        if self.config.observe == "pixels":
            return Observation(arm, self.config.policy_images(reading), reading.stamps)
        return Observation(arm | self._scene_state(state), stamps=reading.stamps)

    def outcome(self, reading: Observation, index: int) -> Outcome:
        """Return reward 1 and the end once success was held; truncated at the time limit."""
        return self._outcome(self.is_success(reading.state), index)

    def reset(self, reading: Observation) -> Policy | None:
        """Return None: the simulation places everything."""
        return None

    def _outcome(self, success: bool, index: int, lost: bool = False) -> Outcome:
        """Return the outcome of a step with or without success; a lost episode ends."""
        self._held = self._held + 1 if success else 0
        return self.config.outcome(self._held >= self._hold_steps, index, lost)


class ArmExpert(ABC):
    """Script of one arm that acts on the truth alone, so that it can continue from any state.

    Args:
        truth: function that returns the current truth.
        motion: meaning of an action.
    """

    NOISE = 0.05

    def __init__(self, truth: Callable[[], Truth], motion: Motion, seed: int) -> None:
        self._truth, self._motion = truth, motion
        self._rng = np.random.default_rng(seed)

    def __call__(self, observation: Observation) -> Action:
        """Return the next action, from the truth alone."""
        return self._act(self._truth())

    @abstractmethod
    def _act(self, truth: Truth) -> Action:
        """Return the next action."""

    def _move(self, shift_m: np.ndarray[Any, Any], gripper: float, turn_rad: float = 0.0) -> Action:
        """Return an action towards a shift and a turn of the target, with noise; see `steer`."""
        noise = self._rng.normal(0.0, self.NOISE, len(self._motion.axes))
        return steer(self._motion, shift_m, turn_rad, gripper, noise)
