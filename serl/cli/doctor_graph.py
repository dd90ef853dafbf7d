"""`serl doctor --graph`: publishers, subscriptions and faults in the graph of a run or a domain."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from serl.arm_pair import read_pair
from serl.arm_profile import SIM
from serl.errors import BadInput
from serl.report.display import Display
from serl.ros.inspection import Endpoint, GraphInfo, TopicInfo, problems
from serl.runs.folder import RunFolder

LISTEN_S = 3.0
_WIDTH = 160
_NO_NODES = 3
"""Exit code of an inspection that found no node."""
_TRANSPORTS = {
    "": "over 127.0.0.1 (serl sim, guard, camera, setup, ros2 launch; drivers, ros2, rviz2)",
    "1": "through shared memory alone (the processes of a run without a real arm)",
}
"""Transports by the value of the environment setting that selects them."""


def examine_graph(target: str, seconds: float = LISTEN_S) -> bool:
    """Print a table of topics and a line for each problem; return whether there is no problem.

    A domain is inspected over both transports that programs of a host use, one after the other:
    nodes on one of them are invisible on the other.

    Args:
        target: folder of a run, number of a ROS domain, or empty for that of the environment.
        seconds: duration of the measurement of rates.

    Raises:
        BadInput: the run or domain does not exist, or ROS 2 is missing.
    """
    if target and not target.isdecimal():
        return _examine_run(RunFolder.open(Path(target)), seconds)
    from serl.ros.environment import SHARED_MEMORY_ALONE, domain_id_of
    from serl.ros.processes import require_ros

    require_ros()
    domain = str(domain_id_of({"ROS_DOMAIN_ID": target} if target else os.environ))
    alone = os.environ.get(SHARED_MEMORY_ALONE)
    transports = {"1": _TRANSPORTS["1"]} if alone else _TRANSPORTS
    verdicts = []
    for setting, transport in transports.items():
        print(f"{transport}:", flush=True)
        environ = {**os.environ, "ROS_DOMAIN_ID": domain, SHARED_MEMORY_ALONE: setting}
        words = [sys.executable, "-m", "serl.cli.doctor_graph", str(seconds)]
        verdicts.append(subprocess.run(words, env=environ, check=False).returncode)
    if all(verdict == _NO_NODES for verdict in verdicts):
        _print_problems([f"domain {domain}: found no node of this host"])
    return set(verdicts) <= {0, _NO_NODES} and 0 in verdicts


def examine_domain(seconds: float) -> int:
    """Print the graph over the transport set in the environment; return an exit code.

    It runs in a process of its own, since a process cannot change its transport.
    """
    from serl.ros.environment import lone_folder

    with lone_folder("doctor") as folder:
        graph, _ = _inspect(folder, seconds)
    show(_console(), graph)
    if not graph.nodes:
        return _NO_NODES
    return 0 if _print_findings(graph, list(problems(graph))) else 1


def _examine_run(run: RunFolder, seconds: float) -> bool:
    from serl.ros.processes import require_ros, started_domain_id

    require_ros()
    if not run.config.network.local:
        raise BadInput(f"{run.path}: a run of several hosts: expected `serl doctor --network`")
    domain = os.environ["ROS_DOMAIN_ID"] = str(started_domain_id(run))
    graph, root = _inspect(run.path, seconds)
    show(_console(), graph, root)
    if not graph.nodes:
        return _print_problems([f"{run.path}: no process of it runs in its domain, {domain}"])
    return _print_findings(graph, list(problems(graph, expected_nodes(run, root))))


def _inspect(folder: Path, seconds: float) -> tuple[GraphInfo, str]:
    """Return the graph seen with the network settings of a folder, and the folder's namespace."""
    from serl.ros.inspection import GraphListener
    from serl.ros.node import RosNode

    with (
        RosNode("doctor", folder, local=True) as node,
        Display().working("looking for nodes") as show,
    ):
        listener = GraphListener(node)
        has_others = listener.settle()
        if has_others:
            show(f"listening for {seconds:g} s")
        return listener.listen(seconds if has_others else 0.0), node.absolute("").rstrip("/")


def _print_findings(graph: GraphInfo, found: list[str]) -> bool:
    if found:
        return _print_problems(found)
    _console().print(f"ok   {len(graph.nodes)} nodes, {len(graph.topics)} topics")
    return True


def _print_problems(lines: list[str]) -> bool:
    for line in lines:
        _console().print(Text(f"BAD  {line}", style="red"), soft_wrap=True)
    return False


def _console() -> Console:
    return Console(
        highlight=False, emoji=False, markup=False, width=None if sys.stdout.isatty() else _WIDTH
    )


def show(console: Console, graph: GraphInfo, root: str = "") -> None:
    """Print nodes and topics; names below a namespace `root` are printed without it."""
    below = f"{root}/"
    nodes = ", ".join(name.removeprefix(below) for name in graph.nodes)
    console.print(f"nodes: {nodes or 'none'}", soft_wrap=not console.is_terminal)
    if not graph.topics:
        return
    if root:
        console.print(f"names that begin without a slash are below {below}", soft_wrap=True)
    console.print("? best effort, * keeps the last message for late subscribers")
    table = Table(box=None, pad_edge=False)
    for title in ("topic", "type", "Hz", "publishers", "subscriptions"):
        table.add_column(title, justify="right" if title == "Hz" else "left", overflow="fold")
    for topic in graph.topics:
        table.add_row(
            topic.name.removeprefix(below),
            " ".join(kind.rpartition("/")[2] for kind in topic.types),
            _rate(topic),
            _ends(topic.publishers),
            _ends(topic.subscriptions),
        )
    console.print(table)


def expected_nodes(run: RunFolder, root: str) -> list[str]:
    """Return the full names of the nodes of a run in training, or of its started parts."""
    from serl.ros.environment import guard_name, ros_name
    from serl.ros.processes import actor_names

    announced = sorted(path.name for path in run.path.glob("link/*") if path.is_dir())
    deployed = not (run.path / "index.sqlite").exists() and (run.path / "trials.jsonl").exists()
    stages = [f"{root}/{ros_name(stage)}" for stage in run.config.stages or ()]
    learned = [] if deployed else stages or [root]
    names = [f"{each}/learner" for each in learned]
    for actor in announced or actor_names(run):
        name = ros_name(actor)
        names.append(f"{root}/{name}")
        names += [f"{each}/link_{name}" for each in learned]
        if run.config.robot == SIM:
            names += [f"{root}/guard_{name}", f"{root}/{actor}/arm"]
        elif run.config.robot and run.config.actors == 1:
            pair = read_pair(run.config.robot)
            own = [run.config.namespace]
            arms = [pair.left.namespace, pair.right.namespace] if pair else own
            names += [f"{root}/{guard_name(arm)}" for arm in arms]
    return names


def _rate(topic: TopicInfo) -> str:
    if not topic.publishers or topic.rate_hz is None:
        return "-"
    return f"{topic.rate_hz:.1f}"


def _ends(ends: tuple[Endpoint, ...]) -> str:
    """Format endpoints: best-effort ones with a question mark, latching ones with an asterisk."""
    marks = {
        end.node.rpartition("/")[2] + ("" if end.reliable else "?") + ("*" if end.latched else "")
        for end in ends
    }
    return ", ".join(sorted(marks)) or "none"


if __name__ == "__main__":
    sys.exit(examine_domain(float(sys.argv[1])))
