"""Common command-line mistakes, each refused by one line that names the remedy."""

from __future__ import annotations

import io
import os
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from serl.cli import bench, compare, plan
from serl.cli import main as cli
from serl.report import comparison as comparisons
from serl.report import review
from serl.runs.config import resolve
from serl.runs.hard_set import ROW_NAMES

from ..report.test_comparison import configuration, outcome
from ..report.test_review import record, records
from .conftest import Serl, make_run, refused, save_checkpoint
from .test_plan import CONDITIONS, RATES

LONG = "a" * 300
NOT_UTF8 = os.fsdecode(b"bad\xff")
BY_FORCE = (
    "--task_config.motion.action_mode", "wrench", "--task_config.motion.axes", "[x, z, pitch]",
)  # fmt: skip
TASKS = "expected one of bin_relocation, cable_routing, "
UNICORN = f"unknown task 'unicorn': {TASKS}"
NOBODY = "unknown robot 'nobody': expected one of franka, kinova_gen3, sim, "
NO_RUN = "nothing: expected the folder of a run, found no folder; the newest in runs is runs/reach/"
FILES = {
    "demos.pkl": "",
    "empty.yaml": "",
    "list.yaml": "- 1\n",
    "tab.yaml": "task: reach\nagent:\n\tutd: 3\n",
    "typo.yaml": "task: reach\nagent: {utdd: 3}\n",
    "twice.yaml": "task: reach\nseed: 1\nseed: 2\n",
    "sweep.yaml": "tasks: [reach]\nseed: [1]\n",
    "unicorn.yaml": "task: unicorn\n",
    "robot.yaml": "task: reach\nrobot: 1\n",
    "sed.yaml": "task: reach\nsettings: {sed: 1}\n",
    "absent.yaml": "run: absent\n",
    "photos/cat.jpg": "",
    "runs/reach/2026-11-23_10-00-00/config.yaml": "",
    "runs/reach/2026-11-24_10-00-00/config.yaml": "",
}
MISTAKES = {
    # commands
    "trian reach": "unknown command 'trian'; did you mean 'train'?",
    "test runs": "unknown command 'test'; did you mean `serl eval`?",
    "fly": "unknown command 'fly'; `serl --help` lists all commands",
    "reward lable x": "unknown command 'reward lable'; did you mean 'reward label'?",
    "demos": "demos: expected import or undo",
    "--hlep": "unknown option --hlep; did you mean --help?",
    # tasks and other plug-ins
    "train": f"train: expected TASK, {TASKS[9:]}",
    "train PickCube": "; did you mean 'pick_cube'?",
    "learner unicorn": UNICORN,
    "record unicorn": UNICORN,
    "list tsks": "; did you mean 'tasks'?",
    "train serl/PickCube-v0": "did you mean 'pick_cube'?",
    "train reach pick_cube": "train: unexpected argument 'pick_cube'; see `serl train --help`",
    "train runs/reach/2026-11-23_10-00-00": "to continue it: serl train --resume runs/reach/2026-",
    "train nofile.py": "nofile.py: no such file",
    "train reach --robot franka --demos 0 --trial_actions sampled": "real arm take the mode of",
    "train reach --robot frank": "expected one of franka, kinova_gen3, sim,",
    "train handover --robot sim": "driven by 'bimanual' in this process only",
    "train handover --robot franka": "driven by 'bimanual' in this process only",
    "train reach --agent.algorithm ppo": "agent.algorithm: unknown agent 'ppo': expected one of bc",
    "train reach --intervention nobody": "intervention: unknown person 'nobody': expected one of e",
    "train reach --reward.kind mine": "reward.kind: unknown reward 'mine': expected one of class",
    "train reach --transport.kind udp": "transport.kind: unknown transport 'udp': expected one of",
    # options
    "train reach --step 100": "train: unknown option --step; did you mean --steps?",
    "train reach --agent.utdd 8": "agent.utdd: unknown setting; did you mean 'agent.utd'?",
    "train reach --device cuda": "train: unknown option --device; did you mean --agent.device?",
    "train reach --steps": "--steps: expected a value",
    "train --resume . --seed 1": "--resume RUN takes no task",
    "encoder import no.pkl --seed 1": "unknown option --seed",
    "train reach --console yes": "train: --console takes no value, got 'yes'",
    "train reach --console.host 192.168.1.20": "--console.host 192.168.1.20: expected --console",
    "train reach --console --console.host ::1": "--console.host ::1: expected this machine's IPv4",
    "record reach --console.host 192.168.1.20": "--console.host 192.168.1.20: expected --console",
    "reward collect pick_cube --console.host 1.2.3.4": "--console.host 1.2.3.4: expected --console",
    "eval": "eval: expected RUN (folder of a run, such as runs/TASK/DATE_TIME); see `serl eval --h",
    "train --resume . --runs elsewhere": "--resume RUN takes no task, no settings and no --runs",
    "train reach --console-port 9000": "--console-port 9000: expected --console as well",
    "record reach --path /dev/x": "/dev/x: expected the kind of this device as well, by --device",
    "replay . --last 2 --episode 1": "replay: --episode: not allowed with argument --last",
    "replay . --episode 1 --follow --video a.mp4": "--video: not allowed with argument --follow",
    "sweep sweep.yaml --slurm --only 1": "sweep: --only: not allowed with argument --slurm",
    "compare a b --blocks 2": "--block, --blocks and --jobs: expected --adaptive as well",
    "actor runs/reach --namespace /left": "--namespace /left: expected --robot NAME as well",
    "run runs/reach --namespace /left": "--namespace /left: expected --robot NAME as well",
    "record reach --namespace /left": "--namespace /left: expected --robot NAME as well",
    "reward collect pick_cube --namespace /left": "--namespace /left: expected --robot NAME as",
    "doctor --namespace /left": "--namespace /left: expected --robot NAME as well",
    # options of SERL, HIL-SERL and LeRobot
    "train reach --max_steps 1000": "unknown option --max_steps; did you mean --steps?",
    "train reach --utd_ratio=4": "unknown option --utd_ratio; did you mean --agent.utd?",
    "train --env FrankaReach-v0": "unknown option --env; expected TASK, one of bin_relocation,",
    "train reach --policy.type=sac": "unknown option --policy.type; did you mean --agent.algor",
    "train reach --output_dir x": "unknown option --output_dir; did you mean --runs?",
    "record reach --successes_needed 5": "--successes_needed; did you mean --demos?",
    "record reach --num_episodes 5": "record: unknown option --num_episodes; did you mean --demos?",
    "eval x --eval_n_trajs 5": "unknown option --eval_n_trajs; did you mean --trials?",
    # values
    "train reach --seed -1": "seed: expected at least 0, got -1",
    "train reach --agent.discount 1.5": "agent.discount: expected at most 1, got 1.5",
    "train reach --observe image": "observe: expected 'state' or 'pixels', got 'image'",
    "train reach --steps 1e4": "steps: expected a whole number, got '1e4'; write 10000",
    "train reach --agent.utd x": "agent.utd: expected a whole number, got 'x'",
    "train reach --learner.prefetch maybe": "expected true or false, got 'maybe'",
    "train reach --namespace left": "namespace: expected one such as /left, or /, got 'left'",
    "train reach --agent.device gpu": "expected auto, cpu, cuda, or one GPU such as cuda:1",
    "eval x --trials 0": "eval: --trials: expected from 1 to 100000, got 0",
    "eval x --checkpoint best": "eval: --checkpoint: expected a whole number, got 'best'",
    "compare a b --metric sucess": "expected one of success, auc, ",
    # units
    "train reach --task_config.tolerance_m 5mm": "expected a number in m, got '5mm'; write 0.005",
    "train reach --task_config.rate_hz 10Hz": "a number in Hz, got '10Hz'; write 10",
    "train reach --task_config.time_limit 5": "did you mean 'task_config.time_limit_s'?",
    # files
    "train reach --config no.yaml": "no.yaml: cannot be read: No such file or directory",
    "encoder import no.pkl": "no.pkl: cannot be read: No such file",
    "train --resume absent": "absent: expected the folder of a run, found no folder",
    "actor absent": "absent: expected the folder of a run, found no folder",
    "replay absent": "absent: expected the folder of a run, found no folder",
    "train reach --config photos": "photos: is a folder, expected a regular file",
    "train reach --config empty.yaml": "empty.yaml: expected a YAML mapping, found nothing",
    "train reach --config list.yaml": "list.yaml: expected a YAML mapping, found list",
    "train reach --config tab.yaml": "tab.yaml: not YAML: line 3: ",
    "train --config typo.yaml": "agent.utdd: unknown setting; did you mean 'agent.utd'?",
    "train --config twice.yaml": "line 3: the key 'seed' is given twice, first in line 2",
    "train reach --demos demos.pkl": "serl demos import demos.pkl --task TASK",
    "train reach --demos nowhere": "nowhere: no such folder; expected a number of demonstrations,",
    "sweep sweep.yaml": "seed: unknown setting; did you mean 'seeds'?",
    "replay photos": "photos: expected the folder of a run, found no config.yaml; the newest in ",
    "eval reach": "found no folder; the newest in runs/reach is runs/reach/2026-11-24_10-00-00",
    "eval runs/reach/2026-11-24_10-00-00": "config.yaml: expected a YAML mapping, found nothing",
    # plans and devices
    "plan unicorn": UNICORN,
    "plan reach --seconds 0": "--seconds: expected from 0.1 to 60, got 0",
    "plan reach --reset-s nan": "--reset-s: expected from 0 to 3600, got nan",
    "plan reach --agent.nonsense 1": "agent.nonsense: unknown setting",
    "teleop": "expected RUN (folder of a run), or --check",
    "teleop --check --device keyboard --path nothing": "; expected one of /dev/input/event*",
    "teleop --check --device terminal": "terminal: ",
    "record reach --device terminal": "asks questions at its terminal",
    "teleop --check --device spacemouse": "no SpaceMouse found",
    "teleop --check --device spacemouse --left a": "give --left and --right",
    "teleop --check --left a --right b --path c": "give --left and --right, and no --path",
    "teleop --check --left a --right a": "--left and --right are both a",
    "teleop --check --device spacemouse --left a --right b": "no SpaceMouse 'a' by path, serial ",
    "teleop --check --teleop.gamepad.dead_zone=2": "gamepad.dead_zone",
    "teleop --check --agent.utd=2": "teleop: unknown option --agent.utd",
    "console nothing": NO_RUN,
    "teleop nothing --device spacemouse": NO_RUN,
}
NEED_ROS = {
    "bench hard --tasks pegs": "serl: --tasks: 'pegs' is none of peg_insertion, ",
    "bench hard --rows sac": "serl: --rows: 'sac' is none of expert, bc, hg_dagger, rl, ",
    "bench hard --rows hg_dagger": "serl: --rows: hg_dagger has as many takeovers as rl_human: ",
    "bench hard --seeds 1 1": "serl: --seeds: one is given twice",
    "bench hard --seed 1": "--seed: expected --seeds",
    "bench hard --tasks peg_insertion --rows rl --agent.utd=0": "serl: agent.utd: ",
    "guard franka": "arm franka: has no workspace: teach it with `serl setup`",
    "guard franka --task reach": "arm franka: has no workspace: teach it with `serl setup`",
    "guard nobody": NOBODY,
    "guard sim --task nothing": f"unknown task 'nothing': {TASKS}",
    "guard sim --task reach --namespace a/b": "--namespace 'a/b': expected one such as /left",
    "guard sim --task reach --namespace ''": "--namespace '': expected one such as",
    "order guard/arm --key left.key": "'guard/arm': expected a service such as /cell/left",
    "order /left/guard/arm --key left.key": "left.key: no key: the guard, or the actor, ",
    "setup nobody": NOBODY,
    "setup sim --path /dev/x": "--path /dev/x: expected --device NAME as well",
    "learner runs --runs elsewhere": "runs is a run with its own settings; give no others, and no",
    "setup sim --out a.py": "--out a.py: expected a .yaml file",
    "setup sim --namespace 'a b'": "--namespace 'a b'",
    "setup sim --repeat dance": "--repeat dance: expected one of connection, limits",
    "doctor --graph absent": "absent: expected the folder of a run",
    "doctor --graph 102": "expected a number from 0 to 101",
    "doctor --robot nobody": NOBODY,
    "doctor --robot franka --namespace left": "--namespace 'left': expected one such",
    "up unicorn.yaml": UNICORN,
    "up robot.yaml": "robot: unknown setting",
    "up sed.yaml": "sed: unknown setting",
    "up absent.yaml": "absent: expected the folder of a run",
    "up list.yaml": "expected a YAML mapping, found list",
    "record reach --robot nobody": NOBODY,
    "record reach --robot sim": "--robot sim: expected a real arm",
    "record reach --robot franka --namespace left": "--namespace 'left': expected one such as",
    "record reach --robot franka --stages.x 1": "stages",
    "record reach --robot franka": "arm franka: it has no workspace yet: serl setup",
    "reward collect pick_cube --robot nobody": NOBODY,
    "reward collect pick_cube --robot sim": "--robot sim: expected a real arm",
    "reward collect pick_cube --robot franka --namespace left": "'left': expected one such as",
    "reward collect pick_cube --robot franka": "arm franka: it has no workspace yet: serl setup",
    "reward collect pick_cube --robot franka --positives 0": "expected at least 1, got 0",
    "reward collect pick_cube --robot franka --path /dev/x": "expected the kind of this device as ",
}


@pytest.mark.parametrize(
    ("line", "answer"),
    [*MISTAKES.items(), *(pytest.param(*row, marks=pytest.mark.ros) for row in NEED_ROS.items())],
)
def test_mistake_is_refused_by_one_line_with_remedy(
    line: str, answer: str, serl: Serl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("serl.teleop.spacemouse.FOLDER", Path("/nowhere"))  # has no device
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    before = sorted(tmp_path.rglob("*"))
    code, out, errors = serl(*shlex.split(line))
    assert (code, out) == (cli.BAD_INPUT, "")
    assert errors.startswith("serl: ")
    assert errors.count("\n") == 1, errors
    assert answer in errors
    assert sorted(tmp_path.rglob("*")) == before


def test_help_describes_every_command_and_fits_100_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    names = {name.partition(" ")[0] for name in cli.COMMANDS}
    for name in ("", *cli.COMMANDS):
        with pytest.raises(SystemExit) as ended:
            cli.main([*name.split(), "--help"])
        assert ended.value.code == 0
        text = capsys.readouterr().out
        assert f"usage: serl {name}".strip() in text
        lines = text.splitlines()
        assert max(map(len, lines)) <= 100, name
        if not name:
            assert {line.split()[0] for line in lines if line.startswith("  ")} >= names
        elif name == "train":
            first = [line.split()[0] for line in lines if line.startswith("  --")]
    assert first[:6] == ["--steps", "--seed", "--demos", "--robot", "--observe", "--trials"]


def print_replay(to: Console, folder: Path) -> None:
    names = [
        record(folder / name, records(0), records(1, expert=False)) for name in ("a", "b" * 40)
    ]
    review.print_table(to, [each for name in names for each in review.recordings(name)])


def print_compare(to: Console, folder: Path) -> None:
    groups = [
        configuration(name, *(outcome(seed, 0.1, 123456, budget=234567) for seed in range(20)))
        for name in ("connector_insertion_6d", "imitate_successes-true")
    ]
    values = (["[0.4, -0.1, 0.1]"] * 9, ["[0.40001, -0.10001, 0.10001]"] * 9)
    comparison = comparisons.compare(groups, {"task_config.motion.box_low_m": values})
    compare.print_comparison(to, comparison, "steps_to_90")


def print_bench(to: Console, folder: Path) -> None:
    cells: list[tuple[str, str]] = [("connector_insertion_6d", row) for row in ROW_NAMES]
    result = bench.CellResult(50, 50, 123.4, 1234.5, 1234.5, 123.4)
    bench.print_table(to, dict.fromkeys(cells, [result] * 5))


def print_plan(to: Console, folder: Path) -> None:
    config = resolve({"task": "connector_insertion_6d", "steps": 1_000_000})
    conditions = CONDITIONS.model_copy(update={"rate_hz": 62.5})
    slow = RATES.model_copy(update={"act_s": 0.2})
    plan.show(to, config, slow, conditions, plan.make_plan(config, slow, conditions))


def print_doctor(to: Console, folder: Path) -> None:
    from serl.cli import doctor_graph  # imports rclpy
    from serl.ros.inspection import Endpoint, GraphInfo, TopicInfo

    arm = "/cell/left/cartesian_impedance_controller"
    ends = tuple(Endpoint(f"{arm}_{n}", "std_msgs/msg/Float64MultiArray") for n in range(4))
    topic = TopicInfo(f"{arm}/external_wrench_in_stiffness_frame", ends, ends, 1000.0)
    doctor_graph.show(to, GraphInfo(tuple(end.node for end in ends), (topic,)))


@pytest.mark.parametrize(
    "printed",
    [
        *(print_replay, print_compare, print_bench, print_plan),
        pytest.param(print_doctor, marks=pytest.mark.ros),
    ],
)
def test_table_fits_100_columns(printed: Callable[[Console, Path], None], tmp_path: Path) -> None:
    output = io.StringIO()
    printed(Console(file=output, force_terminal=True, width=100, color_system=None), tmp_path)
    lines = output.getvalue().splitlines()
    assert len(lines) > 3
    assert max(map(len, lines)) <= 100
    assert "\N{HORIZONTAL ELLIPSIS}" not in output.getvalue()


def test_serl_without_arguments_describes_main_commands(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main([]) == cli.BAD_INPUT
    _, text = capsys.readouterr()
    day, _, more = text.partition("more: ")
    described = [line.split()[0] for line in day.splitlines() if line.startswith("  ")]
    assert described == ["doctor", "record", "train", "replay", "eval", "run"]
    named = {*described, *(name.rstrip(",") for name in more.partition("\n\n")[0].split())}
    assert named == {name.partition(" ")[0] for name in cli.COMMANDS}
    assert max(map(len, text.splitlines())) <= 100


@pytest.mark.parametrize(
    "words",
    [
        ("train", "object_flip", "--robot", "sim"),
        ("train", "object_flip", "--robot", "franka"),
        ("train", "reach", "--robot", "sim", *BY_FORCE),
        ("learner", "object_flip", "--robot", "franka"),
        ("sim", "object_flip"),
        ("record", "object_flip", "--robot", "franka", "--console"),
        ("run", "RUN", "--robot", "franka"),
    ],
)
def test_arm_behind_topics_refuses_wrench_actions(
    serl: Serl, tmp_path: Path, words: tuple[str, ...]
) -> None:
    run = make_run(tmp_path, task="object_flip")
    save_checkpoint(run)
    code, out, errors = serl(*(run.path if word == "RUN" else word for word in words))
    assert (code, out) == (cli.BAD_INPUT, "")
    name = "reach" if "reach" in words else "object_flip"
    reason = "wrenches are exerted in this process only, not over topics"
    assert errors == f"serl: {name}: {reason}\n"
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]
    assert [path.parent.name for path in tmp_path.rglob("config.yaml")] == [run.name]


@pytest.mark.parametrize(
    "words",
    [
        ("eval", LONG),
        ("replay", LONG),
        ("train", f"{LONG}.py"),
        ("train", "reach", "--config", LONG),
        ("train", "reach", "--runs", LONG),
        ("train", "reach", "--demos", LONG),
        ("train", "reach", "--init-from", LONG),
        ("train", "reach", "--robot", f"{LONG}.yaml"),
        ("up", LONG),
        ("record", "reach", "--out", LONG),
        ("demos", "import", LONG, "--task", "reach"),
        ("reward", "label", LONG, "--episode=0", "--steps=0", "--label=1"),
        ("reward", "train", LONG, "--out", "x.safetensors"),
        ("encoder", "import", LONG),
        ("doctor", "--new-key", LONG),
    ],
)
def test_too_long_path_is_refused(serl: Serl, words: tuple[str, ...]) -> None:
    assert "too long" in refused(serl, *words)


@pytest.mark.parametrize(
    "words",
    [
        ("train", "reach", "--config", "fifo"),
        ("up", "fifo"),
        ("train", "reach", "--robot", "fifo.yaml"),
        ("demos", "import", "fifo", "--task", "reach"),
        ("encoder", "import", "fifo"),
        ("train", "fifo.py"),
    ],
)
def test_fifo_is_refused_without_blocking(serl: Serl, words: tuple[str, ...]) -> None:
    for name in ("fifo", "fifo.yaml", "fifo.py"):
        os.mkfifo(name)
    assert "fifo" in refused(serl, *words)


@pytest.mark.parametrize(
    "words",
    [
        ("list", "./loop.py"),
        ("train", "./loop.yaml"),
        ("train", "reach", "--init-from", "loop"),
        ("record", "reach", "--demos", "1", "--out", "loop"),
        ("record", "reach", "--demos", "1", "--out", "loop/inside"),
        ("record", "reach", "--robot", "loop.yaml"),
        ("teleop", "--check", "--device", "./loop.py"),
        ("bench", "hard", "--tasks", "peg_insertion", "--rows", "expert", "--out", "loop"),
        pytest.param(("record", "reach", "--console", "--out", "loop"), marks=pytest.mark.ros),
    ],
)
def test_link_that_leads_to_itself_is_refused(
    serl: Serl, words: tuple[str, ...], tmp_path: Path
) -> None:
    links = {"loop", "loop.py", "loop.yaml"}
    for name in links:
        Path(name).symlink_to(name)
    assert "loop" in refused(serl, *words)
    assert {path.name for path in tmp_path.iterdir()} == links


@pytest.mark.parametrize(
    "words",
    [
        ("train", "reach", "--demos", "1", "--steps", "20", "--runs", NOT_UTF8),
        ("train", f"{NOT_UTF8}.py"),
        ("train", "reach", "--init-from", NOT_UTF8),
        ("record", "reach", "--out", NOT_UTF8),
        ("compare", NOT_UTF8, "other"),
        ("verify", f"{NOT_UTF8}/run"),
        ("train", "reach", "--seed", NOT_UTF8),
    ],
)
def test_word_that_is_not_utf8_is_refused_before_anything_is_written(
    serl: Serl, words: tuple[str, ...], tmp_path: Path
) -> None:
    said = refused(serl, *words)
    assert r"bad\udcff" in said
    assert "words of a command must be UTF-8" in said
    assert not any(tmp_path.iterdir())


def test_working_folder_that_is_not_utf8_holds_no_recording(
    serl: Serl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / NOT_UTF8
    folder.mkdir()
    monkeypatch.chdir(folder)
    assert "must be UTF-8" in refused(serl, "record", "reach", "--demos", "1")
    assert not any(folder.iterdir())
