import math
from typing import Any

import numpy as np
import pytest

from serl import plugins
from serl.camera import View
from serl.errors import BadInput
from serl.motion import Motion
from serl.runs.config import resolve
from serl.runs.task_setup import make_task
from serl.sim.car import SimCar
from serl.task import Placement, Scene, TaskConfig
from serl.testing import SimulatedRobotSuite
from serl.types import Observation

WALL = '<geom type="box" pos="1.2 0 0.1" size="0.05 2 0.1"/>'


def place(rng: np.random.Generator) -> Placement:
    x, y = rng.uniform(-0.2, 0.2, 2)
    return Placement(tcp=np.array((x, y, 0.056, 0.0, 0.0, 0.0, 1.0)))


def make_car(bodies: str = "", views: dict[str, View] | None = None) -> SimCar:
    motion = Motion(
        axes=("x", "yaw"),
        translation_m=0.3,
        rotation_rad=0.5,
        box_low_m=(-4.0, -4.0, 0.0),
        box_high_m=(4.0, 4.0, 0.5),
    )
    config = TaskConfig(motion=motion, observe="pixels" if views else "state", views=views or {})
    return SimCar(Scene(bodies=bodies, place=place, robot="car"), config)


def drive(car: SimCar, speed: float, steering: float, steps: int) -> dict[str, Any]:
    for _ in range(steps):
        car.act(np.array((speed, steering), np.float32))
        car.advance(0.1)
    return dict(car.observe().state)


class TestSimCar(SimulatedRobotSuite):
    def make(self) -> SimCar:
        return make_car()


def test_car_reaches_requested_speed() -> None:
    car = make_car()
    start = car.reset(0).state["car_pose"]
    state = drive(car, 0.5, 0.0, 15)
    assert state["car_twist"][0] == pytest.approx(1.5, abs=0.15)
    assert state["car_pose"][0] - start[0] > 1.2
    assert abs(state["car_pose"][1] - start[1]) < 0.02
    assert drive(car, -0.5, 0.0, 20)["car_twist"][0] == pytest.approx(-0.5, abs=0.1)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_car_turns_in_steering_direction(sign: float) -> None:
    car = make_car()
    car.reset(0)
    state = drive(car, 0.2, sign, 10)
    _, _, z, w = state["car_pose"][3:].tolist()
    assert sign * 2.0 * math.atan2(z, w) > 0.3
    assert state["steering"][0] == pytest.approx(sign * 0.5, abs=0.05)


def test_bumper_reports_walls_only() -> None:
    car = make_car(WALL)
    assert car.reset(0).state["bumper"][0] == 0.0
    for sign in (1.0, -1.0):  # turning wheels do not trigger the bumper
        assert drive(car, 0.05, sign, 5)["bumper"][0] == 0.0
    assert drive(car, 0.5, 0.0, 20)["bumper"][0] == 1.0
    drive(car, -1.0, 0.0, 5)
    assert car.observe().state["bumper"][0] == 0.0


def test_car_stays_upright_at_full_speed_and_steering() -> None:
    car = make_car()
    for steering in (1.0, -1.0):
        car.reset(0)
        drive(car, 1.0, 0.0, 20)
        x, y = drive(car, 1.0, steering, 30)["car_pose"][3:5].tolist()
        assert 1.0 - 2.0 * (x * x + y * y) > 0.95


def test_driver_camera_shows_approaching_wall() -> None:
    views = {"driver": View(camera="driver", width=32, height=32)}
    car = make_car(WALL, views)
    far = car.reset(0).images["driver"]
    drive(car, 0.3, 0.0, 6)
    near = car.observe().images["driver"]
    assert far.shape == (32, 32, 3)
    assert np.abs(far.astype(int) - near).max() > 30


def test_another_simulated_car_can_show_placement() -> None:
    car, other = make_car(), make_car()
    state = drive(car, 0.5, 0.5, 10)
    other.show(car.placement())
    assert other.truth()["car_pose"] == pytest.approx(state["car_pose"], abs=0.01)
    with pytest.raises(BadInput, match="placement"):
        other.show(np.zeros(3))


def varied(level: str, renderer: str = "ray") -> SimCar:
    views = {"driver": {"camera": "driver", "width": 32, "height": 32}}
    settings = {"randomize": level, "renderer": renderer, "views": views}
    task = make_task(resolve({"task": "racing_car", "observe": "pixels", "task_config": settings}))
    car = plugins.make_simulation(task)
    assert isinstance(car, SimCar)
    return car


def readings(car: SimCar, seed: int) -> list[Observation]:
    found = [car.reset(seed)]
    for _ in range(5):
        car.act(np.array((0.4, 0.1), np.float32))
        car.advance(0.1)
        found.append(car.observe())
    return found


def test_random_world_depends_only_on_the_seed() -> None:
    car = varied("full")
    first, other, again = readings(car, 3), readings(car, 4), readings(car, 3)
    for one, same in zip(first, again, strict=True):
        assert all(np.array_equal(one.state[name], same.state[name]) for name in one.state)
        assert np.array_equal(one.images["driver"], same.images["driver"])
    looks = [reading[0].images["driver"].astype(float) for reading in (first, other)]
    assert np.abs(looks[0] - looks[1]).mean() > 1.0


def test_random_world_varies_car_mass_and_delays_actions_and_images() -> None:
    plain, car = varied("none"), varied("full")
    masses, ages, moved = set(), [], []
    for seed in range(8):
        car.reset(seed)
        masses.add(round(float(car.model.body("car").mass[0]), 2))
        car.act(np.array((1.0, 0.0), np.float32))
        car.advance(0.1)
        reading = car.observe()
        ages.append(reading.stamps["robot"] - reading.stamps["driver"])
        moved.append(float(car.truth()["car_twist"][0]))
        error = reading.state["car_pose"][:3] - car.truth()["car_pose"][:3]
        assert 0.0 < np.abs(error).max() < 0.02, "the observed pose has a small error"
    assert len(masses) > 4
    assert max(ages) >= 0.03 - 1e-6
    plain.reset(0)
    plain.act(np.array((1.0, 0.0), np.float32))
    plain.advance(0.1)
    assert np.mean(moved) < 0.9 * float(plain.truth()["car_twist"][0])
    assert float(plain.model.body("car").mass[0]) == pytest.approx(2.4)


def test_stop_takes_effect_at_once_in_random_world() -> None:
    car = varied("full")
    car.reset(0)
    car.act(np.array((1.0, 0.0), np.float32))
    car.stop("enough")
    for _ in range(3):
        car.advance(0.1)
    assert abs(float(car.truth()["car_twist"][0])) < 0.1
