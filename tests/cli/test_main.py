"""What a person types, and the one line that answers a mistake."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest

from serl.cli import actor as actor_command
from serl.cli import main as cli
from serl.cli import train as train_command
from serl.cli.settings import describe
from serl.runs.assembly import make_agent
from serl.runs.config import TrainConfig, resolve
from serl.runs.folder import RunFolder
from serl.runs.task_setup import make_spec, make_task
from serl.system.video import read_video

from ..agents.resnet10_reference import stand_in
from ..support.pickled import pickled

COMMANDS = (
    "train", "learner", "actor", "record", "eval", "replay", "encoder", "list", "doctor",
    "sweep", "compare",
)  # fmt: skip
TINY = {"hidden": [8, 8], "device": "cpu", "threads": 1}
BY_FORCE = (
    "--task_config.motion.action_mode", "wrench", "--task_config.motion.axes", "[x, z, pitch]",
)  # fmt: skip
Serl = Callable[..., tuple[int, str, str]]


@pytest.fixture
def serl(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Serl:
    """Runs a command in an empty folder: its exit code, output and errors."""
    monkeypatch.chdir(tmp_path)

    def run(*words: object) -> tuple[int, str, str]:
        capfd.readouterr()
        code = cli.main([str(word) for word in words])
        captured = capfd.readouterr()
        return code, captured.out, captured.err

    return run


def refused(serl: Serl, *words: object) -> str:
    """The one line with which a command is refused."""
    code, _, errors = serl(*words)
    assert code == cli.BAD_INPUT
    assert errors.count("\n") == 1, errors
    assert errors.startswith("serl: ")
    return errors


def make_run(root: Path, **settings: object) -> RunFolder:
    config = resolve({"task": "reach", "demos": 0, "agent": TINY}, settings)
    return RunFolder.create(root / "runs", config, datetime.now())


def save_checkpoint(run: RunFolder, step: int = 100) -> Path:
    agent = make_agent(run.config, make_spec(make_task(run.config)), 0)
    return run.save_checkpoint(step, {"actor": agent.actor_weights()}, {})


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main([command, "--help"])
    assert ended.value.code == 0
    assert f"usage: serl {command}" in capsys.readouterr().out


def test_list_shows_tasks_and_how_settings_are_listed(serl: Serl) -> None:
    code, out, _ = serl("list")
    assert code == cli.DONE
    for name in ("pick_cube", "reach", "franka", "sac"):
        assert any(name in line.split() for line in out.splitlines()), name
    assert "serl list settings agent" in out


def test_doctor_finds_what_training_needs(serl: Serl) -> None:
    code, out, _ = serl("doctor")
    lines = out.splitlines()
    assert (code == cli.DONE) == all(line.startswith("ok") for line in lines)
    for subject in ("python", "torch", "mujoco", "ROS 2", "ROS domain", "shared memory", "disk"):
        assert any(subject in line for line in lines), subject


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["train", "unicorn"], ["unknown task 'unicorn'", "pick_cube", "reach"]),
        (["train", "absent.py"], ["absent.py: no such file"]),
        (
            ["train", "reach", "--agent.udt", "8"],
            ["agent.udt: unknown", "did you mean 'agent.utd'?"],
        ),
        (["train", "reach", "--agent.utd", "x"], ["agent.utd: ", "whole number", "'x'"]),
        (["train", "reach", "--agent.utd"], ["--agent.utd: expected a value"]),
        (["train", "reach", "--task_config.tol", "1"], ["tol: unknown setting", "tolerance_m"]),
        (["train", "reach", "--config", "no.yaml"], ["no.yaml: cannot be read"]),
        (["train", "--resume", "absent"], ["absent", "found no folder"]),
        (["train", "--resume", ".", "--seed", "1"], ["--resume RUN takes no task"]),
        (["train", "handover", "--robot", "sim"], ["driven by 'bimanual' in this process only"]),
        (["learner", "unicorn"], ["unknown task 'unicorn'"]),
        (["actor", "absent"], ["absent", "found no folder"]),
        (["record", "unicorn"], ["unknown task 'unicorn'"]),
        (["eval", "absent"], ["absent", "found no folder"]),
        (["replay", "absent"], ["absent", "found no folder"]),
        (["replay", "."], ["expected the folder of a run", "no config.yaml"]),
        (["eval", ".", "--sed", "1"], ["unknown option --sed"]),
        (["encoder", "import", "no.pkl"], ["no.pkl: cannot be read: No such file"]),
        (["encoder", "import", "no.pkl", "--seed", "1"], ["unknown option --seed"]),
        (["trayn", "reach"], ["unknown command 'trayn'", "did you mean 'train'?"]),
        (
            ["train", "reach", "--sead", "1"],
            ["unknown option --sead", "did you mean --seed?"],
        ),
    ],
)
def test_a_mistake_is_answered_with_one_line_and_changes_nothing(
    serl: Serl, tmp_path: Path, words: list[str], parts: list[str]
) -> None:
    line = refused(serl, *words)
    assert all(part in line for part in parts), line
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "words",
    [
        ("train", "object_flip", "--robot", "sim"),
        ("train", "object_flip", "--robot", "franka"),
        ("train", "reach", "--robot", "sim", *BY_FORCE),
        ("learner", "object_flip", "--robot", "franka"),
        ("sim", "object_flip"),
        ("guard", "franka", "--task", "object_flip"),
        ("record", "object_flip", "--robot", "franka", "--console"),
        ("run", "RUN", "--robot", "franka"),
    ],
)
def test_no_arm_behind_topics_is_driven_by_wrenches(
    serl: Serl, tmp_path: Path, words: tuple[str, ...]
) -> None:
    run = make_run(tmp_path, task="object_flip")
    save_checkpoint(run)
    code, out, errors = serl(*(run.path if word == "RUN" else word for word in words))
    assert (code, out) == (cli.BAD_INPUT, "")
    name = "reach" if "reach" in words else "object_flip"
    said = "wrenches are exerted in this process only, not over topics"
    assert errors == f"serl: {name}: {said}\n"
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]
    assert [path.parent.name for path in tmp_path.rglob("config.yaml")] == [run.name]


def test_a_setting_may_come_before_the_task() -> None:
    words = ["--agent.utd", "8", "--init-from", "-x", "reach", "--seed=3", "--runs", "x"]
    options = cli.parse(["train", *words])
    assert (options.task, str(options.runs)) == ("reach", "x")
    assert options.overrides == ["--agent.utd", "8", "--init-from", "-x", "--seed=3"]
    options = cli.parse(["record", "reach", "--seed", "3", "--log.fsync", "step"])
    assert (options.seed, options.overrides) == (3, ["--log.fsync", "step"]), "its own --seed"


def test_help_shows_every_setting_with_its_type_bounds_choices_and_default(
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
    assert "human.every" in shown, "a setting of this person"
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
def test_a_shell_completes_commands_settings_and_choices(
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
        (["record", "reach"], "whole episodes until now are kept"),
    ],
)
def test_an_interrupted_command_names_what_remains(
    words: list[str], kept: str, serl: Serl, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(options: object) -> int:
        raise KeyboardInterrupt

    module, function = ("reward", "train") if words[0] == "reward" else (words[0], words[0])
    monkeypatch.setattr(f"serl.cli.{module}.{function}", interrupted)
    assert serl(*words) == (cli.INTERRUPTED, "", f"serl: interrupted; {kept}\n")


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


def test_the_command_line_wins_over_the_file(serl: Serl, tmp_path: Path) -> None:
    (tmp_path / "my.yaml").write_text("task: reach\nsteps: 5\nseed: 1\nintervention: me\n")
    line = refused(serl, "train", "--seed", 2, "--config", "my.yaml")
    assert "intervention: unknown person 'me': expected one of none, novice, scripted" in line


def test_a_folder_that_is_no_run_is_refused(serl: Serl, tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_text("")
    for words in (["eval"], ["actor"], ["learner"], ["replay"], ["train", "--resume"]):
        assert "found no config.yaml" in refused(serl, *words, "photos")
    assert [path.name for path in (tmp_path / "photos").iterdir()] == ["cat.jpg"]


def test_a_run_without_a_learner_cannot_be_joined(
    serl: Serl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actor_command, "_GRACE_S", 0.0)
    run = make_run(tmp_path)
    assert "no learner was started yet" in refused(serl, "actor", run.path)
    (run.path / "ros_domain").write_text("unicorn")
    assert "expected a number from 0 to 101" in refused(serl, "actor", run.path)
    (run.path / "ros_domain").write_bytes(b"\xff\xfe7")
    assert "ros_domain: damaged; expected the number" in refused(serl, "actor", run.path)


def test_a_second_learner_of_a_run_is_refused(serl: Serl, tmp_path: Path) -> None:
    run = make_run(tmp_path)
    (run.path / "ros_domain").write_text("7")
    with run.lock_learner():
        for words in (["learner"], ["train", "--resume"]):
            assert "its learner is in use by process" in refused(serl, *words, run.path)
    assert (run.path / "ros_domain").read_text() == "7"


def test_a_bad_ros_domain_is_refused(
    serl: Serl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROS_DOMAIN_ID", "102")
    run = make_run(tmp_path)
    assert "ROS_DOMAIN_ID is '102'" in refused(serl, "learner", run.path)


def test_recording_gives_demonstrations_and_overwrites_none(serl: Serl, tmp_path: Path) -> None:
    out = tmp_path / "demos"
    code, text, _ = serl("record", "reach", "--demos", 2, "--seed", 3, "--out", out)
    assert code == cli.DONE
    assert f"2 demonstrations in {out} (0 failures left out)" in text
    files = {path.name: path.read_bytes() for path in out.glob("*.mcap")}
    assert len(files) == 2
    assert "already holds episodes" in refused(serl, "record", "reach", "--out", out)
    assert {path.name: path.read_bytes() for path in out.glob("*.mcap")} == files


def test_a_replay_shows_all_episodes_or_one_of_them(serl: Serl, tmp_path: Path) -> None:
    serl("record", "reach", "--demos", 3, "--out", "demos")
    code, table, _ = serl("replay", "demos", "--last", 2)
    assert code == cli.DONE
    assert [line.split()[:2] for line in table.splitlines()[1:]] == [["demos", "1"], ["demos", "2"]]
    code, summary, _ = serl("replay", "demos", "--episode", 1)
    assert code == cli.DONE
    steps = summary.split("success after ")[1].split()[0]
    assert "reach · demos · episode 1" in summary
    code, told, _ = serl("replay", "demos", "--episode", 1, "--video", "films/1.mp4")
    assert code == cli.DONE
    assert told == "video: films/1.mp4 (simulated again for its pictures)\n"
    assert len(list(read_video(tmp_path / "films" / "1.mp4"))) == int(steps) + 10
    for words, part in (
        (["--episode", 7], "no episode 7: there are demos 0 to 2"),
        (["--actor", "me"], "no actor 'me': expected one of demos"),
        (["--last", 0], "--last: expected at least 1, got 0"),
        (["--video", "x.mp4"], "choose it with --episode N"),
        (["--episode", 1, "--video", "x.avi"], "must end in .mp4 or .webm"),
    ):
        assert part in refused(serl, "replay", "demos", *words)
    path = sorted((tmp_path / "demos").glob("*.mcap"))[1]
    path.write_bytes(path.read_bytes()[:-100])
    line = refused(serl, "replay", "demos")
    assert f"{path.name}: byte " in line


def test_evaluation_prints_the_interval_and_leaves_a_film(serl: Serl, tmp_path: Path) -> None:
    run = make_run(tmp_path, task_config={"time_limit_s": 0.5})
    assert "no checkpoint" in refused(serl, "eval", run.path)
    save_checkpoint(run)
    code, text, _ = serl("eval", run.path, "--trials", 3)
    assert code == cli.DONE
    assert "of 3 trials succeeded" in text
    assert "95 % interval" in text
    (film,) = run.videos.glob("eval-00000100.*")
    film.unlink()
    run.videos.rmdir()
    run.videos.write_text("in the way of a folder")
    code, text, errors = serl("eval", run.path, "--trials", 3)
    assert code == cli.DONE
    assert "of 3 trials succeeded" in text
    assert errors == f"serl: no video: {film}: cannot be written: File exists\n"
    assert "there are: 100" in refused(serl, "eval", run.path, "--checkpoint", 7)
    assert "--trials: expected from 1 to 100000, got 0" in refused(
        serl, "eval", run.path, "--trials", 0
    )


def test_the_encoder_is_imported_once(
    serl: Serl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    Path("resnet10_params.pkl").write_bytes(pickled(stand_in()))
    code, first, _ = serl("encoder", "import", "resnet10_params.pkl")
    assert code == cli.DONE
    assert first.startswith(f"trunk: {tmp_path}/serl/resnet10.safetensors\nparameters: 4,905,792\n")
    assert serl("encoder", "import", "resnet10_params.pkl") == (code, first, "")
    _, other, _ = serl("encoder", "import", "resnet10_params.pkl", "--out", "trunk.safetensors")
    assert other.splitlines()[1:] == first.splitlines()[1:]
    Path("other.pkl").write_bytes(pickled(stand_in(seed=11)))
    line = refused(serl, "encoder", "import", "other.pkl", "--out", "trunk.safetensors")
    assert "trunk.safetensors: holds another trunk; remove it, or give another --out" in line
    assert "resnet10_params.pkl: " in refused(
        serl, "encoder", "import", "other.pkl", "--out", "resnet10_params.pkl"
    )


def test_a_damaged_checkpoint_is_refused(serl: Serl, tmp_path: Path) -> None:
    run = make_run(tmp_path)
    weights = save_checkpoint(run) / "actor.safetensors"
    weights.write_bytes(weights.read_bytes()[: weights.stat().st_size // 2])
    line = refused(serl, "eval", run.path)
    assert "actor.safetensors" in line
    assert "bytes, expected" in line
    assert not run.videos.exists()


def test_a_reward_model_is_collected_for_labelled_trained_audited_and_used(
    serl: Serl, tmp_path: Path
) -> None:
    sizes = [
        f"--task_config.views.{v}.{s}=16" for v in ("front", "wrist") for s in ("width", "height")
    ]
    counts = ("--positives", 60, "--negatives", 80)
    code, text, _ = serl("reward", "collect", "pick_cube", "--out", "data", *counts, *sizes)
    assert code == cli.DONE
    assert text.startswith("60 positives and 80 negatives, of ")
    assert "serl reward train data --out pick_cube.safetensors" in text
    assert "already holds episodes" in refused(
        serl, "reward", "collect", "pick_cube", "--out", "data"
    )

    label = ("reward", "label", "data", "--episode", 0, "--label", 0)
    code, text, _ = serl(*label, "--steps", "0:2")
    assert code == cli.DONE
    assert text.startswith("3 steps are labelled 0; ")
    for words, part in (
        ((*label, "--steps", "9:x"), "--steps '9:x': expected a number, or FIRST:LAST"),
        ((*label, "--steps", "0:5000"), "expected steps from 0 to "),
        (
            ("reward", "label", "data", "--episode", 999, "--label", 1, "--steps", 0),
            "no episode 999",
        ),
        (("reward", "train", ".", "--out", "m"), "expected a collection with views.json"),
        (("reward", "train", "data", "--out", "m", "--epochs", 0), "epochs: "),
        (("reward", "audit", "m", "data"), "reward model m: No such file"),
        (("reward", "train", "data", "absent", "--out", "m"), "absent: no such folder"),
    ):
        assert part in refused(serl, *words)

    quick = ("--epochs", 2, "--threads", 1)
    code, text, _ = serl("reward", "train", "data", "--out", "m.safetensors", *quick)
    assert code == cli.DONE
    assert "m.safetensors: sees front, wrist; believed from " in text
    words = ("accuracy", "precision", "recall", "neither training nor calibration saw")
    assert all(word in text for word in words)
    code, text, _ = serl("reward", "audit", "m.safetensors", "data", "--sheet", "worst.png")
    assert code == cli.DONE
    assert text.startswith("truth: labels of steps by people or scripts, ")
    assert "as a reward, that waits for 4 of the last 5 images:" in text
    assert "where the tool is above x, y, z of (-1.0, -1.0, 0.15) m" in text
    assert "the worst mistakes of single images: worst.png" in text
    assert (tmp_path / "worst.png").read_bytes().startswith(b"\x89PNG")

    model = ("--reward.kind=classifier", "--reward.model=m.safetensors", "--observe=pixels")
    assert "trained on the view 'front'" in refused(serl, "train", "pick_cube", *model)
    line = refused(serl, "train", "drawer", *model)
    assert "trained for pick_cube, not for drawer; " in line
    assert "--reward.transfer true" in line
    line = refused(serl, "train", "drawer", *model, "--reward.transfer=true")
    assert "trained on the view 'front'" in line
    assert "reward model" in refused(
        serl, "train", "pick_cube", *model[:1], "--reward.model=absent"
    )
    assert "needs the file" in refused(serl, "train", "pick_cube", model[0])
    assert not (tmp_path / "runs").exists()


def test_settings_keep_paths_that_work_from_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert TrainConfig().demo_paths == ()
    monkeypatch.chdir(tmp_path)
    assert cli.main(["record", "reach", "--demos", "1", "--out", "demos"]) == 0
    options = cli.parse(["train", "reach", "--demo_paths=[demos]"])
    assert train_command.settings(options).demo_paths == (Path("demos").resolve(),)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), False),
        (("--console",), True),
        (("--console", "--ros.publish_state", "false"), False),
        (("--ros.publish_state", "true"), True),
    ],
)
def test_the_console_turns_the_topics_of_the_simulated_arm_on(
    words: tuple[str, ...], expected: bool
) -> None:
    options = cli.parse(["train", "reach", *words])
    assert train_command.settings(options).ros.publish_state is expected


LONG = "a" * 300


@pytest.mark.parametrize(
    "words",
    [
        ("verify", LONG),
        ("eval", LONG),
        ("run", LONG),
        ("replay", LONG),
        ("actor", LONG),
        ("learner", LONG),
        ("train", "--resume", LONG),
        ("train", f"{LONG}.py"),
        ("train", "reach", "--config", LONG),
        ("train", "reach", "--runs", LONG),
        ("train", "reach", "--demos", LONG),
        ("train", "reach", "--init-from", LONG),
        ("train", "reach", "--robot", f"{LONG}.yaml"),
        ("guard", f"{LONG}.yaml"),
        ("up", LONG),
        ("record", "reach", "--out", LONG),
        ("demos", "import", LONG, "--task", "reach"),
        ("demos", "undo", LONG),
        ("reward", "label", LONG, "--episode=0", "--steps=0", "--label=1"),
        ("reward", "train", LONG, "--out", "x.safetensors"),
        ("encoder", "import", LONG),
        ("doctor", "--new-key", LONG),
    ],
)
def test_a_path_that_is_too_long_is_refused(serl: Serl, words: tuple[str, ...]) -> None:
    assert "too long" in refused(serl, *words)


@pytest.mark.parametrize(
    "words",
    [
        ("train", "reach", "--config", "fifo"),
        ("plan", "reach", "--config", "fifo"),
        ("up", "fifo"),
        ("train", "reach", "--robot", "fifo.yaml"),
        ("demos", "import", "fifo", "--task", "reach"),
        ("encoder", "import", "fifo"),
        ("train", "fifo.py"),
    ],
)
def test_a_fifo_is_refused_and_not_waited_for(serl: Serl, words: tuple[str, ...]) -> None:
    for name in ("fifo", "fifo.yaml", "fifo.py"):
        os.mkfifo(name)
    assert "fifo" in refused(serl, *words)
