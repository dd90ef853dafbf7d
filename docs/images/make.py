"""Makes the films of the documentation, and its pictures of the console and a report.

    python docs/images/make.py console
    python docs/images/make.py report RUN
    python docs/images/make.py takeover
    python docs/images/make.py learning RUN --steps 0 2000 4000 8000
    python docs/images/make.py gallery [TASK ...] [--runs FOLDER]

`console`: the page while a scripted operator lifts a cube. `report`: the top of a run's report.
`takeover`: a simulated human takes over from a careless policy. `learning`: the policy of one run
at some of its checkpoints, on the same starts (step 0: cloned from the demonstrations).
`gallery`: an episode of each task, by the best policy that a run of it in the folder has trained,
in its first success, else by the scripted expert; updates docs/tasks.md.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from PIL import Image as Picture
from PIL import ImageDraw

from serl import plugins
from serl.clock import VirtualClock
from serl.loop import EpisodeKey, RecordCallback, run
from serl.policy import Policy
from serl.robot import Truth
from serl.runs.checkpoint import load, pick
from serl.runs.folder import RunFolder
from serl.runs.task_setup import make_task
from serl.runs.trials import Examiner
from serl.system.video import INK, QUIET, Caption, draw_caption, font
from serl.task import SimulatedTask
from serl.teleop.scripted import ScriptedHuman, ScriptedHumanConfig
from serl.training.evaluation import Purpose, evaluation_seeds
from serl.types import ActionSource, Image, Record, Step
from tests.bench import bench_person, task_bench, task_page
from tests.console.browser import browser

IMAGES = Path(__file__).parent
LARGE_PX, PANEL_PX, REPORT_PX = (640, 480), (400, 300), (985, 800)
FRAME_MS, LAST_FRAME_MS = 60, 1500
MAX_BYTES = 400_000  # of a film of the gallery
QUALITIES = 60, 45, 30  # below, shadows have bands
ORDINALS = (
    *("first", "second", "third", "fourth", "fifth"),
    *("sixth", "seventh", "eighth", "ninth", "tenth"),
)
FILMED_TRIALS = len(ORDINALS)  # of which the first success is shown
TAKEOVER_START, MISSES_BY_M = 7, 0.045


def console() -> None:
    """Photograph the page of a recording of demonstrations."""
    patient = ["--teleop.operator.stale_s=0.5", "--teleop.operator.lost_s=8"]
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        picture = Path(folder) / "console.png"
        bench_person.demonstrate(Path(folder) / "demos", 20, bench_person.GAIN, patient, picture)
        _save_page(picture, "console.webp")


def report(path: Path) -> None:
    """Photograph the top of the report of a run."""
    address = RunFolder.open(path, data_only=True).report.resolve(strict=True).as_uri()
    size = dict(zip(("width", "height"), REPORT_PX, strict=True))

    async def photograph(folder: Path) -> None:
        async with browser(folder / "profile") as page:
            await page.call(
                "Emulation.setDeviceMetricsOverride", **size, deviceScaleFactor=1, mobile=False
            )
            await page.call("Emulation.setScrollbarsHidden", hidden=True)
            await page.open(address)
            plain = "document.querySelector('video').controls = false"
            await page.call("Runtime.evaluate", expression=plain)
            await page.shoot(folder / "report.png", dark=False)

    with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        asyncio.run(photograph(Path(folder)))
        _save_page(Path(folder) / "report.png", "report.webp")


def _save_page(picture: Path, name: str) -> None:
    with Picture.open(picture) as page:
        page.save(IMAGES / name, quality=80, method=6)


def takeover() -> None:
    """Film one episode of pick_cube, a frame a step."""
    task: SimulatedTask = plugins.load("task", "pick_cube")()
    robot = plugins.make_simulation(task)
    robot.reset(TAKEOVER_START)
    human = ScriptedHuman(
        ScriptedHumanConfig(noise=0.1), task, robot, planned_steps=1000, seed=TAKEOVER_START
    )
    policy = _careless(task, robot.truth)
    frames: list[Image] = []
    with closing(plugins.make_renderer(robot, supersampling=3)) as camera:

        def shoot(record: Record) -> None:
            frames.append(draw_caption(camera.frame("front", *LARGE_PX), _caption(record)))

        clock = VirtualClock(robot.advance, task.config.rate_hz)
        key = EpisodeKey("film", "actor0", 0, 0)
        run(robot, task, policy, clock, key, [RecordCallback(shoot)], teleop=human)
    _save(IMAGES / "takeover.webp", frames, FRAME_MS)


def _careless(task: SimulatedTask, truth: Callable[[], Truth]) -> Policy:
    """Return a stand-in for a policy in training: an expert that sees the cube beside itself."""

    def mistaken() -> Truth:
        seen = dict(truth())
        seen["cube_pose"] = seen["cube_pose"].copy()
        seen["cube_pose"][1] -= MISSES_BY_M
        return seen

    return task.expert(mistaken, TAKEOVER_START)


def _caption(record: Record, last: ActionSource = ActionSource.POLICY) -> Caption:
    """Return the caption of a step, or of an end with the source of the last action."""
    if isinstance(record, Step):
        return Caption(record.source, record.key.index)
    return Caption(last, record.key.index, success=record.success)


def learning(path: Path, steps: Sequence[int], trials: int, shown: int) -> None:
    """Film the policy of a run after numbers of steps, side by side, on the same starts.

    Args:
        path: folder of the run.
        steps: steps of its checkpoints; 0 for the policy cloned from demonstrations.
        trials: trials of each policy, whose successes are written beside it.
        shown: number of these trials that are shown.
    """
    folder = RunFolder.open(path)
    examiner = Examiner(folder.config)
    seeds = evaluation_seeds(Purpose.FINAL, folder.config.seed, trials)
    panels = []
    for step in steps:
        weights = load(pick(folder.checkpoints, step)).arrays["actor"]
        won = examiner.evaluate(weights, Purpose.FINAL, trials).successes
        print(f"step {step:,}: {won} of {trials} trials succeed", flush=True)
        lines = f"step {step:,}" if step else "cloned", f"{won} of {trials} trials succeed"
        films = [examiner.film(weights, [seed], PANEL_PX) for seed in list(seeds)[:shown]]
        panels.append([[_titled(frame, lines) for frame in film] for film in films])
    frames: list[Image] = []
    for films in zip(*panels, strict=True):  # each trial begins in all panels at once
        for index in range(max(map(len, films))):
            now = [film[min(index, len(film) - 1)] for film in films]
            rows = [np.hstack(now[start : start + 2]) for start in range(0, len(now), 2)]
            frames.append(np.vstack(rows))
        frames += frames[-1:] * 6
    _save(IMAGES / "learning.webp", frames, 2 * FRAME_MS, 62)


def _titled(frame: Image, lines: Sequence[str]) -> Image:
    picture = Picture.fromarray(frame)
    draw = ImageDraw.Draw(picture)
    right = frame.shape[1] - 1  # the arm stands on the left
    draw.rectangle((right - 176, 0, right, 50), fill=(16, 19, 25))
    draw.text((right - 165, 17), lines[0], INK, font(18), "lm")
    draw.text((right - 165, 37), lines[1], QUIET, font(13), "lm")
    return np.asarray(picture)


def gallery(names: Iterable[str], runs: Path | None) -> None:
    """Film an episode of each task for docs/tasks.md."""
    docs = IMAGES.parent
    trained = _trained(runs) if runs else {}
    for task in task_bench.find_tasks(names or plugins.names("task")):
        if task.name in trained:
            folder = trained[task.name]
            checkpoint = pick(folder.checkpoints)
            weights, examiner = load(checkpoint).arrays["actor"], Examiner(folder.config)
            trials = examiner.evaluate(weights, Purpose.FINAL, FILMED_TRIALS).trials
            number = next((i for i, trial in enumerate(trials) if trial.success), 0)
            seeds = evaluation_seeds(Purpose.FINAL, folder.config.seed, FILMED_TRIALS)
            frames = examiner.film(weights, [list(seeds)[number]], LARGE_PX)
            name = ORDINALS[number]
            content = f"the policy after {int(checkpoint.name):,} steps, in its {name} final trial"
            content += "" if trials[number].success else ", which fails"
        else:
            frames, content = _expert_film(task), "an episode of its scripted expert"
        print(f"{task.name}: {content}, {len(frames)} frames", flush=True)
        path = docs / task_page.PICTURES / f"{task.name}.webp"
        for quality in QUALITIES:
            _save(path, frames, 2 * FRAME_MS, quality)
            if path.stat().st_size < MAX_BYTES:
                break
        records = task_bench.load_records(docs)
        record = records.get(task.name, task_bench.TaskRecord())
        records[task.name] = record.model_copy(update={"picture": content})
        task_page.write_page(docs, records, task_bench.summaries(), {})


def _trained(runs: Path) -> dict[str, RunFolder]:
    """Return the newest run with a checkpoint of each task."""
    found = {}
    for path in task_page.find_runs(runs):
        for part in RunFolder.open(path).parts().values():
            if any(part.checkpoints.glob("0*")):
                found[make_task(part.config).name] = part
    return found


def _expert_film(task: SimulatedTask) -> list[Image]:
    """Return every second frame of an episode of the expert."""
    frames: list[Image] = []
    with (
        plugins.make_simulation(task) as robot,
        closing(plugins.make_renderer(robot, supersampling=2)) as camera,
    ):

        def shoot(record: Record) -> None:
            if record.key.index % 2 == 0 or not isinstance(record, Step):
                caption = _caption(record, ActionSource.SCRIPT)
                frames.append(draw_caption(camera.frame("front", *LARGE_PX), caption))

        robot.reset(0)
        clock = VirtualClock(robot.advance, task.config.rate_hz)
        key, expert = EpisodeKey("film", "expert", 0, 0), task.expert(robot.truth, 0)
        observers = [RecordCallback(shoot)]
        run(robot, task, expert, clock, key, observers, chosen_by=ActionSource.SCRIPT)
    return frames


def _save(path: Path, frames: Sequence[Image], frame_ms: int, quality: int = 60) -> None:
    first, *rest = [Picture.fromarray(frame) for frame in frames]
    first.save(
        path,
        save_all=True,
        append_images=rest,
        duration=[frame_ms] * len(rest) + [LAST_FRAME_MS],
        loop=0,
        quality=quality,
        method=6,
    )
    print(f"{path}: {path.stat().st_size / 1000:.0f} kB")


def main() -> None:
    """Make the films that the command line names."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    kinds = parser.add_subparsers(dest="kind", required=True)
    kinds.add_parser("console")
    kinds.add_parser("report").add_argument("run", type=Path)
    kinds.add_parser("takeover")
    learned = kinds.add_parser("learning")
    learned.add_argument("run", type=Path)
    learned.add_argument("--steps", type=int, nargs="+", default=[0, 4000, 6000, 8000])
    learned.add_argument("--trials", type=int, default=20)
    learned.add_argument("--shown", type=int, default=2)
    shown = kinds.add_parser("gallery")
    shown.add_argument("task", nargs="*")
    shown.add_argument("--runs", type=Path)
    options = parser.parse_args()
    if options.kind == "console":
        console()
    elif options.kind == "report":
        report(options.run)
    elif options.kind == "takeover":
        takeover()
    elif options.kind == "learning":
        learning(options.run, options.steps, options.trials, options.shown)
    else:
        gallery(options.task, options.runs)


if __name__ == "__main__":
    main()
