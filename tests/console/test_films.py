"""Films of demonstrations, made of the pictures that the page shows during recording."""

from __future__ import annotations

from pathlib import Path

import pytest

from serl.console.backend import Picture
from serl.console.films import EpisodeFilms, last_picture
from serl.datasets.recording_session import FAILURES, KEPT, UNDONE, RecordedEpisode

S = 10**9


class Clock:
    now_ns = 100 * S

    def __call__(self) -> int:
        return self.now_ns


def film_episode(films: EpisodeFilms, clock: Clock, first_step: int, steps: int, mark: str) -> str:
    """Film an episode at 10 steps and 50 pictures per second; return its name."""
    began_ns = clock.now_ns
    for index in range(5 * steps):
        clock.now_ns += S // 50
        step = first_step + index // 5
        jpeg = f"{mark}{index // 5}".encode()
        films.watch([Picture("front", clock.now_ns, jpeg)], True, step)
    films.watch([Picture("front", 0, b"rest")], False, first_step + steps)
    return f"{began_ns}-000000"


def test_each_episode_gets_own_film_of_10_pictures_per_second(tmp_path: Path) -> None:
    clock = Clock()
    films = EpisodeFilms(tmp_path, clock)
    old = RecordedEpisode("5-000000", KEPT)
    films.assign([old])
    first = RecordedEpisode(film_episode(films, clock, 0, 8, "a"), KEPT)
    films.assign([old, first])
    film = films.read(first.name)
    assert film is not None
    assert 7 <= film.count(b"a") <= 8
    assert last_picture(film) == b"a7"
    lost = film_episode(films, clock, 0, 3, "b")  # lost in a crash
    second = RecordedEpisode(film_episode(films, clock, 0, 3, "c"), FAILURES)
    films.assign([old, first, second])
    assert films.read(lost) is None
    assert last_picture(films.read(second.name) or b"") == b"c2"
    discarded = first._replace(place=UNDONE)
    assert films.listed([old, discarded]) == [
        {"name": "5-000000", "place": KEPT, "film": False},
        {"name": first.name, "place": UNDONE, "film": True},
    ]


def test_film_recording_continues_after_episode_dated_later(tmp_path: Path) -> None:
    clock = Clock()
    films = EpisodeFilms(tmp_path, clock)
    films.assign([])
    films.watch([Picture("front", 1, b"a")], True, 0)
    dated_later = RecordedEpisode(f"{clock.now_ns + S}-000000", KEPT)
    films.assign([dated_later])
    running = RecordedEpisode(f"{clock.now_ns}-000001", KEPT)
    films.watch([Picture("front", 2, b"b")], True, 1)
    clock.now_ns += S
    films.watch([Picture("front", 3, b"c")], True, 2)
    films.assign([dated_later, running])
    assert films.read(dated_later.name) is None
    assert last_picture(films.read(running.name) or b"") == b"c"


def test_unwritable_folder_and_invalid_name_give_no_film(tmp_path: Path) -> None:
    clock = Clock()
    (tmp_path / "films").write_text("a file, not a folder")
    films = EpisodeFilms(tmp_path, clock)
    films.assign([])
    name = film_episode(films, clock, 0, 2, "a")
    films.assign([RecordedEpisode(name, KEPT)])
    assert films.read(name) is None
    assert films.read("../session") is None
    assert last_picture(b"\0\0") == b""


def test_film_of_large_pictures_ends_early_and_can_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("serl.console.films.MAX_BYTES", 40)
    clock = Clock()
    films = EpisodeFilms(tmp_path, clock)
    films.assign([])
    name = film_episode(films, clock, 0, 20, "a")
    films.assign([RecordedEpisode(name, KEPT)])
    assert last_picture(films.read(name) or b"") == b"a5"
