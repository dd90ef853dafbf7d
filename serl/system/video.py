"""Images of episodes: captions, videos, contact sheets. Images are uint8 RGB of shape (H, W, 3)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

import av
import cv2
import numpy as np
from PIL import Image as Picture
from PIL import ImageDraw, ImageFont

from serl.errors import BadInput, CorruptData, SerlError
from serl.system.files import open_regular
from serl.types import ActionSource, Image

VIDEO_TYPES = {".mp4": "video/mp4", ".webm": "video/webm"}
"""Media types of videos, by the ending of the file's name."""
MAX_FRAME_PIXELS = 1920 * 1200
MAX_FRAMES = 36_000
"""Usual limit of the number of frames of a video that is read: an hour at 10 Hz."""

_CODECS: dict[str, tuple[str, dict[str, str]]] = {
    ".mp4": ("libx264", {"crf": "23"}),
    ".webm": ("libvpx-vp9", {"crf": "32", "b": "0", "deadline": "realtime", "cpu-used": "5"}),
}
"""Encoder and its options by ending.

H.264 in MP4 opens everywhere. Compared with the VP8 that OpenCV writes, a film of a task has a
quarter of the size and half the encoding time, at a higher PSNR. VP9 in WebM is for browsers
without H.264.
"""

INK = (244, 246, 250)
QUIET = (178, 186, 200)
GREEN = (74, 222, 128)
SOURCE_COLOURS = {
    ActionSource.POLICY: (96, 165, 250),
    ActionSource.HUMAN: (251, 146, 60),
    ActionSource.SCRIPT: (148, 163, 184),
}


@dataclass(frozen=True, slots=True)
class Caption:
    """The content of a frame's caption; a field that is None is not shown."""

    source: ActionSource
    step: int
    episode: int | None = None
    reward: float | None = None
    success: bool = False


def write_video(
    path: Path,
    frames: Iterable[Image],
    fps: float,
    options: Mapping[str, str] | None = None,
) -> int:
    """Write a video that browsers play and return its number of frames.

    The file `path` appears only when the video is complete.

    Args:
        path: video file, ending in ".mp4" or ".webm"; its folder is made if absent.
        frames: images of one size; an odd width or height loses its last column or row.
        fps: frames per second.
        options: options of the encoder that replace the usual ones.

    Raises:
        BadInput: there is no frame, the sizes differ, or the name has another ending.
        SerlError: the file cannot be written.
    """
    check_name(path)
    part = path.absolute().with_suffix(f".part{path.suffix}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        count = _encode(part, path.name, frames, fps, options or {})
        part.replace(path)
    except (OSError, av.FFmpegError) as error:
        raise SerlError(f"{path}: cannot be written: {error.strerror}") from error
    finally:
        with suppress(OSError):
            part.unlink()
    return count


def _encode(
    path: Path, name: str, frames: Iterable[Image], fps: float, given: Mapping[str, str]
) -> int:
    codec, usual = _CODECS[path.suffix]
    layout = {"movflags": "faststart"} if path.suffix == ".mp4" else {}  # plays while it loads
    shape: tuple[int, ...] = ()
    count = 0
    with av.open(path, "w", container_options=layout) as container:
        rate = Fraction(fps).limit_denominator(1000)
        try:
            stream: Any = container.add_stream(codec, rate, {**usual, **given})
        except ValueError as error:  # this PyAV was built without the encoder
            raise SerlError(f"{name}: cannot be written: {error}") from error
        stream.pix_fmt = "yuv420p"  # the one pixel format that all browsers play
        for count, frame in enumerate(frames, 1):
            if count == 1:
                shape = frame.shape
                stream.height, stream.width = (size - size % 2 for size in shape[:2])
            if frame.shape != shape:
                raise BadInput(
                    f"{name}: frame {count - 1} has shape {list(frame.shape)}, "
                    f"the first has {list(shape)}"
                )
            even = np.ascontiguousarray(frame[: stream.height, : stream.width])
            container.mux(stream.encode(av.VideoFrame.from_ndarray(even, format="rgb24")))
        if not count:
            raise BadInput(f"{name}: a video needs at least one frame")
        container.mux(stream.encode(None))
    return count


def check_name(path: Path) -> None:
    """Raise `BadInput` unless `path` can be the name of a video."""
    if path.suffix not in _CODECS:
        raise BadInput(f"a video's name must end in {' or '.join(_CODECS)}, got {path.name}")


def read_video(path: Path, max_frames: int | None = None) -> Iterator[Image]:
    """Yield the frames of a video; only one of them is in memory at a time.

    Args:
        path: the video.
        max_frames: largest number of frames that is accepted; None for `MAX_FRAMES`.

    Raises:
        CorruptData: the file is not a video, is damaged or exceeds the bounds.
    """
    for frame in _decode(path, max_frames):
        try:
            image = frame.to_ndarray(format="rgb24")
        except (av.FFmpegError, ValueError) as error:
            raise CorruptData(f"{path}: a frame cannot be converted: {error}") from error
        yield image


def middle_frame(path: Path) -> Image:
    """Return the middle frame of a video, after all frames have been decoded.

    Raises:
        CorruptData: as for `read_video`.
    """
    count = sum(1 for _ in _decode(path))
    for image in islice(read_video(path), count // 2, None):
        return image
    raise CorruptData(f"{path}: was replaced while it was read")


def _decode(path: Path, max_frames: int | None = None) -> Iterator[Any]:
    """Yield the decoded frames, at least one, in the video's own pixel format."""
    # With a given format, FFmpeg does not take the file for a playlist that names other files.
    kind = "matroska" if path.suffix == ".webm" else "mp4"
    limit = {"max_pixels": str(MAX_FRAME_PIXELS)}
    most = MAX_FRAMES if max_frames is None else max_frames
    count = 0
    try:
        with (
            open_regular(path) as file,
            av.open(file, "r", format=kind, options=limit, metadata_errors="replace") as container,
        ):
            context = container.streams.video[0].codec_context
            if context is None:
                raise ValueError("no decoder for its frames")
            _check_size(path, context)
            context.options = limit  # the size can change later
            for count, frame in enumerate(container.decode(video=0), 1):
                _check_size(path, frame)
                if count > most:
                    raise CorruptData(f"{path}: over {most:,} frames")
                yield frame
    except (OSError, av.FFmpegError, ValueError, IndexError) as error:  # IndexError: no stream
        raise CorruptData(f"{path}: not a video: {error}") from error
    if not count:
        raise CorruptData(f"{path}: a video without frames")


def _check_size(path: Path, item: Any) -> None:
    if item.width * item.height > MAX_FRAME_PIXELS:
        raise CorruptData(
            f"{path}: frames of {item.width} x {item.height}, allowed {MAX_FRAME_PIXELS:,} pixels"
        )


def draw_caption(frame: Image, caption: Caption) -> Image:
    """Return a copy of `frame` with a caption line: action source, success, episode, step, reward.

    Texts at the right end of the line that exceed the width are left out.
    """
    height, width = frame.shape[:2]
    size = max(9, round(height / 22))
    face = font(size)
    band, pad = round(2.2 * size), round(0.8 * size)
    shaded = frame.copy()
    shade = np.linspace(1.0, 0.25, band)[:, None, None]
    shaded[-band:] = (shaded[-band:] * shade).astype(np.uint8)
    picture = Picture.fromarray(shaded)
    draw = ImageDraw.Draw(picture)
    draw.fontmode = "L"
    middle = height - round(0.85 * size)
    x = float(pad)
    colour = SOURCE_COLOURS[caption.source]
    radius = 0.28 * size
    draw.ellipse((x, middle - radius, x + 2 * radius, middle + radius), fill=colour)
    x += 3.4 * radius
    for text, ink in _words(caption):
        length = draw.textlength(text, font=face)
        if x + length > width - pad:
            break
        draw.text((x, middle), text, fill=ink, font=face, anchor="lm")
        x += length + 0.9 * size
    if caption.success:
        draw.rectangle((0, 0, width - 1, height - 1), outline=GREEN, width=max(2, size // 5))
    return np.asarray(picture)


@lru_cache(maxsize=8)
def font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    """Return the font of all images, `size` pixels high."""
    return ImageFont.load_default(size)


def encode_image(image: Image, suffix: str = ".png") -> bytes:
    """Return the bytes of an image file; `suffix` (".png", ".jpg") chooses the format."""
    return cv2.imencode(suffix, cv2.cvtColor(image, cv2.COLOR_RGB2BGR))[1].tobytes()


def write_png(path: Path, image: Image) -> None:
    """Write an image as PNG; its folder is made if absent."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(encode_image(image))


def _words(caption: Caption) -> Iterator[tuple[str, tuple[int, int, int]]]:
    """Yield the texts of a caption and their colours, the most important first."""
    yield caption.source.value, INK
    if caption.success:
        yield "success", GREEN
    if caption.episode is not None:
        yield f"episode {caption.episode}", QUIET
    yield f"step {caption.step}", QUIET
    if caption.reward is not None:
        yield f"reward {caption.reward:g}", QUIET


_THUMBNAIL_PX = 96
_GAP_PX = 4
PER_ROW = 8


def contact_sheet(images: Mapping[str, Image], captions: Sequence[str], title: str) -> Image:
    """Return one image of N samples; the views of each sample lie one above the other.

    Args:
        images: images by view, uint8.  # (N, H, W, 3)
        captions: caption of each sample; if empty, the sheet shows "none".
        title: title of the sheet.

    Returns:
        The sheet, uint8 RGB, with the same width for any N.  # (H, W, 3)
    """
    height = len(images) * _THUMBNAIL_PX + 18
    lines = -(-len(captions) // PER_ROW)
    size = (PER_ROW * (_THUMBNAIL_PX + _GAP_PX) + _GAP_PX, 28 + lines * (height + _GAP_PX))
    sheet = Picture.new("RGB", size, (247, 248, 249))
    draw = ImageDraw.Draw(sheet)
    text = title if captions else f"{title}: none"
    draw.text((_GAP_PX, 6), text, fill=(40, 46, 52), font=font(13))
    for number, caption in enumerate(captions):
        left = _GAP_PX + number % PER_ROW * (_THUMBNAIL_PX + _GAP_PX)
        top = 28 + number // PER_ROW * (height + _GAP_PX)
        for place, frames in enumerate(images.values()):
            thumbnail = Picture.fromarray(frames[number])
            thumbnail = thumbnail.resize((_THUMBNAIL_PX, _THUMBNAIL_PX), Picture.Resampling.NEAREST)
            sheet.paste(thumbnail, (left, top + place * _THUMBNAIL_PX))
        draw.text((left, top + height - 16), caption, fill=(90, 98, 106), font=font(10))
    return np.asarray(sheet)
