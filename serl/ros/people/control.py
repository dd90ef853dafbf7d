"""An actor's operator interface: services for labels and stops, and a topic with its state.

Any ROS 2 tool can call the services, except `release`, which needs a signature: see
`serl.system.signed_order`. None of them waits for the control loop.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from diagnostic_msgs.msg import DiagnosticStatus, KeyValue

from serl.arm_pair import read_pair
from serl.arm_profile import load_robot
from serl.bimanual import LEFT, RIGHT
from serl.errors import SerlError
from serl.intervention import Event, Teleop
from serl.loop import Observer
from serl.robot import SimulatedRobot
from serl.ros.lifecycle import INACTIVE
from serl.ros.node import RosNode
from serl.ros.parameters import DescribedParameter
from serl.ros.people.teleop import ActionFrame, TopicDevices
from serl.ros.services import serve, serve_signed
from serl.ros.telemetry import Health, ScenePublisher
from serl.ros.topics import Topic, latest_only
from serl.runs.config import TrainConfig
from serl.runs.task_setup import make_task
from serl.system.signed_order import OrderCheck, key_path
from serl.teleop.config import TeleopConfig
from serl.teleop.human_input import HumanInput, LastEnd
from serl.teleop.mux import SIMULATED, TeleopMux
from serl.teleop.stop import STOP_FILE, StopLatch
from serl.types import End, Observation, Step

PERIOD_S = 0.1
EVENTS = (
    *(Event.SUCCESS, Event.FAILURE, Event.DISCARD, Event.RESET),
    *(Event.REWARD, Event.PENALTY),
)


def control_topic(actor: str) -> Topic:
    """Return the topic of an actor's control state: active controller, or reason to hold."""
    return Topic(f"{actor}/control", DiagnosticStatus, latest_only())


def describe(config: TrainConfig) -> dict[str, DescribedParameter]:
    """Return the parameters that describe an actor's task and arm."""
    task = make_task(config).config
    return {
        "task": DescribedParameter(config.task, "name of the task, or path of its file"),
        "robot": DescribedParameter(
            config.robot or "", "the arm behind ROS 2; empty: in this process"
        ),
        "rate_hz": DescribedParameter(task.rate_hz, "control rate in Hz"),
        "time_limit_s": DescribedParameter(
            task.time_limit_s, "duration in s after which an episode is truncated"
        ),
    }


def action_frame(config: TrainConfig, robot: str | None = None) -> ActionFrame:
    """Return the frame in which the actions of a run are expressed.

    Args:
        config: settings of the run.
        robot: profile of the arm, if it differs from the run's. A simulation without an arm behind
            ROS 2 has the frames of the simulated arm.
    """
    driven = robot or config.robot or "sim"
    pair = read_pair(driven)
    profile = load_robot(driven if pair is None else pair.left.profile)
    frame = make_task(config).config.motion.frame
    return ActionFrame(profile.frame_name(frame), frame == "tool")


class OperatorInterface(Observer):
    """The operator input of an actor: devices, services and stops, across all stages.

    Args:
        config: settings of teleoperation.
        frame: the frame in which the actions are expressed: see `action_frame`.
        link: the actor's folder, in which a stop is stored.

    Attributes:
        hold: the latch of stops and pauses, with the reason.
    """

    def __init__(
        self, node: RosNode, actor: str, config: TeleopConfig, frame: ActionFrame, link: Path
    ) -> None:
        link.mkdir(parents=True, exist_ok=True)
        self.hold = StopLatch(link / STOP_FILE)
        self._node, self._actor = node, actor
        self._devices = TopicDevices(node, actor, config, frame)
        self._control: Control | None = None
        self._human_input: HumanInput | None = None  # of the current stage
        self._last_end = LastEnd()
        self.hold.look = self._obey_stops

    def human_input(
        self, robot: SimulatedRobot, script: Teleop | None, episodes: Path
    ) -> HumanInput:
        """Return the operator input of a stage; `script` drives while no person does.

        Args:
            robot: the robot to drive.
            script: a simulated human, or None.
            episodes: the folder of the actor's episodes, for labels.
        """
        people = TeleopMux(self._devices.people(robot.action_spec), script)
        human_input = HumanInput(people, self.hold, episodes, self._last_end)
        self._control = self._control or Control(
            self._node, self._actor, human_input, self.has_operator, robot
        )
        self._human_input = self._human_input or human_input
        return human_input

    @property
    def health(self) -> Health:
        """Health for diagnostics: an error while stopped by a person, a warning while paused."""
        return _level(self.hold), self.hold.reason

    def has_operator(self) -> bool:
        """Check whether any device sends messages, with or without operator input."""
        return self._devices.has_operator

    def _obey_stops(self) -> None:
        if self._human_input is not None:
            self._human_input.obey_stops(read=True)

    def silence_s(self) -> float:
        """Return the silence of the active operator's device in s, for `RosArm.silence_s`."""
        return 0.0 if self._human_input is None else self._human_input.mux.silence_s

    def manage(self) -> None:
        """Let ROS 2's lifecycle tools hold the actor; a stop or a pause persists."""

        def activate() -> None:
            self.hold.inactive = ""

        def deactivate() -> None:
            self.hold.inactive = INACTIVE

        self._node.handle.manage(activate, deactivate)

    def use(self, human_input: HumanInput) -> None:
        """Make this the current operator input, which receives the events of the services."""
        self._human_input = human_input
        if self._control is not None:
            self._control.human_input = human_input

    def on_reading(self, reading: Observation) -> None:
        """Publish the forces and the place of the arm, and compare it with a leader arm."""
        self._devices.on_reading(reading)
        if self._control is not None:
            self._control.on_reading(reading)

    def on_step(self, step: Step) -> None:
        """Publish the progress of the episode."""
        if self._control is not None:
            self._control.on_step(step)

    def on_end(self, end: End) -> None:
        """Publish the end of the episode."""
        if self._control is not None:
            self._control.on_end(end)


class Control(Observer):
    """The services and the state topic of one actor.

    Args:
        human_input: receives the events of the services.
        has_operator: checks whether any device sends messages.
        robot: the robot; if simulated, its scene is published.

    Attributes:
        human_input: receives the events of the services.
    """

    def __init__(
        self,
        node: RosNode,
        actor: str,
        human_input: HumanInput,
        has_operator: Callable[[], bool],
        robot: Any,
    ) -> None:
        self._actor, self.human_input, self._has_operator = actor, human_input, has_operator
        self._driver = ""
        self._episode = self._step = -1
        self._last, self._steps = "", 0
        self._felt: dict[str, str] = {}
        self._state = node.publisher(control_topic(actor))
        for event in EVENTS:
            serve(node, event.value, partial(self._handle, event))
        serve(node, "estop", lambda: self._handle(Event.STOP))
        place = node.handle.get_fully_qualified_name()
        orders = OrderCheck(key_path(human_input.hold.path))
        serve_signed(node, place, {"release": self._release}, orders)
        serve(node, "pause", self._pause)
        serve(node, "resume", self._resume)
        node.every(PERIOD_S, self._publish)
        self._scene = ScenePublisher(node, actor, robot)

    def on_reading(self, reading: Observation) -> None:
        """Note contact force, gripper opening and tool position, for the operator."""
        self._felt = felt_by_arm(reading)

    def on_step(self, step: Step) -> None:
        """Note the active controller and the position in the episode."""
        self._driver = step.source.value
        self._step, self._steps = step.key.index, self._steps + 1
        self._episode = step.key.episode

    def on_end(self, end: End) -> None:
        """Note the reason of the end."""
        self._driver, self._last = "", end.text

    def _handle(self, event: Event) -> str:
        try:
            if objection := self.human_input.add_event(event, "the operator"):
                raise SerlError(objection)
        except OSError as error:  # the stop holds without the file
            return f"{self.human_input.hold.reason}, until a restart: {error}"
        return self.human_input.hold.reason or event.value

    def _release(self) -> str:
        self.human_input.hold.release()
        return self.human_input.hold.reason

    def _pause(self) -> str:
        self.human_input.hold.pause("paused")
        return "paused"

    def _resume(self) -> str:
        self.human_input.resume()
        return "running"

    def _publish(self) -> None:
        if not self._state.get_subscription_count():
            return
        human_input = self.human_input
        values = {
            "driver": self._driver,
            "owner": _owner(human_input.mux),
            "silent": human_input.mux.trouble,
            "stopped": human_input.hold.stopped,
            "paused": human_input.hold.inactive or human_input.hold.paused,
            "attended": str(int(self._has_operator())),
            "episode": str(self._episode),
            "step": str(self._step),
            "steps": str(self._steps),
            "last": self._last,
            **self._felt,
        }
        message = DiagnosticStatus(name=self._actor, message=human_input.hold.reason)
        message.values = [KeyValue(key=key, value=value) for key, value in values.items()]
        message.level = _level(human_input.hold)
        self._state.publish(message)


def felt_by_arm(reading: Observation) -> dict[str, str]:
    """Return the largest force of all arms in N, and of each arm its gripper and place in m."""
    state = reading.state
    forces = [
        float(np.linalg.norm(values[:3])) for name, values in state.items() if "wrench" in name
    ]
    felt = {"force_n": f"{max(forces):.2f}"} if forces else {}
    for prefix in ("", LEFT, RIGHT):
        if (gripper := state.get(f"{prefix}gripper")) is not None:
            felt[f"{prefix}gripper"] = f"{float(gripper[0]):.3f}"
        if (pose := state.get(f"{prefix}tcp_pose")) is not None:
            felt[f"{prefix}tcp_m"] = " ".join(f"{place_m:.4f}" for place_m in pose[:3].tolist())
    return felt


def _owner(people: TeleopMux) -> str:
    if people.owner is not None:
        return people.owner.name
    return SIMULATED if people.scripted else ""


def _level(hold: StopLatch) -> bytes:
    if hold.stopped:
        return bytes(DiagnosticStatus.ERROR)
    return bytes(DiagnosticStatus.WARN if hold.reason else DiagnosticStatus.OK)
