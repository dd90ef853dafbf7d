"""Forty mistakes of a newcomer, and the one line that answers each of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from serl.cli import main as cli

TASKS = "expected one of bin_relocation, cable_routing, "
FILES = {
    "demos.pkl": "",
    "empty.yaml": "",
    "list.yaml": "- 1\n",
    "tab.yaml": "task: reach\nagent:\n\tutd: 3\n",
    "typo.yaml": "task: reach\nagent: {utdd: 3}\n",
    "twice.yaml": "task: reach\nseed: 1\nseed: 2\n",
    "sweep.yaml": "tasks: [reach]\nseed: [1]\n",
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
    "train PickCube": "unknown task 'PickCube'",
    "train serl/PickCube-v0": "did you mean 'pick_cube'?",
    "train reach pick_cube": "train: unexpected argument 'pick_cube'; see `serl train --help`",
    "train runs/reach/2026-11-23_10-00-00": "to continue it: serl train --resume runs/reach/2026-",
    "train nofile.py": "nofile.py: no such file",
    "train reach --robot frank": "expected one of franka, sim, ur5e,",
    "train reach --agent.algorithm ppo": "unknown agent 'ppo': expected one of bc, hybrid, sac,",
    # options
    "train reach --step 100": "train: unknown option --step; did you mean --steps?",
    "train reach --agent.utdd 8": "agent.utdd: unknown setting; did you mean 'agent.utd'?",
    "train reach --device cuda": "train: unknown option --device; did you mean --agent.device?",
    "train reach --steps": "--steps: expected a value",
    "train reach --console yes": "train: --console takes no value, got 'yes'",
    "eval": "eval: expected RUN (folder of a run, such as runs/TASK/DATE_TIME); see `serl eval --h",
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
}


@pytest.mark.parametrize(("line", "answer"), MISTAKES.items())
def test_a_mistake_is_answered_by_one_line_with_the_remedy(
    line: str,
    answer: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    before = sorted(tmp_path.rglob("*"))
    monkeypatch.chdir(tmp_path)
    assert cli.main(line.split()) == cli.BAD_INPUT
    out, errors = capsys.readouterr()
    assert out == ""
    assert errors.startswith("serl: ")
    assert errors.count("\n") == 1, errors
    assert answer in errors
    assert sorted(tmp_path.rglob("*")) == before


def test_the_help_describes_every_command_and_fits_100_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    names = {name.partition(" ")[0] for name in cli.COMMANDS}
    for words in ([], ["run"], ["bench"], ["train"]):
        with pytest.raises(SystemExit):
            cli.main([*words, "--help"])
        lines = capsys.readouterr().out.splitlines()
        assert max(map(len, lines)) <= 100, words
        if not words:
            assert {line.split()[0] for line in lines if line.startswith("  ")} >= names
    first = [line.split()[0] for line in lines if line.startswith("  --")]
    assert first[:6] == ["--steps", "--seed", "--demos", "--robot", "--observe", "--trials"]


def test_without_arguments_the_commands_of_a_working_day_are_described(
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
