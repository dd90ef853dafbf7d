"""Sites of an actor's node and of a deployment, in simulation and on a real arm."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from serl.errors import NeedsPerson, Silent
from serl.log.annotations import StepKey, append_labels
from serl.loop import Observer
from serl.ros.arm.station import RESTORE, Station
from serl.ros.nodes import actor, policy
from serl.ros.nodes.actor import _driven_arm, _NodeSite
from serl.ros.nodes.policy import _DeploymentSite
from serl.runs.config import resolve
from serl.runs.deployment import TrialResult
from serl.runs.folder import RunFolder
from serl.teleop.human_input import HumanInput
from serl.teleop.mux import TeleopMux
from serl.teleop.stop import StopLatch
from serl.training.actor import Site
from serl.training.evaluation import Purpose
from serl.training.resets import EpisodeStarts
from serl.types import ActionSource

from ...support.acting import FakeCameraArm, notice_frozen_camera

pytestmark = pytest.mark.ros


class FakeOperators(Observer):
    """The operators of an actor, without topics.

    Attributes:
        used: operator inputs passed to `use`, in order.
    """

    def __init__(self, folder: Path) -> None:
        self.hold, self.used = StopLatch(folder / "stopped"), list[HumanInput]()

    def human_input(self, robot: Any, script: Any, episodes: Path) -> HumanInput:
        return HumanInput(TeleopMux((), script), self.hold, episodes)

    def use(self, human_input: HumanInput) -> None:
        self.used.append(human_input)

    def has_operator(self) -> bool:
        return True

    def silence_s(self) -> float:
        return 0.3


class Bench:
    """A site with its operators and a stand-in for its node.

    Attributes:
        node: `stopping` ends the process.
        standby_calls: number of calls of `Station.standby`.
    """

    site: Any

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch, real: bool) -> None:
        self.people, self.node, self.standby_calls = (
            FakeOperators(folder),
            SimpleNamespace(stopping=False),
            0,
        )
        self.robot, self.folder, self.real, self.patch = FakeCameraArm(), folder, real, patch

        def standby(station: Station) -> bool:
            self.standby_calls += 1
            return True

        patch.setattr(Station, "standby", standby)

    def of_node(self) -> None:
        people: Any = self.people
        arm: Any = self.robot
        station = Station(arm, people.hold, self.is_ending) if self.real else None
        self.site = _NodeSite(people, station, self.is_ending, self.folder)
        if not self.real:
            self.site.starts = EpisodeStarts(self.robot, Purpose.TRAINING, 0, "actor0")

    def of_deployment(self) -> None:
        settings = {"task": "reach", "demos": 0, "log": {"min_free_bytes": 0}}
        own = {"robot": "franka", "intervention": "none"} if self.real else {}
        run = RunFolder.create(self.folder, resolve({**settings, **own}), datetime.now())
        self.patch.setattr(policy, "make_arm", lambda *arguments: self.robot)
        node: Any = self.node
        people: Any = self.people
        self.site = _DeploymentSite(node, run, "actor0", people)

    def is_ending(self) -> bool:
        return bool(self.node.stopping)


class WaitingArm(FakeCameraArm):
    """Arm whose guard takes it during the second wait; `between` is called during the first."""

    restart_problem = ""

    def __init__(self, between: Callable[[], object]) -> None:
        super().__init__()
        self.guards = (SimpleNamespace(has_arm=False, report=None),)
        self.remote, self._between, self._waits = self, between, 0

    def wait(self, condition: Callable[[], bool], limit_s: float) -> bool:
        self._waits += 1
        if self._waits == 1:
            self._between()
            return False
        self.guards[0].has_arm = True
        return condition()

    def begin_from(self, reading: Any) -> None:
        assert self.guards[0].has_arm

    def observe_when_fresh(self, limit_s: float) -> None:
        pass


@pytest.mark.parametrize("stops", [False, True])
def test_arm_that_waits_for_its_guard_is_held_by_a_pause_and_by_a_stop_at_a_device(
    tmp_path: Path, stops: bool
) -> None:
    hold, found = StopLatch(tmp_path / "stopped"), list[str]()

    def press() -> None:
        if stops:
            hold.look = lambda: hold.stop("stopped by pad")  # a device
        else:
            hold.pause("paused")

    def person() -> bool:
        hold.look = lambda: None
        found.append(hold.reason)
        hold.release()
        hold.resume()
        return False

    arm: Any = WaitingArm(press)
    assert Station(arm, hold, person).standby()
    assert ("stopped by pad" if stops else "paused") in found


Make = Callable[[str, bool], Bench]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    def made(kind: str, real: bool) -> Bench:
        bench = Bench(tmp_path, monkeypatch, real)
        bench.of_node() if kind == "node" else bench.of_deployment()
        return bench

    return made


@pytest.mark.parametrize("real", [False, True])
@pytest.mark.parametrize("kind", ["node", "deployment"])
def test_site_of_real_arm_waits_for_operator_and_simulation_continues(
    make: Make, kind: str, real: bool
) -> None:
    bench = make(kind, real)
    site, hold = bench.site, bench.people.hold
    assert isinstance(site, Site)
    assert site.standby() == real
    assert bench.standby_calls == int(real)
    site.on_robot_stopped("no picture")
    assert hold.paused == ("no picture" if real else "")
    hold.resume()
    if real:
        site.on_silence(Silent("no pose"))
        assert hold.paused == "no pose"
        hold.resume()
    else:
        with pytest.raises(Silent, match="no pose"):
            site.on_silence(Silent("no pose"))
    bench.robot.stop("the cube fell")
    site.on_reset_failed(request := NeedsPerson("the cube fell"))
    placed = kind == "node" and not real
    assert hold.paused == ("" if placed else str(request))
    assert bench.robot.stop_reason == ("" if placed else "the cube fell")
    hold.pause("by a person")
    bench.node.stopping = True
    assert site.is_stopping(), "a paused site must also end"


def test_actor_of_real_arm_that_is_started_again_stays_paused(make: Make) -> None:
    make("node", True).people.hold.pause("the part is out of reach")
    assert make("node", True).people.hold.paused == "the part is out of reach"
    assert not make("node", False).people.hold.paused


def test_site_uses_operator_input_of_the_stage_that_begins(make: Make) -> None:
    bench = make("node", False)
    desk = bench.site.attend(bench.robot, None)
    assert bench.site.has_operator()
    bench.site.on_begin(ActionSource.POLICY)
    assert bench.people.used == [desk]


@pytest.mark.parametrize("real", [False, True])
def test_deployment_monitors_cameras_of_real_arm(make: Make, real: bool) -> None:
    bench = make("deployment", real)
    acting: Any = None
    with ExitStack() as opened:
        actor = bench.site.actor(acting, opened)
    assert actor.robot is bench.site.robot
    assert actor.site.teleop in actor.observers
    assert (bench.site.starts is None) == bench.site.leaves_the_scene == real
    if real:
        assert actor.robot.silence_s() == 0.3
        assert bench.people.hold.beat == actor.robot.beat
        assert notice_frozen_camera(actor.observers)


def test_deployment_notes_cameras_and_asks_a_person_to_restore_the_scene_before_each_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold, held, noted = StopLatch(tmp_path / "stopped"), list[str](), list[Any]()

    def episode() -> str:
        held.append(hold.reason)
        hold.resume()
        return "success"

    site = SimpleNamespace(
        robot=nullcontext(),
        end=None,
        simulated=False,
        leaves_the_scene=True,
        actor=lambda policy, opened: SimpleNamespace(
            episode=episode, key=SimpleNamespace(episode=1)
        ),
        trial_result=lambda number, result: TrialResult(
            number, True, False, 9, 0.9, result, void="camera" if number == 0 else ""
        ),
    )
    people = SimpleNamespace(hold=hold, manage=lambda: None)
    monkeypatch.setattr(policy, "_DeploymentSite", lambda *arguments: site)
    monkeypatch.setattr(policy, "OperatorInterface", lambda *arguments: people)
    monkeypatch.setattr(policy, "RosNode", lambda *arguments, **settings: nullcontext())
    monkeypatch.setattr(policy, "make_policy", lambda *arguments: SimpleNamespace(version=100))
    monkeypatch.setattr(policy, "note_cameras", lambda *arguments: noted.append(arguments[2:]))
    for name in ("serve", "Stats"):
        monkeypatch.setattr(policy, name, lambda *arguments: None)
    config = resolve({"task": "reach", "robot": "franka", "intervention": "none", "demos": 0})
    trained = RunFolder.create(tmp_path, config, datetime.now())
    deployed = RunFolder.make(tmp_path, "trials", config, datetime.now())  # as by --out
    (episodes := deployed.episodes("actor0")).mkdir(parents=True)
    append_labels(episodes, [(StepKey(1, 0, 8), 1)], "person")  # of the void trial: it counts
    policy.run(deployed, "actor0", trained.path / "checkpoints/100", 2)
    ((folder, origins),) = noted
    assert folder is deployed
    assert origins[0] == trained.path
    assert held == [RESTORE, RESTORE]
    assert not hold.reason


def test_training_arm_sends_heartbeats_while_paused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    people: Any = FakeOperators(tmp_path)
    arm, unused = FakeCameraArm(), cast(Any, None)
    monkeypatch.setattr(actor, "make_arm", lambda *arguments: arm)
    config = resolve({"task": "reach", "robot": "franka", "intervention": "none", "demos": 0})
    assert _driven_arm(unused, unused, config, "actor0", 1, people).robot is arm
    assert people.hold.beat == arm.beat
