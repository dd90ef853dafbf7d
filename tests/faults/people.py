"""Faults of operators and devices: lost, stuck or second devices and wrong labels."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event as Flag
from threading import Thread
from unittest.mock import patch

import numpy as np

from serl.clock import RealTime, VirtualClock, WallClock
from serl.intervention import Event
from serl.log.annotations import LABELS_FILE, StepKey, append_labels, read_labels
from serl.loop import EpisodeKey, RecordCallback, run
from serl.ros.environment import environment, free_domain
from serl.ros.node import RosNode
from serl.ros.people.teleop import ActionFrame, TopicDevices
from serl.ros.testing.processes import Lateness, eventually
from serl.teleop.config import TeleopConfig
from serl.teleop.human_input import HumanInput
from serl.teleop.mux import TeleopMux
from serl.teleop.operator import Hands, OperatorConfig
from serl.teleop.stop import StopLatch
from serl.testing import FakeRobot, FakeTask
from serl.types import Action, ActionSource, Observation, Record, Step

from ..console.site import PUSH, REST, Site, heard, refused, served, settled
from ..teleop.pad import BY_MOTION, Bench, Two, moved
from .registry import REGISTRY, Level

ACTOR, RATE_HZ = "actor0", 20.0
NOTICED_S = 0.2
HOLDS_S = 1.5


class Driven:
    """Actor in this process with an always moving policy, reachable by operators over DDS."""

    def __init__(self, folder: Path, node: RosNode) -> None:
        config = TeleopConfig(operator=OperatorConfig(lost_s=HOLDS_S))
        devices = TopicDevices(node, ACTOR, config, ActionFrame("base"))
        self.robot = FakeRobot()
        people = TeleopMux(devices.people(self.robot.action_spec))
        self.desk = HumanInput(people, StopLatch(folder / "stopped"), folder)
        self.records: list[Record] = []
        self.ending = Flag()
        self.thread = Thread(target=self._run, daemon=True)

    @property
    def steps(self) -> list[Step]:
        return [record for record in list(self.records) if isinstance(record, Step)]

    def driven_by_hand(self) -> bool:
        return len(self.steps) > 3 and all(
            step.source is ActionSource.HUMAN and step.action.any() for step in self.steps[-3:]
        )

    def _run(self) -> None:
        pace = RealTime(WallClock(RATE_HZ), lambda: True)
        clock = VirtualClock(self.robot.advance, RATE_HZ, pace)
        task = FakeTask()
        task.config = task.config.model_copy(update={"time_limit_s": 1000.0})
        for episode in range(1000):
            self.desk.hold.wait(self.ending.is_set)
            if self.ending.is_set():
                return
            self.robot.reset(episode)
            self.robot.recover()
            key = EpisodeKey("run", ACTOR, 1, episode)
            run(
                self.robot,
                task,
                _circle,
                clock,
                key,
                [RecordCallback(self.records.append), self.desk],
                teleop=self.desk,
                interrupted=self.ending.is_set,
            )


def _circle(observation: Observation) -> Action:
    return np.array([0.0, 1.0 if time.monotonic() % 2 < 1 else -1.0], np.float32)


@contextmanager
def driven(folder: Path) -> Iterator[Driven]:
    with (
        free_domain() as domain,
        patch.dict(os.environ, ROS_DOMAIN_ID=str(domain.id)),
        RosNode(ACTOR, folder, local=True) as node,
    ):
        actor = Driven(folder, node)
        actor.thread.start()
        try:
            yield actor
        finally:
            actor.ending.set()
            actor.thread.join(10.0)


@REGISTRY.fault(
    42,
    "Teleoperation dies during a takeover",
    injected="SIGKILL to the process that sends a person's input over DDS",
    required="zero action within 200 ms plus a control period; the policy does not continue: the "
    "episode ends as truncated after `teleop.operator.lost_s`, and the actor waits until a person "
    "resumes",
    level=Level.PROCESSES,
)
def hand_killed_while_pushing(folder: Path) -> None:
    with driven(folder) as actor, Lateness() as machine:
        hand = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("hand_process.py")), str(folder), ACTOR],
            env=environment(int(os.environ["ROS_DOMAIN_ID"]), folder),
        )
        try:
            eventually(actor.driven_by_hand)
        finally:
            hand.kill()
            killed_s = time.monotonic()
            hand.wait()
        eventually(lambda: actor.desk.hold.paused)
        after = [step for step in actor.steps if step.monotonic_s > killed_s]
        assert all(step.source is ActionSource.HUMAN for step in after), "the policy got it back"
        moving = [step.monotonic_s - killed_s for step in after if step.action.any()]
        allowed_s = NOTICED_S + 1 / RATE_HZ + 3 * machine.worst_s
        assert max(moving, default=0.0) < allowed_s, (moving, machine.worst_s)
        assert actor.desk.hold.paused == "the console fell silent"
        count = len(actor.records)
        time.sleep(0.5)
        assert len(actor.records) == count, "it waits"
        actor.desk.resume()
        eventually(lambda: len(actor.records) > count + 3)
        assert actor.steps[-1].source is ActionSource.POLICY


@REGISTRY.fault(
    43,
    "Human releases the device",
    injected="the deadman is released during a motion, for a moment or longer",
    required="zero action in the same step; the policy continues after "
    "`teleop.operator.hold_over_s` without input, never before",
    level=Level.UNIT,
)
def lets_go(folder: Path) -> None:
    bench = Bench()
    bench.pad.hold()
    bench.pad.axes["x"] = 1.0
    assert moved(bench.tick()) == [1.0, 0.0]
    bench.pad.hold(False)
    assert moved(bench.tick()) == [0.0, 0.0]
    bench.pad.hold()
    assert moved(bench.tick()) == [1.0, 0.0], "for a moment only"
    bench.pad.hold(False)
    held = 0
    while (action := bench.tick()) is not None:
        assert not action.any()
        held += 1
    assert held == 2, "0.25 s at ten looks a second"


@REGISTRY.fault(
    44,
    "A device drifts or is stuck",
    injected="an axis stays at 0.002; an axis has exactly the same value for 61 s; a value varies "
    "slightly for 70 s",
    required="the drift does not take over; after 60 s of the same value the robot holds, the "
    "episode ends as truncated, and the person sees the reason; with the varying value the person "
    "continues to drive",
    level=Level.UNIT,
)
def stuck_axis(folder: Path) -> None:
    drifting = Bench(BY_MOTION.model_copy(update={"dead_zone": 0.01, "threshold": 0.001}))
    drifting.pad.axes["x"] = 0.002
    assert drifting.tick(100) is None
    stuck = Bench(BY_MOTION)
    stuck.pad.axes["x"] = 0.6
    fresh = Bench(BY_MOTION)
    assert stuck.tick() is not None, "was seen at rest before"
    assert moved(stuck.tick(590)) == [0.6, 0.0]
    assert moved(stuck.tick(20)) == [0.0, 0.0]
    assert stuck.person.hands is Hands.SILENT
    assert stuck.person.trouble == "pad pushed the same way for 60 s"
    stuck.tick(10)
    assert stuck.person.events() == (Event.LOST,)
    stuck.pad.axes["x"] = 0.0
    stuck.tick()
    stuck.pad.axes["x"] = 0.3
    assert moved(stuck.tick()) == [0.3, 0.0], "in order again"
    fresh.pad.axes["x"] = 0.6
    for _ in range(700):
        fresh.pad.axes["x"] += 0.0001
        assert moved(fresh.tick())[0] > 0.5, "a hand is never quite still"


@REGISTRY.fault(
    45,
    "Two operators at once",
    injected="two devices push in opposite directions; two pages take the controls",
    required="the first one drives; the other one moves nothing until the first one releases; both "
    "can stop the robot",
    level=Level.COMPONENT,
)
def two_at_once(folder: Path) -> None:
    two = Two()
    assert moved(two.tick()) == [-1.0, -1.0], "the script drives while no operator does"
    assert two.one.scripted
    two.second.pad.axes["x"] = 0.25
    two.second.pad.hold()
    assert moved(two.tick()) == [0.25, 0.0]
    assert not two.one.scripted
    two.first.pad.axes["x"] = 1.0
    two.first.pad.hold()
    assert moved(two.tick()) == [0.25, 0.0]
    assert two.one.owner is two.second.person
    two.first.pad.hit("stop")
    two.tick()
    assert Event.STOP in two.one.events()
    two.second.pad.hold(False)
    for _ in range(3):
        action = two.tick()
    assert moved(action) == [1.0, 0.0]
    assert two.one.owner is two.first.person

    async def pages(site: Site) -> None:
        first, second = await site.enter(), await site.enter()
        await first.send_json({"type": "take"})
        await first.send_json(REST)
        await settled(lambda: len(site.backend.driven) == 2)
        await second.send_json({"type": "take"})
        await second.send_json(PUSH)
        await second.send_json({"type": "say", "what": "success"})
        assert (await heard(second, "answer"))["text"] == "take over first"
        await second.send_json({"type": "say", "what": "estop"})
        await settled(lambda: site.backend.commands == ["estop"])
        assert not any(wish.hands for wish in site.backend.driven)

    served(pages)()


@REGISTRY.fault(
    52,
    "A person mislabels",
    injected="a failure labelled as success, a repeated label, a correction, and a label after "
    "the end",
    required="the last label counts; every label is stored with author and time; labels between "
    "two episodes are ignored",
    level=Level.UNIT,
)
def mislabelled(folder: Path) -> None:
    place = StepKey(1, 0, 7)
    append_labels(folder, [(place, 1)], "the operator", 10.0)
    append_labels(folder, [(place, 1)], "the operator", 11.0)
    append_labels(folder, [(place, 0)], "person", 12.0)
    assert read_labels(folder) == {place: 0}
    lines = [json.loads(line) for line in (folder / LABELS_FILE).read_text().splitlines()]
    said = [(line["label"], line["by"], line["wall_s"]) for line in lines]
    assert said == [(1, "the operator", 10.0), (1, "the operator", 11.0), (0, "person", 12.0)]
    desk = HumanInput(TeleopMux([Bench().person]), StopLatch(folder / "stopped"), folder)
    assert desk.add_event(Event.SUCCESS, "the operator") == "ignored: no episode runs"
    desk.begin()
    assert desk.events() == ()
    desk.add_event(Event.SUCCESS, "the operator")
    desk.add_event(Event.SUCCESS, "the operator")  # the second time in this step
    assert desk.events() == (Event.SUCCESS,)


@REGISTRY.fault(
    57,
    "A web page attacks the console",
    injected="a wrong token and none, another Origin and Host, GET, POST and DELETE from another "
    "site, a frame of more than 64 kB",
    required="answer 403, or the socket is closed; no message is sent, and nothing moves",
    level=Level.COMPONENT,
)
def browser_attack(folder: Path) -> None:
    async def attack(site: Site) -> None:
        for token in ("", "wrong", site.token[:-1]):
            assert await refused(await site.enter(token)) == 4401
        for path in ("/", "/socket", "/report"):
            for method in ("GET", "POST", "DELETE", "PUT"):
                evil = {"Origin": "http://evil.example", "Authorization": f"Bearer {site.token}"}
                assert (await site.ask(method, path, **evil)).status == 403
                rebound = {"Host": "evil.example", "Origin": "http://evil.example"}
                assert (await site.ask(method, path, **rebound)).status == 403
        page = await site.enter()
        await page.send_str(json.dumps({**PUSH, "more": "x" * (64 << 10)}))
        while (await page.receive()).type.name not in ("CLOSE", "CLOSED", "CLOSING"):
            pass
        await asyncio.sleep(0)
        assert site.untouched

    served(attack)()
