"""Scripts and resets that move a cube to its goal and then raise the tool."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from serl.errors import NeedsPerson
from serl.geometry import Vector, wrap_angle
from serl.motion import Motion
from serl.policy import Policy
from serl.tasks.parts.arm_task import State
from serl.tasks.parts.steering import CLOSE, OPEN, rng_at, steer, yaw
from serl.types import Action, Array, Observation

_MAX_FINGERS_M = 0.08
_LYING_M = 0.006
_QUARTER_RAD = 0.5 * math.pi


@dataclass(frozen=True, slots=True)
class Cube:
    """A cube on the table, with the dimensions for handling it.

    Attributes:
        name: name of the cube; its pose is the state `<name>_pose`.
        half_m: half its width, and the height of its centre on the table.
        grasp_m: height of the tool point above the cube's centre for a grasp.
        travel_m: height of the tool while carrying.
    """

    name: str
    half_m: float
    grasp_m: float = 0.0
    travel_m: float = 0.13

    def position(self, state: State) -> Array:
        """Return the position of the cube's centre, in the base frame.  # (3,)."""
        return state[f"{self.name}_pose"][:3]

    def turn(self, state: State) -> float:
        """Return the angle from the tool's yaw to that of the nearest side of the cube, rad."""
        return wrap_angle(yaw(state[f"{self.name}_pose"]) - yaw(state["tcp_pose"]), _QUARTER_RAD)

    def lies(self, state: State) -> bool:
        """Return whether the cube is on the table: neither in the hand nor on a rim."""
        return float(self.position(state)[2]) < self.half_m + _LYING_M

    def is_held(self, state: State) -> bool:
        """Return whether the cube is between the fingers, and they are closed to its width."""
        apart = self.position(state) - state["tcp_pose"][:3]
        apart[2] += self.grasp_m
        width = float(state["gripper"][0]) * _MAX_FINGERS_M
        return bool(np.linalg.norm(apart) < self.half_m) and width < 2.0 * self.half_m + 0.004


@dataclass(frozen=True, slots=True)
class Starts:
    """Start poses of the tool: pointing down, open, at one height.

    Attributes:
        low_m: lowest x and y.
        high_m: highest x and y.
        height_m: z of all starts.
    """

    low_m: tuple[float, float]
    high_m: tuple[float, float]
    height_m: float

    def draw(self, rng: np.random.Generator) -> Vector:
        """Draw the position of a start."""
        x, y = rng.uniform(self.low_m, self.high_m).tolist()
        return x, y, self.height_m

    def has(self, state: State) -> bool:
        """Return whether the tool is at a start, within a centimetre, and open."""
        x, y, z = state["tcp_pose"][:3].tolist()
        (x_low, y_low), (x_high, y_high) = self.low_m, self.high_m
        across = x_low - 0.01 < x < x_high + 0.01 and y_low - 0.01 < y < y_high + 0.01
        up = abs(z - self.height_m) < 0.01 and abs(yaw(state["tcp_pose"])) < 0.1
        return bool(across and up and state["gripper"][0] > 0.9)


def restore(
    reading: Observation,
    motion: Motion,
    cube: Cube,
    in_place: Callable[[State], bool],
    goal_m: Callable[[np.random.Generator], np.ndarray[Any, Any]],
    starts: Starts,
) -> Policy | None:
    """Return a policy that resets a task with one cube, from readings alone; None when ready.

    The reset works as on a real arm with a tracker of the cube. A cube in the hand or out of place
    is put down at a goal; the tool then goes to a random start. Each call with a scene that is not
    ready draws another goal and another offset of the grasp.

    Args:
        reading: current reading.
        motion: meaning of an action.
        cube: cube to be handled.
        in_place: whether the place of the cube is valid for the start of an episode.
        goal_m: function that draws x and y of a valid place.
        starts: start poses of the tool.

    Raises:
        NeedsPerson: the cube lies out of the tool's reach.
    """
    state = reading.state
    lies = cube.lies(state)
    if lies and in_place(state) and starts.has(state):
        return None
    x, y, _ = cube.position(state).tolist()
    (x_low, y_low, _), (x_high, y_high, _) = motion.box_low_m, motion.box_high_m
    if lies and not (x_low <= x <= x_high and y_low <= y <= y_high):
        raise NeedsPerson(f"the {cube.name} is at x {x:.2f} y {y:.2f} m, out of reach")
    rng = rng_at(state["tcp_pose"])
    aside_m = tuple(rng.uniform(-0.003, 0.003, 2))
    put_down = PutDown(motion, cube, in_place, goal_m(rng), starts.draw(rng), aside_m=aside_m)
    return lambda reading: put_down(reading.state)


class PutDown:
    """Script that brings a cube to its goal, unless it is in place, and then raises the tool.

    It acts on the current state alone, so that it can continue from any state: a hand that has
    closed on nothing opens and tries again.

    Args:
        motion: meaning of an action.
        cube: cube to be carried.
        in_place: whether the cube lies in a valid place.
        goal_m: x and y of the goal.
        end_m: last position of the tool; None for straight up.
        noise: noise added to each motion.
        aside_m: offset of the grasp from the centre in x and y, and a turn, to vary the grasp.
    """

    HOVER_M = 0.065

    def __init__(
        self,
        motion: Motion,
        cube: Cube,
        in_place: Callable[[State], bool],
        goal_m: np.ndarray[Any, Any],
        end_m: Vector | None = None,
        noise: Callable[[], np.ndarray[Any, Any]] = lambda: np.zeros(1),
        aside_m: tuple[float, float] = (0.0, 0.0),
    ) -> None:
        self._motion, self._cube, self._in_place = motion, cube, in_place
        self._goal, self._end, self._noise = goal_m, end_m, noise
        self._aside = np.array((*aside_m, 0.0))

    def __call__(self, state: State) -> Action:
        """Return the next action."""
        if self._cube.is_held(state):
            return self._carry(state)
        if self._cube.lies(state) and self._in_place(state):
            return self._leave(state)
        return self._grasp(state)

    def _carry(self, state: State) -> Action:
        tcp, cube = state["tcp_pose"][:3].astype(np.float64), self._cube
        low = cube.half_m + cube.grasp_m
        far = math.hypot(*(self._goal - tcp[:2]))
        if far < 0.01 or (cube.lies(state) and self._in_place(state)):
            if tcp[2] < low + 0.004:
                return self._steer(state, tcp, OPEN)
            return self._steer(state, np.array((*self._goal, low)), CLOSE)
        # Slower aside than up, until the cube is above obstacles.
        risen = min(1.0, max(0.0, (tcp[2] - low - 0.03) / 0.03)) if far > 0.03 else 1.0
        goal = tcp[:2] + risen * (self._goal - tcp[:2])
        return self._steer(state, np.array((*goal, cube.travel_m)), CLOSE)

    def _leave(self, state: State) -> Action:
        tcp = state["tcp_pose"][:3].astype(np.float64)
        if state["gripper"][0] < 0.9:
            return self._steer(state, tcp, OPEN)
        high = self._cube.travel_m if self._end is None else self._end[2]
        if tcp[2] < min(high, self._cube.travel_m) - 0.02 or self._end is None:
            return self._steer(state, np.array((tcp[0], tcp[1], high)), OPEN)
        return self._steer(state, np.array(self._end), OPEN, -yaw(state["target_pose"]))

    def _grasp(self, state: State) -> Action:
        """Move over the cube and turn; descend as the tool gets aligned."""
        tcp, goal = state["tcp_pose"][:3], self._cube.position(state).astype(np.float64)
        goal += self._aside
        goal[2] = max(goal[2] + self._cube.grasp_m, self._motion.box_low_m[2])
        # The side nearest to the front, not to the tool, because the turn of the tool is limited.
        side = wrap_angle(yaw(state[f"{self._cube.name}_pose"]), _QUARTER_RAD)
        offset, turn = goal - tcp, side - yaw(state["tcp_pose"])
        opening = float(state["gripper"][0])
        off = math.hypot(offset[0], offset[1]) + 0.05 * abs(turn)
        if off < 0.008 and abs(offset[2]) < 0.010 and opening > 0.4:
            return self._steer(state, goal, CLOSE)
        clear = min(1.0, max(0.0, (off - 0.006) / 0.012)) if opening > 0.9 else 1.0
        goal[2] += self.HOVER_M * clear
        return self._steer(state, goal, OPEN, side - yaw(state["target_pose"]))

    def _steer(
        self, state: State, goal: np.ndarray[Any, Any], gripper: float, turn_rad: float = 0.0
    ) -> Action:
        shift = goal - state["target_pose"][:3]
        return steer(self._motion, shift, turn_rad, gripper, self._noise())
