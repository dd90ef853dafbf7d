"""The YAML file of a graph: one task, robots in namespaces, their actors, guards and a console."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import AfterValidator, Field, model_validator

from serl.arm_profile import SIM, is_real
from serl.errors import BadInput
from serl.system.files import expand_home
from serl.system.settings_file import HomePath, merge
from serl.types import FrozenModel

_TAKEN = ("learner", "console")
"""Names of a run's other processes and nodes."""


def _check_free(name: str) -> str:
    if name in _TAKEN:
        raise ValueError(f"{name!r} is the name of another process of the run; choose another")
    return name


Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,31}$"), AfterValidator(_check_free)]


_NAMESPACE = r"(/|(/[A-Za-z][A-Za-z0-9_]*)+)"


def _check_namespace(text: str) -> str:
    if not re.fullmatch(_NAMESPACE, text):
        raise ValueError(f"expected one such as /left, or /, got {text!r}")
    return text


Namespace = Annotated[str, AfterValidator(_check_namespace)]
"""Type of a setting for a ROS namespace, from the root."""


class RobotEntry(FrozenModel):
    """A robot of a graph.

    Attributes:
        name: name of the robot, of its actor and of its namespace within the run.
        profile: "sim" for a simulated arm behind ROS 2 in real time, null for one in the process
            of its actor; a profile's name, or a .py or .yaml file with one, for a real arm.
        namespace: namespace of a real arm's own topics, from the root; "/" for the root itself.
        guard: whether a guard is started, the only process that commands the arm; required for an
            arm behind ROS 2 that has an actor.
        actor: whether an actor is started, which drives the arm and sends steps to the learner.
    """

    name: Name
    profile: Annotated[str, AfterValidator(expand_home)] | None = SIM
    namespace: Namespace = "/"
    guard: bool = True
    actor: bool = True

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.actor and self.profile is not None and not self.guard:
            raise ValueError(f"{self.name}: guard: false: nothing drives this arm without one")
        if self.profile is None and not self.actor:
            raise ValueError(f"{self.name}: without profile and actor it is nothing")
        return self


class ConsoleEntry(FrozenModel):
    """The web page beside a robot.

    Attributes:
        robot: name of the robot.
        port: the first port to try.
        host: this machine's address in the lab network, to let phones in; empty for this host
            alone.
    """

    robot: Name
    port: int = Field(8765, ge=1024, le=65535)
    host: str = Field("", max_length=253)


class GraphConfig(FrozenModel):
    """The processes and settings that `serl up` starts.

    Attributes:
        task: task of a new run: its name, or the path of a .py or .yaml file.
        settings: settings of a new run that differ from the defaults; `actors`, `robot` and
            `namespace` follow from `robots`.
        runs: folder in which new runs are made.
        run: folder of a run to continue, instead of a task.
        learner: whether a learner is started; without one the robots join a run already started.
        robots: the robots, each in a namespace of its own.
        console: the web page, for one of the robots.
    """

    task: str | None = None
    settings: dict[str, Any] = Field({})
    runs: HomePath = Path("runs")
    run: HomePath | None = None
    learner: bool = True
    robots: tuple[RobotEntry, ...] = Field((), max_length=16)
    console: ConsoleEntry | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.task is None) == (self.run is None):
            raise ValueError("expected `task` for a new run, or `run` to go on with one")
        if self.run is not None and self.settings:
            raise ValueError("settings: a run has its own: give none with `run`")
        if self.task is not None and not self.learner:
            raise ValueError("learner: false needs the `run` that the robots join")
        if not self.learner and not self.robots:
            raise ValueError("robots: expected at least one, or a learner")
        for taken in ("actors", "robot", "namespace", "task"):
            if taken in self.settings:
                raise ValueError(f"settings.{taken}: follows from the rest of this file")
        names = [robot.name for robot in self.robots]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"robots: {', '.join(twice)}: each name once")
        driven = [robot for robot in self.robots if robot.actor]
        if len({"real" if is_real(robot.profile) else robot.profile for robot in driven}) > 1:
            raise ValueError(
                "robots: expected the same wherever an actor is: sim, null, or a profile of each"
            )
        places = [(robot.namespace, robot.profile) for robot in driven if is_real(robot.profile)]
        if len(set(places)) < len(places):
            raise ValueError(
                "robots: two actors would drive one arm: namespaces or profiles differ"
            )
        if self.console is not None and self.console.robot not in self.actors:
            known = ", ".join(self.actors) or "nobody"
            raise ValueError(f"console.robot: {self.console.robot!r}: expected one of {known}")
        return self

    @property
    def actors(self) -> tuple[str, ...]:
        """Names of the robots that an actor drives."""
        return tuple(robot.name for robot in self.robots if robot.actor)

    @property
    def run_settings(self) -> dict[str, Any]:
        """The settings of a new run, with those that follow from the robots."""
        first = next((robot for robot in self.robots if robot.actor), None)
        driven: dict[str, Any] = {"robot": first.profile} if first else {}
        if first is not None and is_real(first.profile):
            driven["namespace"] = first.namespace
        shown = {} if self.console is None else {"ros": {"publish_state": True}}
        return merge(shown, {**self.settings, "actors": max(1, len(self.actors)), **driven})


def checked_robot(name: str, subject: str) -> str:
    """Return the name of an actor or a robot, which is part of the names of its topics.

    Raises:
        BadInput: it cannot be, or it is the name of another process of the run.
    """
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]{0,63}", name):
        raise BadInput(
            f"{subject} {name[:80]!r}: expected 1 to 64 letters, digits or '_', the first a letter"
        )
    try:
        return _check_free(name)
    except ValueError as error:
        raise BadInput(f"{subject} {error}") from None


def checked_namespace(text: str) -> str:
    """Return a namespace from the root, "/" for the root itself; raise `BadInput` if malformed."""
    if not re.fullmatch(rf"{_NAMESPACE}/?", text):
        raise BadInput(f"--namespace {text!r}: expected one such as /left, or /")
    return text
