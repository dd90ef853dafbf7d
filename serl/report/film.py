"""A recorded episode as a film: images, action sources, requested and executed actions, rewards."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from itertools import groupby
from pathlib import Path

import cv2
import numpy as np
from PIL import Image as Picture
from PIL import ImageDraw

from serl import plugins
from serl.clock import VirtualClock
from serl.datasets.person import ACTOR as PERSON
from serl.errors import SerlError
from serl.loop import EpisodeKey, RecordCallback, Result, run
from serl.report.curves import Values
from serl.report.playback import RecordedHuman, RecordedPolicy
from serl.report.review import ReplayedEpisode
from serl.robot import SimulatedRobot
from serl.runs.config import TrainConfig
from serl.runs.folder import CONFIG, RunFolder
from serl.runs.task_setup import make_demonstrated_task, make_spec
from serl.specs import Spec
from serl.system.video import GREEN, INK, QUIET, SOURCE_COLOURS, check_name, font, write_video
from serl.task import SimulatedTask
from serl.training.evaluation import Purpose, start_seed
from serl.types import Action, ActionSource, End, Episode, Image, Observation, Record, Step

# A policy's actions are recorded as requested, and are repeated bit by bit; a human's are recorded
# as executed, and contacts amplify the difference. As an angle may wrap, the mean over the arrays
# is compared.
_TOLERANCE = 0.25  # as a share of an array's range in the episode
_SAME_START = 1e-4


class ReplayDiverged(SerlError):
    """An error: the simulation departs from the recording, so its images would be wrong."""


def reenact(
    episode: Episode,
    spec: Spec,
    config: TrainConfig,
    number: int,
    size: tuple[int, int],
    show: Callable[[str], object] = lambda text: None,
) -> list[Image]:
    """Simulate an episode again; return an image for each observation, the final one included.

    Args:
        episode: episode recorded in simulation.
        spec: spec of the recording.
        config: configuration of its run.
        number: number of episodes that the actor had recorded before.
        size: width and height of the images.
        show: called with the progress.

    Raises:
        ReplayDiverged: no start of the run gives the first observation, or the simulation departs
            from the recording later, as it does when the task or the simulation has changed since.
        BadInput: the task cannot be loaded.
    """
    task = make_demonstrated_task(config)
    if difference := make_spec(task).difference(spec):
        raise ReplayDiverged(f"the task has changed: {difference}")
    with plugins.make_simulation(task) as robot:
        _place(robot, task, episode, config.seed, number)
        numbers, total = itertools.count(1), len(episode.steps) + 1
        with closing(plugins.make_renderer(robot, supersampling=2)) as camera:

            def take_image() -> Image:
                show(f"simulating the episode again: image {next(numbers)} of {total}")
                image: Image = camera.frame("front", *size)
                return image

            return _film(robot, task, episode, take_image)


def _place(
    robot: SimulatedRobot, task: SimulatedTask, episode: Episode, seed: int, number: int
) -> None:
    """Reset the scene to the start that gives the first observation; else `ReplayDiverged`."""
    actor, first = episode.steps[0].key.actor, episode.steps[0].observation
    demonstrates = actor == PERSON or episode.count(ActionSource.SCRIPT) > 0
    own = Purpose.DEMONSTRATION if demonstrates else Purpose.TRAINING
    sources = (own, actor), (Purpose.FINAL, "evaluation")  # the latter of `serl run`
    # An expert's failures use up starts without being recorded, and a person's are in a folder of
    # their own.
    for source, start in itertools.product(sources, range(number, 2 * number + 11)):
        purpose, name = source
        reading = robot.reset(start_seed(purpose, seed, name, start))
        task.begin(reading)
        if max(_differences(task.observation(reading), first).values()) < _SAME_START:
            return
    raise ReplayDiverged("no start of its run gives the first observation")


def _film(
    robot: SimulatedRobot, task: SimulatedTask, episode: Episode, take_image: Callable[[], Image]
) -> list[Image]:
    """Run the control loop with the recorded actions; take an image before each step and after."""
    policy, pictures = RecordedPolicy(episode), list[Image]()
    seen = [step.observation for step in episode.steps]
    spans = {
        name: max(1e-3, float(np.ptp([one.state[name] for one in seen], axis=0).max()))
        for name in seen[0].state
    }

    def act(observation: Observation) -> Action:
        differences = _differences(observation, seen[len(pictures)])
        shares = [min(1.0, value / spans[name]) for name, value in differences.items()]
        if np.mean(shares) > _TOLERANCE:
            raise ReplayDiverged(
                f"the simulation departs from the recording at step {len(pictures)}"
            )
        pictures.append(take_image())
        return policy(observation)

    def at_end(record: Record) -> None:
        if isinstance(record, End):
            pictures.append(take_image())

    run(
        robot,
        task,
        act,
        VirtualClock(robot.advance, task.config.rate_hz),
        EpisodeKey("reenactment", "nobody", 0, 0),
        [RecordCallback(at_end)],
        teleop=RecordedHuman(episode),
        interrupted=lambda: len(pictures) == len(seen),
    )
    if len(pictures) <= len(seen):
        raise ReplayDiverged(f"the simulation ends at step {len(pictures) - 1}")
    return pictures


def _differences(observation: Observation, recorded: Observation) -> dict[str, float]:
    """Return the largest difference of any entry, by state array."""
    return {
        name: float(np.abs(values - recorded.state[name]).max())
        for name, values in observation.state.items()
    }


Box = tuple[float, float, float, float]  # left, top, right, bottom
Colour = tuple[int, int, int]

SIZE = (960, 600)
VIEW = (640, 480)
"""Width and height of a film, and of its part that shows the scene, px."""

_SCALE = 2  # drawn larger, then averaged: smooth edges
_PAPER, _CARD, _RULE = (16, 19, 25), (25, 29, 37), (58, 65, 78)
_RED = (248, 113, 113)
_CURVES: tuple[Colour, ...] = ((96, 165, 250), (244, 114, 182), (250, 204, 21), (45, 212, 191))
_LEFT, _RIGHT = 660, 944  # edges of the panel beside the view
_TIME = (92, 944)  # left and right end of the timeline
_LANES = {"acting": (502, 514), "reward": (524, 548), "difference": (558, 582)}
_MAX_SHOWN = 8  # maximum number of actions and plots that fit
_LAST_FRAMES = 10


class Film:
    """The film of one episode, which draws its frames.

    Args:
        episode: the recorded episode; at least one step.
        title: name of the actor and number of the episode, for display.
        views: images of the scene, one for each observation, the final one included. By default
            the recorded images of the cameras, or plots of the state where there are none.
    """

    def __init__(
        self,
        spec: Spec,
        episode: Episode,
        result: Result,
        title: str,
        views: Sequence[Image] | None = None,
    ) -> None:
        self._spec, self._steps, self._result, self._views = spec, episode.steps, result, views
        last = episode.end.observation if episode.end else episode.steps[-1].observation
        self._observations = (*(step.observation for step in episode.steps), last)
        self._plots = {} if views or spec.observation.images else self._state()
        self._returns = np.cumsum([step.reward for step in episode.steps])
        self._base = Picture.new("RGB", (SIZE[0] * _SCALE, SIZE[1] * _SCALE), _PAPER)
        self._draw_base(_Pen(self._base), title)

    def frames(self) -> Iterator[Image]:
        """Yield one frame per step, then the last observation ten times."""
        count = len(self._steps)
        for index in (*range(count), *[count] * _LAST_FRAMES):
            yield self.frame(index)

    def frame(self, index: int) -> Image:
        """Return the frame of the observation `index` and its action; uint8 (600, 960, 3)."""
        picture = self._base.copy()
        pen = _Pen(picture)
        self._draw_panel(pen, index)
        self._draw_now(pen, index)
        for box, values in self._plots.values():
            _draw_curves(pen, box, values, until=index)
        frame = np.asarray(picture.reduce(_SCALE)).copy()
        images = (
            [self._views[index]] if self._views else list(self._observations[index].images.values())
        )
        if images:
            frame[: VIEW[1], : VIEW[0]] = tile(images, VIEW)
        return frame

    def _state(self) -> dict[str, tuple[Box, Values]]:
        """Return the box of each state array's plot, and the array's values over time (N, D)."""
        names = list(self._spec.observation.state)[:_MAX_SHOWN]
        columns = 1 if len(names) <= 2 else 2
        rows = max(1, -(-len(names) // columns))
        wide, high = VIEW[0] / columns, VIEW[1] / rows
        plots = {}
        for place, name in enumerate(names):
            left, top = 16 + place % columns * wide, 16 + place // columns * high
            values = np.array([seen.state[name].ravel() for seen in self._observations], np.float64)
            plots[name] = ((left, top + 14, left + wide - 24, top + high - 18), values)
        return plots

    def _draw_base(self, pen: _Pen, title: str) -> None:
        """Draw the parts that are the same in all frames."""
        pen.text((_LEFT, 28), self._spec.task, 20, INK, fit=_RIGHT - _LEFT)
        pen.text((_LEFT, 50), title, 13, QUIET, fit=_RIGHT - _LEFT)
        for lane, (top, bottom) in _LANES.items():
            pen.text((_TIME[0] - 12, (top + bottom) / 2), lane, 12, QUIET, "rm")
        for source, steps in groupby(enumerate(self._steps), lambda item: item[1].source):
            indices = [index for index, _ in steps]
            top, bottom = _LANES["acting"]
            span = (self._x(indices[0]), top, self._x(indices[-1] + 1), bottom)
            pen.box(span, SOURCE_COLOURS[source])
        rewards = np.array([step.reward for step in self._steps], np.float64)
        self._draw_area(pen, "reward", rewards, GREEN)
        differences = [np.abs(step.requested - step.action).mean() for step in self._steps]
        self._draw_area(pen, "difference", np.array(differences, np.float64), _RED, at_least=0.5)
        for name, (box, values) in self._plots.items():
            unit = self._spec.observation.state[name].unit.split(",")[0]
            pen.text((box[0], box[1] - 10), name, 12, INK)
            pen.text((box[2], box[1] - 10), unit, 11, QUIET, "rm")
            pen.box(box, _CARD)
            _draw_curves(pen, box, values)

    def _draw_area(
        self, pen: _Pen, lane: str, values: Values, colour: Colour, at_least: float = 0.0
    ) -> None:
        """Draw a lane of the timeline: one bar per step, from zero."""
        top, bottom = _LANES[lane]
        pen.box((_TIME[0], top, _TIME[1], bottom), _CARD)
        low, high = min(0.0, values.min()), max(0.0, values.max(), at_least)
        scale = (bottom - top) / (high - low) if high > low else 0.0
        zero = bottom + low * scale
        for index, value in enumerate(values.tolist()):
            if value:
                edges = sorted((zero, zero - value * scale))
                pen.box((self._x(index), edges[0], self._x(index + 1), edges[1]), colour)

    def _draw_now(self, pen: _Pen, index: int) -> None:
        """Draw the cursor on the timeline at the observation `index`."""
        x = self._x(index)
        pen.line([(x, 496), (x, 586)], INK, 1.5)
        pen.line([(x - 4, 494), (x, 499), (x + 4, 494)], INK, 2)

    def _draw_panel(self, pen: _Pen, index: int) -> None:
        """Draw the source of the action, its requested and executed values, and the reward."""
        count, rate_hz = len(self._steps), self._spec.rate_hz
        over = index == count
        step = self._steps[min(index, count - 1)]
        colour = SOURCE_COLOURS[step.source]
        label = step.source.value
        if over:
            colour, label = (GREEN if self._result.success else QUIET), self._result.text
        width = min(pen.width(label, 15), _RIGHT - _LEFT - 24)
        pen.box((_LEFT, 70, _LEFT + width + 24, 98), colour, radius=14)
        pen.text((_LEFT + 12, 84), label, 15, _PAPER, fit=width)
        time = f"{index / rate_hz:.1f} s"
        if not over:
            pen.text((_RIGHT, 84), f"step {index} of {count}", 14, INK, "rm")
        pen.text((_RIGHT, 106), f"{count} steps, {time}" if over else time, 13, QUIET, "rm")
        if over:
            self._draw_shares(pen)
        else:
            self._draw_actions(pen, step, colour)
        pen.text((_LEFT, 440), f"reward {step.reward:g}", 14, GREEN if step.reward > 0 else INK)
        total = f"return {self._returns[min(index, count - 1)]:.4g}"
        pen.text((_RIGHT, 440), total, 14, INK, "rm")

    def _draw_shares(self, pen: _Pen) -> None:
        """Draw the number of steps of each action source."""
        made = Counter(step.source for step in self._steps)
        for row, (source, steps) in enumerate(made.most_common()):
            y = 140 + 26 * row
            pen.box((_LEFT, y - 5, _LEFT + 10, y + 5), SOURCE_COLOURS[source], radius=5)
            pen.text((_LEFT + 20, y), f"{source.value}, {steps} steps", 14, INK)

    def _draw_actions(self, pen: _Pen, step: Step, colour: Colour) -> None:
        """Draw the action's entries from -1 to 1: executed filled, requested outlined."""
        names = self._spec.action_names[:_MAX_SHOWN]
        high = min(30.0, 296.0 / len(names))
        left, right = _LEFT + 76, _RIGHT - 48
        middle, half = (left + right) / 2, (right - left) / 2
        for row, name in enumerate(names):
            top, bottom = 126 + row * high, 126 + (row + 1) * high - 6
            requested, executed = float(step.requested[row]), float(step.action[row])
            pen.text((_LEFT, (top + bottom) / 2), name, 13, QUIET, fit=70)
            pen.box((left, top, right, bottom), _CARD)
            for value, fill, outline in ((executed, colour, None), (requested, None, INK)):
                ends = sorted((middle, middle + value * half))
                pen.box((ends[0], top, ends[1], bottom), fill, outline)
            pen.line([(middle, top - 1), (middle, bottom + 1)], QUIET)
            pen.text((_RIGHT, (top + bottom) / 2), f"{executed:+.2f}", 12, INK, "rm")
        pen.text((_LEFT, 464), "filled: executed    outlined: requested", 11, QUIET)

    def _x(self, index: int) -> float:
        """Return the abscissa of the observation `index` on the timeline."""
        return _TIME[0] + (_TIME[1] - _TIME[0]) * index / len(self._steps)


class _Pen:
    """A drawing context that multiplies all coordinates by `_SCALE`."""

    def __init__(self, picture: Picture.Image) -> None:
        self._draw = ImageDraw.Draw(picture)

    def text(
        self,
        at: tuple[float, float],
        text: str,
        size: int,
        ink: Colour,
        anchor: str = "lm",
        fit: float | None = None,
    ) -> None:
        """Draw a line of text, truncated to the width `fit`."""
        while fit is not None and len(text) > 1 and self.width(text, size) > fit + 0.5:
            text = text[:-1]
        face = font(size * _SCALE)
        self._draw.text((at[0] * _SCALE, at[1] * _SCALE), text, ink, face, anchor)

    def width(self, text: str, size: int) -> float:
        """Return the width of a line of text."""
        return self._draw.textlength(text, font(size * _SCALE)) / _SCALE

    def line(self, points: Sequence[tuple[float, float]], ink: Colour, width: float = 1.0) -> None:
        """Draw a line through the points."""
        scaled = [(x * _SCALE, y * _SCALE) for x, y in points]
        self._draw.line(scaled, ink, round(width * _SCALE), joint="curve")

    def box(
        self, box: Box, fill: Colour | None, outline: Colour | None = None, radius: float = 0.0
    ) -> None:
        """Draw a rectangle with rounded corners."""
        left, top, right, bottom = (value * _SCALE for value in box)
        corners = (left, top, max(left, right - 1), max(top, bottom - 1))
        self._draw.rounded_rectangle(corners, radius * _SCALE, fill, outline, _SCALE)


def _draw_curves(pen: _Pen, box: Box, values: Values, until: int | None = None) -> None:
    """Draw the columns of `values` (N, D) over time: faint, or bright up to the row `until`."""
    left, top, right, bottom = box[0] + 2, box[1] + 3, box[2] - 2, box[3] - 3
    low, span = values.min(), max(np.ptp(values), 1e-6)
    x = left + (right - left) * np.arange(len(values)) / max(1, len(values) - 1)
    y = bottom - (bottom - top) * (values - low) / span
    shown = len(values) if until is None else until + 1
    for column in range(values.shape[1]):
        colour = _CURVES[column % len(_CURVES)]
        points = list(zip(x[:shown].tolist(), y[:shown, column].tolist(), strict=True))
        if until is None:
            faint = tuple((3 * paper + ink) // 4 for paper, ink in zip(_CARD, colour, strict=True))
            pen.line(points, (faint[0], faint[1], faint[2]))
        else:
            pen.line(points, colour, 1.5)
            (px, py) = points[-1]
            pen.box((px - 2.5, py - 2.5, px + 3, py + 3), colour, radius=2.5)


def tile(images: Sequence[Image], size: tuple[int, int]) -> Image:
    """Return a picture of the images in a grid, each as large as fits; uint8 (H, W, 3)."""
    columns = int(np.ceil(np.sqrt(len(images))))
    rows = -(-len(images) // columns)
    wide, high = size[0] // columns, size[1] // rows
    canvas = np.full((size[1], size[0], 3), _PAPER, np.uint8)
    for place, image in enumerate(images):
        scale = min(wide / image.shape[1], high / image.shape[0])
        width, height = round(image.shape[1] * scale), round(image.shape[0] * scale)
        resized = cv2.resize(
            image, (width, height), interpolation=cv2.INTER_AREA if scale < 1 else cv2.INTER_NEAREST
        )
        left = place % columns * wide + (wide - width) // 2
        top = place // columns * high + (high - height) // 2
        canvas[top : top + height, left : left + width] = resized
    return canvas


def write_film(
    shown: ReplayedEpisode, path: Path, show: Callable[[str], object] = lambda text: None
) -> str:
    """Write an episode as a film in real time; return a phrase on the origin of its images.

    `show` is called with the progress.

    Raises:
        BadInput: `path` cannot be the name of a film.
    """
    check_name(path)
    actor, number, _ = shown.recording
    views, origin = _views(shown, show)
    film = Film(shown.spec, shown.episode, shown.result, f"{actor} · episode {number}", views)

    def frames() -> Iterator[Image]:
        total = len(shown.episode.steps) + _LAST_FRAMES
        for number, frame in enumerate(film.frames(), 1):
            show(f"drawing the film: image {number} of {total}")
            yield frame

    write_video(path, frames(), shown.spec.rate_hz)
    return origin


def _views(shown: ReplayedEpisode, show: Callable[[str], object]) -> tuple[list[Image] | None, str]:
    """Return simulated images of the scene if the recording has none, and their origin in words."""
    if shown.spec.observation.images:
        return None, "with the recorded images"
    config = _config(shown.recording.path, shown.spec.task)
    try:
        views = reenact(shown.episode, shown.spec, config, shown.recording.number, VIEW, show)
    except SerlError as error:
        return None, f"with plots of the state, as it cannot be simulated again: {error}"
    return views, "simulated again for its pictures"


def _config(file: Path, task: str) -> TrainConfig:
    """Return the configuration of the run that holds a file; for other files the default one."""
    for folder in file.resolve().parents[:3]:
        if (folder / CONFIG).is_file():
            return RunFolder.open(folder, data_only=True).config
    return TrainConfig(task=task)
