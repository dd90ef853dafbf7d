"""Benchmark of demonstrations through the console by a scripted browser user.

    python tests/bench/bench_person.py [--demos 20] [--seeds 0 1] [--out runs/person]

A headless Chromium opens the page of `serl record pick_cube --console` and drives with a scripted
gamepad; page, heartbeats, DDS, arbitration and log are real. Then `serl train` learns from the
recording, once per seed, as from an expert's, and the final trials are counted.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from serl.console.access import ConsoleAddress, read_address
from serl.datasets.person import ACTOR
from serl.datasets.recording_session import Recording
from serl.errors import SerlError
from serl.log.episode_reader import PART, EpisodeFile, episode_paths
from serl.runs.folder import RunFolder
from serl.runs.task_setup import make_task
from serl.task import TaskConfig
from serl.types import Observation
from tests.console.browser import CHROMIUM, Page, browser

START_LIMIT_S = 180.0
LOOK_S, REST_S = 0.1, 0.5
HOVER_M, LIFT_M, GAIN = 0.065, 0.13, 0.35
DEAD_ZONE = 0.1
WINDOW = {"width": 1280, "height": 740, "deviceScaleFactor": 1, "mobile": False}
PAD = """
window.pad = { id: 'Gamepad (standard)', connected: true, mapping: 'standard', axes: [0, 0, 0, 0],
  buttons: [...Array(17)].map(() => ({ pressed: false, value: 0 })) };
navigator.getGamepads = () => [window.pad];
window.hold = (axes, opens, closes, hands) => {
  window.pad.axes = axes;
  window.pad.buttons[5].pressed = hands;
  window.pad.buttons[7].value = opens;
  window.pad.buttons[6].value = closes;
};
"""


class Eyes:
    """Reader of the newest observation of the running episode."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file: EpisodeFile | None = None
        self._seen: Observation | None = None

    def look(self) -> Observation | None:
        """Return the newest observation, or None while no episode runs."""
        with suppress(SerlError, OSError):
            paths = [path for path in episode_paths(self._folder) if path.name.endswith(PART)]
            if not paths:
                self._leave()
                return None
            if self._file is None or self._file.path != paths[-1]:
                self._leave()
                self._file = EpisodeFile(paths[-1])
            newest = None
            while (message := self._file.next_message()) is not None:
                newest = message
            if newest is not None:
                self._seen = self._file.record(newest).observation
        return self._seen

    def _leave(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file = self._seen = None


class Picker:
    """Pick-cube policy that acts on logged observations instead of the simulator's truth."""

    def __init__(self, config: TaskConfig, gain: float) -> None:
        self._motion, self._gain = config.motion, gain
        self._closing = 0

    def __call__(self, seen: Observation) -> tuple[list[float], float]:
        """Return motion along x, y, z and yaw, each in [-1, 1], and the gripper command."""
        state = {name: np.asarray(value, np.float64) for name, value in seen.state.items()}
        shift, turn = state["cube_from_tcp"].copy(), float(state["cube_yaw"][0])
        off = math.hypot(shift[0], shift[1]) + 0.05 * abs(turn)
        near = off < 0.008 and abs(shift[2]) < 0.012
        self._closing = self._closing + 1 if near or self._closing > 5 else 0
        if self._closing > 8:
            height = max(0.0, LIFT_M - float(state["cube_height"][0]))
            return [0.0, 0.0, min(1.0, height / self._motion.translation_m), 0.0], -1.0
        if self._closing:
            return [0.0, 0.0, 0.0, 0.0], -1.0
        shift[2] += HOVER_M * min(1.0, max(0.0, (off - 0.006) / 0.012))
        steps = (shift - state["lead"]) / self._motion.translation_m * self._gain
        steps /= max(1.0, float(np.abs(steps).max()))
        yaw = min(1.0, max(-1.0, self._gain * turn / self._motion.rotation_rad))
        return [*steps.tolist(), yaw], 1.0


async def record(
    door: ConsoleAddress,
    run: RunFolder,
    process: subprocess.Popen[bytes],
    folder: Path,
    gain: float,
    picture: Path | None,
) -> None:
    """Act as the operator until the recording is over, or the page is photographed.

    Args:
        picture: PNG file of the page while the fourth cube is held; None for none.
    """
    config, eyes = make_task(run.config).config, Eyes(run.episodes(ACTOR))
    picker, driving, done = Picker(config, gain), False, 0
    async with browser(folder) as page:
        await page.call("Emulation.setDeviceMetricsOverride", **WINDOW)
        await page.call("Emulation.setScrollbarsHidden", hidden=True)
        await page.open(door.url)
        await page.run(PAD)
        await page.unlock(door.token)
        await page.until("!document.getElementById('session').hidden")
        await page.take()
        while process.poll() is None:
            seen = eyes.look()
            if seen is None and driving:  # episode ended: release, so that the next can begin
                picker, driving, done = Picker(config, gain), False, done + 1
                await hold(page, [0.0] * 4, 0.0, False)
                await asyncio.sleep(REST_S)
            elif seen is None:
                await hold(page, [0.0] * 4, 0.0, True)
                driving = True
                await asyncio.sleep(REST_S)
            else:
                await hold(page, *picker(seen), True)
                if picture and done >= 3 and seen.state["cube_height"][0] > LIFT_M / 3:
                    await hold(page, [0.0] * 4, -1.0, True)
                    await asyncio.sleep(REST_S)
                    await page.shoot(picture, dark=False)
                    return
            await asyncio.sleep(LOOK_S)


async def hold(page: Page, motion: list[float], gripper: float, hands: bool) -> None:
    """Set the gamepad's axes and buttons; sticks have a dead zone."""
    x, y, z, yaw = (
        math.copysign(DEAD_ZONE + (1 - DEAD_ZONE) * abs(m), m) if m else 0.0 for m in motion
    )
    axes = json.dumps([-y, -x, -yaw, -z])
    await page.run(f"hold({axes}, {max(0.0, gripper)}, {max(0.0, -gripper)}, {json.dumps(hands)})")


def demonstrate(
    out: Path, demos: int, gain: float, settings: list[str], picture: Path | None = None
) -> RunFolder:
    """Run `serl record` with the scripted operator at its page; see `record`."""
    words = ["record", "pick_cube", "--console", "--demos", str(demos), "--out", str(out)]
    process = subprocess.Popen([sys.executable, "-m", "serl.cli.main", *words, *settings])
    begin_s = time.monotonic()
    try:
        while (door := read_address(out)) is None:
            assert process.poll() is None, "serl record ended"
            assert time.monotonic() - begin_s < START_LIMIT_S, "no console"
            time.sleep(0.1)
        run = RunFolder.open(out)
        profile = out.parent / f"{out.name}.chromium"
        asyncio.run(record(door, run, process, profile, gain, picture))
    finally:
        if process.poll() is None:
            process.terminate()
        process.wait(60.0)
    counts = Recording(run.path, run.episodes(ACTOR)).counts
    print(f"{counts.kept} kept, {counts.failures} failures, {time.monotonic() - begin_s:.0f} s")
    return run


def main() -> None:
    """Record missing demonstrations, then train."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--demos", type=int, default=20)
    parser.add_argument("--gain", type=float, default=GAIN, help="less where the machine is late")
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1])
    parser.add_argument("--out", type=Path, default=Path("runs/person"))
    options, settings = parser.parse_known_args()
    if CHROMIUM is None:
        raise SystemExit("there is no Chromium")
    options.out.mkdir(parents=True, exist_ok=True)
    run = demonstrate(options.out / "demonstrations", options.demos, options.gain, settings)
    for seed in options.seeds:
        words = ["train", "pick_cube", f"--demos={run.path}", f"--seed={seed}"]
        command = [sys.executable, "-m", "serl.cli.main", *words, "--runs", str(options.out)]
        print(f"seed {seed}: exit code {subprocess.run(command).returncode}", flush=True)


if __name__ == "__main__":
    main()
