"""Compression of the images of a log, and their decoding within bounds."""

from __future__ import annotations

from io import BytesIO

import numpy as np

from serl.errors import CorruptData
from serl.log.ros_messages import Encoding, image_data
from serl.system.files import Buffer


def compress(pixels: Buffer, shape: tuple[int, ...], encoding: Encoding, quality: int) -> bytes:
    """Compress an RGB image of the shape (H, W, 3) to PNG, lossless, or JPEG of this quality."""
    import cv2  # costs half a second and 50 MB, avoided in processes that never compress

    bgr = cv2.cvtColor(np.frombuffer(pixels, np.uint8).reshape(shape), cv2.COLOR_RGB2BGR)
    settings = (
        [cv2.IMWRITE_PNG_COMPRESSION, 1]
        if encoding == "png"
        else [cv2.IMWRITE_JPEG_QUALITY, quality]
    )
    return cv2.imencode(f".{encoding}", bgr, settings)[1].tobytes()


def decode(message: memoryview, encoding: Encoding, camera: str, shape: tuple[int, ...]) -> Buffer:
    """Return the pixels of an image's message, row by row, RGB; a raw message is not copied.

    A message without exactly one image of this shape is refused before anything is decoded.

    Raises:
        CorruptData: the message is damaged or foreign.
    """
    data = image_data(message, encoding, camera, shape)
    if encoding == "raw":
        if len(data) != shape[0] * shape[1] * shape[2]:
            raise CorruptData(f"image {camera}: {len(data)} bytes do not fit {list(shape)}")
        return data
    return _decompress(data, encoding, camera, shape)


_FORMATS = {"png": ("PNG", b"IEND\xaeB\x60\x82"), "jpeg": ("JPEG", b"\xff\xd9")}  # and the end
_DEPTH = 24  # byte of a PNG that holds the bits of a channel


def _decompress(data: memoryview, encoding: Encoding, camera: str, shape: tuple[int, ...]) -> bytes:
    from PIL import Image  # not loaded by processes beside an arm, which decode nothing

    name, end = _FORMATS[encoding]
    try:
        with Image.open(BytesIO(data), formats=[name]) as image:  # reads the header alone
            found = (image.height, image.width, len(image.getbands()))
            if found != shape or image.mode != "RGB" or "progressive" in image.info:
                raise CorruptData(
                    f"image {camera}: expected {encoding} of {list(shape)}, got {list(found)}"
                )
            if image.get_format_mimetype() != f"image/{encoding}":
                raise CorruptData(f"image {camera}: more than one image in the {encoding}")
            if encoding == "png" and data[_DEPTH] != 8:
                raise CorruptData(f"image {camera}: {data[_DEPTH]} bits a channel, expected 8")
            if data[-len(end) :] != end:
                raise CorruptData(f"image {camera}: the {encoding} is cut, or added to")
            return image.tobytes()
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise CorruptData(f"image {camera}: the {encoding} cannot be decoded") from error
