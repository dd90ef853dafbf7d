import tracemalloc
from pathlib import Path

import av
import cv2
import numpy as np
import pytest

from serl.errors import BadInput, CorruptData, SerlError
from serl.system import video
from serl.system.video import (
    Caption,
    contact_sheet,
    draw_caption,
    middle_frame,
    read_video,
    write_png,
    write_video,
)
from serl.types import ActionSource, Image


def grey_image(value: int, height: int = 48, width: int = 64) -> Image:
    return np.full((height, width, 3), value, np.uint8)


@pytest.mark.parametrize(("ending", "mark"), [("mp4", b"avc1"), ("webm", b"V_VP9")])
def test_video_round_trips_with_colours_in_order(
    tmp_path: Path, ending: str, mark: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    # RGB, so that swapped channels are detected.
    colours = [(220, 30, 30), (30, 200, 30), (30, 30, 220)]
    frames = [np.full((48, 64, 3), colour, np.uint8) for colour in colours for _ in range(4)]
    path = tmp_path / "videos" / f"final.{ending}"
    assert write_video(path, iter(frames), fps=10.0) == 12
    film = list(read_video(path))
    assert (middle_frame(path) == film[6]).all()
    assert len(film) == 12
    for frame, colour in zip(film[3::4], colours, strict=True):
        assert np.abs(frame.mean((0, 1)) - colour).max() < 12
    data = path.read_bytes()
    assert mark in data
    if ending == "mp4":
        assert 0 < data.find(b"moov") < data.find(b"mdat"), (
            "playback can start before the download ends"
        )
    assert cv2.VideoCapture(str(path)).get(cv2.CAP_PROP_FPS) == 10.0
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    assert capfd.readouterr() == ("", "")


def test_video_crops_odd_size_to_even(tmp_path: Path) -> None:
    write_video(tmp_path / "a.mp4", [grey_image(9, 47, 63)], fps=100 / 3)
    assert next(read_video(tmp_path / "a.mp4")).shape == (46, 62, 3)


def test_failed_write_keeps_existing_video(tmp_path: Path) -> None:
    path = tmp_path / "a.mp4"
    write_video(path, [grey_image(9)] * 3, fps=10.0)
    before = path.read_bytes()
    with pytest.raises(BadInput, match=r"frame 1 has shape \[48, 65, 3\]"):
        write_video(path, [grey_image(9), grey_image(9, width=65)], fps=10.0)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["a.mp4"]


@pytest.mark.parametrize(("name", "count"), [("a.mp4", 0), ("a.avi", 1)])
def test_write_video_refuses_no_frames_and_unknown_suffix(
    tmp_path: Path, name: str, count: int
) -> None:
    with pytest.raises(BadInput, match=name):
        write_video(tmp_path / name, [grey_image(9)] * count, fps=10.0)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("content", [b"", b"not a film", b"#EXTM3U\n#EXTINF:1,\nwhole.mp4\n"])
@pytest.mark.parametrize("ending", ["mp4", "webm"])
def test_read_video_refuses_invalid_file(tmp_path: Path, ending: str, content: bytes) -> None:
    whole, path = tmp_path / f"whole.{ending}", tmp_path / f"a.{ending}"
    write_video(whole, [grey_image(9)] * 3, fps=10.0)
    for damaged in (content, whole.read_bytes()[:40], whole.read_bytes()[:400]):
        path.write_bytes(damaged)
        with pytest.raises(CorruptData, match=rf"a\.{ending}"):
            list(read_video(path))


def test_write_video_refuses_unwritable_path(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SerlError, match="cannot be written"):
        write_video(tmp_path / "file" / "a.mp4", [grey_image(9)], fps=10.0)
    (tmp_path / "a.mp4").mkdir()
    with pytest.raises(SerlError, match="cannot be written"):
        write_video(tmp_path / "a.mp4", [grey_image(9)], fps=10.0)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.mp4", "file"]


@pytest.mark.parametrize("ending", ["mp4", "webm"])
def test_video_with_title_in_another_encoding_is_read(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"a.{ending}"
    kind = "mp4" if ending == "mp4" else "webm"
    with av.open(path, "w", format=kind) as container:
        container.metadata["title"] = "TITLE"
        stream = container.add_stream("libx264" if ending == "mp4" else "libvpx-vp9", 10)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        container.mux(stream.encode(av.VideoFrame.from_ndarray(grey_image(9), format="rgb24")))
        container.mux(stream.encode(None))
    data = path.read_bytes()
    assert b"TITLE" in data
    path.write_bytes(data.replace(b"TITLE", b"\xff\xfe\xff\xfe\xff"))
    assert middle_frame(path).shape == (48, 64, 3)


def test_middle_frame_uses_bounded_memory_and_refuses_large_videos(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.mp4"
    write_video(path, [grey_image(9, 480, 640)] * 60, fps=10.0)  # 55 MB of frames
    tracemalloc.start()
    assert middle_frame(path).shape == (480, 640, 3)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 << 20
    monkeypatch.setattr(video, "MAX_FRAMES", 59)
    with pytest.raises(CorruptData, match="over 59 frames"):
        middle_frame(path)
    monkeypatch.setattr(video, "MAX_FRAME_PIXELS", 640 * 480 - 1)
    with pytest.raises(CorruptData, match="frames of 640 x 480"):
        middle_frame(path)


def test_middle_frame_refuses_shrunken_video_and_unconvertible_frame(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths = iter((9, 2))
    frame = av.VideoFrame(64, 48, "rgb24")
    monkeypatch.setattr(video, "_decode", lambda _path, *_most: [frame] * next(lengths))
    with pytest.raises(CorruptData, match=r"a\.mp4: was replaced"):
        middle_frame(tmp_path / "a.mp4")

    class Odd:
        def to_ndarray(self, format: str) -> Image:
            raise ValueError(f"no conversion to {format}")

    monkeypatch.setattr(video, "_decode", lambda _path, *_most: [Odd()])
    with pytest.raises(CorruptData, match=r"a\.mp4: a frame cannot be converted"):
        middle_frame(tmp_path / "a.mp4")


def test_missing_encoder_is_reported_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(video._CODECS, ".mp4", ("libabsent", {}))
    with pytest.raises(SerlError, match=r"a\.mp4: cannot be written"):
        write_video(tmp_path / "a.mp4", [grey_image(9)], fps=10.0)
    assert not list(tmp_path.iterdir())


def contains(image: Image, colour: tuple[int, int, int]) -> bool:
    return bool((image == colour).all(-1).any())


@pytest.mark.parametrize("source", list(ActionSource))
def test_caption_differs_by_action_source_and_keeps_input_frame(source: ActionSource) -> None:
    frame = grey_image(90, 240, 320)
    captioned = draw_caption(frame, Caption(source, 7, 3, 0.5))
    assert captioned.shape == frame.shape
    assert (frame == 90).all()
    assert (captioned[:200] == 90).all()
    others = [
        draw_caption(frame, Caption(other, 7, 3, 0.5)) for other in ActionSource if other != source
    ]
    assert all((captioned != other).any() for other in others)


def test_caption_frames_success_in_green() -> None:
    frame = grey_image(90, 240, 320)
    assert contains(
        draw_caption(frame, Caption(ActionSource.POLICY, 7, success=True)), (74, 222, 128)
    )
    assert not contains(draw_caption(frame, Caption(ActionSource.POLICY, 7)), (74, 222, 128))


def test_caption_fits_any_width() -> None:
    for width in (16, 40, 64, 128):
        captioned = draw_caption(
            grey_image(90, 64, width), Caption(ActionSource.HUMAN, 123, 456, 0.125, True)
        )
        assert captioned.shape == (64, width, 3)


def test_png_is_lossless(tmp_path: Path) -> None:
    image = np.arange(48 * 64 * 3, dtype=np.uint8).reshape(48, 64, 3)
    write_png(tmp_path / "pictures" / "a.png", image)
    bgr = cv2.imread(str(tmp_path / "pictures" / "a.png"))
    assert bgr is not None
    assert (bgr[..., ::-1] == image).all()


def test_contact_sheet_stacks_views_and_accepts_no_images() -> None:
    images = {name: np.full((9, 8, 8, 3), 40 * (n + 1), np.uint8) for n, name in enumerate("ab")}
    sheet = contact_sheet(images, ["0.9  1:2"] * 9, "wrong")
    empty = contact_sheet({name: frames[:0] for name, frames in images.items()}, [], "wrong")
    assert sheet.dtype == np.uint8
    assert sheet.shape[1] == empty.shape[1]
    for level in (40, 80):
        assert (sheet == level).all(2).sum() == 9 * 96 * 96
        assert not (empty == level).all(2).any()
    top, below = ((sheet == level).all(2).nonzero()[0].min() for level in (40, 80))
    assert below == top + 96
