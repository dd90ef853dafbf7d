"""Test runs that start from the networks and data of another run."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from serl.agents.trunk_weights import import_trunk, with_trunk
from serl.cli.main import main
from serl.errors import BadInput, SpecMismatch
from serl.log.episode_log import EpisodeLog, LogConfig
from serl.log.metrics import MetricsWriter, read_metrics
from serl.runs.assembly import make_agent
from serl.runs.checkpoint import checkpoint_paths, load, mark_best
from serl.runs.config import resolve
from serl.runs.folder import RunFolder
from serl.runs.inheritance import inherit
from serl.runs.resume import Continuation
from serl.runs.task_setup import make_spec, make_task
from serl.specs import Spec
from serl.testing import InProcess
from serl.testing.samples import equal, random_step
from serl.types import ActionSource, End, EndReason, Key, Observation, Record

from ..agents.resnet10_reference import stand_in
from ..support.pickled import pickled_parameters

AGENT = {"hidden": [8], "batch_size": 4, "utd": 2, "threads": 1, "device": "cpu"}
SETTINGS: dict[str, Any] = {"task": "reach", "demos": 0, "steps": 100, "agent": AGENT}


def saved_run(root: Path, settings: dict[str, Any] = SETTINGS, steps: int = 7) -> RunFolder:
    """Create a run with a checkpoint whose agent state has distinct values."""
    config = resolve(settings)
    run = RunFolder.create(root, config, datetime(2026, 11, 21))
    agent = make_agent(config, make_spec(make_task(config)), seed=5)
    state = {**agent.state_dict()}
    changed = "normaliser.mean normaliser.std adam.actor.moment.0.weight average.0.weight"
    for name in changed.split():
        if name in state:
            state[name] = np.full_like(state[name], 2.0)
    state["updates"] = np.full_like(state["updates"], 1234)
    arrays = {"agent": state, "actor": agent.actor_weights(), "replay": {"x": np.zeros(1)}}
    run.save_checkpoint(steps, arrays, {})
    return run


def new_run(tmp_path: Path, *settings: dict[str, Any]) -> RunFolder:
    return RunFolder.create(tmp_path / "after", resolve(*settings), datetime(2026, 11, 22))


@pytest.fixture
def heir(tmp_path: Path) -> tuple[RunFolder, RunFolder]:
    before = saved_run(tmp_path / "before")
    return before, new_run(tmp_path, SETTINGS, {"init_from": before.path, "seed": 9})


def test_new_run_inherits_networks_and_normaliser(
    heir: tuple[RunFolder, RunFolder], capsys: pytest.CaptureFixture[str]
) -> None:
    before, after = heir
    theirs = load(checkpoint_paths(before.checkpoints)[0]).arrays["agent"]
    mine = learner_state(after)
    kept = [name for name in theirs if not name.startswith(("adam.", "generator.", "skipped"))]
    assert {name.split(".")[0] for name in kept} == {
        *("actor", "critic", "target", "temperature", "normaliser", "updates")
    }
    assert equal({name: mine[name] for name in kept}, {name: theirs[name] for name in kept})
    assert not any(mine[name].any() for name in mine if name.startswith("adam."))
    assert not np.array_equal(mine["generator.learning"], theirs["generator.learning"])
    messages = capsys.readouterr().err
    assert "7 steps of reach by sac: with its actor, critics, normaliser\n" in messages
    assert "fresh: optimiser, random numbers; updates count on, there is no warm-up\n" in messages
    assert "observations are scaled as there\n" in messages
    assert messages.splitlines() == [row["text"] for row in read_metrics(after.metrics)]


def test_inherited_normaliser_is_kept_after_resume(heir: tuple[RunFolder, RunFolder]) -> None:
    _, after = heir
    mean = learner_state(after)["normaliser.mean"]
    with MetricsWriter(after.path) as metrics, closing(Continuation(after, metrics)) as going:
        learner = going.learner(transport := InProcess())
        transport.send(list(episodes(going.spec)))
        while learner.progress.steps < 3:
            learner.step()
    assert np.array_equal(learner.agent.state_dict()["normaliser.mean"], mean)


def learner_state(run: RunFolder) -> Mapping[str, Any]:
    """Return the state of the learner with which the run continues."""
    with MetricsWriter(run.path) as metrics, closing(Continuation(run, metrics)) as continuation:
        return continuation.learner(InProcess()).agent.state_dict()


def episodes(spec: Spec) -> Iterator[Record]:
    """Yield the steps of an episode and its end."""
    rng, key = np.random.default_rng(0), Key("run", "a", 1, 0, 0)
    for index in range(20):
        step = random_step(replace(key, index=index), spec, rng)
        step = replace(step, source=ActionSource.POLICY, policy_version=0)
        yield replace(step, terminated=False, truncated=index == 19)
    yield End(replace(key, index=20), step.observation, False, EndReason.TIME_LIMIT, 1.0, 1.0)


def test_run_with_different_observations_is_refused_in_short_line(tmp_path: Path) -> None:
    run = saved_run(tmp_path, {**SETTINGS, "task": "pick_cube"})
    pixels = {"task": "pick_cube", "observe": "pixels", "init_from": run.path}
    seen = "that run sees the state of the scene, this one cameras: "
    with pytest.raises(SpecMismatch, match=rf"{seen}.*; and \d+ more$") as raised:
        inherit(resolve(SETTINGS, pixels))
    assert len(str(raised.value).removeprefix(str(run.path))) < 500


def test_best_checkpoint_is_inherited_before_newer_one(tmp_path: Path) -> None:
    run = saved_run(tmp_path)
    agent = make_agent(run.config, make_spec(make_task(run.config)), seed=6)
    run.save_checkpoint(9, {"agent": agent.state_dict()}, {})
    config = resolve(SETTINGS, {"init_from": run.path})
    assert "9 steps" in inherit(config).lines[0]
    mark_best(checkpoint_paths(run.checkpoints)[0])
    assert "7 steps" in inherit(config).lines[0]


def test_mismatching_run_is_refused_in_one_line(tmp_path: Path) -> None:
    run = saved_run(tmp_path)
    other = {"task": "peg_insertion", "init_from": run.path}
    with pytest.raises(SpecMismatch, match=r"cannot start from its actor: its spec != this task's"):
        inherit(resolve(SETTINGS, other))
    nothing_loaded = {"init_from": {"run": run.path, "load": [], "data": "steps"}}
    with pytest.raises(SpecMismatch, match=r"its steps are of no use here: "):
        inherit(resolve(SETTINGS, other, nothing_loaded))
    with pytest.raises(BadInput, match="absent"):
        inherit(resolve(SETTINGS, {"init_from": tmp_path / "absent"}))
    empty = RunFolder.create(tmp_path / "empty", resolve(SETTINGS), datetime(2026, 11, 21))
    with pytest.raises(BadInput, match="no checkpoint"):
        inherit(resolve(SETTINGS, {"init_from": empty.path}))
    with pytest.raises(SpecMismatch, match="cannot start from its encoder: this run has none"):
        inherit(resolve(SETTINGS, {"init_from": {"run": run.path, "load": ["encoder"]}}))


def test_mismatching_part_is_fresh_unless_requested(tmp_path: Path) -> None:
    run = saved_run(tmp_path)
    three = {"agent": {"critics": 3}, "init_from": run.path}
    inheritance = inherit(resolve(SETTINGS, three))
    assert inheritance.origin.load == ("actor", "normaliser")
    assert "updates" not in inheritance.state
    assert inheritance.lines[1] == (
        "fresh: critics (critic.0.weight: expected float32[3, 15, 8], found float32[2, 15, 8]), "
        "temperature, optimiser, random numbers; updates count from 0"
    )
    asked = {"init_from": {"run": run.path, "load": ["actor", "critics"]}}
    with pytest.raises(SpecMismatch, match=r"its critics: critic\.0\.weight: expected float32\[3"):
        inherit(resolve(SETTINGS, three, asked))


def test_inherited_bc_policy_provides_actor_and_critics_warm_up(tmp_path: Path) -> None:
    before = saved_run(tmp_path / "before", {**SETTINGS, "agent": {**AGENT, "algorithm": "bc"}})
    record(before, [(True, ActionSource.POLICY)])
    theirs = load(checkpoint_paths(before.checkpoints)[0]).arrays["agent"]
    found = {"run": before.path, "data": "successes"}
    warm = {"init_from": found, "learner": {"warm_up": 3}, "agent": {"frozen": ["actor"]}}
    after = new_run(tmp_path, SETTINGS, warm)
    assert RunFolder.open(after.path).config == after.config
    inheritance = inherit(after.config)
    assert inheritance.origin.load == ("actor", "normaliser")
    assert "critics (bc trains none), temperature" in inheritance.lines[1]
    assert inheritance.lines[-1] == "frozen, no update changes it: actor"
    mine = learner_state(after)
    taken = [name for name in theirs if name.startswith(("actor.", "normaliser."))]
    assert equal({name: mine[name] for name in taken}, {name: theirs[name] for name in taken})
    assert mine["updates"] == 3
    assert mine["adam.critic.steps"] > 0
    with pytest.raises(SpecMismatch, match="its critics: bc trains none"):
        inherit(resolve(SETTINGS, {"init_from": {"run": before.path, "load": ["critics"]}}))


def test_clone_that_starts_from_a_learned_policy_is_warmed_up(tmp_path: Path) -> None:
    """A clone has no use for inherited critics, which make a warm-up superfluous elsewhere."""
    before = saved_run(tmp_path / "before")
    record(before, [(True, ActionSource.POLICY)])
    found = {"run": before.path, "data": "successes"}
    clones = {"agent": {**AGENT, "algorithm": "bc"}, "learner": {"warm_up": 3}, "steps": 0}
    after = new_run(tmp_path, SETTINGS, {"init_from": found}, clones)
    assert inherit(after.config).origin.load == ("actor", "normaliser")
    theirs = load(checkpoint_paths(before.checkpoints)[0]).arrays["agent"]
    mine = learner_state(after)
    assert mine["updates"] == 3
    assert not np.array_equal(mine["actor.0.weight"], theirs["actor.0.weight"])


@pytest.mark.parametrize("theirs", [0.0, 0.9])
def test_parameters_that_acted_become_actor_and_average(tmp_path: Path, theirs: float) -> None:
    before = saved_run(tmp_path, {**SETTINGS, "agent": {**AGENT, "actor_average": theirs}})
    arrays = load(checkpoint_paths(before.checkpoints)[0]).arrays["agent"]
    acted = arrays["average.0.weight" if theirs else "actor.0.weight"]
    for parts in (["actor"], ["actor", "critics"]):
        origin = {"init_from": {"run": before.path, "load": parts}}
        for own in ({}, {"agent": {"actor_average": 0.998}}):
            state = learner_state(new_run(tmp_path, SETTINGS, origin, own))
            assert np.array_equal(state["actor.0.weight"], acted)
            assert np.array_equal(state.get("average.0.weight", acted), acted)


def test_encoder_alone_is_inherited_by_another_task(tmp_path: Path) -> None:
    small = {"encoder_channels": [4], "latent": 4}
    pixels = {"task": "pick_cube", "observe": "pixels", "agent": {**AGENT, **small}}
    before = saved_run(tmp_path, {**SETTINGS, **pixels})
    slower = {"task_config": {"motion": {"translation_m": 0.01}}}
    origin: dict[str, Any] = {"init_from": {"run": before.path, "load": ["encoder"]}}
    frozen: dict[str, Any] = {"agent": {"frozen": ["encoder"]}}
    inheritance = inherit(resolve(SETTINGS, pixels, slower, origin, frozen))
    assert {name.split(".")[0] for name in inheritance.state} == {"encoder"}
    assert "anew" in inheritance.lines[2]
    with pytest.raises(SpecMismatch, match=r"its actor: its spec != this task's: motion: "):
        inherit(resolve(SETTINGS, pixels, slower, {"init_from": before.path}))
    with pytest.raises(BadInput, match=r"agent\.frozen: nothing loads the actor"):
        resolve(SETTINGS, pixels, origin, {"agent": {"frozen": ["actor"]}})


VIEWS = {
    name: {"camera": camera, "width": 16, "height": 16}
    for name, camera in (("front", "field"), ("wrist", "wrist"))
}
FROM_IMAGES = {"task": "pick_cube", "observe": "pixels", "task_config": {"views": VIEWS}}
PIXELS: dict[str, Any] = SETTINGS | FROM_IMAGES


def pixel_settings(**encoder: Any) -> dict[str, Any]:
    """Return settings of a run from pixels with the given encoder settings."""
    return {**PIXELS, "agent": {**AGENT, **encoder}}


@pytest.fixture(scope="module")
def trunks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:  # of ResNet-10
    folder = tmp_path_factory.mktemp("trunks")
    for seed in (3, 4):
        (folder / f"{seed}.pkl").write_bytes(pickled_parameters(stand_in(seed=seed)))
        import_trunk(folder / f"{seed}.pkl", folder / f"{seed}.safetensors")
    return {seed: folder / f"{seed}.safetensors" for seed in ("3", "4")}


def test_run_from_pixels_inherits_encoder(tmp_path: Path) -> None:
    before = saved_run(tmp_path / "before", PIXELS)
    theirs = load(checkpoint_paths(before.checkpoints)[0]).arrays["agent"]
    after = new_run(tmp_path, PIXELS, {"init_from": before.path, "seed": 9})
    config = after.config
    assert inherit(config).origin.load == ("actor", "critics", "encoder", "normaliser")
    mine = learner_state(after)
    kept = [name for name in theirs if not name.startswith(("adam.", "generator.", "skipped"))]
    assert any(name.startswith("encoder.front.") for name in kept)
    assert equal({name: mine[name] for name in kept}, {name: theirs[name] for name in kept})
    agents = [make_agent(each, make_spec(make_task(each)), 1) for each in (before.config, config)]
    for agent, state in zip(agents, (theirs, mine), strict=True):
        agent.load_state_dict({**state, "generator.acting": theirs["generator.acting"]})
    images = {name: np.full((16, 16, 3), 90, np.uint8) for name in VIEWS}
    spec, rng = make_spec(make_task(config)), np.random.default_rng(0)
    state = random_step(Key("r", "a", 1, 0, 0), spec, rng).observation.state
    seen = Observation(state, images)
    first, second = (agent.act(seen, explore=False) for agent in agents)
    assert np.array_equal(first, second)


@pytest.mark.parametrize(
    ("theirs", "mine", "line"),
    [
        ("3", "4", r"it was trained behind ResNet-10 [0-9a-f]{12}, here is ResNet-10 [0-9a-f]{12}"),
        ("3", "", r"it was trained behind ResNet-10 [0-9a-f]{12}, here is no ResNet-10"),
        ("", "3", r"it was trained behind no ResNet-10, here is ResNet-10 [0-9a-f]{12}"),
    ],
)
def test_encoder_trained_on_another_trunk_is_refused(
    theirs: str, mine: str, line: str, tmp_path: Path, trunks: dict[str, Path]
) -> None:
    """The shapes are equal, but the features differ."""

    def settings(seed: str) -> dict[str, Any]:
        trunk = {"encoder": "resnet10", "trunk": trunks[seed]} if seed else {}
        return pixel_settings(latent=8, state_latent=8, **trunk)

    before = saved_run(tmp_path / "before", settings(theirs))
    for asked, part in ((None, "actor: its encoder does not fit"), (["encoder"], "encoder")):
        origin = {"init_from": {"run": before.path, "load": asked}}
        with pytest.raises(SpecMismatch, match=f"cannot start from its {part}: {line}"):
            inherit(resolve(settings(mine), origin))
    again = resolve(settings(theirs), {"init_from": before.path})
    assert inherit(again).origin.load == ("actor", "critics", "encoder", "normaliser")


def test_trunk_replaced_after_training_is_refused(tmp_path: Path, trunks: dict[str, Path]) -> None:
    path = tmp_path / "mine.safetensors"
    path.write_bytes(trunks["3"].read_bytes())
    settings = pixel_settings(encoder="resnet10", trunk=path)
    pinned = with_trunk(resolve(settings).agent).model_dump(mode="json")
    before = saved_run(tmp_path / "before", {**settings, "agent": pinned})
    path.write_bytes(trunks["4"].read_bytes())
    with pytest.raises(SpecMismatch, match="it was trained behind ResNet-10"):
        inherit(resolve(settings, {"init_from": before.path}))


@pytest.mark.parametrize("weights", ["auto", "none"])
def test_actor_is_not_inherited_without_its_encoder(weights: str, tmp_path: Path) -> None:
    before = saved_run(tmp_path, pixel_settings(encoder_weights=weights))
    other = pixel_settings(encoder_channels=[8, 8], encoder_weights=weights)
    line = r"its actor: its encoder does not fit: encoder\.front\.0\.weight: expected float32\["
    with pytest.raises(SpecMismatch, match=line):
        inherit(resolve(other, {"init_from": before.path}))
    for part in ("actor", "critics"):
        alone = {"init_from": {"run": before.path, "load": [part]}}
        with pytest.raises(SpecMismatch, match=f"its {part}: it stands on an encoder, name it in"):
            inherit(resolve(pixel_settings(encoder_weights=weights), alone))
    scale = inherit(resolve(other, {"init_from": {"run": before.path, "load": ["normaliser"]}}))
    assert {name.split(".")[0] for name in scale.state} == {"normaliser"}
    assert "encoder (encoder.front.0.weight: expected" in scale.lines[1]
    assert "updates count from 0" in scale.lines[1]


def record(run: RunFolder, kinds: Sequence[tuple[bool, ActionSource]]) -> None:
    """Record episodes of 20 steps in the log of an actor."""
    spec = make_spec(make_task(run.config))
    with EpisodeLog(run.episodes("a"), spec, "run", "a", 1, LogConfig(min_free_bytes=0)) as log:
        for number, (success, source) in enumerate(kinds):
            for each in episodes(spec):
                each = replace(each, key=replace(each.key, episode=number))
                if isinstance(each, End):
                    log.append(replace(each, success=success))
                else:
                    log.append(replace(each, source=source))


KINDS = [
    (True, ActionSource.POLICY),
    (False, ActionSource.POLICY),
    (True, ActionSource.SCRIPT),  # a reset by a script
    (False, ActionSource.HUMAN),
]


@pytest.mark.parametrize(
    ("data", "demonstrations", "everything", "prior"),
    [("none", 0, 0, 0), ("successes", 20, 20, 20), ("steps", 0, 60, 20)],
)
def test_init_from_data_selects_inherited_steps_and_survives_source_removal(
    tmp_path: Path, data: str, demonstrations: int, everything: int, prior: int
) -> None:
    before = saved_run(tmp_path / "before")
    record(before, KINDS)
    origin = {"init_from": {"run": before.path, "load": ["actor"], "data": data}}
    after = new_run(tmp_path, SETTINGS, origin)
    states = []
    for _ in range(2):
        with MetricsWriter(after.path) as metrics, closing(Continuation(after, metrics)) as going:
            learner = going.learner(InProcess())
            assert going._recorded() == (0 if data == "none" else 21 * len(KINDS))
        assert learner.replay.demonstrations == demonstrations
        assert len(learner.replay) == everything
        assert len(learner.replay.prior_states()) == prior
        states.append(learner.agent.state_dict())
        shutil.rmtree(before.path, ignore_errors=True)
    assert equal(states[0], states[1])
    scaled_by = learner.replay.prior_states() if demonstrations else learner.replay.states()
    mean = scaled_by.mean(0) if everything else np.zeros_like(states[0]["normaliser.mean"])
    assert np.array_equal(states[0]["normaliser.mean"], mean)
    messages = [row["text"] for row in read_metrics(after.metrics) if row["kind"] == "event"]
    assert any("1 episode, 20 steps" in text for text in messages) == (data == "successes")
    assert any("3 episodes, 60 steps" in text for text in messages) == (data == "steps")


def test_only_successes_of_the_policy_demonstrate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = saved_run(tmp_path / "before")
    record(before, KINDS)
    after = new_run(tmp_path, SETTINGS, {"demo_paths": [before.episodes("a")]})
    with MetricsWriter(after.path) as metrics, closing(Continuation(after, metrics)) as going:
        assert going.learner(InProcess()).replay.demonstrations == 20  # the policy's success
    assert "1 successes demonstrate, 3 others do not" in capsys.readouterr().err
    before = saved_run(tmp_path / "without success")
    record(before, KINDS[1:])
    after = new_run(tmp_path, SETTINGS, {"init_from": {"run": before.path, "data": "successes"}})
    with pytest.raises(BadInput, match=r"init_from\.data successes: it recorded no success"):
        learner_state(after)


def test_train_command_refuses_mismatch_before_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = saved_run(tmp_path / "before")
    monkeypatch.chdir(tmp_path)
    for words, what in (
        (["pick_cube"], "cannot start from it"),
        (["reach", "--agent.hidden", "[16]"], "expected float32["),
    ):
        assert main(["train", *words, "--init-from", str(run.path)]) == 2
        line = capsys.readouterr().err
        assert line.count("\n") == 1
        assert what in line
    assert not (tmp_path / "runs").exists()


AT_GOAL = {"kind": "pose", "pose": (0.5, 0.0, 0.2, 1.0, 0.0, 0.0, 0.0)}
SEEN = {"kind": "classifier", "model": "m.safetensors", "sha256": "1" * 64}
VICE, HUMAN = {"kind": "vice"}, {"kind": "human"}
NEAR = {"kind": "progress", "topic": "/cell/near"}


@pytest.mark.parametrize(
    ("there", "here", "data", "complaint"),
    [
        (VICE, {}, "steps", "their rewards are of reward.kind vice, here it is task (init_from.d"),
        (SEEN, HUMAN, "successes", "their rewards are of reward.kind classifier, here it is human"),
        ({}, AT_GOAL, "steps", "their rewards are of reward.kind task, here it is pose"),
        (SEEN, SEEN | {"sha256": "2" * 64}, "steps", "reward.model 111111111111, here it is 2222"),
        (SEEN, SEEN | {"hold": (2, 3)}, "steps", "reward.hold (4, 5), here it is (2, 3)"),
        (AT_GOAL, AT_GOAL | {"tolerance_rad": 0.2}, "successes", "reward.tolerance_rad 0.1"),
        (SEEN, SEEN | {"model": "elsewhere/n.safetensors"}, "steps", ""),
        (AT_GOAL, AT_GOAL, "steps", ""),
        (AT_GOAL, VICE, "steps", ""),
        (HUMAN, {}, "steps", ""),
        ({}, SEEN, "successes", ""),
        (VICE, {}, "none", ""),
        (NEAR, NEAR | {"topic": "/other"}, "steps", "reward.topic /cell/near, here it is /other"),
        (NEAR, NEAR | {"progress": {"weight": 2}}, "steps", "task, weight 1, model None, here it"),
        (NEAR, NEAR, "steps", ""),
        (HUMAN, NEAR, "successes", "of reward.kind human, here it is progress"),
    ],
)
def test_steps_with_different_reward_are_not_inherited(
    tmp_path: Path, there: dict[str, Any], here: dict[str, Any], data: str, complaint: str
) -> None:
    demonstrated = SETTINGS | {"demos": 1}
    before = saved_run(tmp_path, demonstrated | {"reward": there})
    origin = {"init_from": {"run": before.path, "data": data}, "reward": here}
    config = resolve(demonstrated, origin)
    if complaint:
        with pytest.raises(SpecMismatch, match=re.escape(complaint)) as caught:
            inherit(config)
        assert "\n" not in str(caught.value)
        return
    kept_rewards = [line for line in inherit(config).lines if "keep their rewards" in line]
    otherwise = here != VICE and data != "none" and there.get("kind") != here.get("kind")
    assert len(kept_rewards) == otherwise
