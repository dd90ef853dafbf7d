"""`serl run`: its command line, processes and files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from serl.cli import main as cli
from serl.guard.config import GuardState
from serl.guard.latch import Latch, LatchFile
from serl.log.annotations import read_tools
from serl.log.episode_reader import episode_name, episode_paths, read_episode
from serl.runs.deployment import read_trial_results
from serl.runs.folder import RunFolder
from serl.runs.task_setup import make_spec, make_task

from ..runs.test_deployment import trained
from .conftest import Start
from .support.tracked import PROFILE, SEEN, answer_all, answer_until, franka_beside_a_goal

pytestmark = [pytest.mark.ros, pytest.mark.xdist_group("moving_arm")]  # not beside each other


def assert_logged(run: RunFolder, episodes: int) -> None:
    """Assert that the deployment has this many whole episodes or more, with TCP positions."""
    spec = make_spec(make_task(run.config))
    paths = episode_paths(run.episodes("actor0"))
    assert len(paths) >= episodes  # void episodes are repeated
    places = read_tools(run.episodes("actor0"))
    for path in paths:
        episode = read_episode(path, spec)
        assert episode.end is not None
        assert len(places[episode_name(path)]) == len(episode.steps) + 1
        assert np.isfinite(places[episode_name(path)]).all()


def test_policy_runs_in_simulation_and_ctrl_c_keeps_whole_episodes(
    tmp_path: Path, start: Start
) -> None:
    run = trained(tmp_path, 100)
    command = start("run", run.path, "--out", "mine")
    command.until("episode 2:")
    children = command.children()
    assert command.interrupt() == 130, command.output
    assert not any(child.is_running() for child in children)
    assert "trials succeeded" in command.output
    deployed = RunFolder.open(tmp_path / "mine")
    tried = read_trial_results(deployed.path)
    assert [each.episode for each in tried] == list(range(len(tried)))
    assert len(episode_paths(deployed.episodes("actor0"))) >= len(tried) >= 2
    assert not run.actors()


@pytest.mark.parametrize(
    ("place", "before", "cause"),
    [
        (None, None, "normal only at the first start"),
        ("", Latch(GuardState.ESTOP, "the service estop"), "estop: the service estop"),
    ],
    ids=["in a namespace", "at the root, stopped in another run"],
)
def test_real_arm_moves_only_after_operator_confirmation(
    place: str | None,
    before: Latch | None,
    cause: str,
    tmp_path: Path,
    start: Start,
) -> None:
    run = trained(tmp_path, 100)
    if before is not None:
        LatchFile(tmp_path / "mine.latch").write(before)
    with franka_beside_a_goal(tmp_path, place) as (_, arm):
        (tmp_path / "mine.py").write_text(PROFILE.replace("0.5)", "0.4)"))  # home in reach's box
        where = ("--namespace", arm) if arm else ()  # the root is the default
        words = ("--robot", "mine.py", *where, "--episodes", 1)
        command = start("run", run.path, *words)
        command.until(f"{cause}: Enter confirms that it is safe to continue")
        disarmed = "the guard is disarmed: Enter arms it"
        answer_until(command, lambda: disarmed in command.output, [SEEN])
        assert "episode" not in command.output.replace("episodes", "")
        answer_all(command)
    command.assert_trials_ended()
    assert "episode 1 of 1:" in command.output
    (folder,) = (run.path / "deployments").iterdir()
    assert_logged(RunFolder.open(folder), 2)  # the return to a start, and the episode
    place = f"@{arm.strip('/').replace('/', '.')}" if arm else ""
    latch = (tmp_path / f"mine{place}.latch").read_text()
    assert latch == "serl latch: disarmed\n", "the latch must be in the profile's folder"


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--robot", "nobody"], "unknown robot 'nobody': expected one of"),
        (["--checkpoint", "7"], "no checkpoint 7; there are: 100"),
        (["--episodes", "0"], "--episodes: expected at least 1"),
        (["--out", "."], "--out .: exists already"),
        (["--namespace", "left"], "--namespace 'left': expected one such as /left"),
    ],
)
def test_run_rejects_bad_arguments_in_one_line_without_files(
    tmp_path: Path, words: list[str], complaint: str, capfd: pytest.CaptureFixture[str]
) -> None:
    run = trained(tmp_path, 100)
    assert cli.main(["run", str(run.path), *words]) == cli.BAD_INPUT
    said = capfd.readouterr()
    assert complaint in said.err
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert not (run.path / "deployments").exists()
