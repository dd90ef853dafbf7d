"""Makes takeover.webp, the picture of the README: `python docs/images/make.py`, a minute or two."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from PIL import Image as Picture

from serl import plugins
from serl.clock import VirtualClock
from serl.loop import EpisodeKey, run
from serl.policy import Policy
from serl.robot import Truth
from serl.system.video import Caption, draw_caption
from serl.task import SimulatedTask
from serl.teleop.scripted import ScriptedHuman, ScriptedHumanConfig
from serl.types import ActionSource, Image, Record, Step

START = 7
SIZE = (480, 320)
FRAME_MS, LAST_FRAME_MS = 60, 1500
MISSES_BY_M = 0.045


def film() -> list[Image]:
    """One episode of pick_cube, a frame a step."""
    task: SimulatedTask = plugins.load("task", "pick_cube")()
    robot = plugins.make_simulation(task)
    robot.reset(START)
    camera = plugins.make_renderer(robot, supersampling=3)
    human = ScriptedHuman(
        ScriptedHumanConfig(noise=0.1), task, robot, planned_steps=1000, seed=START
    )
    frames: list[Image] = []

    def shoot(record: Record) -> None:
        frames.append(draw_caption(camera.frame("front", *SIZE), _caption(record)))

    clock = VirtualClock(robot.advance, task.config.rate_hz)
    key = EpisodeKey("film", "actor0", 0, 0)
    run(robot, task, careless(task, robot.truth), clock, key, shoot, teleop=human)
    return frames


def careless(task: SimulatedTask, truth: Callable[[], Truth]) -> Policy:
    """Stands in for a policy in training: an expert who takes the cube to lie beside itself."""

    def mistaken() -> Truth:
        seen = dict(truth())
        seen["cube_pose"] = seen["cube_pose"].copy()
        seen["cube_pose"][1] -= MISSES_BY_M
        return seen

    return task.expert(mistaken, START)


def _caption(record: Record) -> Caption:
    if isinstance(record, Step):
        return Caption(record.source, record.key.index)
    return Caption(ActionSource.POLICY, record.key.index, success=record.success)


if __name__ == "__main__":
    first, *rest = [Picture.fromarray(frame) for frame in film()]
    first.save(
        Path(__file__).with_name("takeover.webp"),
        save_all=True,
        append_images=rest,
        duration=[FRAME_MS] * len(rest) + [LAST_FRAME_MS],
        loop=0,
        quality=70,
        method=6,
    )
