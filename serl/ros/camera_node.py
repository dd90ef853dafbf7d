"""A camera as a node: it publishes what a source gives, cut and resized, with its CameraInfo."""

from __future__ import annotations

import time
from collections.abc import Callable

from pydantic import BaseModel, ConfigDict, Field
from sensor_msgs.msg import CameraInfo, CompressedImage

from serl.camera import View
from serl.images import compress
from serl.ros.camera import cut_any, info_topic, picture_topic
from serl.ros.conversions import image_message
from serl.ros.node import RosNode
from serl.types import Image
from serl.usb_camera import Lasting

_IDLE_S = 0.1


class PublishConfig(BaseModel):
    """How pictures are published.

    Attributes:
        frame: of their headers; by REP-103 one of an optical axis.
        view: what of a frame is published, at which size; None for all of it.
        jpeg: quality of a `CompressedImage`; None publishes raw images.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    frame: str = Field(min_length=1, max_length=128)
    view: View | None = None
    jpeg: int | None = Field(None, ge=1, le=100)


class CameraNode:
    """Publishes frames as they come; a stamp is when its frame was there.

    Args:
        node: the process's node.
        robot: the namespace.
        camera: the name, as views call it.
        config: see `PublishConfig`.

    Attributes:
        frames: published so far.
    """

    def __init__(self, node: RosNode, robot: str, camera: str, config: PublishConfig) -> None:
        self.frames = 0
        self._config, self._clock = config, node.handle.get_clock()
        compressed = config.jpeg is not None
        self._pictures = node.publisher(picture_topic(robot, camera, compressed=compressed))
        self._infos = node.publisher(info_topic(robot, camera))

    def run(self, source: Lasting, stopping: Callable[[], bool]) -> None:
        """Publish until told to stop.

        Raises:
            FilmEnded: it was a film, and is over.
        """
        try:
            while not stopping():
                frame = source.read()
                if frame is None:
                    time.sleep(_IDLE_S)
                else:
                    self.publish(frame)
        finally:
            source.close()

    def publish(self, frame: Image) -> None:
        """Publish a frame, uint8 (H, W, 3) RGB, that was taken now."""
        stamp_ns, view = self._clock.now().nanoseconds, self._config.view
        picture = frame if view is None else cut_any(view, frame)
        image = image_message(picture, self._config.frame, stamp_ns)
        height, width, _ = picture.shape
        self._infos.publish(CameraInfo(header=image.header, height=height, width=width))
        if self._config.jpeg is None:
            self._pictures.publish(image)
        else:
            message = CompressedImage(header=image.header, format="jpeg")
            message.data.frombytes(
                compress(picture.tobytes(), picture.shape, "jpeg", self._config.jpeg)
            )
            self._pictures.publish(message)
        self.frames += 1
