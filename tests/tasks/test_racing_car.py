from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from serl.camera import View
from serl.sim.car import SimCar
from serl.tasks.racing_car import RacingCar, RacingCarConfig
from serl.testing.samples import episode
from serl.types import End, Observation, Step


def make(**changes: Any) -> tuple[SimCar, RacingCar]:
    task = RacingCar(RacingCarConfig(**changes))
    return SimCar(task.scene, task.config), task


def laps(pace: float, seeds: range) -> list[int]:
    """Return the steps of each lap; every lap must succeed without a collision."""
    car, task = make(pace=pace)
    steps = []
    for seed in seeds:
        end = episode(car, task, task.expert(car.truth, seed), 1000 + seed)[-1]
        assert isinstance(end, End)
        assert end.success, f"seed {seed}: {end.text}"
        steps.append(end.key.index)
    return steps


def test_expert_laps_without_collision_and_faster_than_demonstration() -> None:
    expert, demonstration = np.mean(laps(1.0, range(2))), np.mean(laps(0.65, range(2)))
    assert expert < 70
    assert 0.60 <= expert / demonstration <= 0.72


@pytest.mark.slow
def test_expert_laps_100_times_without_collision() -> None:
    assert len(laps(1.0, range(100))) == 100


def test_course_of_three_checkpoints_is_refused() -> None:
    with pytest.raises(ValidationError, match="at least 4"):
        RacingCarConfig(checkpoints=((0.0, 0.0), (1.0, 0.0), (1.0, 1.0)))


def test_other_actions_than_those_of_a_car_are_refused() -> None:
    motion = RacingCarConfig().motion
    for changes in ({"gripper": True}, {"axes": ("x",)}):
        with pytest.raises(ValidationError, match="motion: a car has the axes x and yaw"):
            RacingCarConfig(motion=motion.model_copy(update=changes))


def steps_of(car: SimCar, task: RacingCar, speed: float, steps: int) -> float:
    """Return the sum of rewards for driving straight forwards or backwards."""
    total = 0.0
    for index in range(steps):
        car.act(np.array((speed, 0.0), np.float32))
        car.advance(0.1)
        total += task.outcome(car.observe(), index).reward
    return total


def test_driving_forwards_is_rewarded_and_driving_back_penalized() -> None:
    car, task = make()
    task.begin(car.reset(3))
    forwards = steps_of(car, task, 0.2, 6)
    assert forwards > 0.01
    assert forwards + steps_of(car, task, -1.0, 8) < 0.5 * forwards


def test_crossing_the_line_back_and_forth_is_no_lap() -> None:
    car, task = make()
    task.begin(car.reset(3))
    for _ in range(3):
        steps_of(car, task, 0.2, 5)
        steps_of(car, task, -0.5, 8)
    assert not task.is_success(car.truth())
    assert task.progress(car.truth()) < 0.1


def test_lap_ending_in_a_wall_is_no_success() -> None:
    car, task = make()
    task.begin(crash(car, task, 0, 1.0))
    task._driven_m = task.course.length_m
    reading = car.observe()
    assert reading.state["bumper"][0] == 1.0
    assert not task.outcome(reading, 0).success
    assert not task.is_success(car.truth())
    free = {**car.truth(), "bumper": np.zeros(1, np.float32)}
    assert task.is_success(free)


def crash(car: SimCar, task: RacingCar, seed: int, steering: float) -> Observation:
    reading = car.reset(seed)
    task.begin(reading)
    for index in range(80):
        car.act(np.array((0.7, steering), np.float32))
        car.advance(0.1)
        reading = car.observe()
        outcome = task.outcome(reading, index)
        if outcome.terminated:
            assert not outcome.success
            assert outcome.reward < 0.0
            return reading
    raise AssertionError("no wall was met")


def test_reset_script_recovers_car_from_any_collision() -> None:
    car, task = make()
    for seed, steering in enumerate((-1.0, -0.3, 0.3, 1.0)):
        reading = crash(car, task, seed, steering)
        script = task.reset(reading)
        assert script is not None, f"seed {seed}: the car touches a wall"
        for _ in range(100):
            car.act(script(reading))
            car.advance(0.1)
            reading = car.observe()
            if task.reset(reading) is None:
                break
        assert task.reset(reading) is None, f"seed {seed}"
        expert = task.expert(car.truth, seed)
        for _ in range(20):
            car.act(expert(reading))
            car.advance(0.1)
            assert car.observe().state["bumper"][0] == 0.0, f"seed {seed}: not free"


def test_car_does_not_climb_walls() -> None:
    car, task = make()
    rng = np.random.default_rng(0)
    for seed in range(2):
        task.begin(car.reset(seed))
        for _ in range(25):
            action = np.array((rng.uniform(0.5, 1.0), rng.uniform(-1.0, 1.0)), np.float32)
            for _ in range(5):
                car.act(action)
                car.advance(0.1)
            car.act(np.array((-0.6, -action[1]), np.float32))
            car.advance(0.2)
            pose = car.observe().state["car_pose"]
            assert pose[2] < 0.12, f"seed {seed}: the car's wheels leave the floor"
            assert abs(task._view({"car_pose": pose}).off_m) < 0.5


def test_driver_camera_images_are_valid_and_change() -> None:
    views = {"driver": View(camera="driver", width=16, height=16)}
    config = RacingCarConfig(observe="pixels", views=views)
    task = RacingCar(config)
    car = SimCar(task.scene, config)
    records = episode(car, task, task.expert(car.truth, 0))
    steps = [record for record in records if isinstance(record, Step)]
    for step in steps:
        task.observation_spec.validate_observation(step.observation)
    assert len({step.observation.images["driver"].tobytes() for step in steps}) > len(steps) // 2
