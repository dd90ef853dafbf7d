"""Test the import of SERL and HIL-SERL demonstrations, and refusals that name the misfit."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from serl.cli import main as cli
from serl.datasets.recording_session import FAILURES
from serl.datasets.serl_import import ImportMap, import_runs, read_transitions, runs
from serl.errors import BadInput, CorruptData, SpecMismatch
from serl.log.episode_reader import episode_paths, read_episode
from serl.specs import ArraySpec, ObservationSpec, Spec
from serl.types import ActionSource, Episode

from ..support.pickled import pickled

SPEC = Spec(
    task="insertion",
    observation=ObservationSpec(
        state={"gripper": ArraySpec(shape=(1,)), "tcp_pose": ArraySpec(shape=(7,))},
        images={"wrist": ArraySpec(shape=(8, 8, 3), dtype="uint8")},
    ),
    action=ArraySpec(shape=(3,), low=-1, high=1, unit="x y z"),
    rate_hz=10,
)
MAP = ImportMap.model_validate(
    {
        "state": {
            "gripper": [{"at": 0}],
            "tcp_pose": [{"at": 4, "size": 6, "rotation": "euler"}],
        },
        "images": {"wrist": "wrist_1"},
    }
)


def make_observation(number: int) -> dict[str, Any]:
    """Build a flat SERL state: gripper, force, pose, torque, velocity (names in sorted order)."""
    state = np.zeros((1, 19), np.float64)
    state[0, 0], state[0, 4:7] = number, (0.1 * number, 0.2, 0.3)
    state[0, 9] = math.pi / 2  # yaw
    return {"state": state, "wrist_1": np.full((1, 8, 8, 3), number, np.uint8)}


def transitions_of(
    count: int, reward: float, start: int = 0, mask: float = 0.0
) -> list[dict[str, Any]]:
    return [
        {
            "observations": make_observation(start + index),
            "next_observations": make_observation(start + index + 1),
            "actions": np.array([0.5, -1.0, index / 10], np.float64),
            "rewards": np.float64(reward) if index + 1 == count else 0,
            "masks": mask if index + 1 == count else 1.0,
            "dones": np.bool_(index + 1 == count),
            "infos": {"succeed": index + 1 == count, "original_state_obs": None},
        }
        for index in range(count)
    ]


def write_pickle(folder: Path, transitions: Any) -> Path:
    path = folder / "demos.pkl"
    path.write_bytes(pickled(transitions))
    return path


def import_episodes(folder: Path, transitions: Any, mapping: ImportMap = MAP) -> list[Episode]:
    found = list(runs(read_transitions(write_pickle(folder, transitions))))
    import_runs(found, SPEC, mapping, folder / "out", "imported")
    paths = [*episode_paths(folder / "out"), *episode_paths(folder / "out" / FAILURES)]
    return [read_episode(path, SPEC) for path in paths]


def test_imported_success_keeps_all_fields(tmp_path: Path) -> None:
    (made,) = import_episodes(tmp_path, transitions_of(3, 1.0))
    assert made.success
    assert [step.terminated for step in made.steps] == [False, False, True]
    assert not any(step.truncated for step in made.steps)
    assert [step.reward for step in made.steps] == [0, 0, 1]
    assert {step.source for step in made.steps} == {ActionSource.HUMAN}
    assert {step.reward_provenance for step in made.steps} == {"imported"}
    np.testing.assert_allclose(made.steps[2].action, [0.5, -1.0, 0.2], rtol=1e-6)
    state = made.steps[1].observation.state
    assert state["gripper"].tolist() == [1.0]
    half = math.sqrt(0.5)
    np.testing.assert_allclose(state["tcp_pose"], [0.1, 0.2, 0.3, 0, 0, half, half], atol=1e-6)
    assert made.end is not None
    assert made.end.observation.images["wrist"].max() == 3, (
        "the final observation is the next one of the last step"
    )


def test_end_without_reward_is_imported_as_time_limit(tmp_path: Path) -> None:
    won, limit = import_episodes(
        tmp_path, [*transitions_of(2, 0.0), *transitions_of(2, 1.0, start=10)]
    )
    assert won.success
    assert limit.end is not None
    assert limit.end.text == "time limit"
    assert limit.steps[-1].truncated
    assert not limit.steps[-1].terminated


def test_success_with_mask_one_is_imported_as_truncated(tmp_path: Path) -> None:
    (made,) = import_episodes(tmp_path, transitions_of(2, 1.0, mask=1.0))
    assert made.success
    assert made.steps[-1].truncated


def test_gap_or_missing_end_cuts_imported_episode(tmp_path: Path) -> None:
    whole = transitions_of(6, 1.0)
    made = import_episodes(
        tmp_path, [*whole[:2], *whole[4:], *transitions_of(2, 0.0, start=50)[:1]]
    )
    assert [each.end and each.end.text for each in made] == [
        "success",
        "cut: transitions are missing after it",
        "cut: the file ends",
    ]
    assert [len(each.steps) for each in made] == [2, 2, 1]


def test_equal_names_need_no_import_map(tmp_path: Path) -> None:
    items = transitions_of(2, 1.0)
    for item in items:
        for side in ("observations", "next_observations"):
            state = item[side]["state"][0]
            pose = np.array([*state[4:7], 0, 0, 0, 1])
            item[side] = {
                "state": {"tcp_pose": pose, "gripper": state[:1]},
                "images": {"wrist": item[side]["wrist_1"][0]},
            }
    (made,) = import_episodes(tmp_path, items, ImportMap())
    assert made.steps[1].observation.state["tcp_pose"][0] == np.float32(0.1)


def test_import_misfit_is_reported_in_one_line_and_nothing_is_written(tmp_path: Path) -> None:
    with pytest.raises(SpecMismatch) as caught:
        import_episodes(tmp_path, transitions_of(2, 1.0), ImportMap())
    for part in ("state gripper [1]", "tcp_pose [7]", "image wrist: [8, 8, 3]", "state [1, 19]"):
        assert part in str(caught.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("change", "part"),
    [
        (lambda item: item.update(actions=np.zeros(7)), "7 entries != 3 of the task (x y z)"),
        (lambda item: item.update(actions=np.full(3, 1.2)), "an action of 1.2, allowed 1"),
        (lambda item: item.update(rewards=1e9), "reward"),
        (lambda item: item["observations"].pop("wrist_1"), "change their shape"),
    ],
)
def test_misfit_in_later_step_is_refused(change: Any, part: str, tmp_path: Path) -> None:
    items = transitions_of(3, 1.0)
    change(items[2])
    with pytest.raises(SpecMismatch) as caught:
        import_episodes(tmp_path, items)
    assert part in str(caught.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("tree", "part"),
    [
        ([], "expected a list of transitions"),
        ({"observations": 1}, "expected a list of transitions, found dict"),
        ([3], "transition 0: expected"),
        ([{"observations": np.zeros(3)}], "transition 0: expected"),
        ([{**transitions_of(1, 1.0)[0], "masks": 0.5}], "mask 0.5"),
        ([{**transitions_of(2, 1.0)[0], "masks": 0.0}], "mask 0 with done False"),
        (
            [{**transitions_of(1, 1.0)[0], "rewards": math.nan}],
            "rewards: expected one finite number",
        ),
        ([{**transitions_of(1, 1.0)[0], "actions": "left"}], "actions: expected numbers"),
        (
            [{**transitions_of(1, 1.0)[0], "actions": [[1.0], [1.0, 2.0]]}],
            "actions: expected numbers",
        ),
        ([{**transitions_of(1, 1.0)[0], "rewards": [[1.0], 2.0]}], "rewards: expected numbers"),
        ([{**transitions_of(1, 1.0)[0], "observations": [[1.0], 2.0]}], "state: expected numbers"),
        (
            [{**transitions_of(1, 1.0)[0], "observations": {"state": "x"}}],
            "state: expected an array",
        ),
    ],
)
def test_invalid_transition_list_is_refused(tree: Any, part: str, tmp_path: Path) -> None:
    with pytest.raises(CorruptData) as caught:
        read_transitions(write_pickle(tmp_path, tree))
    assert part in str(caught.value)


def test_import_map_with_unknown_entry_is_refused(tmp_path: Path) -> None:
    mapping = ImportMap.model_validate({"state": {"elbow": [{"at": 0}]}})
    with pytest.raises(BadInput, match="'elbow' is none of the task's: gripper, tcp_pose, wrist"):
        import_episodes(tmp_path, transitions_of(1, 1.0), mapping)


def test_import_map_beyond_a_later_shorter_action_is_refused(tmp_path: Path) -> None:
    items = transitions_of(3, 1.0)
    items[2]["actions"] = np.zeros(2)
    mapping = MAP.model_copy(update={"action": (0, 1, 2)})
    with pytest.raises(SpecMismatch, match="map: action 2: an action of the file has 2 entries"):
        import_episodes(tmp_path, items, mapping)


def test_import_command_makes_recording_that_replay_accepts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A flat state of the task's own size is split in the order of the task's entries."""
    items = transitions_of(2, 1.0)
    for item in items:
        for side in ("observations", "next_observations"):
            item[side] = {"state": np.arange(12.0)[None]}
    path, out = write_pickle(tmp_path, items), tmp_path / "out"
    words = ["demos", "import", str(path), "--task", "reach", "--out", str(out)]
    full = ["--log.min_free_bytes=100000000000000000", "--out", str(tmp_path / "full")]
    assert cli.main([*words, *full]) == 2
    assert "100000000.00 GB at least (log.min_free_bytes)" in capsys.readouterr().err
    assert cli.main(words) == 0
    assert "1 demonstration in" in capsys.readouterr().out
    assert cli.main(words) == 2, "an existing recording is never overwritten"
    assert cli.main(["replay", str(out)]) == 0
