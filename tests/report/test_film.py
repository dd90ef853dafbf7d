from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from serl.errors import BadInput
from serl.loop import EpisodeKey, Result
from serl.report.film import SIZE, VIEW, Film, tile, write_film
from serl.report.review import RecordingFile, ReplayedEpisode
from serl.specs import ArraySpec, ObservationSpec, Spec
from serl.system.video import GREEN, SOURCE_COLOURS, read_video
from serl.testing import FakeRobot, FakeTask, episode
from serl.types import ActionSource, End, EndReason, Episode, Image, Observation, Step

TASK = FakeTask()
SPEC = Spec(
    task="fake",
    observation=TASK.observation_spec,
    action=TASK.config.motion.action_spec,
    rate_hz=10.0,
)
CAMERA = ArraySpec(shape=(6, 8, 3), dtype="uint8")


def record_episode() -> tuple[Episode, Result]:
    """Record a success of the expert in which one step is a human's."""
    robot = FakeRobot()
    records = episode(robot, TASK, TASK.expert(robot.truth, 0), 0, EpisodeKey("r", "a", 1, 0))
    end = records[-1]
    assert isinstance(end, End)
    steps = [step for step in records if isinstance(step, Step)]
    steps[3] = replace(steps[3], source=ActionSource.HUMAN)
    return Episode(tuple(steps), end), Result(len(steps), 1.0, True, 1, end.reason)


def with_camera(item: Episode, spec: Spec) -> tuple[Episode, Spec]:
    """Add images of a red camera that become brighter to each observation."""

    def seen(observation: Observation, index: int) -> Observation:
        picture = np.zeros(CAMERA.shape, np.uint8)
        picture[..., 0] = 100 + 10 * index
        return replace(observation, images={"top": picture})

    assert item.end is not None
    steps = [replace(s, observation=seen(s.observation, i)) for i, s in enumerate(item.steps)]
    end = replace(item.end, observation=seen(item.end.observation, len(steps)))
    observation = ObservationSpec(state=spec.observation.state, images={"top": CAMERA})
    return Episode(tuple(steps), end), spec.model_copy(update={"observation": observation})


def colour_share(image: Image, colour: tuple[int, int, int]) -> float:
    """Return the share of pixels that have the given colour."""
    return float((np.abs(image.astype(int) - colour).max(axis=2) < 3).mean())


def test_film_has_one_frame_per_step_and_ten_final_frames() -> None:
    item, result = record_episode()
    frames = list(Film(SPEC, item, result, "a · episode 0").frames())
    assert len(frames) == len(item.steps) + 10
    assert {frame.shape for frame in frames} == {(SIZE[1], SIZE[0], 3)}
    assert all((one != other).any() for one, other in pairwise(frames[: len(item.steps)]))
    assert (frames[-1] == frames[-2]).all()


def test_film_panel_shows_action_source_and_final_success() -> None:
    item, result = record_episode()
    film = Film(SPEC, item, result, "a · episode 0")
    panels = [film.frame(index)[60:260, 490:] for index in range(len(item.steps) + 1)]
    human = [colour_share(panel, SOURCE_COLOURS[ActionSource.HUMAN]) > 0.01 for panel in panels]
    assert human == [index == 3 for index in range(len(panels))]
    assert [colour_share(panel, GREEN) > 0.01 for panel in panels] == [False] * (
        len(panels) - 1
    ) + [True]


def test_film_bar_length_equals_action() -> None:
    item, result = record_episode()
    film = Film(SPEC, item, result, "")
    colour = SOURCE_COLOURS[ActionSource.POLICY]
    first = item.steps[0]
    for value in (0.25, -0.5, 1.0):
        action = np.array([value, 0.0], np.float32)
        changed = (replace(first, action=action, requested=0.0 * action), *item.steps[1:])
        film = Film(SPEC, replace(item, steps=changed), result, "")
        row = film.frame(0)[136, 736:896]  # pixel row through the first bar
        assert colour_share(row[None], colour) == pytest.approx(abs(value) / 2, abs=0.02)
        middle = np.flatnonzero(np.abs(row.astype(int) - colour).max(axis=1) < 3).mean() - 80
        assert np.sign(middle) == np.sign(value)


def test_film_timeline_shows_sources_and_rewards() -> None:
    item, result = record_episode()
    frame = Film(SPEC, item, result, "").frame(0)
    lanes = frame[508, 92:944], frame[540, 92:944]
    count = len(item.steps)
    human = colour_share(lanes[0][None], SOURCE_COLOURS[ActionSource.HUMAN])
    assert human == pytest.approx(1 / count, abs=0.01)
    reward = np.abs(lanes[1].astype(int) - GREEN).max(axis=1) < 3
    assert reward.mean() == pytest.approx(1 / count, abs=0.01)
    assert reward[-3:].all()


def test_film_shows_recorded_images_unchanged() -> None:
    item, spec = with_camera(record_episode()[0], SPEC)
    film = Film(spec, item, record_episode()[1], "")
    for index in (0, 3, len(item.steps)):
        centre = film.frame(index)[VIEW[1] // 2, VIEW[0] // 2]
        assert centre.tolist() == [100 + 10 * index, 0, 0]


def test_film_shows_given_views_instead_of_plots() -> None:
    item, result = record_episode()
    views = [np.full((6, 8, 3), 7 * index, np.uint8) for index in range(len(item.steps) + 1)]
    frame = Film(SPEC, item, result, "", views).frame(4)
    assert (frame[: VIEW[1], : VIEW[0]] == 28).all()


def test_tile_keeps_aspect_ratio_of_images() -> None:
    red = np.full((10, 20, 3), (255, 0, 0), np.uint8)
    blue = np.full((40, 10, 3), (0, 0, 255), np.uint8)
    tiles = tile([red, blue, red], (80, 60))
    assert tiles.shape == (60, 80, 3)
    assert colour_share(tiles, (255, 0, 0)) == pytest.approx(2 * 40 * 20 / 4800)
    assert colour_share(tiles, (0, 0, 255)) == pytest.approx(30 * 8 / 4800, abs=0.01)


def test_film_fits_many_actions_states_and_long_texts() -> None:
    item, result = record_episode()
    no, yes = np.zeros(14, np.float32), np.ones(14, np.float32)
    state = {f"array {index}": ArraySpec(shape=(1,)) for index in range(20)}
    seen = Observation({name: np.ones(1, np.float32) for name in state})
    steps = tuple(replace(s, requested=no, action=yes, observation=seen) for s in item.steps)
    assert item.end is not None
    many = Episode(steps, replace(item.end, observation=seen))
    action = ArraySpec(shape=(14,), low=-1, high=1)
    spec = Spec(
        task="t" * 99, observation=ObservationSpec(state=state), action=action, rate_hz=10.0
    )
    film = Film(spec, many, replace(result, reason=EndReason.FAULT, fault="x" * 99), "y" * 99)
    for frame in (film.frame(0), film.frame(len(steps))):
        assert frame.shape == (SIZE[1], SIZE[0], 3)
        assert (frame[:, -8:] == frame[0, -1]).all(), "the right margin must stay empty"


def test_film_shows_recorded_images_or_plots_and_plays_in_real_time(tmp_path: Path) -> None:
    item, result = record_episode()
    shown = ReplayedEpisode(RecordingFile("a", 0, tmp_path / "1-000000.mcap"), SPEC, item, result)
    assert "with plots" in write_film(shown, tmp_path / "plots.mp4")
    assert "unknown task 'fake'" in write_film(shown, tmp_path / "plots.mp4")
    item, spec = with_camera(item, SPEC)
    seen = shown._replace(episode=item, spec=spec)
    texts, count = list[str](), len(item.steps) + 10
    origin = write_film(seen, tmp_path / "camera.mp4", texts.append)
    assert origin == "with the recorded images"
    assert texts == [f"drawing the film: image {n} of {count}" for n in range(1, count + 1)]
    assert len(list(read_video(tmp_path / "camera.mp4"))) == count
    with pytest.raises(BadInput, match=r"must end in \.mp4 or \.webm"):
        write_film(shown, tmp_path / "film.avi")
