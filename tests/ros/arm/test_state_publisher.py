"""Topics of a simulation in the actor's process, read by a second node over real DDS."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import pytest

from serl import plugins
from serl.arm_pair import SIDES, PairedArm, mount_of
from serl.geometry import add, multiply, rotate
from serl.motion import Pose
from serl.ros.arm.camera import info_topic, picture_of, picture_topic
from serl.ros.arm.publisher import link_transforms
from serl.ros.arm.rehearsal import RehearsalArm, RehearsalConfig
from serl.ros.arm.state_publisher import StatePublisher
from serl.ros.arm.topics import SENSOR, robot_description, topic_of, tracked_pose, transforms
from serl.ros.node import RosNode
from serl.ros.testing.processes import eventually
from serl.runs.config import resolve
from serl.runs.task_setup import make_task
from serl.teleop.leader_joints import read_chain, read_joints

pytestmark = pytest.mark.ros

PROFILE = plugins.load("robot", "sim")
LAYOUT = Path(__file__).parents[3] / "docs/examples/foxglove.json"


class Watched:
    """A simulation with its publisher, and a second node with the newest message per topic."""

    def __init__(self, folder: Path, task: str, observe: str, stack: ExitStack) -> None:
        config = resolve({"task": task, "observe": observe})
        self.task: Any = make_task(config)
        self.robot: Any = stack.enter_context(plugins.make_simulation(self.task))
        self.folder, self._stack = folder, stack
        self.node = stack.enter_context(RosNode("watcher", folder, local=True))
        self.found: dict[str, Any] = {}
        self.own = stack.enter_context(RosNode("actor0", folder, local=True))
        self.publisher = StatePublisher(self.own, "actor0", config, self.robot)

    def subscribe(self, *topics: Any) -> None:
        """Subscribe after the publisher started, as a program that joins a training does."""
        for topic in topics:
            self.node.subscribe(topic, partial(self.found.__setitem__, topic.name))

    def until_found(self, reading: Any, *names: str) -> None:
        def is_found() -> bool:
            self.publisher.on_reading(reading)
            return set(names) <= self.found.keys()

        eventually(is_found, found=lambda: str(self.found.keys()))


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def test_simulated_arm_publishes_state_images_and_urdf_of_an_arm(
    stack: ExitStack, tmp_path: Path
) -> None:
    seen = Watched(tmp_path / "run", "pick_cube", "pixels", stack)
    view = next(iter(seen.robot.observation_spec.images))
    channels = (PROFILE.pose, PROFILE.wrench, PROFILE.joint_states, PROFILE.gripper.state)
    topics = [topic_of(channel, "actor0", SENSOR) for channel in channels]
    pictures = [picture_topic("actor0", view), info_topic("actor0", view)]
    cube, kept = tracked_pose("actor0", "cube"), robot_description("actor0")
    seen.subscribe(*topics, *pictures, cube, kept)
    seen.robot.reset(3)
    reading = seen.robot.observe()
    seen.until_found(reading, *(each.name for each in (*topics, *pictures, cube, kept)))
    pose, wrench, joints, gripper = (seen.found[topic.name] for topic in topics)
    place = pose.pose.position
    assert pose.header.frame_id == "base"
    assert np.allclose([place.x, place.y, place.z], reading.state["tcp_pose"][:3])
    assert wrench.wrench.force.z == pytest.approx(float(reading.state["wrench"][2]))
    assert tuple(joints.name) == PROFILE.joints
    assert np.allclose(joints.position, reading.state["q"])
    assert gripper.position[0] == pytest.approx(0.08 * float(reading.state["gripper"][0]))
    assert np.array_equal(picture_of(seen.found[pictures[0].name]), reading.images[view])
    assert seen.found[pictures[1].name].width == reading.images[view].shape[1]
    assert seen.found[pictures[1].name].k[0] > 0.0
    camera = seen.task.config.all_views[view].camera
    assert {seen.found[each.name].header.frame_id for each in pictures} == {camera}
    assert f'<link name="{camera}"' in seen.found[kept.name].data
    (tmp_path / "arm.urdf").write_text(seen.found[kept.name].data)
    chain = read_chain(tmp_path / "arm.urdf", PROFILE.base_frame, PROFILE.tool_frame)
    assert chain.names == PROFILE.joints
    tip = chain.tip_pose(dict(zip(joints.name, joints.position, strict=True)))
    assert tip is not None
    assert np.allclose(tip[0], reading.state["tcp_pose"][:3], atol=1e-4)
    assert abs(np.dot(tip[1], reading.state["tcp_pose"][3:])) == pytest.approx(1.0, abs=1e-5)
    assert seen.found[kept.name].data.count("<visual>") > 15


@pytest.mark.skipif(
    importlib.util.find_spec("tf2_msgs") is None,
    reason="NOT TESTED: transforms on /tf by tf2_msgs/TFMessage, which no wheel has",
)
def test_state_publisher_sends_arm_transforms_on_tf(stack: ExitStack, tmp_path: Path) -> None:
    seen = Watched(tmp_path / "run", "pick_cube", "state", stack)
    seen.subscribe(transforms(""))
    seen.robot.reset(3)
    reading = seen.robot.observe()
    seen.until_found(reading, "/tf")
    found = _composed(seen.found["/tf"].transforms)
    assert np.allclose(found["tcp"].position, reading.state["tcp_pose"][:3], atol=1e-4)


@pytest.mark.parametrize("name", ["pick_cube", "connector_insertion"])
def test_transforms_reach_tcp_and_every_camera(name: str) -> None:
    """Compare frames with MuJoCo; z of an optical frame points forward, y down in the image."""
    task = make_task(resolve({"task": name, "task_config": {"randomize": "full"}}))
    with plugins.make_simulation(task) as simulation:
        robot: Any = simulation
        robot.reset(2)
        robot.randomizer.restore()
        mujoco.mj_forward(robot.model, robot.data)
        names = [robot.model.camera(index).name for index in range(robot.model.ncam)]
        q = dict(zip(PROFILE.joints, robot.data.qpos[:7], strict=True))
        found = _composed(link_transforms(read_joints(robot.urdf()), q, 0))
        assert {"front", "wrist"} <= set(names) <= found.keys()
        for camera in names:
            seen = robot.data.camera(camera)
            right, up, backward = seen.xmat.reshape(3, 3).T
            assert np.allclose(found[camera].position, seen.xpos, atol=1e-6)
            turn = found[camera].quaternion
            axes = [rotate(turn, (1, 0, 0)), rotate(turn, (0, 1, 0)), rotate(turn, (0, 0, 1))]
            assert np.allclose(axes, [right, -up, -backward], atol=1e-6)
        assert np.allclose(found["tcp"].position, robot.data.site("tcp").xpos, atol=1e-6)


def test_urdf_of_each_paired_arm_is_in_its_own_base_frame(tmp_path: Path) -> None:
    task: Any = make_task(resolve({"task": "handover"}))
    with plugins.make_simulation(task) as simulation:
        robot: Any = simulation
        robot.reset(1)
        for (side, prefix), arm in zip(SIDES.items(), robot.sides(), strict=True):
            mount = mount_of(side, PairedArm(profile="sim"), task.scene.bases[prefix])
            measured = RehearsalArm(arm, RehearsalConfig(drift_m=0, drift_rad=0), mount)
            numbers = measured.measure()
            q = dict(zip(PROFILE.joints, numbers["q"], strict=True))
            assert measured.urdf is not None
            found = _composed(link_transforms(read_joints(measured.urdf()), q, 0))
            assert np.allclose(found["tcp"].position, numbers["tcp_pose"][:3], atol=1e-4)
            assert abs(np.dot(found["tcp"].quaternion, numbers["tcp_pose"][3:])) > 1.0 - 1e-6
            assert f"{prefix}wrist" in found


def _composed(messages: Iterable[Any]) -> dict[str, Pose]:
    """Return each frame's pose in the base, from transforms ordered parents first."""
    found = {"base": Pose((0.0, 0.0, 0.0), (0.0, 0.0, 0.0, 1.0))}
    for each in messages:
        parent, moved = found[each.header.frame_id], each.transform.translation
        turned = each.transform.rotation
        place = rotate(parent.quaternion, (moved.x, moved.y, moved.z))
        turn = multiply(parent.quaternion, (turned.x, turned.y, turned.z, turned.w))
        found[each.child_frame_id] = Pose(add(parent.position, place), turn)
    return found


def test_state_publisher_drops_observations_within_one_period(
    stack: ExitStack, tmp_path: Path
) -> None:
    seen = Watched(tmp_path / "run", "pick_cube", "state", stack)
    topic = topic_of(PROFILE.joint_states, "actor0", SENSOR)
    received: list[Any] = []
    seen.node.subscribe(topic, received.append)
    seen.robot.reset(0)
    reading = seen.robot.observe()

    def is_received() -> bool:
        seen.publisher.on_reading(reading)
        return bool(received)

    eventually(is_received)
    received.clear()
    for _ in range(100_000):
        seen.publisher.on_reading(reading)
    assert len(received) < 1000


def test_state_publisher_uses_one_namespace_per_paired_arm(
    stack: ExitStack, tmp_path: Path
) -> None:
    seen = Watched(tmp_path / "run", "handover", "state", stack)
    topics = [topic_of(PROFILE.pose, f"actor0/{side}", SENSOR) for side in ("left", "right")]
    seen.subscribe(*topics, tracked_pose("actor0/left", "bar"), robot_description("actor0/right"))
    seen.robot.reset(0)
    reading = seen.robot.observe()
    names = [*(topic.name for topic in topics), "actor0/left/bar_pose"]
    seen.until_found(reading, *names, "actor0/right/robot_description")
    for topic, side in zip(topics, ("left", "right"), strict=True):
        place = seen.found[topic.name].pose.position
        assert np.allclose([place.x, place.y, place.z], reading.state[f"{side}_tcp_pose"][:3])


def test_foxglove_layout_shows_only_topics_of_simulated_arm() -> None:
    layout = json.loads(LAYOUT.read_text())
    shown = set(layout["configById"])
    text = json.dumps(layout["layout"])
    assert all(f'"{panel}"' in text for panel in shown)
    published = {
        *(topic_of(each, "/sim/arm", SENSOR).name for each in PROFILE.channels),
        *(picture_topic("/sim/arm", camera).name for camera in ("front", "wrist")),
        *(info_topic("/sim/arm", camera).name for camera in ("front", "wrist")),
        *(robot_description("/sim/arm").name, "/diagnostics", "/rosout"),
    }
    strings = [word for word in _strings(layout) if word.startswith("/")]
    topics = {word.partition(".")[0] for word in strings}
    assert len(topics) > 8
    assert topics <= published


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, each in value.items():
            yield key
            yield from _strings(each)
    elif isinstance(value, list):
        for each in value:
            yield from _strings(each)
    elif isinstance(value, str):
        yield value
