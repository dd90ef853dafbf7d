"""A camera node: publishes the frames of a source, cropped and resized, with their CameraInfo.

While its node is not active the device is closed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from diagnostic_msgs.msg import DiagnosticStatus
from pydantic import Field
from sensor_msgs.msg import CameraInfo, CompressedImage

from serl.camera import WHOLE, View
from serl.log.images import compress
from serl.ros.arm.camera import cut_any, info_topic, picture_topic
from serl.ros.conversions import image_message
from serl.ros.node import RosNode
from serl.ros.parameters import DescribedParameter
from serl.ros.telemetry import WELL, Diagnostics, Health
from serl.system.cameras import ReconnectingCamera
from serl.types import FrozenModel, Image

_IDLE_S = 0.1


class PublishConfig(FrozenModel):
    """Settings for the publication of pictures.

    Attributes:
        frame: frame id of the headers; by REP-103 an optical frame.
        view: crop and size of the published picture; None publishes the whole frame.
        jpeg: quality of a `CompressedImage`; None publishes raw images.
    """

    frame: str = Field(min_length=1, max_length=128)
    view: View | None = None
    jpeg: int | None = Field(None, ge=1, le=100)


def describe(source: str, config: PublishConfig, fixed: str = "") -> dict[str, DescribedParameter]:
    """Return the node's parameters that describe a camera's pictures.

    Args:
        source: source of the pictures.
        config: settings of their publication.
        fixed: fixed exposure, gain and white balance, as text.
    """
    view = config.view
    size = "its own size" if view is None else f"{view.width}x{view.height}"
    return {
        "source": DescribedParameter(source, "source of the pictures"),
        "frame": DescribedParameter(config.frame, "frame id of the headers"),
        "size": DescribedParameter(size, "width x height of the pictures in px"),
        "crop": DescribedParameter(
            list(WHOLE if view is None else view.crop),
            "left, top, right and bottom edge of the published part, as fractions of the frame",
        ),
        "fixed": DescribedParameter(fixed, "fixed exposure, gain and white balance"),
        "jpeg": DescribedParameter(config.jpeg or 0, "JPEG quality; 0 for raw pictures"),
    }


class CameraNode:
    """Publisher of a camera's frames as they arrive; a stamp is the time of arrival.

    Args:
        camera: name of the camera in views.

    Attributes:
        frames: number of frames published so far.
    """

    def __init__(
        self,
        node: RosNode,
        robot: str,
        camera: str,
        config: PublishConfig,
        source: ReconnectingCamera,
    ) -> None:
        self.frames = 0
        self._node, self._config, self._source = node, config, source
        self._clock = node.handle.get_clock()
        compressed = config.jpeg is not None
        self._pictures = node.publisher(picture_topic(robot, camera, compressed=compressed))
        self._infos = node.publisher(info_topic(robot, camera))
        Diagnostics(node, f"camera {camera}", self._numbers, self._health)
        node.handle.manage()

    def run(self, stopping: Callable[[], bool]) -> None:
        """Publish frames until `stopping` returns True.

        Raises:
            VideoEnded: the source is a film and has ended.
        """
        try:
            while not stopping():
                if self._node.hindrance:
                    self._source.close()
                    self._node.wait(_IDLE_S)
                elif (frame := self._source.read()) is not None:
                    self.publish(frame)
                else:
                    self._node.wait(_IDLE_S)
        finally:
            self._source.close()

    def publish(self, frame: Image) -> None:
        """Publish a frame, uint8 (H, W, 3) RGB, with the present time as its stamp."""
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

    def _numbers(self) -> Mapping[str, float]:
        return {"frames": self.frames, "losses": self._source.losses}

    def _health(self) -> Health:
        if self._node.handle.active and not self._source.is_open:
            return bytes(DiagnosticStatus.ERROR), "the camera is lost"
        return WELL
