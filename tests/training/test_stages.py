from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import torch

from serl.agents.classifier import Card, Classifier
from serl.camera import View
from serl.cli import main as cli
from serl.errors import BadInput
from serl.log.episode_log import EpisodeLog, LogConfig
from serl.loop import Result
from serl.runs import settings
from serl.runs.assembly import make_agent
from serl.runs.config import resolve, stage_configs
from serl.runs.folder import RunFolder
from serl.runs.inheritance import inherit
from serl.runs.task_setup import make_rewarded_task, make_spec, make_task
from serl.testing.samples import ACTOR, RUN, random_records
from serl.training.stages import Stage, take_turns
from serl.types import EndReason

JUDGE = View(camera="field", width=16, height=16)
RING = {"a": Stage(then="b"), "b": Stage(then="c", tries=2), "c": Stage(then="a", tries=1)}


class Scripted:
    """Actor whose episodes succeed (1) or fail (0) in a scripted order, then stop."""

    def __init__(self, outcomes: str) -> None:
        self._outcomes: Iterator[str] = iter(outcomes)

    def episode(self) -> Result | None:
        outcome = next(self._outcomes, "")
        return Result(1, 0.0, outcome == "1", 0, EndReason.TIME_LIMIT) if outcome else None


def turns(stages: Mapping[str, Stage], **outcomes: str) -> str:
    actors: dict[str, Any] = {name: Scripted(text) for name, text in outcomes.items()}
    return "".join(stage for stage, _ in take_turns(actors, stages))


def test_stage_hands_over_after_success_and_repeats_after_failure() -> None:
    assert turns(RING, a="1", b="1", c="1") == "abc"
    assert turns(RING, a="0011", b="1", c="1") == "aaabca"


def test_stage_hands_over_after_its_last_failed_try() -> None:
    assert turns(RING, a="0001", b="00", c="0") == "aaabbca"
    assert turns(RING, a="0010001", b="1", c="1") == "aaabcaaa"


def test_failed_stage_can_lead_to_another_stage_than_success() -> None:
    """Check a graph of take, bring and fetch in which failures lead to fetch."""
    graph = {
        "take": Stage(then="bring", tries=2, otherwise="fetch"),
        "bring": Stage(then="take", tries=1, otherwise="fetch"),
        "fetch": Stage(then="take", tries=1),
    }
    play = {"take": "1001", "bring": "011", "fetch": "10"}
    expected = ["take", "bring", "fetch", "take", "take", "fetch", "take", "bring"]
    actors: dict[str, Any] = {name: Scripted(text) for name, text in play.items()}
    assert [stage for stage, _ in take_turns(actors, graph)] == expected


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ({"a": {"then": "a", "otherwise": "x"}}, "stages.a.otherwise: 'x' is none of a"),
        ({"a": {"then": "a"}, "b": {"then": "a"}}, "stages.b: no other stage leads to it from a"),
    ],
)
def test_stage_graph_with_unknown_or_unreachable_stage_is_refused(
    stages: dict[str, Any], message: str
) -> None:
    with pytest.raises(BadInput) as error:
        resolve({"stages": stages})
    assert str(error.value) == message


def test_stage_reached_only_by_failure_is_part_of_graph() -> None:
    stages = {"a": {"then": "a", "otherwise": "b"}, "b": {"then": "a"}}
    assert list(stage_configs(resolve({"stages": stages}))) == ["a", "b"]


def test_single_task_takes_no_turns() -> None:
    assert turns({}, a="0110") == "aaaa"


def test_each_stage_has_its_own_run_folder_and_settings(tmp_path: Path) -> None:
    second = {"then": "near", "config": {"task_config": {"reach_m": 0.1}, "steps": 7}}
    stages = {"near": {"then": "far"}, "far": second}
    config = resolve({"task": "reach", "seed": 3, "stages": stages, "agent": {"utd": 2}})
    run = RunFolder.create(tmp_path, config, datetime.now())
    parts = RunFolder.open(run.path).parts()
    assert list(parts) == ["near", "far"]
    assert [part.name for part in parts.values()] == ["near", "far"]
    assert [part.config.steps for part in parts.values()] == [config.steps, 7]
    assert parts["far"].config.task_config == {"reach_m": 0.1}
    assert {part.config.agent.utd for part in parts.values()} == {2}
    assert all(part.config.stages is None for part in parts.values())
    assert stage_configs(config)["far"] == parts["far"].config


def test_each_direction_records_its_own_reward_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        settings, "make_rewarded_task", make_task
    )  # these files are not real models
    asked = {}
    for name in ("forward", "backward"):
        Path(f"{name}.safetensors").write_text(name)
        reward = {"kind": "classifier", "model": f"{name}.safetensors"}
        asked[name] = {"config": {"reward": reward}}
    config = settings.run_settings("bin_relocation", {}, {"stages": asked})
    run = RunFolder.create(tmp_path / "runs", config, datetime.now())
    for name, part in RunFolder.open(run.path).parts().items():
        assert part.config.reward.model == tmp_path / f"{name}.safetensors"
        assert part.config.reward.sha256 == hashlib.sha256(name.encode()).hexdigest()
        assert part.config.task_config["direction"] == name


def classifier_settings(tmp_path: Path, **models: str) -> dict[str, Any]:
    """Return settings with a private classifier camera and one model per direction."""
    for way in models:
        card = Card(task=f"bin_relocation_{way}", renderers=("ray",), views={"judge": JUDGE})
        fresh = Classifier.create(card, torch.Generator().manual_seed(0))
        fresh.save(tmp_path / f"{way}.safetensors")
    stages = {
        stage: {
            "config": {"reward": {"kind": "classifier", "model": tmp_path / f"{way}.safetensors"}}
        }
        for stage, way in models.items()
    }
    return {"task_config": {"private_views": {"judge": JUDGE.model_dump()}}, "stages": stages}


def test_state_policies_are_rewarded_by_their_own_camera_classifier(
    tmp_path: Path,
) -> None:
    asked = classifier_settings(tmp_path, forward="forward", backward="backward")
    config = settings.run_settings("bin_relocation", {}, asked)
    for stage in stage_configs(config).values():
        seen = make_spec(make_task(stage)).observation
        logged = make_spec(make_rewarded_task(stage)).observation
        assert seen.state
        assert not seen.images, "no policy sees the classifier's camera"
        assert list(logged.images) == ["judge"]
        assert stage.reward.tool_low_m == (-1.0, -1.0, 0.09), "no image shows that the tool is up"


def test_classifier_of_the_other_direction_is_refused(tmp_path: Path) -> None:
    asked = classifier_settings(tmp_path, forward="backward", backward="forward")
    message = "trained for bin_relocation_backward, not for bin_relocation_forward"
    with pytest.raises(BadInput, match=message):
        settings.run_settings("bin_relocation", {}, asked)


AGENT = {"hidden": [8], "threads": 1, "device": "cpu"}


def saved_run(root: Path, task: str, **task_config: Any) -> RunFolder:
    """Create a run with a checkpoint and a demonstration."""
    asked = {"task_config": task_config, "demos": 0, "agent": AGENT, "stages": None}
    config = settings.run_settings(task, {}, asked)
    run, spec = RunFolder.create(root, config, datetime.now()), make_spec(make_task(config))
    agent = make_agent(config, spec, 0)
    run.save_checkpoint(7, {"agent": agent.state_dict()}, {})
    folder, log = run.episodes("a"), LogConfig(min_free_bytes=0)
    with EpisodeLog(folder, spec, RUN, ACTOR, 1, log) as written:
        for record in random_records(3, epoch=1, spec=spec):
            written.append(record)
    return run


def test_stage_paths_resolve_from_any_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved_run(tmp_path / "before", "bin_relocation", direction="backward").path.rename(
        tmp_path / "old"
    )
    monkeypatch.chdir(tmp_path)
    backward = {"init_from": "old", "demos": ["old/episodes/a"]}
    asked = {"agent": AGENT, "stages": {"backward": {"config": backward}}}
    config = settings.run_settings("bin_relocation", {}, asked)
    run = RunFolder.create(tmp_path / "runs", config, datetime.now())
    monkeypatch.chdir("/")
    forward, backward_run = (part.config for part in RunFolder.open(run.path).parts().values())
    assert backward_run.init_from.run == tmp_path / "old"
    assert backward_run.init_from.load == ("actor", "critics", "normaliser")
    assert backward_run.demo_paths == (tmp_path / "old/episodes/a",)
    assert inherit(backward_run).lines
    assert (forward.init_from.run, forward.demo_paths) == (None, ())


def test_stage_init_from_is_checked_before_anything_is_written(tmp_path: Path) -> None:
    other = saved_run(tmp_path / "before", "reach")
    asked = {"stages": {"forward": {"config": {"init_from": str(other.path)}}}}
    with pytest.raises(BadInput, match="cannot start from its actor: its spec != this task's"):
        settings.run_settings("bin_relocation", {}, asked)


def test_init_from_a_run_with_stages_lists_its_stages(tmp_path: Path) -> None:
    run = RunFolder.create(
        tmp_path, settings.run_settings("bin_relocation", {}, {}), datetime.now()
    )
    with pytest.raises(BadInput, match=r"has stages, .* expected .*/forward, .*/backward$"):
        settings.run_settings("bin_relocation", {}, {"stages": None, "init_from": str(run.path)})


def test_run_of_one_task_is_its_only_part(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, resolve({"task": "reach"}), datetime.now())
    assert run.parts() == {"": run}


@pytest.mark.parametrize(
    ("stages", "complaint"),
    [
        ({"a": {"then": "b"}}, "stages.a.then: 'b' is none of a"),
        ({}, "stages: expected at least one, or null"),
        ({"A/..": {"then": "A/.."}}, "stages"),
    ],
)
def test_invalid_stages_are_refused(stages: dict[str, Any], complaint: str) -> None:
    with pytest.raises(BadInput, match=complaint):
        resolve({"stages": stages})


def test_stage_settings_are_checked_before_anything_is_written() -> None:
    with pytest.raises(BadInput, match="stepz: unknown setting"):
        stage_configs(resolve({"stages": {"a": {"then": "a", "config": {"stepz": 3}}}}))


def test_stages_of_a_task_can_be_disabled() -> None:
    assert resolve({"stages": {"a": {"then": "a"}}}, {"stages": None}).stages is None


def test_standalone_learner_refuses_stages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["learner", "bin_relocation"]) == cli.BAD_INPUT
    assert "with --stages null it is one task" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
