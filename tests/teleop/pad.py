"""Fake pad with heartbeats, benches of one or two operators, and a script."""

from __future__ import annotations

import numpy as np

from serl.intervention import Event
from serl.teleop.device import Buttons, DeviceReport
from serl.teleop.mapping import MappingConfig
from serl.teleop.mux import TeleopMux
from serl.teleop.operator import Operator, OperatorConfig
from serl.testing import FakeRobot
from serl.types import Action

SPEC = FakeRobot.action_spec


HABITS = OperatorConfig(hold_over_s=0.25, stale_s=0.15, lost_s=0.5)


MAPPING = MappingConfig(
    axes={"x": ("x", 1.0), "y": ("y", -0.5)},
    dead_zone=0.0,
    deadman="hold",
    events={"yes": Event.SUCCESS, "stop": Event.STOP},
)


BY_MOTION = MAPPING.model_copy(update={"deadman": None, "threshold": 0.1})


class Pad:
    """Device that sends heartbeats while `alive`; the test sets axes, buttons and its error."""

    name = "pad"

    def __init__(self) -> None:
        self.time_s = self._beat_s = 50.0
        self.axes = {"x": 0.0, "y": 0.0}
        self.buttons = Buttons()
        self.alive = True
        self.error: Exception | None = None

    def now_s(self) -> float:
        return self.time_s

    def read(self) -> DeviceReport | None:
        if self.error:
            raise self.error
        if self.alive:
            self._beat_s = self.time_s
        return DeviceReport(dict(self.axes), *self.buttons.take(), self._beat_s)

    @property
    def silence_s(self) -> float:
        return 0.0 if self.alive else self.time_s - self._beat_s

    def close(self) -> None:
        pass

    def hold(self, down: bool = True) -> None:
        self.buttons.set("hold", down)

    def hit(self, name: str) -> None:
        self.buttons.set(name, True)
        self.buttons.set(name, False)


class Bench:
    """Operator at a pad that is read ten times per second."""

    def __init__(self, mapping: MappingConfig = MAPPING, config: OperatorConfig = HABITS) -> None:
        self.pad = Pad()
        self.person = Operator(self.pad, mapping, config, SPEC, self.pad.now_s)
        self.tick()

    def tick(self, count: int = 1) -> Action | None:
        for _ in range(count):
            self.pad.time_s += 0.1
            action = self.person()
        return action


def moved(action: Action | None) -> list[float]:
    """Return the rounded action of an active operator."""
    assert action is not None
    return [round(value, 3) for value in action.tolist()]


class Script:
    """Teleop that always returns the same action."""

    def begin(self) -> None:
        pass

    def __call__(self) -> Action | None:
        return np.array([-1.0, -1.0], np.float32)

    def events(self) -> tuple[Event, ...]:
        return ()


class Two:
    """Two operators and a script behind one mux."""

    def __init__(self) -> None:
        self.first, self.second = Bench(), Bench()
        self.one = TeleopMux([self.first.person, self.second.person], Script())

    def tick(self) -> Action | None:
        for bench in (self.first, self.second):
            bench.pad.time_s += 0.1
        return self.one()
