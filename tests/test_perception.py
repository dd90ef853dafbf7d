from __future__ import annotations

import math

import numpy as np
import pytest

from serl.geometry import Quaternion, rotation_between
from serl.perception import Perception, PerceptionConfig, seed_of
from serl.types import Array, Observation

TURNED: Quaternion = (0.0, 0.0, math.sin(0.3), math.cos(0.3))


def reading(now_s: float, x: float = 0.0) -> Observation:
    """Return a reading of three bodies and the arm, all at x."""
    pose = np.array([x, 0.1, 0.2, *TURNED], np.float32)
    names = ("tcp_pose", "peg_pose", "cable0_pose", "cable1_pose")
    state = {name: pose.copy() for name in names} | {"force": np.full(3, x, np.float32)}
    return Observation(state, stamps={"robot": now_s})


def view(**errors: float) -> Perception:
    return Perception(PerceptionConfig(**errors), ("peg", "cable0", "cable1"))


def shift(seen: Observation, name: str, x: float = 0.0) -> Array:
    return seen.state[name][:3] - reading(0.0, x).state[name][:3]


def angle(seen: Observation, name: str) -> float:
    x, y, z, w = seen.state[name][3:].tolist()
    return math.dist(rotation_between(TURNED, (x, y, z, w)), (0.0, 0.0, 0.0))


def test_perception_without_errors_returns_reading_unchanged() -> None:
    given = reading(0.0)
    assert view()(given) is given


def test_pose_bias_is_constant_within_episode() -> None:
    seen = view(bias_m=0.003, bias_rad=0.03)
    errors = []
    for episode in range(5):
        seen.begin(episode)
        first, later = seen(reading(0.0)), seen(reading(0.1))
        for name in ("peg_pose", "cable0_pose"):
            assert np.linalg.norm(shift(first, name)) == pytest.approx(0.003, abs=1e-6)
            assert angle(first, name) == pytest.approx(0.03, abs=1e-4)
            assert np.array_equal(first.state[name], later.state[name])
        assert np.allclose(shift(first, "cable0_pose"), shift(first, "cable1_pose"))
        assert not np.allclose(shift(first, "cable0_pose"), shift(first, "peg_pose"))
        errors.append(shift(first, "peg_pose"))
    assert len(np.unique(errors, axis=0)) == 5


def test_arm_readings_have_no_errors() -> None:
    seen = view(bias_m=0.01, noise_m=0.01, delay_s=0.3)
    seen(reading(0.0, x=0.0))
    late = seen(reading(0.1, x=1.0))
    assert np.array_equal(late.state["tcp_pose"], reading(0.1, x=1.0).state["tcp_pose"])
    assert late.state["force"][0] == 1.0
    assert late.stamps == {"robot": 0.1}


@pytest.mark.parametrize(("delay_s", "steps"), [(0.05, 1), (0.1, 1), (0.25, 3)])
def test_poses_are_at_least_as_old_as_delay(delay_s: float, steps: int) -> None:
    seen = view(delay_s=delay_s)
    xs = [seen(reading(0.1 * now, x=now)).state["peg_pose"][0] for now in range(8)]
    assert xs == [max(0, now - steps) for now in range(8)]


def test_same_instant_gives_same_poses() -> None:
    seen, twice = view(noise_m=0.01, dropout=0.5), view(noise_m=0.01, dropout=0.5)
    for now in range(20):
        once = seen(reading(0.1 * now, x=now)).state["peg_pose"]
        assert np.array_equal(once, twice(reading(0.1 * now, x=now)).state["peg_pose"])
        assert np.array_equal(once, twice(reading(0.1 * now, x=now)).state["peg_pose"])


def test_lost_frame_repeats_last_pose() -> None:
    seen = view(dropout=0.3)
    xs = [seen(reading(0.1 * now, x=now)).state["peg_pose"][0] for now in range(1000)]
    fresh = [x == now for now, x in enumerate(xs)]
    assert fresh[0]
    assert 0.65 < np.mean(fresh) < 0.75
    assert all(
        x == (now if new else xs[now - 1])
        for now, (x, new) in enumerate(zip(xs, fresh, strict=True))
    )


@pytest.mark.parametrize(("noise_s", "similar"), [(0.0, 0.0), (1.0, math.exp(-0.1))])
def test_noise_is_white_or_correlated_in_time(noise_s: float, similar: float) -> None:
    seen = view(noise_m=0.001, noise_rad=0.01, noise_s=noise_s)
    frames = [seen(reading(0.1 * now)) for now in range(4000)]
    xs = np.array([shift(frame, "peg_pose")[0] for frame in frames])
    assert xs.std() == pytest.approx(0.001, rel=0.2)
    assert np.mean([angle(frame, "peg_pose") for frame in frames]) == pytest.approx(0.016, rel=0.2)
    assert np.mean(xs[1:] * xs[:-1]) / xs.var() == pytest.approx(similar, abs=0.07)


def test_new_episode_shows_no_pose_of_last_episode() -> None:
    seen = view(delay_s=0.3)
    seen(reading(5.0, x=9.0))
    seen.begin(1)
    assert seen(reading(5.1, x=1.0)).state["peg_pose"][0] == 1.0
    assert seen(reading(0.0, x=2.0)).state["peg_pose"][0] == 2.0, (
        "time went back, so the scene was reset"
    )


def test_seed_depends_on_reading_but_not_on_time() -> None:
    assert seed_of(reading(0.0, 1.0)) == seed_of(reading(3.0, 1.0))
    assert seed_of(reading(0.0, 1.0)) != seed_of(reading(0.0, 1.1))


def test_scene_reset_restarts_noise() -> None:
    seen = view(noise_m=0.01, noise_s=1.0)
    seen(reading(5.0))
    moved = seen(reading(1.0, x=1.0))
    assert abs(shift(moved, "peg_pose", x=1.0)[0]) < 0.1
