"""Gymnasium environments as tasks: any environment id with Box actions."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import gymnasium
import mujoco
import numpy as np
import pytest
from gymnasium import spaces

from serl import plugins
from serl.clock import VirtualClock
from serl.errors import BadInput, SerlError
from serl.log.metrics import read_metrics
from serl.loop import EpisodeKey, run
from serl.policy import RandomPolicy
from serl.robot import SimulatedRobot
from serl.runs.config import resolve
from serl.runs.settings import run_settings
from serl.runs.task_setup import make_spec, make_task
from serl.task import SimulatedTask
from serl.testing import SimulatedRobotSuite, SimulatedTaskSuite
from serl.training.evaluation import void_cause
from serl.types import EndReason

from ..support.command import SERL, Program

DOCS = Path(__file__).parents[2] / "docs"
EXPERT = DOCS / "examples/fetch_expert.py"


class Door(gymnasium.Env[Any, Any]):
    """Door that opens by pushing, with nested observation, image and success in `info`."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 20}  # noqa: RUF012
    observation_space = spaces.Dict(
        {
            "agent": spaces.Dict({"pos": spaces.Box(-9.0, 9.0, (2,), np.float64)}),
            "side": spaces.Discrete(3),
            "Wrist Cam": spaces.Box(0, 255, (12, 16, 3), np.uint8),
        }
    )
    action_space = spaces.Box(np.array([-2.0, 0.0]), np.array([2.0, 10.0]), (2,), np.float64)

    def __init__(self, render_mode: str | None = None, width: int = 16) -> None:
        self.render_mode = render_mode
        image = spaces.Box(0, 255, (12, width, 3), np.uint8)
        self.observation_space = spaces.Dict({**self.observation_space.spaces, "Wrist Cam": image})

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        np.random.RandomState(seed)  # as of robosuite: raises for a seed of over 32 bits
        self.place = np.array([self.np_random.uniform(0.0, 1.0), 0.0])
        self.pushes: list[Any] = []
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.pushes.append(np.array(action))
        self.place = self.place + action
        is_broken, is_open = self.place[0] < -3.0, self.place[0] > 5.0
        return self._seen(), -0.5, bool(is_broken), False, {"success": bool(is_open)}

    def render(self) -> Any:
        return np.full((30, 30, 3), 200, np.uint8)

    def _seen(self) -> dict[str, Any]:
        image = np.full(self.observation_space["Wrist Cam"].shape or (), 7, np.uint8)
        return {"agent": {"pos": self.place}, "side": 2, "Wrist Cam": image}


@pytest.fixture(scope="module", autouse=True)
def _register() -> Iterator[None]:
    gymnasium.register("serl_test/Door-v0", lambda **given: Door(**given), max_episode_steps=40)
    yield
    del gymnasium.registry["serl_test/Door-v0"]


DOOR = "gymnasium:serl_test/Door-v0"


def made(name: str = DOOR, **task_config: Any) -> tuple[SimulatedRobot, SimulatedTask]:
    task = make_task(resolve({"task": name, "task_config": task_config}))
    return plugins.make_simulation(task), task


def test_task_takes_settings_from_its_environment() -> None:
    _, task = made()
    config: Any = task.config
    assert (config.rate_hz, config.max_steps, config.reward) == (20.0, 40, "sparse")
    assert config.observe == "pixels"
    assert {name: spec.shape for name, spec in task.observation_spec.state.items()} == {
        "agent_pos": (2,),
        "side": (3,),
    }
    assert {n: s.shape for n, s in task.observation_spec.images.items()} == {
        "wrist_cam": (12, 16, 3)
    }
    spec = make_spec(task)
    assert (spec.task, spec.action.shape, spec.action.low) == (DOOR, (2,), -1.0)


def test_user_settings_override_environment_settings() -> None:
    _, task = made(observe="state", time_limit_s=1.0, reward="environment", make={"width": 24})
    config: Any = task.config
    assert (config.observe, config.max_steps, config.reward) == ("state", 20, "environment")
    assert config.views["wrist_cam"].width == 24
    assert not task.observation_spec.images


def test_actions_are_scaled_to_environment_bounds() -> None:
    robot, _ = made()
    door: Any = robot._env.unwrapped  # type: ignore[attr-defined]
    for action in ([-1.0, -1.0], [1.0, 1.0], [0.0, 0.5]):
        robot.act(np.array(action, np.float32))
        robot.advance(0.05)
    assert np.allclose(door.pushes, [[-2.0, 0.0], [2.0, 10.0], [0.0, 7.5]])


def play(robot: SimulatedRobot, task: SimulatedTask, action: Sequence[float]) -> Any:
    robot.reset(2**48 + 1)
    clock = VirtualClock(robot.advance, task.config.rate_hz)
    chosen = np.array(action, np.float32)
    key = EpisodeKey("run", "actor", 0, 0)
    return run(robot, task, lambda observation: chosen, clock, key, [])


def test_episode_ends_on_success_failure_or_time_limit() -> None:
    robot, task = made()
    opened, broken, idle = (play(robot, task, a) for a in ([1, 0], [-1, 0], [0, 0]))
    assert (opened.success, opened.reward, opened.steps) == (True, 1.0, 3)
    assert (broken.success, broken.reward, broken.text) == (False, 0.0, "failure")
    assert (idle.success, idle.steps, idle.text) == (False, 40, "time limit")
    robot, task = made(reward="environment")
    assert play(robot, task, [1, 0]).reward == -1.5


def test_another_simulation_shows_and_renders_placement() -> None:
    robot, _ = made()
    other, _ = made()
    robot.reset(5)
    for _ in range(4):
        robot.act(np.array([0.3, -0.2], np.float32))
        robot.advance(0.05)
        other.show(robot.placement())  # type: ignore[attr-defined]
    assert np.array_equal(other.observe().state["agent_pos"], robot.observe().state["agent_pos"])
    robot.reset(6)
    other.show(robot.placement())  # type: ignore[attr-defined]
    assert np.array_equal(other.observe().state["agent_pos"], robot.observe().state["agent_pos"])
    picture = plugins.make_renderer(other).frame("front", 64, 32)
    assert picture.shape == (32, 64, 3)
    assert picture[:, 16:48].min() == 200
    assert picture[:, :16].max() == 0


def test_expert_acts_in_environment_units(tmp_path: Path, changed: Changed) -> None:
    file = tmp_path / "expert.py"
    file.write_text(
        "def expert(rng):\n    return lambda seen: [2.0, 5.0 * (seen['agent_pos'].shape == (2,))]\n"
    )
    robot, task = made(expert=str(file))
    action = task.expert(robot.truth, 0)(task.observation(robot.observe()))
    assert action.tolist() == [1.0, 0.0]
    file.write_text("def expert(rng):\n    return lambda seen: seen['nothing']\n")
    del sys.modules[f"serl_plugin:{file}"]
    with pytest.raises(BadInput, match=r"expert.py: expert: KeyError: 'nothing'"):
        task.expert(robot.truth, 0)(task.observation(robot.observe()))
    picture = np.zeros((12, 16, 3), np.uint8)
    space = spaces.Box(0, 255, picture.shape, np.uint8)
    alone = {"observation_space": space, "__init__": lambda door: None}
    file = tmp_path / "of_picture.py"
    file.write_text("def expert(rng):\n    return lambda seen: [seen.shape[0] / 6.0, 5.0]\n")
    robot, task = made(changed(**alone, _seen=lambda door: picture), expert=str(file))
    action = task.expert(robot.truth, 0)(task.observation(robot.observe()))
    assert action.tolist() == [1.0, 0.0]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"task": "gymnasium:CartPole-v1"}, "expected a Box of numbers"),
        ({"task": "gymnasium:Nowhere-v3"}, r"no installed package has this environment.*serl\[gy"),
        ({"task": "gymnasium:Pendulum"}, "one of Pendulum-v1"),
        ({"task": "gymnasium:nowhere_at_all:X-v0"}, "pip install nowhere_at_all"),
        ({"task": "gym_hil:PandaPickCube-v0"}, "PandaPickCube-v0: pip install gym_hil: "),
        ({"task": DOOR, "task_config": {"make": {"colour": 1}}}, "colour"),
        ({"task": DOOR, "task_config": {"make": {"max_episode_steps": 3}}}, "time_limit_s"),
        ({"task": DOOR, "task_config": {"id": "Other-v0"}}, "task_config.id"),
        ({"task": DOOR, "task_config": {"actions": ["x"]}}, "expected 2 names, got 1"),
        ({"task": DOOR, "task_config": {"randomize": "full"}}, "randomize: expected none"),
        (
            {"task": DOOR, "task_config": {"views": {"wrist_cam": {"width": 8}}}},
            r"views: .*as they are, uncropped: wrist_cam \(16 x 12\)",
        ),
        ({"task": DOOR, "demos": 5}, "no scripted expert.*--demos 0"),
        ({"task": DOOR, "intervention": "scripted"}, "no scripted expert"),
        ({"task": DOOR, "curriculum": {"start": 0.3}}, "curriculum.start: .*no scripted expert"),
        ({"task": DOOR, "demonstrator": "human"}, "a simulated hand moves tools only"),
        ({"task": DOOR, "robot": "sim"}, "in this process only, not over topics"),
    ],
)
def test_untrainable_environments_give_one_line_errors(
    overrides: dict[str, Any], message: str
) -> None:
    with pytest.raises(BadInput, match=message) as raised:
        run_settings(None, {}, overrides)
    assert "\n" not in str(raised.value)


Changed = Callable[..., str]


@pytest.fixture
def changed() -> Iterator[Changed]:
    """Return a function that registers a `Door` with other attributes, and returns its task."""
    names: list[str] = []

    def register(**attributes: Any) -> str:
        other: Any = type("Other", (Door,), attributes)
        names.append(f"serl_test/Other{next(_COUNT)}-v0")
        gymnasium.register(names[-1], other, max_episode_steps=40)
        return f"gymnasium:{names[-1]}"

    yield register
    for name in names:
        del gymnasium.registry[name]


_COUNT = count()


def steps(first: int = 1, **returned: Any) -> Callable[..., Any]:
    """Return a `step` that returns these values in place of those of `Door`, from a step on."""

    def step(door: Any, action: Any) -> Any:
        usual = dict(zip(_RETURNED, Door.step(door, action), strict=True))
        return tuple((usual | (returned if len(door.pushes) >= first else {})).values())

    return step


_RETURNED = ("seen", "reward", "terminated", "truncated", "info")


def fails(*given: Any, **named: Any) -> Any:
    raise RuntimeError("broken\ncable")


SEEN = {"agent": {"pos": np.zeros(2)}, "side": 2, "Wrist Cam": np.zeros((12, 16, 3), np.uint8)}


@pytest.mark.parametrize(
    ("returned", "line"),
    [
        ({"reward": None}, "reward: expected one number or truth value, got None"),
        ({"reward": np.zeros(2)}, r"reward: expected .*, got array\(\[0., 0.\]\)"),
        ({"terminated": "no"}, "terminated: expected one number or truth value, got 'no'"),
        ({"info": {"success": "False"}}, r"info\['success'\]: expected .*, got 'False'"),
        ({"info": {"is_success": np.ones(2, bool)}}, r"info\['is_success'\]: expected one number"),
        ({"info": None}, "TypeError"),
        ({"seen": {**SEEN, "agent": {}}}, "observation: has no agent.pos"),
        ({"seen": {**SEEN, "agent": {"pos": np.zeros(3)}}}, "agent.pos: expected 2 numbers, got 3"),
        (
            {"seen": {**SEEN, "Wrist Cam": np.zeros((6, 8, 3), np.uint8)}},
            r"Wrist Cam: expected uint8\[12, 16, 3\], got uint8\[6, 8, 3\]",
        ),
        ({"seen": {**SEEN, "Wrist Cam": np.zeros((12, 16, 3))}}, r"got float64\[12, 16, 3\]"),
        ({"more": 0}, "expected 5"),
    ],
)
def test_unusable_values_are_refused_before_a_run_and_in_a_run(
    changed: Changed, returned: dict[str, Any], line: str
) -> None:
    with pytest.raises(BadInput, match=f"gymnasium:serl_test/.*-v0: .*{line}") as raised:
        run_settings(None, {}, {"task": changed(step=steps(**returned))})
    assert "\n" not in str(raised.value)
    robot, _ = made(changed(step=steps(2, **returned)))
    robot.advance(0.05)
    with pytest.raises(BadInput, match=f"^gymnasium:serl_test/.*-v0: .*{line}"):
        robot.advance(0.05)


def test_reward_and_success_may_be_arrays_of_one_element(changed: Changed) -> None:
    info = {"success": np.array([True])}
    robot, task = made(changed(step=steps(reward=np.array([2.0]), info=info)), reward="environment")
    result = play(robot, task, [0, 0])
    assert (result.reward, result.success, result.steps) == (2.0, True, 1)


def test_success_key_excludes_unusable_entries(changed: Changed) -> None:
    name = changed(step=steps(info={"success": "no", "won": np.int64(1)}))
    robot, task = made(name, success_key="won")
    assert play(robot, task, [0, 0]).success
    name = changed(step=steps(reward=0.5, info={"success": "no"}))
    robot, task = made(name, success_return=1.0)
    assert play(robot, task, [0, 0]).steps == 2


@pytest.mark.parametrize("total", [-300.0, 0.0])
def test_return_that_every_first_step_reaches_is_no_success(total: float) -> None:
    with pytest.raises(BadInput, match=r"task_config\.success_return: expected more than 0"):
        made(success_return=total)


@pytest.mark.parametrize("error", [fails, lambda *given, **named: sys.exit(3)])
def test_failing_environment_is_refused_before_a_run(changed: Changed, error: Any) -> None:
    for method in ("reset", "step"):
        with pytest.raises(BadInput, match=r"-v0: (RuntimeError: broken cable|SystemExit: 3)$"):
            run_settings(None, {}, {"task": changed(**{method: error})})


def test_step_that_fails_later_raises_one_line(changed: Changed) -> None:
    def step(door: Any, action: Any) -> Any:
        return fails() if door.pushes else Door.step(door, action)

    robot, _ = made(changed(step=step))
    robot.advance(0.05)
    with pytest.raises(SerlError, match=r"-v0: RuntimeError: broken cable$") as raised:
        robot.advance(0.05)
    assert not isinstance(raised.value, BadInput), "the actor may be restarted"


@pytest.mark.parametrize(
    "returned",
    [{"reward": np.nan}, {"seen": {**SEEN, "agent": {"pos": np.array([0.0, np.nan])}}}],
)
def test_numbers_that_are_not_finite_make_episodes_void(
    changed: Changed, returned: dict[str, Any]
) -> None:
    with pytest.raises(BadInput, match=r"(reward|agent_pos): not finite"):
        run_settings(None, {}, {"task": changed(step=steps(**returned))})
    robot, task = made(changed(step=steps(3, **returned)))
    result = play(robot, task, [0, 0])
    assert (result.steps, result.reason) == (3, EndReason.FAULT)
    assert void_cause(result.reason, result.fault) == "environment"


def test_termination_wins_over_truncation(changed: Changed) -> None:
    robot, task = made(changed(step=steps(2, terminated=np.True_, truncated=True)))
    robot.reset(0)
    for _ in range(2):
        robot.advance(0.05)
    outcome = task.outcome(robot.observe(), 1)
    assert (outcome.terminated, outcome.truncated, outcome.success) == (True, False, False)


@pytest.mark.parametrize("keys", [("a_b", "a"), ("X", "x"), ("a-b", "a_b")])
def test_arrays_of_one_name_are_refused(changed: Changed, keys: tuple[str, str]) -> None:
    box = spaces.Box(-1.0, 1.0, (2,), np.float64)
    space: dict[str, spaces.Space[Any]] = {
        key: spaces.Dict({"b": box}) if key == "a" else box for key in keys
    }
    name = r"a\.b and a_b|X and x|a-b and a_b"
    with pytest.raises(BadInput, match=rf"observation: ({name}) would both be '(a_b|x)'"):
        made(changed(observation_space=spaces.Dict(space)))


@pytest.mark.parametrize(
    ("box", "line"),
    [
        (spaces.Box(0.0, 9.0, (300, 300), np.float32), "90000 numbers besides images, expected at"),
        (spaces.Box(0, 255, (8, 1100, 3), np.uint8), "seen: an image of 1100 x 8 pixels: expected"),
    ],
)
def test_observation_that_is_too_large_is_refused(
    changed: Changed, box: spaces.Space[Any], line: str
) -> None:
    with pytest.raises(BadInput, match=line):
        make_task(resolve({"task": changed(observation_space=spaces.Dict({"seen": box}))}))


def test_constructor_without_render_mode_is_supported(changed: Changed) -> None:
    name = changed(__init__=lambda door, width=16: Door.__init__(door, width=width))
    made(name)
    with pytest.raises(BadInput, match="render_mode"):
        made(name, make={"render_mode": "rgb_array"})


class TestPendulum(SimulatedRobotSuite):
    """Environment without goals, images or a success signal."""

    period_s = 0.05

    def make(self) -> SimulatedRobot:
        return made("gymnasium:Pendulum-v1")[0]

    def _places(self, robot: SimulatedRobot) -> np.ndarray[Any, Any]:
        return robot.observe().state["observation"]


class TestFetch(SimulatedTaskSuite):
    """Task of gymnasium-robotics with its scripted expert."""

    def make(self) -> tuple[SimulatedRobot, SimulatedTask]:
        pytest.importorskip("gymnasium_robotics", reason="pip install 'serl[gymnasium]'")
        return made("gymnasium:FetchPickAndPlace-v4", expert=str(EXPERT))

    def test_starts_are_drawn_from_the_generator(self) -> None:
        robot, _ = self.make()
        goals = [robot.reset(seed).state["desired_goal"] for seed in (0, 0, 1)]
        assert np.array_equal(goals[0], goals[1])
        assert not np.array_equal(goals[0], goals[2])

    def test_environment_registered_by_another_package_is_created(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        package = pytest.importorskip("gymnasium_robotics", reason="pip install 'serl[gymnasium]'")
        gymnasium.register_envs(package)
        monkeypatch.setattr("gymnasium_robotics.utils.mujoco_utils.mujoco", mujoco)
        self.make()


def test_environment_with_single_array_observation_gives_valid_observations() -> None:
    robot, task = made("gymnasium:MountainCarContinuous-v0")
    assert task.config.max_steps == 999
    choose = RandomPolicy(robot.action_spec, 0)
    robot.act(choose(robot.observe()))
    robot.advance(1 / task.config.rate_hz)
    seen = task.observation(robot.observe())
    task.observation_spec.validate_observation(seen)
    assert list(seen.state) == ["observation"]


@pytest.mark.slow
@pytest.mark.ros
def test_fetch_reach_is_learned_without_human_as_in_the_benchmark(tmp_path: Path) -> None:
    """Train a seed that the benchmark has not; more trials than there make chance small."""
    pytest.importorskip("gymnasium_robotics", reason="pip install 'serl[gymnasium]'")
    (tmp_path / "docs").symlink_to(DOCS)
    command = json.loads((DOCS / "learning.json").read_text())["fetch_reach"]["command"]
    words = shlex.split(command.replace("SEED", "0"))[1:]
    with Program([*SERL, *words, "--trials=200"], tmp_path / "train.out") as program:
        program.succeed()
        rows = read_metrics(program.run_folder().metrics)
    (final,) = [row for row in rows if row.get("purpose") == "final"]
    assert final["trials"] == 200
    assert final["successes"] >= 190
