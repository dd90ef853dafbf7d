from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from serl.cli import compare, sweep
from serl.cli.main import main
from serl.runs.folder import RunFolder
from serl.runs.hard_set import ROWS, TASKS, settings_of
from serl.runs.settings import run_settings
from serl.system.jobs import Job
from serl.teleop.scripted import ScriptedHumanConfig

TRAINING = """
import json, re, sys
from pathlib import Path
run = Path(sys.argv[1])
text = (run / "config.yaml").read_text()
if "peg_insertion_6d" in text and "rl_human" in str(run) and not (run / "tried").exists():
    (run / "tried").touch()
    sys.exit("out of luck")
rl = "bc" not in run.parts
episode = {"kind": "episode", "time_s": 1.0, "steps": 50, "actor": "a", "episode": 0}
episode |= {"length": 50, "success": True, "assisted": True, "reward": 1.0, "human_steps": 20}
episode |= {"interventions": 3, "reason": "", "duration_s": 6.0, "weight_age": 0}
row = {"kind": "evaluation", "time_s": 1.0, "steps": 9, "checkpoint": 9, "purpose": "final"}
row |= {"trials": 10, "successes": 9 if rl else 2, "cycle_time_s": 3.0}
rows = [episode, row] if rl else [row]
(run / "metrics.jsonl").write_text("".join(json.dumps(each) + chr(10) for each in rows))
"""
TINY = ("--trials=2", "--demos=2", "--agent.hidden=[8, 8]", "--agent.device=cpu")


@pytest.fixture
def bench(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[int, str]]:
    """Run the command with a stand-in for `serl train --resume`; `serl compare` draws no page."""

    def job(run: RunFolder, name: str) -> Job:
        return Job(name, (sys.executable, "-c", TRAINING, str(run.path)), run.log / "train.log")

    def run(*words: str) -> tuple[int, str]:
        code = main(["bench", "hard", *words, "--out", str(tmp_path / "out"), *TINY])
        printed = capsys.readouterr()
        return code, printed.out + printed.err

    pytest.importorskip("rclpy")
    monkeypatch.setattr(sweep, "training", job)
    monkeypatch.setattr(compare, "write_comparison", lambda *given: None)
    monkeypatch.setenv("COLUMNS", "200")
    return run


def lines(text: str) -> dict[tuple[str, ...], list[str]]:
    """Return the cells of the table's lines by task and row."""
    rows = (line.split("  ") for line in text.splitlines())
    cells = ([cell.strip() for cell in row if cell.strip()] for row in rows)
    return {tuple(row[:2]): row[2:] for row in cells if len(row) == 8}


def test_bench_runs_missing_cells_and_prints_table(
    tmp_path: Path, bench: Callable[..., tuple[int, str]]
) -> None:
    rows = ("expert", "bc", "rl_human", "hg_dagger")
    words = ("--tasks", "peg_insertion", "peg_insertion_6d", "--rows", *rows, "--seeds", "7")
    code, text = bench(*words)
    assert code == 1, "a training failed"
    assert "rl_human/peg_insertion_6d-7: ended with exit code 1: out of luck" in text
    assert "trials of the expert of peg_insertion, seed 7: 1 of 2\n" in text
    table = lines(text)
    assert table["peg_insertion", "expert"][0] == "1"
    assert table["peg_insertion", "expert"][1].startswith("100.0 % (")
    assert table["peg_insertion", "bc"][1].startswith("20.0 % (")
    assert table["peg_insertion", "rl_human"][2:] == ["3.0", "0.1", "2.4", "3.0"]
    assert table["peg_insertion_6d", "rl_human"] == ["0", "-", "-", "-", "-", "-"]
    assert table["peg_insertion_6d", "hg_dagger"][0] == "0", (
        "hg_dagger needs the takeovers of rl_human first"
    )

    code, text = bench(*words)
    assert code == 0
    assert "expert/" not in text
    assert text.count(": finished") == 2, "rl_human and hg_dagger of peg_insertion_6d"
    table = lines(text)
    assert {table["all", row][0] for row in rows} == {"1"}
    assert table["all", "rl_human"][1].startswith("90.0 % (")

    human = RunFolder.open(tmp_path / "out/hg_dagger/peg_insertion-7").config.human
    assert isinstance(human, ScriptedHumanConfig)
    assert human.max_takeovers == 3
    folders = [str(tmp_path / "out" / name) for name in ("bc", "rl_human")]
    factors = ("--factor=agent", "--factor=steps", "--factor=intervention", "--factor=learner")
    assert main(["compare", *folders, *factors, "--factor=human"]) == 0


def test_bench_refuses_expert_result_of_other_settings(
    bench: Callable[..., tuple[int, str]],
) -> None:
    words = ("--tasks", "peg_insertion", "--rows", "expert", "--seeds", "1")
    assert bench(*words)[0] == 0
    code, text = bench(*words, "--task_config.clearance_m=0.001")
    assert code == 2
    assert "peg_insertion-1.json: was made with other settings; give another --out" in text


@pytest.mark.parametrize("task", TASKS)
def test_every_row_has_valid_settings_for_every_task(task: str) -> None:
    for row in ROWS:
        config = run_settings(task, settings_of(task, row, {"steps": 77}), {})
        assert config.steps == (0 if row == "bc" else 77)
        assert config.task_config["perception"]["bias_m"] > 0.002
        assert (config.agent.algorithm == "bc") == (row in ("bc", "hg_dagger"))
        assert (config.demonstrator == "expert") == (task == "whip_block")
        assert (config.intervention == "none") == (row in ("bc", "rl"))
