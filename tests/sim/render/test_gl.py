from __future__ import annotations

import ctypes.util
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from serl import plugins
from serl.errors import BadInput, SerlError
from serl.sim.arm import SimArm
from serl.sim.render import gl, ray

from .test_appearance import picking


@pytest.fixture(scope="module")
def arm() -> SimArm:
    return picking()


@pytest.fixture(scope="module")
def renderer(arm: SimArm) -> Iterator[gl.GLRenderer]:
    try:
        made: gl.GLRenderer = plugins.load("renderer", "gl")(arm.model, arm.data, shadows=False)
    except SerlError as error:
        pytest.skip(f"NOT TESTED on this machine: {error}")
    yield made
    made.close()


def test_gl_and_ray_renderers_agree(arm: SimArm, renderer: gl.GLRenderer) -> None:
    rays = ray.RayRenderer(arm.model, arm.data, shadows=False)
    for camera in ("field", "wrist"):
        drawn, cast = (r.frame(camera, 48, 40).astype(int) for r in (renderer, rays))
        assert drawn.shape == cast.shape == (40, 48, 3)
        red = [(image[..., 0] > image[..., 2] + 60) for image in (drawn, cast)]
        assert red[1].sum() > 3, "the ray image shows the cube"
        assert (red[0] ^ red[1]).sum() <= 0.4 * red[1].sum() + 4


def test_gl_images_of_other_sizes_are_separate_arrays(renderer: gl.GLRenderer) -> None:
    first = renderer.frame("front", 16, 16)
    kept = first.copy()
    for width, height in ((16, 16), (800, 600), (64, 48)):
        assert renderer.frame("wrist", width, height).shape == (height, width, 3)
    assert np.array_equal(first, kept)
    with pytest.raises(BadInput, match="unknown camera 'roof'"):
        renderer.frame("roof", 16, 16)


@pytest.mark.parametrize(
    ("platform", "parts"),
    [
        ("egl", ("MUJOCO_GL=egl does not work here", "libegl1 libopengl0", "renderer ray")),
        ("glfw", ("MUJOCO_GL=glfw", "a display")),
        ("disable", ("switched off by MUJOCO_GL=disable",)),
        ("vulkan", ("one of egl, osmesa, glfw",)),
    ],
)
def test_missing_opengl_is_explained_in_one_line(
    platform: str, parts: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MUJOCO_GL", platform)
    line = gl.explain(AttributeError("'NoneType' object has\nno attribute 'glGetError'"))
    assert all(part in line for part in parts)
    assert "\n" not in line


@pytest.mark.parametrize("platform", ["vulkan", "osmesa"])
def test_unusable_mujoco_gl_platform_gives_one_line_error(platform: str, tmp_path: Path) -> None:
    if platform == "osmesa" and ctypes.util.find_library("OSMesa"):
        pytest.skip("OSMesa is there, and works")
    words = ["reward", "collect", "pick_cube", "--positives=1", "--negatives=1"]
    ended = subprocess.run(
        [sys.executable, "-m", "serl.cli.main", *words],
        cwd=tmp_path,
        env={**os.environ, "MUJOCO_GL": platform, "PYOPENGL_PLATFORM": ""},  # as in a fresh shell
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 1
    (line,) = ended.stderr.splitlines()
    assert line.startswith(f"serl: MUJOCO_GL={platform}: MuJoCo cannot be loaded with it: expected")
    assert not ended.stdout
