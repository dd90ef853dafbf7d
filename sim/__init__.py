"""MuJoCo: the simulated arm, its scenes and cameras."""

import os

# MuJoCo reads this at its first import, and would else look for a display. One thread of the
# software's OpenGL is as fast as two, and leaves a processor to the learner.
if not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
    os.environ.setdefault("MUJOCO_GL", "egl")
os.environ.setdefault("LP_NUM_THREADS", "1")
