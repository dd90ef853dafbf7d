"""Test the export to Rerun with Rerun's own reader."""

from __future__ import annotations

import sys
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from serl.cli.main import main
from serl.specs import ArraySpec, ObservationSpec
from serl.testing.samples import SPEC, STATE

from .test_exchange import record, seen_in

STATES = {**STATE, "wrench": ArraySpec(shape=(6,))}
CAMERAS = {name: ArraySpec(shape=(24, 32, 3), dtype="uint8") for name in ("front", "wrist")}
SEEING = SPEC.model_copy(update={"observation": ObservationSpec(state=STATES, images=CAMERAS)})


def read(path: Path) -> dict[str, list[Any]]:
    """Return each component of a recording by its name, ordered by the timeline `step`."""
    from rerun.chunk import RrdReader

    found: dict[str, list[Any]] = {}
    reader = RrdReader(path)
    for chunk in reader.stream(store=reader.recordings()[0]):
        columns = chunk.to_record_batch().to_pydict()
        steps = columns.get("step", [0])
        assert chunk.is_static or steps == list(range(len(steps)))
        found |= {f"{chunk.entity_path}:{name}": rows for name, rows in columns.items()}
    return found


def shown_in(path: Path) -> set[str]:
    """Return the origins of the views in the layout of a recording."""
    from rerun.chunk import RrdReader

    reader, found = RrdReader(path), set[str]()
    for chunk in reader.stream(store=reader.blueprints()[0]):
        rows = chunk.to_record_batch().to_pydict().get("ViewBlueprint:space_origin", [])
        found |= {str(origin).strip("/") for row in rows for origin in row}
    return found


def test_rerun_reads_exported_values(tmp_path: Path) -> None:
    pytest.importorskip("rerun", reason="NOT TESTED here: pip install 'serl[rerun]'")
    episodes = record(tmp_path / "recording", SEEING)
    out = tmp_path / "rerun"
    assert main(["export", str(tmp_path / "recording"), "--to", "rerun", "--out", str(out)]) == 0
    assert len(list(out.iterdir())) == len(episodes) == 3
    for number, episode in enumerate(episodes):
        path = out / f"episode-{number:06d}.rrd"
        found = read(path)
        entities = {name.partition(":")[0].strip("/") for name in found}
        views = shown_in(path)
        assert views >= {"image/front", "image/wrist", "world", "reward", "source"}
        assert {view for view in views if not any(e.startswith(view) for e in entities)} == set()
        assert episode.end is not None
        assert found["/__properties:RecordingInfo:name"] == [[f"{number}: {episode.end.text}"]]
        seconds = [each.total_seconds() for each in found["/reward:time"]]
        np.testing.assert_allclose(seconds, np.arange(len(episode.steps)) / SEEING.rate_hz)
        seen = seen_in(episode)
        for name in STATES:
            states = np.stack([each.state[name] for each in seen])
            np.testing.assert_array_equal(found[f"/state/{name}:Scalars:scalars"], states)
        poses = np.concatenate(
            [
                found[f"/world/tcp_pose:Transform3D:{part}"]
                for part in ("translation", "quaternion")
            ],
            axis=2,
        )
        np.testing.assert_array_equal(poses[:, 0], [each.state["tcp_pose"] for each in seen])
        for name in CAMERAS:
            for (blob,), each in zip(found[f"/image/{name}:EncodedImage:blob"], seen, strict=True):
                with Image.open(BytesIO(bytes(blob))) as image:
                    np.testing.assert_array_equal(np.asarray(image), each.images[name])
        for name in ("action", "requested"):
            rows = [getattr(step, name) for step in episode.steps]
            np.testing.assert_array_equal(found[f"/{name}:Scalars:scalars"], rows)
        assert found["/reward:Scalars:scalars"] == [[step.reward] for step in episode.steps]
        assert found["/source:StateChange:state"] == [[step.source] for step in episode.steps]


def test_rerun_shows_no_poses_of_task_without_any(tmp_path: Path) -> None:
    pytest.importorskip("rerun", reason="NOT TESTED here: pip install 'serl[rerun]'")
    blind = ObservationSpec(state={"wrench": ArraySpec(shape=(6,))})
    record(tmp_path / "recording", SPEC.model_copy(update={"observation": blind}))
    out = tmp_path / "rerun"
    assert main(["export", str(tmp_path / "recording"), "--to", "rerun", "--out", str(out)]) == 0
    assert "world" not in shown_in(out / "episode-000000.rrd")


def test_export_without_rerun_names_extra_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "rerun", None)
    monkeypatch.delitem(sys.modules, "serl.datasets.rerun_format", raising=False)
    assert main(["export", str(tmp_path), "--to", "rerun", "--out", str(tmp_path / "a")]) == 2
    error = capsys.readouterr().err
    assert error == "serl: rerun is not installed: pip install 'serl[rerun]'\n"
