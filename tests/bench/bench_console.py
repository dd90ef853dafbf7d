"""Benchmark of the console: a simulated, operator-driven scene in two views, sent to one page.

    python tests/bench/bench_console.py

The cost is the processor time of the process that draws, compresses and serves the pictures.
"""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import time
from pathlib import Path

import aiohttp
import numpy as np

from serl.console.access import RequestCheck, new_token
from serl.console.backend import Picture
from serl.console.messages import Order
from serl.console.pictures import DrawnScene, Pictures
from serl.console.server import Console, listen
from serl.sim.arm import SimArm
from serl.tasks.pick_cube import PickCube
from serl.teleop.mapping import Wish

SECONDS, RATE_HZ = 20.0, 10.0


def moving_scene() -> DrawnScene:
    """Return the scene of an arm that moves back and forth at 10 steps per second."""
    task = PickCube()
    arm = SimArm(task.scene, task.config)
    arm.reset(0)
    places = []
    for index in range(40):
        action = np.zeros(arm.action_spec.shape, np.float32)
        action[:2] = 1.0 if index < 20 else -1.0
        arm.act(action)
        arm.advance(1.0 / RATE_HZ)
        places.append(arm.placement())
    return DrawnScene(task, lambda: places[int(time.monotonic() * RATE_HZ) % len(places)])


class Cameras:
    """Console backend that provides only images."""

    def __init__(self) -> None:
        self.made = Pictures(moving_scene(), lambda: True)
        self.pictures_asked = False

    def drive(self, operator_input: Wish) -> None:
        """Ignore operator input."""

    async def execute(self, command: str) -> str:
        """Ignore events."""
        return command

    async def obey(self, order: Order) -> str:
        """Ignore requests."""
        return str(order)

    def state(self) -> dict[str, object]:
        """Return a state like an actor's."""
        return {"driver": "policy", "episode": 3, "step": 7, "fresh": True}

    def progress(self) -> dict[str, object]:
        """Return minimal progress."""
        return {"advice": "watch"}

    def pictures(self) -> list[Picture]:
        """Return the newest images."""
        self.pictures_asked = True
        return self.made.newest()

    def film(self, episode: str) -> None:
        """Return None."""

    def report(self) -> Path | None:
        """Return None."""
        return None


async def measure() -> None:
    """Serve one page in a separate process and print the cost."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    token, cameras = new_token(), Cameras()
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
    """Act as a page: send heartbeats at 30 Hz and count images."""
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
    """Run the whole measurement or one of its processes."""
    if sys.argv[1:2] == ["page"]:
        asyncio.run(watch(int(sys.argv[2]), sys.argv[3]))
        return
    asyncio.run(measure())


if __name__ == "__main__":
    main()
