"""`serl` commands end to end: output, files, refusals, help and shell completion."""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from serl.cli import actor as actor_command
from serl.cli import main as cli
from serl.cli import record as record_command
from serl.cli import run as run_command
from serl.cli import train as train_command
from serl.cli import training
from serl.cli.settings import describe
from serl.report.display import Display
from serl.runs.config import TrainConfig, resolve
from serl.runs.deployment import TrialResult, append_trial_result
from serl.runs.folder import RunFolder
from serl.system.video import read_video
from serl.training.evaluation import Evaluation

from ..runs.test_deployment import trained
from .conftest import Serl, make_run, refused, save_checkpoint


def test_doctor_checks_all_prerequisites_of_training(serl: Serl) -> None:
    code, out, _ = serl("doctor")
    lines = out.splitlines()
    assert (code == cli.DONE) == all(line.startswith("ok") for line in lines)
    for subject in ("python", "torch", "mujoco", "ROS 2", "ROS domain", "shared memory", "disk"):
        assert any(subject in line for line in lines), subject


def test_settings_may_precede_task() -> None:
    words = ["--agent.utd", "8", "--init-from", "-x", "reach", "--seed=3", "--runs", "x"]
    options = cli.parse(["train", *words])
    assert (options.task, str(options.runs)) == ("reach", "x")
    assert options.overrides == ["--agent.utd", "8", "--init-from", "-x", "--seed=3"]
    options = cli.parse(["record", "reach", "--seed", "3", "--log.fsync", "step"])
    assert (options.seed, options.overrides) == (3, ["--log.fsync", "step"]), (
        "record has its own --seed"
    )
    options = cli.parse(["train", "reach", "--log.wandb", "--console"])
    assert (options.console, options.overrides) == (True, ["--log.wandb"])


def test_help_shows_type_bounds_choices_and_default_of_settings(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    person = Path(__file__).parents[1] / "outside/lazy_person.py"
    with pytest.raises(SystemExit):
        cli.main(["train", "--intervention", str(person), "--help"])
    entries = re.findall(
        r"^  --(\S+)((?:.(?!\n  --|\n\n))*.)", capsys.readouterr().out, re.M | re.S
    )
    shown = {name: " ".join(text.split()) for name, text in entries}
    assert shown["agent.tau"].startswith("number > 0 <= 1 ")
    assert shown["log.images"].startswith("{raw,png,jpeg} encoding of images")
    assert shown["reward.tolerance_rad"].startswith("number > 0 <= 3.14159, rad largest angle")
    assert shown["agent.utd"].endswith("(default: 4)")
    assert "human.every" in shown, "a setting of this intervention plug-in is missing"
    described = {setting.name for setting in describe(TrainConfig())}
    assert {name for name in described if not name.startswith("human.")} <= shown.keys()


@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("serl tra", ["train "]),
        ("serl reward tr", ["train "]),
        ("serl train --agent.ut", ["--agent.utd "]),
        ("serl train --log.fsync ", ["interval", "step"]),
    ],
)
def test_shell_completes_commands_settings_and_choices(
    typed: str, completed: list[str], tmp_path: Path
) -> None:
    path = tmp_path / "completions"
    given = {"_ARGCOMPLETE": "1", "COMP_LINE": typed, "COMP_POINT": str(len(typed))}
    more = {"_ARGCOMPLETE_STDOUT_FILENAME": str(path), "_ARGCOMPLETE_IFS": "|"}
    command = [sys.executable, "-m", "serl.cli.main"]
    subprocess.run(command, env={**os.environ, **given, **more}, check=True)
    assert path.read_text().split("|") == completed


@pytest.mark.parametrize(
    ("words", "kept"),
    [
        (["reward", "train", "labelled", "--out", "m"], "nothing was written"),
        (["train", "reach"], "everything is stopped and saved"),
        (["record", "reach"], "complete episodes are saved"),
    ],
)
def test_interrupted_command_reports_saved_results(
    words: list[str], kept: str, serl: Serl, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(options: object) -> int:
        raise KeyboardInterrupt

    module, function = ("reward", "train") if words[0] == "reward" else (words[0], words[0])
    monkeypatch.setattr(f"serl.cli.{module}.{function}", interrupted)
    assert serl(*words) == (cli.INTERRUPTED, "", f"serl: interrupted; {kept}\n")


def test_command_in_removed_folder_is_refused(
    serl: Serl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "removed").mkdir()
    monkeypatch.chdir(tmp_path / "removed")
    (tmp_path / "removed").rmdir()
    assert "the working folder was removed" in refused(serl, "record", "reach", "--out", "x")


@pytest.mark.parametrize(("words", "expected"), [(["train", "reach"], cli.FAILED), (["list"], 0)])
def test_training_fails_if_its_output_is_closed(
    words: list[str], expected: int, serl: Serl, monkeypatch: pytest.MonkeyPatch
) -> None:
    def closed(options: object) -> int:
        raise BrokenPipeError

    monkeypatch.setattr("os.dup2", lambda *descriptors: None)
    monkeypatch.setattr("serl.cli.train.train", closed)
    monkeypatch.setattr("serl.cli.list.show", closed)
    assert serl(*words) == (expected, "", "")


def test_path_of_an_option_may_start_at_the_home_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/lab")
    options = cli.parse(["export", "~/run", "--to", "onnx", "--out=~/p.onnx"])
    assert (options.source, options.out) == (Path("/home/lab/run"), Path("/home/lab/p.onnx"))
    options = cli.parse(["train", "reach", "--runs=~nobody-here/runs"])
    assert options.runs == Path("~nobody-here/runs"), "there is no such home"


def test_help_imports_no_framework() -> None:
    program = (
        "import sys\nfrom serl.cli import main\n"
        "try: main.main(sys.argv[1:])\nexcept SystemExit: pass\n"
        "heavy = {'torch', 'rclpy', 'mujoco', 'matplotlib', 'cv2', 'aiohttp'} & {*sys.modules}\n"
        "print(*heavy, 'numpy' in sys.modules, file=sys.stderr)"
    )
    for words, loaded in ((["--help"], "False\n"), (["train", "--help"], "True\n")):
        command = [sys.executable, "-c", program, *words]
        assert subprocess.run(command, capture_output=True, text=True).stderr == loaded


def test_command_line_overrides_config_file(serl: Serl, tmp_path: Path) -> None:
    (tmp_path / "my.yaml").write_text("task: reach\nsteps: 5\nseed: 1\nintervention: me\n")
    line = refused(serl, "train", "--seed", 2, "--config", "my.yaml")
    assert "unknown person 'me': expected one of evaluator, none, novice, scripted" in line


def test_actor_command_needs_started_learner_and_valid_domain_file(
    serl: Serl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actor_command, "_GRACE_S", 0.0)
    run = make_run(tmp_path)
    assert "no learner was started yet" in refused(serl, "actor", run.path)
    (run.path / "ros_domain").write_text("unicorn")
    assert "expected a number from 0 to 101" in refused(serl, "actor", run.path)
    (run.path / "ros_domain").write_bytes(b"\xff\xfe7")
    assert "ros_domain: damaged; expected the number" in refused(serl, "actor", run.path)


def test_second_learner_of_run_is_refused(serl: Serl, tmp_path: Path) -> None:
    run = make_run(tmp_path)
    (run.path / "ros_domain").write_text("7")
    with run.lock_learner():
        for words in (["learner"], ["train", "--resume"]):
            line = f"its learner is in use by process {os.getpid()} "
            assert line in refused(serl, *words, run.path)
    assert (run.path / "ros_domain").read_text() == "7"


def test_invalid_ros_domain_is_refused(
    serl: Serl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROS_DOMAIN_ID", "102")
    run = make_run(tmp_path)
    assert "ROS_DOMAIN_ID is '102'" in refused(serl, "learner", run.path)


def test_record_writes_demonstrations_and_never_overwrites(serl: Serl, tmp_path: Path) -> None:
    out = tmp_path / "demos"
    code, text, _ = serl("record", "reach", "--demos", 2, "--seed", 3, "--out", out)
    assert code == cli.DONE
    assert f"2 demonstrations in {out} (0 failures left out)" in text
    files = {path.name: path.read_bytes() for path in out.glob("*.mcap")}
    assert len(files) == 2
    assert "already holds episodes" in refused(serl, "record", "reach", "--out", out)
    assert {path.name: path.read_bytes() for path in out.glob("*.mcap")} == files


@pytest.mark.usefixtures("undrawn")
def test_replay_lists_episodes_shows_one_and_renders_video(
    serl: Serl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serl("record", "reach", "--demos", 3, "--out", "demos")
    code, table, _ = serl("replay", "demos", "--last", 2)
    assert code == cli.DONE
    assert [line.split()[:2] for line in table.splitlines()[1:]] == [["demos", "1"], ["demos", "2"]]
    code, summary, _ = serl("replay", "demos", "--episode", 1)
    assert code == cli.DONE
    steps = summary.split("success after ")[1].split()[0]
    assert "reach · demos · episode 1" in summary
    code, message, _ = serl("replay", "demos", "--episode", 1, "--video", "films/1.mp4")
    assert code == cli.DONE
    first, *_, last = message.splitlines()
    assert re.fullmatch(r"simulating the episode again: image 1 of \d+", first)
    assert last == "video: films/1.mp4 (simulated again for its pictures)"
    assert len(list(read_video(tmp_path / "films" / "1.mp4"))) == int(steps) + 10
    for words, part in (
        (["--actor", "me"], "no actor 'me': expected one of demos"),
        (["--last", 0], "--last: expected at least 1, got 0"),
        (["--video", "x.mp4"], "choose it with --episode N"),
    ):
        assert part in refused(serl, "replay", "demos", *words)
    with monkeypatch.context() as patch:
        patch.setenv("FORCE_COLOR", "1")  # as on a terminal
        assert "reading the episodes" in serl("replay", "demos")[1]
        assert "reading the episode" in serl("replay", "demos", "--episode", 1)[1]


@pytest.mark.usefixtures("undrawn")
def test_eval_prints_confidence_interval_and_saves_video(
    serl: Serl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = list[str]()
    monkeypatch.setattr(Display, "_print_rarely", lambda display, text: shown.append(text))
    run = make_run(tmp_path, task_config={"time_limit_s": 0.5})
    assert "no checkpoint" in refused(serl, "eval", run.path)
    save_checkpoint(run)
    code, text, _ = serl("eval", run.path, "--trials", 3)
    assert code == cli.DONE
    assert "of 3 trials succeeded" in text
    assert "95 % interval" in text
    assert (shown[2], shown[-1]) == ("trials: 3 of 3", "filmed trials: 3 of 3")
    (film,) = run.videos.glob("eval-00000100.*")
    film.unlink()
    run.videos.rmdir()
    run.videos.write_text("blocks the folder")
    code, text, errors = serl("eval", run.path, "--trials", 1)
    assert code == cli.DONE
    assert "of 1 trials succeeded" in text
    assert shown[-1] == "filmed trials: 1 of 1"
    assert errors == f"serl: no video: {film}: cannot be written: File exists\n"
    assert "there are: 100" in refused(serl, "eval", run.path, "--checkpoint", 7)


def test_run_and_eval_fail_after_too_many_void_trials(
    serl: Serl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = trained(tmp_path, 100)
    ended = "ended after 4 void trials (camera): 0 of 1 valid"

    def deploy(folder: RunFolder, *rest: object, **more: object) -> None:
        for number in range(4):
            void = TrialResult(number, False, False, 7, 0.7, "late", "camera")
            append_trial_result(folder.path, void)

    monkeypatch.setattr(run_command, "deploy", deploy)
    code, text, _ = serl("run", run.path, "--episodes", 1)
    assert (code, text.splitlines()[-1]) == (1, ended)
    monkeypatch.setattr(run_command, "deploy", lambda *rest, **more: None)
    assert serl("run", run.path, "--episodes", 1)[0] == 1
    assert serl("run", run.path)[0] == cli.DONE
    partial = Evaluation((), early_end=ended)
    monkeypatch.setattr(training, "evaluate", lambda *rest: (partial, lambda: tmp_path))
    code, text, _ = serl("eval", run.path, "--trials", 1)
    assert (code, text.splitlines()[0]) == (1, ended)


def test_run_supervises_its_console(
    serl: Serl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks: list[str] = []
    page = SimpleNamespace(check=lambda: checks.append("console"))
    policy = SimpleNamespace(finished=lambda name: True, events=())
    monkeypatch.setattr("serl.cli.teleop.console_of", lambda *rest: nullcontext(page))
    monkeypatch.setattr("serl.ros.processes.run_processes", lambda *rest: nullcontext(policy))
    assert serl("run", trained(tmp_path, 100).path, "--console")[0] == cli.DONE
    assert checks == ["console"]


def test_eval_refuses_damaged_checkpoint(serl: Serl, tmp_path: Path) -> None:
    run = make_run(tmp_path)
    weights = save_checkpoint(run) / "actor.safetensors"
    weights.write_bytes(weights.read_bytes()[: weights.stat().st_size // 2])
    line = refused(serl, "eval", run.path)
    assert "actor.safetensors" in line
    assert "bytes, expected" in line
    assert not run.videos.exists()


def test_relative_paths_in_settings_become_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert TrainConfig().demo_paths == ()
    monkeypatch.chdir(tmp_path)
    assert cli.main(["record", "reach", "--demos", "1", "--out", "demos"]) == 0
    options = cli.parse(["train", "reach", "--demo_paths=[demos]"])
    assert train_command.settings(options).demo_paths == (Path("demos").resolve(),)


def test_tilde_in_options_that_name_files_is_home_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    shutil.copy(Path(__file__).parents[2] / "docs/examples/push_block.py", tmp_path)
    options = cli.parse(["train", "--task=~/push_block.py", "--intervention=none", "--demos=0"])
    assert train_command.settings(options).task == str(tmp_path / "push_block.py")
    assert cli.parse(["run", "RUN", "--robot=~/arm.yaml"]).robot == str(tmp_path / "arm.yaml")
    assert cli.parse(["teleop", "RUN", "--device=~/pad.py"]).device == str(tmp_path / "pad.py")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), False),
        (("--console",), True),
        (("--console", "--ros.publish_state", "false"), False),
        (("--ros.publish_state", "true"), True),
    ],
)
def test_console_enables_state_topics_of_simulated_arm(
    words: tuple[str, ...], expected: bool
) -> None:
    options = cli.parse(["train", "reach", *words])
    assert train_command.settings(options).ros.publish_state is expected


def test_record_and_run_with_console_publish_simulated_arm_state() -> None:
    words = ["record", "reach", "--console"]
    assert record_command.publication(cli.parse(words)).publish_state
    words += ["--ros.publish_state", "false"]
    assert not record_command.publication(cli.parse(words)).publish_state
    config = resolve({"task": "reach"})
    for page in ((), ("--console",)):
        deployed = run_command._deployed(config, cli.parse(["run", "runs/reach/1", *page]))
        assert deployed.ros.publish_state is bool(page)


def test_error_has_no_control_characters_and_no_emoji(capsys: pytest.CaptureFixture[str]) -> None:
    cli.print_error("run \x1b]0;title\x07\nis new")
    cli.print_error("gymnasium:car:Race-v0 is new")
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["serl: run \\x1b]0;title\\x07 is new", "serl: gymnasium:car:Race-v0 is new"]


def test_closed_output_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    assert cli.main(["list", "tasks"]) == cli.DONE


def test_output_without_utf8_replaces_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    output = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(output, "latin-1"))
    assert cli.main(["list", "tasks"]) == cli.DONE
    sys.stdout.write("10% → 5%")
    sys.stdout.flush()
    assert output.getvalue().endswith(b"10% ? 5%")
