"""The simulated arm on topics: the real node in its own process, over real DDS."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from datetime import datetime
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rosgraph_msgs.msg import Clock
from std_msgs.msg import Float64MultiArray

from serl import plugins
from serl.arm_profile import read_robot
from serl.compliance import RESET, TaskCompliance
from serl.console.pictures import DrawnScene
from serl.errors import BadInput, SerlError
from serl.motion import Pose
from serl.policy import RandomPolicy
from serl.ros.arm.simulated import SimulatedRosArm
from serl.ros.arm.topics import COMMAND, SENSOR, robot_description, topic_of
from serl.ros.conversions import pose_message, trajectory_message, wrench_message
from serl.ros.node import RosNode
from serl.ros.services import Remote
from serl.ros.telemetry import scene_topic
from serl.ros.testing.processes import eventually
from serl.ros.topics import Topic
from serl.runs.config import resolve
from serl.runs.folder import RunFolder
from serl.runs.task_setup import make_task
from serl.system.settings_file import checked
from serl.testing import SimulatedRobotSuite
from serl.trajectory import JointPoint, Trajectory
from serl.types import Array, Observation

from ..conftest import Run

pytestmark = pytest.mark.ros

ROBOT = "actor0"
PROFILE = plugins.load("robot", "sim")


class Rig:
    """A simulation in its own process, and a node in the test's process."""

    def __init__(self, folder: Path, observe: str, *options: str) -> None:
        config = resolve({"task": "pick_cube", "observe": observe})
        self.task = make_task(config)
        self.folder = RunFolder.create(folder, config, datetime.now()).path
        self.options = options
        self.processes = Run(self.folder)
        self.node = RosNode("test", self.folder, local=True)

    def __enter__(self) -> Rig:
        self.node.__enter__()
        module = ("-m", "serl.ros.nodes.sim", "--run", str(self.folder), "--robot", ROBOT)
        self.process = self.processes.start(*module, *self.options)
        return self

    def __exit__(self, *failure: Any) -> None:
        self.said = self.processes.end()
        self.node.__exit__(*failure)

    @cached_property
    def arm(self) -> SimulatedRosArm:
        lockstep = "--lockstep" in self.options
        arguments = (self.node, ROBOT, PROFILE, self.task.config, self.task.scene.tracked)
        return SimulatedRosArm(*arguments, lockstep=lockstep)


@pytest.fixture(scope="module")
def lockstep_rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with Rig(tmp_path_factory.mktemp("lockstep"), "state", "--lockstep") as rig:
        yield rig


@pytest.fixture
def lockstep(lockstep_rig: Rig) -> Rig:
    """Return the shared rig; the test before may have left its arm in hold."""
    lockstep_rig.arm.mode = "policy"
    return lockstep_rig


@pytest.fixture(scope="module")
def realtime(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with Rig(tmp_path_factory.mktemp("realtime"), "state", "--clock") as rig:
        yield rig


class TestLockstepNode(SimulatedRobotSuite):
    @pytest.fixture(autouse=True)
    def _rig(self, lockstep: Rig) -> None:
        self.rig = lockstep

    def make(self) -> SimulatedRosArm:
        self.rig.arm.reset(0)
        return self.rig.arm


def test_scene_topic_and_urdf_suffice_to_render_the_scene(realtime: Rig) -> None:
    scenes: list[Any] = []
    urdfs: list[Any] = []
    realtime.node.subscribe(scene_topic(ROBOT), lambda message: scenes.append(message.data))
    realtime.node.subscribe(robot_description(ROBOT), urdfs.append)
    eventually(lambda: scenes and urdfs)
    assert '<link name="wrist"' in urdfs[0].data, "a camera"
    images = DrawnScene(realtime.task, lambda: np.array(scenes[-1])).look()
    assert images is not None
    assert images["front"].std() > 10.0, "the image must not be empty"


@pytest.mark.parametrize("observe", ["state", "pixels"])
def test_lockstep_node_equals_simulation_in_process_bit_for_bit(
    observe: str, lockstep: Rig, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        pixels = observe == "pixels"
        rig = stack.enter_context(Rig(tmp_path, observe, "--lockstep")) if pixels else lockstep
        arm, inside = rig.arm, plugins.make_simulation(rig.task)
        for seed in (3, 4):
            assert_equal(arm.reset(seed), inside.reset(seed))
            choose = RandomPolicy(arm.action_spec, seed)
            for _ in range(8):
                action = choose(inside.observe())
                assert np.array_equal(arm.act(action), inside.act(action))
                arm.advance(0.1)
                inside.advance(0.1)
                assert_equal(arm.observe(), inside.observe())
                here, there = arm.truth(), inside.truth()
                assert here.keys() == there.keys()
                assert all(np.array_equal(here[name], there[name]) for name in here)


def assert_equal(one: Observation, other: Observation) -> None:
    assert list(one.state) == list(other.state)
    for name, value in other.state.items():
        assert np.array_equal(one.state[name], value), name
    assert one.images.keys() == other.images.keys()
    for name, image in other.images.items():
        assert np.array_equal(one.images[name], image), name


def test_lockstep_stop_brakes_like_simulation_in_process(lockstep: Rig) -> None:
    arm, inside = lockstep.arm, plugins.make_simulation(lockstep.task)
    for robot in (arm, inside):
        robot.reset(5)
        action = np.array([1, 0, 0, 0, 0], np.float32)
        for _ in range(5):
            robot.act(action)
            robot.advance(0.1)
        robot.stop("test")
        for _ in range(3):
            robot.advance(0.1)
    assert np.array_equal(arm.observe().state["q"], inside.observe().state["q"])


def test_gain_and_clip_parameters_are_validated(lockstep: Rig) -> None:
    arm = lockstep.arm
    node = f"{ROBOT}/arm"
    arm.remote.set_parameters(node, {"translational_clip_neg_x": 0.004})
    found = arm.remote.get_parameters(node, ["translational_clip_neg_x", "rotational_damping"])
    assert found == {"translational_clip_neg_x": 0.004, "rotational_damping": 7.0}
    for name, value in {
        "translational_stiffness": 1e9,
        "rotational_clip_z": 0.0,
        "seed": -1,
        "translational_damping": float("nan"),
    }.items():
        with pytest.raises(SerlError, match=name):
            arm.remote.set_parameters(node, {name: value})
    arm.remote.set_parameters(node, {"translational_clip_neg_x": 0.010})


def test_advance_rejects_period_that_is_no_multiple_of_the_step(lockstep: Rig) -> None:
    arm = lockstep.arm
    arm.reset(0)
    with pytest.raises(SerlError, match="expected a positive multiple"):
        arm.advance(0.013)
    arm.advance(0.1)


class Hand:
    """A publisher that repeats its setpoint at 100 Hz, as a guard does."""

    def __init__(self, rig: Rig) -> None:
        self.pose: Pose | None = None
        self.frame = "base"
        self._node = rig.node
        self._target = rig.node.publisher(topic_of(PROFILE.target, ROBOT, SENSOR))
        self.gripper = rig.node.publisher(topic_of(PROFILE.gripper.command, ROBOT, SENSOR))
        rig.node.every(0.01, self._send)

    def _send(self) -> None:
        if self.pose is not None:
            values = [*self.pose.position, *self.pose.quaternion]
            stamp_ns = self._node.handle.get_clock().now().nanoseconds
            self._target.publish(pose_message(values, self.frame, stamp_ns))


@pytest.fixture(scope="module")
def hand(realtime: Rig) -> Hand:
    return Hand(realtime)


@pytest.fixture
def arm(realtime: Rig, hand: Hand) -> SimulatedRosArm:
    hand.pose = None
    realtime.arm.reset(1)
    return realtime.arm


def state(arm: SimulatedRosArm) -> Mapping[str, Array]:
    """Return the state of a fresh observation, which a busy machine may delay."""
    return arm.observe_when_fresh(30.0).state


def tool(arm: SimulatedRosArm) -> np.ndarray[Any, Any]:
    return state(arm)["tcp_pose"][:3].astype(float)


def moved(pose: Pose, x: float) -> Pose:
    return Pose((pose.position[0] + x, *pose.position[1:]), pose.quaternion)


def test_realtime_arm_publishes_state_at_100_hz(arm: SimulatedRosArm, realtime: Rig) -> None:
    stamps_s: list[float] = []

    def append_stamp(message: Clock) -> None:
        stamps_s.append(message.clock.sec + 1e-9 * message.clock.nanosec)

    realtime.node.subscribe(Topic("/clock", Clock, 10), append_stamp)

    def period_s() -> float:
        """Return the present period; a busy machine may be late at another time."""
        return float(np.median(np.diff(stamps_s[-50:])))

    eventually(
        lambda: len(stamps_s) > 50 and 0.007 < period_s() < 0.013, found=lambda: str(period_s())
    )

    def is_of_now() -> bool:
        reading = arm.observe_when_fresh(30.0)
        arm.observation_spec.validate_observation(reading)
        return bool(abs(reading.stamps["robot"] - time.monotonic()) < 0.2)

    eventually(is_of_now)


def test_realtime_arm_follows_setpoints_and_holds_when_they_end(
    arm: SimulatedRosArm, hand: Hand
) -> None:
    start = arm.aim.target
    hand.pose = moved(start, 0.01)
    eventually(lambda: tool(arm)[0] - start.position[0] > 0.008)
    hand.pose = None

    def is_at_rest() -> bool:
        before = tool(arm)
        time.sleep(0.3)  # real time passes
        return bool(np.abs(tool(arm) - before).max() < 1e-3)

    eventually(is_at_rest)
    assert 0.006 < tool(arm)[0] - start.position[0] < 0.015


@pytest.mark.parametrize(
    ("pose", "frame"),
    [
        (lambda start: moved(start, 0.2), "base"),  # further than a guard's largest lead
        (lambda start: moved(start, float("nan")), "base"),
        (lambda start: Pose(start.position, (0.0, 0.0, 0.0, 0.0)), "base"),
        (lambda start: moved(start, 0.01), "world"),
    ],
)
def test_realtime_arm_ignores_invalid_setpoints(
    arm: SimulatedRosArm, hand: Hand, pose: Any, frame: str
) -> None:
    before = tool(arm)
    hand.pose, hand.frame = pose(arm.aim.target), frame
    time.sleep(0.4)
    hand.pose, hand.frame = None, "base"
    assert np.abs(tool(arm) - before).max() < 1e-3


def test_gripper_follows_width_commands_and_ignores_invalid_ones(
    arm: SimulatedRosArm, hand: Hand
) -> None:
    eventually(lambda: state(arm)["gripper"][0] > 0.9)
    eventually(hand.gripper.get_subscription_count)
    hand.gripper.publish(Float64MultiArray(data=[0.0]))
    eventually(lambda: state(arm)["gripper"][0] < 0.1)
    hand.gripper.publish(Float64MultiArray(data=[float("nan")]))
    hand.gripper.publish(Float64MultiArray(data=[]))
    hand.gripper.publish(Float64MultiArray(data=[0.08]))
    eventually(lambda: state(arm)["gripper"][0] > 0.9)


def test_reset_places_scene_and_updates_truth(arm: SimulatedRosArm) -> None:
    inside = plugins.make_simulation(make_task(resolve({"task": "pick_cube"})))
    for seed in (7, 8):
        expected = inside.reset(seed)
        found = arm.reset(seed)
        assert np.allclose(found.state["cube_pose"], expected.state["cube_pose"], atol=1e-3)
        assert np.allclose(arm.truth()["cube_pose"], expected.state["cube_pose"], atol=1e-3)


def test_realtime_arm_rejects_advance(
    arm: SimulatedRosArm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arm.remote, "trigger", partial(arm.remote.trigger, limit_s=1.0))
    with pytest.raises(SerlError, match="advance"):
        arm.advance(0.1)


def test_views_of_one_camera_in_two_sizes_are_rejected() -> None:
    from serl.ros.arm.publisher import cameras_of

    assert cameras_of([("a", (8, 8)), ("b", (8, 8))]) == ["a", "b"]
    with pytest.raises(BadInput, match="camera a: views ask for different sizes"):
        cameras_of([("a", (8, 8)), ("a", (16, 16))])


def test_simulated_tool_exerts_target_wrench_of_topic_while_it_is_sent(
    arm: SimulatedRosArm, realtime: Rig
) -> None:
    assert PROFILE.target_wrench is not None
    publisher = realtime.node.publisher(topic_of(PROFILE.target_wrench, ROBOT, SENSOR))
    clock = realtime.node.handle.get_clock()
    start_m, force_n = float(arm.observe_when_fresh(30.0).state["tcp_pose"][2]), 6.0

    def send() -> None:
        values = (0.0, 0.0, force_n, 0.0, 0.0, 0.0)
        publisher.publish(wrench_message(values, PROFILE.tool_frame, clock.now().nanoseconds))

    def sunk_m() -> float:
        return start_m - float(arm.observe_when_fresh(30.0).state["tcp_pose"][2])

    def is_pressed() -> bool:
        send()
        return sunk_m() > 0.9 * force_n / 2000.0

    eventually(is_pressed)
    eventually(lambda: abs(sunk_m()) < 2e-4)  # 0.3 s after the last message


def test_simulated_joints_follow_trajectory_until_next_setpoint(realtime: Rig) -> None:
    assert PROFILE.trajectory is not None
    arm, clock = realtime.arm, realtime.node.handle.get_clock()
    trajectories = realtime.node.publisher(topic_of(PROFILE.trajectory, ROBOT, COMMAND))
    targets = realtime.node.publisher(topic_of(PROFILE.target, ROBOT, COMMAND))

    def measured(name: str) -> Array:
        return arm.observe_when_fresh(30.0).state[name].astype(float)

    def send(trajectory: Trajectory, joints: tuple[str, ...] = PROFILE.joints) -> None:
        trajectories.publish(trajectory_message(joints, trajectory))

    eventually(lambda: trajectories.get_subscription_count() and targets.get_subscription_count())
    start = measured("q")
    goal = start + np.array([0.2, 0.0, -0.2, 0.0, 0.0, 0.0, 0.0])
    move = (JointPoint(1.0, tuple(goal.tolist()), (0.0,) * 7),)
    send(move, PROFILE.joints[1:])
    send((JointPoint(1.0, (0.0,), (0.0,)),))
    send(())
    send((move[0]._replace(positions_rad=(float("nan"),) * 7),))
    time.sleep(0.3)
    assert np.abs(measured("q") - start).max() < 0.01, "wrong trajectories are refused"
    send(move)
    eventually(lambda: np.abs(measured("q") - goal).max() < 0.02)
    time.sleep(0.3)
    assert np.abs(measured("q") - goal).max() < 0.02, "the joints stand at its end"
    x, y, z, *turn = measured("tcp_pose").tolist()

    def is_raised() -> bool:
        stamp_ns = clock.now().nanoseconds
        targets.publish(pose_message((x, y, z + 0.01, *turn), PROFILE.base_frame, stamp_ns))
        return bool(abs(measured("tcp_pose")[2] - z - 0.01) < 2e-3)

    eventually(is_raised)


def test_simulated_controller_applies_compliance_tables_of_task(realtime: Rig) -> None:
    example = Path(__file__).parents[3] / "docs/examples/rehearsal.yaml"
    own = read_robot(example).controller.model_copy(update={"node": "arm"})
    tables = {
        "task": {"stiffness": {"translation": 900}, "clip": {"x": [-0.002, 0.0075]}},
        "reset": {"damping": {"translation": 80}},
    }
    compliance = checked(TaskCompliance, tables)
    profile = PROFILE.model_copy(update={"controller": own}).with_compliance(compliance)
    remote, node = Remote(realtime.node, lambda: None), f"{ROBOT}/arm"
    start, reset = profile.controller.parameters, profile.controller.modes[RESET].parameters
    assert (start["translational_stiffness"], start["translational_clip_neg_x"]) == (900, 0.002)
    assert reset["translational_clip_neg_x"] == 0.01, "the profile's clip must remain"
    initial = remote.get_parameters(node, list(start))
    for gains in (start, reset):
        remote.set_parameters(node, gains)
        assert remote.get_parameters(node, list(gains)) == gains
    remote.set_parameters(node, initial)
