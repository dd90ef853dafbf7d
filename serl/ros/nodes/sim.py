"""The simulated arm as a ROS 2 robot, with the topics of a real arm's driver.

    serl sim pick_cube                    # in real time, with the names of the profile `sim`
    python -m serl.ros.nodes.sim --run runs/pick_cube/2026-11-21_10-00-00 --robot actor0

In real time it follows setpoints, 100 a second, limited by a guard; without a new one for 100 ms it
holds the tool at its present pose. In lock-step time passes in the service `advance` only, and it
takes the actor's targets directly, with the same motion profile as the arm in process.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, cast

from rcl_interfaces.msg import SetParametersResult
from rclpy.parameter import Parameter
from rclpy.time_source import USE_SIM_TIME_NAME
from rosgraph_msgs.msg import Clock

from serl import plugins
from serl.arm_pair import SIDES, PairedArm, mount_of
from serl.errors import BadInput
from serl.robot import ServedRobot
from serl.ros.arm.rehearsal import RehearsalConfig
from serl.ros.arm.rehearsal_driver import RehearsalDriver
from serl.ros.arm.sim_driver import (
    PERIOD,
    SEED,
    LockStep,
    RealTimeDriver,
    SimulationDriver,
)
from serl.ros.conversions import stamp_of
from serl.ros.environment import ARM_NODE
from serl.ros.node import RosNode, own_arguments, run_node
from serl.ros.parameters import DescribedParameter
from serl.ros.telemetry import Diagnostics
from serl.ros.topics import Topic
from serl.runs.config import TrainConfig
from serl.runs.folder import RunFolder
from serl.runs.task_setup import check_topics, make_task
from serl.system.supervisor import is_orphaned

logger = logging.getLogger(__name__)


def run(
    folder: Path,
    config: TrainConfig,
    robot: str,
    lockstep: bool,
    speed: float,
    clock: bool,
    rehearsal: RehearsalConfig | None = None,
) -> None:
    """Simulate the arm of a robot until asked to stop.

    Args:
        folder: folder of the run; its name is the namespace.
        config: settings that name the task.
        robot: the arm's namespace within the run.
        lockstep: whether time passes on request only.
        speed: simulated seconds in a second of the wall clock.
        clock: publish `/clock`, for nodes that use simulated time; always done in real time at a
            speed other than 1.
        rehearsal: faults of a simulation that is treated as a real arm; None without them.

    Raises:
        BadInput: the task's arm does not follow targets.
    """
    task, profile = make_task(config), plugins.load("robot", "sim")
    if rehearsal is not None and task.scene.robot == "bimanual":
        run_pair(folder, config, speed, clock, rehearsal)
        return
    check_topics(task)
    with plugins.make_simulation(task) as simulation:
        arm = cast(ServedRobot, simulation)
        impedance = cast(Any, simulation).impedance
        parameters = describe(config, 1.0 / task.config.rate_hz, impedance.parameters())
        with RosNode(
            ARM_NODE, folder, local=True, robot=robot, parameters=parameters, managed=True
        ) as node:
            tracked = task.scene.tracked
            driver: SimulationDriver
            if rehearsal is not None:
                arm.reset(rehearsal.seed)
                driver = RehearsalDriver(node, robot, arm, profile, tracked, rehearsal)
            elif lockstep:
                driver, speed = LockStep(node, robot, arm, profile, tracked), 1.0
            else:
                driver = RealTimeDriver(node, robot, arm, profile, tracked, task.config.rate_hz)
            _manage(node, driver, impedance, "simulated arm")
            driver.describe(alone=config.actors == 1)
            _set_clock([node], driver, clock, speed)
            if isinstance(driver, RealTimeDriver):
                driver.run(lambda: node.stopping or is_orphaned(), speed)
                _log_losses(driver)
            while not (node.stopping or is_orphaned()):
                node.wait(0.1)


def run_pair(
    folder: Path, config: TrainConfig, speed: float, clock: bool, rehearsal: RehearsalConfig
) -> None:
    """Simulate both arms of a task as real ones, in the namespaces `left` and `right`.

    Arguments are those of `run`. Each arm has its own node, and poses in the frame of its own base;
    the left arm's node publishes the bodies of the scene. One simulation moves both arms.
    """
    task, profile = make_task(config), plugins.load("robot", "sim")
    check_topics(task, pair=True)
    with plugins.make_simulation(task) as simulation, ExitStack() as nodes:
        simulation.reset(rehearsal.seed)
        sides = zip(SIDES.items(), cast(Any, simulation).sides(), strict=True)
        drivers: list[RehearsalDriver] = []
        opened: list[RosNode] = []
        for (side, prefix), arm in sides:
            parameters = describe(config, 1.0 / task.config.rate_hz, arm.impedance.parameters())
            node = nodes.enter_context(
                RosNode(
                    ARM_NODE, folder, local=True, robot=side, parameters=parameters, managed=True
                )
            )
            tracked = () if drivers else task.scene.tracked
            mount = mount_of(side, PairedArm(profile="sim"), task.scene.bases[prefix])
            own = rehearsal.model_copy(update={"seed": rehearsal.seed + len(drivers)})
            driver = RehearsalDriver(node, side, arm, profile, tracked, own, mount)
            if drivers:
                driver.lock = drivers[0].lock
            _manage(node, driver, arm.impedance, f"simulated {side} arm")
            driver.describe(alone=False)
            drivers.append(driver)
            opened.append(node)
        _set_clock(opened, drivers[0], clock, speed)
        first, *others = drivers
        first.run(lambda: any(n.stopping for n in opened) or is_orphaned(), speed, *others)
        _log_losses(first)


def _manage(node: RosNode, driver: SimulationDriver, impedance: Any, source: str) -> None:
    """Connect a driver with its node's parameters, lifecycle and diagnostics."""
    node.handle.add_on_set_parameters_callback(SimulatedGains(driver, impedance))
    node.handle.manage(partial(driver.activate, True), partial(driver.activate, False))
    Diagnostics(node, source, lambda: driver.counts)


def _set_clock(
    nodes: Sequence[RosNode], driver: SimulationDriver, clock: bool, speed: float
) -> None:
    """Publish `/clock` if asked to or needed, and make the nodes use it at a speed other than 1.

    The driver compares the stamps of its controllers, which use it, with its own.
    """
    if clock or speed != 1.0:
        publish_clock(nodes[0], driver)
    for node in nodes if speed != 1.0 else ():
        node.handle.set_parameters([Parameter(USE_SIM_TIME_NAME, value=True)])


def describe(
    config: TrainConfig, period_s: float, gains: Mapping[str, float]
) -> dict[str, DescribedParameter]:
    """Return the node's parameters: of `reset`, `advance`, the controller and the task."""
    return {
        SEED: DescribedParameter(
            0, "seed of the start that the next `reset` draws, 0 or more", read_only=False
        ),
        PERIOD: DescribedParameter(
            period_s, "simulated time of each `advance`, in s", read_only=False
        ),
        "task": DescribedParameter(config.task, "name of the task, or path of its file"),
        **{
            name: DescribedParameter(
                value, "gain of the controller in N/m or Nm/rad, or clip in m or rad"
            )._replace(read_only=False)
            for name, value in gains.items()
        },
    }


class SimulatedGains:
    """Callback that sets the controller's gains and clips when the node's parameters are set."""

    def __init__(self, driver: SimulationDriver, impedance: Any) -> None:
        self._driver, self._impedance = driver, impedance

    def __call__(self, parameters: Sequence[Any]) -> Any:
        """Accept or reject a change of parameters as a whole; called by rclpy before it."""
        gains = {p.name: p.value for p in parameters if p.name in self._impedance.parameters()}
        try:
            for parameter in parameters:
                if parameter.name == SEED and parameter.value < 0:
                    raise BadInput(f"{SEED}: expected at least 0, got {parameter.value}")
            with self._driver.lock:
                self._impedance.set(gains)
        except BadInput as error:
            return SetParametersResult(successful=False, reason=str(error))
        return SetParametersResult(successful=True)


def publish_clock(node: RosNode, driver: SimulationDriver) -> None:
    """Publish the simulation's stamps on `/clock`, one for each published instant."""
    publisher = node.publisher(Topic("/clock", Clock, 1))
    driver.on_publish = lambda stamp_ns: publisher.publish(Clock(clock=stamp_of(stamp_ns)))


def _log_losses(driver: RealTimeDriver) -> None:
    """Log the lost periods and refused setpoints of a finished simulation."""
    if driver.lost_ticks or driver.jumps:
        logger.warning(
            "%d periods of 10 ms passed without physics: the machine was busy; "
            "%d setpoints were refused, being too far from the tool",
            driver.lost_ticks,
            driver.jumps,
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the process; the exit code is 2 on bad input, with the reason in one line."""
    parser = argparse.ArgumentParser(prog="python -m serl.ros.nodes.sim", description=__doc__)
    parser.add_argument("--run", type=Path, required=True, help="folder of the run")
    parser.add_argument("--robot", required=True, help="the arm's namespace within the run")
    parser.add_argument("--lockstep", action="store_true", help="time passes in `advance` only")
    parser.add_argument("--rtf", type=float, default=1.0, help="times as fast as the wall clock")
    parser.add_argument("--clock", action="store_true", help="publish /clock")
    options = parser.parse_args(own_arguments(arguments))
    return run_node(
        lambda: run(
            options.run,
            RunFolder.open(options.run).config,
            options.robot,
            options.lockstep,
            options.rtf,
            options.clock,
        )
    )


if __name__ == "__main__":
    sys.exit(main())
