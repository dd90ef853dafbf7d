"""Simulated errors of an object tracker: delay, bias, noise and dropouts of bodies' poses."""

from __future__ import annotations

import math
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from pydantic import Field

from serl.geometry import from_rotation_vector, multiply
from serl.types import Array, FrozenModel, Observation

Errors = np.ndarray[Any, np.dtype[np.float64]]
"""Errors of a position (m) and of an orientation (rotation vector, rad).  # (2, 3)."""


class PerceptionConfig(FrozenModel):
    """Errors of a simulated object tracker; none by default.

    Attributes:
        bias_m: length of the error of a body's position, which is constant in an episode.
        bias_rad: angle of the error of its orientation, which is constant as well.
        noise_m: standard deviation of the noise of a position, along each axis.
        noise_rad: standard deviation of the noise of an orientation, about each axis.
        noise_s: time in which this noise changes; 0 for noise that is new in each frame.
        delay_s: smallest age of a pose; rounded up to control periods, each of which has one frame.
        dropout: probability that a frame is lost; the last pose is then repeated.
    """

    bias_m: float = Field(0.0, ge=0, le=0.1)
    bias_rad: float = Field(0.0, ge=0, le=1)
    noise_m: float = Field(0.0, ge=0, le=0.1)
    noise_rad: float = Field(0.0, ge=0, le=1)
    noise_s: float = Field(0.0, ge=0, le=100)
    delay_s: float = Field(0.0, ge=0, le=10)
    dropout: float = Field(0.0, ge=0, lt=1)


class Perception:
    """A simulated object tracker, for one episode after the other.

    Bodies that are numbered, such as the links of a cable, share the constant errors.

    Args:
        config: errors of the view; without any, readings are passed on as they are.
        bodies: names of the tracked bodies; their poses are the states `<name>_pose`.
        is_late: whether a further state, by name, is as late as these poses, without their errors.
    """

    def __init__(
        self,
        config: PerceptionConfig,
        bodies: Iterable[str],
        is_late: Callable[[str], bool] = lambda name: False,
    ) -> None:
        self._config, self._is_late = config, is_late
        self._is_exact = not any(config.model_dump().values())
        self._groups = {f"{body}_pose": body.rstrip("0123456789") for body in bodies}
        self.begin(0)

    def begin(self, seed: int) -> None:
        """Begin an episode, with errors of this seed and without earlier frames."""
        self._rng: np.random.Generator = np.random.default_rng((seed, 7))
        biases = {}
        sizes = np.array((self._config.bias_m, self._config.bias_rad))
        for group in dict.fromkeys(self._groups.values()):
            drawn = self._rng.standard_normal((2, 3))
            biases[group] = drawn / np.linalg.norm(drawn, axis=1, keepdims=True) * sizes[:, None]
        self._biases = {name: biases[group] for name, group in self._groups.items()}
        self._frames: deque[tuple[float, Mapping[str, Array]]] = deque()
        self._noise: dict[str, Errors] = {}
        self._newest_s = -math.inf

    def __call__(self, reading: Observation) -> Observation:
        """Return the reading with the tracker's poses; equal stamps give equal poses."""
        if self._is_exact:
            return reading
        now_s = reading.stamps["robot"]
        if now_s < self._newest_s:  # the scene was placed anew
            self._frames.clear()
            self._newest_s = -math.inf
        if now_s != self._newest_s:
            lost = self._frames and self._rng.random() < self._config.dropout
            if not lost:
                self._frames.append((now_s, self._frame(reading.state, now_s - self._newest_s)))
        self._newest_s = now_s
        latest_s = now_s - self._config.delay_s + 1e-6
        while len(self._frames) > 1 and self._frames[1][0] <= latest_s:
            self._frames.popleft()
        return replace(reading, state={**reading.state, **self._frames[0][1]})

    def _frame(self, state: Mapping[str, Array], since_s: float) -> dict[str, Array]:
        """Return the poses in a state with their errors, and the states that are late."""
        frame = {name: value for name, value in state.items() if self._is_late(name)}
        kept = math.exp(-since_s / self._config.noise_s) if self._config.noise_s else 0.0
        sizes = np.array((self._config.noise_m, self._config.noise_rad))
        for name, bias in self._biases.items():
            new = self._rng.standard_normal((2, 3))
            noise = kept * self._noise.get(name, new) + math.sqrt(1.0 - kept**2) * new
            self._noise[name] = noise
            shift, turn = (bias + sizes[:, None] * noise).tolist()
            x, y, z, w = state[name][3:].tolist()
            turned = multiply(from_rotation_vector(tuple(turn)), (x, y, z, w))
            frame[name] = np.array((*(state[name][:3] + shift), *turned), np.float32)
        return frame


def seed_of(reading: Observation) -> int:
    """Return a seed that depends on the state of a reading: equal starts give equal seeds."""
    return zlib.crc32(b"".join(array.tobytes() for array in reading.state.values()))
