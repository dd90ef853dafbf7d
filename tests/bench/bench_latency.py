"""Benchmark of latency from a key press in a browser to the executed action in simulation.

    python tests/bench/bench_latency.py [--presses 30]

A headless Chromium opens the page of a `serl record` with an endless task. The page records each
key press (`performance.timeOrigin` + `event.timeStamp`, the clock of this machine); the log gives
the time of the first human action in that direction. Up to one control period of the latency is
the wait for the next step.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from serl.console.access import ConsoleAddress, read_address
from serl.datasets.person import ACTOR
from serl.datasets.recording_session import FAILURES
from serl.log.episode_reader import episode_paths, read_records
from serl.runs.folder import RunFolder
from serl.runs.task_setup import make_spec, make_task
from serl.types import ActionSource, Step
from tests.console.browser import CHROMIUM, Page, browser

KEYS = ("KeyD", "KeyA")
HELD_S = 0.5
START_LIMIT_S = 120.0
NOTE = """
window.downs = [];
window.addEventListener('keydown', (event) => {
  if (!event.repeat && (event.code === 'KeyD' || event.code === 'KeyA'))
    window.downs.push([event.code, (performance.timeOrigin + event.timeStamp) / 1000]);
}, true);
"""


async def press(door: ConsoleAddress, folder: Path, presses: int) -> list[tuple[str, float]]:
    """Drive left and right in turns; return keys and wall times of the presses, s."""
    async with browser(folder) as page:
        await page.open(door.url)
        await page.unlock(door.token)
        await page.until("!document.getElementById('session').hidden")
        await page.take()
        await asyncio.sleep(1.0)
        await page.run(NOTE)
        await _begin(page)
        for number in range(presses):
            await page.key(KEYS[number % 2])
            await asyncio.sleep(HELD_S * (1 + number % 7 / 20))  # at any phase of the control loop
            await page.key(KEYS[number % 2], "keyUp")
        found = await page.run("window.downs")
        return [(code, float(wall_s)) for code, wall_s in found]


async def _begin(page: Page) -> None:
    """Start the episode and take over; the space key holds the robot still."""
    await page.key("Space")
    await page.says("You drive")


def latencies_s(downs: Sequence[tuple[str, float]], steps: Sequence[Step]) -> list[float]:
    """Return the latency of each press that reversed the motion, s."""
    found = []
    for code, down_s in downs:
        sign = -1 if code == "KeyD" else 1  # y is to the left
        after = [
            step.wall_s - down_s
            for step in steps
            if step.wall_s > down_s
            and step.source is ActionSource.HUMAN
            and sign * step.action[1] > 0
        ]
        if after:
            found.append(min(after))
    return found


def main() -> None:
    """Record, press keys and read the latencies from the log."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--presses", type=int, default=30)
    options, settings = parser.parse_known_args()
    if CHROMIUM is None:
        raise SystemExit("there is no Chromium")
    with tempfile.TemporaryDirectory() as name:
        out = Path(name) / "demos"
        words = ["record", "reach", "--console", "--out", str(out), "--reward.kind=human"]
        limit = f"--task_config.time_limit_s={60 + 2 * options.presses}"
        command = [sys.executable, "-m", "serl.cli.main", *words, limit, *settings]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=dict(os.environ))
        try:
            deadline_s = time.monotonic() + START_LIMIT_S
            while (door := read_address(out)) is None:
                assert process.poll() is None, "serl record ended"
                assert time.monotonic() < deadline_s, "no console"
                time.sleep(0.1)
            downs = asyncio.run(press(door, Path(name) / "chromium", options.presses))
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(30.0)
        run = RunFolder.open(out)
        spec = make_spec(make_task(run.config))
        paths = [p for f in (out / FAILURES, run.episodes(ACTOR)) for p in episode_paths(f)]
        steps = [record for record in read_records(paths, spec) if isinstance(record, Step)]
    times_ms = 1e3 * np.array(latencies_s(downs, steps))
    p50, p95 = np.percentile(times_ms, [50, 95])
    print(
        f"key to executed action: p50 {p50:.0f} ms, p95 {p95:.0f} ms, "
        f"worst {times_ms.max():.0f} ms, {len(times_ms)} of {len(downs)} presses at "
        f"{spec.rate_hz:g} Hz"
    )


if __name__ == "__main__":
    main()
