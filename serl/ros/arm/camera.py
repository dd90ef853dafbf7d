"""Camera topics: raw or compressed images, cut into the views that a task defines."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
from sensor_msgs.msg import CameraInfo, CompressedImage
from sensor_msgs.msg import Image as ImageMessage

from serl.camera import WHOLE, Crop, View, crop_picture
from serl.errors import CorruptData, Silent
from serl.guard.camera_monitor import FrozenDetector
from serl.ros.arm.topics import NEWEST, SENSOR
from serl.ros.conversions import nanoseconds_of
from serl.ros.feed import Feed
from serl.ros.node import RosNode
from serl.ros.topics import Topic
from serl.types import Image
from serl.workspace import CellCamera

_MAX_SIDE_PX = 4096
_MAX_COMPRESSED_BYTES = 16 << 20
_PNG, _JPEG = b"\x89PNG\r\n\x1a\n", b"\xff\xd8"
_JPEG_FRAMES = {0xC0, 0xC1, 0xC2}  # baseline, extended, progressive
_CHANNELS = {"rgb8": 3, "bgr8": 3, "mono8": 1, "rgba8": 4, "bgra8": 4}


def picture_topic(robot: str, camera: str, qos: Any = SENSOR, compressed: bool = False) -> Topic:
    """Return the image topic of a camera; a name with a leading slash is absolute."""
    base = _base(robot, camera)
    if compressed:
        return Topic(f"{base}/image_raw/compressed", CompressedImage, qos)
    return Topic(f"{base}/image_raw", ImageMessage, qos)


def info_topic(robot: str, camera: str, qos: Any = SENSOR) -> Topic:
    """Return the topic of a camera's size and calibration (`CameraInfo`)."""
    return Topic(f"{_base(robot, camera)}/camera_info", CameraInfo, qos)


def _base(robot: str, camera: str) -> str:
    return camera if camera.startswith("/") else f"{robot}/{camera}"


class RosCamera:
    """The newest picture of one camera, cut into views.

    Args:
        topic: see `picture_topic`.
        views: the views cut from this camera's picture, by name.
        oldest_s: age in seconds at which a picture is stale, see `serl.ros.feed.Feed`.
        crop: crop of the picture before any view, as fractions of its size.
        still: whether equal pictures in a row are accepted, as from a simulation.

    Attributes:
        feed: subscription to the pictures.
    """

    def __init__(
        self,
        node: RosNode,
        topic: Topic,
        views: Mapping[str, View],
        oldest_s: float | None,
        crop: Crop = WHOLE,
        still: bool = True,
    ) -> None:
        self._views, self._crop, self._name = views, crop, topic.name
        self._frozen = None if still else FrozenDetector()
        decode = compressed_picture_of if topic.kind is CompressedImage else picture_of

        def check_and_decode(message: Any) -> Image:
            if self._frozen is not None:
                self._frozen.add(bytes(message.data), 1e-9 * nanoseconds_of(message.header.stamp))
            return decode(message)

        self.feed: Feed[Image] = Feed(node, topic, check_and_decode, oldest_s)
        self._cut: tuple[int, dict[str, Image]] = (-1, {})

    def images(self) -> tuple[dict[str, Image], float]:
        """Return the views of the newest picture, and the time in seconds at which it was taken.

        Raises:
            SerlError: there is no picture, it is stale or frozen, or its size differs from the
                one that the views expect.
        """
        sample = self.feed.newest()
        if self._frozen is not None and self._frozen.frozen:
            raise Silent(f"{self._name}: frozen: {self._frozen.count} equal pictures in a row")
        if self._cut[0] != sample.stamp_ns:
            picture = crop_picture(sample.value, self._crop)
            cut = {name: cut_any(view, picture) for name, view in self._views.items()}
            self._cut = (sample.stamp_ns, cut)
        return self._cut[1], sample.taken_s


def cell_camera(
    node: RosNode,
    robot: str,
    camera: str,
    views: Mapping[str, View],
    oldest_s: float | None,
    entry: CellCamera | None = None,
    qos: Any = SENSOR,
    still: bool = True,
) -> RosCamera:
    """Return a cell's camera: by its profile's `entry`, else by its name, relative to the robot."""
    if entry is None:
        topic = picture_topic(robot, camera, qos)
        return RosCamera(node, topic, views, oldest_s, still=still)
    topic = picture_topic(robot, entry.topic, qos, entry.compressed)
    return RosCamera(node, topic, views, oldest_s, entry.crop, still)


class WatchedCameras:
    """The newest uncropped picture of each camera of a cell, for display.

    Compressed pictures are passed on without decoding.

    Args:
        robot: namespace of the arm, for cameras that the profile does not list.
        cameras: entries of the arm's profile by name of the camera; None for one without.
    """

    def __init__(self, node: RosNode, robot: str, cameras: Mapping[str, CellCamera | None]) -> None:
        self._messages: dict[str, Any] = {}
        self.watch(node, robot, cameras)

    def watch(self, node: RosNode, robot: str, cameras: Mapping[str, CellCamera | None]) -> None:
        """Add the cameras of another arm, such as the right one of a pair."""
        for name, entry in cameras.items():
            topic = picture_topic(
                robot, entry.topic if entry else name, NEWEST, bool(entry and entry.compressed)
            )
            node.subscribe(topic, partial(self._messages.__setitem__, name))

    def look(self) -> Mapping[str, Image | bytes]:
        """Return the pictures that arrived since the last call; a damaged one is left out."""
        pictures: dict[str, Image | bytes] = {}
        for name in list(self._messages):
            with suppress(CorruptData):
                pictures[name] = _whole(self._messages.pop(name))
        return pictures

    def close(self) -> None:
        """Do nothing: the subscriptions end with the node."""


def _whole(message: Any) -> Image | bytes:
    """Return a message's picture, RGB or JPEG; raises `CorruptData`."""
    if not isinstance(message, CompressedImage):
        return picture_of(message)
    data = bytes(message.data)
    if data.startswith(_JPEG) and len(data) <= _MAX_COMPRESSED_BYTES:
        return data
    return compressed_picture_of(message)


def cut_any(view: View, picture: Image) -> Image:
    """Return a view of a picture; any picture size is accepted unless `view.capture` fixes it."""
    if view.capture is None:
        height, width, _ = picture.shape
        view = view.model_copy(update={"capture": (width, height)})
    return view.cut(picture)


def picture_of(message: Any) -> Image:
    """Return a raw image message as uint8 (H, W, 3) RGB.

    Raises:
        CorruptData: the encoding is unknown, or the sizes are inconsistent.
    """
    height, width, step = int(message.height), int(message.width), int(message.step)
    if message.encoding not in _CHANNELS:
        known = ", ".join(_CHANNELS)
        raise CorruptData(f"image encoding {message.encoding[:32]!r}: expected one of {known}")
    channels = _CHANNELS[message.encoding]
    if not (0 < height <= _MAX_SIDE_PX and 0 < width <= _MAX_SIDE_PX):
        raise CorruptData(f"image of {width} x {height} pixels: expected 1 to {_MAX_SIDE_PX}")
    if step < width * channels or len(message.data) != step * height:
        raise CorruptData(
            f"image of {width} x {height} {message.encoding}: {len(message.data)} bytes in rows "
            f"of {step}"
        )
    rows = np.frombuffer(message.data, np.uint8).reshape(height, step)
    pixels = rows[:, : width * channels].reshape(height, width, channels)
    if channels == 1:
        return np.repeat(pixels, 3, axis=2)
    order = [2, 1, 0] if message.encoding.startswith("bgr") else [0, 1, 2]
    return np.ascontiguousarray(pixels[:, :, order])


def compressed_picture_of(message: Any) -> Image:
    """Decode a JPEG or PNG message to uint8 (H, W, 3) RGB.

    Raises:
        CorruptData: the image is too large, damaged, or neither JPEG nor PNG.
    """
    import cv2  # takes half a second: imported only where a camera is compressed

    data = bytes(message.data)
    if len(data) > _MAX_COMPRESSED_BYTES:
        raise CorruptData(f"compressed image of {len(data)} bytes")
    width, height = _declared_size(data)  # before anything is allocated for it
    if not (0 < height <= _MAX_SIDE_PX and 0 < width <= _MAX_SIDE_PX):
        raise CorruptData(f"image of {width} x {height} pixels: expected 1 to {_MAX_SIDE_PX}")
    flags = cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION
    try:
        picture = cv2.imdecode(np.frombuffer(data, np.uint8), flags)
    except cv2.error:
        picture = None
    if picture is None:
        raise CorruptData("compressed image: damaged")
    return np.ascontiguousarray(picture[:, :, ::-1], np.uint8)


def _declared_size(data: bytes) -> tuple[int, int]:
    """Return the width and height in the header of a PNG or JPEG."""
    try:
        if data.startswith(_PNG):
            width, height = struct.unpack_from(">II", data, len(_PNG) + 8)
            return width, height
        if data.startswith(_JPEG):
            place = 2
            while True:
                start, marker, length = struct.unpack_from(">BBH", data, place)
                if start != 0xFF or length < 2:
                    break
                if marker in _JPEG_FRAMES:
                    height, width = struct.unpack_from(">HH", data, place + 5)
                    return width, height
                place += 2 + length
    except struct.error:
        raise CorruptData("compressed image: cut") from None
    raise CorruptData("compressed image: expected JPEG or PNG")
