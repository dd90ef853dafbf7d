"""Test that recorded episodes survive export to other formats and import from them."""

from __future__ import annotations

import errno
import json
import shutil
import signal
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import h5py
import minari
import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from serl.cli.main import main
from serl.datasets import lerobot_format, robomimic_format
from serl.datasets.exchange import Dataset
from serl.datasets.export import Recorded
from serl.errors import CorruptData
from serl.log.episode_log import EpisodeLog, LogConfig
from serl.log.episode_reader import episode_paths, read_episode, read_spec
from serl.report.display import Display
from serl.runs.config import resolve
from serl.runs.task_setup import make_spec, make_task
from serl.specs import Spec
from serl.testing.samples import random_observation, random_step
from serl.types import (
    ActionSource,
    End,
    EndReason,
    Episode,
    Key,
    Observation,
    Record,
)

FORMATS = ("lerobot", "minari", "robomimic")
OWN_COLUMNS = {"requested_action", "source", "reward_provenance", "policy_version", "wall_s"}
SOURCES = (ActionSource.POLICY, ActionSource.HUMAN, ActionSource.SCRIPT)
Recording = tuple[Path, list[Episode]]


def record(folder: Path, spec: Spec) -> list[Episode]:
    """Record a success, a time limit and a failure, with images that change slowly."""
    rng = np.random.default_rng(0)
    episodes = []
    ends = (EndReason.SUCCESS, EndReason.TIME_LIMIT, EndReason.FAILURE)
    with EpisodeLog(folder, spec, "run", "actor0", 7, LogConfig(min_free_bytes=0)) as log:
        for number, reason in enumerate(ends):
            count = 3 + number
            seen = [random_observation(spec.observation, rng) for _ in range(count + 1)]
            for row, each in enumerate(seen):
                films = {name: make_image(image.shape, row) for name, image in each.images.items()}
                seen[row] = replace(each, images=films)
            steps = [
                replace(
                    random_step(Key("run", "actor0", 7, number, index), spec, rng),
                    observation=seen[index],
                    reward=index / 3 - 0.1,
                    terminated=index + 1 == count and reason is not EndReason.TIME_LIMIT,
                    truncated=index + 1 == count and reason is EndReason.TIME_LIMIT,
                    source=SOURCES[(index + number) % 3],
                    policy_version=index,
                    wall_s=1763715240.5 + index,
                )
                for index in range(count)
            ]
            key = Key("run", "actor0", 7, number, count)
            end = End(key, seen[count], number == 0, reason, count * 0.1, 1763715250.0)
            records: list[Record] = [*steps, end]
            for item in records:
                log.append(item)
            episodes.append(Episode(tuple(steps), end))
    return episodes


def make_image(shape: tuple[int, ...], row: int) -> np.ndarray:
    """Return an image with gradients and a bright square whose position depends on `row`."""
    height, width, _ = shape
    image = np.zeros(shape, np.uint8)
    image[..., 0] = np.linspace(0, 200, height)[:, None]
    image[..., 1] = np.linspace(0, 200, width)
    image[8 : 8 + height // 4, 4 + 6 * row : 4 + 6 * row + width // 4] = 230
    return image


def pixel_spec() -> Spec:
    return make_spec(make_task(resolve({"task": "pick_cube", "observe": "pixels"})))


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    folder = tmp_path_factory.mktemp("recording")
    return folder, record(folder, pixel_spec())


@pytest.fixture(scope="module")
def exported(recording: Recording, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Export the recording to each format."""
    home = tmp_path_factory.mktemp("exported")
    for name in FORMATS:
        assert main(["export", str(recording[0]), "--to", name, "--out", str(home / name)]) == 0
    return home


def import_pixels(folder: Path, out: Path, *options: str) -> int:
    """Import a data set as demonstrations of `pick_cube` from pixels; return the exit code."""
    words = ["demos", "import", str(folder), "--task", "pick_cube", "--observe", "pixels"]
    return main([*words, "--out", str(out), *options])


def assert_near(image: np.ndarray, expected: np.ndarray) -> None:
    """Assert a PSNR above 35 dB, to allow for the loss of the video codec."""
    error = np.square(image.astype(float) - expected).mean()
    assert 10 * np.log10(255**2 / max(error, 1e-9)) > 35


def seen_in(episode: Episode) -> list[Observation]:
    """Return all observations of an episode, including the final one."""
    assert episode.end is not None
    return [*(step.observation for step in episode.steps), episode.end.observation]


@pytest.mark.parametrize("name", FORMATS)
def test_export_and_import_round_trip_without_loss(
    recording: Recording, exported: Path, tmp_path: Path, name: str
) -> None:
    out = tmp_path / "imported"
    assert import_pixels(exported / name, out) == 0
    paths = [*episode_paths(out), *episode_paths(out / "failures")]
    spec = read_spec(paths[0])
    assert spec == pixel_spec()
    back = [read_episode(path, spec) for path in paths]
    for before, after in zip(recording[1], back, strict=True):
        assert before.end is not None
        assert after.end is not None
        assert (before.success, before.end.text) == (after.success, after.end.text)
        fields = ("reward", "reward_provenance", "terminated", "truncated", "source")
        for mine, other in zip(before.steps, after.steps, strict=True):
            for field in (*fields, "policy_version", "wall_s"):
                assert getattr(mine, field) == getattr(other, field), field
            np.testing.assert_array_equal(mine.action, other.action)
            np.testing.assert_array_equal(mine.requested, other.requested)
        for mine_seen, other_seen in zip(seen_in(before), seen_in(after), strict=True):
            for key, array in mine_seen.state.items():
                np.testing.assert_array_equal(array, other_seen.state[key])
            for key, image in mine_seen.images.items():
                if name == "lerobot":
                    assert_near(other_seen.images[key], image)
                else:
                    np.testing.assert_array_equal(other_seen.images[key], image)


def test_export_and_import_count_episodes(
    recording: Recording, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts, out = list[str](), tmp_path / "out"
    monkeypatch.setattr(Display, "_print_rarely", lambda display, text: texts.append(text))
    assert main(["export", str(recording[0]), "--to", "robomimic", "--out", str(out)]) == 0
    assert import_pixels(out, tmp_path / "back") == 0
    total = len(recording[1])
    assert texts == [
        *[f"episodes for {out}: {number} of {total}" for number in range(1, total + 1)],
        *[f"importing {out}: episode {number} done" for number in range(1, total + 1)],
    ]


def test_lerobot_export_has_expected_tables_and_statistics(
    recording: Recording, exported: Path
) -> None:
    folder = exported / "lerobot"
    info = json.loads((folder / "meta/info.json").read_text())
    assert (info["codebase_version"], info["fps"]) == ("v3.0", 10)
    assert (info["total_episodes"], info["total_frames"]) == (3, 12)
    assert pd.read_parquet(folder / "meta/tasks.parquet").index.tolist() == ["pick cube"]
    table = pq.read_table(folder / "data/chunk-000/file-000.parquet")
    assert set(table.column_names) == {
        name for name, each in info["features"].items() if each["dtype"] != "video"
    }
    steps = [step for episode in recording[1] for step in episode.steps]
    assert table.column("source").to_pylist() == [step.source for step in steps]
    assert table.column("next.success").to_pylist() == [row == 2 for row in range(12)]
    assert table.column("index").to_pylist() == list(range(12))
    np.testing.assert_array_equal(
        np.array(table.column("action").to_pylist(), np.float32), [step.action for step in steps]
    )
    stats = json.loads((folder / "meta/stats.json").read_text())
    actions = np.stack([step.action for step in steps])
    np.testing.assert_allclose(stats["action"]["mean"], actions.mean(0), atol=1e-6)
    np.testing.assert_allclose(stats["action"]["std"], actions.std(0), atol=1e-6)
    assert stats["action"]["min"] == actions.min(0).tolist()
    assert stats["action"]["count"] == [12]
    pixels = stats["observation.images.front"]
    images = [
        (np.stack([step.observation.images["front"] for step in each.steps]) / 255)[:, ::4, ::4]
        for each in recording[1]
    ]
    whole = np.concatenate([each.reshape(-1, 3) for each in images])
    np.testing.assert_allclose(np.ravel(pixels["std"]), whole.std(0), atol=1e-6)
    assert np.shape(pixels["q50"]) == (3, 1, 1)
    assert json.loads((folder / "meta/info.json").read_text())["features"]["action"]["names"]


def test_minari_loads_exported_dataset(
    recording: Recording, exported: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(exported / "minari"))
    dataset = minari.load_dataset("serl/pick-cube-v0")
    assert (dataset.total_episodes, dataset.total_steps) == (3, 12)
    drawn = sorted(dataset.sample_episodes(3), key=lambda each: int(each.id))
    assert len({each.id for each in drawn}) == 3
    read = [*dataset.iterate_episodes(), *drawn]
    for before, after in zip(2 * recording[1], read, strict=True):
        seen = seen_in(before)
        states = np.stack([each.state["tcp_from_start"] for each in seen])
        np.testing.assert_array_equal(after.observations["tcp_from_start"], states)
        images = np.stack([each.images["front"] for each in seen])
        np.testing.assert_array_equal(after.observations["front"], images)
        np.testing.assert_array_equal(after.actions, [step.action for step in before.steps])
        assert after.terminations.tolist() == [step.terminated for step in before.steps]
        assert after.truncations.tolist() == [step.truncated for step in before.steps]
        assert after.rewards.tolist() == [step.reward for step in before.steps]
        sources = [text.decode() for text in after.infos["source"][1:]]
        assert sources == [step.source.value for step in before.steps]
    assert dataset.action_space.shape == (5,)


def test_robomimic_export_has_expected_groups(recording: Recording, exported: Path) -> None:
    with h5py.File(exported / "robomimic/demo.hdf5") as file:
        assert file["data"].attrs["total"] == 12
        assert [name.decode() for name in file["mask/success"]] == ["demo_0"]
        demo = file["data/demo_1"]
        assert demo.attrs["num_samples"] == 4
        assert demo["dones"][:].tolist() == [0, 0, 0, 1]
        np.testing.assert_array_equal(
            demo["obs/front_image"][1:], demo["next_obs/front_image"][:-1]
        )


def copy_as_foreign(
    origin: Path, folder: Path, changed: dict[str, object], *kept: str
) -> pd.DataFrame:
    """Copy a LeRobot data set without serl's own files and columns, but `kept`; return its rows."""
    shutil.copytree(origin, folder)
    (folder / "meta/serl.json").unlink()
    path = folder / "meta/info.json"
    info = json.loads(path.read_text()) | {"robot_type": "so100"}
    if "names" in changed:
        info["features"]["action"]["names"] = changed["names"]
    info |= {key: value for key, value in changed.items() if key != "names"}
    own = {name for name in info["features"] if name.startswith("next.")} | OWN_COLUMNS
    for name in own - set(kept):
        del info["features"][name]
    path.write_text(json.dumps(info))
    path = folder / "data/chunk-000/file-000.parquet"
    rows = pd.read_parquet(path).drop(columns=list(own - set(kept)))
    rows.to_parquet(path)
    return rows


@pytest.mark.parametrize(
    ("template", "line"),
    [
        ("../../{chunk_index}.parquet", "names a file elsewhere"),
        ("{chunk_index.__class__}/{x!r}", "FileNotFoundError"),
        ("{chunk_index:09999999999d}", "FileNotFoundError"),
        ("{episode}", "KeyError: 'episode'"),
        ("a\0", "ValueError: "),
        (None, "FileNotFoundError"),
    ],
)
def test_hostile_lerobot_path_template_is_refused_in_one_line(
    exported: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    template: str | None,
    line: str,
) -> None:
    folder = tmp_path / "hostile"
    copy_as_foreign(exported / "lerobot", folder, {"data_path": template})
    assert import_pixels(folder, tmp_path / "new") == 2
    error = capsys.readouterr().err
    assert line in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(("bound", "what"), [("TABLE", "rows"), ("FRAME", "images")])
def test_lerobot_reader_refuses_large_tables_and_videos(
    exported: Path, monkeypatch: pytest.MonkeyPatch, bound: str, what: str
) -> None:
    monkeypatch.setattr(lerobot_format, f"_MAX_{bound}_BYTES", 100)
    with pytest.raises(CorruptData, match=f"more than 100 bytes of {what}"):
        next(lerobot_format.read(exported / "lerobot").episodes)


def test_failed_import_leaves_no_files(
    exported: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, out = tmp_path / "broken", tmp_path / "new"
    shutil.copytree(exported / "robomimic", folder)
    with h5py.File(folder / "demo.hdf5", "r+") as file:
        short = file["data/demo_2/rewards"][:-1]
        del file["data/demo_2/rewards"]
        file["data/demo_2/rewards"] = short
    assert import_pixels(folder, out) == 2
    assert "episode 2: reward: 4 rows, expected 5" in capsys.readouterr().err
    assert not out.exists()


def fill(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def crash(*_: object) -> None:
    raise RuntimeError("unable to flush\nfile")


def interrupt(data: Recorded, out: Path) -> None:
    """Write a file, and lose the exception of a signal as h5py does."""
    (out / "part").touch()
    with suppress(KeyboardInterrupt):
        signal.raise_signal(signal.SIGTERM)  # Ctrl-C may be ignored where tests run
    data.on_file()


@pytest.mark.parametrize(
    ("write", "code", "error"),
    [
        (fill, 1, "new: cannot be written: [Errno 28] No space left on device"),
        (crash, 1, "new: cannot be written: unable to flush file"),
        (interrupt, 130, "serl: interrupted; nothing was written"),
    ],
)
def test_export_that_cannot_be_written_or_is_interrupted_leaves_no_files(
    write: Any,
    code: int,
    error: str,
    recording: Recording,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(robomimic_format, "write", write)
    words = ["export", str(recording[0]), "--to", "robomimic", "--out", str(tmp_path / "new")]
    assert main(words) == code
    printed = capsys.readouterr().err
    assert printed.endswith(f"{error}\n")
    assert printed.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_interrupted_import_leaves_no_files(
    exported: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    read = robomimic_format.read

    def read_interrupted(path: Path) -> Dataset:
        signal.raise_signal(signal.SIGTERM)
        return read(path)

    monkeypatch.setattr(robomimic_format, "read", read_interrupted)
    assert import_pixels(exported / "robomimic", tmp_path / "new") == 130
    assert "interrupted; nothing was written" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_export_begins_only_with_space_for_its_largest_episode(
    recording: Recording,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=33 << 20))
    words = ["export", str(recording[0]), "--to", "minari", "--out", str(tmp_path / "new")]
    assert main(words) == 1
    assert "new: 35 MB of the disk are free, needs " in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("rate_hz", ["10", True, -1, [10]])
def test_import_refuses_invalid_rate_in_one_line(
    exported: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], rate_hz: object
) -> None:
    path = tmp_path / "demo.hdf5"
    shutil.copy(exported / "robomimic/demo.hdf5", path)
    with h5py.File(path, "r+") as file:
        file["data"].attrs["env_args"] = json.dumps({"env_kwargs": {"rate_hz": rate_hz}})
    assert import_pixels(path, tmp_path / "new") == 2
    assert "rate: expected a positive number, found" in capsys.readouterr().err


def test_push_to_hub_without_token_is_refused(
    recording: Recording,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    out = ["--out", str(tmp_path / "new"), "--push-to-hub", "lab/cubes"]
    assert main(["export", str(recording[0]), "--to", "lerobot", *out]) == 2
    assert capsys.readouterr().err.startswith("serl: --push-to-hub: found no token; set HF_TOKEN")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("package", "name"),
    [
        ("pyarrow", "lerobot"),
        ("pandas", "lerobot"),
        ("minari", "minari"),
        ("h5py", "robomimic"),
    ],
)
def test_exchange_without_package_names_extra_to_install(
    recording: Recording,
    exported: Path,
    tmp_path: Path,
    package: str,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, f"serl.datasets.{name}_format", raising=False)
    export = ["export", str(recording[0]), "--to", name]
    for words in (export, ["demos", "import", str(exported / name), "--task", "pick_cube"]):
        assert main([*words, "--out", str(tmp_path / "new")]) == 2
        error = capsys.readouterr().err
        assert error == f"serl: {package} is not installed: pip install 'serl[export]'\n"
        assert not (tmp_path / "new").exists()
