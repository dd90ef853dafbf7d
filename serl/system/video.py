"""Images of episodes: captions, videos, filmstrips. Images are uint8 RGB of shape (H, W, 3)."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import cast

import cv2
import numpy as np
from PIL import Image as Picture
from PIL import ImageDraw, ImageFont

from serl.errors import BadInput, CorruptData, SerlError
from serl.types import ActionSource, Image

CODEC = "VP80"
"""VP8 in WebM: the one codec that OpenCV's wheels write and every current browser plays.

VP9 is 35 % smaller but takes six times as long; the wheels have no H.264 encoder.
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


def write_video(path: Path, frames: Iterable[Image], fps: float) -> int:
    """Write a video that browsers play and return its number of frames.

    The file `path` appears only when the video is complete.

    Args:
        path: video file, ending in ".webm"; its folder is made if absent.
        frames: images of one size; an odd width or height loses its last column or row.
        fps: frames per second.

    Raises:
        BadInput: there is no frame, the sizes differ, or the name has another ending.
        SerlError: the file cannot be written, or this OpenCV cannot write the codec.
    """
    check_name(path)
    iterator = iter(frames)
    first = next(iterator, None)
    if first is None:
        raise BadInput(f"{path.name}: a video needs at least one frame")
    part = path.with_suffix(".part.webm")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.touch()  # OpenCV does not report why it cannot write
    except OSError as error:
        raise SerlError(f"{path}: cannot be written: {error.strerror}") from error
    size = (first.shape[1], first.shape[0])
    with _quiet_stderr():
        film = cv2.VideoWriter(str(part), cv2.VideoWriter.fourcc(*CODEC), fps, size)
    if not film.isOpened():
        part.unlink(missing_ok=True)
        raise SerlError(f"OpenCV {cv2.__version__} cannot write {CODEC} video to {part}")
    count = 0
    try:
        for frame in _with_first(first, iterator):
            if frame.shape != first.shape:
                raise BadInput(
                    f"{path.name}: frame {count} has shape {list(frame.shape)}, "
                    f"the first has {list(first.shape)}"
                )
            film.write(cv2.cvtColor(frame, cv2.COLOR_RGB2BGR))
            count += 1
    except BaseException:
        film.release()
        part.unlink(missing_ok=True)
        raise
    film.release()
    part.replace(path)
    return count


def check_name(path: Path) -> None:
    """Raise `BadInput` unless `path` can be the name of a video."""
    if path.suffix != ".webm":
        raise BadInput(f"a video's name must end in .webm, got {path.name}")


def read_video(path: Path) -> list[Image]:
    """Return all frames of a video.

    Raises:
        CorruptData: the file is not a video.
    """
    film = cv2.VideoCapture(str(path))
    frames: list[Image] = []
    while (result := film.read())[0]:
        frames.append(cast(Image, cv2.cvtColor(result[1], cv2.COLOR_BGR2RGB)))
    film.release()
    if not frames:
        raise CorruptData(f"{path}: not a video that OpenCV can read")
    return frames


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


def filmstrip(frames: Sequence[Image], columns: int) -> Image:
    """Return `columns` evenly spaced frames side by side, the first and the last among them.

    Raises:
        BadInput: there is no frame, or `columns` is below 1.
    """
    if not frames or columns < 1:
        raise BadInput(f"a filmstrip needs frames and columns, got {len(frames)} and {columns}")
    chosen = np.linspace(0, len(frames) - 1, min(columns, len(frames))).round().astype(int)
    height = frames[0].shape[0]
    gap = np.full((height, max(2, height // 60), 3), 255, np.uint8)
    parts = [part for index in chosen for part in (gap, frames[index])]
    return np.concatenate(parts[1:], axis=1)


def encode_image(image: Image, ending: str = ".png") -> bytes:
    """Return the bytes of an image file; `ending` (".png", ".jpg") chooses the format."""
    return cv2.imencode(ending, cv2.cvtColor(image, cv2.COLOR_RGB2BGR))[1].tobytes()


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


def _with_first(first: Image, rest: Iterator[Image]) -> Iterator[Image]:
    yield first
    yield from rest


@contextlib.contextmanager
def _quiet_stderr() -> Iterator[None]:
    """Suppress the line that OpenCV always prints to stderr when it opens a WebM file."""
    with open(os.devnull, "wb") as nothing:
        kept = os.dup(2)
        os.dup2(nothing.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)


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
    from PIL import Image as Pillow
    from PIL import ImageDraw

    height = len(images) * _THUMBNAIL_PX + 18
    lines = -(-len(captions) // PER_ROW)
    size = (PER_ROW * (_THUMBNAIL_PX + _GAP_PX) + _GAP_PX, 28 + lines * (height + _GAP_PX))
    sheet = Pillow.new("RGB", size, (247, 248, 249))
    draw = ImageDraw.Draw(sheet)
    text = title if captions else f"{title}: none"
    draw.text((_GAP_PX, 6), text, fill=(40, 46, 52), font=font(13))
    for number, caption in enumerate(captions):
        left = _GAP_PX + number % PER_ROW * (_THUMBNAIL_PX + _GAP_PX)
        top = 28 + number // PER_ROW * (height + _GAP_PX)
        for place, frames in enumerate(images.values()):
            thumbnail = Pillow.fromarray(frames[number])
            thumbnail = thumbnail.resize((_THUMBNAIL_PX, _THUMBNAIL_PX), Pillow.Resampling.NEAREST)
            sheet.paste(thumbnail, (left, top + place * _THUMBNAIL_PX))
        draw.text((left, top + height - 16), caption, fill=(90, 98, 106), font=font(10))
    return np.asarray(sheet)
