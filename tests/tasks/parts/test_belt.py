import math

import mujoco
import numpy as np
import pytest

from serl.tasks.parts.belt import (
    FIRST,
    HALF_WIDE_M,
    HELD_M,
    LENGTH_M,
    LINKS,
    Vector64,
    belt_mjcf,
    end,
    links,
    turns,
)
from serl.types import Array


def world() -> tuple[mujoco.MjModel, mujoco.MjData]:
    """Return a model with only a belt, centred at the origin without load."""
    chain, closed = belt_mjcf()
    model = mujoco.MjModel.from_xml_string(
        f'<mujoco><compiler angle="radian" autolimits="true"/>'
        f'<option timestep="0.002" gravity="0 0 0"/>'
        f"<worldbody>{chain}</worldbody>{closed}</mujoco>"
    )
    data = mujoco.MjData(model)
    x, y, yaw = FIRST
    data.qpos[:7] = (x, y, 0.0, math.cos(0.5 * yaw), 0.0, 0.0, math.sin(0.5 * yaw))
    mujoco.mj_forward(model, data)
    return model, data


def state(model: mujoco.MjModel, data: mujoco.MjData) -> dict[str, Array]:
    turned = np.zeros(4)
    return {
        f"belt{index}_pose": np.append(data.body(f"belt{index}").xpos, turned).astype(np.float32)
        for index in range(LINKS)
    }


def spans_m(begins: Vector64) -> Vector64:
    """Return the distances between successive link starts, m; the last closes the belt."""
    spans: Vector64 = np.linalg.norm(np.roll(begins, -1, axis=0) - begins, axis=1)
    return spans


def circle(radius_m: float, right_m: float = 0.0) -> Vector64:
    angles = 2.0 * math.pi * np.arange(LINKS) / LINKS
    across = right_m + radius_m * np.cos(angles), radius_m * np.sin(angles)
    points: Vector64 = np.stack((*across, np.zeros(LINKS)), axis=1)
    return points


def test_belt_starts_as_closed_oval_about_the_origin() -> None:
    begins = links(state(*world()))
    assert np.abs(begins.mean(axis=0)).max() < 1e-3
    assert spans_m(begins).sum() == pytest.approx(LENGTH_M, rel=0.03)
    for outward in (1.0, -1.0):
        assert end(begins, outward) == pytest.approx((0.0, outward * HELD_M, 0.0), abs=0.003)


def test_free_belt_becomes_flat_closed_circle() -> None:
    model, data = world()
    mujoco.mj_step(model, data, 2000)
    begins = links(state(model, data))
    away = np.linalg.norm(begins - begins.mean(axis=0), axis=1)
    assert away == pytest.approx(LENGTH_M / (2.0 * math.pi), rel=0.07)
    assert np.ptp(begins[:, 2]) < 1e-4
    assert spans_m(begins) == pytest.approx(spans_m(links(state(*world()))), abs=2e-4)
    assert not data.warning.number.any()


def test_belt_stays_closed_under_40_newtons() -> None:
    """Pull with twice the force of an arm and check that the belt stays closed."""
    model, data = world()
    for body, force_n in (("belt0", 40.0), (f"belt{LINKS // 2}", -40.0)):
        data.body(body).xfrc_applied[1] = force_n
    mujoco.mj_step(model, data, 1000)
    begins = links(state(model, data))
    assert np.ptp(begins[:, 1]) > 2.0 * HELD_M
    assert spans_m(begins) == pytest.approx(spans_m(links(state(*world()))), abs=1e-3)
    assert not data.warning.number.any()


@pytest.mark.parametrize(
    ("begins", "expected"),
    [
        (circle(0.1), 1),
        (circle(0.1)[::-1], -1),
        (circle(0.1, right_m=0.09), 1),
        (circle(0.1, right_m=0.11), 0),
        (np.concatenate([circle(0.1), circle(0.05)]), 2),
        (np.concatenate([circle(0.1), circle(0.05)[::-1]]), 0),
    ],
)
def test_turns_count_counterclockwise_as_positive(begins: Vector64, expected: int) -> None:
    assert turns(begins, np.zeros(3)) == expected


def test_belt_has_set_width_and_no_self_contact() -> None:
    model, _ = world()
    assert (model.geom_size[:, 2] == HALF_WIDE_M).all()
    assert not (model.geom_contype & model.geom_conaffinity).any()
    for kind in (1, 2, 4):  # contact types of objects and of the two arms
        assert (model.geom_conaffinity & kind).all()
