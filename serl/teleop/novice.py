"""A simulated operator with a late and wrong view of the scene, and with a shaky hand.

It takes over as `ScriptedHuman` does, but acts and measures progress by a view of the scene: poses
delayed by a reaction time, with noise and a bias in each episode. Its help is therefore worse than
the demonstrations, and imitating it is not enough.
"""

from __future__ import annotations

from pydantic import Field

from serl.perception import Perception, PerceptionConfig
from serl.policy import Policy
from serl.robot import Truth
from serl.teleop.human_motion import HumanMotion
from serl.teleop.scripted import ScriptedHuman, ScriptedHumanConfig
from serl.types import Observation


class ViewConfig(PerceptionConfig):
    """Errors of a person's view: half a millimetre, and a quarter of a second; see the base."""

    bias_m: float = Field(0.0005, ge=0, le=0.1)
    bias_rad: float = Field(0.005, ge=0, le=1)
    noise_m: float = Field(0.0003, ge=0, le=0.1)
    noise_rad: float = Field(0.003, ge=0, le=1)
    noise_s: float = Field(1.0, ge=0, le=100)
    delay_s: float = Field(0.25, ge=0, le=10)


class NoviceConfig(ScriptedHumanConfig):
    """Settings of a simulated operator of limited skill.

    Attributes:
        view: errors of its view of the scene; the delay is its reaction time, in which it also sees
            the arm, but not its own command.
        noise: standard deviation of its action error, in addition to the hand's own noise.
    """

    view: ViewConfig = ViewConfig()
    noise: float = Field(0.0, ge=0, le=10)


class NoviceHuman(ScriptedHuman):
    """A `ScriptedHuman` that acts by a view of the scene, with a person's hand.

    Its labels are true: people see whether a task is solved, though not by how much.
    """

    Config = NoviceConfig
    config: NoviceConfig

    def _make_expert(self, seed: int) -> Policy:
        """Return the task's expert, given the view alone, executed by a person's hand."""
        self._view = Perception(self.config.view, self._task.scene.tracked, _is_late)
        self._view.begin(seed)
        self._time_s = 0.0
        self._seen: Truth = {}
        expert = self._task.expert(lambda: self._seen, seed)
        return HumanMotion(expert, self._task, seed, cautious=True)

    def _look(self) -> Truth:
        """Return the view of the scene in this step."""
        now = Observation(self._robot.truth(), stamps={"robot": self._time_s})
        self._time_s += 1.0 / self._task.config.rate_hz
        self._seen = self._view(now).state
        return self._seen


def _is_late(name: str) -> bool:
    return not name.endswith("target_pose")


person = NoviceHuman
