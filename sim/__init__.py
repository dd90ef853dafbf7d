"""MuJoCo: the simulated arm, its scenes and cameras."""

import ctypes
import os
import sys


def _has_egl() -> bool:
    try:
        ctypes.CDLL("libEGL.so.1")
    except OSError:
        return False
    return True


# MuJoCo reads this at its first import, would else look for a display, and cannot even be imported
# where it names a library that is missing. One thread of the software's OpenGL is as fast as two,
# and leaves a processor to the learner.
if not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")) and _has_egl():
    os.environ.setdefault("MUJOCO_GL", "egl")
os.environ.setdefault("LP_NUM_THREADS", "1")


def explain(error: Exception) -> str:
    """Why no module of this package can be imported, in one line; empty if it is another reason."""
    if "mujoco" in sys.modules or isinstance(error, ModuleNotFoundError):
        return ""
    return (
        f"MUJOCO_GL={os.environ.get('MUJOCO_GL')}: MuJoCo cannot be loaded with it: expected egl, "
        "glfw, osmesa (which needs libosmesa6), or disable where nothing is drawn by OpenGL "
        f"({type(error).__name__}: {' '.join(str(error).split())[:160]})"
    )
