"""Training runs of benchmarks: each command runs once and its result is stored with the runs."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from serl.runs.folder import RunFolder

BAD_INPUT, INTERRUPTED = 2, 130

Result = dict[str, Any]


def train_once(
    out: Path, arguments: Sequence[str], labels: Result, summary: Callable[[RunFolder], Result]
) -> Result:
    """Return the recorded result of `serl train` with these arguments; run it if there is none.

    A refusal or a Ctrl-C of the training ends the bench; any other error is part of the result.

    Args:
        out: folder of all runs and of `results.jsonl`.
        arguments: arguments of the training.
        labels: what the result is called in the bench.
        summary: measures a run; "successes" is None if the run has no final trials.
    """
    path = out / "results.jsonl"
    for line in path.read_text().splitlines() if path.exists() else []:
        if (known := json.loads(line))["arguments"] == arguments:
            return dict(known)
    print(f"serl train {' '.join(arguments)}", file=sys.stderr, flush=True)
    out.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "serl.cli.main", "train", *arguments, "--runs", str(out)]
    start_s = time.monotonic()
    ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    seconds = time.monotonic() - start_s
    if ended.returncode in (BAD_INPUT, INTERRUPTED):
        print(ended.stdout, file=sys.stderr)
        raise SystemExit(ended.returncode)
    lines = [line for line in ended.stdout.splitlines() if line.strip()]
    runs = [line.removeprefix("run: ") for line in lines if line.startswith("run: ")]
    measured = summary(RunFolder.open(Path(runs[0]))) if runs else {}
    error = "" if measured.get("successes") is not None else lines[-1] if lines else "no output"
    ending = {"exit": ended.returncode, "seconds": seconds, "error": error}
    result = {**labels, "arguments": arguments, **ending, "run": "".join(runs[:1]), **measured}
    with path.open("a") as file:
        file.write(json.dumps(result) + "\n")
    return result
