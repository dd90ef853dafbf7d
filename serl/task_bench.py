"""What each task is worth: its expert's successes, its speed, what training from state has shown.

Measurements are kept in `tasks.json` and shown in `tasks.md` beside it, with a picture of each
task. What a training has shown is entered there by hand, with the command that shows it again.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from PIL import Image as Picture
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from serl import plugins
from serl.assignment import make_task
from serl.clock import VirtualClock
from serl.config import resolve, stage_configs
from serl.errors import BadInput, CorruptData
from serl.evaluation import wilson
from serl.files import read_bounded, write_atomic
from serl.loop import EpisodeKey, Result, run
from serl.policy import Random
from serl.robot import SimulatedRobot
from serl.task import SimulatedTask
from serl.types import Action, Image, Source

DATA, PAGE, PICTURES = "tasks.json", "tasks.md", Path("images/tasks")
_MAX_BYTES = 1 << 20
_SIZE_PX = (360, 240)
_SHOT = 0.5  # of the expert's first episode: the moment of a picture
_ROUNDS = 3
_UNKNOWN = "not measured"


class Training(BaseModel):
    """What trainings of a task from state have shown; of all seeds together.

    Attributes:
        command: shows it again, for one seed.
        recorded_in: the commit that says so.
        seeds: of the runs.
        steps: online environment steps of each.
        minutes: that one took, at most; None if nobody noted it.
        successes: of the final trials ...
        trials: ... unassisted, from starts that training has not seen.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    command: str
    recorded_in: str
    seeds: tuple[int, ...]
    steps: int = Field(ge=1)
    minutes: float | None = Field(None, gt=0)
    successes: int = Field(ge=0)
    trials: int = Field(ge=1)


class TaskRecord(BaseModel):
    """What is known of a task.

    Attributes:
        expert_successes: of the scripted expert ...
        expert_trials: ... from so many starts; 0 if nobody has looked.
        expert_steps: that it needs, mean.
        steps_per_s: environment steps with random actions, per second of one core's time.
        training: from state.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    expert_successes: int = Field(0, ge=0)
    expert_trials: int = Field(0, ge=0)
    expert_steps: float = Field(0.0, ge=0)
    steps_per_s: float = Field(0.0, ge=0)
    training: Training | None = None


_RECORDS = TypeAdapter(dict[str, TaskRecord])


def find_tasks(names: Iterable[str]) -> Iterator[SimulatedTask]:
    """The tasks of these names; of one that is trained in stages, each stage's."""
    for name in names:
        named = {"task": name}
        config = resolve(make_task(resolve(named)).training_defaults(), named)
        for each in (stage_configs(config) or {"": config}).values():
            yield make_task(each)


def measure(task: SimulatedTask, trials: int) -> tuple[TaskRecord, Image]:
    """Let the expert try, then random actions; a picture of the expert at work as well."""
    with plugins.make_simulation(task) as robot:
        results = [expert_episode(task, robot, seed) for seed in range(trials)]
        record = TaskRecord(
            expert_successes=sum(result.success for result in results),
            expert_trials=trials,
            expert_steps=round(statistics.mean(result.steps for result in results), 1),
            steps_per_s=round(speed(task, robot)),
        )
        return record, shoot(task, robot, round(_SHOT * results[0].steps))


def expert_episode(
    task: SimulatedTask,
    robot: SimulatedRobot,
    seed: int,
    interrupted: Callable[[], bool] = lambda: False,
) -> Result:
    """An episode of the expert, from the start of a seed."""
    robot.reset(seed)
    clock = VirtualClock(robot.advance, task.config.rate_hz)
    key = EpisodeKey("bench", "expert", 1, seed)
    expert = task.expert(robot.truth, seed)
    return run(
        robot,
        task,
        expert,
        clock,
        key,
        lambda record: None,
        chosen_by=Source.SCRIPT,
        interrupted=interrupted,
    )


def speed(task: SimulatedTask, robot: SimulatedRobot, rounds: int = _ROUNDS) -> float:
    """Environment steps a second, of this thread's own time; the median of some episodes.

    Resets and drawing actions are not counted.
    """
    steps = task.config.max_steps
    seconds = []
    for seed in range(rounds):
        choose = Random(robot.action_spec, seed)
        reading = robot.reset(seed)
        task.begin(reading)
        actions = [choose(reading) for _ in range(steps)]
        seconds.append(thread_s(partial(play, task, robot, actions)))
    return steps / statistics.median(seconds)


def play(task: SimulatedTask, robot: SimulatedRobot, actions: list[Action]) -> None:
    """Execute actions one after the other, whatever comes of it."""
    dt_s = 1.0 / task.config.rate_hz
    for index, action in enumerate(actions):
        robot.act(action)
        robot.advance(dt_s)
        reading = robot.observe()
        task.outcome(reading, index)
        task.observation(reading)


def thread_s(function: Callable[[], object]) -> float:
    """The time that this thread spends in a call, seconds: others that run do not count."""
    start_s = time.thread_time()
    function()
    return time.thread_time() - start_s


def shoot(task: SimulatedTask, robot: SimulatedRobot, step: int) -> Image:
    """The expert at work, after some steps from the first start.  # (H, W, 3) uint8."""
    left = iter(range(step))
    expert_episode(task, robot, 0, lambda: next(left, None) is None)
    picture: Image = plugins.make_renderer(robot, supersampling=2).frame("front", *_SIZE_PX)
    return picture


def load_records(docs: Path) -> dict[str, TaskRecord]:
    """What is known of tasks, by name; nothing if there is no file yet.

    Raises:
        CorruptData: the file is damaged.
    """
    path = docs / DATA
    if not path.exists():
        return {}
    try:
        return _RECORDS.validate_json(read_bounded(path, _MAX_BYTES))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise CorruptData(f"{path}: {where}: {first['msg']}") from None


def write_page(
    docs: Path,
    records: Mapping[str, TaskRecord],
    summaries: Mapping[str, str],
    pictures: Mapping[str, Image],
) -> None:
    """Keep the records, and show them: the table, and the pictures that were taken.

    Args:
        docs: the folder; it exists.
        records: of all tasks.
        summaries: one line on each task of the page, in its order.
        pictures: those that are new.

    Raises:
        BadInput: there is no such folder.
    """
    if not docs.is_dir():
        raise BadInput(f"{docs}: no such folder")
    (docs / PICTURES).mkdir(parents=True, exist_ok=True)
    for name, picture in pictures.items():
        Picture.fromarray(picture).save(docs / PICTURES / f"{name}.webp", quality=80, method=6)
    kept = {name: record.model_dump(mode="json") for name, record in sorted(records.items())}
    write_atomic(docs / DATA, (json.dumps(kept, indent=1) + "\n").encode())
    shown = {name: (docs / PICTURES / f"{name}.webp").exists() for name in summaries}
    write_atomic(docs / PAGE, page(records, summaries, shown).encode())


def page(
    records: Mapping[str, TaskRecord], summaries: Mapping[str, str], shown: Mapping[str, bool]
) -> str:
    """The page in Markdown."""
    lines = ["# Tasks", "", "<!-- written by: serl bench tasks --docs docs -->", ""]
    lines += [
        "Scripted experts show that a task can be solved; demonstrations and simulated humans are",
        "made of them. Speed is that of one core of the machine that measured, from state, with",
        "random actions. Training is from state, with 20 demonstrations and the simulated human;",
        "trials are unassisted.",
        "",
        *table(records, summaries),
        "",
    ]
    for name, summary in summaries.items():
        lines += [f"## {name}", "", summary, ""]
        if shown[name]:
            lines += [f"![{name}: its expert at work]({PICTURES}/{name}.webp)", ""]
        if training := records.get(name, TaskRecord()).training:
            lines += [f"`{training.command}` (commit {training.recorded_in})", ""]
    return "\n".join(lines)


def table(records: Mapping[str, TaskRecord], names: Iterable[str]) -> list[str]:
    """A line a task."""
    head = "| task | expert | its mean steps | env steps/s | training | steps | minutes |"
    return [head, "|---|---|---|---|---|---|---|", *(row(name, records) for name in names)]


def row(name: str, records: Mapping[str, TaskRecord]) -> str:
    """One of the table."""
    record = records.get(name, TaskRecord())
    cells: list[Any] = [name, _UNKNOWN, _UNKNOWN, _UNKNOWN]
    if record.expert_trials:
        cells[1] = _rate(record.expert_successes, record.expert_trials)
        cells[2:] = f"{record.expert_steps:.0f}", f"{record.steps_per_s:.0f}"
    if training := record.training:
        seeds = f"{len(training.seeds)} seed{'s' if len(training.seeds) > 1 else ''}"
        cells += [
            f"{_rate(training.successes, training.trials)}, {seeds}",
            f"{training.steps:,}",
            f"{training.minutes:g}" if training.minutes else _UNKNOWN,
        ]
    else:
        cells += [_UNKNOWN, "", ""]
    return f"| {' | '.join(cells)} |"


def _rate(successes: int, trials: int) -> str:
    low, high = wilson(successes, trials)
    return f"{successes} of {trials} ({low:.0%} to {high:.0%})"
