"""Benchmark of the control loop with and without a console page open in a browser.

    python tests/bench/bench_periods.py [--steps 400] [--rounds 2]

In turns `serl train reach --robot sim`, in real time, without a console and with one that a
headless Chromium looks at; how many of the actor's control periods began late, by over a tenth of
a period.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from serl.console.access import read_address
from tests.console.browser import CHROMIUM, browser

_LATE = re.compile(r"([\d,]+) of ([\d,]+) control periods began late")
_START_LIMIT_S = 120.0


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=400, help="of each training")
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    if CHROMIUM is None:
        raise SystemExit("there is no Chromium")
    late, periods = Counter[bool](), Counter[bool]()
    for _ in range(options.rounds):
        for watched in (False, True):
            with tempfile.TemporaryDirectory() as folder:
                found = asyncio.run(train(Path(folder), options.steps, watched))
            late[watched] += found[0]
            periods[watched] += found[1]
    print("| console | control periods | began late | share |\n|---|---|---|---|")
    for watched, name in ((False, "none"), (True, "open in Chromium, with pictures")):
        share = late[watched] / periods[watched]
        print(f"| {name} | {periods[watched]:,} | {late[watched]:,} | {share:.2%} |")


async def train(folder: Path, steps: int, watched: bool) -> tuple[int, int]:
    """Train; return the numbers of late and of all control periods."""
    words = ["train", "reach", "--robot=sim", f"--steps={steps}", "--demos=2", "--trials=1"]
    words += ["--selection_trials=1", "--selection_checkpoints=1", f"--runs={folder}"]
    words += ["--console"] if watched else []
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "serl.cli.main",
        *words,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    watching = asyncio.create_task(_watch(folder)) if watched else None
    output, _ = await process.communicate()
    if watching is not None:
        watching.cancel()
        await asyncio.wait([watching])
        if not watching.cancelled():
            watching.result()  # raise the browser's error, if any
    if (match := _LATE.search(output.decode())) is None:
        raise SystemExit(output.decode())
    late, periods = (int(number.replace(",", "")) for number in match.groups())
    return late, periods


async def _watch(folder: Path) -> None:
    """Keep the page open until cancelled."""
    deadline_s = time.monotonic() + _START_LIMIT_S
    while not (doors := [d for run in folder.glob("*/*") if (d := read_address(run))]):
        assert time.monotonic() < deadline_s, "no console"
        await asyncio.sleep(0.1)
    with tempfile.TemporaryDirectory() as profile:
        async with browser(Path(profile)) as page:
            await page.open(doors[0].url)
            await page.unlock(doors[0].token)
            await asyncio.Event().wait()


if __name__ == "__main__":
    main()
