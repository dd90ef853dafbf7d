"""What the console costs: two cameras of 128 px at 15 pictures a second, sent to one page.

    python tests/bench/bench_console.py

The pictures come from a log that another process writes at the same time, as an actor does; the
cost is the processor time of the process that serves them.
"""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import aiohttp
import numpy as np

from serl.console.access import RequestCheck, new_token
from serl.console.backend import Picture
from serl.console.pictures import LoggedCameras, Pictures
from serl.console.server import Console, listen
from serl.log.episode_log import EpisodeLog
from serl.specs import ArraySpec, ObservationSpec, Spec
from serl.teleop.mapping import Wish
from serl.types import ActionSource, End, EndReason, Key, Observation, Step

SECONDS, RATE_HZ, SIZE = 20.0, 15.0, 128
SHADES = np.linspace(0, 255, SIZE, dtype=np.uint8)
SPEC = Spec(
    task="bench",
    observation=ObservationSpec(
        state={"tcp": ArraySpec(shape=(7,))},
        images={
            name: ArraySpec(shape=(SIZE, SIZE, 3), dtype="uint8") for name in ("front", "wrist")
        },
    ),
    action=ArraySpec(shape=(4,), low=-1, high=1),
    rate_hz=RATE_HZ,
)


def write(folder: Path) -> None:
    """Be an actor: a record every 1/15 s, with pictures that change."""
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 12, (SIZE, SIZE, 3), np.uint8)
    base = SHADES[:, None, None] // 2 + SHADES[None, :, None] // 4 + noise
    action = np.zeros(4, np.float32)
    with EpisodeLog(folder, SPEC, "run", "actor0", 1) as log:
        index = episode = 0
        while True:
            image = np.roll(base, 3 * index, axis=1)
            seen = Observation(
                {"tcp": np.zeros(7, np.float32)},
                {"front": image, "wrist": image[::-1].copy()},
                {"robot": 0.0},
            )
            key = Key("run", "actor0", 1, episode, index)
            log.append(
                Step(
                    key,
                    seen,
                    action,
                    action,
                    0.0,
                    "truth",
                    False,
                    False,
                    ActionSource.POLICY,
                    0,
                    0.0,
                    0.0,
                )
            )
            index += 1
            if index == 100:
                end = Key("run", "actor0", 1, episode, index)
                log.append(End(end, seen, False, EndReason.TIME_LIMIT, 0.0, 0.0))
                index, episode = 0, episode + 1
            time.sleep(1 / RATE_HZ)


class Cameras:
    """A backend with nothing but pictures."""

    def __init__(self, folder: Path) -> None:
        self.made = Pictures(LoggedCameras(folder))
        self.pictures_asked = False

    def drive(self, operator_input: Wish) -> None:
        """Nobody drives."""

    async def execute(self, command: str) -> str:
        """Nobody speaks."""
        return command

    async def confirm(self, question: str) -> str:
        """Nothing is asked."""
        return question

    def state(self) -> dict[str, object]:
        """As an actor's."""
        return {"driver": "policy", "episode": 3, "step": 7, "fresh": True}

    def progress(self) -> dict[str, object]:
        """Little."""
        return {"advice": "watch"}

    def pictures(self) -> list[Picture]:
        """The newest."""
        self.pictures_asked = True
        return self.made.newest()

    def report(self) -> Path | None:
        """None."""
        return None


async def measure(folder: Path) -> None:
    """Serve one page, a process of its own, and print what it costs."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    token, cameras = new_token(), Cameras(folder)
    runner = await listen(Console(cameras, RequestCheck(port, token)), port)
    page = await asyncio.create_subprocess_exec(
        sys.executable, __file__, "page", str(port), token, stdout=subprocess.PIPE
    )
    while not cameras.pictures_asked:
        await asyncio.sleep(0.1)
    began_s, cpu_s = time.monotonic(), time.process_time()
    await asyncio.sleep(SECONDS)
    spent_s, passed_s = time.process_time() - cpu_s, time.monotonic() - began_s
    said, _ = await page.communicate()
    print(f"console: {spent_s / passed_s:.1%} of one core, for a page that saw {said.decode()}")
    cameras.made.close()
    await runner.cleanup()


async def watch(port: int, token: str) -> None:
    """Be a page: beat at 30 Hz, and count pictures."""
    async with aiohttp.ClientSession() as client:
        own = f"http://127.0.0.1:{port}"
        socket_ = await client.ws_connect(f"{own}/socket", headers={"Origin": own})
        await socket_.send_json({"token": token})
        await socket_.send_json({"type": "take"})
        beat = json.dumps({"type": "drive", "motion": [0.0] * 7, "hands": False})
        pictures = size = 0
        began_s = beat_s = time.monotonic()
        while time.monotonic() - began_s < SECONDS:
            if time.monotonic() > beat_s:
                beat_s += 1 / 30
                await socket_.send_str(beat)
            message = await socket_.receive()
            if message.type is aiohttp.WSMsgType.BINARY:
                pictures, size = pictures + 1, size + len(message.data)
        passed_s = time.monotonic() - began_s
        print(f"{pictures / passed_s:.1f} pictures/s of {size / max(pictures, 1) / 1e3:.1f} kB")


def main() -> None:
    """The whole measurement, or one of its processes."""
    if sys.argv[1:2] == ["page"]:
        asyncio.run(watch(int(sys.argv[2]), sys.argv[3]))
        return
    if sys.argv[1:2] == ["write"]:
        write(Path(sys.argv[2]))
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "actor0"
        writer = subprocess.Popen([sys.executable, __file__, "write", str(folder)])
        try:
            asyncio.run(measure(folder))
        finally:
            writer.terminate()
            writer.wait()


if __name__ == "__main__":
    main()
