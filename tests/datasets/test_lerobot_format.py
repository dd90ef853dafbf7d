"""Test the reader of LeRobot data sets whose videos hold several episodes each."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import av
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image as Picture

from serl.cli.main import main
from serl.datasets import lerobot_format
from serl.errors import CorruptData
from serl.log.episode_reader import episode_paths, read_episode
from serl.runs.config import resolve
from serl.runs.task_setup import make_spec, make_task
from serl.system import video
from serl.system.video import read_video, write_video

from .test_exchange import record

FPS, LENGTHS = 10, (7, 11, 5, 12, 9)
FILES = (0, 0, 0, 0, 1)
"""File of the video of each episode."""


def write_joined(folder: Path, order: list[int]) -> list[list[np.ndarray]]:
    """Write a data set; return the decoded frames of its two videos, from beginning to end."""
    rows: list[dict[str, Any]] = []
    data: list[dict[str, Any]] = []
    ends = {0: 0, 1: 0}
    for number, (length, file) in enumerate(zip(LENGTHS, FILES, strict=True)):
        video = "videos/observation.images.top"
        row = {"episode_index": number, "data/chunk_index": 0, "data/file_index": 0}
        row |= {f"{video}/chunk_index": 0, f"{video}/file_index": file}
        rows.append(row | {f"{video}/from_timestamp": ends[file] / FPS})
        ends[file] += length
        places = {"episode_index": number, "observation.state": [0.5], "action": [0.25]}
        data += [places] * length
    for name, table in (("meta/episodes", [rows[number] for number in order]), ("data", data)):
        (folder / name / "chunk-000").mkdir(parents=True)
        pd.DataFrame(table).to_parquet(folder / name / "chunk-000/file-000.parquet")
    features = {
        "observation.images.top": {"dtype": "video", "shape": [48, 64, 3]},
        **{name: {"dtype": "float32", "shape": [1]} for name in ("observation.state", "action")},
    }
    info = {"codebase_version": "v3.0", "fps": FPS, "features": features}
    info |= {"data_path": lerobot_format._DATA, "video_path": lerobot_format._VIDEO}
    (folder / "meta/info.json").write_text(json.dumps(info))
    films = []
    for file, count in ends.items():
        path = folder / f"videos/observation.images.top/chunk-000/file-{file:03d}.mp4"
        frames = [moving_square(number + 50 * file) for number in range(count)]
        write_video(path, frames, FPS, {"g": "8", "bf": "2"})
        films.append(list(read_video(path)))
    return films


def moving_square(place: int) -> np.ndarray:
    image = np.zeros((48, 64, 3), np.uint8)
    image[..., 2] = np.arange(64)
    image[place % 40 :, place % 60 :] = 100 + place
    return image


@pytest.mark.parametrize("order", [[0, 1, 2, 3, 4], [2, 0, 3, 4, 1]])
def test_episodes_of_joined_video_have_their_frames(tmp_path: Path, order: list[int]) -> None:
    films = write_joined(tmp_path, order)
    path = tmp_path / "videos/observation.images.top/chunk-000/file-000.mp4"
    with av.open(path) as container:
        frames = list(container.decode(video=0))
    assert sum(bool(frame.key_frame) for frame in frames) >= 4
    assert any(frame.pict_type == av.video.frame.PictureType.B for frame in frames)
    starts = [0, 7, 18, 23, 0]
    for number, episode in zip(order, lerobot_format.read(tmp_path).episodes, strict=True):
        expected = films[FILES[number]][starts[number] : starts[number] + LENGTHS[number]]
        np.testing.assert_array_equal(episode.observations["top"], expected)


def test_each_frame_of_joined_video_is_decoded_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_joined(tmp_path, [0, 1, 2, 3, 4])
    decoded = list[Path]()

    def counted(path: Path, *most: int) -> Iterator[np.ndarray]:
        for image in read_video(path, *most):
            decoded.append(path)
            yield image

    monkeypatch.setattr(lerobot_format, "read_video", counted)
    monkeypatch.setattr(video, "MAX_FRAMES", 20)  # a joined video may have more than this
    assert sum(len(each) + 1 for each in lerobot_format.read(tmp_path).episodes) == sum(LENGTHS)
    assert len(decoded) == sum(LENGTHS)


def test_actions_of_one_entry_are_numbers_as_lerobot_expects(tmp_path: Path) -> None:
    """LeRobot declares a feature of the shape [1] as a number, and casts the column to it."""
    task = "gymnasium:Pendulum-v1"
    episodes = record(tmp_path / "recording", spec := make_spec(make_task(resolve({"task": task}))))
    out, back = tmp_path / "pendulum", tmp_path / "back"
    assert main(["export", str(tmp_path / "recording"), "--to", "lerobot", "--out", str(out)]) == 0
    features = json.loads((out / "meta/info.json").read_text())["features"]
    for field in pq.read_schema(out / "data/chunk-000/file-000.parquet"):
        assert (features[field.name]["shape"] == [1]) == (not pa.types.is_nested(field.type))
    assert main(["demos", "import", str(out), "--task", task, "--out", str(back)]) == 0
    (path,) = episode_paths(back)
    for mine, other in zip(episodes[0].steps, read_episode(path, spec).steps, strict=True):
        np.testing.assert_array_equal(mine.action, other.action)


def test_features_of_equal_last_part_keep_longer_names(tmp_path: Path) -> None:
    write_joined(tmp_path, [0, 1, 2, 3, 4])
    names = ["observation.left.pose", "observation.right.pose", "observation.left.force"]
    path = tmp_path / "data/chunk-000/file-000.parquet"
    table = pd.read_parquet(path)
    for number, name in enumerate(names):
        table[name] = float(number)
    table.to_parquet(path)
    info = json.loads((tmp_path / "meta/info.json").read_text())
    info["features"] |= {name: {"dtype": "float32", "shape": [1]} for name in names}
    (tmp_path / "meta/info.json").write_text(json.dumps(info))
    seen = next(lerobot_format.read(tmp_path).episodes).observations
    assert seen.keys() == {"top", "state", "left.pose", "right.pose", "force"}
    assert [seen[name][0] for name in ("left.pose", "right.pose", "force")] == [0.0, 1.0, 2.0]


def test_files_of_data_set_may_be_links_as_in_cache_of_hub(tmp_path: Path) -> None:
    folder, blobs = tmp_path / "snapshot", tmp_path / "blobs"
    write_joined(folder, [0, 1, 2, 3, 4])
    blobs.mkdir()
    for number, path in enumerate([each for each in folder.rglob("*") if each.is_file()]):
        path.rename(blobs / str(number))
        path.symlink_to(blobs / str(number))
    assert [len(each) + 1 for each in lerobot_format.read(folder).episodes] == list(LENGTHS)


@pytest.mark.parametrize(("kind", "is_read"), [("PNG", True), ("EPS", False)])
def test_pictures_of_formats_with_programs_are_refused(
    tmp_path: Path, kind: str, is_read: bool
) -> None:
    """Pillow calls Ghostscript for a picture in EPS."""
    write_joined(tmp_path, [0, 1, 2, 3, 4])
    Picture.fromarray(moving_square(3)).save(stream := io.BytesIO(), kind)
    path = tmp_path / "data/chunk-000/file-000.parquet"
    table = pd.read_parquet(path)
    table["observation.images.side"] = [{"bytes": stream.getvalue(), "path": ""}] * len(table)
    table.to_parquet(path)
    info = json.loads((tmp_path / "meta/info.json").read_text())
    info["features"]["observation.images.side"] = {"dtype": "image", "shape": [48, 64, 3]}
    (tmp_path / "meta/info.json").write_text(json.dumps(info))
    episodes = lerobot_format.read(tmp_path).episodes
    if is_read:
        np.testing.assert_array_equal(next(episodes).observations["side"][0], moving_square(3))
    else:
        with pytest.raises(CorruptData, match="UnidentifiedImageError"):
            next(episodes)


def test_results_of_many_episodes_are_read(tmp_path: Path) -> None:
    spec = make_spec(make_task(resolve({"task": "reach"})))
    before, *_ = record(tmp_path / "recording", spec)
    out = tmp_path / "reach"
    assert main(["export", str(tmp_path / "recording"), "--to", "lerobot", "--out", str(out)]) == 0
    path = out / "meta/serl.json"
    path.write_text(path.read_text() + " " * (1 << 20))  # as large as for 20,000 episodes
    assert len(next(lerobot_format.read(out).episodes)) == len(before.steps)
