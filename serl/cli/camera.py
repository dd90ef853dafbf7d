"""`serl camera`: a USB camera, a RealSense or a film as a ROS 2 camera."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from serl.camera import View
from serl.cli.arguments import integer, number
from serl.errors import BadInput
from serl.system.cameras import (
    CameraSource,
    CaptureConfig,
    RealSense,
    ReconnectingCamera,
    UsbCamera,
    VideoEnded,
    VideoFileCamera,
)
from serl.system.settings_file import checked

_NAME = re.compile(r"[a-z][a-z0-9_]{0,31}")
_CONTROLS = ("exposure_s", "gain", "white_balance_k")
_NAMESPACE = re.compile(r"(/[A-Za-z][A-Za-z0-9_]*)*/?")


def camera_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `serl camera`."""
    parser.add_argument(
        "name", metavar="NAME", help="name of the camera in the task's views, such as front"
    )
    source = parser.add_mutually_exclusive_group()
    source.add_argument(
        "--device", default="0", help="USB camera: a number, /dev/videoN, or a link to one"
    )
    source.add_argument(
        "--realsense",
        metavar="SERIAL",
        nargs="?",
        const="",
        help="RealSense camera of this serial number, else the only one",
    )
    source.add_argument("--file", type=Path, metavar="FILM", help="play a film instead of a camera")
    parser.add_argument("--loop", action="store_true", help="restart the film at its end")
    parser.add_argument(
        "--size", metavar="WxH", help="resolution of the camera, px (default: 640x480)"
    )
    parser.add_argument(
        "--rate", type=number(0.1, 240), help="frames per second, else 30 or the film's own rate"
    )
    parser.add_argument(
        "--exposure_s",
        type=number(1e-4, 1),
        metavar="S",
        help="exposure of the camera, else its own",
    )
    parser.add_argument(
        "--gain", type=number(0, 10_000), help="gain of the camera, in its own unit"
    )
    parser.add_argument(
        "--white_balance_k",
        type=number(1000, 12_000),
        metavar="K",
        help="colour temperature of the camera, else its own",
    )
    parser.add_argument(
        "--crop",
        metavar="L,T,R,B",
        help="edges of the published part, as shares of width and height",
    )
    parser.add_argument("--resize", metavar="WxH", help="size of the published images, px")
    parser.add_argument(
        "--jpeg", type=integer(1, 100), metavar="QUALITY", help="publish JPEG of this quality"
    )
    parser.add_argument(
        "--namespace", default="/", help="namespace of the topics, such as /sim/arm"
    )
    parser.add_argument(
        "--frame-id", metavar="FRAME", help="frame in the headers, else NAME_optical_frame"
    )


def camera(options: argparse.Namespace) -> int:
    """Publish a camera until Ctrl-C, or the end of a film.

    Raises:
        BadInput: ROS 2 is missing, the camera cannot be opened, or a setting is wrong.
    """
    from serl.ros.environment import lone_folder
    from serl.ros.processes import require_ros

    if not _NAME.fullmatch(options.name):
        raise BadInput(f"camera {options.name[:80]!r}: expected lower-case letters, digits and _")
    if not _NAMESPACE.fullmatch(options.namespace):
        raise BadInput(f"--namespace {options.namespace!r}: expected one such as /sim/arm")
    view = _view(options)
    source = ReconnectingCamera(
        _opener(options), partial(print, f"camera {options.name}:", flush=True)
    )
    try:
        require_ros()
        from serl.ros.camera import CameraNode, PublishConfig, describe  # imports rclpy
        from serl.ros.node import RosNode

        frame = options.frame_id or f"{options.name}_optical_frame"
        settings = {"frame": frame, "view": view, "jpeg": options.jpeg}
        config = checked(PublishConfig, settings)
        base = f"{options.namespace.rstrip('/')}/{options.name}"
        with ExitStack() as stack:
            folder = stack.enter_context(lone_folder("camera"))
            name, described = (
                f"camera_{options.name}",
                describe(source.name, config, _fixed(options)),
            )
            node = stack.enter_context(
                RosNode(name, folder, local=True, parameters=described, managed=True)
            )
            published = CameraNode(node, "", base, config, source)
            kind = "image_raw" if options.jpeg is None else "image_raw/compressed"
            domain = os.environ["ROS_DOMAIN_ID"]
            print(f"{base}/{kind}: ROS_DOMAIN_ID={domain}; Ctrl-C ends it", flush=True)
            published.run(lambda: node.stopping)
    except VideoEnded as error:
        print(f"camera {options.name}: {error}", flush=True)
    finally:
        source.close()
    return 0


def _opener(options: argparse.Namespace) -> Callable[[], CameraSource]:
    controls = {name: getattr(options, name) for name in _CONTROLS}
    if options.file is not None:
        for name in (name for name in ("size", *_CONTROLS) if getattr(options, name) is not None):
            raise BadInput(f"--{name} is for a camera, not for a film")
        return partial(VideoFileCamera, options.file, options.rate, options.loop)
    if options.loop:
        raise BadInput("--loop is for a film: give --file")
    width, height = _size(options.size or "640x480", "--size")
    size = {"width": width, "height": height, "rate_hz": options.rate or 30.0}
    settings = {**size, **controls}
    config = checked(CaptureConfig, settings)
    if options.realsense is not None:
        return partial(RealSense, options.realsense, config)
    return partial(UsbCamera, options.device, config)


def _fixed(options: argparse.Namespace) -> str:
    """Return the fixed settings of the picture as text for people."""
    given = {name: getattr(options, name) for name in _CONTROLS}
    fixed = [f"{name} {value:g}" for name, value in given.items() if value is not None]
    return ", ".join(fixed) or "the camera's own"


def _view(options: argparse.Namespace) -> View | None:
    """Return the part of a frame to publish; None for the full frame."""
    if options.crop is None and options.resize is None:
        return None
    if options.resize is None:
        raise BadInput("--crop needs --resize WxH, the size of the published images")
    width, height = _size(options.resize, "--resize")
    crop = options.crop or "0,0,1,1"
    try:
        shares = [float(share) for share in crop.split(",")]
    except ValueError:
        shares = []
    if len(shares) != 4:
        raise BadInput(f"--crop {crop!r}: expected four shares, such as 0.2,0,0.8,1")
    values = {"camera": options.name, "width": width, "height": height, "crop": shares}
    return checked(View, values)


def _size(text: str, option: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d{1,4})x(\d{1,4})", text)
    if found is None:
        raise BadInput(f"{option} {text!r}: expected a width and a height, such as 640x480")
    return int(found[1]), int(found[2])
