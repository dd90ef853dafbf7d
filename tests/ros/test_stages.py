"""Training of alternating stages by one command: a learner per stage, and one arm."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from serl.cli import main as cli
from serl.log.episode_reader import episode_paths, read_episode
from serl.runs.checkpoint import checkpoint_paths, load
from serl.runs.folder import RunFolder
from serl.runs.task_setup import make_spec, make_task
from serl.types import ActionSource, Step

from .conftest import Start
from .support.corners import GRAPH
from .test_training import TINY, assert_sound, rows, set_steps, trained

pytestmark = pytest.mark.ros

FEW = {"trials": 1, "selection_checkpoints": 1, "learner.checkpoint_every": 20}
STAGES = "{near: {then: nearer}, nearer: {then: near, config: {task_config: {reach_m: 0.04}}}}"


def test_training_of_two_stages_resumes_after_interruption(
    tmp_path: Path, start: Start, capsys: pytest.CaptureFixture[str]
) -> None:
    first = start("train", "reach", **TINY | FEW, steps=10**6, stages=STAGES)
    run = first.run_folder()
    parts = run.parts()
    assert list(parts) == ["near", "nearer"]
    first.until(lambda: all(map(trained, parts.values())))
    first.interrupt()
    assert "to continue: serl train --resume" in first.output
    steps = max(sum(trained(part).values()) for part in parts.values()) + 40
    parts = set_steps(run, steps).parts()

    second = start("train", "--resume", run.path)
    second.succeed()
    for name, part in parts.items():
        assert sum(trained(part).values()) == steps
        assert part.config.task_config["reach_m"] == {"near": 0.05, "nearer": 0.04}[name]
        assert [row["purpose"] for row in rows(part, "evaluation")][-1] == "final"
        assert_sound(part)
        assert _runs(part) == {name}
        assert part.report.exists()
    capsys.readouterr()
    assert cli.main(["verify", str(run.path)]) == 0
    assert capsys.readouterr().out.count("sound") == 2


@pytest.mark.slow
def test_three_stages_alternate_by_outcome_and_train_on_their_own_steps(
    tmp_path: Path, start: Start
) -> None:
    changed = {"steps": 120, "task_config.time_limit_s": 2.0}
    corners = Path(__file__).parent / "support/corners.py"
    command = start("train", corners, **TINY | FEW | changed)
    parts = command.run_folder().parts()
    assert list(parts) == list(GRAPH)
    command.succeed()

    played: list[tuple[float, str, bool]] = []
    for name, part in parts.items():
        assert sum(trained(part).values()) == 120
        assert_sound(part)
        assert _runs(part) == {name}
        acted = _episodes(part)
        learned = [(row["episode"], row["length"], row["reward"]) for row in rows(part, "episode")]
        assert learned
        assert learned == [each[1:4] for each in acted][: len(learned)]
        played += [(begun_s, name, success) for begun_s, _, _, _, success in acted]
    turns = [(name, success) for _, name, success in sorted(played)]
    assert turns == list(_turns([success for _, success in turns]))
    assert {True, False} == {success for _, success in turns}, (
        "the stages need successes and failures"
    )
    assert {name for name, _ in turns} == set(GRAPH)
    agents = [load(checkpoint_paths(p.checkpoints)[-1]).arrays["agent"] for p in parts.values()]
    first = next(name for name in agents[0] if name.startswith("actor."))
    values = [agent[first].tobytes() for agent in agents]
    assert len(set(values)) == len(parts), "each stage must have its own agent"


def _turns(outcomes: list[bool]) -> Iterator[tuple[str, bool]]:
    """Yield the stage of each episode that the graph prescribes, and its outcome."""
    name, failures = next(iter(GRAPH)), 0
    for success in outcomes:
        yield name, success
        failures = 0 if success else failures + 1
        if success or failures == GRAPH[name]["tries"]:
            name, failures = GRAPH[name]["then"], 0


def _episodes(part: RunFolder) -> list[tuple[float, int, int, float, bool]]:
    """Return the policy's episodes in the actor's log of a stage, in order.

    Each has its start time, number, length, return and success.
    """
    found, spec = [], make_spec(make_task(part.config))
    for path in episode_paths(part.episodes("actor0")):
        episode = read_episode(path, spec)
        steps = [step for step in episode.steps if step.source is not ActionSource.SCRIPT]
        if steps and episode.end:
            total = sum(step.reward for step in steps)
            key, begun_s = steps[0].key, steps[0].wall_s
            found.append((begun_s, key.episode, len(steps), total, episode.end.success))
    return found


def _runs(part: RunFolder) -> set[str]:
    """Return the run names in the keys of a stage's logged steps."""
    keys, spec = set(), make_spec(make_task(part.config))
    for path in episode_paths(part.episodes("actor0")):
        steps = read_episode(path, spec).steps
        keys |= {step.key.run for step in steps if isinstance(step, Step)}
    return keys
