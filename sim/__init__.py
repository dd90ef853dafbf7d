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


# MuJoCo reads MUJOCO_GL at its first import. Without it, MuJoCo looks for a display; its import
# fails if the variable names a missing library. Software OpenGL is as fast with one thread as with
# two, and one leaves a processor to the learner.
if not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")) and _has_egl():
    os.environ.setdefault("MUJOCO_GL", "egl")
os.environ.setdefault("LP_NUM_THREADS", "1")


def explain(error: Exception) -> str:
    """Explain in one line a failed import of MuJoCo; return "" for any other error."""
    if "mujoco" in sys.modules or isinstance(error, ModuleNotFoundError):
        return ""
    return (
        f"MUJOCO_GL={os.environ.get('MUJOCO_GL')}: MuJoCo cannot be loaded with it: expected egl, "
        "glfw, osmesa (which needs libosmesa6), or disable where nothing is drawn by OpenGL "
        f"({type(error).__name__}: {' '.join(str(error).split())[:160]})"
    )
