"""LeRobotDataset v3: Parquet tables, an MP4 file for each camera and episode, JSON metadata.

The video of an episode has one frame more than the table has rows: the final observation, which
LeRobot does not read. `meta/serl.json` holds what the format has no place for.
"""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from PIL import Image as Picture
from pydantic import ValidationError

from serl.datasets.exchange import Dataset, EpisodeArrays, SourceRobot, success_reason, without_last
from serl.datasets.export import Recorded, state_vectors
from serl.datasets.lerobot_statistics import (
    Statistics,
    as_columns,
    episode_statistics,
    total_statistics,
)
from serl.datasets.serl_import import Values, by_last_part
from serl.errors import BadInput, CorruptData
from serl.specs import Spec
from serl.system.files import open_regular, read_bounded, write_atomic
from serl.system.json_fields import parse_object, short
from serl.system.video import read_video, write_video

VERSION = "v3.0"
_FILE = "chunk-{chunk:03d}/file-{file:03d}"
_VIDEO = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
_DATA = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
_OWN = "meta/serl.json"
_IMAGES = "observation.images."
_FILES_PER_CHUNK = 1000
_CRF = {"crf": "14", "g": "2"}  # PSNR above 40 dB; frames are read in random order
_MAX_JSON_BYTES = 64 << 20
_MAX_TABLE_BYTES = 1 << 30  # of an episode, or of the table of episodes
_MAX_FRAME_BYTES = 4_000_000_000  # decoded, of an episode and camera
_PICTURES = ("PNG", "JPEG", "WEBP")  # Pillow runs Ghostscript for EPS, which is a program
_FIELD = re.compile(r"\{(\w+)(?::0(\d)d)?\}")
_DAMAGES = (OSError, pa.ArrowException, LookupError, TypeError, ValueError, AttributeError,
            ArithmeticError, MemoryError, Picture.DecompressionBombError)  # fmt: skip


def write(data: Recorded, out: Path) -> int:
    """Write episodes to a new folder; return their number.

    Raises:
        BadInput: a camera's images have an odd width or height, which MP4 files do not store.
    """
    spec, writer = data.spec, None
    stats: list[Statistics] = []
    for name, image in spec.observation.images.items():
        if any(size % 2 for size in image.shape[:2]):
            raise BadInput(f"lerobot: camera {name}: an odd size {list(image.shape)}; MP4 has none")
    rows: list[dict[str, Any]] = []
    results: list[dict[str, Any]] = []
    total = 0
    try:
        for number, episode in enumerate(data.episodes()):
            columns = _columns(episode, spec, number, total)
            table = pa.table({name: _arrow(values) for name, values in columns.items()})
            if writer is None:
                path = out / "data" / f"{_FILE.format(chunk=0, file=0)}.parquet"
                path.parent.mkdir(parents=True)
                writer = pq.ParquetWriter(path, table.schema)
            writer.write_table(table)
            films = {_IMAGES + n: episode.observations[n][:-1] for n in spec.observation.images}
            stats.append(episode_statistics(columns, films))
            rows.append(_row(episode, spec, number, total) | as_columns(stats[-1]))
            results.append({"success": episode.success, "reason": episode.reason})
            _write_videos(out, episode, spec, number)
            total += len(episode)
    finally:
        if writer is not None:
            writer.close()
    if not rows:
        raise data.none_found()
    path = out / "meta/episodes" / f"{_FILE.format(chunk=0, file=0)}.parquet"
    path.parent.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(rows), path)
    _write_tasks(out, spec)
    _write_json(out / "meta/info.json", _info(data, len(rows), total))
    _write_json(out / "meta/stats.json", total_statistics(stats))
    own = {"spec": spec.model_dump(mode="json"), "episodes": results}
    _write_json(out / _OWN, own)
    return len(rows)


def _columns(episode: EpisodeArrays, spec: Spec, number: int, before: int) -> dict[str, Values]:
    """Return the columns of an episode's rows, without images."""
    count = len(episode)
    vectors = state_vectors(episode, spec)
    terminated, truncated = episode.ends
    index = np.arange(count, dtype=np.int64)
    columns = {
        "observation.state": vectors[:-1],
        "action": np.asarray(episode.action, np.float32),
        "requested_action": np.asarray(episode.requested, np.float32),
        "next.observation_state": vectors[1:],
        "next.reward": np.asarray(episode.reward, np.float64),
        "next.done": terminated | truncated,
        "next.terminated": terminated,
        "next.truncated": truncated,
        "next.success": (terminated | truncated) & episode.success,
        "source": np.array(episode.source, np.str_),
        "reward_provenance": np.array(episode.provenance, np.str_),
        "policy_version": np.asarray(episode.policy_version, np.int64),
        "wall_s": np.asarray(episode.wall_s, np.float64),
        "timestamp": (index / spec.rate_hz).astype(np.float32),
        "frame_index": index,
        "episode_index": np.full(count, number, np.int64),
        "index": index + before,
        "task_index": np.zeros(count, np.int64),
    }
    return {name: rows for name, rows in columns.items() if rows.size}  # a state may have no entry


def _arrow(values: Values) -> pa.Array:
    """Return a column; LeRobot expects numbers in place of vectors of one entry."""
    if values.ndim == 1 or values.shape[1] == 1:
        return pa.array(values.tolist() if values.dtype.kind == "U" else values.reshape(-1))
    return pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), values.shape[1])


def _row(episode: EpisodeArrays, spec: Spec, number: int, before: int) -> dict[str, Any]:
    """Return the row of an episode in the table of episodes, without statistics."""
    chunk, file = divmod(number, _FILES_PER_CHUNK)
    row: dict[str, Any] = {
        "episode_index": number,
        "tasks": [_sentence(spec)],
        "length": len(episode),
        "data/chunk_index": 0,
        "data/file_index": 0,
        "dataset_from_index": before,
        "dataset_to_index": before + len(episode),
        "meta/episodes/chunk_index": 0,
        "meta/episodes/file_index": 0,
    }
    for name in spec.observation.images:
        video = f"videos/{_IMAGES}{name}"
        row |= {f"{video}/chunk_index": chunk, f"{video}/file_index": file}
        row |= {f"{video}/from_timestamp": 0.0}
        row |= {f"{video}/to_timestamp": len(episode) / spec.rate_hz}
    return row


def _sentence(spec: Spec) -> str:
    return spec.task.replace("_", " ")


def _write_videos(out: Path, episode: EpisodeArrays, spec: Spec, number: int) -> None:
    chunk, file = divmod(number, _FILES_PER_CHUNK)
    for name in spec.observation.images:
        place = _VIDEO.format(video_key=_IMAGES + name, chunk_index=chunk, file_index=file)
        write_video(out / place, episode.observations[name], spec.rate_hz, _CRF)


def _write_tasks(out: Path, spec: Spec) -> None:
    """Write the table of tasks, whose index pandas reads from the file's metadata."""
    pd.DataFrame({"task_index": [0]}, index=[_sentence(spec)]).to_parquet(
        out / "meta/tasks.parquet"
    )


def _write_json(path: Path, value: Any) -> None:
    write_atomic(path, json.dumps(value, indent=1).encode())


def _info(data: Recorded, episodes: int, frames: int) -> dict[str, Any]:
    """Return the content of `meta/info.json`."""
    rate_hz = data.spec.rate_hz
    images = data.spec.observation.images
    return {
        "codebase_version": VERSION,
        "robot_type": data.robot or "serl",
        "total_episodes": episodes,
        "total_frames": frames,
        "total_tasks": 1,
        "chunks_size": _FILES_PER_CHUNK,
        "data_files_size_in_mb": 100,
        "video_files_size_in_mb": 200,
        "fps": int(rate_hz) if rate_hz == int(rate_hz) else rate_hz,
        "splits": {"train": f"0:{episodes}"},
        "data_path": _DATA,
        "video_path": _VIDEO if images else None,
        "features": _features(data.spec),
    }


def _features(spec: Spec) -> dict[str, Any]:
    """Return the description of each column and camera."""

    def feature(dtype: str, names: Sequence[str] | None = None) -> dict[str, Any]:
        return {"dtype": dtype, "shape": [len(names) if names else 1], "names": names}

    states = [
        f"{name}[{place}]"
        for name, array in spec.observation.state.items()
        for place in range(int(np.prod(array.shape)))
    ]
    seen = ("observation.state", "next.observation_state") if states else ()
    features = {
        **{name: feature("float32", states) for name in seen},
        **{name: feature("float32", spec.action_names) for name in ("action", "requested_action")},
        "next.reward": feature("float64"),
        **{f"next.{n}": feature("bool") for n in ("done", "terminated", "truncated", "success")},
        **{name: feature("string") for name in ("source", "reward_provenance")},
        "policy_version": feature("int64"),
        "wall_s": feature("float64"),
        "timestamp": feature("float32"),
        **{name: feature("int64") for name in ("frame_index", "episode_index", "index")},
        "task_index": feature("int64"),
    }
    for name, image in spec.observation.images.items():
        height, width, channels = image.shape
        about: dict[str, Any] = {"height": height, "width": width, "channels": channels}
        about |= {"fps": spec.rate_hz, "codec": "h264", "pix_fmt": "yuv420p", "is_depth_map": False}
        features[_IMAGES + name] = {
            "dtype": "video",
            "shape": list(image.shape),
            "names": ["height", "width", "channels"],
            "info": {**{f"video.{key}": value for key, value in about.items()}, "has_audio": False},
        }
    return features


def read(folder: Path, sentence: str | None = None) -> Dataset:
    """Open a data set of LeRobot, of serl or of others.

    Without a final observation, the last frame of an episode is its final observation, and the
    action of this frame is left out; of a success its reward goes to the action before. Without
    rewards and `next.success`, each episode counts as a success.

    Args:
        folder: the data set.
        sentence: sentence of the task whose episodes are read; None if all have the same.

    Raises:
        BadInput: it is not of version 3; from its episodes: the sentence does not select one task.
        CorruptData: its metadata are damaged.
    """
    info = _read_json(folder / "meta/info.json", f"{folder}: expected a LeRobotDataset")
    version = str(info.get("codebase_version"))
    if not version.startswith("v3."):
        raise BadInput(f"{folder}: expected a LeRobotDataset v3, found {version}")
    own = _read_json(folder / _OWN, "") if (folder / _OWN).exists() else {}
    try:
        spec = Spec.model_validate(own["spec"]) if own else None
        features = info["features"]
        actions = _names(features["action"].get("names"))
        origin = SourceRobot(str(info.get("robot_type") or ""), info["fps"], actions, spec)
    except (KeyError, TypeError, ValueError, ValidationError) as error:
        raise CorruptData(f"{folder}: meta: {str(error).splitlines()[0]}") from error
    return Dataset(origin, _episodes(folder, info, own.get("episodes"), sentence))


def _read_json(path: Path, otherwise: str) -> dict[str, Any]:
    try:
        return parse_object(read_bounded(path, _MAX_JSON_BYTES), str(path), _MAX_JSON_BYTES)
    except FileNotFoundError as error:
        raise BadInput(f"{otherwise}, found no {path.name}") from error


def _names(names: Any) -> list[str]:
    """Return the names of a vector, which LeRobot writes as a list or by group."""
    if isinstance(names, dict):
        groups = [each if isinstance(each, list) else [key] for key, each in names.items()]
        return [str(name) for group in groups for name in group]
    return [str(name) for name in names or []]


def _episodes(
    folder: Path,
    info: Mapping[str, Any],
    results: Sequence[Mapping[str, Any]] | None,
    sentence: str | None,
) -> Iterator[EpisodeArrays]:
    try:
        paths = sorted((folder / "meta/episodes").glob("*/*.parquet"))
        rows = [row for path in paths for row in _read_table(path).to_pylist()]
        _check_sentences(folder, rows, sentence)
        films = _Films(folder, info)
        for number, row in enumerate(rows):
            if sentence is not None and sentence not in row["tasks"]:
                continue
            result = results[number] if results else None
            yield _episode(folder, info, row, result, films)
    except _DAMAGES as error:
        line = str(error).partition("\n")[0]
        raise CorruptData(f"{folder}: {type(error).__name__}: {line}") from error


def _check_sentences(folder: Path, rows: Iterable[Mapping[str, Any]], sentence: str | None) -> None:
    """Raise `BadInput` unless a sentence, or the lack of one, selects episodes of one task."""
    found = sorted({str(each) for row in rows for each in row.get("tasks") or ()})
    if sentence in found or (sentence is None and len(found) < 2):
        return
    listed = ", ".join(short(each) for each in found[:5]) + ", ..." * (len(found) > 5)
    expected = f"expected --sentence TEXT with one of {len(found)}: {listed or 'none'}"
    raise BadInput(f"{folder}: tasks of the episodes: {expected}")


def _read_table(path: Path, episode: int | None = None) -> pa.Table:
    """Return the rows of a Parquet file, or those of an episode, without columns of statistics.

    Raises:
        CorruptData: the rows are larger than `_MAX_TABLE_BYTES`.
    """
    with open_regular(path):
        file = ds.dataset(path, format="parquet")
    chosen = None if episode is None else ds.field("episode_index") == episode
    names = [name for name in file.schema.names if not name.startswith("stats/")]
    kept, size = list[pa.RecordBatch](), 0
    for batch in file.to_batches(
        columns=names, filter=chosen, batch_size=1000, batch_readahead=1, fragment_readahead=1
    ):
        size += batch.nbytes
        if size > _MAX_TABLE_BYTES:
            raise CorruptData(f"{path}: more than {_MAX_TABLE_BYTES} bytes of rows")
        kept.append(batch)
    return pa.Table.from_batches(kept, pa.schema([file.schema.field(name) for name in names]))


def _episode(
    folder: Path,
    info: Mapping[str, Any],
    row: Mapping[str, Any],
    own: Mapping[str, Any] | None,
    films: _Films,
) -> EpisodeArrays:
    """Read an episode; `own` is its result in data that serl exported."""
    place = {n: int(row[f"data/{n}"]) for n in ("chunk_index", "file_index")}
    path = _inside(folder, info["data_path"], place)
    table = _read_table(path, row["episode_index"])
    columns = {name: np.array(table.column(name).to_pylist()) for name in table.column_names
               if not pa.types.is_struct(table.column(name).type)}  # fmt: skip
    count = table.num_rows - (own is None)
    if count < 1:
        raise CorruptData(f"{folder}: episode {row['episode_index']}: too few frames")
    seen: dict[str, Values] = {}
    for name, feature in info["features"].items():
        if not name.startswith("observation."):
            continue
        if feature["dtype"] == "video":
            seen[name] = films.frames(row, name, count + 1)
        elif feature["dtype"] == "image":
            pictures = (each["bytes"] for each in table.column(name).to_pylist())
            seen[name] = _stacked(
                np.asarray(Picture.open(io.BytesIO(each), formats=_PICTURES).convert("RGB"))
                for each in pictures
            )
        else:
            seen[name] = columns[name]
    if own is not None and "observation.state" in seen:
        final = columns["next.observation_state"][-1:]
        seen["observation.state"] = np.concatenate([seen["observation.state"], final])
    return _assembled(columns, by_last_part(seen, "observation."), count, own)


def _assembled(
    columns: Mapping[str, Values],
    observations: Mapping[str, Values],
    count: int,
    own: Mapping[str, Any] | None,
) -> EpisodeArrays:
    action = columns["action"][:count]
    if own is not None:
        return EpisodeArrays(
            observations,
            action,
            columns["next.reward"],
            bool(columns["next.terminated"][-1]),
            bool(own["success"]),
            str(own["reason"]),
            columns["requested_action"],
            columns["source"].tolist(),
            columns["reward_provenance"].tolist(),
            columns["policy_version"],
            columns["wall_s"],
        )
    judged = columns.get("next.success")
    given = columns.get("next.reward", np.arange(count + 1) == count).reshape(-1)
    reward, success = without_last(given, None if judged is None else bool(judged.any()))
    reason = success_reason(success, terminated=False)
    info = None
    if judged is not None:  # a success of the frame that is left out counts for the one before
        info = {"success": np.append(judged.reshape(-1)[: count - 1], success)}
    return EpisodeArrays(observations, action, reward, success, success, reason, info=info)


class _Films:
    """Frames of episodes from videos that hold one or more episodes.

    Each camera's video stays open, as decoding a later episode begins at the start of the file.
    """

    def __init__(self, folder: Path, info: Mapping[str, Any]) -> None:
        self._folder, self._info = folder, info
        self._open: dict[str, tuple[Path, int, Iterator[Values]]] = {}

    def frames(self, row: Mapping[str, Any], name: str, count: int) -> Values:
        """Return the first `count` frames of an episode of a camera.  # (count, H, W, 3)."""
        video = f"videos/{name}"
        place = {n: int(row[f"{video}/{n}"]) for n in ("chunk_index", "file_index")}
        path = _inside(self._folder, self._info["video_path"], {"video_key": name, **place})
        start = round(float(row[f"{video}/from_timestamp"]) * float(self._info["fps"]))
        opened, position, images = self._open.get(name, (None, 0, None))
        if images is None or opened != path or start < position:
            position, images = 0, read_video(path, sys.maxsize)  # `_stacked` has a bound
        self._open[name] = path, start + count, images
        frames = _stacked(islice(images, start - position, start - position + count))
        if len(frames) < count:
            raise CorruptData(f"{path}: {len(frames)} frames from {start}, expected {count}")
        return frames


def _stacked(images: Iterable[Values]) -> Values:
    """Return images of one size as an array; raise `CorruptData` for too many bytes."""
    kept, size = list[Values](), 0
    for image in images:
        size += image.nbytes
        if size > _MAX_FRAME_BYTES:
            raise CorruptData(f"more than {_MAX_FRAME_BYTES} bytes of images in an episode")
        kept.append(image)
    return np.stack(kept)


def _inside(folder: Path, template: Any, fields: Mapping[str, Any]) -> Path:
    """Return the path of a file of the data set; raise `CorruptData` for one elsewhere."""
    name = _FIELD.sub(
        lambda found: format(fields[found[1]], f"0{found[2]}d" if found[2] else ""), str(template)
    )
    if Path(name).is_absolute() or ".." in Path(name).parts:
        raise CorruptData(f"{folder}: names a file elsewhere: {name[:200]!r}")
    return folder / name  # which may be a link, as in the cache of the Hugging Face Hub
