"""Episodes for the viewer Rerun (https://rerun.io): a recording, a file `.rrd`, for each.

They are for looking at; `serl demos import` does not read them.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import rerun
from rerun import blueprint

from serl.datasets.exchange import EpisodeArrays
from serl.datasets.export import Recorded
from serl.log.images import compress
from serl.specs import Spec

_AXES_M = 0.1
_POSE = "tcp_pose"  # ending of the names of poses that are drawn as axes


def write(data: Recorded, out: Path) -> int:
    """Write each episode to a file `episode-NUMBER.rrd` in a folder; return their number.

    Timelines are `step`, and `time` from the start of the episode. Entities are `state/NAME`,
    `action`, `requested`, `reward`, `source`, `image/CAMERA` (PNG), and `world/NAME` for the pose
    of a tool. The viewer opens with a layout of cameras, poses and curves.
    """
    rerun.set_strict_mode(True)  # errors are raised, not logged
    out.mkdir(parents=True, exist_ok=True)
    count = 0
    for count, episode in enumerate(data.episodes(), start=1):
        recording = rerun.RecordingStream(data.spec.task)
        recording.save(out / f"episode-{count - 1:06d}.rrd", _layout(data.spec))
        recording.send_recording_name(f"{count - 1}: {episode.reason}")
        for entity, columns in _entities(episode, data.spec).items():
            _send(recording, entity, columns, data.spec.rate_hz)
        recording.disconnect()
    if not count:
        raise data.none_found()
    return count


def _layout(spec: Spec) -> blueprint.Blueprint:
    """Return the views that the viewer opens: pictures and poses on the left, curves right."""
    seen = spec.observation
    left = [blueprint.Spatial2DView(origin=f"image/{name}", name=name) for name in seen.images]
    if any(_is_pose(name, math.prod(each.shape)) for name, each in seen.state.items()):
        left.append(blueprint.Spatial3DView(origin="world", name="poses"))
    states = [blueprint.TimeSeriesView(origin=f"state/{name}", name=name) for name in seen.state]
    acted = blueprint.TimeSeriesView(contents=["action/**", "requested/**"], name="action")
    right = [
        *(acted, blueprint.TimeSeriesView(origin="reward", name="reward")),
        *(blueprint.Tabs(*states), blueprint.StateTimelineView(origin="source", name="source")),
    ]
    return blueprint.Blueprint(
        blueprint.Horizontal(blueprint.Vertical(*left), blueprint.Vertical(*right))
    )


def _is_pose(name: str, size: int) -> bool:
    return name.endswith(_POSE) and size == 7


def _entities(episode: EpisodeArrays, spec: Spec) -> dict[str, Any]:
    """Return the columns of each entity; those of observations have a row for the final one."""
    seen, columns = episode.observations, dict[str, Any]()
    for name in spec.observation.state:
        rows = columns[f"state/{name}"] = seen[name].reshape(len(episode) + 1, -1)
        if _is_pose(name, rows.shape[1]):
            pose = rerun.Transform3D.columns(translation=rows[:, :3], quaternion=rows[:, 3:])
            columns[f"world/{name}"] = pose
    for name, image in spec.observation.images.items():
        files = [compress(pixels, image.shape, "png", 0) for pixels in seen[name]]
        kinds = ["image/png"] * len(files)
        columns[f"image/{name}"] = rerun.EncodedImage.columns(blob=files, media_type=kinds)
    columns["action"], columns["reward"] = episode.action, np.asarray(episode.reward)[:, None]
    if episode.requested is not None:
        columns["requested"] = episode.requested
    if episode.source is not None:
        columns["source"] = rerun.StateChange.columns(state=list(episode.source))
    return columns


def _send(recording: rerun.RecordingStream, entity: str, columns: Any, rate_hz: float) -> None:
    """Send the columns of an entity; a matrix becomes one line for each of its columns."""
    if isinstance(columns, np.ndarray):
        rows, lines = columns.shape
        columns = rerun.Scalars.columns(scalars=columns.ravel()).partition([lines] * rows)
    elif entity.startswith("world/"):
        recording.log(entity, rerun.TransformAxes3D(_AXES_M), static=True)
    count = len(next(iter(columns)).as_arrow_array())
    step = np.arange(count)
    times = [
        rerun.TimeColumn("step", sequence=step),
        rerun.TimeColumn("time", duration=step / rate_hz),
    ]
    recording.send_columns(entity, times, columns)
