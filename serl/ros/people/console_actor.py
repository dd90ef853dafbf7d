"""One actor as a console shows and commands it: its state, services, guard, hands and pictures."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from std_srvs.srv import Trigger

from serl.arm_pair import SIDES, read_pair
from serl.arm_profile import load_robot
from serl.bimanual import RIGHT, PairConfig
from serl.camera import Crop
from serl.console.backend import Picture
from serl.console.messages import COMMANDS
from serl.console.pictures import DrawnScene, Pictures, PictureSource, Placement
from serl.errors import SerlError
from serl.guard.latch import GuardedArm
from serl.motion import Motion
from serl.ros.arm.camera import WatchedCameras
from serl.ros.node import RosNode
from serl.ros.people.attendant import SupervisedArm
from serl.ros.people.control import control_topic
from serl.ros.people.teleop import RemoteHand, console_topics
from serl.ros.services import Remote
from serl.ros.telemetry import scene_topic
from serl.runs.folder import RunFolder
from serl.runs.mounted_arms import mounted_arms
from serl.runs.real_arm import crops_of, within_workspace, write_crop
from serl.runs.task_setup import make_task
from serl.system.json_fields import printable
from serl.system.signed_order import key_path
from serl.task import SimulatedTask
from serl.teleop.mapping import Wish, split_wish
from serl.teleop.operator import arm_count
from serl.teleop.stop import STOP_FILE

_FRESH_S = 1.0
_ANSWER_S = 3.0
_RELEASE = "release"
_TEXTS = ("driver", "owner", "silent", "stopped", "paused", "last")


class ConsoleActor:
    """An actor of a run, over ROS 2.

    Args:
        remote: calls services with signatures.
        arms: the actor's arms behind guards by name, see `serl.ros.real_arm.arms_behind_guards`;
            none for a simulation in the actor's process.
        profile: profile of the arm, by name or file, if it is a real one; or the file of a pair.

    Attributes:
        crops: the crops of the cameras in the file of the arm, or of both arms, by name.
        is_secondary: whether the operator drives another actor; pictures are then rarer.
    """

    def __init__(
        self,
        node: RosNode,
        remote: Remote,
        run: RunFolder,
        name: str,
        arms: Mapping[str, GuardedArm],
        profile: str = "",
    ) -> None:
        pair = read_pair(profile)
        self._profiles = (profile,) if pair is None else (pair.left.profile, pair.right.profile)
        self.name, self.is_secondary = name, False
        self.crops = self._read_crops()
        self._control: dict[str, str] = {}
        self._received_s = self._moved_s = float("-inf")
        self._placement: Placement | None = None
        node.subscribe(control_topic(name), self._take_control)
        self._clients = {
            command: node.handle.create_client(Trigger, f"{name}/{command}")
            for command in COMMANDS
            if command != _RELEASE
        }
        self._remote = remote
        self._key = key_path(run.link(name) / STOP_FILE)
        self._task = make_task(run.config)
        self._arms = arm_count(self._task.config.action_spec)
        self._hands = [RemoteHand(node, topic) for topic in console_topics(name, self._arms)]
        self._motions = _motions(self._task, profile)
        self._supervised = [SupervisedArm(node, remote, run, *each) for each in arms.items()]
        self._guards: dict[str, Any] = {}
        for arm_name, arm in arms.items():
            service = node.absolute(f"{arm.namespace.rstrip('/')}/guard/estop")
            side = arm_name.partition("/")[2]
            self._guards[f"{side} guard".strip()] = node.handle.create_client(Trigger, service)
        self._pictures = Pictures(
            self._source(node, [*arms.values()] if profile else []),
            lambda: self._control.get("attended") == "1",
            lambda: self.is_secondary,
        )

    def _source(self, node: RosNode, arms: Sequence[GuardedArm]) -> PictureSource:
        """Return the cameras of real arms, or the simulated scene."""
        if not arms:
            node.subscribe(scene_topic(self.name), self._take_scene)
            return DrawnScene(self._task, lambda: self._placement, lambda: self.is_secondary)
        used = dict.fromkeys(view.camera for view in self._task.config.all_views.values())
        watched = WatchedCameras(node, "", {})
        for number, (arm, profile) in enumerate(zip(arms, self._profiles, strict=False)):
            known = load_robot(profile).cameras
            cameras = {
                name: known.get(name)
                for name in {**known, **used}
                if self._arm_with(name) == number
            }
            watched.watch(node, arm.namespace.rstrip("/"), cameras)
        return watched

    def _arm_with(self, camera: str) -> int:
        """Return the index of the arm with a camera: of two, the right one has `right_...`."""
        return int(len(self._profiles) == 2 and camera.startswith(RIGHT))

    def _read_crops(self) -> dict[str, Crop]:
        return {
            name: crop
            for number, profile in enumerate(self._profiles)
            for name, crop in crops_of(profile).items()
            if self._arm_with(name) == number
        }

    def drive(self, operator_input: Wish) -> None:
        """Send one message of operator input to each arm; none is repeated automatically."""
        for hand, part in zip(self._hands, split_wish(operator_input, self._arms), strict=True):
            hand.send(part)

    async def execute(self, command: str) -> str:
        """Call the actor's service of this name; a stop goes to the guards of its arms as well.

        Raises:
            SerlError: the order was not carried out, or a guard did not stop its arm.
        """
        if command == _RELEASE:
            order, service = self._remote.order, f"{self.name}/{_RELEASE}"
            return await asyncio.to_thread(order, service, self._key, _ANSWER_S)
        if command != "estop" or not self._guards:
            return await _call(self._clients[command], "the actor")
        *guarded, acting = await asyncio.gather(
            *(_call(client, f"the {name}") for name, client in self._guards.items()),
            _call(self._clients[command], "the actor"),
            return_exceptions=True,
        )
        each = [*zip(self._guards, guarded, strict=True), ("actor", acting)]
        answers = "; ".join(f"{name}: {answer}" for name, answer in each)
        if any(isinstance(answer, BaseException) for answer in guarded):
            raise SerlError(answers)  # a hold by the actor does not stop an arm
        return answers

    async def stop_secondary(self) -> str:
        """Stop an actor that is not driven from here, unless it does not run.

        Raises:
            SerlError: it was not stopped.
        """
        absent = not (self.is_fresh or self._clients["estop"].service_is_ready())
        if not self._guards and absent:
            return "does not run"
        return await self.execute("estop")

    async def confirm(self, question: str) -> str:
        """Confirm the guard's question.

        Raises:
            SerlError: the guard refuses, or its question has changed.
        """
        for arm in self._supervised:
            prefix = self._named(arm, "")
            if arm.guard_word() and question.startswith(prefix):
                return await asyncio.to_thread(arm.answer, question.removeprefix(prefix))
        raise SerlError("there is no question to confirm")

    def crop(self, camera: str, crop: Crop) -> str:
        """Write a camera's crop to the arm's file; raises as `write_crop`."""
        answer = write_crop(self._profiles[self._arm_with(camera)], camera, crop)
        self.crops = self._read_crops()
        return answer

    @property
    def is_fresh(self) -> bool:
        """Whether the actor reported within the last second."""
        return time.monotonic() - self._received_s < _FRESH_S

    def state(self) -> dict[str, Any]:
        """Return the last reports of actor and guard, and whether the actor's is fresh."""
        values = self._control
        return {
            **{name: values.get(name, "") for name in _TEXTS},
            "episode": int(values.get("episode", -1)),
            "step": int(values.get("step", -1)),
            "fresh": self.is_fresh,
            "still": time.monotonic() - self._moved_s > _FRESH_S,
            "arms": self._arms,
            **self._feel(),
            **self._question(),
        }

    def summary(self) -> dict[str, Any]:
        """Return the part of the state that a list of actors shows."""
        state = self.state()
        shown = ("driver", "owner", "silent", "stopped", "paused", "step", "fresh", "question")
        return {"name": self.name, **{name: state[name] for name in shown}}

    def _feel(self) -> dict[str, Any]:
        """Return force, gripper opening and distance to the task's box; None where unknown.

        Of two arms, opening and distance are in `by_arm`, by "left" and "right".
        """
        by_arm = {side: self._felt(side, motion) for side, motion in self._motions.items()}
        return {
            "force_n": _number(self._control.get("force_n")),
            "stop_force_n": min(each.limits.stop_force_n for each in self._motions.values()),
            **by_arm.pop("", {}),
            "by_arm": by_arm,
        }

    def _felt(self, side: str, motion: Motion) -> dict[str, float | None]:
        values, prefix = self._control, SIDES.get(side, "")
        place_m = np.array(values.get(f"{prefix}tcp_m", "").split(), float)
        box_m = None
        if len(place_m) == 3:
            box_m = float(np.min([place_m - motion.box_low_m, motion.box_high_m - place_m]))
        gripper = _number(values.get(f"{prefix}gripper")) if motion.gripper else None
        return {"gripper": gripper, "box_m": box_m}

    def _question(self) -> dict[str, str]:
        """Return the guard's question, the order that answers it, and why it would be refused."""
        if (asked := self._asked()) is None:
            return {"question": "", "yes": "", "not_now": ""}
        question = self._named(asked, asked.question())
        return {"question": question, "yes": asked.guard_word(), "not_now": asked.hindrance()}

    def _asked(self) -> SupervisedArm | None:
        """Return the arm whose guard has a question: the first where an answer can succeed."""
        asking = [arm for arm in self._supervised if arm.guard_word()]
        return min(asking, key=lambda arm: bool(arm.hindrance()), default=None)

    def _named(self, arm: SupervisedArm, text: str) -> str:
        return f"{arm.name}: {text}" if len(self._supervised) > 1 else text

    def pictures(self) -> list[Picture]:
        """Return the newest pictures of the arm's cameras, or of the simulated scene."""
        return self._pictures.newest()

    def close(self) -> None:
        """Close the source of the pictures."""
        self._pictures.close()

    def _take_control(self, message: Any) -> None:
        values = {pair.key: pair.value for pair in message.values}
        self._received_s = time.monotonic()
        if values.get("steps") != self._control.get("steps"):
            self._moved_s = self._received_s
        self._control = values

    def _take_scene(self, message: Any) -> None:
        self._placement = np.array(message.data, np.float64)


def _motions(task: SimulatedTask, profile: str) -> dict[str, Motion]:
    """Return the motion of each arm within its box, by "left" and "right", or "" of a single arm.

    Args:
        task: the task.
        profile: profile of a real arm, or the file of a pair; empty for a simulation.
    """
    config = task.config
    if (pair := read_pair(profile)) is not None:
        return {arm.side: arm.motion for arm in mounted_arms(task, pair)}
    if isinstance(config, PairConfig):
        return dict(zip(SIDES, (config.motion, config.right_motion), strict=True))
    return {"": within_workspace(config.motion, load_robot(profile)) if profile else config.motion}


def _number(text: str | None) -> float | None:
    return None if text is None else float(text)


async def _call(client: Any, server: str) -> str:
    """Call a service and return its answer; raise `SerlError` on a refusal or timeout."""
    deadline_s = time.monotonic() + _ANSWER_S
    while not client.service_is_ready():
        if time.monotonic() > deadline_s:
            raise SerlError(f"{server} does not answer")
        await asyncio.sleep(0.005)
    answer = client.call_async(Trigger.Request())
    while not answer.done():
        if time.monotonic() > deadline_s:
            raise SerlError(f"{server} did not answer within {_ANSWER_S:g} s")
        await asyncio.sleep(0.005)
    response = answer.result()
    if not response.success:
        raise SerlError(printable(response.message))
    return printable(response.message)


def combined(answers: Mapping[str, str | BaseException]) -> str:
    """Return the answers of several actors to a stop as one text.

    Raises:
        SerlError: one of them was not stopped.
    """
    text = "; ".join(f"{name}: {answer}" for name, answer in answers.items())
    if any(isinstance(answer, BaseException) for answer in answers.values()):
        raise SerlError(text)
    return text
