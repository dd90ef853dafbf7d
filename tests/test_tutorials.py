"""Run the commands and the Python code of the README and the tutorials.

A training uses the page's own command with further settings that shorten it. The first training and
the commands that drive an arm start processes; all others run in this one.
"""

from __future__ import annotations

import io
import re
import subprocess
from collections.abc import Iterator
from contextlib import chdir, redirect_stdout
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from serl import plugins
from serl.cli.main import BAD_INPUT, main
from serl.log.episode_reader import episode_paths
from serl.runs.checkpoint import checkpoint_paths, load
from serl.runs.folder import RunFolder
from serl.testing import SimulatedTaskSuite, failures

from .support.acting import train_in_this_process
from .support.command import LIMIT_S, SERL, Program
from .test_howto_python import RUN

ROOT = Path(__file__).parents[1]
TUTORIALS = sorted((ROOT / "docs/tutorials").glob("*.md"))
ELSEWHERE = {
    "first-day.md": "tests/ros/test_rehearsal.py",
    "record.md": "tests/ros/test_record.py",
    "two-arms.md": "tests/ros/test_up.py",
}
"""Tutorials that are run by other test files."""

PAGES = {
    page.name: page.read_text(encoding="utf-8")
    for page in (ROOT / "README.md", *TUTORIALS)
    if page.name not in ELSEWHERE
}
EXAMPLE = "docs/examples/push_block.py"

SHORT = (
    " --steps 40 --demos 0 --task_config.time_limit_s 0.5 --trials 1 --selection_trials 1"
    " --selection_checkpoints 1 --required_success_rate null --agent.hidden '[16, 16]'"
    " --agent.batch_size 16 --agent.bc_warm_start 0 --learner.warm_up 0 --agent.threads 1"
)

pytestmark = pytest.mark.xdist_group("tutorials")  # many tests share one run

NEWEST_RUN = "RUN=$(ls -d runs/pick_cube/2* | tail -1)"
LIST = "serl list"
TRAIN = "serl train pick_cube --seed 2"
WATCH = f"{TRAIN} --console"
RESUME = "serl train --resume $RUN"
EVALUATE = "serl eval $RUN --trials 100"
REPLAY = "serl replay $RUN --last 10"
FILM = "serl replay $RUN --episode 3 --video episode.mp4"
VERIFY = "serl verify $RUN"
RECORD = "serl record pick_cube --demos 30 --out expert_demos"
TRAIN_ON_RECORDED = "serl train pick_cube --demos expert_demos --agent.utd 8"
DEPLOY = "serl run $RUN --robot sim --episodes 3"
PLAN = "serl plan pick_cube"
LEARNER = "serl learner pick_cube"
ACTOR = "serl actor $RUN --name actor0"
COLLECT = "serl reward collect pick_cube --out success"
TRAIN_REWARD = "serl reward train success --out success.safetensors"
COLLECT_UNSEEN = "serl reward collect pick_cube --seed 1 --out unseen"
AUDIT = "serl reward audit success.safetensors unseen --sheet mistakes.png"
TRAIN_ON_PIXELS = (
    "serl train pick_cube --observe pixels --reward.kind classifier"
    " --reward.model success.safetensors"
)
TRAIN_EXAMPLE = f"serl train {EXAMPLE}"
PRESS = "press.yaml --robot rehearsal.yaml"
ON_AN_ARM = {  # run by tests/ros/test_real_task_on_an_arm.py
    "export ROS_DOMAIN_ID=42",
    "serl sim reach --rehearsal",
    "serl task new press --robot rehearsal.yaml --namespace /sim/arm",
    "serl list press.yaml",
    f"serl plan {PRESS}",
    f"serl record {PRESS} --namespace /sim/arm --demos 5 --out presses --console",
    f"serl train {PRESS} --namespace /sim/arm --demos presses --steps 2000 --trials 10",
}
KNOWN = {
    *ON_AN_ARM,
    "make train",
    "source .venv/bin/activate",
    NEWEST_RUN,
    LIST,
    "serl doctor",  # run by tests/cli/test_main.py
    TRAIN,
    WATCH,
    RESUME,
    EVALUATE,
    REPLAY,
    FILM,
    VERIFY,
    RECORD,
    TRAIN_ON_RECORDED,
    DEPLOY,
    PLAN,
    LEARNER,
    ACTOR,
    COLLECT,
    TRAIN_REWARD,
    COLLECT_UNSEEN,
    AUDIT,
    TRAIN_ON_PIXELS,
    TRAIN_EXAMPLE,
}


def blocks(language: str) -> list[str]:
    fence = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
    found = [block for page in PAGES.values() for block in fence.findall(page)]
    return [text for name, text in found if name == language]


def commands() -> list[str]:
    lines = "".join(blocks("bash")).splitlines()
    return [command for line in lines if (command := re.sub(r"\s+#.*", "", line).strip())]


class Shell:
    """Bash in an empty folder with a link to the repository's `docs`.

    It expands the words of a `serl` command.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "docs").symlink_to(ROOT / "docs")
        self._outputs = (folder / f"{number}.out" for number in count())

    def bash(self, command: str) -> str:
        words = ["bash", "-euc", command]
        return subprocess.run(
            words, cwd=self.folder, check=True, stdout=subprocess.PIPE, text=True
        ).stdout

    def words(self, command: str) -> list[str]:
        printing = re.sub(r"(^|; )serl ", r"\1printf '%s\\0' ", command)
        return self.bash(printing).split("\0")[:-1]

    def start(self, command: str) -> Program:
        """Start a `serl` command as a process."""
        return Program([*SERL, *self.words(command)], next(self._outputs))

    def run(self, command: str) -> str:
        """Run a `serl` command in this process; return its output."""
        with chdir(self.folder), redirect_stdout(io.StringIO()) as output:
            assert main(self.words(command)) == 0, output.getvalue()
        return output.getvalue()

    def newest_run(self, task: str = "pick_cube") -> RunFolder:
        return RunFolder.open(max((self.folder / "runs" / task).glob("2*")))


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Shell:
    return Shell(tmp_path_factory.mktemp("tutorials"))


@pytest.fixture(scope="module")
def recorded(shell: Shell) -> Path:
    """Record one demonstration with the command of the tour; return its folder."""
    shell.run(RECORD.replace("--demos 30", "--demos 1"))
    return shell.folder / "expert_demos"


@pytest.fixture(scope="module")
def training(shell: Shell, recorded: Path) -> Program:
    """Run the first training of the tour and the README with settings that shorten it."""
    with shell.start(WATCH + SHORT.replace("--demos 0", f"--demos {recorded}")) as program:
        program.succeed(LIMIT_S)
    return program


@pytest.fixture(scope="module")
def trained(training: Program) -> RunFolder:
    return training.run_folder()


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    train_in_this_process(monkeypatch)


def test_tutorials_contain_exactly_known_commands() -> None:
    assert set(commands()) == KNOWN


@pytest.mark.parametrize(("page", "file"), ELSEWHERE.items())
def test_tutorial_run_elsewhere_is_named_by_its_test_file(page: str, file: str) -> None:
    assert f"docs/tutorials/{page}" in (ROOT / file).read_text(encoding="utf-8")


def test_make_train_runs_command_of_first_training_page() -> None:
    printed = subprocess.run(
        ["make", "--dry-run", "train", "SEED=2"], cwd=ROOT, capture_output=True, text=True
    )
    command = "serl train drawer --preset practice --demos 1 --steps 12000"
    assert f".venv/bin/{command} --seed 2" in printed.stdout
    assert f"`{command}`" in (ROOT / "docs/first-training.md").read_text(encoding="utf-8")
    assert plugins.load("task", "drawer")().training_defaults()["required_success_rate"] == 0.9


def test_list(shell: Shell) -> None:
    printed = shell.run(LIST)
    for known in ("pick_cube", "reach", "serl list settings"):
        assert known in printed


@pytest.mark.ros
def test_training_prints_address_of_console(training: Program) -> None:
    assert re.search(
        r"^console: http://127\.0\.0\.1:\d+/#[\w-]{43}$", training.output, re.MULTILINE
    )


@pytest.mark.ros
def test_run_contains_files_of_reference(trained: RunFolder) -> None:
    page = (ROOT / "docs/reference/files.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `([\w.]+/?)", page, re.MULTILINE)
    assert {"report.html", "episodes/", "checkpoints/"} <= set(listed)
    missing = {name for name in listed if not (trained.path / name).exists()}
    files_of_other_runs = {"inherited/", "guard/", "stages/", "deployments/", "cameras.json"}
    files_of_running_runs = {"console.json", "learner.lock", "processes.lock"}
    assert missing - files_of_other_runs - files_of_running_runs == {"demonstrations/"}, (
        "missing beyond the demonstrations, which the short run has from elsewhere"
    )


@pytest.mark.ros
def test_pack_command_of_status_page_excludes_key(shell: Shell, trained: RunFolder) -> None:
    page = (ROOT / "docs/status.md").read_text(encoding="utf-8")
    (pack,) = re.findall(r"^tar .*$", page, re.MULTILINE)
    packed = shell.bash(f"touch right.yaml; {NEWEST_RUN}; {pack}; tar -tzf first-lab.tar.gz")
    for name in ("right.yaml", "report.html", "config.yaml", "metrics.jsonl", "log/"):
        assert name in packed
    assert "key" not in packed


@pytest.mark.ros
@pytest.mark.usefixtures("in_this_process")
def test_resume(shell: Shell, trained: RunFolder) -> None:
    assert trained.path.name in shell.run(f"{NEWEST_RUN}; {RESUME}")


@pytest.mark.ros
@pytest.mark.usefixtures("trained", "in_this_process")
def test_evaluate(shell: Shell) -> None:
    printed = shell.run(f"{NEWEST_RUN}; {EVALUATE.replace('100', '3')}")
    assert "of 3 trials" in printed
    assert "95 % interval" in printed


@pytest.mark.ros
def test_replay_and_verify(shell: Shell, trained: RunFolder) -> None:
    assert "actor0" in shell.run(f"{NEWEST_RUN}; {REPLAY}")
    shell.run(f"{NEWEST_RUN}; {FILM.replace('--episode 3', '--episode 1')}")
    assert (shell.folder / "episode.mp4").is_file()
    assert "lost 0, duplicated 0" in shell.run(f"{NEWEST_RUN}; {VERIFY}")


@pytest.mark.ros
def test_deploy(shell: Shell, trained: RunFolder) -> None:
    with shell.start(f"RUN={trained.path}; {DEPLOY.replace('3', '1')}") as program:
        program.wait()
        program.assert_trials_ended()
    assert re.search(r"of 1 (trials|valid)", program.output)
    (folder,) = (trained.path / "deployments").iterdir()
    assert episode_paths(folder / "episodes/actor0")
    assert (folder / "guard/actor0.latch").exists()


def test_plan(shell: Shell) -> None:
    printed = shell.run(f"{PLAN} --seconds 0.5")
    assert "minutes" in printed or "min" in printed


def test_record(recorded: Path) -> None:
    assert len(episode_paths(recorded)) == 1


@pytest.mark.ros
@pytest.mark.usefixtures("trained", "in_this_process")
def test_train_on_recorded_demonstrations(shell: Shell, recorded: Path) -> None:
    shell.run(TRAIN_ON_RECORDED + SHORT.replace(" --demos 0", ""))
    config = shell.newest_run().config
    assert config.demo_paths == (recorded.resolve(),)
    assert config.agent.utd == 8


@pytest.mark.ros
def test_learner_and_actor_in_two_terminals(
    shell: Shell, trained: RunFolder, recorded: Path
) -> None:
    before = shell.newest_run()
    with shell.start(LEARNER + SHORT.replace("--demos 0", f"--demos {recorded}")) as learner:
        learner.until(lambda: shell.newest_run().path != before.path)
        run = shell.newest_run()
        learner.until((run.path / "ros_domain").exists)
        with shell.start(f"{NEWEST_RUN}; {ACTOR.replace('actor0', 'somebody')}") as actor:
            of_actor, of_learner = (each.succeed(LIMIT_S) for each in (actor, learner))
    assert "somebody: episodes 0, link" in of_actor
    assert "| steps -/40 | " in of_learner
    for printed in (of_actor, of_learner):
        assert f"next: serl eval {run.path.relative_to(shell.folder)}" in printed
    assert load(checkpoint_paths(run.checkpoints)[-1]).info["trained"] == {"somebody": 40}
    assert run.actors() == ["somebody"]
    assert run.config.demo_paths == (recorded.resolve(),)
    assert not run.demonstrations.exists()
    assert main(["actor", str(run.path)]) == BAD_INPUT, "nothing is left to do"


@pytest.mark.ros
@pytest.mark.usefixtures("in_this_process")
def test_reward_model_and_pixel_policy_are_trained(shell: Shell) -> None:
    small = "".join(
        f" --task_config.views.{view}.{side} 16"
        for view in ("front", "wrist")
        for side in ("width", "height")
    )
    assert "30 positives" in shell.run(f"{COLLECT} --positives 30 --negatives 40{small}")
    assert "neither training nor calibration" in shell.run(f"{TRAIN_REWARD} --epochs 2")
    shell.run(f"{COLLECT_UNSEEN} --positives 8 --negatives 12{small}")
    assert "mistakes.png" in shell.run(AUDIT)
    assert (shell.folder / "mistakes.png").is_file()
    shell.run(TRAIN_ON_PIXELS + SHORT + small)
    run = shell.newest_run()
    assert run.config.reward.model == shell.folder.resolve() / "success.safetensors"
    assert run.report.is_file()


@pytest.mark.parametrize("block", [each for each in blocks("python") if RUN not in each])
def test_python_block_of_tutorial_runs(block: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    names: dict[str, Any] = {}
    exec(compile(block, "a tutorial", "exec"), names)
    for suite in suites(names):
        assert failures(suite()) == set()


@pytest.mark.ros
def test_python_tutorial_runs_trained_policy_in_ten_lines(trained: RunFolder) -> None:
    (code,) = [block for block in blocks("python") if RUN in block]
    assert len([line for line in code.splitlines() if line and line[0] not in "iR"]) <= 10
    names: dict[str, Any] = {}
    exec(compile(code.replace(RUN, str(trained.path)), "python.md", "exec"), names)
    assert names["done"]
    assert "reward" in names


def suites(names: dict[str, Any]) -> Iterator[type[SimulatedTaskSuite]]:
    for name, value in names.items():
        if name.startswith("Test"):
            yield value


def test_tutorial_contains_suite_of_example_task() -> None:
    assert any(EXAMPLE in block and "class Test" in block for block in blocks("python"))


@pytest.mark.ros
@pytest.mark.usefixtures("in_this_process")
def test_train_two_arms_in_one_task(shell: Shell) -> None:
    page = (ROOT / "docs/tutorials/two-arms.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"^serl train .*$", page, re.MULTILINE)
    shell.run(command + SHORT)
    assert shell.newest_run("handover").report.is_file()


@pytest.mark.ros
@pytest.mark.usefixtures("in_this_process")
def test_train_example_task(shell: Shell) -> None:
    shell.run(TRAIN_EXAMPLE + SHORT)
    assert shell.newest_run("push_block").report.is_file()
