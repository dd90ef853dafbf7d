"""The camera step of an arm's commissioning: find, check, name and crop a cell's cameras."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np

from serl.camera import WHOLE, Crop, crop_picture
from serl.errors import SerlError
from serl.log.images import compress
from serl.ros.arm.camera import compressed_picture_of, picture_of, picture_topic
from serl.ros.arm.measurements import IMAGE_AGE_S
from serl.ros.feed import Feed
from serl.ros.node import RosNode
from serl.ros.setup.checks import (
    SessionLeft,
    StepFailed,
    ask_yes_no,
    check_rate,
    parse_crop,
    rate_of,
)
from serl.ros.setup.session import SetupSession, arrival_times
from serl.system.files import write_atomic
from serl.types import Image
from serl.workspace import CellCamera

LEAST_HZ = 8.0
"""Least rate of a camera: a picture that arrives 75 ms after it was taken is then replaced before
it is `IMAGE_AGE_S` old."""
_ENDS = {"/image_raw/compressed": True, "/image_raw": False}
_TYPES = {"sensor_msgs/msg/Image", "sensor_msgs/msg/CompressedImage"}
_NAME = re.compile(r"[a-z][a-z0-9_]{0,31}")
_LIMIT_S, _ENOUGH = 10.0, 15
_DARKEST = 8
_SHOW_S, _FROZEN_S = 0.5, 2.0


def cameras(session: SetupSession) -> str:
    """Check each publishing camera, ask for its name and its crop; returns names and rates."""
    found = published(session.node)
    if found.pop("", None) is not None:
        session.asker.show(
            "  /image_raw is left out: give its driver a namespace: --ros-args -r __ns:=/front"
        )
    if not found:
        raise StepFailed(
            "no camera publishes in a namespace: start one with `serl camera`, or skip this step"
        )
    kept: dict[str, CellCamera] = {}
    for base, compressed in found.items():
        try:
            _keep(session, base, compressed, kept)
        except SessionLeft:
            raise
        except SerlError as error:
            raise StepFailed(f"camera {base}: {error}") from None
    session.profile = session.profile.model_copy(update={"cameras": kept})
    rates = (f"{name} {camera.rate_hz:.0f} Hz" for name, camera in kept.items())
    return ", ".join(rates) or "none was kept"


def published(node: RosNode) -> dict[str, bool]:
    """Return the base topics of images, with True where only compressed ones are published."""
    found: dict[str, bool] = {}
    for topic, types in node.handle.get_topic_names_and_types():
        for end, compressed in _ENDS.items():
            if topic.endswith(end) and _TYPES & set(types):
                base = topic.removesuffix(end)
                found[base] = compressed and found.get(base, True)
    return dict(sorted(found.items()))


def _keep(session: SetupSession, base: str, compressed: bool, kept: dict[str, CellCamera]) -> None:
    """Ask for a camera's name and crop, and check its pictures, unless it is to be left out."""
    if not (name := _name(session, base, kept)):
        return
    with closing(_CameraUnderTest(session, base, compressed)) as tested:
        rate_hz = tested.rate_hz()
        check_rate(base, rate_hz, LEAST_HZ)
        tested.check_alive()
        height, width, _ = tested.picture().shape
        session.asker.show(f"  {base}: {width} x {height}, {rate_hz:.0f} Hz")
        crop = _chosen_crop(session, tested, name)
    kept[name] = CellCamera(topic=base, compressed=compressed, crop=crop, rate_hz=round(rate_hz, 1))


def _chosen_crop(session: SetupSession, tested: _CameraUnderTest, name: str) -> Crop:
    """Ask for a camera's crop until the person confirms it."""
    path = session.out.with_name(f"{session.out.stem}.{name}.png")
    while True:
        crop = _crop(session, tested, name, path)
        if ask_yes_no(
            session.asker, f"cameras.{name}.good", f"{path}: is this the part that tasks need?"
        ):
            return crop


def _name(session: SetupSession, base: str, kept: dict[str, CellCamera]) -> str:
    """Ask for a camera's name that is not taken; empty to leave the camera out."""
    usual = base.rpartition("/")[2].lower()
    question = f"{base}: its name, as views call it, or - to leave it out"
    while True:
        answer = session.asker.ask(f"cameras{base}", f"{question} [{usual}]") or usual
        if answer == "-":
            return ""
        if answer in kept:
            session.asker.show(f"{answer}: is another camera's name")
        elif _NAME.fullmatch(answer):
            return answer
        else:
            session.asker.show(f"{answer!r}: expected lower-case letters, digits and _")


def _crop(session: SetupSession, tested: _CameraUnderTest, name: str, path: Path) -> Crop:
    """Ask for a camera's crop, while a PNG file shows the live picture."""
    session.asker.show(f"{path} shows the camera live in a viewer that reloads; Enter continues")
    tested.show(path, lambda: session.asker.pressed(f"cameras.{name}.live"))
    while True:
        text = session.asker.ask(
            f"cameras.{name}.crop", "Crop as left,top,right,bottom, 0 to 1; Enter for all of it"
        )
        try:
            crop = parse_crop(text)
            tested.save(path, crop)
            return crop
        except StepFailed as error:
            session.asker.show(str(error))


class _CameraUnderTest:
    """A camera's subscription, with the checks of its pictures."""

    def __init__(self, session: SetupSession, base: str, compressed: bool) -> None:
        self._node, self._asker = session.node, session.asker
        self._remote = session.arm.driver.remote
        self._topic = picture_topic("", base, compressed=compressed)
        decode = compressed_picture_of if compressed else picture_of
        self._feed: Feed[Image] = Feed(session.node, self._topic, decode, IMAGE_AGE_S)
        self.close = self._feed.close

    def rate_hz(self) -> float:
        with arrival_times(self._node, {"camera": self._topic}) as times:
            self._remote.wait(lambda: len(times["camera"]) >= _ENOUGH, _LIMIT_S)
        return rate_of(times["camera"])

    def picture(self) -> Image:
        """Return the newest picture; raises `Silent` when it stays older than 200 ms."""
        self._remote.wait(lambda: self._feed.is_fresh, _LIMIT_S)
        return self._feed.newest().value

    def check_alive(self) -> None:
        """Raise `StepFailed` for a camera with black or frozen pictures."""
        first = self.picture()
        if int(first.max()) <= _DARKEST:
            raise StepFailed("black: is its cover on?")
        stamp_ns = self._feed.stamp_ns

        def changed() -> bool:
            return self._feed.stamp_ns != stamp_ns and not np.array_equal(first, self.picture())

        if self._remote.wait(changed, _FROZEN_S):
            return
        question = f"its pictures are equal to the bit for {_FROZEN_S:g} s. Is it a simulated one?"
        if not ask_yes_no(self._asker, "cameras.simulated", question):
            raise StepFailed("frozen: its pictures are equal to the bit")

    def show(self, path: Path, until: Callable[[], bool]) -> None:
        """Update a PNG of the camera's picture until `until` returns True."""
        while not (until() or self._node.stopping):
            self.save(path)
            self._remote.wait(lambda: False, _SHOW_S)

    def save(self, path: Path, crop: Crop = WHOLE) -> None:
        """Write the camera's current picture as a PNG, cropped."""
        part = np.ascontiguousarray(crop_picture(self.picture(), crop))
        write_atomic(path, compress(part.tobytes(), part.shape, "png", 0))
