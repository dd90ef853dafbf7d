"""Ranges by which the worlds of a randomised simulation may differ from the nominal model.

Sources of the numbers: `light` covers the uncertainty of a careful set-up; `full` follows
Tobin et al. 2017 (pictures, camera, light), OpenAI's Dactyl 2018 (masses, friction, joints), Peng
et al. 2018 (latencies, gains) and Valassakis et al. 2020 (pushes).
"""

from __future__ import annotations

import math
from typing import NamedTuple

Range = tuple[float, float]
_NOT, _AS_IT_IS = (0.0, 0.0), (1.0, 1.0)


class Ranges(NamedTuple):
    """Ranges from lowest to highest, or half widths around zero; sampled for each episode.

    Factors multiply, all others are added. Of two numbers for forces or clips, the first is in
    newtons, the second in newton metres.
    """

    camera_m: float = 0.0
    camera_rad: float = 0.0
    fovy_rad: float = 0.0
    exposure: float = 0.0  # of 1
    white_balance: float = 0.0  # of 1, each channel
    gamma: Range = _AS_IT_IS
    lamp_m: float = 0.0  # along each axis, of a lamp 2 m from the field
    ambient: Range | None = None
    color: float = 0.0  # of hue, saturation and value
    tiles: Range = _AS_IT_IS  # factor of their number along a metre
    distractors: int = 0  # at most; of any hue
    pixel_noise: Range = _NOT  # standard deviation, of 255
    blur_px: float = 0.0
    quality: tuple[int, int] | None = None  # of JPEG
    image_lag_s: Range = _NOT
    image_jitter_s: float = 0.0
    state_lag_s: Range = _NOT
    action_lag_s: Range = _NOT  # less than a control period, as are all lags
    drop: float = 0.0  # share of images, and of actions, that do not arrive
    stiffness: Range = _AS_IT_IS
    damping: Range = _AS_IT_IS
    joint_damping: Range = _AS_IT_IS  # log-uniform
    joint_friction_nm: Range = _NOT
    mass: Range = _AS_IT_IS
    friction: Range = _AS_IT_IS
    size: Range = _AS_IT_IS
    clearance_m: Range | None = None  # of bodies that fit into others
    goal_m: float = 0.0  # error of the tracked position of mocap bodies
    start_m: float = 0.0
    start_rad: float = 0.0
    wrench_bias: Range = _NOT
    wrench_noise: Range = _NOT  # standard deviation
    wrench_filter_hz: float = math.inf
    tcp_m: float = 0.0  # error of the tool point
    tcp_rad: float = 0.0
    pose_noise_m: float = 0.0  # standard deviation
    push_n: float = 0.0  # on the hand, in one of ten control periods
    gravity: float = 0.0  # relative error of the compensation of a link


LEVELS = {
    "light": Ranges(
        camera_m=0.005,
        camera_rad=math.radians(0.5),
        exposure=0.05,
        color=0.05,
        pixel_noise=(2.0, 2.0),
        image_lag_s=(0.03, 0.03),
        goal_m=0.001,
        wrench_noise=(0.1, 0.01),
    ),
    "full": Ranges(
        camera_m=0.015,
        camera_rad=math.radians(3.0),
        fovy_rad=math.radians(2.0),
        exposure=0.25,
        white_balance=0.10,
        gamma=(0.8, 1.25),
        lamp_m=1.0,
        ambient=(0.2, 0.6),
        color=0.15,
        tiles=(0.5, 2.0),
        distractors=6,
        pixel_noise=(0.0, 8.0),
        blur_px=3.0,
        quality=(60, 95),
        image_lag_s=(0.03, 0.10),
        image_jitter_s=0.01,
        state_lag_s=(0.001, 0.005),
        action_lag_s=(0.01, 0.04),
        drop=0.01,
        stiffness=(0.8, 1.2),
        damping=(0.7, 1.4),
        joint_damping=(0.3, 3.0),
        joint_friction_nm=(0.0, 0.5),
        mass=(0.5, 1.5),
        friction=(0.7, 1.3),
        size=(0.98, 1.02),
        clearance_m=(0.0002, 0.001),
        goal_m=0.001,
        start_m=0.02,
        start_rad=0.05,
        wrench_bias=(1.0, 0.1),
        wrench_noise=(0.3, 0.03),
        wrench_filter_hz=10.0,
        tcp_m=0.001,
        tcp_rad=math.radians(0.5),
        pose_noise_m=0.0001,
        push_n=3.0,
        gravity=0.05,
    ),
}
