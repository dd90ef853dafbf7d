"""`serl train TASK --robot NAME` on a fake Franka, with the operator's answers."""

from __future__ import annotations

import signal
from collections import Counter
from pathlib import Path

import psutil
import pytest
from geometry_msgs.msg import PoseStamped

from serl.cli import main as cli
from serl.errors import SerlError
from serl.log.episode_reader import read_records
from serl.ros.arm.station import RESTORE
from serl.ros.node import RosNode
from serl.ros.processes import started_domain_id
from serl.ros.services import Remote
from serl.ros.testing.processes import eventually
from serl.ros.topics import Topic
from serl.runs.checkpoint import pick
from serl.runs.deployment import read_trial_results
from serl.runs.folder import RunFolder
from serl.runs.task_setup import make_spec, make_task
from serl.training.evaluation import max_void_trials
from serl.training.link import read_control_status
from serl.types import ActionSource, End, Step

from ..support.command import LIMIT_S, Command
from .conftest import Start
from .support.tracked import (
    ARMS,
    GOAL_M,
    GOES_ON,
    PROGRESS,
    SEEN,
    answer_all,
    answer_until,
    franka_beside_a_goal,
)
from .test_training import TINY, assert_sound, rows, trained

pytestmark = [pytest.mark.ros, pytest.mark.xdist_group("moving_arm")]  # not beside each other

STEPS = 30
SETTINGS = (
    "--reset.kind=person",
    "--task_config.time_limit_s=1.0",
    "--task_config.motion.box_high_m=[0.7,0.3,0.6]",
    "--agent.hidden=[32,32]",
    "--agent.batch_size=16",
    "--agent.utd=1",
    "--agent.device=cpu",
    "--learner.publish_every=5",
    "--learner.metrics_every=10",
    "--learner.checkpoint_every=20",
)
POSE = f"--reward.pose=[{GOAL_M[0]},{GOAL_M[1]},{GOAL_M[2]},1,0,0,0]"


def test_training_on_a_real_arm_moves_it_through_its_guard_and_evaluates(
    tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["record", "reach", "--demos", "2", "--out", "demos"]) == 0
    with franka_beside_a_goal(tmp_path) as (_, arm):
        words = ("--robot", "mine.py", "--namespace", arm, "--demos", "demos", "--trials", 1)
        reward = ("--reward.kind=pose", POSE)
        command = start("train", "reach", *words, "--steps", STEPS, *reward, *SETTINGS)
        command.until("normal only at the first start: Enter confirms that it is safe to continue")
        answer_until(command, lambda: f"{RESTORE}: Enter continues" in command.output)
        assert "the guard is disarmed: Enter arms it" in command.output
        assert not list((tmp_path / "runs").rglob("*.mcap")), (
            "the arm moved before the operator's confirmation"
        )
        answer_all(command)
    command.assert_trials_ended()
    (folder,) = (tmp_path / "runs" / "reach").iterdir()
    run = RunFolder.open(folder)
    assert sum(trained(run).values()) == STEPS
    assert rows(run, "update")
    assert_sound(run)
    records = list(read_records(run.episodes("actor0"), make_spec(make_task(run.config))))
    steps = [record for record in records if isinstance(record, Step)]
    assert {step.source for step in steps} == {ActionSource.POLICY}
    assert {step.reward_provenance for step in steps} - {"none"} == {"pose"}  # none: late arm
    assert any(record.text == "time limit" for record in records if isinstance(record, End))
    assert read_control_status(run.link("actor0")) is not None
    finals = rows(run, "evaluation")
    is_late = command.output.count(": void, ") == 1 + max_void_trials(1)  # a busy machine
    found = [(final["purpose"], final["trials"]) for final in finals]
    assert found == [("final", 0 if is_late else 1)]
    assert "1 unassisted trials on the arm" in command.output


@pytest.mark.slow
def test_trials_on_an_arm_choose_among_its_last_checkpoints(tmp_path: Path, start: Start) -> None:
    with franka_beside_a_goal(tmp_path) as (_, arm):
        words = ("--robot", "mine.py", "--namespace", arm, "--demos", 0, "--steps", 40)
        trials = ("--trials", 1, "--arm_selection_trials", 2, "--selection_checkpoints", 2)
        reward = ("--reward.kind=pose", POSE)
        command = start("train", "reach", *words, *trials, *reward, *SETTINGS)
        answer_all(command)
    command.assert_trials_ended()
    (folder,) = (tmp_path / "runs" / "reach").iterdir()
    run = RunFolder.open(folder)
    assert "policy: checkpoint 20 or 40" in command.output
    tried = [each for each in read_trial_results(deployment_of(run)) if not each.void]
    counts = Counter((each.purpose, each.checkpoint) for each in tried)
    if command.output.count(": void, ") <= max_void_trials(1):  # else a late machine ended them
        assert {step for purpose, step in counts if purpose == "selection"} == {20, 40}
        assert max(counts.values()) <= 2
        (best,) = (step for purpose, step in counts if purpose == "final")
        assert counts["final", best] == 1
        assert int(pick(run.checkpoints).name) == best
        written = [(row["purpose"], row["checkpoint"]) for row in rows(run, "evaluation")]
        assert written == [("selection", 20), ("selection", 40), ("final", best)]


def deployment_of(run: RunFolder) -> Path:
    (folder,) = (run.path / "deployments").iterdir()
    return folder


@pytest.mark.slow
def test_training_without_terminal_waits_for_signed_service_calls(
    tmp_path: Path, start: Start
) -> None:
    with franka_beside_a_goal(tmp_path) as (driver, arm):
        words = ("--robot", "mine.py", "--namespace", arm, "--demos", 0, "--trials", 0)
        command = start("train", "reach", *words, *SETTINGS)
        assert command.process.stdin is not None
        command.process.stdin.close()  # as systemd does
        with RosNode("person", driver.folder, local=True) as node:
            waits, guard = "this terminal has no input: waiting for serl order", f"{arm}/guard"
            command.until(f"{waits} {guard}/ack {guard}/reset --key ")
            (key,) = tmp_path.glob("mine*.latch.key")
            eventually(lambda: is_order_accepted(node, f"{guard}/ack", key))
            eventually(lambda: is_order_accepted(node, f"{guard}/reset", key))
            command.until(f"{waits} {guard}/arm --key ")
            eventually(lambda: is_order_accepted(node, f"{guard}/arm", key))
        command.until(f"{RESTORE}: Enter continues")
        assert command.is_running
        assert command.interrupt() == 130


def is_order_accepted(node: RosNode, service: str, key: Path) -> bool:
    """Send an order; return False if it was refused, as on a busy machine."""
    try:
        Remote(node).order(service, key)
    except SerlError:
        return False
    return True


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["Ctrl-C", "killed"])
def test_stopped_or_killed_training_leaves_arm_at_rest(
    number: signal.Signals, tmp_path: Path, start: Start
) -> None:
    with franka_beside_a_goal(tmp_path) as (driver, arm):
        words = ("--robot", "mine.py", "--namespace", arm, "--demos", 0, "--trials", 0)
        long = [each.replace("limit_s=1.0", "limit_s=60.0") for each in SETTINGS]
        command = start("train", "reach", *words, *long)
        moving = (tmp_path / "runs").rglob
        answer_until(command, lambda: list(moving("*.part.mcap")), (*ARMS, GOES_ON))
        children = psutil.Process(command.process.pid).children(recursive=True)
        command.process.send_signal(number)
        command.wait()
        _, alive = psutil.wait_procs(children, LIMIT_S)
        assert not alive
        with RosNode("witness", driver.folder, local=True) as node:
            seen: list[tuple[float, float, float]] = []

            def see(message: PoseStamped) -> None:
                place = message.pose.position
                seen.append((place.x, place.y, place.z))

            node.subscribe(Topic(f"{arm}/current_pose", PoseStamped, 10), see)
            eventually(lambda: len(seen) > 50)
            assert node.handle.count_publishers(f"{arm}/target_pose") == 0
    assert max(abs(a - b) for a, b in zip(seen[20], seen[-1], strict=True)) < 1e-6
    (latch,) = tmp_path.glob("mine@*.latch")
    assert latch.read_text().strip() == "serl latch: disarmed"  # the guard itself was not killed


WAITS = (
    "actor0 waits for a person: estop: the service estop: "
    "Enter confirms that it is safe to continue"
)


def trigger_guard_stop(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROS_DOMAIN_ID", str(started_domain_id(run)))
    with RosNode("presser", run.path, local=True) as node:
        Remote(node, lambda: None).trigger("actor0/guard/estop", LIMIT_S)


def last_progress(command: Command) -> str:
    return [line for line in command.output.splitlines() if PROGRESS in line][-1]


def run_of(folder: Path) -> RunFolder:
    (settings,) = (folder / "runs").rglob("config.yaml")
    return RunFolder.open(settings.parent)


@pytest.mark.slow
def test_latched_guard_is_confirmed_at_terminal_also_after_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = [word for name, value in TINY.items() for word in (f"--{name}", value)]
    words = ("train", "reach", "--robot", "sim", "--steps", 100_000, *options)
    with Command(tmp_path, *words) as command:
        command.until(PROGRESS)
        trigger_guard_stop(run_of(tmp_path), monkeypatch)
        command.until(WAITS)
    with Command(tmp_path, "train", "--resume", run_of(tmp_path).path) as command:
        command.until(WAITS)
        answer_until(command, lambda: "disarmed\n" in command.output, (SEEN,))
        eventually(lambda: "waits for a person" not in last_progress(command), LIMIT_S)
        assert "Enter arms it" not in command.output, "the actor arms the guard of a simulated arm"
