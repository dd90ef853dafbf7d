"""Benchmark of the console's pictures: size, rate and cost, for one page.

    python tests/bench/bench_console.py              # a simulated scene, then a camera at 30 Hz
    python tests/bench/bench_console.py --run RUN    # a run in progress with --console

A page watches, then one drives. The cost is the processor time of the process that draws,
compresses and serves the pictures; of a run it is not measured.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path

import aiohttp
import numpy as np
from PIL import Image

from serl.console.access import RequestCheck, new_token, read_address
from serl.console.backend import Picture
from serl.console.messages import Order
from serl.console.pictures import DrawnScene, Pictures, PictureSource
from serl.console.server import Console, listen
from serl.ros.arm.camera import WatchedCameras, picture_topic
from serl.ros.conversions import image_message
from serl.ros.environment import free_domain
from serl.ros.node import RosNode
from serl.sim.arm import SimArm
from serl.tasks.pick_cube import PickCube
from serl.teleop.mapping import AXES, Wish

SECONDS, WARM_UP_S = 15.0, 3.0
RATE_HZ, CAMERA_HZ, CAMERA_PX = 10.0, 30.0, (640, 480)


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


@contextmanager
def camera_over_ros() -> Iterator[WatchedCameras]:
    """Publish noisy raw pictures at 30 Hz in another process; yield the source that shows them."""
    with tempfile.TemporaryDirectory() as folder, free_domain() as domain:
        os.environ["ROS_DOMAIN_ID"] = str(domain.id)
        publisher = subprocess.Popen([sys.executable, __file__, "--camera", folder])
        try:
            with RosNode("viewer", Path(folder), local=True) as node:
                yield WatchedCameras(node, "", {"front": None})
        finally:
            publisher.kill()
            publisher.wait()


def publish(folder: Path) -> None:
    """Act as the driver of a camera."""
    width, height = CAMERA_PX
    noise = np.random.default_rng(0).integers(90, 130, (8, height, width, 3), np.uint8)
    with RosNode("camera", folder, local=True) as node:
        images, began_s = node.publisher(picture_topic("", "front")), time.monotonic()
        while not node.stopping:
            number = int((time.monotonic() - began_s) * CAMERA_HZ) + 1
            time.sleep(max(0.0, began_s + number / CAMERA_HZ - time.monotonic()))
            images.publish(image_message(noise[number % 8], "front", time.time_ns()))


class Cameras:
    """Console backend that provides only images."""

    def __init__(self, source: PictureSource) -> None:
        self.driven = False
        self.made = Pictures(source, lambda: self.driven)

    def drive(self, operator_input: Wish) -> None:
        """Note whether hands are on."""
        self.driven = operator_input.hands

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
        return self.made.newest()

    def film(self, episode: str) -> None:
        """Return None."""

    def report(self) -> Path | None:
        """Return None."""
        return None


async def serve(name: str, source: PictureSource) -> None:
    """Serve pictures to a page in another process, and print what it saw and the cost."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    token, cameras = new_token(), Cameras(source)
    runner = await listen(Console(cameras, RequestCheck(port, token)), port)
    for drives in (False, True):
        page = await asyncio.create_subprocess_exec(
            *(sys.executable, __file__, "--page", f"http://127.0.0.1:{port}", token),
            *(["--drive"] if drives else []),
            stdout=subprocess.PIPE,
        )
        began_s, cpu_s = time.monotonic(), time.process_time()
        seen, _ = await page.communicate()
        share = (time.process_time() - cpu_s) / (time.monotonic() - began_s)
        print(f"{name}, {_mode(drives)}: {seen.decode().strip()}; {share:.0%} of one core")
    cameras.made.close()
    await runner.cleanup()


def _mode(drives: bool) -> str:
    return "driven" if drives else "watched"


async def look(url: str, token: str, drives: bool) -> str:
    """Act as a page, which sends heartbeats at 30 Hz if it drives; return what it saw."""
    times, jpegs = defaultdict[str, list[float]](list), dict[str, bytes]()
    async with aiohttp.ClientSession() as client:
        page = await client.ws_connect(f"{url}/socket", headers={"Origin": url}, max_msg_size=0)
        await page.send_json({"token": token})
        if drives:
            await page.send_json({"type": "take"})
        start_s = beat_s = time.monotonic()
        while (now_s := time.monotonic()) < start_s + WARM_UP_S + SECONDS:
            if drives and now_s > beat_s:
                beat_s = now_s + 1 / 30
                await page.send_str(_drive(0.3 if int(now_s / 2) % 2 else -0.3))
            message = await page.receive()
            if message.type is aiohttp.WSMsgType.BINARY:
                name = message.data[1 : 1 + message.data[0]].decode()
                jpegs[name] = message.data[1 + message.data[0] :]
                if time.monotonic() > start_s + WARM_UP_S:
                    times[name].append(time.monotonic())
            elif message.type is not aiohttp.WSMsgType.TEXT:
                return f"the console closed the page after {now_s - start_s:.1f} s"
        if drives:  # hand back: the robot would hold after a page that fell silent
            await page.send_str(_drive(0.0))
            await page.send_json({"type": "give"})
    if not times:
        return "no pictures"
    return "; ".join(_described(name, seen_s, jpegs[name]) for name, seen_s in times.items())


def _drive(push: float) -> str:
    """Return a heartbeat that pushes to the left; with hands off for 0."""
    motion = [0.0, push, *[0.0] * (len(AXES) - 2)]
    return json.dumps({"type": "drive", "motion": motion, "hands": bool(push)})


def _described(name: str, seen_s: list[float], jpeg: bytes) -> str:
    """Return size and rate of a camera's pictures, and the least number in any second."""
    width, height = Image.open(BytesIO(jpeg)).size
    whole = [at for at in seen_s if at + 1.0 <= seen_s[-1]]
    least = min((sum(at <= each < at + 1.0 for each in seen_s) for at in whole), default=0)
    rate = f"{len(seen_s) / SECONDS:.1f}/s, at least {least} in any second"
    return f"{name} {width}x{height} {rate}, {len(jpeg) / 1e3:.0f} kB"


def of_run(run: Path) -> None:
    """Measure the page of a run in progress."""
    address = read_address(run)
    if address is None:
        raise SystemExit(f"{run}: has no console: start it with --console")
    for drives in (False, True):
        seen = asyncio.run(look(address.url.rstrip("/"), address.token, drives))
        print(f"run, {_mode(drives)}: {seen}", flush=True)


def main() -> None:
    """Run the whole measurement or one of its processes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", type=Path)
    parser.add_argument("--page", nargs=2, metavar=("URL", "TOKEN"), help="act as a page")
    parser.add_argument("--drive", action="store_true", help="the page drives")
    parser.add_argument("--camera", type=Path, metavar="FOLDER", help="act as a camera's driver")
    options = parser.parse_args()
    if options.run:
        of_run(options.run)
    elif options.camera:
        publish(options.camera)
    elif options.page:
        url, token = options.page
        print(asyncio.run(look(url, token, options.drive)))
    else:
        asyncio.run(serve("scene", moving_scene()))
        with camera_over_ros() as source:
            asyncio.run(serve("camera", source))


if __name__ == "__main__":
    main()
