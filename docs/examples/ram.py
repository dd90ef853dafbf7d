"""Push a part into its slot: a task without a simulation."""

from typing import ClassVar

from serl.camera import View
from serl.motion import Motion
from serl.real_task import RealTask, RealTaskConfig


class Ram(RealTask):
    """Push the part in the hand into its slot."""

    name = "ram"
    defaults = RealTaskConfig(
        time_limit_s=8.0,
        motion=Motion(
            axes=("x", "y", "z", "yaw"),
            translation_m=0.01,
            box_low_m=(0.40, -0.10, 0.06),
            box_high_m=(0.60, 0.10, 0.25),
            max_rotation_rad=0.5,
        ),
        views={"wrist": View(camera="wrist", width=64, height=64)},
    )
    training: ClassVar = {"reward": {"kind": "human"}, "reset": {"gripper": "keep"}, "steps": 8000}


task = Ram
